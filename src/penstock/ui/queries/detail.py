"""Query page: description, SQL, run panel and versions of a registered query."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import LifecycleState
from penstock.ui import formatting, lifecycle_badges
from penstock.ui.actions import single_flight
from penstock.ui.api_client import ApiError, path_segment
from penstock.ui.deletion_notice import Deletion, announce_deletion
from penstock.ui.dialogs import confirm
from penstock.ui.elements import heading, subheading, with_label
from penstock.ui.layout import page
from penstock.ui.queries.run_panel import RunPanel
from penstock.ui.queries.save_form import diff_members, is_editable, show_diffs
from penstock.ui.role_notes import show_role_note
from penstock.ui.session import PageSession
from penstock.ui.time_zone import format_timestamp

_LIST = ("Queries", "/queries")
_PAGE_REVISIONS = 20


@page("/queries/{id}", "Query")
async def show_query(session: PageSession, id: str) -> None:
    query = await session.api.get(f"/queries/{path_segment(id)}")
    schema = await _load_schema(session, query["returns_schema_id"])
    with heading(query["name"], parent=_LIST):
        lifecycle_badges.show_badge(LifecycleState(query["state"]))
        _show_actions(session, query)
    state = LifecycleState(query["state"])
    edit = {"edit": Role.DEVELOPER} if is_editable(state) else {}
    actions = {**edit, **lifecycle_badges.transition_roles(state), "delete": Role.ADMIN}
    show_role_note(session, actions, "this query")
    _show_facts(query, schema)
    with ui.card().classes("w-full max-h-80 overflow-auto").props("flat bordered tabindex=0 role=region") as card:
        with_label(card, "SQL")
        ui.label(query["sql"]).classes("font-mono text-sm whitespace-pre-wrap break-anywhere")
    if query["state"] != LifecycleState.ARCHIVED:
        subheading("Run")
        RunPanel(session, query, schema)
    subheading("Versions")
    await _RevisionList(session, query["id"]).more()


async def _load_schema(session: PageSession, id: str) -> Any | None:
    try:
        return await session.api.get(f"/gts/{path_segment(id)}")
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _show_actions(session: PageSession, query: Mapping[str, Any]) -> None:
    """Show the buttons that the user's role allows."""
    path = f"/queries/{path_segment(query['id'])}"

    async def move(target: LifecycleState, verb: str) -> None:
        reason = await lifecycle_badges.ask_reason(verb, query["name"])
        if reason is not None:
            await session.api.post(
                f"{path}/transitions", {"to": target, "version": query["version"], "reason": reason or None}
            )
            ui.navigate.reload()

    async def delete() -> None:
        question = f"Delete the query “{query['name']}”? Its versions are kept, and the deletion can be undone."
        if await confirm(question, "Delete", destructive=True):
            await session.api.delete(path, if_match=f'"{query["version"]}"')
            announce_deletion(Deletion(f"query {query['name']}", path, path))
            ui.navigate.to("/queries")

    if session.has_role(Role.ADMIN):
        ui.button("Delete", icon="delete", on_click=single_flight(delete)).props("flat no-caps color=negative")
    for target, verb in lifecycle_badges.allowed_transitions(LifecycleState(query["state"]), session.role):
        ui.button(verb.capitalize(), on_click=single_flight(lambda target=target, verb=verb: move(target, verb))).props(
            "outline no-caps"
        )
    can_save = session.has_role(Role.DEVELOPER) and is_editable(LifecycleState(query["state"]))
    ui.button(
        "Edit" if can_save else "Try changes", icon="edit", on_click=lambda: ui.navigate.to(f"{path}/edit")
    ).props("unelevated no-caps")


def _show_facts(query: Mapping[str, Any], schema: Mapping[str, Any] | None) -> None:
    if query["description"]:
        ui.label(query["description"]).classes("whitespace-pre-wrap break-anywhere")
    with ui.row().classes("items-center gap-x-4 gap-y-1 flex-wrap text-sm"):
        ui.label(f"Version {query['version']}, changed {formatting.format_age(query['updated_at'])}").classes("quiet")
        with ui.row().classes("gap-1"):
            ui.label("Returns").classes("quiet")
            if schema:
                ui.link(schema["name"], f"/schemas/{path_segment(schema['id'])}").classes("break-anywhere")
            else:
                ui.label("a deleted schema: the query cannot run")
        with ui.row().classes("gap-1 flex-wrap"):
            ui.label("Reads").classes("quiet")
            for dataset in query["datasets"]:
                name, version = f"{dataset['schema_name']}.{dataset['table_name']}", dataset.get("version")
                params = "" if version is None else f"?version={version}"
                ui.link(name if version is None else f"{name} v{version}", f"/datasets/{path_segment(name)}{params}")
            if not query["datasets"]:
                ui.label("no dataset")


class _RevisionList:
    """Revisions of the query, the newest first. The differences are shown when the user opens a revision."""

    def __init__(self, session: PageSession, id: str) -> None:
        self._api, self._path = session.api, f"/queries/{path_segment(id)}/versions"
        self._before: int | None = None
        self._list = ui.list().classes("w-full").props("bordered separator")
        self._button = ui.button("Older versions", on_click=single_flight(self.more)).props("flat no-caps")

    async def more(self) -> None:
        revisions = (await self._api.get(self._path, top=_PAGE_REVISIONS + 1, before=self._before))["value"]
        with self._list:
            for newer, older in zip(revisions[:_PAGE_REVISIONS], [*revisions[1:], None], strict=False):
                _show_revision(newer, older)
        self._before = revisions[:_PAGE_REVISIONS][-1]["version"] if revisions else None
        self._button.set_visibility(len(revisions) > _PAGE_REVISIONS)


def _show_revision(newer: Mapping[str, Any], older: Mapping[str, Any] | None) -> None:
    title = f"Version {newer['version']}: {newer['change']} by {newer['author']}"
    with (
        ui.expansion(title, caption=format_timestamp(newer["changed_at"])).classes("w-full").props("dense") as expansion
    ):
        if newer["reason"]:
            ui.label(f"Reason: {newer['reason']}").classes("break-anywhere text-sm")
        diffs = diff_members(older or {}, newer)
        show_diffs(diffs)
        if not diffs:
            state = lifecycle_badges.state_label(newer["state"]).lower()
            is_undeletion = newer["change"] == "undelete"
            ui.label("The deletion was undone." if is_undeletion else f"Only the state changed: {state}.").classes(
                "text-sm quiet"
            )
    expansion.props["header-class"] = "break-anywhere"
