"""A statement becomes a registered query, or another version of one: what it is called, and what must not be lost."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nicegui import ui

from penstock.core.lifecycle import State
from penstock.core.query import assert_editable
from penstock.errors import Invalid, Unsupported
from penstock.ui.api import Problem, part
from penstock.ui.frame import Visit, answered, say, subheading, told, unsaved
from penstock.ui.queries import verdict
from penstock.ui.queries.workbench import Workbench

MEMBERS = {
    "name": "Name",
    "description": "Description",
    "sql": "SQL",
    "parameters": "Parameters",
    "returns_schema_id": "Schema",
}
_SIGNS = {"-": "−", "+": "+", " ": " "}
_CHANGED = "QUERY_CHANGED"


@dataclass(frozen=True)
class Difference:
    member: str  # as people call it
    lines: tuple[str, ...]  # each begins with −, + or two blanks


class Choice(Enum):
    RELOAD = "reload"
    OVERWRITE = "overwrite"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """In which members two states of a query differ, line by line."""
    found = []
    for member, name in MEMBERS.items():
        before, after = _lines(old.get(member)), _lines(new.get(member))
        if before != after:
            told = (line for line in difflib.ndiff(before, after) if line[0] != "?")
            found.append(Difference(name, tuple(_SIGNS[line[0]] + line[1:] for line in told)))
    return found


def is_editable(state: State) -> bool:
    """May its SQL still change?"""
    try:
        assert_editable(state, {"sql"})
    except Unsupported:
        return False
    return True


def show_differences(found: list[Difference]) -> None:
    for each in found:
        ui.label(each.member).classes("font-medium text-sm")
        with ui.column().classes("w-full gap-0 font-mono text-sm overflow-x-auto pl-2"):
            for line in each.lines:
                ui.label(line or " ").classes("whitespace-pre-wrap break-anywhere")


class Registration:
    """The form that keeps a statement. `query`: the one that is edited, as it was read."""

    def __init__(self, visit: Visit, query: Mapping[str, Any] | None, bench: Workbench) -> None:
        self._visit, self._query, self._bench = visit, query, bench
        self._guarded = False
        with ui.card().classes("w-full gap-2").props("flat bordered"):
            subheading("Save as a registered query" if query is None else "Save")
            with ui.row().classes("w-full items-start gap-2 flex-wrap"):
                self._name = ui.input("Name", value=query["name"] if query else "").classes("flex-1 min-w-56")
                self._description = ui.textarea("Description", value=(query and query["description"]) or "")
                self._description.props("autogrow").classes("flex-1 min-w-56")
                for each in (self._name, self._description):
                    each.props("outlined dense hide-bottom-space").on_value_change(self.edited)
                self._draft = ui.checkbox("As a draft", value=False)
                self._draft.set_visibility(query is None)
                label = "Save query" if query is None else "Save changes"
                self._button = ui.button(label, icon="save", on_click=told(self.save)).props("unelevated no-caps")
        bench.when_edited(self.edited)
        bench.promise.name_after(lambda: self._name.value.strip())

    def edited(self) -> None:
        if not self._guarded:
            self._guarded = True
            unsaved(True)

    async def save(self, version: int | None = None) -> None:
        self._forgive()
        if not self._bench.promise.id:
            self._bench.promise.complain("Choose a schema that the rows must fit, or infer one from the SQL.")
            return
        try:
            sent = self._sent()
        except Invalid as refusal:
            say(refusal.message, bad=True)
            return
        self._button.set_enabled(False)
        try:
            kept = await self._send(sent, version)
        except Problem as problem:
            if problem.code == _CHANGED:
                await self._settle(sent)
            else:
                self._refuse(problem)
            return
        finally:
            self._button.set_enabled(True)
        unsaved(False)
        say(f"{kept['name']} is saved as version {kept['version']}.")
        ui.navigate.to(f"/queries/{part(kept['id'])}")

    def _sent(self) -> dict[str, Any]:
        return {
            "name": self._name.value.strip(),
            "description": self._description.value.strip() or None,
            "sql": self._bench.text,
            "parameters": self._bench.declared(),
            "returns_schema_id": self._bench.promise.id,
        }

    async def _send(self, sent: dict[str, Any], version: int | None) -> Any:
        if self._query is None:
            state = State.DRAFT if self._draft.value else State.ACTIVE
            return await self._visit.api.post("/queries", {**sent, "state": state})
        base = version or self._query["version"]
        return await self._visit.api.put(f"/queries/{part(self._query['id'])}", {**sent, "version": base})

    async def _settle(self, mine: dict[str, Any]) -> None:
        """Somebody else has changed it since it was read: nothing of theirs is lost unless that is wanted."""
        assert self._query is not None
        theirs = await self._visit.api.get(f"/queries/{part(self._query['id'])}")
        match await _asked(differences(self._query, mine), differences(self._query, theirs), theirs["version"]):
            case Choice.OVERWRITE:
                await self.save(theirs["version"])
            case Choice.RELOAD:
                unsaved(False)
                ui.navigate.reload()

    def _refuse(self, problem: Problem) -> None:
        if problem.code == "QUERY_NAME_TAKEN":
            self._name.error = problem.sentence
            return
        if problem.code in verdict.MISMATCH or not problem.errors:
            self._bench.refuse(problem)
            say("It was not saved: see what is wrong below the SQL.", bad=True)
            return
        for each in problem.errors:
            self._point(str(each.get("pointer", "")), str(each.get("message", "")), problem)

    def _point(self, pointer: str, sentence: str, problem: Problem) -> None:
        match pointer.split("/")[1:]:
            case ["name"]:
                self._name.error = sentence
            case ["description"]:
                self._description.error = sentence
            case ["returns_schema_id"]:
                self._bench.promise.complain(sentence)
            case ["parameters", place, *_] if place.isdecimal():
                self._bench.complain(int(place), sentence)
            case _:
                self._bench.refuse(problem)

    def _forgive(self) -> None:
        self._name.error = self._description.error = None
        self._bench.promise.complain(None)
        self._bench.forgive()


async def _asked(mine: list[Difference], theirs: list[Difference], version: int) -> Choice | None:
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-2xl"):
        ui.label("Somebody else has changed this query").classes("text-lg").props('role=heading aria-level="2"')
        ui.label(f"It is at version {version} by now. Overwrite it with yours, or reload it and lose yours.")
        with (
            ui.element("div")
            .classes("w-full grid grid-cols-1 sm:grid-cols-2 gap-4 overflow-auto")
            .style("max-height: 60vh")
        ):
            for title, found in (("What you changed", mine), ("What they changed", theirs)):
                with ui.column().classes("min-w-0 gap-1"):
                    ui.label(title).classes("font-medium").props('role=heading aria-level="3"')
                    show_differences(found)
                    if not found:
                        ui.label("Nothing of what is written here.").classes("quiet text-sm")
        with ui.row().classes("w-full justify-end flex-wrap"):
            ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Reload", on_click=lambda: dialog.submit(Choice.RELOAD)).props("outline no-caps")
            ui.button("Overwrite", on_click=lambda: dialog.submit(Choice.OVERWRITE)).props(
                "unelevated no-caps color=negative"
            )
    choice: Choice | None = await answered(dialog)
    return choice


def _lines(value: Any) -> list[str]:
    match value:
        case None | "":
            return []
        case list():
            return [_parameter(each) for each in value]
    return str(value).splitlines()


def _parameter(each: Mapping[str, Any]) -> str:
    if (default := each.get("default")) is not None:
        return f"${each['name']}: {each['type']}, {default} unless given"
    return f"${each['name']}: {each['type']}, {'required' if each.get('required', True) else 'none unless given'}"
