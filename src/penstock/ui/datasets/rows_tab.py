"""The rows of a version: all, or those that a condition keeps; a page at a time."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from penstock.ui import formatting as shown
from penstock.ui.api_client import Problem
from penstock.ui.layout import Visit, empty, once, told
from penstock.ui.data_table import Column, grid, pager

TOP = 50
_TYPED = (  # what is told of a type by how it begins
    (("int", "float", "double", "halffloat"), "{} > 100"),
    (("date",), "{} >= DATE '2026-01-01'"),
    (("timestamp",), "{} >= TIMESTAMP '2026-01-01 00:00:00'"),
    (("bool",), "{}"),
    (("string",), "{} LIKE 'a%'"),
)


def example(schema: list[dict[str, Any]]) -> str:
    """A condition that could stand there: on the first column that is easy to say something of."""
    for column in schema:
        for begins, condition in _TYPED:
            if isinstance(column["type"], str) and column["type"].startswith(begins):
                return condition.format(_quoted(column["name"]))
    return "NOT (1 > 2)"


class Rows:
    def __init__(self, visit: Visit, path: str, dataset: Mapping[str, Any]) -> None:
        self._visit, self._path, self._dataset = visit, f"{path}/rows", dataset
        self._columns = [Column(each["name"], right=shown.is_number(each["type"])) for each in dataset["schema"]]
        self.kept = ""  # the condition that keeps what is shown
        self._asked = ("", 0)

    async def show(self, where: str = "") -> None:
        if not self._dataset["rows"]:
            empty("This version has no rows.")
            return
        with ui.row().classes("w-full items-start gap-2 pt-2"):
            self._where = ui.input("Filter", value=where, on_change=self._forgive)
            self._where.props("outlined dense clearable input-class=font-mono").classes("grow max-w-2xl")
            self._where.props["hint"] = f"A condition, such as {example(self._dataset['schema'])}"
            self._where.on("keydown.enter", told(self._filter)).on("clear", told(self._filter))
            ui.button("Filter", on_click=once(self._filter)).props("outline no-caps")
        self._found = ui.column().classes("w-full gap-2")
        if not where or not await self._look(0, where):
            await self._look(0, "")

    async def _filter(self) -> None:
        await self._look(0, (self._where.value or "").strip())

    async def _move(self, skip: int) -> None:
        await self._look(skip, self.kept)

    async def _look(self, skip: int, where: str) -> bool:
        """Was it a condition? One that is none is told, and what is shown stays."""
        asked = self._asked = (where, skip)
        version = self._dataset["version"]
        try:
            answer = await self._visit.api.rows(self._path, where=where or None, version=version, top=TOP, skip=skip)
        except Problem as problem:
            if problem.status != 400:
                raise
            self._where.error = problem.sentence
            return False
        if asked is not self._asked or self._found.is_deleted:
            return True
        self.kept = where
        self._found.clear()
        with self._found:
            self._page(answer, skip)
        return True

    def _page(self, answer: Mapping[str, Any], skip: int) -> None:
        rows, total = answer["value"], None if self.kept else self._dataset["rows"]
        if not rows and not skip:
            empty("No row fits the filter.")
            return
        grid(self._columns, rows, name=f"Rows of {self._dataset['name']}")
        pager(skip, len(rows), total, more="@odata.nextLink" in answer, on_move=told(self._move), top=TOP)

    def _forgive(self) -> None:
        self._where.error = None


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name.replace('`', '``')}`"
