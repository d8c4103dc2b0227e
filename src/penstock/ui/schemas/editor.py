"""The editor of a schema: a form of fields that says what is wrong where it is wrong, and what came of saving it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nicegui import ui

from penstock.core.registry import lifecycle
from penstock.core.caller import Role
from penstock.core.registry.lifecycle import EDITABLE, MEMBERS, State
from penstock.ui.api_client import Problem
from penstock.ui.layout import Visit, leave, once, unsaved
from penstock.ui.schemas import dialogs
from penstock.ui.schemas.dialogs import Choice
from penstock.ui.schemas.field_row import focus
from penstock.ui.schemas.form_model import Form, Row, complaints, form, placed
from penstock.ui.schemas.form import SchemaForm

READS_ONLY = "You may look at schemas. To make or change them you need the role analytics.developer."


class Editor:
    """`entry` is the schema as it was read, or no more than the type of one that is not there yet."""

    def __init__(self, visit: Visit, place: ui.element, filled: Form, entry: Mapping[str, Any]) -> None:
        self._visit, self._place, self._entry = visit, place, entry
        self._state = State(entry.get("state", State.ACTIVE))
        self._sheet = SchemaForm(filled, frozenset(MEMBERS) - EDITABLE[self._state])
        self._inferred: tuple[Row, ...] = ()
        is_new = "id" not in entry
        with self._sheet.head:
            self._draft = ui.checkbox("Keep it as a draft; publish it later")
            self._draft.set_visibility(is_new)
        with self._sheet.foot:
            if is_new:
                ui.button("Infer from a sample", on_click=once(self.infer)).props("flat no-caps")
            ui.button("Edit as JSON", on_click=once(self._edit_json)).props("flat no-caps")
        with ui.row().classes("w-full gap-2"):
            self._button = ui.button("Save Schema", on_click=once(self.save)).props("unelevated no-caps")
            back = "/schemas" if is_new else f"/schemas/{entry['id']}"
            ui.button("Cancel", on_click=lambda: ui.navigate.to(back)).props("flat no-caps")

    def focus(self) -> None:
        """Begin with the name."""
        self._sheet.focus()

    async def infer(self, way: str = "rows", given: str = "") -> None:
        now = self._sheet.form
        by_hand = set(now.rows) - {Row(), *self._inferred}
        proposal = await dialogs.inferred(self._visit, way, given, len(now.rows) if by_hand else 0)
        if proposal is not None:
            found = form(proposal)
            self._inferred = found.rows
            self._sheet.fill(replace(now, name=now.name or found.name, rows=found.rows))

    async def save(self) -> None:
        said = complaints(self._sheet.form)
        self._sheet.refuse(said)
        if said:
            return
        self._button.props(add="loading")
        try:
            await self._send()
        finally:
            if not self._button.is_deleted:  # as it is once all is well
                self._button.props(remove="loading")

    async def _edit_json(self) -> None:
        instead = f"PUT /gts/{self._entry['id']}" if "id" in self._entry else "POST /gts"
        if (found := await dialogs.as_json(self._sheet.form, instead, self._assert_editable)) is not None:
            self._sheet.fill(found)

    def _assert_editable(self, found: Form) -> None:
        now, then = self._sheet.form.as_json(), found.as_json()
        lifecycle.assert_editable(self._state, {member for member in MEMBERS if now[member] != then[member]})

    async def _send(self, *, force: bool = False) -> None:
        try:
            answer = await self._asked(force)
        except Problem as problem:
            if not self._place.is_deleted:  # as it is once they are gone
                await self._refused(problem)
        else:
            if not self._place.is_deleted:
                self._done(answer)

    async def _refused(self, problem: Problem) -> None:
        match problem.code:
            case "SCHEMA_CHANGED":
                await self._settle()
            case "BREAKS_READERS":
                if await dialogs.forced(problem, may=self._visit.may(Role.ADMIN)):
                    await self._send(force=True)
            case "SCHEMA_NAME_TAKEN":
                self._sheet.refuse({"/name": problem.sentence})
            case _ if problem.errors:
                self._sheet.refuse(placed(problem.errors))
            case _:
                raise problem

    async def _asked(self, force: bool) -> Mapping[str, Any]:
        said = self._sheet.form.as_json()
        if "id" not in self._entry:
            state = State.DRAFT if self._draft.value else State.ACTIVE
            made = {**said, "type_id": self._entry["type_id"], "state": str(state)}
            answer = await self._visit.api.ask("POST", "/gts", made)
        else:
            change = {**said, "version": self._entry["version"]}
            options = {"force": True} if force else {}
            answer = await self._visit.api.ask("PUT", f"/gts/{self._entry['id']}", change, options=options)
        found: Mapping[str, Any] = answer.body
        return found

    async def _settle(self) -> None:
        """Somebody else has saved it since it was read: whose changes stay?"""
        at = f"/gts/{self._entry['id']}"
        now = await self._visit.api.get(at)
        newest = await self._visit.api.get(f"{at}/versions", top=1)
        choice = await dialogs.conflict(self._entry, self._sheet.form.as_json(), now, newest["value"][0])
        match choice:
            case Choice.RELOAD:
                await leave()
            case Choice.OVERWRITE:
                self._entry = now
                await self._send()

    def _done(self, entry: Mapping[str, Any]) -> None:
        unsaved(False)
        self._place.clear()
        with self._place, ui.card().classes("w-full gap-2").props("flat bordered role=status"):
            ui.label(_outcome(self._entry, entry)).classes("text-lg break-anywhere")
            with ui.row().classes("items-center gap-2"):
                ui.label("Schema id").classes("quiet")
                ui.label(entry["id"]).classes("font-mono break-anywhere")
                copy = ui.button(icon="content_copy", on_click=lambda: ui.clipboard.write(entry["id"]))
                copy.props('flat round dense aria-label="Copy the id"')
            with ui.row().classes("gap-2"):
                onward = ui.button("Open it", on_click=lambda: ui.navigate.to(f"/schemas/{entry['id']}"))
                focus(onward.props("unelevated no-caps"))
                ui.button("All schemas", on_click=lambda: ui.navigate.to("/schemas")).props("flat no-caps")


def _outcome(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if "id" not in before:
        return f"Schema “{after['name']}” was created."
    if before["version"] == after["version"]:
        return f"Nothing has changed: “{after['name']}” stays at version {after['version']}."
    return f"“{after['name']}” was saved as version {after['version']}."
