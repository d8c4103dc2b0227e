"""The versions of a dataset: how it grew, and who did what to it."""

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.ui import formatting as shown
from penstock.ui import charts
from penstock.ui.layout import Visit, told
from penstock.ui.data_table import Column, grid, pager

TOP = 20
MOST_DRAWN = 100  # versions
_COUNTS = ("inserted", "updated", "deleted")

Version = Mapping[str, Any]


class Versions:
    def __init__(self, visit: Visit, path: str, dataset: Mapping[str, Any]) -> None:
        self._visit, self._path = visit, path
        self._name, self._newest = dataset["name"], dataset.get("newest", dataset["version"])
        self._columns = (
            Column("version", "Version", link=lambda row: None if row["swept"] else f"{path}?version={row['version']}"),
            Column("at", "When", shown.when),
            Column("author", "By"),
            Column("operation", "Operation"),
            *(Column(each, each.capitalize(), shown.count, right=True) for each in _COUNTS),
            Column("rows", "Rows", shown.count, right=True),
            Column("files", "Files", shown.count, right=True),
            Column("bytes", "Size", shown.size, right=True),
            Column("swept", "Readable", lambda swept: "no, swept" if swept else "yes"),
        )

    async def show(self) -> None:
        history = await self._visit.api.get(f"{self._path}/history", top=MOST_DRAWN)
        _draw(history["value"][::-1])
        self._found = ui.column().classes("w-full gap-2")
        await self._look(0)

    async def _look(self, skip: int) -> None:
        before = self._newest - skip + 1  # versions are numbered without a gap
        answer = await self._visit.api.get(f"{self._path}/history", top=TOP, before=before)
        if self._found.is_deleted:
            return
        self._found.clear()
        with self._found:
            versions = answer["value"]
            grid(self._columns, versions, name=f"Versions of {self._name}")
            more = "@odata.nextLink" in answer
            pager(skip, len(versions), self._newest, more=more, on_move=told(self._look), top=TOP)


def series(versions: Sequence[Version]) -> tuple[list[str], list[int], dict[str, Sequence[float | None]]]:
    """For each version its label, its rows, and what was done to them; the oldest first."""
    labels = [f"v{each['version']} · {_day(each['at'])}" for each in versions]
    return (
        labels,
        [each["rows"] for each in versions],
        {name.capitalize(): [each[name] for each in versions] for name in _COUNTS},
    )


def _draw(versions: Sequence[Version]) -> None:
    labels, rows, changes = series(versions)
    with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-2 gap-4 pt-2"):
        with ui.card().classes("p-3 min-w-0").props("flat bordered"):
            ui.label("Rows of each version").classes("text-sm quiet")
            charts.lines(labels, {"Rows": rows}, name="Rows by version")
        with ui.card().classes("p-3 min-w-0").props("flat bordered"):
            ui.label("Rows that each version changed").classes("text-sm quiet")
            charts.stacked(labels, changes, name="Changes by version")


def _day(text: str) -> str:
    at = shown.moment(text)
    return f"{at.day} {at:%b}" if at else ""
