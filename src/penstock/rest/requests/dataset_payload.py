"""A dataset as JSON asks for it: its name, its columns, its flags."""

from typing import Any

import pyarrow as pa

from penstock.core.names import DatasetName
from penstock.core.schema.canonical import parse_type
from penstock.errors import Invalid

_MEMBERS = {"name", "schema", "row_ids", "read_only"}
_LONGEST_TYPE, _DEEPEST_TYPE = 200, 20


def creation(asked: dict[str, Any]) -> tuple[DatasetName, pa.Schema, dict[str, bool]]:
    if unknown := sorted(asked.keys() - _MEMBERS):
        raise Invalid("unknown_member", f"{unknown[0]!r} is no member here; there are {', '.join(sorted(_MEMBERS))}")
    if not isinstance(asked.get("name"), str):
        raise Invalid("no_name", "say the dataset's name: schema.table")
    flags: dict[str, bool] = {flag: asked[flag] for flag in ("row_ids", "read_only") if flag in asked}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise Invalid("bad_member", "row_ids and read_only are true or false")
    return DatasetName.parse(asked["name"]), _schema(asked.get("schema")), flags


def _schema(fields: Any) -> pa.Schema:
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise Invalid("no_schema", 'say the columns: "schema": [{"name": "id", "type": "int64", "nullable": false}, …]')
    columns = []
    for place, field in enumerate(fields):
        match field:
            case {"name": str(name), "type": kind, **rest} if rest.keys() <= {"nullable"}:
                nullable = rest.get("nullable", True)
                if isinstance(nullable, bool):
                    columns.append(pa.field(_sayable(name), _type(kind), nullable))
                    continue
        raise Invalid(
            "bad_column",
            f"column {place} must have a name, a type, and nullable (true or false) if you like",
            column=place,
        )
    return pa.schema(columns)


def _type(kind: Any, depth: int = 0) -> pa.DataType:
    """As `GET …/schema` tells it, or as people write it."""
    match kind:
        case _ if depth > _DEEPEST_TYPE:
            pass
        case str() if len(kind) <= _LONGEST_TYPE:
            return parse_type(kind)
        case {"decimal": [int(precision), int(scale)], **rest} if not rest:
            return parse_type(f"decimal({precision},{scale})")
        case {"list": inner, **rest} if not rest:
            return pa.list_(_type(inner, depth + 1))
        case {"struct": [*parts], **rest} if not rest and all(map(_is_part, parts)):
            return pa.struct([(_sayable(name), _type(inner, depth + 1)) for name, inner in parts])
    raise Invalid("unknown_type", f"{str(kind)[:80]!r} is no type; write int64, string, decimal(12,2), list<int64> …")


def _is_part(part: Any) -> bool:
    return isinstance(part, list) and len(part) == 2 and isinstance(part[0], str)


def _sayable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Invalid("bad_column_name", "the name of a column is not UTF-8 text") from None
    return name
