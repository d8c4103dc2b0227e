"""Schema editor: edit, infer and save a schema, and resolve conflicts with other users."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry import lifecycle
from penstock.core.registry.lifecycle import EDITABLE, MEMBERS, LifecycleState
from penstock.ui.actions import single_flight
from penstock.ui.api_client import ApiError
from penstock.ui.dialogs import leave_page, set_unsaved
from penstock.ui.schemas import dialogs
from penstock.ui.schemas.dialogs import SchemaConflictChoice
from penstock.ui.schemas.field_row import focus_button
from penstock.ui.schemas.form import SchemaForm
from penstock.ui.schemas.form_model import FieldFormData, SchemaFormData, locate_errors, to_form_data, validate_form
from penstock.ui.session import PageSession

READ_ONLY_TEXT = "Your role can view schemas. To create or change them, you need the role analytics.developer."


class SchemaEditor:
    """Editor of a schema.

    Args:
        session: The session of the page.
        container: The element that is replaced by the confirmation after saving.
        data: The initial values.
        entry: The schema as it was loaded; for a new schema, only its type.
    """

    def __init__(
        self, session: PageSession, container: ui.element, data: SchemaFormData, entry: Mapping[str, Any]
    ) -> None:
        self._session, self._container, self._entry = session, container, entry
        self._state = LifecycleState(entry.get("state", LifecycleState.ACTIVE))
        self._form = SchemaForm(data, frozenset(MEMBERS) - EDITABLE[self._state])
        self._inferred: tuple[FieldFormData, ...] = ()
        is_new = "id" not in entry
        with self._form.head:
            self._draft = ui.checkbox("Save as draft and publish it later")
            self._draft.set_visibility(is_new)
        with self._form.foot:
            if is_new:
                ui.button("Infer from a sample", on_click=single_flight(self.infer)).props("flat no-caps")
            ui.button("Edit as JSON", on_click=single_flight(self._edit_json)).props("flat no-caps")
        with ui.row().classes("w-full gap-2"):
            self._button = ui.button("Save Schema", on_click=single_flight(self.save)).props("unelevated no-caps")
            back = "/schemas" if is_new else f"/schemas/{entry['id']}"
            ui.button("Cancel", on_click=lambda: ui.navigate.to(back)).props("flat no-caps")

    def focus(self) -> None:
        """Set the focus to the name."""
        self._form.focus()

    async def infer(self, source: str = "rows", sample: str = "") -> None:
        current = self._form.data
        manual_rows = set(current.rows) - {FieldFormData(), *self._inferred}
        proposal = await dialogs.infer_schema(self._session, source, sample, len(current.rows) if manual_rows else 0)
        if proposal is not None:
            data = to_form_data(proposal)
            self._inferred = data.rows
            self._form.fill(replace(current, name=current.name or data.name, rows=data.rows))

    async def save(self) -> None:
        errors = validate_form(self._form.data)
        self._form.show_errors(errors)
        if errors:
            return
        self._button.props(add="loading")
        try:
            await self._send()
        finally:
            if not self._button.is_deleted:  # the button is deleted after the schema was saved
                self._button.props(remove="loading")

    async def _edit_json(self) -> None:
        alternative = f"PUT /gts/{self._entry['id']}" if "id" in self._entry else "POST /gts"
        if (data := await dialogs.edit_as_json(self._form.data, alternative, self._assert_editable)) is not None:
            self._form.fill(data)

    def _assert_editable(self, data: SchemaFormData) -> None:
        before, after = self._form.data.as_json(), data.as_json()
        lifecycle.assert_editable(self._state, {member for member in MEMBERS if before[member] != after[member]})

    async def _send(self, *, force: bool = False) -> None:
        try:
            entry = await self._request_save(force)
        except ApiError as error:
            if not self._container.is_deleted:  # the user has closed the page
                await self._handle_error(error)
        else:
            if not self._container.is_deleted:
                self._show_saved(entry)

    async def _handle_error(self, error: ApiError) -> None:
        match error.code:
            case "SCHEMA_CHANGED":
                await self._resolve_conflict()
            case "BREAKING_CHANGE":
                if await dialogs.confirm_breaking_change(error, can_force=self._session.has_role(Role.ADMIN)):
                    await self._send(force=True)
            case "SCHEMA_NAME_TAKEN":
                self._form.show_errors({"/name": error.message})
            case _ if error.errors:
                self._form.show_errors(locate_errors(error.errors))
            case _:
                raise error

    async def _request_save(self, force: bool) -> Mapping[str, Any]:
        members = self._form.data.as_json()
        if "id" not in self._entry:
            state = LifecycleState.DRAFT if self._draft.value else LifecycleState.ACTIVE
            payload = {**members, "type_id": self._entry["type_id"], "state": str(state)}
            response = await self._session.api.request("POST", "/gts", payload)
        else:
            payload = {**members, "version": self._entry["version"]}
            options = {"force": True} if force else {}
            response = await self._session.api.request("PUT", f"/gts/{self._entry['id']}", payload, options=options)
        saved: Mapping[str, Any] = response.body
        return saved

    async def _resolve_conflict(self) -> None:
        """Ask how to resolve a conflict with another user's change."""
        path = f"/gts/{self._entry['id']}"
        current = await self._session.api.get(path)
        newest = await self._session.api.get(f"{path}/versions", top=1)
        choice = await dialogs.resolve_conflict(self._entry, self._form.data.as_json(), current, newest["value"][0])
        match choice:
            case SchemaConflictChoice.RELOAD:
                await leave_page()
            case SchemaConflictChoice.OVERWRITE:
                self._entry = current
                await self._send()

    def _show_saved(self, entry: Mapping[str, Any]) -> None:
        set_unsaved(False)
        self._container.clear()
        with self._container, ui.card().classes("w-full gap-2").props("flat bordered role=status"):
            ui.label(_outcome(self._entry, entry)).classes("text-lg break-anywhere")
            with ui.row().classes("items-center gap-2"):
                ui.label("Schema id").classes("quiet")
                ui.label(entry["id"]).classes("font-mono break-anywhere")
                copy = ui.button(icon="content_copy", on_click=lambda: ui.clipboard.write(entry["id"]))
                copy.props('flat round dense aria-label="Copy id"')
            with ui.row().classes("gap-2"):
                open_button = ui.button("Open schema", on_click=lambda: ui.navigate.to(f"/schemas/{entry['id']}"))
                focus_button(open_button.props("unelevated no-caps"))
                ui.button("All schemas", on_click=lambda: ui.navigate.to("/schemas")).props("flat no-caps")


def _outcome(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if "id" not in before:
        return f"Schema “{after['name']}” was created."
    if before["version"] == after["version"]:
        return f"No changes: “{after['name']}” stays at version {after['version']}."
    return f"“{after['name']}” was saved as version {after['version']}."
