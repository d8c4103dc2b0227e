"""Try rows against a schema: paste them, and see which do not fit and why."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from penstock.core.result_schema import FieldType
from penstock.errors import Invalid
from penstock.ui import formatting as shown
from penstock.ui.api_client import Api
from penstock.ui.layout import once
from penstock.ui.data_table import Column, grid
from penstock.ui.schemas.form_model import value
from penstock.ui.schemas.inputs import Textarea, whole

ERRORS = (
    Column("row", "Row", lambda row: "" if row is None else str(row + 1)),
    Column("field", "Field", lambda name: name or ""),
    Column("message", "What is wrong"),
    Column("expected", "Expected", lambda text: text or ""),
    Column("actual", "Came", lambda text: text or ""),
)
_EXAMPLES = {
    FieldType.STRING: "text",
    FieldType.NUMBER: 12.5,
    FieldType.BOOLEAN: True,
    FieldType.DATE: "2026-01-31",
    FieldType.DATETIME: "2026-01-31T10:30:00Z",
}


async def trial(api: Api, at: str, fields: Sequence[Mapping[str, Any]]) -> None:
    rows = Textarea("Rows: a JSON array of objects", value=json.dumps([example(fields)], indent=2))
    whole(rows, f"POST {at}/validate")
    rows.props('outlined input-class="font-mono text-sm" rows=10').classes("w-full")
    strict = ui.checkbox("Refuse fields that the schema does not have")

    async def check() -> None:
        place.clear()
        if not rows.validate():
            return
        try:
            given = value(rows.value or "", "this")
        except Invalid as refusal:
            rows.error = refusal.message
            return
        verdict = await api.post(f"{at}/validate", {"rows": given, "strict": strict.value})
        with place:
            _judge(verdict, given)

    ui.button("Check rows", on_click=once(check)).props("unelevated no-caps")
    place = ui.column().classes("w-full gap-2").props("aria-live=polite")


def example(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row that fits."""
    values = {each["name"]: (_EXAMPLES[FieldType(each["type"])], each.get("array", False)) for each in fields}
    return {name: [one] if is_list else one for name, (one, is_list) in values.items()}


def _judge(verdict: Mapping[str, Any], given: Any) -> None:
    with ui.row().classes("items-center gap-2"):
        if verdict["valid"]:
            ui.icon("check_circle", color="positive").props("aria-hidden=true")
            many = len(given)
            ui.label(f"{'The row fits' if many == 1 else f'All {many:,} rows fit'} the schema.")
            return
        many = verdict["error_count"]
        ui.icon("error", color="negative").props("aria-hidden=true")
        ui.label(f"{'One thing does' if many == 1 else f'{many:,} things do'} not fit the schema.")
    grid(ERRORS, verdict["errors"], name="What does not fit")
    if many > len(verdict["errors"]):
        ui.label(f"These are the first {shown.count(len(verdict['errors']))}.").classes("quiet")
