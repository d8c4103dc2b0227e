"""One schema: its fields, its state and what may follow, its history, who refers to it, rows to try, and its JSON."""

import json
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import UUID

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry.lifecycle import EDITABLE, State
from penstock.ui import formatting as shown
from penstock.ui import lifecycle_badges as states
from penstock.ui.api_client import Answer, Problem, part
from penstock.ui.layout import Visit, confirmed, empty, heading, named, once, page, say, trouble
from penstock.ui.data_table import Column, grid
from penstock.ui.schemas.history import history
from penstock.ui.schemas.validate_tab import trial

FIELDS = (
    Column("name", "Name"),
    Column("type", "Type"),
    Column("array", "List", lambda is_list: "list" if is_list else ""),
    Column("optional", "Optional", lambda is_optional: "optional" if is_optional else "required"),
    Column("description", "Description", lambda text: text or ""),
)
QUERIES = (
    Column("name", "Query", link=lambda row: f"/queries/{part(row['id'])}"),
    Column("state", "State", states.called),
    Column("version", "Version", right=True),
)


@page("/schemas/{id:uuid}", "Schema")
async def schema(visit: Visit, id: UUID) -> None:
    await _Schema(visit, f"/gts/{id}").show()


class _Schema:
    def __init__(self, visit: Visit, at: str) -> None:
        self._visit, self._at = visit, at
        self._place = ui.column().classes("w-full gap-4")

    async def show(self) -> None:
        answer = await self._visit.api.ask("GET", self._at)
        self._entry: Mapping[str, Any] = answer.body
        self._place.clear()
        with self._place:
            self._head(answer)
            await self._tabs()

    def _head(self, answer: Answer) -> None:
        entry, state = self._entry, State(self._entry["state"])
        with heading(entry["name"], above=("Schemas", "/schemas")):
            if self._visit.may(Role.ADMIN):
                ui.button("Delete", icon="delete", on_click=once(self._delete)).props("flat no-caps color=negative")
            for to, verb in states.steps(state, self._visit.role):
                ui.button(verb.capitalize(), on_click=once(_bound(self._move, to, verb))).props("outline no-caps")
            if self._visit.may(Role.DEVELOPER) and EDITABLE[state]:
                ui.button("Edit", icon="edit", on_click=lambda: ui.navigate.to(f"/schemas/{entry['id']}/edit")).props(
                    "unelevated no-caps"
                )
        with ui.row().classes("items-center gap-3"):
            states.badge(state)
            ui.label(f"Version {entry['version']}")
            ui.label(f"changed {shown.ago(entry['updated_at'])}").classes("quiet")
            with ui.row().classes("items-center gap-1"):
                ui.label("Id").classes("quiet")
                ui.label(entry["id"]).classes("font-mono text-sm break-anywhere")
                copy = ui.button(icon="content_copy", on_click=lambda: ui.clipboard.write(entry["id"]))
                copy.props('flat round dense size=sm aria-label="Copy the id"')
        if sunset := answer.headers.get("sunset"):
            day = shown.when(parsedate_to_datetime(sunset).isoformat())
            ui.label(f"New queries cannot use it. It is archived on {day}, unless a query still refers to it.").props(
                "role=note"
            )
        if entry["description"]:
            ui.label(entry["description"]).classes("whitespace-pre-wrap break-anywhere")

    async def _tabs(self) -> None:
        panels: dict[str, Callable[[], Awaitable[None]]] = {
            "Fields": self._fields,
            "History": lambda: history(self._visit.api, self._at),
            "References": self._references,
            "Try rows": lambda: trial(self._visit.api, self._at, self._entry["fields"]),
            "JSON": self._json,
        }
        filled = {"Fields"}

        async def fill(name: str) -> None:
            if name not in filled:
                filled.add(name)
                with places[name]:
                    await _told_here(panels[name])

        with ui.tabs(on_change=lambda event: fill(event.value)).props(
            "dense no-caps align=left outside-arrows"
        ) as tabs:
            for name in panels:
                ui.tab(name)
        tabs.classes("w-full")
        places = {}
        with ui.tab_panels(tabs, value="Fields", animated=False).classes("w-full bg-transparent"):
            for name in panels:
                with ui.tab_panel(name).classes("p-0 gap-4") as places[name]:
                    pass
        with places["Fields"]:
            await self._fields()

    async def _fields(self) -> None:
        grid(FIELDS, self._entry["fields"], name="Fields")

    async def _references(self) -> None:
        found = await self._visit.api.get(f"{self._at}/references")
        if not found["queries"]:
            empty("No query refers to this schema, so no change of it breaks anybody.", "Queries", "/queries")
            return
        many = found["query_count"]
        ui.label(f"{many:,} {'query returns' if many == 1 else 'queries return'} rows of this schema.")
        grid(QUERIES, found["queries"], name="Queries")

    async def _json(self) -> None:
        exported = await self._visit.api.get(f"{self._at}/json-schema")
        _document("As the API tells it", self._entry)
        _document("JSON Schema of a row", exported)

    async def _move(self, to: State, verb: str) -> None:
        reason = await states.reason_for(verb, self._entry["name"])
        if reason is None:
            return
        asked = {"to": str(to), "version": self._entry["version"], "reason": reason or None}
        await self._visit.api.post(f"{self._at}/transitions", asked)
        await self.show()
        with self._place:  # the button that was clicked is gone
            say(f"It is {states.called(to).lower()} now.")

    async def _delete(self) -> None:
        question = f"Delete the schema “{self._entry['name']}”? It cannot be brought back."
        if await confirmed(question, "Delete", danger=True):
            await self._visit.api.delete(self._at, if_match=f'"{self._entry["version"]}"')
            ui.navigate.to("/schemas")


def _document(title: str, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    with ui.column().classes("w-full gap-1"):
        with ui.row().classes("w-full items-center justify-between"):
            ui.label(title).classes("text-lg font-medium").props('role=heading aria-level="2"')
            copy = ui.button("Copy", icon="content_copy", on_click=lambda: ui.clipboard.write(text))
            named(copy.props("flat dense no-caps"), f"Copy: {title}")
        with ui.card().classes("w-full py-0 px-3").props("flat bordered"):
            box = ui.textarea(value=text).props('borderless readonly input-class="font-mono text-sm" rows=16')
            named(box.classes("w-full"), title)


async def _told_here(fill: Callable[[], Awaitable[None]]) -> None:
    try:
        await fill()
    except Problem as problem:
        trouble(problem.sentence)


def _bound(act: Callable[..., Awaitable[None]], *args: Any) -> Callable[[], Awaitable[None]]:
    return lambda: act(*args)
