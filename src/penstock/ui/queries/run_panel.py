"""Run a registered query: with values, a filter and an order, a page at a time, and on versions that are told."""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from nicegui import ui

from penstock.ui import formatting as shown
from penstock.ui.api_client import Api, Problem, part
from penstock.ui.layout import Visit, once, say
from penstock.ui.data_table import pager
from penstock.ui.queries import result_view as results
from penstock.ui.queries import validation_report as verdict
from penstock.ui.queries.parameter_form import Form, declared_as

TOP = 100  # rows on a page
MOST_ROWS, MOST_BYTES = 100_000, 64 << 20  # of a download; more goes through the API
_FORMATS = {"Parquet": ("application/vnd.apache.parquet", "parquet"), "Arrow": ("application/vnd.apache.arrow.stream", "arrows")}  # fmt: skip


def address(id: str, values: Mapping[str, str], options: Mapping[str, str]) -> str:
    """Where the rows are. A parameter may have the name of an option: those begin with a $."""
    pairs = [(name, value) for name, value in values.items() if value]
    pairs += [(f"${name}", value) for name, value in options.items() if value]
    query = urlencode(pairs, quote_via=quote)
    return f"/queries/{part(id)}/results" + (f"?{query}" if query else "")


def file_name(name: str, ending: str) -> str:
    """A name that every system can keep."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60]
    return f"{plain or 'rows'}.{ending}"


class Running:
    """A query that can be run, and what came of it."""

    def __init__(self, visit: Visit, query: Mapping[str, Any], schema: Mapping[str, Any] | None) -> None:
        self._api: Api = visit.api
        self._query = query
        self._fields: Sequence[Mapping[str, Any]] = schema["fields"] if schema else ()
        self._schema = str(schema["name"]) if schema else "its schema"
        self._before: list[str] = []  # the addresses of the pages before this one
        self._first: list[int] = [0]  # of each page, which row it begins with
        self._entries = [declared_as(each) for each in query["parameters"]]
        self._form = Form(self._entries, declaring=False, on_change=lambda: None)
        self._run = once(self.run)
        with ui.row().classes("w-full items-start gap-2 flex-wrap"):
            self._filter = self._option("Filter", _like(self._fields, "{} ne null"))
            self._order = self._option("Order by", _like(self._fields, "{} desc"))
        with ui.row().classes("w-full items-center gap-3 flex-wrap"):
            self._button = ui.button("Run", icon="play_arrow", on_click=self._run).props("unelevated no-caps")
            for name in _FORMATS:
                ui.button(
                    f"Download {name}", icon="download", on_click=once(lambda name=name: self._download(name))
                ).props("flat no-caps")
            self._state = ui.label("").props("role=status")
        self._outcome = ui.column().classes("w-full gap-2")

    async def run(self) -> None:
        self._before, self._first = [], [0]
        await self._open(self._address(top=str(TOP)))

    def _address(self, **options: str) -> str:
        options |= {"filter": self._filter.value.strip(), "orderby": self._order.value.strip()}
        return address(self._query["id"], {each.name: each.value for each in self._entries}, options)

    async def _open(self, at: str) -> None:
        self._form.forgive()
        self._filter.error = self._order.error = None
        self._busy("Running…")
        try:
            answer = await self._api.rows(at)
        except Problem as problem:
            if problem.status == 401:
                raise
            self._refuse(problem)
        else:
            self._show(at, answer)
        finally:
            self._busy("")

    def _show(self, at: str, answer: Mapping[str, Any]) -> None:
        if self._outcome.is_deleted:
            return
        rows, further = answer["value"], answer.get("@odata.nextLink")
        first = self._first[len(self._before)]

        async def move(skip: int) -> None:
            if skip > first:
                self._before.append(at)
                self._first[len(self._before) :] = [first + len(rows)]
                await self._open(str(further))
            else:
                await self._open(self._before.pop())

        self._outcome.clear()
        with self._outcome:
            verdict.show(verdict.Verdict(self._schema, None if rows else 0, 0, ()))
            read = ", ".join(f"{name} v{version}" for name, version in answer["@penstock.versions"].items())
            ui.label(f"{shown.count(len(rows), 'row')} on this page · read {read or 'no dataset'}").classes(
                "text-sm quiet"
            )
            results.show(results.promised(answer, self._fields), self._query["name"], paged=False)
            pager(first, len(rows), None, more=further is not None, on_move=once(move), top=TOP)

    def _refuse(self, problem: Problem) -> None:
        if self._outcome.is_deleted:
            return
        self._outcome.clear()
        with self._outcome:
            if problem.code in verdict.MISMATCH:
                verdict.show(verdict.of_refusal(problem, self._schema))
            elif problem.told.get("option") in ("$filter", "$orderby"):
                at = self._filter if problem.told["option"] == "$filter" else self._order
                at.error = problem.sentence
            elif not [each for each in problem.errors if self._at_value(each)]:
                results.refused(problem.sentence)

    def _at_value(self, error: Mapping[str, Any]) -> bool:
        name = str(error.get("pointer", "")).removeprefix("/")
        return self._form.complain(name, str(error.get("message", ""))) is not None

    async def _download(self, name: str) -> None:
        accept, ending = _FORMATS[name]
        self._busy("Preparing the file…")
        try:
            counted = await self._api.rows(self._address(top="0", count="true"))
            if counted["@odata.count"] > MOST_ROWS:
                many = shown.count(counted["@odata.count"], "row")
                say(f"This would be {many}. Here {MOST_ROWS:,} can be had; ask the API for all of them.", bad=True)
                return
            content = (await self._api.ask("GET", self._address(), headers={"accept": accept})).body
            if len(content) > MOST_BYTES:
                say(f"This would be {shown.size(len(content))}; ask the API for it.", bad=True)
                return
            ui.download.content(content, file_name(self._query["name"], ending), accept)
        finally:
            self._busy("")

    def _busy(self, words: str) -> None:
        if not self._button.is_deleted:
            self._button.set_enabled(not words)
            self._state.set_text(words)

    def _option(self, label: str, like: str) -> ui.input:
        box = ui.input(label).props("outlined dense hide-bottom-space").classes("flex-1 min-w-56")
        box.props["hint"] = f"OData, such as {like}" if like else "OData"
        box.on("keydown.enter", self._run)
        return box


def _like(fields: Sequence[Mapping[str, Any]], pattern: str) -> str:
    return pattern.format(fields[0]["name"]) if fields else ""
