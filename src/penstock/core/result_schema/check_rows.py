"""Rows as JSON brings them: does each keep the promise?"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from penstock.core.result_schema.field import Field
from penstock.core.result_schema.values import good, json_type
from penstock.core.result_schema.report import MAX_DESCRIBED, Verdict, error, mismatched, missing, unexpected


def check_rows(fields: Sequence[Field], rows: Any, *, strict: bool = False) -> Verdict:
    """Do rows that came as JSON keep the promise? Members that nobody promised are refused only if `strict`.

    A row costs what it holds, not what was promised: of many errors only those that are told are looked for by field.
    """
    if not isinstance(rows, list):
        return Verdict(1, (error(None, None, "array", json_type(rows), "Result must be array"),))
    known = {field.name: field for field in fields}
    required = sum(not field.optional for field in fields)
    count, told = 0, list[dict[str, Any]]()
    for number, row in enumerate(rows):
        wrong = _wrong(row, known, required, strict) if isinstance(row, dict) else 1
        if wrong and len(told) < MAX_DESCRIBED:
            told += islice(_errors(fields, known, number, row, strict), MAX_DESCRIBED - len(told))
        count += wrong
    return Verdict(count, tuple(told))


def _wrong(row: dict[str, Any], known: Mapping[str, Field], required: int, strict: bool) -> int:
    """How many errors a row has."""
    wrong = required
    for name, value in row.items():
        if (field := known.get(name)) is None:
            wrong += strict
        else:
            wrong += (_mismatch(field, value) is not None) - (not field.optional)
    return wrong


def _errors(
    fields: Sequence[Field], known: Mapping[str, Field], number: int, row: Any, strict: bool
) -> Iterator[dict[str, Any]]:
    if not isinstance(row, dict):
        yield error(number, None, "object", json_type(row), "Row must be object")
        return
    for field in fields:
        if field.name not in row:
            if not field.optional:
                yield missing(number, field)
        elif (actual := _mismatch(field, row[field.name])) is not None:
            yield mismatched(number, field, actual)
    if strict:
        for name in row:
            if name not in known:
                yield unexpected(number, name, json_type(row[name]))


def _mismatch(field: Field, value: Any) -> str | None:
    """What the value is, if it is not what the field promises. An array holds no nulls."""
    if value is None and field.optional:
        return None
    if not field.array:
        return None if good(field.type, value) else json_type(value)
    if not isinstance(value, list):
        return json_type(value)
    return next((f"array with {json_type(item)}" for item in value if not good(field.type, item)), None)
