"""List of schemas."""

from functools import partial

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting
from penstock.ui.actions import show_errors
from penstock.ui.api_client import path_segment
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.elements import empty_state, heading
from penstock.ui.layout import page
from penstock.ui.lifecycle_badges import SEARCH_LABEL, parse_states, show_state_filter, state_label
from penstock.ui.role_notes import show_role_note
from penstock.ui.search_list import SearchList, SearchRows, StateSearchParams, parse_page_number
from penstock.ui.session import PageSession

PAGE_SCHEMAS = 20
_SELECT = "id,name,description,state,version,fields,updated_at"
COLUMNS = (
    TableColumn("name", "Name", link=lambda row: f"/schemas/{path_segment(row['id'])}"),
    TableColumn("state", "State", state_label),
    TableColumn("fields", "Fields", lambda fields: formatting.format_count(len(fields)), align_right=True),
    TableColumn("version", "Version", align_right=True),
    TableColumn("updated_at", "Changed", formatting.format_age),
    TableColumn("description", "Description", lambda text: text or ""),
)


@page("/schemas", "Schemas")
async def schemas(session: PageSession, words: str = "", states: str | None = None, page: str = "") -> None:
    with heading("Schemas"):
        if session.has_role(Role.DEVELOPER):
            ui.button("Infer from a sample", on_click=lambda: ui.navigate.to("/schemas/new?infer=rows")).props(
                "flat no-caps"
            )
            ui.button("New schema", icon="add", on_click=lambda: ui.navigate.to("/schemas/new")).props(
                "unelevated no-caps"
            )
    show_role_note(session, {"create": Role.DEVELOPER}, "schemas")
    params = StateSearchParams(_SELECT, words, parse_page_number(page), parse_states(states))
    results = SearchList(
        session, "/schemas", "/gts", params, partial(_fill, session), page_rows=PAGE_SCHEMAS, label=SEARCH_LABEL
    )
    with results.toolbar:
        show_state_filter(params.states, lambda chosen: show_errors(results.show)(states=chosen))
    await results.show()


def _fill(session: PageSession, params: StateSearchParams, rows: SearchRows) -> None:
    if rows:
        show_table(COLUMNS, rows, name="Schemas")
    elif not params.states:
        empty_state("Choose at least one state.")
    elif params.words:
        empty_state("No schemas match. Try fewer words or other states.")
    elif session.has_role(Role.DEVELOPER):
        empty_state(
            "No schemas in these states. A result schema declares the fields that a query returns.",
            "New schema",
            "/schemas/new",
        )
    else:
        empty_state("No schemas in these states.")
