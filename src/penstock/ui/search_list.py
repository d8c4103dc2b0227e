"""A list that somebody searches: by words and what else there is to choose, a page at a time; the last question counts.

The page's address tells what is asked, so that who comes back finds the same list.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from nicegui import ui

from penstock.core.registry.lifecycle import State
from penstock.ui.api_client import Problem, quoted
from penstock.ui.layout import Visit, told
from penstock.ui.data_table import pager
from penstock.ui.lifecycle_badges import USUAL

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Asked:
    """What is asked for; by words alone."""

    select: str
    words: str = ""
    page: int = 1

    def options(self) -> dict[str, Any] | None:
        """None: nothing can be found."""
        return {"search": self.words or None, "select": self.select}

    def address(self) -> dict[str, str]:
        """What the page's address tells of it: what is not as it is for everybody who comes anew."""
        page = {"page": str(self.page)} if self.page > 1 else {}
        return {"words": self.words, **page} if self.words else page


@dataclass(frozen=True)
class AskedByState(Asked):
    states: frozenset[State] = USUAL

    def options(self) -> dict[str, Any] | None:
        among = ", ".join(quoted(state) for state in State if state in self.states)
        found = {"filter": f"state in ({among})", "orderby": "updated_at desc, name"}
        return {**(super().options() or {}), **found} if self.states else None

    def address(self) -> dict[str, str]:
        chosen = ",".join(state for state in State if state in self.states)
        return super().address() | ({"states": chosen} if self.states != USUAL else {})


def number(page: str) -> int:
    """The page that an address tells."""
    return max(int(page), 1) if page.isascii() and page.isdigit() and len(page) < 7 else 1


A = TypeVar("A", bound=Asked)


class Searched(Generic[A]):
    """The list at `path` of the pages, of what is at `source` of the API. `fill` shows what was found.

    Whatever else there is to choose goes into `bar`, and changes what is asked by `show`. `known`: rows with what else
    must be known of them.
    """

    def __init__(
        self,
        visit: Visit,
        path: str,
        source: str,
        asked: A,
        fill: Callable[[A, Rows], None],
        *,
        top: int,
        label: str,
        known: Callable[[Rows], Awaitable[Rows]] | None = None,
    ) -> None:
        self._api, self._path, self._source, self._asked = visit.api, path, source, asked
        self._fill, self._top, self._known = fill, top, known
        with ui.row().classes("w-full items-center gap-4") as self.bar:
            self._words = ui.input(label, value=asked.words, on_change=told(self._search))
            self._words.props("outlined dense clearable debounce=300 type=search").classes("w-full max-w-sm")
        self._found = ui.column().classes("w-full gap-3")

    async def show(self, **changes: Any) -> None:
        asked = self._asked = replace(self._asked, **({"page": 1, **changes} if changes else {}))
        answer: Mapping[str, Any] = {"value": []}
        if (options := asked.options()) is not None:
            skip = (asked.page - 1) * self._top
            try:
                answer = await self._api.get(self._source, **options, top=self._top, skip=skip, count=True)
            except Problem as problem:
                if problem.status != 400:
                    raise
                self._words.error = problem.sentence  # a quote that is not closed yet
                return
        rows = await self._known(answer["value"]) if self._known else answer["value"]
        if asked is not self._asked or self._found.is_deleted:
            return  # somebody has typed on
        if not rows and asked.page > 1:  # there were more of them once
            await self.show(page=1)
            return
        self._words.error = None
        self._tell(asked)
        self._found.clear()
        with self._found:
            self._list(asked, rows, answer)

    async def _search(self) -> None:
        await self.show(words=(self._words.value or "").strip())

    def _tell(self, asked: A) -> None:
        """The address changes, and the page stays. Texts are in it as addresses have them, and so they are no script."""
        with self._found:
            ui.navigate.history.replace(f"/ui{self._path}?{urlencode(asked.address(), quote_via=quote)}".rstrip("?"))

    def _list(self, asked: A, rows: Rows, answer: Mapping[str, Any]) -> None:
        self._fill(asked, rows)
        if rows:
            pager(
                (asked.page - 1) * self._top,
                len(rows),
                answer["@odata.count"],
                more="@odata.nextLink" in answer,
                on_move=lambda skip: told(self.show)(page=skip // self._top + 1),
                top=self._top,
            )
