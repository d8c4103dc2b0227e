"""All registered queries: found by words and states, a page at a time."""

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
_SELECT = "id,name,description,state,version,datasets,parameters,updated_at"


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


def reads(datasets: list[dict[str, Any]]) -> str:
    """The names of the datasets that a query reads, each with its version where the SQL fixes one."""
    told = (f"{each['schema_name']}.{each['table_name']}{_version(each.get('version'))}" for each in datasets)
    return ", ".join(dict.fromkeys(told)) or "no dataset"


COLUMNS = (
    Column("name", "Name", link=lambda row: f"/queries/{part(row['id'])}"),
    Column("state", "State", states.called),
    Column("datasets", "Reads", lambda datasets: shown.cell(reads(datasets))),
    Column("parameters", "Parameters", lambda each: ", ".join(f"${one['name']}" for one in each) or "–"),
    Column("version", "Version", right=True),
    Column("updated_at", "Changed", shown.ago),
    Column("description", "Description", lambda text: shown.cell(text or "")),
)


@page("/queries", "Queries")
async def queries(visit: Visit) -> None:
    with heading("Queries"):
        ui.button(_new(visit), icon="add", on_click=lambda: ui.navigate.to("/queries/new")).props("unelevated no-caps")
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
                answer = await self._visit.api.get("/queries", **asked.options())
            except Problem as problem:
                if problem.status != 400:
                    raise
                self._words.error = problem.sentence  # a quote that is not closed yet
                return
        if asked is not self._asked or self._found.is_deleted:
            return  # somebody has typed on
        self._words.error = None
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
        grid(COLUMNS, rows, name="Queries")
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
            empty("No query in these states has all of these words. Try fewer words, or other states.")
        else:
            empty(
                "There is no query in these states. A query is SQL over datasets, whose rows keep what a schema promises.",
                _new(self._visit),
                "/queries/new",
            )


def _new(visit: Visit) -> str:
    return "New query" if visit.may(Role.DEVELOPER) else "Try SQL"


def _version(number: int | None) -> str:
    return "" if number is None else f" v{number}"
