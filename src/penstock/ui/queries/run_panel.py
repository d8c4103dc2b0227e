"""Run panel of a registered query: parameters, filter and order, pages of the result, and downloads."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from nicegui import ui

from penstock.ui import formatting
from penstock.ui.actions import single_flight
from penstock.ui.api_client import ApiError, page_headers, path_segment
from penstock.ui.data_table import SortOrder, show_pager
from penstock.ui.elements import notify
from penstock.ui.queries import result_view, row_files, validation_report
from penstock.ui.queries.execution_control import ExecutionControl
from penstock.ui.queries.parameter_form import ParameterForm, to_entry
from penstock.ui.session import PageSession

PAGE_ROWS = 100
MAX_DOWNLOAD_ROWS, MAX_DOWNLOAD_BYTES = 100_000, 64 << 20  # larger results need the API
_DOWNLOAD_PAGE_ROWS = 10_000
_FILE_TYPES = {  # media type and ending by format
    "CSV": ("text/csv", "csv"),
    "JSON": ("application/json", "json"),
    "Parquet": ("application/vnd.apache.parquet", "parquet"),
    "Arrow": ("application/vnd.apache.arrow.stream", "arrows"),
}
_ROW_WRITERS = {"CSV": row_files.to_csv, "JSON": row_files.to_json}  # formats that the API does not produce as a file


def build_results_url(id: str, values: Mapping[str, str], options: Mapping[str, str]) -> str:
    """Build the URL of the rows. Options begin with $, so a parameter may have the name of an option."""
    pairs = [(name, value) for name, value in values.items() if value]
    pairs += [(f"${name}", value) for name, value in options.items() if value]
    query = urlencode(pairs, quote_via=quote)
    return f"/queries/{path_segment(id)}/results" + (f"?{query}" if query else "")


def build_file_name(name: str, ending: str) -> str:
    """Build a file name that every file system accepts."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60]
    return f"{plain or 'rows'}.{ending}"


def parse_order(text: str) -> SortOrder | None:
    """Return the sort order of an OData order by one column; None for any other text."""
    match text.split():
        case [column] | [column, "asc"] if "," not in column:
            return SortOrder(column)
        case [column, "desc"] if "," not in column:
            return SortOrder(column, descending=True)
    return None


class RunPanel:
    """Panel that runs a query and shows the result."""

    def __init__(self, session: PageSession, query: Mapping[str, Any], schema: Mapping[str, Any] | None) -> None:
        self._query = query
        self._fields: Sequence[Mapping[str, Any]] = schema["fields"] if schema else ()
        self._schema = str(schema["name"]) if schema else "its schema"
        self._previous_urls: list[str] = []  # URLs of the previous pages
        self._applied_order = ""  # $orderby of the rows that are shown
        self._first_rows: list[int] = [0]  # number of the first row of each page
        self._entries = [to_entry(parameter) for parameter in query["parameters"]]
        self._form = ParameterForm(self._entries, declaring=False, on_change=lambda: None)
        self._run = single_flight(self.run)
        with ui.row().classes("w-full items-start gap-2 flex-wrap"):
            self._filter = self._add_option("Filter", _example(self._fields, "{} ne null"))
            self._order = self._add_option("Order by", _example(self._fields, "{} desc"))
        with ui.row().classes("w-full items-center gap-3 flex-wrap"):
            self._button = ui.button("Run", icon="play_arrow", on_click=self._run).props("unelevated no-caps")
            self._control = ExecutionControl(session.api)
            for name in _FILE_TYPES:
                ui.button(
                    f"Download {name}", icon="download", on_click=single_flight(lambda name=name: self._download(name))
                ).props("flat no-caps")
            self._state = ui.label("").props("role=status")
        self._outcome = ui.column().classes("w-full gap-2")

    async def run(self) -> None:
        """Run the query and show the first page."""
        self._previous_urls, self._first_rows = [], [0]
        self._applied_order = self._order.value.strip()
        await self._load(self._build_url())

    async def _sort(self, order: SortOrder) -> None:
        """Run the query again with the order of a column; all rows are sorted, not only those of the page."""
        self._order.value = f"{order.column} desc" if order.descending else order.column
        await self.run()

    def _build_url(self, **options: str) -> str:
        options |= {"filter": self._filter.value.strip(), "orderby": self._order.value.strip()}
        return build_results_url(self._query["id"], {entry.name: entry.value for entry in self._entries}, options)

    async def _load(self, url: str) -> None:
        self._form.clear_errors()
        self._filter.error = self._order.error = None
        self._set_status("Running…")
        try:
            headers = page_headers(PAGE_ROWS)
            response = (await self._control.request("GET", url, headers=headers, exact_decimals=True)).body
        except ApiError as error:
            if error.status == 401:
                raise
            self._show_error(error)
        else:
            self._show(url, response)
        finally:
            self._set_status("")

    def _show(self, url: str, response: Mapping[str, Any]) -> None:
        if self._outcome.is_deleted:
            return
        rows, next_url = response["value"], response.get("@odata.nextLink")
        first = self._first_rows[len(self._previous_urls)]

        async def move(skip: int) -> None:
            if skip > first:
                self._previous_urls.append(url)
                self._first_rows[len(self._previous_urls) :] = [first + len(rows)]
                await self._load(str(next_url))
            else:
                await self._load(self._previous_urls.pop())

        self._outcome.clear()
        with self._outcome:
            validation_report.show_report(validation_report.RowsReport(self._schema, None if rows else 0, 0, ()))
            read = ", ".join(f"{name} v{version}" for name, version in response["@penstock.versions"].items())
            ui.label(f"{formatting.format_count(len(rows), 'row')} on this page · read {read or 'no dataset'}").classes(
                "text-sm quiet"
            )
            result_view.show_result(
                result_view.from_result(response, self._fields),
                self._query["name"],
                paged=False,
                on_sort=single_flight(self._sort),
                order=parse_order(self._applied_order),
            )
            show_pager(
                first, len(rows), None, has_more=next_url is not None, on_move=single_flight(move), page_rows=PAGE_ROWS
            )

    def _show_error(self, error: ApiError) -> None:
        if self._outcome.is_deleted:
            return
        self._outcome.clear()
        with self._outcome:
            if error.code in validation_report.MISMATCH_CODES:
                validation_report.show_report(validation_report.report_from_error(error, self._schema))
            elif error.payload.get("option") in ("$filter", "$orderby"):
                box = self._filter if error.payload["option"] == "$filter" else self._order
                box.error = error.message
            elif not [item for item in error.errors if self._show_value_error(item)]:
                result_view.show_error(error.message)

    def _show_value_error(self, error: Mapping[str, Any]) -> bool:
        name = str(error.get("pointer", "")).removeprefix("/")
        return self._form.set_error(name, str(error.get("message", ""))) is not None

    async def _download(self, name: str) -> None:
        media_type, ending = _FILE_TYPES[name]
        self._set_status("Preparing the file…")
        try:
            count = (await self._control.request("GET", self._build_url(top="0", count="true"))).body["@odata.count"]
            if count > MAX_DOWNLOAD_ROWS:
                rows = formatting.format_count(count, "row")
                notify(
                    f"The result has {rows}; a download is limited to {formatting.format_count(MAX_DOWNLOAD_ROWS)}. "
                    "Use the API for larger results.",
                    is_error=True,
                )
                return
            if writer := _ROW_WRITERS.get(name):
                content = await self._write_rows(writer)
            else:
                content = (await self._control.request("GET", self._build_url(), headers={"accept": media_type})).body
            if content is None or len(content) > MAX_DOWNLOAD_BYTES:
                notify(
                    f"The file is larger than {formatting.format_size(MAX_DOWNLOAD_BYTES)}, the limit of a download. Use the "
                    "API for larger results.",
                    is_error=True,
                )
                return
            ui.download.content(content, build_file_name(self._query["name"], ending), media_type)
        finally:
            self._set_status("")

    async def _write_rows(self, writer: Callable[[Sequence[str], Sequence[Mapping[str, Any]]], bytes]) -> bytes | None:
        """Read all pages of the result and write them as a file. Returns None if they are too large."""
        rows: list[Mapping[str, Any]] = []
        url: str | None = self._build_url()
        headers, size = {"prefer": f"odata.maxpagesize={_DOWNLOAD_PAGE_ROWS}"}, 0
        while url and size <= MAX_DOWNLOAD_BYTES:
            response = await self._control.request("GET", url, headers=headers, exact_decimals=True)
            rows += response.body["value"]
            url = response.body.get("@odata.nextLink")
            size += int(response.headers.get("content-length", 0))
        if url:
            return None
        names = [field["name"] for field in self._fields if not rows or field["name"] in rows[0]]
        return await asyncio.to_thread(
            writer, names, rows
        )  # in a thread: many rows take seconds and would block the event loop

    def _set_status(self, text: str) -> None:
        if not self._button.is_deleted:
            self._button.set_enabled(not text)
            self._state.set_text(text)

    def _add_option(self, label: str, example: str) -> ui.input:
        box = ui.input(label).props("outlined dense hide-bottom-space").classes("flex-1 min-w-56")
        box.props["hint"] = f"OData, for example {example}" if example else "OData"
        box.on("keydown.enter", self._run)
        return box


def _example(fields: Sequence[Mapping[str, Any]], pattern: str) -> str:
    return pattern.format(fields[0]["name"]) if fields else ""
