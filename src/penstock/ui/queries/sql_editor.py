"""SQL editor: write and preview a statement, with a dataset browser, parameters and validation of the rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.errors import Invalid
from penstock.ui import code_editor, formatting
from penstock.ui.actions import show_errors, single_flight
from penstock.ui.api_client import ApiError
from penstock.ui.queries import result_view, sql_text, validation_report
from penstock.ui.queries.dataset_browser import show_browser
from penstock.ui.queries.execution_control import ExecutionControl
from penstock.ui.queries.parameter_form import (
    VALUE_REQUIRED,
    ParameterEntry,
    ParameterForm,
    to_declarations,
    to_entry,
    to_values,
)
from penstock.ui.queries.schema_picker import SchemaPicker
from penstock.ui.session import PageSession

_GRID_STYLE = "grid-template-rows: auto 1fr"  # results start below the editor, whatever the height of the side column
_SCROLL_TO_RESULTS = """
requestAnimationFrame(() => {
  const results = getHtmlElement(%d), {top} = results.getBoundingClientRect();
  if (top < 0 || top > innerHeight - 200) results.scrollIntoView();
})
"""
_HINT = "Ctrl+Enter runs the preview. Press Escape, then Tab, to leave the editor."


class SqlEditor:
    """Editor of one SQL statement."""

    def __init__(self, session: PageSession, text: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        self._session = session
        self._edit_callback: Callable[[], None] = lambda: None
        self._entries = {parameter["name"].lower(): to_entry(parameter) for parameter in parameters}
        self._names: list[str] = []
        preview = single_flight(self.preview)
        with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-4 gap-4").style(_GRID_STYLE):
            with ui.column().classes("lg:col-span-3 min-w-0 gap-2"):
                self._editor = code_editor.create_code_editor(text, "SQL", label="SQL", on_change=self._edited)
                self._editor.style("height: min(40vh, 15rem)").map_key("Mod-Enter", preview)
                self._parameters = ui.column().classes("w-full gap-2")
                with ui.row().classes("w-full items-center gap-3 flex-wrap"):
                    self._button = ui.button("Preview", icon="play_arrow", on_click=preview)
                    self._button.props("unelevated no-caps")
                    self._control = ExecutionControl(session.api)
                    self._state = ui.label("").props("role=status").classes("break-anywhere")
                    ui.label(_HINT).classes("text-sm quiet max-md:hidden")
            self._side = ui.column().classes("lg:row-span-2 min-w-0 gap-2")
            with ui.column().classes("lg:col-span-3 min-w-0 gap-2").style("scroll-margin-top: 4rem") as self._results:
                self._errors = ui.column().classes("w-full gap-2")
                self._report = ui.column().classes("w-full gap-0")
                self._outcome = ui.column().classes("w-full gap-2")
        self.schema_picker = SchemaPicker(session, self._statement, self._on_schema_change)
        self._rows: list[Any] | None = None  # of the last preview, as many as can be validated
        self._show_parameters()

    async def load(self, schema_id: str | None = None) -> None:
        """Load the dataset browser and the schemas."""
        with self._side:
            await show_browser(self._session, self._editor)
        await self.schema_picker.search()
        if schema_id:
            await self.schema_picker.select(schema_id)

    def on_edit(self, callback: Callable[[], None]) -> None:
        """Set the function that is called after every edit."""
        self._edit_callback = callback

    @property
    def text(self) -> str:
        return self._editor.value or ""

    def declarations(self) -> list[dict[str, Any]]:
        return to_declarations(self._used_entries())

    async def preview(self) -> None:
        """Run the statement and show its first rows."""
        statement = self._statement()
        if statement is None:
            return
        self._set_status("Running…", is_busy=True)
        status = ""
        try:
            response = (await self._control.request("POST", "/queries/preview", statement, exact_decimals=True)).body
        except ApiError as error:
            if error.status == 401:
                raise
            self._rows = None
            self.show_api_error(error)
        else:
            if not self._outcome.is_deleted:
                status = describe_preview(response)
                self._show(response)
                await self._validate()
        finally:
            self._set_status(status)

    def show_api_error(self, error: ApiError) -> None:
        """Show an error of the service at the input that it refers to."""
        if self._outcome.is_deleted:
            return
        self._outcome.clear()
        self._report.clear()
        self._state.set_text("")
        self._scroll_to_results()
        if error.code in validation_report.MISMATCH_CODES:
            with self._report:
                validation_report.show_report(validation_report.report_from_error(error, self.schema_picker.name))
            return
        position = error.payload.get("position")
        location = f" ({sql_text.describe_position(self.text, position)})" if isinstance(position, int) else ""
        for name in error.payload.get("parameters") or ():
            self._form.set_error(name, VALUE_REQUIRED)
        with self._errors:
            result_view.show_error(f"{error.message}{location}")

    def show_error(self, path: Sequence[str], message: str) -> ui.element:
        """Show an error at a declared parameter, or else at the SQL. Returns the element with the error."""
        entries = self._used_entries()
        match path:
            case ["parameters", number, *member] if number.isdecimal() and int(number) < len(entries):
                box = self._form.set_error(entries[int(number)].name, message, *member[:1])
                if box is not None:
                    return box
        with self._errors:
            result_view.show_error(message)
        return self._editor

    def clear_errors(self) -> None:
        """Remove all errors."""
        self._errors.clear()
        self._form.clear_errors()

    def _statement(self) -> dict[str, Any] | None:
        """Return SQL and parameters for the API, or None if a value is invalid. The error is shown at its input."""
        self.clear_errors()
        try:
            values = to_values(self._used_entries())
        except Invalid as error:
            for item in error.context["errors"]:
                self._form.set_error(str(item["pointer"]).removeprefix("/"), str(item["message"]))
            return None
        return {"sql": self.text, **({"parameters": values} if values else {})}

    def _used_entries(self) -> list[ParameterEntry]:
        return [self._entries[name.lower()] for name in self._names]

    def _edited(self) -> None:
        if sql_text.find_parameters(self.text) != self._names:
            self._show_parameters()
        self._edit_callback()

    def _show_parameters(self) -> None:
        self._names = sql_text.find_parameters(self.text)
        for name in self._names:
            self._entries.setdefault(name.lower(), ParameterEntry(name)).name = name
        self._parameters.clear()
        with self._parameters:
            if self._names:
                ui.label("Parameters").classes("font-medium").props('role=heading aria-level="2"')
            self._form = ParameterForm(
                self._used_entries(),
                declaring=self._session.has_role(Role.DEVELOPER),
                on_change=lambda: self._edit_callback(),
            )

    def _show(self, response: Mapping[str, Any]) -> None:
        self._rows = validation_report.limit_rows(response["value"])
        self._outcome.clear()
        with self._outcome:
            result_view.show_result(result_view.from_preview(response), "Preview")
        self._scroll_to_results()

    async def _validate(self) -> None:
        if self._rows is None or self._report.is_deleted:
            return
        id, rows = self.schema_picker.id, self._rows
        report = (
            await validation_report.validate_rows(self._session.api, id, self.schema_picker.name, rows) if id else None
        )
        if id != self.schema_picker.id or rows is not self._rows or self._report.is_deleted:
            return  # the rows or the schema have changed meanwhile
        self._report.clear()
        if report:
            with self._report:
                validation_report.show_report(report)

    async def _on_schema_change(self) -> None:
        self._edit_callback()
        await show_errors(self._validate)()

    def _set_status(self, text: str, *, is_busy: bool = False) -> None:
        if not self._button.is_deleted:
            self._button.set_enabled(not is_busy)
            self._state.set_text(text)

    def _scroll_to_results(self) -> None:
        """Scroll to the results if they are not visible."""
        ui.run_javascript(_SCROLL_TO_RESULTS % self._results.id)


def describe_preview(response: Mapping[str, Any]) -> str:
    """Describe the number of rows and the versions that were read."""
    rows = formatting.format_count(len(response["value"]), "row")
    summary = f"First {rows}; the result has more" if response.get("more") else rows
    read = ", ".join(f"{name} v{version}" for name, version in response["@penstock.versions"].items())
    return f"{summary} · read {read}" if read else summary
