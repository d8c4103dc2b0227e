"""Pipeline page: definition, validation and runs of one pipeline."""

import asyncio
from collections.abc import Callable
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting
from penstock.ui.actions import single_flight
from penstock.ui.api_client import ApiError, path_segment
from penstock.ui.deletion_notice import Deletion, announce_deletion
from penstock.ui.dialogs import confirm, leave_page
from penstock.ui.elements import empty_state, heading, notify, subheading
from penstock.ui.layout import page
from penstock.ui.pipelines import definition
from penstock.ui.pipelines.editor import READ_ONLY_TEXT, PipelineEditor
from penstock.ui.pipelines.run_list import RunStarter, RunTable
from penstock.ui.session import PageSession

_CHANGED_CODES = ("PIPELINE_CHANGED", "PRECONDITION_FAILED")
_SIGN_CLASSES = {"-": "bg-red-500/20", "+": "bg-green-500/20", " ": "quiet", "…": "quiet"}
_MAX_DIFF_LINES = 500


@page("/pipelines/{id}", "Pipeline")
async def pipeline(session: PageSession, id: str) -> None:
    stored = await session.api.get(f"/pipelines/{path_segment(id)}")
    actions = heading(stored["name"], parent=("Pipelines", "/pipelines"))
    about = ui.label(_describe(stored)).classes("quiet")
    writable = session.has_role(Role.DEVELOPER)
    if not writable:
        ui.label(READ_ONLY_TEXT).classes("quiet")
    subheading("Definition")
    editor = PipelineEditor(session, definition.format_pipeline(stored), writable=writable)
    controller = _PipelineActions(session, editor, stored, about)
    if writable:
        with actions:
            ui.button("Delete", icon="delete", on_click=single_flight(controller.delete)).props(
                "flat no-caps color=negative"
            )
            ui.button("Save", icon="save", on_click=single_flight(controller.save)).props("outline no-caps")
            ui.button("Run", icon="play_arrow", on_click=single_flight(controller.run)).props("unelevated no-caps")
    subheading("Runs")
    empty_text = "No runs yet. Run the pipeline to see row counts and durations here."
    runs = RunTable(
        session, with_charts=True, show_empty=lambda: empty_state(empty_text if writable else "No runs yet.")
    )
    await runs.search(f"pipeline_id eq {stored['id']}")
    await editor.load()


class _PipelineActions:
    """Actions on a stored pipeline. `_stored` is the revision that the user has seen last."""

    def __init__(self, session: PageSession, editor: PipelineEditor, stored: dict[str, Any], about: ui.label) -> None:
        self._session, self._editor, self._about = session, editor, about
        self._path, self._stored = f"/pipelines/{stored['id']}", stored
        self._starter = RunStarter(session, stored["id"])

    async def save(self) -> None:
        name = self._stored["name"]
        await self._try_save()
        if self._stored["name"] != name:
            ui.navigate.reload()  # for its heading

    async def run(self) -> None:
        if self._editor.is_unsaved:
            question = "A run uses the saved pipeline. Save your changes and run?"
            if not (await confirm(question, "Save and run") and await self._try_save()):
                return
        await self._starter.start()

    async def delete(self) -> None:
        name = self._stored["name"]
        question = f"Delete the pipeline “{name}”? Its runs stay in the run history, and the deletion can be undone."
        if await confirm(question, "Delete", destructive=True):
            await self._session.api.delete(self._path, if_match=f'"{self._stored["version"]}"')
            announce_deletion(Deletion(f"pipeline {name}", self._path, self._path))
            await leave_page("/pipelines")

    async def _try_save(self) -> bool:
        """Save the text. If another user has saved meanwhile, ask whether to overwrite.

        Returns:
            True if the text was saved.
        """
        text, version = self._editor.text, self._stored["version"]
        value = await self._editor.value()
        while True:
            try:
                saved = await self._put(value, version)
            except ApiError as error:
                if error.code not in _CHANGED_CODES:
                    raise
            else:
                await self._accept_stored(saved, text)
                notify(f"Saved as version {saved['version']}.")
                return True
            stored = await self._session.api.get(self._path)
            match await _ask_conflict(
                definition.format_pipeline(stored), definition.format_as_stored(value), stored["version"]
            ):
                case "overwrite":
                    version = stored["version"]
                case "load":
                    await self._accept_stored(stored, self._editor.text)
                    notify(f"Loaded version {stored['version']}, which another user saved.")
                    return False
                case _:
                    return False

    async def _put(self, value: Any, version: int) -> dict[str, Any]:
        body = {**value, "version": version} if isinstance(value, dict) else value
        saved: dict[str, Any] = await self._session.api.put(self._path, body)
        return saved

    async def _accept_stored(self, stored: dict[str, Any], replaced: str) -> None:
        self._stored = stored
        self._about.text = _describe(stored)
        self._editor.accept_saved(definition.format_pipeline(stored), replaced)
        await self._editor.validate()


def _describe(stored: dict[str, Any]) -> str:
    return f"Version {stored['version']} · changed {formatting.format_age(stored['updated_at'])}"


async def _ask_conflict(stored_text: str, edited_text: str, version: int) -> str | None:
    """Show the differences to the version of another user, and ask which one to keep."""
    lines = await asyncio.to_thread(
        definition.diff_lines, stored_text, edited_text
    )  # in a thread: long texts take seconds and would block the event loop
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl"):
        subheading("Another user changed this pipeline")
        ui.label(
            f"The saved version is now {version}. Lines with − are only in the saved version; lines with + only in yours."
        )
        with (
            ui.element("div")
            .classes("w-full overflow-auto max-h-96 p-2 rounded border border-gray-500/50")
            .props('tabindex=0 role=region aria-label="Differences"')
        ):
            for sign, line in lines[:_MAX_DIFF_LINES]:
                ui.label(f"{sign} {line}").classes("font-mono text-sm whitespace-pre").classes(_SIGN_CLASSES[sign])
            if omitted := len(lines[_MAX_DIFF_LINES:]):
                ui.label(f"{formatting.format_count(omitted, 'more line')}").classes("quiet")
        with ui.row().classes("w-full justify-end"):
            _add_button(dialog, "Keep editing", None, "flat")
            _add_button(dialog, "Load theirs", "load", "outline")
            _add_button(dialog, "Overwrite with mine", "overwrite", "unelevated color=negative")
    try:
        chosen: str | None = await dialog
        return chosen
    finally:
        dialog.delete()


def _add_button(dialog: ui.dialog, label: str, value: str | None, props: str) -> None:
    choose: Callable[[], None] = lambda: dialog.submit(value)  # noqa: E731
    ui.button(label, on_click=choose, color=None).props(f"no-caps {props}")
