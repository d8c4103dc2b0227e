"""Validate tab of a schema: validate pasted rows and show their errors."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.core.result_schema import FieldType
from penstock.errors import Invalid
from penstock.ui import formatting
from penstock.ui.actions import single_flight
from penstock.ui.api_client import ApiClient
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.schemas.form_model import parse_pasted_json
from penstock.ui.schemas.inputs import Textarea, reject_truncated

ERRORS = (
    TableColumn("row", "Row", lambda row: "" if row is None else str(row + 1)),
    TableColumn("field", "Field", lambda name: name or ""),
    TableColumn("message", "Error"),
    TableColumn("expected", "Expected", lambda text: text or ""),
    TableColumn("actual", "Actual", lambda text: text or ""),
)
_EXAMPLES = {
    FieldType.STRING: "text",
    FieldType.NUMBER: 12.5,
    FieldType.BOOLEAN: True,
    FieldType.DATE: "2026-01-31",
    FieldType.DATETIME: "2026-01-31T10:30:00Z",
}


async def show_validate_tab(api: ApiClient, path: str, fields: Sequence[Mapping[str, Any]]) -> None:
    """Show the tab of the schema at a path of the API."""
    rows = Textarea("Rows: a JSON array of objects", value=json.dumps([example_row(fields)], indent=2))
    reject_truncated(rows, f"POST {path}/validate")
    rows.props('outlined input-class="font-mono text-sm" rows=10').classes("w-full")
    strict = ui.checkbox("Reject unknown fields")

    async def validate() -> None:
        results.clear()
        if not rows.validate():
            return
        try:
            values = parse_pasted_json(rows.value or "", "the text")
        except Invalid as error:
            rows.error = error.message
            return
        report = await api.post(f"{path}/validate", {"rows": values, "strict": strict.value})
        with results:
            _show_report(report, values)

    ui.button("Validate", on_click=single_flight(validate)).props("unelevated no-caps")
    results = ui.column().classes("w-full gap-2").props("aria-live=polite")


def example_row(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Create a row that matches the fields."""
    values = {field["name"]: (_EXAMPLES[FieldType(field["type"])], field.get("array", False)) for field in fields}
    return {name: [value] if is_list else value for name, (value, is_list) in values.items()}


def _show_report(report: Mapping[str, Any], values: Any) -> None:
    with ui.row().classes("items-center gap-2"):
        if report["valid"]:
            ui.icon("check_circle", color="positive").props("aria-hidden=true")
            count = len(values)
            ui.label("The row is valid." if count == 1 else f"All {formatting.format_count(count, 'row')} are valid.")
            return
        count = report["error_count"]
        ui.icon("error", color="negative").props("aria-hidden=true")
        ui.label(f"{formatting.format_count(count, 'error')} found.")
    show_table(ERRORS, report["errors"], name="Validation errors")
    if count > len(report["errors"]):
        ui.label(f"Showing the first {formatting.format_count(len(report['errors']))}.").classes("quiet")
