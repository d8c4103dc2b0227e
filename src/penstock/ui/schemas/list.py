"""All schemas: found by words and states, a page at a time."""

from functools import partial

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting as shown
from penstock.ui.api_client import part
from penstock.ui.layout import Visit, empty, heading, page, told
from penstock.ui.data_table import Column, grid
from penstock.ui.search_list import AskedByState, Rows, Searched, number
from penstock.ui.lifecycle_badges import SEARCH, called, chips, read

TOP = 20
_SELECT = "id,name,description,state,version,fields,updated_at"
COLUMNS = (
    Column("name", "Name", link=lambda row: f"/schemas/{part(row['id'])}"),
    Column("state", "State", called),
    Column("fields", "Fields", lambda fields: shown.count(len(fields)), right=True),
    Column("version", "Version", right=True),
    Column("updated_at", "Changed", shown.ago),
    Column("description", "Description", lambda text: text or ""),
)


@page("/schemas", "Schemas")
async def schemas(visit: Visit, words: str = "", states: str | None = None, page: str = "") -> None:
    with heading("Schemas"):
        if visit.may(Role.DEVELOPER):
            ui.button("Infer from a sample", on_click=lambda: ui.navigate.to("/schemas/new?infer=rows")).props(
                "flat no-caps"
            )
            ui.button("New schema", icon="add", on_click=lambda: ui.navigate.to("/schemas/new")).props(
                "unelevated no-caps"
            )
    begun = AskedByState(_SELECT, words, number(page), read(states))
    found = Searched(visit, "/schemas", "/gts", begun, partial(_fill, visit), top=TOP, label=SEARCH)
    with found.bar:
        chips(begun.states, lambda chosen: told(found.show)(states=chosen))
    await found.show()


def _fill(visit: Visit, asked: AskedByState, rows: Rows) -> None:
    if rows:
        grid(COLUMNS, rows, name="Schemas")
    elif not asked.states:
        empty("Choose at least one state.")
    elif asked.words:
        empty("No schema in these states has all of these words. Try fewer words, or other states.")
    elif visit.may(Role.DEVELOPER):
        empty("There is no schema in these states. A schema says what a query returns.", "New schema", "/schemas/new")
    else:
        empty("There is no schema in these states. A developer can make one.")
