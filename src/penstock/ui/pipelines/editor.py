"""Where a pipeline is written: checked while it is typed, with each fault at its line and the datasets at hand."""

import asyncio
from typing import Any

from nicegui import ui

from penstock.ui import code_editor
from penstock.ui.api_client import Problem
from penstock.ui.layout import Visit, named, say, subheading, told, unsaved
from penstock.ui.pipelines import dataset_picker as shelf
from penstock.ui.pipelines import definition
from penstock.ui.pipelines.definition import Dataset, Fault

_PAUSE = 0.4  # seconds without a keystroke, before what is written is checked
READ_ONLY = "Your role may look at pipelines, and not change or run them."
_NO_LIST = "There is no list of operations to add to; mend the JSON first."


class Bench:
    """One pipeline in front of somebody. What it was when it was saved last is known."""

    def __init__(self, visit: Visit, text: str, *, writable: bool) -> None:
        self._visit, self._writable = visit, writable
        self._saved = text
        self._guarded = False
        self._names: dict[str, str] = {}
        self._pause: ui.timer | None = None
        with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-3 gap-4"):
            with ui.column().classes("lg:col-span-2 min-w-0 gap-2"):
                self._editor = code_editor.code_editor(
                    text, "JSON", name="Pipeline as JSON", on_change=self._changed, read_only=not writable
                )
                with ui.row().classes("w-full justify-between text-xs quiet"):
                    ui.label("Escape, then Tab, leaves the editor." if writable else "")
                    self._state = ui.label().props("role=status aria-live=polite")
            with ui.column().classes("min-w-0 gap-2"):
                subheading("Check")
                self._verdict = ui.label("Checking…").props("role=status aria-live=polite")
                self._faults = ui.column().classes("w-full gap-2")
                self._side = ui.column().classes("w-full gap-2")

    async def open(self) -> None:
        """What needs the service."""
        if self._writable:
            with self._side:
                subheading("Datasets")
                await shelf.shelf(
                    self._visit,
                    {
                        "Insert id": lambda dataset: code_editor.insert(self._editor, dataset["id"]),
                        "Add append": lambda dataset: self._add("append", dataset),
                        "Add merge": lambda dataset: self._add("merge", dataset),
                    },
                )
        await self.check()

    @property
    def text(self) -> str:
        return self._editor.value or ""

    @property
    def is_unsaved(self) -> bool:
        return self._writable and self.text != self._saved

    async def value(self) -> Any:
        """What is written, or a problem: text that is no JSON is not sent."""
        read = await asyncio.to_thread(definition.read, self.text)
        if isinstance(read, Fault):
            raise Problem(400, {"detail": read.sentence})
        return read.value

    def settle(self, text: str, instead_of: str) -> None:
        """This is what the service has now. It is shown, unless something else has been written meanwhile."""
        self._saved = text
        if self.text == instead_of:
            self._editor.value = text
        self._guard()

    async def check(self) -> None:
        """Say what is wrong with what is written, unless more has been written meanwhile."""
        text = self.text
        faults = await self._judged(text)
        ids = definition.ids(text)
        self._names |= await shelf.names(self._visit.api, {id for id, _ in ids} - self._names.keys())
        if text == self.text:
            self.show(faults)
            wrong: dict[int, str] = {}
            for each in faults:
                if each.line:
                    wrong[each.line] = f"{wrong[each.line]}\n{each.sentence}" if each.line in wrong else each.sentence
            hints = [(end, self._names[id]) for id, end in ids if id in self._names]
            code_editor.mark(self._editor, wrong, hints)

    def show(self, faults: list[Fault]) -> None:
        many = "1 thing is wrong." if len(faults) == 1 else f"{len(faults)} things are wrong."
        self._verdict.text = many if faults else "Nothing is wrong: it can run."
        self._faults.clear()
        with self._faults:
            for fault in faults:
                self._fault(fault)

    def _changed(self) -> None:
        self._guard()
        if self._pause:
            self._pause.cancel()
        with self._side:
            self._pause = ui.timer(_PAUSE, told(self.check), once=True)

    def _guard(self) -> None:
        if self._guarded != self.is_unsaved:
            self._guarded = self.is_unsaved
            unsaved(self._guarded)
            self._state.text = "Changes are not saved" if self._guarded else ""

    async def _judged(self, text: str) -> list[Fault]:
        read = await asyncio.to_thread(definition.read, text)  # a long text takes its time
        if isinstance(read, Fault):
            return [read]
        try:
            answer = await self._visit.api.ask(
                "POST", "/pipelines/validate", content=text.encode(), headers={"content_type": "application/json"}
            )
        except Problem as problem:
            if problem.status == 401:  # which is no fault of what is written
                raise
            return [Fault(problem.sentence)]
        return definition.placed(read, answer.body["errors"])

    def _fault(self, fault: Fault) -> None:
        with ui.card().classes("w-full p-3 gap-1").props("flat bordered"):
            if (line := fault.line) is not None:
                go = ui.button(fault.place, icon="error_outline", color=None)
                go.on_click(lambda: code_editor.go_to(self._editor, line))
                go.props("flat dense no-caps align=left").classes("break-anywhere -ml-1")
                named(go, f"Go to line {line}, {fault.pointer}" if fault.pointer else f"Go to line {line}")
            ui.label(fault.sentence).classes("break-anywhere")
            for name, value in fault.facts:
                ui.label(f"{name}: {value}").classes("text-sm quiet break-anywhere")

    def _add(self, kind: str, dataset: Dataset) -> None:
        read = definition.read(self.text)
        more = None if isinstance(read, Fault) else definition.extended(read.value, definition.operation(kind, dataset))
        if more is None:
            say(_NO_LIST, bad=True)
        else:
            self._editor.value = definition.written(more)
