"""All datasets, schema by schema: found by words, a page at a time; a new one is made of a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting as shown
from penstock.ui.api_client import Api, part, quoted
from penstock.ui.datasets import upload as sending
from penstock.ui.layout import Visit, empty, heading, once, page, subheading, told
from penstock.ui.data_table import Column, grid
from penstock.ui.search_list import Asked, Rows, Searched, number

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
class InSchema(Asked):
    """Without another order they come by name, and so schema by schema."""

    schema: str | None = None

    def options(self) -> dict[str, Any]:
        named = f"tolower(schema_name) eq {quoted(self.schema.lower())}" if self.schema else None
        return {**(super().options() or {}), "filter": named}

    def address(self) -> dict[str, str]:
        return super().address() | ({"schema": self.schema} if self.schema else {})


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
async def datasets(visit: Visit, schema: str = "", words: str = "", page: str = "") -> None:
    async def create() -> None:
        if made := await sending.create(visit):
            ui.navigate.to(f"/datasets/{part(made['name'])}")

    with heading("Datasets"):
        if visit.may(Role.DEVELOPER):
            ui.button("New dataset", icon="add", on_click=once(create)).props("unelevated no-caps")
    names = await schema_names(visit.api)
    if not names:
        _nothing(visit, once(create))
        return
    chosen = next((name for name in names if name.lower() == schema.lower()), None)
    begun = InSchema(_SELECT, words, number(page), chosen)
    found = Searched(visit, "/datasets", "/datasets", begun, partial(_fill, names), top=TOP, label="Search names")
    if len(names) > 1:
        with found.bar:
            choice = ui.select([_ALL, *names], value=chosen or _ALL, label="Schema")
            choice.props("outlined dense options-dense").classes("w-full max-w-56")
            choice.on_value_change(told(lambda: found.show(schema=None if choice.value == _ALL else choice.value)))
    await found.show()


def _fill(names: Sequence[str], _asked: InSchema, rows: Rows) -> None:
    if not rows:
        empty("No dataset has such a name. Try fewer words, or another schema.")
    for schema, found in by_schema(rows, names):
        subheading(schema).classes("break-anywhere")
        table = grid(_COLUMNS, found, name=f"Datasets of {schema}")
        table.classes("[&_table]:table-fixed [&_table]:min-w-[44rem] [&_td]:whitespace-normal! [&_td]:wrap-anywhere")
        for column, width in zip(table.columns, _WIDTHS, strict=True):
            column["headerStyle"] = f"width: {width}"


def _nothing(visit: Visit, create: Callable[[], Any]) -> None:
    if visit.may(Role.DEVELOPER):
        sentence = "There are no datasets yet. Make the first one of a CSV, JSON, Parquet or Arrow file."
        empty(sentence, "New dataset", create)
    else:
        empty("There are no datasets yet. A developer can make one of a file.")
