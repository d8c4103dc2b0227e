"""Validation reports: all errors are counted, the first are described, without values."""

from dataclasses import dataclass
from typing import Any

from penstock.core.payload.object_reader import escape_text
from penstock.core.result_schema.field import ResultField

MAX_DESCRIBED = 100  # errors; further ones are only counted


@dataclass(frozen=True, slots=True)
class ValidationReport:
    count: int  # of all errors, described or not
    errors: tuple[dict[str, Any], ...]

    @property
    def valid(self) -> bool:
        return not self.count

    def as_json(self) -> dict[str, Any]:
        return {"valid": self.valid, "error_count": self.count, "errors": list(self.errors)}


def missing_field(row: int | None, field: ResultField) -> dict[str, Any]:
    """Return the error for a missing field. The contract fixes this sentence and the next."""
    return error_entry(row, field.name, field.expected, None, f"Missing required field: {field.name}")


def type_mismatch(row: int | None, field: ResultField, actual: str) -> dict[str, Any]:
    return error_entry(row, field.name, field.expected, actual, f"Type mismatch for field {field.name}")


def unexpected_field(row: int | None, name: str, actual: str) -> dict[str, Any]:
    return error_entry(row, escape_text(name), None, actual, f"Unexpected field: {escape_text(name)}")


def error_entry(
    row: int | None, field: str | None, expected: str | None, actual: str | None, message: str
) -> dict[str, Any]:
    """Return an error. Members for row and field are absent if the error concerns no single one."""
    location = {name: value for name, value in (("row", row), ("field", field)) if value is not None}
    return {**location, "expected": expected, "actual": actual, "message": message}
