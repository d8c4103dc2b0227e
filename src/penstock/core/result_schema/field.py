"""Fields of a result schema: name, type, and whether a value is required."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.types as pt


class FieldType(StrEnum):
    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DATE = "date"
    DATETIME = "datetime"


@dataclass(frozen=True, slots=True)
class ResultField:
    name: str
    type: FieldType
    optional: bool = False
    array: bool = False
    description: str | None = None

    @property
    def expected(self) -> str:
        return f"{self.type}[]" if self.array else str(self.type)

    def as_json(self) -> dict[str, Any]:
        members: dict[str, Any] = {"name": self.name, "type": str(self.type), "optional": self.optional}
        if self.array:
            members["array"] = True
        if self.description is not None:
            members["description"] = self.description
        return members


_ARROW_TESTS: list[tuple[Callable[[pa.DataType], bool], FieldType]] = [
    (pt.is_boolean, FieldType.BOOLEAN),
    (lambda t: pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t), FieldType.NUMBER),
    (lambda t: pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t), FieldType.STRING),
    (pt.is_date, FieldType.DATE),
    (pt.is_timestamp, FieldType.DATETIME),
]
_LIST_TESTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)


def field_type(data_type: pa.DataType) -> tuple[FieldType, bool] | None:
    """Return the field type for an Arrow type, and whether it is an array; None if there is none."""
    if is_list(data_type):
        item = field_type(data_type.value_type)
        return None if item is None or item[1] else (item[0], True)
    if pt.is_dictionary(data_type):
        return field_type(data_type.value_type)
    return next(((declared, False) for matches, declared in _ARROW_TESTS if matches(data_type)), None)


def is_list(data_type: pa.DataType) -> bool:
    return any(matches(data_type) for matches in _LIST_TESTS)


_JSON_SCHEMAS: dict[FieldType, dict[str, str]] = {
    FieldType.STRING: {"type": "string"},
    FieldType.NUMBER: {"type": "number"},
    FieldType.BOOLEAN: {"type": "boolean"},
    FieldType.DATE: {"type": "string", "format": "date"},
    FieldType.DATETIME: {"type": "string", "format": "date-time"},
}


def json_schema(name: str, description: str | None, fields: Sequence[ResultField]) -> dict[str, Any]:
    """Return the JSON Schema of one row."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        **({} if description is None else {"description": description}),
        "type": "object",
        "properties": {field.name: _property(field) for field in fields},
        "required": [field.name for field in fields if not field.optional],
        "additionalProperties": True,
    }


def _property(field: ResultField) -> dict[str, Any]:
    scalar = _JSON_SCHEMAS[field.type]
    schema: dict[str, Any] = {"type": "array", "items": dict(scalar)} if field.array else dict(scalar)
    if field.optional:
        schema["type"] = [schema["type"], "null"]
    return schema if field.description is None else {**schema, "description": field.description}
