"""Save form of a query: register SQL as a query or save a new version, and resolve conflicts with other users."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import LifecycleState
from penstock.core.registry.query import assert_editable
from penstock.errors import Unsupported
from penstock.ui import code_editor
from penstock.ui.actions import single_flight
from penstock.ui.api_client import ApiError, path_segment
from penstock.ui.dialogs import dialog_result, leave_page, set_unsaved
from penstock.ui.elements import notify, subheading, with_label
from penstock.ui.queries import validation_report
from penstock.ui.queries.sql_editor import SqlEditor
from penstock.ui.role_notes import show_role_note
from penstock.ui.session import PageSession

MEMBERS = {
    "name": "Name",
    "description": "Description",
    "sql": "SQL",
    "parameters": "Parameters",
    "returns_schema_id": "Schema",
}
_SIGNS = {"-": "−", "+": "+", " ": " "}
_MEMBERS_BY_POSITION = ("sql", "parameters", "returns_schema_id", "name", "description")  # as on the page
_CHANGED_CODE = "QUERY_CHANGED"
_NO_SCHEMA = "Choose a result schema, or infer one from the SQL."


@dataclass(frozen=True)
class MemberDiff:
    """The changed lines of one member of a query."""

    member: str  # label of the member
    lines: tuple[str, ...]  # each begins with −, + or two spaces


class QueryConflictChoice(Enum):
    """Resolution of a conflict with another user's change."""

    RELOAD = "reload"
    OVERWRITE = "overwrite"


def diff_members(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[MemberDiff]:
    """Compare two states of a query line by line, and return the members that differ."""
    diffs = []
    for member, label in MEMBERS.items():
        before, after = _lines(old.get(member)), _lines(new.get(member))
        if before != after:
            lines = (line for line in difflib.ndiff(before, after) if line[0] != "?")
            diffs.append(MemberDiff(label, tuple(_SIGNS[line[0]] + line[1:] for line in lines)))
    return diffs


def is_editable(state: LifecycleState) -> bool:
    """Return whether the SQL of a query in this state can change."""
    try:
        assert_editable(state, {"sql"})
    except Unsupported:
        return False
    return True


def show_diffs(diffs: list[MemberDiff]) -> None:
    """Show the changed lines of members."""
    for diff in diffs:
        ui.label(diff.member).classes("font-medium text-sm")
        with ui.column().classes("w-full gap-0 font-mono text-sm overflow-x-auto pl-2"):
            for line in diff.lines:
                ui.label(line or " ").classes("whitespace-pre-wrap break-anywhere")


async def show_editor(session: PageSession, query: Mapping[str, Any] | None, text: str) -> None:
    """Show the SQL editor, and the save form if the user may save the query."""
    can_be_saved = query is None or is_editable(LifecycleState(query["state"]))
    if can_be_saved:
        show_role_note(session, {"save": Role.DEVELOPER}, "the SQL as a query" if query is None else "this query")
    editor = SqlEditor(session, text, query["parameters"] if query else ())
    if can_be_saved and session.has_role(Role.DEVELOPER):
        QueryForm(session, query, editor)
    await editor.load(query["returns_schema_id"] if query else None)


class QueryForm:
    """Form that saves the SQL as a query.

    Args:
        session: The session of the page.
        query: The edited query as it was loaded, or None for a new one.
        editor: The SQL editor.
    """

    def __init__(self, session: PageSession, query: Mapping[str, Any] | None, editor: SqlEditor) -> None:
        self._session, self._query, self._editor = session, query, editor
        with ui.card().classes("w-full gap-2").props("flat bordered"):
            subheading("Save as a registered query" if query is None else "Save")
            with ui.row().classes("w-full items-start gap-2 flex-wrap"):
                self._name = ui.input("Name", value=query["name"] if query else "").classes("flex-1 min-w-56")
                self._description = ui.textarea("Description", value=(query and query["description"]) or "")
                self._description.props("autogrow").classes("flex-1 min-w-56")
                for field in (self._name, self._description):
                    field.props("outlined dense hide-bottom-space").on_value_change(self.edited)
                self._draft = ui.checkbox("Save as draft", value=False)
                self._draft.set_visibility(query is None)
                label = "Save query" if query is None else "Save changes"
                self._button = ui.button(label, icon="save", on_click=single_flight(self.save)).props(
                    "unelevated no-caps"
                )
        self._loaded = {**self._payload(), "returns_schema_id": query["returns_schema_id"] if query else None}
        self._is_unsaved = False
        editor.on_edit(self.edited)
        editor.schema_picker.set_name_source(lambda: self._name.value.strip())

    def edited(self) -> None:
        """Compare the form with the loaded query, and guard unsaved changes."""
        is_unsaved = self._payload() != self._loaded
        if is_unsaved != self._is_unsaved:
            self._is_unsaved = is_unsaved
            set_unsaved(is_unsaved)

    async def save(self, version: int | None = None) -> None:
        self._clear_errors()
        payload = self._payload()
        try:
            saved = await self._send(payload, version)
        except ApiError as error:
            if error.status == 401:
                raise
            if error.code == _CHANGED_CODE:
                await self._resolve_conflict(payload)
            else:
                self._show_errors(error)
            return
        self._button.set_enabled(False)  # ignores a second click before the page is left
        notify(f"Saved {saved['name']} as version {saved['version']}.")
        await leave_page(f"/queries/{path_segment(saved['id'])}")

    def _payload(self) -> dict[str, Any]:
        return {
            "name": self._name.value.strip(),
            "description": self._description.value.strip() or None,
            "sql": self._editor.text,
            "parameters": self._editor.declarations(),
            "returns_schema_id": self._editor.schema_picker.id,
        }

    async def _send(self, payload: dict[str, Any], version: int | None) -> Any:
        self._button.set_enabled(False)
        try:
            if self._query is None:
                state = LifecycleState.DRAFT if self._draft.value else LifecycleState.ACTIVE
                return await self._session.api.post("/queries", {**payload, "state": state})
            base_version = version or self._query["version"]
            return await self._session.api.put(
                f"/queries/{path_segment(self._query['id'])}", {**payload, "version": base_version}
            )
        finally:
            self._button.set_enabled(True)

    async def _resolve_conflict(self, edited: dict[str, Any]) -> None:
        """Ask how to resolve a conflict with another user's change."""
        assert self._query is not None
        stored = await self._session.api.get(f"/queries/{path_segment(self._query['id'])}")
        match await _ask_conflict(
            diff_members(self._query, edited), diff_members(self._query, stored), stored["version"]
        ):
            case QueryConflictChoice.OVERWRITE:
                await self.save(stored["version"])
            case QueryConflictChoice.RELOAD:
                await leave_page()

    def _show_errors(self, error: ApiError) -> None:
        """Show each error at its input, and set the focus to the first input with an error."""
        if error.code == "QUERY_NAME_TAKEN":
            errors = [("/name", error.message)]
        elif error.code in validation_report.MISMATCH_CODES or not error.errors:
            self._editor.show_api_error(error)
            notify("Not saved. See the errors below the SQL.", is_error=True)
            return
        else:
            errors = [(str(item.get("pointer", "")), str(item.get("message", ""))) for item in error.errors]
        located = [(pointer.split("/")[1:], message) for pointer, message in errors]
        first, *_ = [self._show_error(path, message) for path, message in sorted(located, key=_position_on_page)]
        if isinstance(first, ui.codemirror):
            code_editor.focus_editor(first)
        else:
            first.run_method("focus")

    def _show_error(self, path: Sequence[str], message: str) -> ui.element:
        match path:
            case ["name"]:
                self._name.error = message
                return self._name
            case ["description"]:
                self._description.error = message
                return self._description
            case ["returns_schema_id"]:
                return self._editor.schema_picker.set_error(message if self._editor.schema_picker.id else _NO_SCHEMA)
        return self._editor.show_error(path, message)

    def _clear_errors(self) -> None:
        self._name.error = self._description.error = None
        self._editor.schema_picker.clear_errors()
        self._editor.clear_errors()


async def _ask_conflict(
    own_diffs: list[MemberDiff], stored_diffs: list[MemberDiff], version: int
) -> QueryConflictChoice | None:
    title = "Another user changed this query"
    with with_label(ui.dialog(), title) as dialog, ui.card().classes("w-full max-w-2xl"):
        ui.label(title).classes("text-lg").props('role=heading aria-level="2"')
        ui.label(f"The saved version is now {version}. Overwrite it with your changes, or reload it and discard them.")
        with (
            ui.element("div")
            .classes("w-full grid grid-cols-1 sm:grid-cols-2 gap-4 overflow-auto")
            .style("max-height: 60vh")
        ):
            for title, diffs in (("Your changes", own_diffs), ("Their changes", stored_diffs)):
                with ui.column().classes("min-w-0 gap-1"):
                    ui.label(title).classes("font-medium").props('role=heading aria-level="3"')
                    show_diffs(diffs)
                    if not diffs:
                        ui.label("No changes to the query.").classes("quiet text-sm")
        with ui.row().classes("w-full justify-end flex-wrap"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Reload", on_click=lambda: dialog.submit(QueryConflictChoice.RELOAD)).props("outline no-caps")
            ui.button("Overwrite", on_click=lambda: dialog.submit(QueryConflictChoice.OVERWRITE)).props(
                "unelevated no-caps color=negative"
            )
    choice: QueryConflictChoice | None = await dialog_result(dialog)
    return choice


def _position_on_page(error: tuple[Sequence[str], str]) -> int:
    """Return the position of an error on the page."""
    member = next(iter(error[0]), "")
    return _MEMBERS_BY_POSITION.index(member) if member in _MEMBERS_BY_POSITION else -1


def _lines(value: Any) -> list[str]:
    match value:
        case None | "":
            return []
        case list():
            return [_format_parameter(parameter) for parameter in value]
    return str(value).splitlines()


def _format_parameter(parameter: Mapping[str, Any]) -> str:
    if (default := parameter.get("default")) is not None:
        return f"${parameter['name']}: {parameter['type']}, default {default}"
    return f"${parameter['name']}: {parameter['type']}, {'required' if parameter.get('required', True) else 'optional'}"
