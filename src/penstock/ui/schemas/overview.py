"""All schemas: found by words and states, a page at a time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.lifecycle import State
from penstock.ui import shown, states
from penstock.ui.api import Problem, part, quoted
from penstock.ui.frame import Visit, empty, heading, page, told
from penstock.ui.grid import Column, grid, pager

TOP = 20
_SELECT = "id,name,description,state,version,fields,updated_at"
_LONGEST = 80  # characters of a description in the list


@dataclass(frozen=True)
class Asked:
    words: str = ""
    states: frozenset[State] = states.USUAL
    skip: int = 0

    def options(self) -> dict[str, Any]:
        among = ", ".join(quoted(state) for state in State if state in self.states)
        return {
            "filter": f"state in ({among})",
            "search": self.words or None,
            "orderby": "updated_at desc, name",
            "top": TOP,
            "skip": self.skip,
            "select": _SELECT,
            "count": True,
        }


COLUMNS = (
    Column("name", "Name", link=lambda row: f"/schemas/{part(row['id'])}"),
    Column("state", "State", states.called),
    Column("fields", "Fields", lambda fields: shown.count(len(fields)), right=True),
    Column("version", "Version", right=True),
    Column("updated_at", "Changed", shown.ago),
    Column("description", "Description", lambda text: _short(text or "")),
)


@page("/schemas", "Schemas")
async def schemas(visit: Visit) -> None:
    with heading("Schemas"):
        if visit.may(Role.DEVELOPER):
            ui.button("Infer from a sample", on_click=lambda: ui.navigate.to("/schemas/new?infer=rows")).props(
                "flat no-caps"
            )
            ui.button("New schema", icon="add", on_click=lambda: ui.navigate.to("/schemas/new")).props(
                "unelevated no-caps"
            )
    await _List(visit).show()


class _List:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._asked = Asked()
        with ui.row().classes("w-full items-center gap-4"):
            self._words = ui.input("Search names and descriptions", on_change=told(self._search))
            self._words.props("outlined dense clearable debounce=300 type=search").classes("w-full max-w-sm")
            states.chips(self._choose)
        self._found = ui.column().classes("w-full gap-2")

    async def show(self, **changes: Any) -> None:
        asked = self._asked = replace(self._asked, **changes)
        answer: Mapping[str, Any] = {"value": []}
        if asked.states:
            try:
                answer = await self._visit.api.get("/gts", **asked.options())
            except Problem as problem:
                if problem.status != 400:
                    raise
                self._words.error = problem.sentence  # a quote that is not closed yet
                return
        if asked is not self._asked or self._found.is_deleted:
            return  # somebody has typed on
        self._found.clear()
        with self._found:
            self._list(asked, answer)

    async def _search(self) -> None:
        await self.show(words=(self._words.value or "").strip(), skip=0)

    async def _choose(self, chosen: Collection[State]) -> None:
        await told(self.show)(states=frozenset(chosen), skip=0)

    def _list(self, asked: Asked, answer: Mapping[str, Any]) -> None:
        rows = answer["value"]
        if not rows:
            self._nothing(asked)
            return
        grid(COLUMNS, rows, name="Schemas")
        pager(
            asked.skip,
            len(rows),
            answer["@odata.count"],
            more="@odata.nextLink" in answer,
            on_move=lambda skip: told(self.show)(skip=skip),
            top=TOP,
        )

    def _nothing(self, asked: Asked) -> None:
        if not asked.states:
            empty("Choose at least one state.")
        elif asked.words:
            empty("No schema in these states has all of these words. Try fewer words, or other states.")
        elif self._visit.may(Role.DEVELOPER):
            empty(
                "There is no schema in these states. A schema says what a query returns.", "New schema", "/schemas/new"
            )
        else:
            empty("There is no schema in these states. A developer can make one.")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
