"""Schema page: fields, lifecycle state, history, references, row validation and JSON of a schema."""

import json
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import UUID

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import EDITABLE, LifecycleState
from penstock.ui import formatting, lifecycle_badges
from penstock.ui.actions import single_flight
from penstock.ui.api_client import ApiError, ApiResponse, path_segment
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.deletion_notice import Deletion, announce_deletion
from penstock.ui.dialogs import confirm
from penstock.ui.elements import empty_state, error_card, heading, notify, with_label
from penstock.ui.layout import error_title, page
from penstock.ui.role_notes import show_role_note
from penstock.ui.schemas.history import show_history
from penstock.ui.schemas.validate_tab import show_validate_tab
from penstock.ui.session import PageSession
from penstock.ui.time_zone import format_timestamp

FIELDS = (
    TableColumn("name", "Name"),
    TableColumn("type", "Type"),
    TableColumn("array", "List", lambda is_list: "list" if is_list else ""),
    TableColumn("optional", "Optional", lambda is_optional: "optional" if is_optional else "required"),
    TableColumn("description", "Description", lambda text: text or ""),
)
QUERIES = (
    TableColumn("name", "Query", link=lambda row: f"/queries/{path_segment(row['id'])}"),
    TableColumn("state", "State", lifecycle_badges.state_label),
    TableColumn("version", "Version", align_right=True),
)


@page("/schemas/{id:uuid}", "Schema")
async def show_schema(session: PageSession, id: UUID) -> None:
    await _SchemaPage(session, f"/gts/{id}").show()


class _SchemaPage:
    def __init__(self, session: PageSession, path: str) -> None:
        self._session, self._path = session, path
        self._container = ui.column().classes("w-full gap-4")

    async def show(self) -> None:
        response = await self._session.api.request("GET", self._path)
        self._entry: Mapping[str, Any] = response.body
        self._container.clear()
        with self._container:
            self._show_header(response, await self._count_queries())
            await self._show_tabs()

    async def _count_queries(self) -> int:
        """Return the number of queries that refer to the schema, for users who could delete or archive it."""
        if not self._session.has_role(Role.ADMIN):
            return 0
        return int((await self._session.api.get(f"{self._path}/references"))["query_count"])

    def _show_header(self, response: ApiResponse, query_count: int) -> None:
        entry, state = self._entry, LifecycleState(self._entry["state"])
        with heading(entry["name"], parent=("Schemas", "/schemas")):
            if self._session.has_role(Role.ADMIN):
                delete = ui.button("Delete", icon="delete", on_click=single_flight(self._delete))
                delete.props("flat no-caps color=negative").set_enabled(not query_count)
            for target, verb in lifecycle_badges.allowed_transitions(state, self._session.role):
                move = ui.button(verb.capitalize(), on_click=single_flight(_bind(self._move, target, verb)))
                move.props("outline no-caps")
                move.set_enabled(target is not LifecycleState.ARCHIVED or not query_count)
            if self._session.has_role(Role.DEVELOPER) and EDITABLE[state]:
                ui.button("Edit", icon="edit", on_click=lambda: ui.navigate.to(f"/schemas/{entry['id']}/edit")).props(
                    "unelevated no-caps"
                )
        with ui.row().classes("items-center gap-3"):
            lifecycle_badges.show_badge(state)
            ui.label(f"Version {entry['version']}")
            ui.label(f"changed {formatting.format_age(entry['updated_at'])}").classes("quiet")
            with ui.row().classes("items-center gap-1"):
                ui.label("ID").classes("quiet")
                ui.label(entry["id"]).classes("font-mono text-sm break-anywhere")
                copy = ui.button(icon="content_copy", on_click=lambda: ui.clipboard.write(entry["id"]))
                copy.props('flat round dense size=sm aria-label="Copy id"')
        edit = {"edit": Role.DEVELOPER} if EDITABLE[state] else {}
        actions = {**edit, **lifecycle_badges.transition_roles(state), "delete": Role.ADMIN}
        show_role_note(self._session, actions, "this schema")
        if sunset := response.headers.get("sunset"):
            date = format_timestamp(parsedate_to_datetime(sunset).isoformat())
            ui.label(
                f"New queries cannot use this schema. It will be archived on {date} unless a query still refers to it."
            ).props("role=note")
        if query_count:  # the reason why buttons are disabled
            ui.label(
                f"{formatting.format_count(query_count, 'query refers', 'queries refer')} to this "
                "schema, so it cannot be deleted or archived. The tab References lists them."
            ).props("role=note")
        if entry["description"]:
            ui.label(entry["description"]).classes("whitespace-pre-wrap break-anywhere")

    async def _show_tabs(self) -> None:
        panels: dict[str, Callable[[], Awaitable[None]]] = {
            "Fields": self._show_fields,
            "History": lambda: show_history(self._session.api, self._path),
            "References": self._show_references,
            "Validate rows": lambda: show_validate_tab(self._session.api, self._path, self._entry["fields"]),
            "JSON": self._show_json,
        }
        filled = {"Fields"}

        async def fill(name: str) -> None:
            if name not in filled:
                filled.add(name)
                with containers[name]:
                    await _show_panel(panels[name])

        with ui.tabs(on_change=lambda event: fill(event.value)).props(
            "dense no-caps align=left outside-arrows"
        ) as tabs:
            for name in panels:
                ui.tab(name)
        tabs.classes("w-full")
        containers = {}
        with ui.tab_panels(tabs, value="Fields", animated=False).classes("w-full bg-transparent"):
            for name in panels:
                with ui.tab_panel(name).classes("p-0 gap-4") as containers[name]:
                    pass
        with containers["Fields"]:
            await self._show_fields()

    async def _show_fields(self) -> None:
        show_table(FIELDS, self._entry["fields"], name="Fields")

    async def _show_references(self) -> None:
        references = await self._session.api.get(f"{self._path}/references")
        if not references["queries"]:
            empty_state("No query refers to this schema, so changes to it cannot break readers.", "Queries", "/queries")
            return
        count = references["query_count"]
        ui.label(f"{formatting.format_count(count, 'query returns', 'queries return')} rows of this schema.")
        show_table(QUERIES, references["queries"], name="Queries")

    async def _show_json(self) -> None:
        exported = await self._session.api.get(f"{self._path}/json-schema")
        _show_document("API representation", self._entry)
        _show_document("JSON Schema of a row", exported)

    async def _move(self, target: LifecycleState, verb: str) -> None:
        reason = await lifecycle_badges.ask_reason(verb, self._entry["name"])
        if reason is None:
            return
        payload = {"to": str(target), "version": self._entry["version"], "reason": reason or None}
        await self._session.api.post(f"{self._path}/transitions", payload)
        await self.show()
        with self._container:  # the clicked button was deleted with its container
            notify(f"The schema is now {lifecycle_badges.state_label(target).lower()}.")

    async def _delete(self) -> None:
        question = f"Delete the schema “{self._entry['name']}”? Its versions are kept, and the deletion can be undone."
        if await confirm(question, "Delete", destructive=True):
            await self._session.api.delete(self._path, if_match=f'"{self._entry["version"]}"')
            page_path = f"/schemas/{self._entry['id']}"
            announce_deletion(Deletion(f"schema {self._entry['name']}", self._path, page_path))
            ui.navigate.to("/schemas")


def _show_document(title: str, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    with ui.column().classes("w-full gap-1"):
        with ui.row().classes("w-full items-center justify-between"):
            ui.label(title).classes("text-lg font-medium").props('role=heading aria-level="2"')
            copy = ui.button("Copy", icon="content_copy", on_click=lambda: ui.clipboard.write(text))
            with_label(copy.props("flat dense no-caps"), f"Copy: {title}")
        with ui.card().classes("w-full py-0 px-3").props("flat bordered"):
            box = ui.textarea(value=text).props('borderless readonly input-class="font-mono text-sm" rows=16')
            with_label(box.classes("w-full"), title)


async def _show_panel(fill: Callable[[], Awaitable[None]]) -> None:
    try:
        await fill()
    except ApiError as error:
        error_card(error_title(error), error.message)


def _bind(action: Callable[..., Awaitable[None]], *args: Any) -> Callable[[], Awaitable[None]]:
    return lambda: action(*args)
