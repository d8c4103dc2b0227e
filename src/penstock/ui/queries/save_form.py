"""A statement becomes a registered query, or another version of one: what it is called, and what must not be lost."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import State
from penstock.core.registry.query import assert_editable
from penstock.errors import Unsupported
from penstock.ui import code_editor
from penstock.ui.api_client import Problem, part
from penstock.ui.layout import Visit, answered, leave, named, once, say, subheading, unsaved
from penstock.ui.queries import validation_report as verdict
from penstock.ui.queries.sql_editor import Workbench

MEMBERS = {
    "name": "Name",
    "description": "Description",
    "sql": "SQL",
    "parameters": "Parameters",
    "returns_schema_id": "Schema",
}
_SIGNS = {"-": "−", "+": "+", " ": " "}
_PLACES = ("sql", "parameters", "returns_schema_id", "name", "description")  # as they are on the page
_CHANGED = "QUERY_CHANGED"
_NO_SCHEMA = "Choose a schema that the rows must fit, or infer one from the SQL."


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


async def write(visit: Visit, query: Mapping[str, Any] | None, text: str) -> None:
    """The place where SQL is written, with the form that keeps it for those who may."""
    bench = Workbench(visit, text, query["parameters"] if query else ())
    if visit.may(Role.DEVELOPER) and (query is None or is_editable(State(query["state"]))):
        Registration(visit, query, bench)
    await bench.fill(query["returns_schema_id"] if query else None)


class Registration:
    """The form that keeps a statement. `query`: the one that is edited, as it was read."""

    def __init__(self, visit: Visit, query: Mapping[str, Any] | None, bench: Workbench) -> None:
        self._visit, self._query, self._bench = visit, query, bench
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
                self._button = ui.button(label, icon="save", on_click=once(self.save)).props("unelevated no-caps")
        self._read = {**self._sent(), "returns_schema_id": query["returns_schema_id"] if query else None}
        self._is_unsaved = False
        bench.when_edited(self.edited)
        bench.promise.name_after(lambda: self._name.value.strip())

    def edited(self) -> None:
        is_unsaved = self._sent() != self._read
        if is_unsaved != self._is_unsaved:
            self._is_unsaved = is_unsaved
            unsaved(is_unsaved)

    async def save(self, version: int | None = None) -> None:
        self._forgive()
        sent = self._sent()
        try:
            kept = await self._send(sent, version)
        except Problem as problem:
            if problem.status == 401:
                raise
            if problem.code == _CHANGED:
                await self._settle(sent)
            else:
                self._refuse(problem)
            return
        self._button.set_enabled(False)  # a second click may come before the page is left
        say(f"{kept['name']} is saved as version {kept['version']}.")
        await leave(f"/queries/{part(kept['id'])}")

    def _sent(self) -> dict[str, Any]:
        return {
            "name": self._name.value.strip(),
            "description": self._description.value.strip() or None,
            "sql": self._bench.text,
            "parameters": self._bench.declared(),
            "returns_schema_id": self._bench.promise.id,
        }

    async def _send(self, sent: dict[str, Any], version: int | None) -> Any:
        self._button.set_enabled(False)
        try:
            if self._query is None:
                state = State.DRAFT if self._draft.value else State.ACTIVE
                return await self._visit.api.post("/queries", {**sent, "state": state})
            base = version or self._query["version"]
            return await self._visit.api.put(f"/queries/{part(self._query['id'])}", {**sent, "version": base})
        finally:
            self._button.set_enabled(True)

    async def _settle(self, mine: dict[str, Any]) -> None:
        """Somebody else has changed it since it was read: nothing of theirs is lost unless that is wanted."""
        assert self._query is not None
        theirs = await self._visit.api.get(f"/queries/{part(self._query['id'])}")
        match await _asked(differences(self._query, mine), differences(self._query, theirs), theirs["version"]):
            case Choice.OVERWRITE:
                await self.save(theirs["version"])
            case Choice.RELOAD:
                await leave()

    def _refuse(self, problem: Problem) -> None:
        """Say all that is wrong, each where it is, and go to the first place on the page."""
        if problem.code == "QUERY_NAME_TAKEN":
            faults = [("/name", problem.sentence)]
        elif problem.code in verdict.MISMATCH or not problem.errors:
            self._bench.refuse(problem)
            say("It was not saved: see what is wrong below the SQL.", bad=True)
            return
        else:
            faults = [(str(each.get("pointer", "")), str(each.get("message", ""))) for each in problem.errors]
        places = [(pointer.split("/")[1:], sentence) for pointer, sentence in faults]
        first, *_ = [self._point(place, sentence) for place, sentence in sorted(places, key=_on_page)]
        if isinstance(first, ui.codemirror):
            code_editor.focus(first)
        else:
            first.run_method("focus")

    def _point(self, place: Sequence[str], sentence: str) -> ui.element:
        match place:
            case ["name"]:
                self._name.error = sentence
                return self._name
            case ["description"]:
                self._description.error = sentence
                return self._description
            case ["returns_schema_id"]:
                return self._bench.promise.complain(sentence if self._bench.promise.id else _NO_SCHEMA)
        return self._bench.complain(place, sentence)

    def _forgive(self) -> None:
        self._name.error = self._description.error = None
        self._bench.promise.forgive()
        self._bench.forgive()


async def _asked(mine: list[Difference], theirs: list[Difference], version: int) -> Choice | None:
    title = "Somebody else has changed this query"
    with named(ui.dialog(), title) as dialog, ui.card().classes("w-full max-w-2xl"):
        ui.label(title).classes("text-lg").props('role=heading aria-level="2"')
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


def _on_page(fault: tuple[Sequence[str], str]) -> int:
    """How far down it is said."""
    member = next(iter(fault[0]), "")
    return _PLACES.index(member) if member in _PLACES else -1


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
