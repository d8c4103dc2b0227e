"""Rows of anything as a table: read by people and by screen readers, text only, with links where a row leads on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from penstock.ui import formatting as shown
from penstock.ui.layout import answered, named

Row = Mapping[str, Any]

_LONG = 70  # characters of a value that is cut on the screen
_MOST_KEPT = 1_000_000  # characters of long values in a table, to be shown as a whole
# Vue writes a value as text, whatever is in it, and the address comes from `part`, so neither can become markup.
_CELL = """
<q-td :props="props"><a v-if="props.row['to ' + props.col.name]" :href="props.row['to ' + props.col.name]">{{ props.value }}</a>
<button v-else-if="props.row['long ' + props.col.name]" type="button" class="penstock-long" title="Show the whole value"
  :data-at="props.row['#'] + ' ' + props.col.name"
  @click="() => $parent.$emit('whole', [props.row['#'], props.col.name])">{{ props.value }}</button>
<span v-else>{{ props.value }}</span></q-td>
"""


@dataclass(frozen=True)
class Column:
    name: str
    label: str | None = None  # as the name unless given
    text: Callable[[Any], str] = shown.whole  # of a value; what is long is cut, and shown as a whole when asked for
    right: bool = False  # as numbers are
    link: Callable[[Row], str | None] | None = None  # the path that a row's value leads to


class Grid(ui.table):
    """A table with a name for those who cannot see it. A value of a row is told by its column."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Row], name: str) -> None:
        super().__init__(
            columns=[
                {"name": str(place), "label": each.label or each.name, "field": str(place), "align": _side(each)}
                for place, each in enumerate(columns)
            ],
            rows=[],
            row_key="#",
        )
        self._asked = columns
        self.refill(rows)
        self.on("whole", lambda event: self._open(*event.args))
        self.props("flat bordered dense role=region tabindex=0").classes("w-full")
        named(self, name)

    def refill(self, rows: Sequence[Row]) -> None:
        """The same table with other rows."""
        self._whole: dict[tuple[int, str], str] = {}  # values that are cut on the screen
        self._room = _MOST_KEPT
        self.rows = [self._told(place, row) for place, row in enumerate(rows)]
        for number in {key.partition(" ")[2] for row in self.rows for key in row if " " in key}:
            self.add_slot(f"body-cell-{number}", _CELL)  # no others: they are drawn anew whenever the page changes

    def _told(self, place: int, row: Row) -> dict[str, Any]:
        told: dict[str, Any] = {"#": place}
        for number, column in enumerate(self._asked):
            text = column.text(row.get(column.name))
            told[str(number)] = shown.cut(text, shown.LONGEST_CELL)
            if column.link and (path := column.link(row)):
                told[f"to {number}"] = f"/ui{path}"
            elif len(text) > _LONG:
                told[f"long {number}"] = True
                self._whole[place, str(number)] = kept = shown.cut(text, max(self._room, shown.LONGEST_CELL))
                self._room -= len(kept)
        return told

    async def _open(self, place: int, number: str) -> None:
        """Show a value as a whole, unless the rows are others by now."""
        text = self._whole.get((place, number))
        if text is None:  # and whoever sends something else is not heard
            return
        column = self._asked[int(number)]
        with named(ui.dialog(), "The whole value") as dialog, ui.card().classes("w-full max-w-3xl"):
            ui.label(column.label or column.name).classes("text-lg break-anywhere").props('role=heading aria-level="2"')
            value = ui.label(text).classes("w-full overflow-auto whitespace-pre-wrap break-anywhere font-mono text-sm")
            value.style("max-height: 60vh").props("tabindex=0")
            with ui.row().classes("w-full justify-end"):
                ui.button("Copy", icon="content_copy", on_click=lambda: ui.clipboard.write(text)).props("flat no-caps")
                ui.button("Close", on_click=lambda: dialog.submit(None)).props("unelevated no-caps")
        await answered(dialog, lambda: self._focus(place, number))  # what was clicked is drawn anew

    def _focus(self, place: int, number: str) -> None:
        if not self.is_deleted:
            self.client.run_javascript(
                f"""getHtmlElement({self.id}).querySelector('[data-at="{place} {number}"]')?.focus()"""
            )


def grid(columns: Sequence[Column], rows: Sequence[Row], *, name: str) -> Grid:
    return Grid(columns, rows, name)


def pager(skip: int, many: int, total: int | None, *, more: bool, on_move: Callable[[int], Any], top: int) -> None:
    """Which rows these are, and the ways to those before and after, if there are any."""
    first, last = (skip + 1 if many else 0), skip + many
    of = f" of {total:,}" if total is not None else ""
    with ui.row().classes("items-center gap-2"):
        ui.label(f"{first:,}–{last:,}{of}").classes("text-sm quiet").props("aria-live=polite")
        if not skip and not more:
            return
        back = ui.button(icon="chevron_left", on_click=lambda: on_move(max(skip - top, 0)))
        back.props('flat round dense aria-label="Previous page"').set_enabled(skip > 0)
        onward = ui.button(icon="chevron_right", on_click=lambda: on_move(skip + top))
        onward.props('flat round dense aria-label="Next page"').set_enabled(more)


def _side(column: Column) -> str:
    return "right" if column.right else "left"
