"""A list that somebody searches: by words and what else there is to choose, a page at a time; the last question counts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from nicegui import ui

from penstock.core.lifecycle import State
from penstock.ui.api import Problem, quoted
from penstock.ui.frame import Visit, told
from penstock.ui.grid import pager
from penstock.ui.states import USUAL

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Asked:
    """What is asked for; by words alone."""

    select: str
    words: str = ""
    skip: int = 0

    def options(self) -> dict[str, Any] | None:
        """None: nothing can be found."""
        return {"search": self.words or None, "select": self.select}


@dataclass(frozen=True)
class AskedByState(Asked):
    states: frozenset[State] = USUAL

    def options(self) -> dict[str, Any] | None:
        among = ", ".join(quoted(state) for state in State if state in self.states)
        found = {"filter": f"state in ({among})", "orderby": "updated_at desc, name"}
        return {**(super().options() or {}), **found} if self.states else None


A = TypeVar("A", bound=Asked)


class Searched(Generic[A]):
    """`fill` shows what was found. Whatever else there is to choose goes into `bar`, and changes what is asked by `show`."""

    def __init__(
        self, visit: Visit, path: str, asked: A, fill: Callable[[A, Rows], None], *, top: int, label: str
    ) -> None:
        self._api, self._path, self._asked, self._fill, self._top = visit.api, path, asked, fill, top
        with ui.row().classes("w-full items-center gap-4") as self.bar:
            self._words = ui.input(label, on_change=told(self._search))
            self._words.props("outlined dense clearable debounce=300 type=search").classes("w-full max-w-sm")
        self._found = ui.column().classes("w-full gap-3")

    async def show(self, **changes: Any) -> None:
        asked = self._asked = replace(self._asked, **{"skip": 0, **changes})
        answer: Mapping[str, Any] = {"value": []}
        if (options := asked.options()) is not None:
            try:
                answer = await self._api.get(self._path, **options, top=self._top, skip=asked.skip, count=True)
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
        await self.show(words=(self._words.value or "").strip())

    def _list(self, asked: A, answer: Mapping[str, Any]) -> None:
        rows = answer["value"]
        self._fill(asked, rows)
        if rows:
            pager(
                asked.skip,
                len(rows),
                answer["@odata.count"],
                more="@odata.nextLink" in answer,
                on_move=lambda skip: told(self.show)(skip=skip),
                top=self._top,
            )
