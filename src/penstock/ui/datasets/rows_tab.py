"""Rows tab of a dataset: the rows of a version, filtered and one page at a time."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from penstock.ui import formatting
from penstock.ui.actions import show_errors, single_flight
from penstock.ui.api_client import ApiError
from penstock.ui.data_table import SortOrder, TableColumn, show_pager, show_table
from penstock.ui.elements import empty_state
from penstock.ui.session import PageSession

PAGE_ROWS = 50
_EXAMPLES = (  # filter expressions by prefix of the column type
    (("int", "float", "double", "halffloat"), "{} > 100"),
    (("date",), "{} >= DATE '2026-01-01'"),
    (("timestamp",), "{} >= TIMESTAMP '2026-01-01 00:00:00'"),
    (("bool",), "{}"),
    (("string",), "{} LIKE 'a%'"),
)


def example_filter(schema: list[dict[str, Any]]) -> str:
    """Return an example of a filter expression on the first column with a simple type."""
    for column in schema:
        for prefixes, condition in _EXAMPLES:
            if isinstance(column["type"], str) and column["type"].startswith(prefixes):
                return condition.format(_quoted(column["name"]))
    return "NOT (1 > 2)"


class RowsTab:
    """The rows tab of one version of a dataset."""

    def __init__(self, session: PageSession, path: str, dataset: Mapping[str, Any]) -> None:
        self._session, self._path, self._dataset = session, f"{path}/rows", dataset
        self._columns = [
            TableColumn(column["name"], align_right=formatting.is_number(column["type"]))
            for column in dataset["schema"]
        ]
        self.applied_filter = ""  # the filter expression of the rows that are shown
        self._request = ("", 0)  # filter expression and rows before the page

    async def show(self, where: str = "") -> None:
        if not self._dataset["rows"]:
            empty_state("This version has no rows.")
            return
        with ui.row().classes("w-full items-start gap-2 pt-2"):
            self._where = ui.input("Filter", value=where, on_change=self._clear_error)
            self._where.props("outlined dense clearable input-class=font-mono").classes("grow max-w-2xl")
            self._where.props["hint"] = f"Filter expression, for example {example_filter(self._dataset['schema'])}"
            self._where.on("keydown.enter", show_errors(self._filter)).on("clear", show_errors(self._filter))
            ui.button("Filter", on_click=single_flight(self._filter)).props("outline no-caps")
        self._results = ui.column().classes("w-full gap-2")
        if not where or not await self._load(0, where):
            await self._load(0, "")

    async def _filter(self) -> None:
        await self._load(0, (self._where.value or "").strip())

    async def _move(self, skip: int) -> None:
        await self._load(skip, self.applied_filter)

    async def _load(self, skip: int, where: str) -> bool:
        """Load a page of rows. Returns False if the filter expression is invalid; the rows then stay."""
        request = self._request = (where, skip)
        version = self._dataset["version"]
        try:
            response = await self._session.api.get_page(
                self._path, PAGE_ROWS, where=where or None, version=version, skip=skip
            )
        except ApiError as error:
            if error.status != 400:
                raise
            self._where.error = error.message
            return False
        if request is not self._request or self._results.is_deleted:
            return True
        self.applied_filter = where
        self._results.clear()
        with self._results:
            self._show_page(response, skip)
        return True

    def _show_page(self, response: Mapping[str, Any], skip: int) -> None:
        rows, total = response["value"], None if self.applied_filter else self._dataset["rows"]
        if not rows and not skip:
            empty_state("No rows match the filter.")
            return
        has_more = "@odata.nextLink" in response
        container = ui.column().classes("w-full gap-2")

        def show_sorted(order: SortOrder | None = None) -> None:
            container.clear()
            with container:
                page_rows = order.sort(rows) if order else rows
                name = f"Rows of {self._dataset['name']}"
                show_table(self._columns, page_rows, name=name, on_sort=show_sorted, order=order)
                if order and (has_more or skip):
                    ui.label("Only the rows of this page are sorted.").classes("text-sm quiet")

        show_sorted()
        show_pager(
            skip,
            len(rows),
            total,
            has_more=has_more,
            on_move=show_errors(self._move),
            page_rows=PAGE_ROWS,
        )

    def _clear_error(self) -> None:
        self._where.error = None


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name.replace('`', '``')}`"
