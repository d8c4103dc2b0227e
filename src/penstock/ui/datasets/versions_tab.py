"""Versions tab of a dataset: charts and a table of its versions."""

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.ui import charts, formatting
from penstock.ui.actions import show_errors
from penstock.ui.data_table import TableColumn, show_pager, show_table
from penstock.ui.session import PageSession
from penstock.ui.time_zone import format_timestamp

PAGE_VERSIONS = 20
MAX_CHART_VERSIONS = 100  # versions
_COUNTS = ("inserted", "updated", "deleted")

Version = Mapping[str, Any]


class VersionsTab:
    """The versions tab of a dataset."""

    def __init__(self, session: PageSession, path: str, dataset: Mapping[str, Any]) -> None:
        self._session, self._path = session, path
        self._name, self._newest = dataset["name"], dataset.get("newest", dataset["version"])
        self._columns = (
            TableColumn(
                "version", "Version", link=lambda row: None if row["swept"] else f"{path}?version={row['version']}"
            ),
            TableColumn("at", "Time", format_timestamp),
            TableColumn("author", "Author"),
            TableColumn("operation", "Operation"),
            *(TableColumn(name, name.capitalize(), formatting.format_count, align_right=True) for name in _COUNTS),
            TableColumn("rows", "Rows", formatting.format_count, align_right=True),
            TableColumn("files", "Files", formatting.format_count, align_right=True),
            TableColumn("bytes", "Size", formatting.format_size, align_right=True),
            TableColumn("swept", "Readable", lambda swept: "no, swept" if swept else "yes"),
        )

    async def show(self) -> None:
        history = await self._session.api.get(f"{self._path}/history", top=MAX_CHART_VERSIONS)
        _show_charts(history["value"][::-1])
        self._results = ui.column().classes("w-full gap-2")
        await self._load(0)

    async def _load(self, skip: int) -> None:
        before = self._newest - skip + 1  # version numbers have no gaps
        response = await self._session.api.get_page(f"{self._path}/history", PAGE_VERSIONS, before=before)
        if self._results.is_deleted:
            return
        self._results.clear()
        with self._results:
            versions = response["value"]
            show_table(self._columns, versions, name=f"Versions of {self._name}")
            has_more = "@odata.nextLink" in response
            show_pager(
                skip,
                len(versions),
                self._newest,
                has_more=has_more,
                on_move=show_errors(self._load),
                page_rows=PAGE_VERSIONS,
            )


def chart_series(versions: Sequence[Version]) -> tuple[list[str], list[int], dict[str, Sequence[float | None]]]:
    """Return the labels, the row counts and the change counts of versions, the oldest first."""
    labels = [f"v{version['version']} · {_day(version['at'])}" for version in versions]
    return (
        labels,
        [version["rows"] for version in versions],
        {name.capitalize(): [version[name] for version in versions] for name in _COUNTS},
    )


def _show_charts(versions: Sequence[Version]) -> None:
    labels, rows, changes = chart_series(versions)
    with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-2 gap-4 pt-2"):
        with ui.card().classes("p-3 min-w-0").props("flat bordered"):
            ui.label("Rows per version").classes("text-sm quiet")
            charts.show_line_chart(labels, {"Rows": rows}, name="Rows by version")
        with ui.card().classes("p-3 min-w-0").props("flat bordered"):
            ui.label("Changed rows per version").classes("text-sm quiet")
            charts.show_stacked_chart(labels, changes, name="Changes by version")


def _day(text: str) -> str:
    timestamp = formatting.parse_timestamp(text)
    return f"{timestamp.day} {timestamp:%b}" if timestamp else ""
