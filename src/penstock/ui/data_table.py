"""Data table: rows as text, sorted by a column, with links and accessible names. Long values are cut and can be opened in a dialog."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from nicegui import ui

from penstock.ui import formatting
from penstock.ui.dialogs import dialog_result
from penstock.ui.elements import with_label

Row = Mapping[str, Any]

_LONG_CHARS = 70  # values with more characters are cut by the browser
_MAX_STORED_CHARS = 1_000_000  # of the long values of a table, which are kept for the dialog
# Vue inserts a value as text, and links are built with `path_segment`, so neither can become markup.
_CELL = """
<q-td :props="props"><a v-if="props.row['to ' + props.col.name]" :href="props.row['to ' + props.col.name]">{{ props.value }}</a>
<button v-else-if="props.row['long ' + props.col.name]" type="button" class="penstock-long" title="Show full value"
  :data-at="props.row['#'] + ' ' + props.col.name"
  @click="() => $parent.$emit('open-value', [props.row['#'], props.col.name])">{{ props.value }}</button>
<span v-else>{{ props.value }}</span></q-td>
"""
# The arrow of the sort order is CSS, so that it is not part of the column's name. `penstock.js` keeps the focus on the
# button when the header is drawn again.
_HEADER_CELL = """
<q-th :props="props" :aria-sort="props.col.order"><button type="button" class="penstock-sort" :data-sort="props.col.name"
  :data-order="props.col.order" title="Sort by this column"
  @click="() => $parent.$emit('sort-by', props.col.name)">{{ props.col.label }}</button></q-th>
"""


@dataclass(frozen=True)
class SortOrder:
    """The column that rows are sorted by."""

    column: str
    descending: bool = False

    def sort(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows in this order: numbers, then texts; rows without a value are last."""
        present = [row for row in rows if row.get(self.column) is not None]
        absent = [row for row in rows if row.get(self.column) is None]
        return [*sorted(present, key=lambda row: _sort_key(row[self.column]), reverse=self.descending), *absent]


def _sort_key(value: Any) -> tuple[bool, Any]:
    is_number = isinstance(value, int | float | Decimal)
    return not is_number, value if is_number else formatting.format_value(value)


@dataclass(frozen=True)
class TableColumn:
    """A column of a data table."""

    name: str
    label: str | None = None  # default: the name
    format: Callable[[Any], str] = formatting.format_value
    align_right: bool = False  # for numbers
    link: Callable[[Row], str | None] | None = None  # returns the path that a row's value links to
    sortable: bool = True  # in a table that can be sorted


class DataTable(ui.table):
    """A table with an accessible name.

    Args:
        columns: The columns.
        rows: The rows.
        name: The accessible name.
        on_sort: Called with the sort order that the user requests by a click on a column's header. Without it, the
            columns cannot be sorted.
        order: The current sort order of the rows.
    """

    def __init__(
        self,
        columns: Sequence[TableColumn],
        rows: Sequence[Row],
        name: str,
        on_sort: Callable[[SortOrder], Any] | None = None,
        order: SortOrder | None = None,
    ) -> None:
        super().__init__(
            columns=[
                {
                    "name": str(index),
                    "label": column.label or column.name,
                    "field": str(index),
                    "align": "right" if column.align_right else "left",
                    "order": _aria_sort(column, order),
                }
                for index, column in enumerate(columns)
            ],
            rows=[],
            row_key="#",
        )
        self._table_columns, self._on_sort, self._order = columns, on_sort, order
        self.set_rows(rows)
        if on_sort:
            for index, column in enumerate(columns):
                if column.sortable:
                    self.add_slot(f"header-cell-{index}", _HEADER_CELL)
            self.on("sort-by", lambda event: self._sort_by(event.args))
        self.on("open-value", lambda event: self._open_value(*event.args))
        self.props("flat bordered dense role=region tabindex=0").classes("w-full")
        with_label(self, name)

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Replace the rows of the table."""
        self._long_values: dict[tuple[int, str], str] = {}  # by row and column
        self._remaining_chars = _MAX_STORED_CHARS
        self.rows = [self._to_table_row(index, row) for index, row in enumerate(rows)]
        for column in {key.partition(" ")[2] for row in self.rows for key in row if " " in key}:
            # Only columns that need it: cells with a slot are drawn again whenever the page changes.
            self.add_slot(f"body-cell-{column}", _CELL)

    def _to_table_row(self, row_index: int, row: Row) -> dict[str, Any]:
        cells: dict[str, Any] = {"#": row_index}
        for index, column in enumerate(self._table_columns):
            text = column.format(row.get(column.name))
            cells[str(index)] = formatting.truncate(text, formatting.MAX_CELL_CHARS)
            if column.link and (path := column.link(row)):
                cells[f"to {index}"] = f"/ui{path}"
            elif len(text) > _LONG_CHARS:
                cells[f"long {index}"] = True
                stored = formatting.truncate(text, max(self._remaining_chars, formatting.MAX_CELL_CHARS))
                self._long_values[row_index, str(index)] = stored
                self._remaining_chars -= len(stored)
        return cells

    async def _sort_by(self, column_index: str) -> None:
        """Request the order of a column, or its reverse if the rows have it already."""
        index = int(column_index) if isinstance(column_index, str) and column_index.isdecimal() else -1
        if not 0 <= index < len(self._table_columns) or not self._table_columns[index].sortable or not self._on_sort:
            return  # the browser sent an invalid index
        name = self._table_columns[index].name
        is_ascending = self._order is not None and self._order == SortOrder(name)
        result = self._on_sort(SortOrder(name, descending=is_ascending))
        if isinstance(result, Awaitable):
            await result

    async def _open_value(self, row_index: int, column_index: str) -> None:
        """Show a long value in a dialog."""
        text = self._long_values.get((row_index, column_index))
        if text is None:  # the rows have changed, or the browser sent an invalid index
            return
        column = self._table_columns[int(column_index)]
        with with_label(ui.dialog(), "Full value") as dialog, ui.card().classes("w-full max-w-3xl"):
            ui.label(column.label or column.name).classes("text-lg break-anywhere").props('role=heading aria-level="2"')
            value = ui.label(text).classes("w-full overflow-auto whitespace-pre-wrap break-anywhere font-mono text-sm")
            value.style("max-height: 60vh").props("tabindex=0")
            with ui.row().classes("w-full justify-end"):
                ui.button("Copy", icon="content_copy", on_click=lambda: ui.clipboard.write(text)).props("flat no-caps")
                ui.button("Close", on_click=lambda: dialog.submit(None)).props("unelevated no-caps")
        # The button that was clicked is drawn again, so it does not get the focus back without help.
        await dialog_result(dialog, lambda: self._focus_value(row_index, column_index))

    def _focus_value(self, row_index: int, column_index: str) -> None:
        if not self.is_deleted:
            self.client.run_javascript(
                f"""getHtmlElement({self.id}).querySelector('[data-at="{row_index} {column_index}"]')?.focus()"""
            )


def show_table(
    columns: Sequence[TableColumn],
    rows: Sequence[Row],
    *,
    name: str,
    on_sort: Callable[[SortOrder], Any] | None = None,
    order: SortOrder | None = None,
) -> DataTable:
    """Show rows as a table with an accessible name. With `on_sort`, the user can sort it."""
    return DataTable(columns, rows, name, on_sort, order)


def _aria_sort(column: TableColumn, order: SortOrder | None) -> str:
    if order is None or order.column != column.name:
        return "none"
    return "descending" if order.descending else "ascending"


def show_pager(
    skip: int, rows_on_page: int, total: int | None, *, has_more: bool, on_move: Callable[[int], Any], page_rows: int
) -> None:
    """Show the range of rows on the page, and buttons for the previous and the next page if there are any.

    Args:
        skip: Number of rows before the page.
        rows_on_page: Number of rows on the page.
        total: Number of all rows, or None if it is unknown.
        has_more: Whether there is a next page.
        on_move: Called with the number of rows before the new page.
        page_rows: Maximum number of rows on a page.
    """
    first, last = (skip + 1 if rows_on_page else 0), skip + rows_on_page
    of_total = f" of {formatting.format_count(total)}" if total is not None else ""
    with ui.row().classes("items-center gap-2"):
        ui.label(f"{formatting.format_count(first)}–{formatting.format_count(last)}{of_total}").classes(
            "text-sm quiet"
        ).props("aria-live=polite")
        if not skip and not has_more:
            return
        previous_button = ui.button(icon="chevron_left", on_click=lambda: on_move(max(skip - page_rows, 0)))
        previous_button.props('flat round dense aria-label="Previous page"').set_enabled(skip > 0)
        next_button = ui.button(icon="chevron_right", on_click=lambda: on_move(skip + page_rows))
        next_button.props('flat round dense aria-label="Next page"').set_enabled(has_more)
