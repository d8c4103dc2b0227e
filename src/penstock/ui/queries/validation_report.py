"""Do rows keep what a schema promises? The answer in words, and where they do not, which field of which row."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from nicegui import ui

from penstock.ui import formatting as shown
from penstock.ui.api_client import Api, Problem, part
from penstock.ui.data_table import Column, grid

MISMATCH = ("SCHEMA_MISMATCH", "QUERY_DOES_NOT_FIT")
_MOST_BYTES = 3_000_000  # of rows that are sent to be checked; a body may have more, but not much
_COLUMNS = (
    Column("row", "Row", lambda row: "–" if row is None else f"{row + 1:,}", right=True),
    Column("field", "Field"),
    Column("expected", "Expected"),
    Column("actual", "Came"),
    Column("message", "In words"),
)


@dataclass(frozen=True)
class Verdict:
    schema: str  # its name
    checked: int | None  # rows; None: what its columns are was enough
    count: int  # of errors
    errors: Sequence[Mapping[str, Any]]  # the first of them


def of_refusal(problem: Problem, schema: str) -> Verdict:
    """What a query says whose rows do not fit, or which can never fit."""
    return Verdict(schema, None, int(problem.told.get("error_count") or len(problem.errors)), problem.errors)


async def of_rows(api: Api, schema_id: str, schema: str, rows: list[Any]) -> Verdict:
    """What the service says of rows that are `sendable`."""
    if not rows:
        return Verdict(schema, 0, 0, ())
    told = await api.post(f"/gts/{part(schema_id)}/validate", {"rows": rows})
    return Verdict(schema, len(rows), told["error_count"], told["errors"])


def sendable(rows: Sequence[Mapping[str, Any]], most: int = _MOST_BYTES) -> list[Any]:
    """The first rows, as JSON has them, as far as they fit into one question."""
    taken, size = [], 0
    for row in rows:
        one = _plain(row)
        size += len(json.dumps(one)) + 2
        if size > most:
            break
        taken.append(one)
    return taken


def sentence(verdict: Verdict) -> str:
    match verdict:
        case Verdict(schema=name, checked=0):
            return f"There are no rows, so nothing could break what {name} promises."
        case Verdict(schema=name, checked=checked, count=0):
            every = "Every row fits" if checked is None else f"{shown.count(checked, 'row')} checked: all fit"
            return f"{every} {name}."
    return f"The rows do not fit {verdict.schema}: {shown.count(verdict.count, 'error')}."


def show(verdict: Verdict) -> None:
    good = verdict.count == 0
    with ui.card().classes("w-full gap-2").props(f"flat bordered role={'status' if good else 'alert'}"):
        with ui.row().classes("items-center gap-2 no-wrap"):
            ui.icon("check_circle" if good else "error", color="positive" if good else "negative", size="sm").props(
                "aria-hidden=true"
            )
            ui.label(sentence(verdict)).classes("break-anywhere")
        if verdict.errors:
            grid(_COLUMNS, verdict.errors, name="What does not fit")
        if verdict.count > len(verdict.errors):
            ui.label(f"These are the first {len(verdict.errors):,}.").classes("text-sm quiet")


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            return float(value)
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
    return value
