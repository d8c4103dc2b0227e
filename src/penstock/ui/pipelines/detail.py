"""One pipeline: what it says, whether it can run, what its runs did."""

import asyncio
from collections.abc import Callable
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting as shown
from penstock.ui.api_client import Problem, part
from penstock.ui.layout import Visit, confirmed, empty, heading, leave, once, page, say, subheading
from penstock.ui.pipelines import definition
from penstock.ui.pipelines.editor import READ_ONLY, Bench
from penstock.ui.pipelines.run_list import Starter, Table

_CHANGED = ("PIPELINE_CHANGED", "PRECONDITION_FAILED")
_SIGNS = {"-": "bg-red-500/20", "+": "bg-green-500/20", " ": "quiet", "…": "quiet"}
_MOST_LINES = 500  # of differences that are shown


@page("/pipelines/{id}", "Pipeline")
async def pipeline(visit: Visit, id: str) -> None:
    stored = await visit.api.get(f"/pipelines/{part(id)}")
    actions = heading(stored["name"], above=("Pipelines", "/pipelines"))
    about = ui.label(_about(stored)).classes("quiet")
    writable = visit.may(Role.DEVELOPER)
    if not writable:
        ui.label(READ_ONLY).classes("quiet")
    subheading("Definition")
    bench = Bench(visit, definition.text(stored), writable=writable)
    one = _One(visit, bench, stored, about)
    if writable:
        with actions:
            ui.button("Delete", icon="delete", on_click=once(one.delete)).props("flat no-caps color=negative")
            ui.button("Save", icon="save", on_click=once(one.save)).props("outline no-caps")
            ui.button("Run", icon="play_arrow", on_click=once(one.run)).props("unelevated no-caps")
    subheading("Past runs")
    nothing = "It has not run yet. Run it, and see here how many rows and how much time each run took."
    past = Table(visit, with_charts=True, nothing=lambda: empty(nothing if writable else "It has not run yet."))
    await past.search(f"pipeline_id eq {stored['id']}")
    await bench.open()


class _One:
    """What can be done with a pipeline that is there. `_stored` is what the person has seen of it last."""

    def __init__(self, visit: Visit, bench: Bench, stored: dict[str, Any], about: ui.label) -> None:
        self._visit, self._bench, self._about = visit, bench, about
        self._path, self._stored = f"/pipelines/{stored['id']}", stored
        self._starter = Starter(visit, stored["id"])

    async def save(self) -> None:
        name = self._stored["name"]
        await self._saved()
        if self._stored["name"] != name:
            ui.navigate.reload()  # for its heading

    async def run(self) -> None:
        if self._bench.is_unsaved:
            question = "There are changes that are not saved, and what is saved is what runs. Save them and run?"
            if not (await confirmed(question, "Save and run") and await self._saved()):
                return
        await self._starter.start()

    async def delete(self) -> None:
        name = self._stored["name"]
        if await confirmed(f"Delete the pipeline {name}? What its runs did stays on record.", "Delete", danger=True):
            await self._visit.api.delete(self._path, if_match=f'"{self._stored["version"]}"')
            await leave("/pipelines")

    async def _saved(self) -> bool:
        """Save what is written. Not if somebody else was faster, unless the person says so."""
        text, version = self._bench.text, self._stored["version"]
        value = await self._bench.value()
        while True:
            try:
                saved = await self._put(value, version)
            except Problem as problem:
                if problem.code not in _CHANGED:
                    raise
            else:
                await self._know(saved, text)
                say(f"Saved as version {saved['version']}.")
                return True
            theirs = await self._visit.api.get(self._path)
            match await _choice(definition.text(theirs), definition.settled(value), theirs["version"]):
                case "mine":
                    version = theirs["version"]
                case "theirs":
                    await self._know(theirs, self._bench.text)
                    say(f"This is version {theirs['version']}, as somebody else saved it.")
                    return False
                case _:
                    return False

    async def _put(self, value: Any, version: int) -> dict[str, Any]:
        sent = {**value, "version": version} if isinstance(value, dict) else value
        put: dict[str, Any] = await self._visit.api.put(self._path, sent)
        return put

    async def _know(self, stored: dict[str, Any], instead_of: str) -> None:
        self._stored = stored
        self._about.text = _about(stored)
        self._bench.settle(definition.text(stored), instead_of)
        await self._bench.check()


def _about(stored: dict[str, Any]) -> str:
    return f"Version {stored['version']} · changed {shown.ago(stored['updated_at'])}"


async def _choice(theirs: str, mine: str, version: int) -> str | None:
    """Somebody else has saved meanwhile: show how both differ, and let the person choose."""
    lines = await asyncio.to_thread(definition.differences, theirs, mine)  # of long texts it takes its time
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl"):
        subheading("Somebody else has changed this pipeline")
        ui.label(f"It is at version {version} by now. Lines with − are in it and not in yours; those with + are yours.")
        with (
            ui.element("div")
            .classes("w-full overflow-auto max-h-96 p-2 rounded border border-gray-500/50")
            .props('tabindex=0 role=region aria-label="Differences"')
        ):
            for sign, line in lines[:_MOST_LINES]:
                ui.label(f"{sign} {line}").classes("font-mono text-sm whitespace-pre").classes(_SIGNS[sign])
            if more := len(lines[_MOST_LINES:]):
                ui.label(f"And {shown.count(more, 'line')} more.").classes("quiet")
        with ui.row().classes("w-full justify-end"):
            _answer(dialog, "Keep editing", None, "flat")
            _answer(dialog, "Take theirs", "theirs", "outline")
            _answer(dialog, "Overwrite with mine", "mine", "unelevated color=negative")
    try:
        chosen: str | None = await dialog
        return chosen
    finally:
        dialog.delete()


def _answer(dialog: ui.dialog, label: str, answer: str | None, looks: str) -> None:
    choose: Callable[[], None] = lambda: dialog.submit(answer)  # noqa: E731
    ui.button(label, on_click=choose, color=None).props(f"no-caps {looks}")
