"""What a query promises to return: the fields of a row, how a promise may change, and whether rows keep it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.names import unstorable
from penstock.errors import Invalid

MAX_FIELDS = 2_000
MAX_DESCRIPTION = 10_000
MAX_DESCRIBED = 100  # errors of a result; the others are only counted
ONLY_SCALARS = "Only scalar types allowed in query returns"  # clients know this sentence

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MEMBERS = ("name", "type", "optional", "array", "items", "description")
_NESTED = ("fields", "properties")


class FieldType(StrEnum):
    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DATE = "date"
    DATETIME = "datetime"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: FieldType
    optional: bool = False
    array: bool = False
    description: str | None = None

    @property
    def expected(self) -> str:
        return f"{self.type}[]" if self.array else str(self.type)

    def as_json(self) -> dict[str, Any]:
        shape: dict[str, Any] = {"name": self.name, "type": str(self.type), "optional": self.optional}
        if self.array:
            shape["array"] = True
        if self.description is not None:
            shape["description"] = self.description
        return shape


# -- reading a promise ------------------------------------------------------------------------------------------------

_TYPES = {str(kind): kind for kind in FieldType}
_GUESSES = (FieldType.BOOLEAN, FieldType.NUMBER, FieldType.DATE, FieldType.DATETIME, FieldType.STRING)
_ARROW: list[tuple[Callable[[pa.DataType], bool], FieldType]] = [
    (pt.is_boolean, FieldType.BOOLEAN),
    (lambda t: pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t), FieldType.NUMBER),
    (lambda t: pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t), FieldType.STRING),
    (pt.is_date, FieldType.DATE),
    (pt.is_timestamp, FieldType.DATETIME),
]
_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)


@dataclass(frozen=True, slots=True)
class _Problem:
    code: str
    pointer: str
    message: str
    field: str | None


def fields(value: Any) -> tuple[Field, ...]:
    """The fields that a payload lists, or all that is wrong with them."""
    if not isinstance(value, list):
        _refuse([_Problem("bad_fields", "/fields", "fields must be an array of field definitions", None)])
    problems = list(_miscounted(value))
    names = set[str]()
    for place, given in enumerate(value[:MAX_FIELDS]):
        pointer = f"/fields/{place}"
        if not isinstance(given, dict):
            problems.append(_Problem("bad_field", pointer, "a field must be an object with a name and a type", None))
            continue
        name = given.get("name")
        label = _shown(name) if isinstance(name, str) else None
        problems += _misnamed(name, names, pointer)
        problems += _mistyped(given, label, pointer)
        problems += _misdescribed(given, label, pointer)
    _refuse(problems)
    return tuple(map(_field, value))


def stored(value: list[dict[str, Any]]) -> tuple[Field, ...]:
    """The fields that were kept as their own JSON."""
    return tuple(map(_field, value))


def inferred(schema: pa.Schema) -> tuple[Field, ...]:
    """The fields that rows of this schema can promise."""
    problems = list(_miscounted(schema))
    names, found = set[str](), []
    for place, column in enumerate(schema):
        pointer = f"/fields/{place}"
        problems += _misnamed(column.name, names, pointer)
        if (shape := field_type(column.type)) is None:
            problems.append(_nested(_shown(column.name), str(column.type), f"{pointer}/type"))
        else:
            found.append(Field(column.name, shape[0], column.nullable, shape[1]))
    _refuse(problems)
    return tuple(found)


def inferred_rows(rows: Sequence[Any]) -> tuple[Field, ...]:
    """The fields that these rows, as JSON brings them, keep. One that lacks a value in some row is optional."""
    columns: dict[str, list[Any]] = {}
    problems = []
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            problems.append(_Problem("bad_row", f"/rows/{place}", "a row must be an object", None))
            continue
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    problems += [] if problems else _miscounted(list(columns))
    names, found = set[str](), []
    for place, (name, values) in enumerate(columns.items()):
        pointer = f"/fields/{place}"
        problems += _misnamed(name, names, pointer)
        there = [value for value in values if value is not None]
        array = all(isinstance(value, list) for value in there)
        items = [item for value in there for item in value] if array else there
        kind = next((kind for kind in _GUESSES if items and all(good(kind, item) for item in items)), None)
        if kind is not None:
            found.append(Field(name, kind, len(there) < len(rows), array))
        elif any(isinstance(item, dict | list) for item in items):
            problems.append(_nested(_shown(name), "an object, or an array of more than scalars", f"{pointer}/type"))
        else:
            kinds = " and ".join(sorted({json_type(item) for item in items})) or "without a value"
            problem = f"'{_shown(name)}' is {kinds} in these rows; a field has one type"
            problems.append(_Problem("no_one_type", f"{pointer}/type", problem, _shown(name)))
    _refuse(problems)
    return tuple(found)


def field_type(given: pa.DataType) -> tuple[FieldType, bool] | None:
    """Which fields a column of this type can fill, and whether as an array; None for none."""
    if any(is_list(given) for is_list in _LISTS):
        item = field_type(given.value_type)
        return None if item is None or item[1] else (item[0], True)
    if pt.is_dictionary(given):
        return field_type(given.value_type)
    return next(((kind, False) for is_such, kind in _ARROW if is_such(given)), None)


def _field(given: dict[str, Any]) -> Field:
    shape = _shape(given)
    assert shape is not None  # it was checked
    return Field(given["name"], shape[0], given.get("optional", False), shape[1], given.get("description") or None)


def _shape(given: dict[str, Any]) -> tuple[FieldType, bool] | None:
    """The type and whether it is an array of it, said in one of three ways; None for anything else."""
    match given.get("type"):
        case "array":
            match given.get("items"):
                case str() as item:
                    pass
                case {"type": str() as item, **rest} if not rest:
                    pass
                case _:
                    return None
            array = True
        case str() as item:
            array = item.endswith("[]")
            item = item.removesuffix("[]")
        case _:
            return None
    said = given.get("array") is True
    if item not in _TYPES or (array and said):  # said twice, it is an array of arrays
        return None
    return _TYPES[item], array or said


def _miscounted(many: Sequence[Any]) -> Iterator[_Problem]:
    if not many:
        yield _Problem("no_fields", "/fields", "at least one field is required", None)
    if len(many) > MAX_FIELDS:
        yield _Problem("too_many_fields", "/fields", f"{len(many):,} fields; at most {MAX_FIELDS:,} are allowed", None)


def _misnamed(name: Any, names: set[str], pointer: str) -> Iterator[_Problem]:
    pointer = f"{pointer}/name"
    if not isinstance(name, str) or not name:
        yield _Problem("bad_field_name", pointer, "a field needs a name", None)
    elif not _NAME.fullmatch(name):
        rule = "use 1 to 128 letters, digits and _, and start with a letter or _"
        yield _Problem("bad_field_name", pointer, f"'{_shown(name)}' is no field name: {rule}", _shown(name))
    elif name in names:
        yield _Problem("doubled_field_name", pointer, f"there is a field {name!r} already", name)
    else:
        names.add(name)


def _mistyped(given: dict[str, Any], label: str | None, pointer: str) -> Iterator[_Problem]:
    if nested := next((member for member in _NESTED if member in given), None):
        yield _nested(label, "an object", f"{pointer}/{nested}")
    elif "type" not in given:
        wanted = f"a field needs a type: {', '.join(FieldType)}"
        yield _Problem("bad_field_type", f"{pointer}/type", wanted, label)
    elif given["type"] == "array" and "items" not in given:
        yield _Problem("bad_field_type", f"{pointer}/items", "an array needs items: the type of its values", label)
    elif given["type"] != "array" and "items" in given:
        yield _Problem("bad_field_type", f"{pointer}/items", "items go with the type array only", label)
    elif _shape(given) is None:
        kind = given["type"]
        member, actual = ("items", "an array of something else") if kind == "array" else ("type", kind)
        yield _nested(label, actual if isinstance(actual, str) else json_type(actual), f"{pointer}/{member}")


def _misdescribed(given: dict[str, Any], label: str | None, pointer: str) -> Iterator[_Problem]:
    for member in ("optional", "array"):
        if not isinstance(given.get(member, False), bool):
            yield _Problem("bad_field", f"{pointer}/{member}", f"{member} must be true or false", label)
    if (text := given.get("description")) is not None:
        problem = f"a description must be text of at most {MAX_DESCRIPTION:,} characters"
        if not isinstance(text, str) or len(text) > MAX_DESCRIPTION:
            yield _Problem("bad_description", f"{pointer}/description", problem, label)
        elif unstorable(text):
            problem = "a description cannot hold NUL or half a character"
            yield _Problem("bad_description", f"{pointer}/description", problem, label)
    if unknown := [_shown(member) for member in given if member not in (*_MEMBERS, *_NESTED)]:
        problem = f"a field has no {', '.join(unknown[:5])}; it has {', '.join(_MEMBERS)}"
        yield _Problem("unknown_member", pointer, problem, label)


def _nested(label: str | None, actual: str, pointer: str) -> _Problem:
    subject, wanted = f"'{label}'" if label else "a field", f"use {', '.join(FieldType)}, or an array of one of them"
    return _Problem("non_scalar_field", pointer, f"{ONLY_SCALARS}: {subject} is {_shown(actual)[:60]}; {wanted}", label)


def _refuse(problems: list[_Problem]) -> None:
    if not problems:
        return
    worst = next((problem for problem in problems if problem.code == "non_scalar_field"), problems[0])
    more = f" ({len(problems) - 1} more in errors)" if len(problems) > 1 else ""
    raise Invalid(
        worst.code,
        worst.message + more,
        **({} if worst.field is None else {"field": worst.field}),
        errors=[{"pointer": it.pointer, "message": it.message, "code": it.code} for it in problems],
    )


def _shown(text: str) -> str:
    """Text from outside, safe to print: escaped and cut."""
    return ascii(text[:128])[1:-1]


# -- how a promise changes --------------------------------------------------------------------------------------------


class Change(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    REORDERED = "reordered"


@dataclass(frozen=True, slots=True)
class Difference:
    change: Change
    field: str | None  # None where it is about all of them
    member: str | None  # of the field, where one was changed
    old: Any
    new: Any

    def as_json(self) -> dict[str, Any]:
        return {
            "change": str(self.change),
            **({} if self.field is None else {"field": self.field}),
            **({} if self.member is None else {"member": self.member}),
            **({} if self.change is Change.ADDED else {"from": self.old}),
            **({} if self.change is Change.REMOVED else {"to": self.new}),
        }

    @property
    def breaks(self) -> bool:
        """Can a reader who trusted the old promise be let down by the new one?"""
        match self.change, self.member:
            case Change.REMOVED, _:
                return not self.old["optional"]
            case Change.CHANGED, "optional":
                return bool(self.new)
            case Change.CHANGED, "type" | "array":
                return True
        return False


def diff(old: Sequence[Field], new: Sequence[Field]) -> list[Difference]:
    before, after = {field.name: field for field in old}, {field.name: field for field in new}
    found = [
        Difference(Change.REMOVED, name, None, field.as_json(), None)
        for name, field in before.items()
        if name not in after
    ]
    for name, field in after.items():
        if (was := before.get(name)) is None:
            found.append(Difference(Change.ADDED, name, None, None, field.as_json()))
            continue
        for member in ("type", "array", "optional", "description"):
            one, other = getattr(was, member), getattr(field, member)
            if one != other:
                found.append(Difference(Change.CHANGED, name, member, one, other))
    stayed = [name for name in before if name in after]
    if stayed != (moved := [name for name in after if name in before]):
        found.append(Difference(Change.REORDERED, None, None, stayed, moved))
    return found


def breaking(old: Sequence[Field], new: Sequence[Field]) -> list[Difference]:
    """The differences that break readers."""
    return [difference for difference in diff(old, new) if difference.breaks]


_SCHEMAS: dict[FieldType, dict[str, str]] = {
    FieldType.STRING: {"type": "string"},
    FieldType.NUMBER: {"type": "number"},
    FieldType.BOOLEAN: {"type": "boolean"},
    FieldType.DATE: {"type": "string", "format": "date"},
    FieldType.DATETIME: {"type": "string", "format": "date-time"},
}


def json_schema(name: str, description: str | None, fields: Sequence[Field]) -> dict[str, Any]:
    """One row, told to those who read JSON Schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        **({} if description is None else {"description": description}),
        "type": "object",
        "properties": {field.name: _property(field) for field in fields},
        "required": [field.name for field in fields if not field.optional],
        "additionalProperties": True,
    }


def _property(field: Field) -> dict[str, Any]:
    scalar = _SCHEMAS[field.type]
    shape: dict[str, Any] = {"type": "array", "items": dict(scalar)} if field.array else dict(scalar)
    if field.optional:
        shape["type"] = [shape["type"], "null"]
    return shape if field.description is None else {**shape, "description": field.description}


# -- whether rows keep it ---------------------------------------------------------------------------------------------

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
# RFC 3339, and without an offset too. No leap seconds: no timestamp of a dataset can hold one.
_MOMENT = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    count: int  # of all errors; the first of them are described
    errors: tuple[dict[str, Any], ...]

    @property
    def valid(self) -> bool:
        return not self.count

    def as_json(self) -> dict[str, Any]:
        return {"valid": self.valid, "error_count": self.count, "errors": list(self.errors)}


def check_rows(fields: Sequence[Field], rows: Any, *, strict: bool = False) -> Verdict:
    """Do rows that came as JSON keep the promise? Members that nobody promised are refused only if `strict`.

    A row costs what it holds, not what was promised: of many errors only those that are told are looked for by field.
    """
    if not isinstance(rows, list):
        return Verdict(1, (_error(None, None, "array", json_type(rows), "Result must be array"),))
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


def good(kind: FieldType, value: Any) -> bool:
    """Is this value, as JSON brings it, one of the type? The one place that says so."""
    match kind:
        case FieldType.STRING:
            return isinstance(value, str)
        case FieldType.BOOLEAN:
            return isinstance(value, bool)
        case FieldType.NUMBER:
            return json_type(value) == "number"
        case FieldType.DATE:
            return isinstance(value, str) and _DATE.fullmatch(value) is not None and _is_day(value)
        case FieldType.DATETIME:
            found = _MOMENT.fullmatch(value) if isinstance(value, str) else None
            return found is not None and _is_day(found["day"])


def json_type(value: Any) -> str:
    """What JSON calls such a value; NaN and the infinities have no place in JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case float() if not isfinite(value):
            return "non-finite number"
        case Decimal() if not value.is_finite():
            return "non-finite number"
        case int() | float() | Decimal():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:  # such as 2026-02-30
        return False
    return True


def _errors(
    fields: Sequence[Field], known: Mapping[str, Field], number: int, row: Any, strict: bool
) -> Iterator[dict[str, Any]]:
    if not isinstance(row, dict):
        yield _error(number, None, "object", json_type(row), "Row must be object")
        return
    for field in fields:
        if field.name not in row:
            if not field.optional:
                yield _error(number, field.name, field.expected, None, f"Missing required field: {field.name}")
        elif (actual := _mismatch(field, row[field.name])) is not None:
            yield _error(number, field.name, field.expected, actual, f"Type mismatch for field {field.name}")
    if strict:
        for name in row:
            if name not in known:
                shown = _shown(name)
                yield _error(number, shown, None, json_type(row[name]), f"Unexpected field: {shown}")


def _mismatch(field: Field, value: Any) -> str | None:
    """What the value is, if it is not what the field promises. An array holds no nulls."""
    if value is None and field.optional:
        return None
    if not field.array:
        return None if good(field.type, value) else json_type(value)
    if not isinstance(value, list):
        return json_type(value)
    return next((f"array with {json_type(item)}" for item in value if not good(field.type, item)), None)


def _error(
    row: int | None, field: str | None, expected: str | None, actual: str | None, message: str
) -> dict[str, Any]:
    place = {name: value for name, value in (("row", row), ("field", field)) if value is not None}
    return {**place, "expected": expected, "actual": actual, "message": message}
