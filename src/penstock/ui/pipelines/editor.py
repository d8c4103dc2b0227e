"""Pipeline editor: JSON text that is validated while the user types, with errors at their lines."""

import asyncio
from typing import Any

from nicegui import ui

from penstock.ui import code_editor, formatting
from penstock.ui.actions import show_errors
from penstock.ui.api_client import ApiError
from penstock.ui.dialogs import set_unsaved
from penstock.ui.elements import notify, subheading, with_label
from penstock.ui.pipelines import dataset_picker, definition
from penstock.ui.pipelines.definition import Dataset, LocatedError
from penstock.ui.session import PageSession

_VALIDATION_DELAY_SECONDS = 0.4  # after the last keystroke
READ_ONLY_TEXT = (
    "Your role can view pipelines. To create, change, run or delete them, you need the role analytics.developer."
)
_NO_OPERATIONS = "The pipeline has no list of operations. Fix the JSON first."


class PipelineEditor:
    """Editor of one pipeline. It compares the text with the last saved text."""

    def __init__(self, session: PageSession, text: str, *, writable: bool) -> None:
        self._session, self._writable = session, writable
        self._saved = text
        self._is_guarded = False
        self._names: dict[str, str] = {}
        self._validation_timer: ui.timer | None = None
        with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-3 gap-4"):
            with ui.column().classes("lg:col-span-2 min-w-0 gap-2"):
                self._editor = code_editor.create_code_editor(
                    text, "JSON", label="Pipeline as JSON", on_change=self._changed, read_only=not writable
                )
                with ui.row().classes("w-full justify-between text-xs quiet"):
                    ui.label("Press Escape, then Tab, to leave the editor." if writable else "")
                    self._state = ui.label().props("role=status aria-live=polite")
            with ui.column().classes("min-w-0 gap-2"):
                subheading("Validation")
                self._summary = ui.label("Validating…").props("role=status aria-live=polite")
                self._errors = ui.column().classes("w-full gap-2")
                self._side = ui.column().classes("w-full gap-2")

    async def load(self) -> None:
        """Load the dataset picker and validate the text."""
        if self._writable:
            with self._side:
                subheading("Datasets")
                await dataset_picker.show_picker(
                    self._session,
                    {
                        "Insert id": lambda dataset: code_editor.insert_id(self._editor, dataset["id"]),
                        "Add append": lambda dataset: self._add_operation("append", dataset),
                        "Add merge": lambda dataset: self._add_operation("merge", dataset),
                    },
                )
        await self.validate()

    @property
    def text(self) -> str:
        return self._editor.value or ""

    @property
    def is_unsaved(self) -> bool:
        return self._writable and self.text != self._saved

    async def value(self) -> Any:
        """Return the parsed text.

        Raises:
            ApiError: The text is not JSON.
        """
        parsed = await asyncio.to_thread(definition.parse_text, self.text)
        if isinstance(parsed, LocatedError):
            raise ApiError(400, {"detail": parsed.message})
        return parsed.value

    def accept_saved(self, text: str, replaced: str) -> None:
        """Record the saved text. It is shown unless the user has changed the replaced text meanwhile."""
        self._saved = text
        if self.text == replaced:
            self._editor.value = text
        self._guard()

    async def validate(self) -> None:
        """Validate the text and show its errors, unless the text has changed meanwhile."""
        text = self.text
        errors = await self._find_errors(text)
        ids = definition.find_ids(text)
        self._names |= await dataset_picker.load_names(self._session.api, {id for id, _ in ids} - self._names.keys())
        if text == self.text:
            self._show_errors(errors)
            line_errors: dict[int, str] = {}
            for error in errors:
                if error.line:
                    previous = line_errors.get(error.line)
                    line_errors[error.line] = f"{previous}\n{error.message}" if previous else error.message
            hints = [(end, self._names[id]) for id, end in ids if id in self._names]
            code_editor.mark_lines(self._editor, line_errors, hints)

    def _show_errors(self, errors: list[LocatedError]) -> None:
        summary = f"{formatting.format_count(len(errors), 'error')} found."
        self._summary.text = summary if errors else "The pipeline is valid."
        self._errors.clear()
        with self._errors:
            for error in errors:
                self._show_error(error)

    def _changed(self) -> None:
        self._guard()
        if self._validation_timer:
            self._validation_timer.cancel()
        with self._side:
            self._validation_timer = ui.timer(_VALIDATION_DELAY_SECONDS, show_errors(self.validate), once=True)

    def _guard(self) -> None:
        if self._is_guarded != self.is_unsaved:
            self._is_guarded = self.is_unsaved
            set_unsaved(self._is_guarded)
            self._state.text = "Unsaved changes" if self._is_guarded else ""

    async def _find_errors(self, text: str) -> list[LocatedError]:
        parsed = await asyncio.to_thread(
            definition.parse_text, text
        )  # in a thread: a long text takes seconds and would block the event loop
        if isinstance(parsed, LocatedError):
            return [parsed]
        try:
            response = await self._session.api.request(
                "POST", "/pipelines/validate", content=text.encode(), headers={"content_type": "application/json"}
            )
        except ApiError as error:
            if error.status == 401:  # not an error of the text
                raise
            return [LocatedError(error.message)]
        return definition.locate_errors(parsed, response.body["errors"])

    def _show_error(self, error: LocatedError) -> None:
        with ui.card().classes("w-full p-3 gap-1").props("flat bordered"):
            if (line := error.line) is not None:
                link = ui.button(error.location, icon="error_outline", color=None)
                link.on_click(lambda: code_editor.go_to_line(self._editor, line))
                link.props("flat dense no-caps align=left").classes("break-anywhere -ml-1")
                with_label(link, f"Go to line {line}, {error.pointer}" if error.pointer else f"Go to line {line}")
            ui.label(error.message).classes("break-anywhere")
            for name, value in error.details:
                ui.label(f"{name}: {value}").classes("text-sm quiet break-anywhere")

    def _add_operation(self, operation_type: str, dataset: Dataset) -> None:
        parsed = definition.parse_text(self.text)
        extended = (
            None
            if isinstance(parsed, LocatedError)
            else definition.add_operation(parsed.value, definition.new_operation(operation_type, dataset))
        )
        if extended is None:
            notify(_NO_OPERATIONS, is_error=True)
        else:
            self._editor.value = definition.to_json_text(extended)
