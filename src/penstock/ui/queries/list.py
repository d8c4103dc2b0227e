"""All registered queries: found by words and states, a page at a time."""

from functools import partial
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting as shown
from penstock.ui.api_client import part
from penstock.ui.layout import Visit, empty, heading, page, told
from penstock.ui.data_table import Column, grid
from penstock.ui.search_list import AskedByState, Rows, Searched, number
from penstock.ui.lifecycle_badges import SEARCH, called, chips, read

TOP = 20
_SELECT = "id,name,description,state,version,datasets,parameters,updated_at"


def reads(datasets: list[dict[str, Any]]) -> str:
    """The names of the datasets that a query reads, each with its version where the SQL fixes one."""
    told = (f"{each['schema_name']}.{each['table_name']}{_version(each.get('version'))}" for each in datasets)
    return ", ".join(dict.fromkeys(told)) or "no dataset"


COLUMNS = (
    Column("name", "Name", link=lambda row: f"/queries/{part(row['id'])}"),
    Column("state", "State", called),
    Column("datasets", "Reads", reads),
    Column("parameters", "Parameters", lambda each: ", ".join(f"${one['name']}" for one in each) or "–"),
    Column("version", "Version", right=True),
    Column("updated_at", "Changed", shown.ago),
    Column("description", "Description", lambda text: text or ""),
)


@page("/queries", "Queries")
async def queries(visit: Visit, words: str = "", states: str | None = None, page: str = "") -> None:
    with heading("Queries"):
        ui.button(_new(visit), icon="add", on_click=lambda: ui.navigate.to("/queries/new")).props("unelevated no-caps")
    begun = AskedByState(_SELECT, words, number(page), read(states))
    found = Searched(visit, "/queries", "/queries", begun, partial(_fill, visit), top=TOP, label=SEARCH)
    with found.bar:
        chips(begun.states, lambda chosen: told(found.show)(states=chosen))
    await found.show()


def _fill(visit: Visit, asked: AskedByState, rows: Rows) -> None:
    if rows:
        grid(COLUMNS, rows, name="Queries")
    elif not asked.states:
        empty("Choose at least one state.")
    elif asked.words:
        empty("No query in these states has all of these words. Try fewer words, or other states.")
    else:
        empty(
            "There is no query in these states. A query is SQL over datasets, whose rows keep what a schema promises.",
            _new(visit),
            "/queries/new",
        )


def _new(visit: Visit) -> str:
    return "New query" if visit.may(Role.DEVELOPER) else "Try SQL"


def _version(number: int | None) -> str:
    return "" if number is None else f" v{number}"
