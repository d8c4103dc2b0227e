"""A field of a promise: what it is called, which values it takes, and whether it may be without one."""

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


_ARROW: list[tuple[Callable[[pa.DataType], bool], FieldType]] = [
    (pt.is_boolean, FieldType.BOOLEAN),
    (lambda t: pt.is_integer(t) or pt.is_floating(t) or pt.is_decimal(t), FieldType.NUMBER),
    (lambda t: pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t), FieldType.STRING),
    (pt.is_date, FieldType.DATE),
    (pt.is_timestamp, FieldType.DATETIME),
]
_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)


def field_type(given: pa.DataType) -> tuple[FieldType, bool] | None:
    """Which fields a column of this type can fill, and whether as an array; None for none."""
    if is_list(given):
        item = field_type(given.value_type)
        return None if item is None or item[1] else (item[0], True)
    if pt.is_dictionary(given):
        return field_type(given.value_type)
    return next(((kind, False) for is_such, kind in _ARROW if is_such(given)), None)


def is_list(given: pa.DataType) -> bool:
    return any(is_such(given) for is_such in _LISTS)


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
