"""Rows that came of SQL: as a table, a part at a time, and as a simple chart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from nicegui import ui

from penstock.core.result_schema import FieldType
from penstock.ui import formatting as shown
from penstock.ui import charts
from penstock.ui.layout import named
from penstock.ui.data_table import Column, grid, pager

AT_ONCE = 50  # rows of a table
MOST_POINTS = 200  # of a chart
LONGEST_KEPT = 5_000  # characters of a value
_KINDS = {"bars": "Bars", "lines": "Lines"}
_NUMBERS = ("int", "uint", "float", "double", "halffloat")


@dataclass(frozen=True)
class Heading:
    name: str
    type: str  # in words
    is_number: bool


@dataclass(frozen=True)
class Rows:
    columns: tuple[Heading, ...]
    values: tuple[Mapping[str, Any], ...]  # numbers as they are, all else as it is shown


def previewed(answer: Mapping[str, Any]) -> Rows:
    """Rows that promise nothing: their columns tell their types."""
    columns = tuple(
        Heading(each["name"], shown.type_name(each["type"]), _is_number(each["type"])) for each in answer["columns"]
    )
    return Rows(columns, _kept(answer["value"]))


def promised(answer: Mapping[str, Any], fields: Sequence[Mapping[str, Any]]) -> Rows:
    """Rows that fit a schema. An optional field may be missing from all of them."""
    value = answer["value"]
    columns = tuple(
        Heading(each["name"], f"list of {each['type']}" if each.get("array") else each["type"], _holds_numbers(each))
        for each in fields
        if not value or each["name"] in value[0]
    )
    return Rows(columns, _kept(value))


def axes(rows: Rows) -> tuple[str | None, str | None]:
    """The columns that a chart begins with: the first that are words, and the first that are numbers."""
    words = [each.name for each in rows.columns if not each.is_number]
    numbers = [each.name for each in rows.columns if each.is_number]
    x = next(iter(words or numbers), None)
    return x, next((each for each in numbers if each != x), next(iter(numbers), None))


def points(rows: Rows, x: str, y: str) -> tuple[list[str], list[float | None]]:
    """The first of them, as a chart draws them."""
    some = rows.values[:MOST_POINTS]
    return [shown.cell(row.get(x)) for row in some], [_drawn(row.get(y)) for row in some]


def show(rows: Rows, name: str, *, paged: bool = True) -> None:
    """A table and a chart to choose from. Not paged: the rows are a page already."""
    with ui.tabs().props("dense no-caps inline-label align=left").classes("w-full") as tabs:
        table = ui.tab("Table", icon="table_rows")
        chart = ui.tab("Chart", icon="bar_chart")
    with ui.tab_panels(tabs, value=table, animated=False).classes("w-full bg-transparent"):
        with ui.tab_panel(table).classes("p-0 pt-2"):
            _Table(rows, name, len(rows.values) if not paged else AT_ONCE)
        with ui.tab_panel(chart).classes("p-0 pt-2"):
            _Chart(rows, name)


def refused(sentence: str) -> None:
    """In place of rows."""
    with ui.card().classes("w-full").props("flat bordered role=alert"), ui.row().classes("items-center gap-2 no-wrap"):
        ui.icon("error", color="negative", size="sm").props("aria-hidden=true")
        ui.label(shown.sentence(sentence)).classes("break-anywhere")


class _Table:
    def __init__(self, rows: Rows, name: str, at_once: int) -> None:
        self._rows, self._name, self._at_once = rows, name, max(at_once, 1)
        self._columns = [Column(each.name, f"{each.name} · {each.type}", right=each.is_number) for each in rows.columns]
        self._shown = ui.column().classes("w-full gap-2")
        self._move(0)

    def _move(self, skip: int) -> None:
        values, top = self._rows.values, self._at_once
        self._shown.clear()
        with self._shown:
            grid(self._columns, values[skip : skip + top], name=self._name)
            if len(values) > top:
                many = len(values[skip : skip + top])
                pager(skip, many, len(values), more=skip + top < len(values), on_move=self._move, top=top)


class _Chart:
    def __init__(self, rows: Rows, name: str) -> None:
        self._rows, self._name = rows, name
        x, y = axes(rows)
        if x is None or y is None or not rows.values:
            ui.label("A chart needs rows, and a column of numbers among them.").classes("quiet")
            return
        columns = [each.name for each in rows.columns]
        numbers = [each.name for each in rows.columns if each.is_number]
        with ui.row().classes("w-full items-center gap-2 flex-wrap"):
            self._x = ui.select(columns, value=x, label="Along", on_change=self._draw)
            self._y = ui.select(numbers, value=y, label="How much", on_change=self._draw)
            for each in (self._x, self._y):
                each.props("outlined dense options-dense").classes("w-44")
            self._kind = ui.toggle(_KINDS, value="bars", on_change=self._draw).props("no-caps unelevated")
            named(self._kind, "Kind of chart")
        self._drawn = ui.column().classes("w-full gap-1")
        self._draw()

    def _draw(self) -> None:
        x, y = str(self._x.value), str(self._y.value)
        labels, values = points(self._rows, x, y)
        name = f"{self._name}: {y} by {x}"
        self._drawn.clear()
        with self._drawn:
            if self._kind.value == "lines":
                charts.lines(labels, {y: values}, name=name)
            else:
                charts.bars(labels, values, name=name, unit=y)
            if len(self._rows.values) > MOST_POINTS:
                ui.label(f"The first {MOST_POINTS} of {len(self._rows.values):,} rows.").classes("text-sm quiet")


def _kept(values: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Short enough to stay while the page is open."""
    return tuple({name: _short(value) for name, value in row.items()} for row in values)


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | Decimal):
        return value
    return shown.cut(shown.whole(value), LONGEST_KEPT)


def _is_number(kind: Any) -> bool:
    return "decimal" in kind if isinstance(kind, dict) else str(kind).startswith(_NUMBERS)


def _holds_numbers(field: Mapping[str, Any]) -> bool:
    return field["type"] == FieldType.NUMBER and not field.get("array")


def _drawn(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | Decimal) else None
