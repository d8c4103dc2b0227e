"""All datasets, schema by schema: found by words, a page at a time; a new one is made of a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import shown
from penstock.ui.api import Api, Problem, part, quoted
from penstock.ui.datasets import sending
from penstock.ui.frame import Visit, empty, heading, once, page, subheading, told
from penstock.ui.grid import Column, grid, pager

TOP = 50
MOST_SCHEMAS = 100  # to choose from
_ALL = "All schemas"
_SELECT = "name,schema_name,table_name,schema,rows,bytes,version,at,author,read_only"
_COLUMNS = (
    Column("table_name", "Name", link=lambda row: f"/datasets/{part(row['name'])}"),
    Column("schema", "Columns", lambda columns: shown.count(len(columns)), right=True),
    Column("rows", "Rows", shown.count, right=True),
    Column("bytes", "Size", shown.size, right=True),
    Column("version", "Version", right=True),
    Column("at", "Changed", shown.ago),
    Column("author", "By"),
)
_WIDTHS = ("28%", "10%", "12%", "10%", "10%", "16%", "14%")  # so that the tables of all schemas line up

Dataset = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    words: str = ""
    schema: str | None = None
    skip: int = 0

    def options(self) -> dict[str, Any]:
        """Without another order they come by name, and so schema by schema."""
        return {
            "search": self.words or None,
            "filter": f"tolower(schema_name) eq {quoted(self.schema.lower())}" if self.schema else None,
            "top": TOP,
            "skip": self.skip,
            "select": _SELECT,
            "count": True,
        }


def by_schema(datasets: Sequence[Dataset], names: Sequence[str]) -> list[tuple[str, list[Dataset]]]:
    """The datasets of each schema. Case does not count; a schema is spelled as it is among the names."""
    spelled = {name.lower(): name for name in names}
    groups = groupby(datasets, lambda each: str(each["schema_name"]).lower())
    return [(spelled.get(key, key), list(group)) for key, group in groups]


async def schema_names(api: Api) -> list[str]:
    """The schemas that have datasets, found by a leap from each to the next."""
    found: dict[str, str] = {}
    after = None
    while len(found) < MOST_SCHEMAS:
        beyond = None if after is None else f"schema_name gt {quoted(after)}"
        answer = await api.get("/datasets", filter=beyond, orderby="schema_name", select="schema_name", top=1)
        if not answer["value"]:
            break
        after = answer["value"][0]["schema_name"]
        found.setdefault(after.lower(), after)
    return [found[key] for key in sorted(found)]


@page("/datasets", "Datasets")
async def datasets(visit: Visit, schema: str = "") -> None:
    async def create() -> None:
        if made := await sending.create(visit):
            ui.navigate.to(f"/datasets/{part(made['name'])}")

    with heading("Datasets"):
        if visit.may(Role.DEVELOPER):
            ui.button("New dataset", icon="add", on_click=once(create)).props("unelevated no-caps")
    names = await schema_names(visit.api)
    await _List(visit, names, Asked(schema=schema or None), once(create)).show()


class _List:
    def __init__(self, visit: Visit, names: list[str], asked: Asked, create: Any) -> None:
        self._visit, self._names, self._asked, self._create = visit, names, asked, create
        if not names:
            self._found = ui.column().classes("w-full")
            return
        chosen = next((name for name in names if name.lower() == (asked.schema or "").lower()), _ALL)
        with ui.row().classes("w-full items-center gap-4"):
            self._words = ui.input("Search names", on_change=told(self._search))
            self._words.props("outlined dense clearable debounce=300 type=search").classes("w-full max-w-sm")
            if len(names) > 1:
                choice = ui.select([_ALL, *names], value=chosen, label="Schema", on_change=told(self._choose))
                choice.props("outlined dense options-dense").classes("w-full max-w-56")
        self._found = ui.column().classes("w-full gap-3")

    async def show(self, **changes: Any) -> None:
        asked = self._asked = replace(self._asked, **changes)
        try:
            answer = await self._visit.api.get("/datasets", **asked.options())
        except Problem as problem:
            if problem.status != 400:
                raise
            self._words.error = problem.sentence  # a quote that is not closed yet
            return
        if asked is not self._asked or self._found.is_deleted:
            return  # somebody has typed on
        self._found.clear()
        with self._found:
            self._list(asked, answer)

    async def _search(self) -> None:
        self._words.error = None
        await self.show(words=(self._words.value or "").strip(), skip=0)

    async def _choose(self, event: Any) -> None:
        await self.show(schema=None if event.value == _ALL else event.value, skip=0)

    def _list(self, asked: Asked, answer: Mapping[str, Any]) -> None:
        rows = answer["value"]
        if not rows:
            self._nothing()
            return
        for schema, found in by_schema(rows, self._names):
            subheading(schema).classes("break-anywhere")
            table = grid(_COLUMNS, found, name=f"Datasets of {schema}")
            table.classes(
                "[&_table]:table-fixed [&_table]:min-w-[44rem] [&_td]:whitespace-normal! [&_td]:wrap-anywhere"
            )
            for column, width in zip(table.columns, _WIDTHS, strict=True):
                column["headerStyle"] = f"width: {width}"
        more = "@odata.nextLink" in answer
        pager(
            asked.skip,
            len(rows),
            answer["@odata.count"],
            more=more,
            on_move=lambda to: told(self.show)(skip=to),
            top=TOP,
        )

    def _nothing(self) -> None:
        if self._names:
            empty("No dataset has such a name. Try fewer words, or another schema.")
        elif self._visit.may(Role.DEVELOPER):
            empty(
                "There are no datasets yet. Make the first one of a CSV, JSON, Parquet or Arrow file.",
                "New dataset",
                self._create,
            )
        else:
            empty("There are no datasets yet. A developer can make one of a file.")
