"""List of registered queries."""

from functools import partial
from typing import Any

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

PAGE_QUERIES = 20
_SELECT = "id,name,description,state,version,datasets,parameters,updated_at"


def format_datasets(datasets: list[dict[str, Any]]) -> str:
    """Format the names of the datasets that a query reads, with the versions that the SQL fixes."""
    names = (
        f"{dataset['schema_name']}.{dataset['table_name']}{_format_version(dataset.get('version'))}"
        for dataset in datasets
    )
    return ", ".join(dict.fromkeys(names)) or "no dataset"


COLUMNS = (
    TableColumn("name", "Name", link=lambda row: f"/queries/{path_segment(row['id'])}"),
    TableColumn("state", "State", state_label),
    TableColumn("datasets", "Reads", format_datasets),
    TableColumn(
        "parameters",
        "Parameters",
        lambda parameters: ", ".join(f"${parameter['name']}" for parameter in parameters) or "–",
    ),
    TableColumn("version", "Version", align_right=True),
    TableColumn("updated_at", "Changed", formatting.format_age),
    TableColumn("description", "Description", lambda text: text or ""),
)


@page("/queries", "Queries")
async def queries(session: PageSession, words: str = "", states: str | None = None, page: str = "") -> None:
    with heading("Queries"):
        ui.button(_new_label(session), icon="add", on_click=lambda: ui.navigate.to("/queries/new")).props(
            "unelevated no-caps"
        )
    show_role_note(session, {"register": Role.DEVELOPER}, "queries")
    params = StateSearchParams(_SELECT, words, parse_page_number(page), parse_states(states))
    results = SearchList(
        session, "/queries", "/queries", params, partial(_fill, session), page_rows=PAGE_QUERIES, label=SEARCH_LABEL
    )
    with results.toolbar:
        show_state_filter(params.states, lambda chosen: show_errors(results.show)(states=chosen))
    await results.show()


def _fill(session: PageSession, params: StateSearchParams, rows: SearchRows) -> None:
    if rows:
        show_table(COLUMNS, rows, name="Queries")
    elif not params.states:
        empty_state("Choose at least one state.")
    elif params.words:
        empty_state("No queries match. Try fewer words or other states.")
    else:
        empty_state(
            "No queries in these states. A registered query is SQL whose rows match a result schema.",
            _new_label(session),
            "/queries/new",
        )


def _new_label(session: PageSession) -> str:
    return "New query" if session.has_role(Role.DEVELOPER) else "Try SQL"


def _format_version(number: int | None) -> str:
    return "" if number is None else f" v{number}"
