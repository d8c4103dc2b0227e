"""Validation report: whether rows match a result schema, and the errors by row and field."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from nicegui import ui

from penstock.ui import formatting
from penstock.ui.api_client import ApiClient, ApiError, path_segment
from penstock.ui.data_table import TableColumn, show_table

MISMATCH_CODES = ("SCHEMA_MISMATCH", "QUERY_DOES_NOT_FIT")
_MAX_BYTES = 3_000_000  # of the rows of a validation request; below the limit of a request body
_COLUMNS = (
    TableColumn("row", "Row", lambda row: "–" if row is None else formatting.format_count(row + 1), align_right=True),
    TableColumn("field", "Field"),
    TableColumn("expected", "Expected"),
    TableColumn("actual", "Actual"),
    TableColumn("message", "Message"),
)


@dataclass(frozen=True)
class RowsReport:
    """Result of the validation of rows."""

    schema: str  # name of the result schema
    checked: int | None  # number of rows; None: the service has validated all rows
    count: int  # number of errors
    errors: Sequence[Mapping[str, Any]]  # the first errors


def report_from_error(error: ApiError, schema: str) -> RowsReport:
    """Create a report from the error of a query whose rows do not match its result schema."""
    return RowsReport(schema, None, int(error.payload.get("error_count") or len(error.errors)), error.errors)


async def validate_rows(api: ApiClient, schema_id: str, schema: str, rows: list[Any]) -> RowsReport:
    """Validate rows with the service. Their size must be limited by `limit_rows`."""
    if not rows:
        return RowsReport(schema, 0, 0, ())
    response = await api.post(f"/gts/{path_segment(schema_id)}/validate", {"rows": rows})
    return RowsReport(schema, len(rows), response["error_count"], response["errors"])


def limit_rows(rows: Sequence[Mapping[str, Any]], max_bytes: int = _MAX_BYTES) -> list[Any]:
    """Return the first rows as JSON values, as many as fit into one request."""
    limited, size = [], 0
    for row in rows:
        value = _to_json(row)
        size += len(json.dumps(value)) + 2
        if size > max_bytes:
            break
        limited.append(value)
    return limited


def describe_report(report: RowsReport) -> str:
    """Describe a report in one sentence."""
    match report:
        case RowsReport(schema=name, checked=0):
            return f"The result has no rows, so it matches {name}."
        case RowsReport(schema=name, checked=checked, count=0):
            all_rows = (
                "All rows match"
                if checked is None
                else f"{formatting.format_count(checked, 'row')} validated: all match"
            )
            return f"{all_rows} {name}."
    return f"The rows do not match {report.schema}: {formatting.format_count(report.count, 'error')}."


def show_report(report: RowsReport) -> None:
    """Show a report with its errors."""
    is_valid = report.count == 0
    with ui.card().classes("w-full gap-2").props(f"flat bordered role={'status' if is_valid else 'alert'}"):
        with ui.row().classes("items-center gap-2 no-wrap"):
            ui.icon(
                "check_circle" if is_valid else "error", color="positive" if is_valid else "negative", size="sm"
            ).props("aria-hidden=true")
            ui.label(describe_report(report)).classes("break-anywhere")
        if report.errors:
            show_table(_COLUMNS, report.errors, name="Validation errors")
        if report.count > len(report.errors):
            ui.label(f"Showing the first {formatting.format_count(len(report.errors))}.").classes("text-sm quiet")


def _to_json(value: Any) -> Any:
    match value:
        case Decimal():
            return float(value)
        case dict():
            return {name: _to_json(inner) for name, inner in value.items()}
        case list():
            return [_to_json(inner) for inner in value]
    return value
