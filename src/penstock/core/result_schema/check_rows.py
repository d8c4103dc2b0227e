"""Validate JSON rows against a result schema."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from penstock.core.result_schema.field import ResultField
from penstock.core.result_schema.report import (
    MAX_DESCRIBED,
    ValidationReport,
    error_entry,
    missing_field,
    type_mismatch,
    unexpected_field,
)
from penstock.core.result_schema.values import is_valid, json_type


def check_rows(fields: Sequence[ResultField], rows: Any, *, strict: bool = False) -> ValidationReport:
    """Validate JSON rows. Undeclared members are errors only if `strict`.

    The cost of a row depends on its members, not on the number of fields: only reported errors are searched by field.
    """
    if not isinstance(rows, list):
        return ValidationReport(1, (error_entry(None, None, "array", json_type(rows), "Result must be array"),))
    by_name = {field.name: field for field in fields}
    required = sum(not field.optional for field in fields)
    count, described = 0, list[dict[str, Any]]()
    for number, row in enumerate(rows):
        errors = _count_errors(row, by_name, required, strict) if isinstance(row, dict) else 1
        if errors and len(described) < MAX_DESCRIBED:
            described += islice(_describe_errors(fields, by_name, number, row, strict), MAX_DESCRIBED - len(described))
        count += errors
    return ValidationReport(count, tuple(described))


def _count_errors(row: dict[str, Any], by_name: Mapping[str, ResultField], required: int, strict: bool) -> int:
    """Count the errors of a row."""
    errors = required
    for name, value in row.items():
        if (field := by_name.get(name)) is None:
            errors += strict
        else:
            errors += (_invalid_type(field, value) is not None) - (not field.optional)
    return errors


def _describe_errors(
    fields: Sequence[ResultField], by_name: Mapping[str, ResultField], number: int, row: Any, strict: bool
) -> Iterator[dict[str, Any]]:
    if not isinstance(row, dict):
        yield error_entry(number, None, "object", json_type(row), "Row must be object")
        return
    for field in fields:
        if field.name not in row:
            if not field.optional:
                yield missing_field(number, field)
        elif (actual := _invalid_type(field, row[field.name])) is not None:
            yield type_mismatch(number, field, actual)
    if strict:
        for name in row:
            if name not in by_name:
                yield unexpected_field(number, name, json_type(row[name]))


def _invalid_type(field: ResultField, value: Any) -> str | None:
    """Return the type name of an invalid value; None if it is valid. Items of an array are never null."""
    if value is None and field.optional:
        return None
    if not field.array:
        return None if is_valid(field.type, value) else json_type(value)
    if not isinstance(value, list):
        return json_type(value)
    return next((f"array with {json_type(item)}" for item in value if not is_valid(field.type, item)), None)
