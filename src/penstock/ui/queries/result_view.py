"""Result view: the rows of a query as a table and as a chart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from nicegui import ui

from penstock.core.result_schema import FieldType
from penstock.ui import charts, formatting
from penstock.ui.data_table import SortOrder, TableColumn, show_pager, show_table
from penstock.ui.elements import with_label

PAGE_ROWS = 50  # rows of a table
MAX_POINTS = 200  # of a chart
MAX_VALUE_CHARS = 5_000  # characters of a value
_CHART_TYPES = {"bars": "Bars", "lines": "Lines"}


@dataclass(frozen=True)
class ResultColumn:
    """A column of a result."""

    name: str
    type: str  # for users
    is_number: bool


@dataclass(frozen=True)
class ResultRows:
    """Columns and rows of a result."""

    columns: tuple[ResultColumn, ...]
    values: tuple[Mapping[str, Any], ...]  # numbers unchanged, other values as text


def from_preview(response: Mapping[str, Any]) -> ResultRows:
    """Create rows from a preview, which returns the type of each column."""
    columns = tuple(
        ResultColumn(column["name"], formatting.format_type(column["type"]), formatting.is_number(column["type"]))
        for column in response["columns"]
    )
    return ResultRows(columns, _shorten_rows(response["value"]))


def from_result(response: Mapping[str, Any], fields: Sequence[Mapping[str, Any]]) -> ResultRows:
    """Create rows from the result of a registered query. Optional fields that no row has are left out."""
    rows = response["value"]
    columns = tuple(
        ResultColumn(
            field["name"], f"list of {field['type']}" if field.get("array") else field["type"], _is_numeric(field)
        )
        for field in fields
        if not rows or field["name"] in rows[0]
    )
    return ResultRows(columns, _shorten_rows(rows))


def default_axes(rows: ResultRows) -> tuple[str | None, str | None]:
    """Return the columns of the initial chart: the first text column and the first numeric one."""
    texts = [column.name for column in rows.columns if not column.is_number]
    numbers = [column.name for column in rows.columns if column.is_number]
    x = next(iter(texts or numbers), None)
    return x, next((name for name in numbers if name != x), next(iter(numbers), None))


def chart_points(rows: ResultRows, x: str, y: str) -> tuple[list[str], list[float | None]]:
    """Return labels and values of the first rows for a chart."""
    first_rows = rows.values[:MAX_POINTS]
    return [formatting.format_cell(row.get(x)) for row in first_rows], [_chart_value(row.get(y)) for row in first_rows]


def show_result(
    rows: ResultRows,
    name: str,
    *,
    paged: bool = True,
    on_sort: Callable[[SortOrder], Any] | None = None,
    order: SortOrder | None = None,
) -> None:
    """Show a table and a chart in tabs.

    Args:
        rows: The rows.
        name: Accessible name of the table.
        paged: Show the rows in pages; False if they are one page already.
        on_sort: Sorts the whole result; by default the rows are sorted here.
        order: The sort order of the rows.
    """
    with ui.tabs().props("dense no-caps inline-label align=left").classes("w-full") as tabs:
        table = ui.tab("Table", icon="table_rows")
        chart = ui.tab("Chart", icon="bar_chart")
    with ui.tab_panels(tabs, value=table, animated=False).classes("w-full bg-transparent"):
        with ui.tab_panel(table).classes("p-0 pt-2"):
            _ResultTable(rows, name, len(rows.values) if not paged else PAGE_ROWS, on_sort, order)
        with ui.tab_panel(chart).classes("p-0 pt-2"):
            _ResultChart(rows, name)


def show_error(message: str) -> None:
    """Show an error in place of the rows."""
    with ui.card().classes("w-full").props("flat bordered role=alert"), ui.row().classes("items-center gap-2 no-wrap"):
        ui.icon("error", color="negative", size="sm").props("aria-hidden=true")
        ui.label(formatting.to_sentence(message)).classes("break-anywhere")


class _ResultTable:
    """A table of rows in pages."""

    def __init__(
        self,
        rows: ResultRows,
        name: str,
        page_rows: int,
        on_sort: Callable[[SortOrder], Any] | None,
        order: SortOrder | None,
    ) -> None:
        self._values: Sequence[Mapping[str, Any]] = rows.values
        self._name, self._page_rows = name, max(page_rows, 1)
        self._on_sort, self._order = on_sort or self._sort, order
        self._columns = [
            TableColumn(
                column.name,
                f"{column.name} · {column.type}",
                align_right=column.is_number,
                sortable=not column.type.startswith("list of"),
            )
            for column in rows.columns
        ]
        self._container = ui.column().classes("w-full gap-2")
        self._move(0)

    def _sort(self, order: SortOrder) -> None:
        self._values, self._order = order.sort(self._values), order
        self._move(0)

    def _move(self, skip: int) -> None:
        values, page_rows = self._values, self._page_rows
        self._container.clear()
        with self._container:
            show_table(
                self._columns,
                values[skip : skip + page_rows],
                name=self._name,
                on_sort=self._on_sort,
                order=self._order,
            )
            if len(values) > page_rows:
                rows_on_page = len(values[skip : skip + page_rows])
                show_pager(
                    skip,
                    rows_on_page,
                    len(values),
                    has_more=skip + page_rows < len(values),
                    on_move=self._move,
                    page_rows=page_rows,
                )


class _ResultChart:
    def __init__(self, rows: ResultRows, name: str) -> None:
        self._rows, self._name = rows, name
        x, y = default_axes(rows)
        if x is None or y is None or not rows.values:
            ui.label("A chart needs rows and a numeric column.").classes("quiet")
            return
        columns = [column.name for column in rows.columns]
        numbers = [column.name for column in rows.columns if column.is_number]
        with ui.row().classes("w-full items-center gap-2 flex-wrap"):
            self._x = ui.select(columns, value=x, label="X axis", on_change=self._draw)
            self._y = ui.select(numbers, value=y, label="Y axis", on_change=self._draw)
            for select in (self._x, self._y):
                select.props("outlined dense options-dense").classes("w-44")
            self._chart_type = ui.toggle(_CHART_TYPES, value="bars", on_change=self._draw).props("no-caps unelevated")
            with_label(self._chart_type, "Chart type")
        self._container = ui.column().classes("w-full gap-1")
        self._draw()

    def _draw(self) -> None:
        x, y = str(self._x.value), str(self._y.value)
        labels, values = chart_points(self._rows, x, y)
        name = f"{self._name}: {y} by {x}"
        self._container.clear()
        with self._container:
            if self._chart_type.value == "lines":
                charts.show_line_chart(labels, {y: values}, name=name)
            else:
                charts.show_bar_chart(labels, values, name=name, unit=y)
            if len(self._rows.values) > MAX_POINTS:
                rows = formatting.format_count(len(self._rows.values), "row")
                ui.label(f"Showing the first {formatting.format_count(MAX_POINTS)} of {rows}.").classes("text-sm quiet")


def _shorten_rows(values: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Shorten long values, because the rows stay in memory while the page is open."""
    return tuple({name: _shorten(value) for name, value in row.items()} for row in values)


def _shorten(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | Decimal):
        return value
    return formatting.truncate(formatting.format_value(value), MAX_VALUE_CHARS)


def _is_numeric(field: Mapping[str, Any]) -> bool:
    return field["type"] == FieldType.NUMBER and not field.get("array")


def _chart_value(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | Decimal) else None
