"""Parse the fields of a result schema, or infer them from columns or rows. All errors are collected."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.core.formatting import format_value
from penstock.core.payload.object_reader import (
    MemberError,
    ObjectReader,
    Problem,
    ReaderRules,
    escape_text,
    list_entries,
)
from penstock.core.result_schema.field import FieldType, ResultField, field_type
from penstock.core.result_schema.values import is_valid, json_type
from penstock.errors import Invalid

MAX_FIELDS = 2_000
MAX_DESCRIPTION = 10_000
ONLY_SCALARS = "Only scalar types allowed in query returns"  # the contract fixes this sentence

_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MEMBERS = ("name", "type", "optional", "array", "items", "description")
_NESTED_MEMBERS = ("fields", "properties")
_REASONS = {
    Problem.NOT_A_LIST: "bad_fields",
    Problem.EMPTY_LIST: "missing_fields",
    Problem.TOO_MANY_ITEMS: "too_many_fields",
    Problem.NOT_AN_OBJECT: "bad_field.not_an_object",
    Problem.NOT_A_FLAG: "bad_field.not_a_boolean",
    Problem.NOT_TEXT: "bad_description.too_long",
    Problem.TEXT_TOO_LONG: "bad_description.too_long",
    Problem.INVALID_CHARACTERS: "bad_description.characters",
}
_TYPES = {str(field_type): field_type for field_type in FieldType}
# In this order: a date is also valid as text, for example.
_INFERRED_TYPES = (FieldType.BOOLEAN, FieldType.NUMBER, FieldType.DATE, FieldType.DATETIME, FieldType.STRING)


def parse_fields(value: Any) -> tuple[ResultField, ...]:
    """Parse the fields of a payload.

    Raises:
        Invalid: with all errors
    """
    reader = _fields_reader(value)
    names = set[str]()
    for index, item in enumerate(reader.items("fields", MAX_FIELDS)):
        field = _field_reader(reader, index, item)
        if field.is_object:
            _check_name(field, names)
            _check_type(field)
            _check_members(field)
    _raise_errors(reader)
    return tuple(map(_to_field, value))


def fields_from_json(value: list[dict[str, Any]]) -> tuple[ResultField, ...]:
    """Convert stored JSON, which was validated before, to fields."""
    return tuple(map(_to_field, value))


def infer_fields(schema: pa.Schema) -> tuple[ResultField, ...]:
    """Infer fields from an Arrow schema."""
    reader = _fields_reader(list(schema))
    reader.items("fields", MAX_FIELDS)
    names, fields = set[str](), []
    for index, column in enumerate(schema):
        field = _field_reader(reader, index, {"name": column.name})
        _check_name(field, names)
        if (shape := field_type(column.type)) is None:
            _report_not_scalar(field, "type", format_value(column.type))
        else:
            fields.append(ResultField(column.name, shape[0], column.nullable, shape[1]))
    _raise_errors(reader)
    return tuple(fields)


def infer_fields_from_rows(rows: Sequence[Any]) -> tuple[ResultField, ...]:
    """Infer fields from JSON rows. A field without a value in some row is optional."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items() if isinstance(row, dict) else ():
            columns.setdefault(name, []).append(value)
    reader = _fields_reader(list(columns))
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            reader.add_error(f"rows/{index}", Invalid("bad_row"))
    if not reader.errors:
        reader.items("fields", MAX_FIELDS)
    names, fields = set[str](), []
    for index, (name, values) in enumerate(columns.items()):
        field = _field_reader(reader, index, {"name": name})
        _check_name(field, names)
        present = [value for value in values if value is not None]
        array = all(isinstance(value, list) for value in present)
        items = [item for value in present for item in value] if array else present
        inferred = next((t for t in _INFERRED_TYPES if items and all(is_valid(t, item) for item in items)), None)
        if inferred is not None:
            fields.append(ResultField(name, inferred, len(present) < len(rows), array))
        elif any(isinstance(item, dict | list) for item in items):
            _report_not_scalar(field, "type", "an object or an array of non-scalars")
        else:
            types = " and ".join(sorted({json_type(item) for item in items})) or "null"
            _add_error(field, "type", "mixed_types", {"name": escape_text(name), "types": types})
    _raise_errors(reader)
    return tuple(fields)


_STORED_TYPES = {data_type.value: data_type for data_type in FieldType}


def main_error(errors: Sequence[MemberError]) -> Invalid:
    """Return the error whose message is reported: the contract's sentence, if it is among the errors, or the first."""
    return next((member.error for member in errors if member.error.reason == "non_scalar_field"), errors[0].error)


def _to_field(item: dict[str, Any]) -> ResultField:
    data_type = _STORED_TYPES.get(item["type"])
    shape = (data_type, item.get("array", False)) if data_type else _parse_shape(item)
    assert shape is not None  # checked before
    return ResultField(item["name"], shape[0], item.get("optional", False), shape[1], item.get("description") or None)


def _parse_shape(item: Mapping[str, Any] | ObjectReader) -> tuple[FieldType, bool] | None:
    """Parse the type, and whether it is an array, in one of three notations; return None if it is not scalar."""
    match item.get("type"):
        case "array":
            match item.get("items"):
                case str() as type_name:
                    pass
                case {"type": str() as type_name, **rest} if not rest:
                    pass
                case _:
                    return None
            array = True
        case str() as type_name:
            array = type_name.endswith("[]")
            type_name = type_name.removesuffix("[]")
        case _:
            return None
    array_flag = item.get("array") is True
    if type_name not in _TYPES or (array and array_flag):  # both notations together mean an array of arrays
        return None
    return _TYPES[type_name], array or array_flag


def _fields_reader(fields: Any) -> ObjectReader:
    return ObjectReader({"fields": fields}, _field_rules(None))


def _field_reader(reader: ObjectReader, index: int, item: Any) -> ObjectReader:
    name = item.get("name") if isinstance(item, dict) else None
    return reader.child(f"fields/{index}", item, _field_rules(name))


def _field_rules(name: Any) -> ReaderRules:
    return ReaderRules(partial(_to_error, name), null_is_absent=False)


def _to_error(name: Any, problem: Problem, path: str, values: Mapping[str, Any]) -> Invalid:
    limits = {"max_fields": MAX_FIELDS, "max_length": MAX_DESCRIPTION}
    return Invalid(_REASONS[problem], {"member": path, **limits, **values}, **_field_fact(name))


def _field_fact(name: Any) -> dict[str, str]:
    return {"field": escape_text(name)} if isinstance(name, str) else {}


def _add_error(field: ObjectReader, path: str | None, key: str, values: Mapping[str, Any] | None = None) -> None:
    field.add_error(path, Invalid(key, values, **_field_fact(field.get("name"))))


def _check_name(field: ObjectReader, names: set[str]) -> None:
    name = field.get("name")
    if not isinstance(name, str) or not name:
        field.add_error("name", Invalid("bad_field_name.missing"))
    elif not _FIELD_NAME.fullmatch(name):
        _add_error(field, "name", "bad_field_name.characters", {"name": escape_text(name)})
    elif name in names:
        _add_error(field, "name", "duplicate_field_name", {"name": name})
    else:
        names.add(name)


def _check_type(field: ObjectReader) -> None:
    type = field.get("type")
    if nested := next((member for member in _NESTED_MEMBERS if member in field), None):
        _report_not_scalar(field, nested, "an object")
    elif "type" not in field:
        _add_error(field, "type", "non_scalar_field.missing_type", {"valid": list(FieldType)})
    elif type == "array" and "items" not in field:
        _add_error(field, "items", "non_scalar_field.missing_items")
    elif type != "array" and "items" in field:
        _add_error(field, "items", "bad_field_type.unexpected_items")
    elif _parse_shape(field) is None:
        member, actual = ("items", "an array of non-scalars") if type == "array" else ("type", type)
        _report_not_scalar(field, member, actual if isinstance(actual, str) else json_type(actual))


def _check_members(field: ObjectReader) -> None:
    field.flag("optional", False)
    field.flag("array", False)
    if field.get("description") is not None:
        field.text("description", None, max_length=MAX_DESCRIPTION)
    if unknown := field.find_unknown((*_MEMBERS, *_NESTED_MEMBERS)):
        values = {"unknown": [escape_text(member) for member in unknown[:5]], "valid": _MEMBERS}
        _add_error(field, None, "unknown_member.field", values)


def _report_not_scalar(field: ObjectReader, member: str, actual: str) -> None:
    label = _field_fact(field.get("name")).get("field")
    subject = f"'{label}'" if label else "a field"
    values = {"subject": subject, "actual": escape_text(actual)[:60], "valid": list(FieldType)}
    _add_error(field, member, "non_scalar_field", values)


def _raise_errors(reader: ObjectReader) -> None:
    if errors := reader.errors:
        main = main_error(errors)
        more = f" ({len(errors) - 1} more in errors)" if len(errors) > 1 else ""
        raise Invalid(main.reason, main.message + more, **main.context, errors=list_entries(errors))
