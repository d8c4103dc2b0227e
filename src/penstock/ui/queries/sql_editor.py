"""Where SQL is written and tried: with datasets at hand, values for its parameters, rows, and what a schema says of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.errors import Invalid
from penstock.ui import formatting as shown
from penstock.ui import code_editor
from penstock.ui.api_client import Problem
from penstock.ui.layout import Visit, once, told
from penstock.ui.queries import result_view as results
from penstock.ui.queries import sql_text as sql
from penstock.ui.queries import validation_report as verdict
from penstock.ui.queries.dataset_browser import palette
from penstock.ui.queries.schema_picker import Promise
from penstock.ui.queries.parameter_form import NEEDED, Entry, Form, declared, declared_as, tried

_ROWS = "grid-template-rows: auto 1fr"  # rows begin under the editor, however high that is what stands beside both
_BRING = """
requestAnimationFrame(() => {
  const place = getHtmlElement(%d), {top} = place.getBoundingClientRect();
  if (top < 0 || top > innerHeight - 200) place.scrollIntoView();
})
"""
_HINT = "Ctrl+Enter previews. Tab indents; Escape, then Tab leaves the editor."


class Workbench:
    """One statement in front of somebody."""

    def __init__(self, visit: Visit, text: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        self._visit = visit
        self._on_edit: Callable[[], None] = lambda: None
        self._entries = {each["name"].lower(): declared_as(each) for each in parameters}
        self._names: list[str] = []
        preview = once(self.preview)
        with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-4 gap-4").style(_ROWS):
            with ui.column().classes("lg:col-span-3 min-w-0 gap-2"):
                self._editor = code_editor.code_editor(text, "SQL", name="SQL", on_change=self._edited)
                self._editor.style("height: min(40vh, 15rem)").map_key("Mod-Enter", preview)
                self._parameters = ui.column().classes("w-full gap-2")
                with ui.row().classes("w-full items-center gap-3 flex-wrap"):
                    self._button = ui.button("Preview", icon="play_arrow", on_click=preview)
                    self._button.props("unelevated no-caps")
                    self._state = ui.label("").props("role=status").classes("break-anywhere")
                    ui.label(_HINT).classes("text-sm quiet max-md:hidden")
            self._side = ui.column().classes("lg:row-span-2 min-w-0 gap-2")
            with ui.column().classes("lg:col-span-3 min-w-0 gap-2").style("scroll-margin-top: 4rem") as self._results:
                self._wrong = ui.column().classes("w-full gap-2")
                self._verdict = ui.column().classes("w-full gap-0")
                self._outcome = ui.column().classes("w-full gap-2")
        self.promise = Promise(visit, self._statement, self._judge)
        self._rows: list[Any] | None = None  # that came last, as far as they can be checked
        self._ask_for_values()

    async def fill(self, schema_id: str | None = None) -> None:
        """What the service has to be asked for."""
        with self._side:
            await palette(self._visit, self._editor)
        await self.promise.look()
        if schema_id:
            await self.promise.take(schema_id)

    def when_edited(self, hear: Callable[[], None]) -> None:
        self._on_edit = hear

    @property
    def text(self) -> str:
        return self._editor.value or ""

    def declared(self) -> list[dict[str, Any]]:
        return declared(self._used())

    async def preview(self) -> None:
        """The first rows of the statement as it stands."""
        statement = self._statement()
        if statement is None:
            return
        self._tell("Running…", busy=True)
        came = ""
        try:
            answer = (await self._visit.api.ask("POST", "/queries/preview", statement, exact=True)).body
        except Problem as problem:
            if problem.status == 401:
                raise
            self._rows = None
            self.refuse(problem)
        else:
            if not self._outcome.is_deleted:
                came = said(answer)
                self._show(answer)
                await self._check()
        finally:
            self._tell(came)

    def refuse(self, problem: Problem) -> None:
        """Say what the service says against the statement, at the place that it speaks of."""
        if self._outcome.is_deleted:
            return
        self._outcome.clear()
        self._verdict.clear()
        self._state.set_text("")
        self._bring()
        if problem.code in verdict.MISMATCH:
            with self._verdict:
                verdict.show(verdict.of_refusal(problem, self.promise.name))
            return
        position = problem.told.get("position")
        at = f" ({sql.place(self.text, position)})" if isinstance(position, int) else ""
        for name in problem.told.get("parameters") or ():
            self._form.complain(name, NEEDED)
        with self._wrong:
            results.refused(f"{problem.sentence}{at}")

    def complain(self, place: Sequence[str], sentence: str) -> ui.element:
        """Something is wrong with a parameter that was declared, or else with the SQL; where it is said."""
        used = self._used()
        match place:
            case ["parameters", number, *member] if number.isdecimal() and int(number) < len(used):
                box = self._form.complain(used[int(number)].name, sentence, *member[:1])
                if box is not None:
                    return box
        with self._wrong:
            results.refused(sentence)
        return self._editor

    def forgive(self) -> None:
        self._wrong.clear()
        self._form.forgive()

    def _statement(self) -> dict[str, Any] | None:
        """As the API takes it; None: a value is none of its type, which is said where it stands."""
        self.forgive()
        try:
            given = tried(self._used())
        except Invalid as refusal:
            for each in refusal.context["errors"]:
                self._form.complain(str(each["pointer"]).removeprefix("/"), str(each["message"]))
            return None
        return {"sql": self.text, **({"parameters": given} if given else {})}

    def _used(self) -> list[Entry]:
        return [self._entries[name.lower()] for name in self._names]

    def _edited(self) -> None:
        if sql.placeholders(self.text) != self._names:
            self._ask_for_values()
        self._on_edit()

    def _ask_for_values(self) -> None:
        self._names = sql.placeholders(self.text)
        for name in self._names:
            self._entries.setdefault(name.lower(), Entry(name)).name = name
        self._parameters.clear()
        with self._parameters:
            if self._names:
                ui.label("Parameters").classes("font-medium").props('role=heading aria-level="2"')
            self._form = Form(
                self._used(), declaring=self._visit.may(Role.DEVELOPER), on_change=lambda: self._on_edit()
            )

    def _show(self, answer: Mapping[str, Any]) -> None:
        self._rows = verdict.sendable(answer["value"])
        self._outcome.clear()
        with self._outcome:
            results.show(results.previewed(answer), "Preview")
        self._bring()

    async def _check(self) -> None:
        if self._rows is None or self._verdict.is_deleted:
            return
        id, rows = self.promise.id, self._rows
        found = await verdict.of_rows(self._visit.api, id, self.promise.name, rows) if id else None
        if id != self.promise.id or rows is not self._rows or self._verdict.is_deleted:
            return  # it is about something else by now
        self._verdict.clear()
        if found:
            with self._verdict:
                verdict.show(found)

    async def _judge(self) -> None:
        self._on_edit()
        await told(self._check)()

    def _tell(self, words: str, *, busy: bool = False) -> None:
        if not self._button.is_deleted:
            self._button.set_enabled(not busy)
            self._state.set_text(words)

    def _bring(self) -> None:
        """What came is to be seen, whichever button it came of."""
        ui.run_javascript(_BRING % self._results.id)


def said(answer: Mapping[str, Any]) -> str:
    """How many rows, of which versions."""
    many = shown.count(len(answer["value"]), "row")
    first = f"The first {many}; there are more" if answer.get("more") else many
    read = ", ".join(f"{name} v{version}" for name, version in answer["@penstock.versions"].items())
    return f"{first} · read {read}" if read else first
