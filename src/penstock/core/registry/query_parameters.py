"""Query parameters: declarations, and the values of a run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.core.names import has_invalid_characters
from penstock.core.payload.object_reader import MemberError, escape_text, raise_errors
from penstock.core.result_schema import FieldType, is_valid
from penstock.errors import Invalid

MAX_TEXT_LENGTH = 100_000  # of a value
MAX_DIGITS = 38  # of a number, before and after the decimal point: the limit of a decimal

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,9})?")
_EXPECTED_VALUES = {
    FieldType.STRING: f"text of at most {MAX_TEXT_LENGTH:,} characters, without NUL",
    FieldType.NUMBER: f"a number of at most {MAX_DIGITS} digits, such as 12 or 0.5",
    FieldType.BOOLEAN: "true or false",
    FieldType.DATE: "a date, such as 2026-01-31",
    FieldType.DATETIME: "a date and time, such as 2026-01-31T10:00:00Z",
}


@dataclass(frozen=True, slots=True)
class QueryParameter:
    name: str
    type: FieldType
    required: bool = True
    default: Any = None  # JSON value

    def as_json(self) -> dict[str, Any]:
        members = {"name": self.name, "type": str(self.type), "required": self.required}
        return members if self.default is None else {**members, "default": self.default}


def parse_parameter_values(parameters: Sequence[QueryParameter], raw_values: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the value of each parameter: text of a URL, JSON or Python. None counts as absent."""
    names = [parameter.name for parameter in parameters]
    key = "unknown_parameter.of_query" if names else "unknown_parameter.query_without_parameters"
    errors = [
        MemberError.of(f"/{escape_text(name)}", key, {"name": escape_text(name), "valid": names})
        for name in raw_values
        if name not in names
    ]
    values = dict.fromkeys(names)
    for parameter in parameters:
        value = raw_values.get(parameter.name)
        value = parameter.default if value is None else value
        if value is None and parameter.required:
            details = {"name": parameter.name, "expected": _EXPECTED_VALUES[parameter.type]}
            errors.append(MemberError.of(f"/{parameter.name}", "missing_parameter.of_query", details))
        elif value is not None:
            try:
                values[parameter.name] = _parse_value(parameter.type, value)
            except Invalid:
                details = {"name": parameter.name, "expected": _EXPECTED_VALUES[parameter.type]}
                errors.append(MemberError.of(f"/{parameter.name}", "bad_value.parameter", details))
    raise_errors("bad_parameters", errors)
    return values


def parse_default(field_type: FieldType, value: Any) -> Any:
    """Check a default value and return it in its stored form."""
    if not is_valid(field_type, value):
        raise Invalid("bad_value", {"expected": _EXPECTED_VALUES[field_type]})
    _parse_value(field_type, value)
    return int(value) if isinstance(value, float) and value.is_integer() else value  # as every database returns it


def _parse_value(field_type: FieldType, value: Any) -> Any:
    parsed = None
    match field_type, value:
        case (FieldType.BOOLEAN, bool()) | (FieldType.STRING, str()):
            parsed = value
        case FieldType.BOOLEAN, "true" | "false":
            parsed = value == "true"
        case (FieldType.NUMBER, bool()) | (FieldType.DATE, datetime()):
            pass  # in Python a bool is an int, and a datetime is a date
        case FieldType.NUMBER, int() | float() | Decimal() | str():
            parsed = _parse_number(value)
        case FieldType.DATE, date():
            parsed = value
        case FieldType.DATE, str() if is_valid(field_type, value):
            parsed = date.fromisoformat(value)
        case FieldType.DATETIME, datetime():
            parsed = _to_utc(value)
        case FieldType.DATETIME, str() if is_valid(field_type, value):
            parsed = _to_utc(datetime.fromisoformat(value.upper()))
    if parsed is None or (
        isinstance(parsed, str) and (len(parsed) > MAX_TEXT_LENGTH or has_invalid_characters(parsed))
    ):
        raise Invalid("bad_value", {"expected": _EXPECTED_VALUES[field_type]})
    return parsed


def _parse_number(value: float | Decimal | str) -> int | Decimal | None:
    """Parse a number. Equal numbers give the same value, because the type of a decimal depends on its digits."""
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() >= MAX_DIGITS:
        return None
    if number == number.to_integral_value():
        return int(number)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    short = "".join(map(str, digits)).rstrip("0")
    scale = -exponent - (len(digits) - len(short))
    if max(number.adjusted() + 1, 0) + scale > MAX_DIGITS:
        return None
    return Decimal((sign, tuple(map(int, short)), -scale))


def _to_utc(value: datetime) -> datetime | None:
    try:
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    except OverflowError:  # outside of the years 1 to 9999 in UTC
        return None
