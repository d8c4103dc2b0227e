"""List of pipelines, each with its last run."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting
from penstock.ui.api_client import ApiClient, path_segment
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.elements import empty_state, heading
from penstock.ui.layout import page
from penstock.ui.pipelines import dataset_picker
from penstock.ui.pipelines.run_list import format_state
from penstock.ui.role_notes import show_role_note
from penstock.ui.search_list import SearchList, SearchParams, SearchRows, parse_page_number
from penstock.ui.session import PageSession

_PAGE_ROWS = 20
_MEMBERS = "id,name,working,operations,updated_at"
_COLUMNS = (
    TableColumn("name", "Name", link=lambda row: f"/pipelines/{row['id']}"),
    TableColumn("last_state", "Last run", link=lambda row: row["run"] and f"/runs/{row['run']}"),
    TableColumn("last_time", "Time", format=formatting.format_age),
    TableColumn("working", "Working dataset", link=lambda row: row["working_path"]),
    TableColumn("operations", "Operations", formatting.format_count, align_right=True),
    TableColumn("updated_at", "Changed", format=formatting.format_age),
)


@page("/pipelines", "Pipelines")
async def pipelines(session: PageSession, words: str = "", page: str = "") -> None:
    with heading("Pipelines"):
        ui.button("All runs", icon="history", on_click=lambda: ui.navigate.to("/runs")).props("flat no-caps")
        if session.has_role(Role.DEVELOPER):
            ui.button("New pipeline", icon="add", on_click=lambda: ui.navigate.to("/pipelines/new")).props(
                "unelevated no-caps"
            )
    show_role_note(session, {"create": Role.DEVELOPER}, "pipelines")
    params = _PipelineSearchParams(_MEMBERS, words, parse_page_number(page))
    results = SearchList(
        session, "/pipelines", "/pipelines", params, partial(_fill, session), page_rows=_PAGE_ROWS, label="Search by name",
        enrich=partial(_load_rows, session.api),
    )  # fmt: skip
    await results.show()


class _PipelineSearchParams(SearchParams):
    def odata_options(self) -> dict[str, Any]:
        return {**(super().odata_options() or {}), "orderby": "name"}


def _fill(session: PageSession, params: SearchParams, rows: SearchRows) -> None:
    if rows:
        show_table(_COLUMNS, rows, name="Pipelines")
    elif params.words:
        empty_state("No pipelines match. Try another name.")
    elif session.has_role(Role.DEVELOPER):
        empty_state(
            "No pipelines yet. A pipeline appends and merges datasets in one commit.",
            "Create a pipeline",
            "/pipelines/new",
        )
    else:
        empty_state("No pipelines yet.")


async def _load_rows(api: ApiClient, pipelines: SearchRows) -> SearchRows:
    """Add the last run and the name of the working dataset to each pipeline."""
    names = await dataset_picker.load_names(api, {pipeline["working"]["dataset_id"] for pipeline in pipelines})
    last_runs = await asyncio.gather(*(_load_last_run(api, pipeline["id"]) for pipeline in pipelines))
    return [
        _to_table_row(pipeline, names.get(pipeline["working"]["dataset_id"]), last_run)
        for pipeline, last_run in zip(pipelines, last_runs, strict=True)
    ]


async def _load_last_run(api: ApiClient, pipeline: str) -> dict[str, Any] | None:
    response = await api.get(
        "/runs", filter=f"pipeline_id eq {pipeline}", orderby="created_at desc", top=1, select="id,state,created_at"
    )
    return next(iter(response["value"]), None)


def _to_table_row(pipeline: Mapping[str, Any], dataset: str | None, last_run: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": pipeline["id"],
        "name": pipeline["name"],
        "working": dataset or "not found",
        "working_path": dataset and f"/datasets/{path_segment(dataset)}",
        "operations": len(pipeline["operations"]),
        "last_state": format_state(last_run["state"]) if last_run else "never",
        "run": last_run and last_run["id"],
        "last_time": last_run and last_run["created_at"],
        "updated_at": pipeline["updated_at"],
    }
