"""Read a promise from a payload, from columns or from rows, or tell all that is wrong with it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.core.result_schema.field import Field, FieldType, field_type
from penstock.core.result_schema.values import good, json_type, shown
from penstock.core.names import unstorable
from penstock.errors import Invalid

MAX_FIELDS = 2_000
MAX_DESCRIPTION = 10_000
ONLY_SCALARS = "Only scalar types allowed in query returns"  # clients know this sentence

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MEMBERS = ("name", "type", "optional", "array", "items", "description")
_NESTED = ("fields", "properties")
_TYPES = {str(kind): kind for kind in FieldType}
_GUESSES = (FieldType.BOOLEAN, FieldType.NUMBER, FieldType.DATE, FieldType.DATETIME, FieldType.STRING)


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
        label = shown(name) if isinstance(name, str) else None
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
            problems.append(_nested(shown(column.name), str(column.type), f"{pointer}/type"))
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
            problems.append(_nested(shown(name), "an object, or an array of more than scalars", f"{pointer}/type"))
        else:
            kinds = " and ".join(sorted({json_type(item) for item in items})) or "without a value"
            problem = f"'{shown(name)}' is {kinds} in these rows; a field has one type"
            problems.append(_Problem("no_one_type", f"{pointer}/type", problem, shown(name)))
    _refuse(problems)
    return tuple(found)


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
        yield _Problem("bad_field_name", pointer, f"'{shown(name)}' is no field name: {rule}", shown(name))
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
    if unknown := [shown(member) for member in given if member not in (*_MEMBERS, *_NESTED)]:
        problem = f"a field has no {', '.join(unknown[:5])}; it has {', '.join(_MEMBERS)}"
        yield _Problem("unknown_member", pointer, problem, label)


def _nested(label: str | None, actual: str, pointer: str) -> _Problem:
    subject, wanted = f"'{label}'" if label else "a field", f"use {', '.join(FieldType)}, or an array of one of them"
    return _Problem("non_scalar_field", pointer, f"{ONLY_SCALARS}: {subject} is {shown(actual)[:60]}; {wanted}", label)


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
