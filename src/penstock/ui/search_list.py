"""Searchable list: search words and filters, one page of rows at a time. The URL of the page holds the search.

The user therefore finds the same list after going back in the browser.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from nicegui import ui

from penstock.core.registry.lifecycle import LifecycleState
from penstock.ui.actions import show_errors
from penstock.ui.api_client import ApiError, odata_string
from penstock.ui.data_table import show_pager
from penstock.ui.lifecycle_badges import DEFAULT_STATES
from penstock.ui.session import PageSession

SearchRows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class SearchParams:
    """A search by words."""

    select: str
    words: str = ""
    page: int = 1

    def odata_options(self) -> dict[str, Any] | None:
        """Return the options of the API request, or None if the search cannot match anything."""
        return {"search": self.words or None, "select": self.select}

    def query_params(self) -> dict[str, str]:
        """Return the parameters of the page's URL: those that differ from the defaults."""
        page = {"page": str(self.page)} if self.page > 1 else {}
        return {"words": self.words, **page} if self.words else page


@dataclass(frozen=True)
class StateSearchParams(SearchParams):
    """A search by words and lifecycle states."""

    states: frozenset[LifecycleState] = DEFAULT_STATES

    def odata_options(self) -> dict[str, Any] | None:
        states = ", ".join(odata_string(state) for state in LifecycleState if state in self.states)
        options = {"filter": f"state in ({states})", "orderby": "updated_at desc, name"}
        return {**(super().odata_options() or {}), **options} if self.states else None

    def query_params(self) -> dict[str, str]:
        states = ",".join(state for state in LifecycleState if state in self.states)
        return super().query_params() | ({"states": states} if self.states != DEFAULT_STATES else {})


def parse_page_number(text: str) -> int:
    """Parse the page number of a URL. Invalid numbers count as the first page."""
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < 7 else 1


S = TypeVar("S", bound=SearchParams)


class SearchList(Generic[S]):
    """List of the rows that a search matches.

    Further filters go into `toolbar` and call `show` with the changed parameters.

    Args:
        session: The session of the page.
        path: Path of the page.
        source: Path of the collection in the API.
        params: The initial search.
        fill: Shows the rows of a search.
        page_rows: Rows of a page.
        label: Label of the search box.
        enrich: Adds values to rows that the collection does not contain.
    """

    def __init__(
        self,
        session: PageSession,
        path: str,
        source: str,
        params: S,
        fill: Callable[[S, SearchRows], None],
        *,
        page_rows: int,
        label: str,
        enrich: Callable[[SearchRows], Awaitable[SearchRows]] | None = None,
    ) -> None:
        self._api, self._path, self._source, self._params = session.api, path, source, params
        self._fill, self._page_rows, self._enrich = fill, page_rows, enrich
        with ui.row().classes("w-full items-center gap-4") as self.toolbar:
            self._words = ui.input(label, value=params.words, on_change=show_errors(self._search))
            self._words.props("outlined dense clearable debounce=300 type=search").classes("w-full max-w-sm")
        self._results = ui.column().classes("w-full gap-3")

    async def show(self, **changes: Any) -> None:
        """Run the search with changed parameters and show its rows. A change returns to the first page."""
        params = self._params = replace(self._params, **({"page": 1, **changes} if changes else {}))
        response: Mapping[str, Any] = {"value": []}
        if (options := params.odata_options()) is not None:
            skip = (params.page - 1) * self._page_rows
            try:
                response = await self._api.get(self._source, **options, top=self._page_rows, skip=skip, count=True)
            except ApiError as error:
                if error.status != 400:
                    raise
                self._words.error = error.message  # for example a quote that is not closed yet
                return
        rows = await self._enrich(response["value"]) if self._enrich else response["value"]
        if params is not self._params or self._results.is_deleted:
            return  # a newer search is running
        if not rows and params.page > 1:  # rows were deleted since the page was opened
            await self.show(page=1)
            return
        self._words.error = None
        self._update_url(params)
        self._results.clear()
        with self._results:
            self._show_rows(params, rows, response)

    async def _search(self) -> None:
        await self.show(words=(self._words.value or "").strip())

    def _update_url(self, params: S) -> None:
        """Replace the URL without loading the page. The parameters are percent-encoded, so they cannot be script."""
        with self._results:
            query = urlencode(params.query_params(), quote_via=quote)
            ui.navigate.history.replace(f"/ui{self._path}?{query}".rstrip("?"))

    def _show_rows(self, params: S, rows: SearchRows, response: Mapping[str, Any]) -> None:
        self._fill(params, rows)
        if rows:
            show_pager(
                (params.page - 1) * self._page_rows,
                len(rows),
                response["@odata.count"],
                has_more=(params.page - 1) * self._page_rows + len(rows) < response["@odata.count"],
                on_move=lambda skip: show_errors(self.show)(page=skip // self._page_rows + 1),
                page_rows=self._page_rows,
            )
