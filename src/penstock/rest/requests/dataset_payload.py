"""Parse the JSON body that creates a dataset: name, columns and flags."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.core.names import DatasetName
from penstock.core.schema.type_names import parse_type
from penstock.errors import Invalid

_MEMBERS = {"name", "schema", "row_ids", "read_only", "cluster_by"}
_MAX_TYPE_CHARACTERS, _MAX_TYPE_DEPTH = 200, 20


@dataclass(frozen=True, slots=True)
class NewDatasetPayload:
    name: DatasetName
    schema: pa.Schema
    flags: dict[str, bool]  # those that are present
    cluster_by: list[str]


def parse_new_dataset(payload: dict[str, Any]) -> NewDatasetPayload:
    """Parse the name, the schema, the flags that are present, and the cluster key.

    Raises:
        Invalid: a member is missing, unknown or malformed
    """
    if unknown := sorted(payload.keys() - _MEMBERS):
        raise Invalid("unknown_member.dataset", {"member": unknown[0], "valid": sorted(_MEMBERS)})
    if not isinstance(payload.get("name"), str):
        raise Invalid("missing_name.body")
    flags: dict[str, bool] = {flag: payload[flag] for flag in ("row_ids", "read_only") if flag in payload}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise Invalid("bad_member.dataset_flags")
    cluster_by = payload.get("cluster_by", [])
    if not isinstance(cluster_by, list) or not all(isinstance(name, str) for name in cluster_by):
        raise Invalid("bad_member.cluster_by")
    return NewDatasetPayload(
        DatasetName.parse(payload["name"]), _parse_schema(payload.get("schema")), flags, cluster_by
    )


def _parse_schema(fields: Any) -> pa.Schema:
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise Invalid("missing_schema.dataset")
    columns = []
    for position, field in enumerate(fields):
        match field:
            case {"name": str(name), "type": type_name, **rest} if rest.keys() <= {"nullable"}:
                nullable = rest.get("nullable", True)
                if isinstance(nullable, bool):
                    columns.append(pa.field(_require_utf8(name), _parse_type(type_name), nullable))
                    continue
        raise Invalid("bad_column", column=position)
    return pa.schema(columns)


def _parse_type(type_name: Any, depth: int = 0) -> pa.DataType:
    """Parse a type as text, or as the JSON that `GET …/schema` returns."""
    match type_name:
        case _ if depth > _MAX_TYPE_DEPTH:
            pass
        case str() if len(type_name) <= _MAX_TYPE_CHARACTERS:
            return parse_type(type_name)
        case {"decimal": [int(precision), int(scale)], **rest} if not rest:
            return parse_type(f"decimal({precision},{scale})")
        case {"list": inner, **rest} if not rest:
            return pa.list_(_parse_type(inner, depth + 1))
        case {"struct": [*parts], **rest} if not rest and all(map(_is_struct_field, parts)):
            return pa.struct([(_require_utf8(name), _parse_type(inner, depth + 1)) for name, inner in parts])
    raise Invalid("unknown_type.column", {"type": str(type_name)[:80]})


def _is_struct_field(part: Any) -> bool:
    return isinstance(part, list) and len(part) == 2 and isinstance(part[0], str)


def _require_utf8(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Invalid("bad_column_name.not_utf8") from None
    return name
