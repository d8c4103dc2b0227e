"""Parse type names, and convert schemas to and from JSON."""

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.schema.canonical import SCALAR_TYPES
from penstock.errors import Invalid

Fields = list[dict[str, Any]]  # a schema as JSON: [{"name": "id", "type": "int64", "nullable": false}, …]

_TYPE_ALIASES: dict[str, pa.DataType] = {
    **{name.replace(" ", "").lower(): data_type for name, data_type in SCALAR_TYPES.items()},
    "boolean": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "integer": pa.int32(),
    "long": pa.int64(), "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "float32": pa.float32(), "float64": pa.float64(), "text": pa.string(), "date": pa.date32(), "date32": pa.date32(),
    "timestamp": pa.timestamp("us"), "timestamp_utc": pa.timestamp("us", "UTC"),
}  # fmt: skip


def parse_type(text: str) -> pa.DataType:
    """Parse a type name such as int64, string, decimal(12,2), timestamp or list<int64>."""
    word = text.strip().lower().replace(" ", "")
    if word in _TYPE_ALIASES:
        return _TYPE_ALIASES[word]
    if word.startswith(("decimal(", "decimal128(")) and word.endswith(")"):
        digits = word[word.index("(") + 1 : -1].split(",")
        if len(digits) == 2 and all(d.isdigit() and len(d) < 3 for d in digits):
            precision, scale = map(int, digits)
            if max(scale, 1) <= precision <= 38:
                return pa.decimal128(precision, scale)
    if word.startswith("list<") and word.endswith(">"):
        return pa.list_(parse_type(word[5:-1]))
    raise Invalid("unknown_type.type_name", {"text": ascii(text)[:80], "valid": sorted(_TYPE_ALIASES)})


def to_fields(schema: pa.Schema) -> Fields:
    """Convert a schema to its JSON form."""
    return [{"name": f.name, "type": _type_to_json(f.type), "nullable": f.nullable} for f in schema]


def from_fields(fields: Fields) -> pa.Schema:
    """Convert the JSON form of a schema to Arrow."""
    return pa.schema([pa.field(f["name"], _type_from_json(f["type"]), f["nullable"]) for f in fields])


def _type_to_json(data_type: pa.DataType) -> Any:
    if pt.is_list(data_type):
        return {"list": _type_to_json(data_type.value_type)}
    if pt.is_struct(data_type):
        return {"struct": [[f.name, _type_to_json(f.type)] for f in data_type]}
    if pt.is_decimal(data_type):
        return {"decimal": [data_type.precision, data_type.scale]}
    return str(data_type)


def _type_from_json(stored: Any) -> pa.DataType:
    match stored:
        case {"list": item}:
            return pa.list_(_type_from_json(item))
        case {"struct": inner}:
            return pa.struct([(name, _type_from_json(part)) for name, part in inner])
        case {"decimal": [precision, scale]}:
            return pa.decimal128(precision, scale)
        case str():
            return SCALAR_TYPES[stored]
    raise ValueError(f"not a stored type: {stored!r}")
