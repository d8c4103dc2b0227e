"""The parameters of a query: what it declares, and the values of a run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.core.result_schema import FieldType, good
from penstock.core.names import unstorable
from penstock.core.payload.object_reader import error, refuse, shown
from penstock.errors import Invalid

MAX_TEXT = 100_000  # characters of a value
MAX_DIGITS = 38  # of a number, before and after the point: what a decimal can hold

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,9})?")
_WANTED = {
    FieldType.STRING: f"text of at most {MAX_TEXT:,} characters, without NUL",
    FieldType.NUMBER: f"a number of at most {MAX_DIGITS} digits, such as 12 or 0.5",
    FieldType.BOOLEAN: "true or false",
    FieldType.DATE: "a day, such as 2026-01-31",
    FieldType.DATETIME: "a moment, such as 2026-01-31T10:00:00Z",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: FieldType
    required: bool = True
    default: Any = None  # as JSON has it

    def as_json(self) -> dict[str, Any]:
        shape = {"name": self.name, "type": str(self.type), "required": self.required}
        return shape if self.default is None else {**shape, "default": self.default}


def values(parameters: Sequence[Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each parameter: from text of a URL, from JSON or from Python. None counts as not given."""
    known = [parameter.name for parameter in parameters]
    there = f"there are {', '.join(known)}" if known else "the query has none"
    errors = [
        error(f"/{shown(name)}", "unknown_parameter", f"there is no parameter '{shown(name)}'; {there}")
        for name in given
        if name not in known
    ]
    found = dict.fromkeys(known)
    for parameter in parameters:
        value = given.get(parameter.name)
        value = parameter.default if value is None else value
        if value is None and parameter.required:
            problem = f"parameter {parameter.name} is required: {_WANTED[parameter.type]}"
            errors.append(error(f"/{parameter.name}", "missing_parameter", problem))
        elif value is not None:
            try:
                found[parameter.name] = _read(parameter.type, value)
            except Invalid as refusal:
                problem = f"parameter {parameter.name}: {refusal.message}"
                errors.append(error(f"/{parameter.name}", refusal.reason, problem))
    refuse("bad_parameters", errors, "{message}")
    return found


def default(kind: FieldType, given: Any) -> Any:
    """A default as it is kept, if it is one that JSON can have for this type."""
    if not good(kind, given):
        raise Invalid("bad_value", f"expected {_WANTED[kind]}")
    _read(kind, given)
    return int(given) if isinstance(given, float) and given.is_integer() else given  # as every database gives it back


def _read(kind: FieldType, value: Any) -> Any:
    found = None
    match kind, value:
        case (FieldType.BOOLEAN, bool()) | (FieldType.STRING, str()):
            found = value
        case FieldType.BOOLEAN, "true" | "false":
            found = value == "true"
        case (FieldType.NUMBER, bool()) | (FieldType.DATE, datetime()):
            pass  # to Python they are an int and a date
        case FieldType.NUMBER, int() | float() | Decimal() | str():
            found = _number(value)
        case FieldType.DATE, date():
            found = value
        case FieldType.DATE, str() if good(kind, value):
            found = date.fromisoformat(value)
        case FieldType.DATETIME, datetime():
            found = _instant(value)
        case FieldType.DATETIME, str() if good(kind, value):
            found = _instant(datetime.fromisoformat(value.upper()))
    if found is None or (isinstance(found, str) and (len(found) > MAX_TEXT or unstorable(found))):
        raise Invalid("bad_value", f"expected {_WANTED[kind]}")
    return found


def _number(given: float | Decimal | str) -> int | Decimal | None:
    """Equal numbers become the same value, however they were written: the type of a decimal depends on its digits."""
    if isinstance(given, str) and not _NUMBER.fullmatch(given):
        return None
    try:
        number = Decimal(repr(given) if isinstance(given, float) else given)
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


def _instant(value: datetime) -> datetime | None:
    try:
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    except OverflowError:  # before the year 1 or after 9999, in UTC
        return None
