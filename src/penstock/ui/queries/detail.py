"""One query: what it is, how it became so, and its rows."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import State
from penstock.ui import formatting as shown
from penstock.ui import lifecycle_badges as states
from penstock.ui.api_client import Problem, part
from penstock.ui.layout import Visit, confirmed, heading, named, once, page, say, subheading
from penstock.ui.queries.save_form import differences, is_editable, show_differences
from penstock.ui.queries.run_panel import Running

_LIST = ("Queries", "/queries")
_REVISIONS = 20  # at once


@page("/queries/{id}", "Query")
async def one(visit: Visit, id: str) -> None:
    query = await visit.api.get(f"/queries/{part(id)}")
    schema = await _schema(visit, query["returns_schema_id"])
    with heading(query["name"], above=_LIST):
        states.badge(State(query["state"]))
        _steps(visit, query)
    _facts(query, schema)
    with ui.card().classes("w-full max-h-80 overflow-auto").props("flat bordered tabindex=0 role=region") as card:
        named(card, "SQL")
        ui.label(query["sql"]).classes("font-mono text-sm whitespace-pre-wrap break-anywhere")
    if query["state"] != State.ARCHIVED:
        subheading("Run")
        Running(visit, query, schema)
    subheading("Versions")
    await _Versions(visit, query["id"]).more()


async def _schema(visit: Visit, id: str) -> Any | None:
    try:
        return await visit.api.get(f"/gts/{part(id)}")
    except Problem as problem:
        if problem.status != 404:
            raise
        return None


def _steps(visit: Visit, query: Mapping[str, Any]) -> None:
    """What this person may do with it."""
    at = f"/queries/{part(query['id'])}"

    async def move(to: State, verb: str) -> None:
        reason = await states.reason_for(verb, query["name"])
        if reason is not None:
            await visit.api.post(f"{at}/transitions", {"to": to, "version": query["version"], "reason": reason or None})
            ui.navigate.reload()

    async def delete() -> None:
        if await confirmed(f"Delete the query {query['name']}? Its versions stay in the audit.", "Delete", danger=True):
            await visit.api.delete(at, if_match=f'"{query["version"]}"')
            say(f"{query['name']} is deleted.")
            ui.navigate.to("/queries")

    if visit.may(Role.ADMIN):
        ui.button("Delete", icon="delete", on_click=once(delete)).props("flat no-caps color=negative")
    for to, verb in states.steps(State(query["state"]), visit.role):
        ui.button(verb.capitalize(), on_click=once(lambda to=to, verb=verb: move(to, verb))).props("outline no-caps")
    writes = visit.may(Role.DEVELOPER) and is_editable(State(query["state"]))
    ui.button("Edit" if writes else "Try changes", icon="edit", on_click=lambda: ui.navigate.to(f"{at}/edit")).props(
        "unelevated no-caps"
    )


def _facts(query: Mapping[str, Any], schema: Mapping[str, Any] | None) -> None:
    if query["description"]:
        ui.label(query["description"]).classes("whitespace-pre-wrap break-anywhere")
    with ui.row().classes("items-center gap-x-4 gap-y-1 flex-wrap text-sm"):
        ui.label(f"Version {query['version']}, changed {shown.ago(query['updated_at'])}").classes("quiet")
        with ui.row().classes("gap-1"):
            ui.label("Returns").classes("quiet")
            if schema:
                ui.link(schema["name"], f"/schemas/{part(schema['id'])}").classes("break-anywhere")
            else:
                ui.label("a schema that is gone: it cannot be run")
        with ui.row().classes("gap-1 flex-wrap"):
            ui.label("Reads").classes("quiet")
            for each in query["datasets"]:
                name, version = f"{each['schema_name']}.{each['table_name']}", each.get("version")
                pinned = "" if version is None else f"?version={version}"
                ui.link(name if version is None else f"{name} v{version}", f"/datasets/{part(name)}{pinned}")
            if not query["datasets"]:
                ui.label("no dataset")


class _Versions:
    """How the query became what it is, the newest first; what changed is told when it is asked for."""

    def __init__(self, visit: Visit, id: str) -> None:
        self._api, self._at = visit.api, f"/queries/{part(id)}/versions"
        self._before: int | None = None
        self._list = ui.list().classes("w-full").props("bordered separator")
        self._button = ui.button("Older versions", on_click=once(self.more)).props("flat no-caps")

    async def more(self) -> None:
        found = (await self._api.get(self._at, top=_REVISIONS + 1, before=self._before))["value"]
        with self._list:
            for newer, older in zip(found[:_REVISIONS], [*found[1:], None], strict=False):
                _revision(newer, older)
        self._before = found[:_REVISIONS][-1]["version"] if found else None
        self._button.set_visibility(len(found) > _REVISIONS)


def _revision(newer: Mapping[str, Any], older: Mapping[str, Any] | None) -> None:
    title = f"Version {newer['version']}: {newer['change']} by {newer['author']}"
    with ui.expansion(title, caption=shown.when(newer["changed_at"])).classes("w-full").props("dense") as inside:
        if newer["reason"]:
            ui.label(f"Reason: {newer['reason']}").classes("break-anywhere text-sm")
        found = differences(older or {}, newer)
        show_differences(found)
        if not found:
            ui.label(f"Only its state: it is {states.called(newer['state']).lower()}.").classes("text-sm quiet")
    inside.props["header-class"] = "break-anywhere"
