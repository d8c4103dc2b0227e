"""Rows of anything as a table: read by people and by screen readers, text only, with links where a row leads on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from penstock.ui import shown
from penstock.ui.frame import named

Row = Mapping[str, Any]

# Vue writes a value as text, whatever is in it, and the address comes from `part`, so neither can become markup.
_LINK = """
<q-td :props="props"><a v-if="props.row['to ' + props.col.name]" :href="props.row['to ' + props.col.name]">{{ props.value }}</a>
<span v-else>{{ props.value }}</span></q-td>
"""


@dataclass(frozen=True)
class Column:
    name: str
    label: str | None = None  # as the name unless given
    text: Callable[[Any], str] = shown.cell  # of a value
    right: bool = False  # as numbers are
    link: Callable[[Row], str | None] | None = None  # the path that a row's value leads to


def grid(columns: Sequence[Column], rows: Sequence[Row], *, name: str) -> ui.table:
    """A table with a name for those who cannot see it. A value of a row is told by its column."""
    table = ui.table(
        columns=[
            {"name": str(place), "label": each.label or each.name, "field": str(place), "align": _side(each)}
            for place, each in enumerate(columns)
        ],
        rows=[_told(place, row, columns) for place, row in enumerate(rows)],
        row_key="#",
    )
    for place, each in enumerate(columns):
        if each.link:
            table.add_slot(f"body-cell-{place}", _LINK)
    table.props("flat bordered dense role=region tabindex=0").classes("w-full")
    return named(table, name)


def refill(table: ui.table, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """The same table with other rows."""
    table.rows = [_told(place, row, columns) for place, row in enumerate(rows)]


def pager(skip: int, many: int, total: int | None, *, more: bool, on_move: Callable[[int], Any], top: int) -> None:
    """Which rows these are, and the ways to those before and after."""
    first, last = (skip + 1 if many else 0), skip + many
    of = f" of {total:,}" if total is not None else ""
    with ui.row().classes("items-center gap-2"):
        ui.label(f"{first:,}–{last:,}{of}").classes("text-sm quiet").props("aria-live=polite")
        back = ui.button(icon="chevron_left", on_click=lambda: on_move(max(skip - top, 0)))
        back.props('flat round dense aria-label="Previous page"').set_enabled(skip > 0)
        onward = ui.button(icon="chevron_right", on_click=lambda: on_move(skip + top))
        onward.props('flat round dense aria-label="Next page"').set_enabled(more)


def _told(place: int, row: Row, columns: Sequence[Column]) -> dict[str, Any]:
    told: dict[str, Any] = {"#": place}
    for number, column in enumerate(columns):
        told[str(number)] = column.text(row.get(column.name))
        if column.link and (path := column.link(row)):
            told[f"to {number}"] = f"/ui{path}"
    return told


def _side(column: Column) -> str:
    return "right" if column.right else "left"
