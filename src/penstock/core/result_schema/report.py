"""What is wrong with a result: counted in full, described in part, and never with a value."""

from dataclasses import dataclass
from typing import Any

from penstock.core.result_schema.field import Field
from penstock.core.result_schema.values import shown

MAX_DESCRIBED = 100  # errors of a result; the others are only counted


@dataclass(frozen=True, slots=True)
class Verdict:
    count: int  # of all errors; the first of them are described
    errors: tuple[dict[str, Any], ...]

    @property
    def valid(self) -> bool:
        return not self.count

    def as_json(self) -> dict[str, Any]:
        return {"valid": self.valid, "error_count": self.count, "errors": list(self.errors)}


def missing(row: int | None, field: Field) -> dict[str, Any]:
    """Clients know this sentence and the next."""
    return error(row, field.name, field.expected, None, f"Missing required field: {field.name}")


def mismatched(row: int | None, field: Field, actual: str) -> dict[str, Any]:
    return error(row, field.name, field.expected, actual, f"Type mismatch for field {field.name}")


def unexpected(row: int | None, name: str, actual: str) -> dict[str, Any]:
    return error(row, shown(name), None, actual, f"Unexpected field: {shown(name)}")


def error(row: int | None, field: str | None, expected: str | None, actual: str | None, message: str) -> dict[str, Any]:
    """What is not about one row, or not about one field, does not name one."""
    place = {name: value for name, value in (("row", row), ("field", field)) if value is not None}
    return {**place, "expected": expected, "actual": actual, "message": message}
