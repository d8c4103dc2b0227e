"""The pipelines that there are, and how each of them fared last."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting as shown
from penstock.ui.api_client import Api, part
from penstock.ui.layout import Visit, empty, heading, page
from penstock.ui.data_table import Column, grid
from penstock.ui.pipelines import dataset_picker as shelf
from penstock.ui.pipelines.run_list import state_in_words
from penstock.ui.search_list import Asked, Rows, Searched, number

_TOP = 20
_MEMBERS = "id,name,working,operations,updated_at"
_COLUMNS = (
    Column("name", "Name", link=lambda row: f"/pipelines/{row['id']}"),
    Column("last", "Last run", link=lambda row: row["run"] and f"/runs/{row['run']}"),
    Column("at", "When", text=shown.ago),
    Column("working", "Working dataset", link=lambda row: row["there"]),
    Column("operations", "Operations", right=True),
    Column("updated_at", "Changed", text=shown.ago),
)


@page("/pipelines", "Pipelines")
async def pipelines(visit: Visit, words: str = "", page: str = "") -> None:
    with heading("Pipelines"):
        ui.button("All runs", icon="history", on_click=lambda: ui.navigate.to("/runs")).props("flat no-caps")
        if visit.may(Role.DEVELOPER):
            ui.button("New pipeline", icon="add", on_click=lambda: ui.navigate.to("/pipelines/new")).props(
                "unelevated no-caps"
            )
    begun = _ByName(_MEMBERS, words, number(page))
    found = Searched(
        visit, "/pipelines", "/pipelines", begun, partial(_fill, visit), top=_TOP, label="Search by name",
        known=partial(_rows, visit.api),
    )  # fmt: skip
    await found.show()


class _ByName(Asked):
    def options(self) -> dict[str, Any]:
        return {**(super().options() or {}), "orderby": "name"}


def _fill(visit: Visit, asked: Asked, rows: Rows) -> None:
    if rows:
        grid(_COLUMNS, rows, name="Pipelines")
    elif asked.words:
        empty("No pipeline has such a name. Search for another.")
    elif visit.may(Role.DEVELOPER):
        empty(
            "A pipeline appends and merges datasets into another one, in one commit. There is none yet.",
            "Make the first one",
            "/pipelines/new",
        )
    else:
        empty("There are no pipelines yet. A developer can make one.")


async def _rows(api: Api, pipelines: Rows) -> Rows:
    """Each with its last run, and with the name of the dataset that it works on."""
    names = await shelf.names(api, {each["working"]["dataset_id"] for each in pipelines})
    lasts = await asyncio.gather(*(_last_run(api, each["id"]) for each in pipelines))
    return [
        _row(each, names.get(each["working"]["dataset_id"]), last) for each, last in zip(pipelines, lasts, strict=True)
    ]


async def _last_run(api: Api, pipeline: str) -> dict[str, Any] | None:
    answer = await api.get(
        "/runs", filter=f"pipeline_id eq {pipeline}", orderby="created_at desc", top=1, select="id,state,created_at"
    )
    return next(iter(answer["value"]), None)


def _row(pipeline: Mapping[str, Any], dataset: str | None, last: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": pipeline["id"],
        "name": pipeline["name"],
        "working": dataset or "not there",
        "there": dataset and f"/datasets/{part(dataset)}",
        "operations": len(pipeline["operations"]),
        "last": state_in_words(last["state"]) if last else "never",
        "run": last and last["id"],
        "at": last and last["created_at"],
        "updated_at": pipeline["updated_at"],
    }
