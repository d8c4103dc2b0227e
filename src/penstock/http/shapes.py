"""The shapes of bodies, sent and answered, for the document that programs read.

An answer has the members that its shape names and no others. What is sent may say less than the shape of the answer.
"""

from typing import Any

from penstock.core.contract import MAX_DESCRIPTION, MAX_FIELDS, FieldType
from penstock.core.lifecycle import State
from penstock.core.registry import MAX_NAME

Shape = dict[str, Any]


def of(name: str) -> Shape:
    """One of `SHAPES`, by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def members(needed: dict[str, Shape], optional: dict[str, Shape] | None = None) -> Shape:
    """An object of these members and no others."""
    properties = {**needed, **(optional or {})}
    return {"type": "object", "required": list(needed), "properties": properties, "additionalProperties": False}


def many(items: Shape) -> Shape:
    return {"type": "array", "items": items}


def page(items: Shape) -> Shape:
    """A page of a search. `$select` decides what is in its items."""
    return members({"@odata.context": TEXT, "value": many(items)}, {"@odata.count": COUNT, "@odata.nextLink": LINK})


TEXT: Shape = {"type": "string"}
FLAG: Shape = {"type": "boolean"}
COUNT: Shape = {"type": "integer", "minimum": 0}
NUMBER: Shape = {"type": "integer", "minimum": 1}
ID: Shape = {"type": "string", "format": "uuid"}
MOMENT: Shape = {"type": "string", "format": "date-time"}
LINK: Shape = {"type": "string", "format": "uri-reference"}
BYTES: Shape = {"type": "string", "format": "binary"}
NOTE: Shape = {"type": ["string", "null"]}
ANY_OBJECT: Shape = {"type": "object"}
_IGNORED: Shape = {"description": "Kept by the server; what is sent here is ignored."}

PROBLEM: Shape = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "code", "error"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What went wrong, and what to do about it."},
        "instance": {"type": "string", "description": "The path that was asked for."},
        "code": {"type": "string", "description": "The reason: one word that never changes."},
        "error": {"type": "string", "description": "The reason as a short sentence."},
        "errors": {"type": "array", "description": "Each thing that is wrong, where there are several."},
    },
    "additionalProperties": True,
}

# -- schemas of what queries return

_SCALARS = [str(kind) for kind in FieldType]
_STATES = [str(state) for state in State]
_FIELD_NAME = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,127}$"}
_METADATA = {"type": ["object", "null"]}
_FIELD = members(
    {"name": _FIELD_NAME, "type": {"enum": _SCALARS}, "optional": FLAG},
    {"array": FLAG, "description": TEXT},
)
_FIELD_MORE = {"optional": FLAG, "description": {"type": ["string", "null"], "maxLength": MAX_DESCRIPTION}}
_FIELD_SENT = {
    "description": "A scalar, or an array of scalars in one of three spellings.",
    "oneOf": [
        members({"name": _FIELD_NAME, "type": {"enum": _SCALARS}}, {"array": FLAG, **_FIELD_MORE}),
        members(
            {"name": _FIELD_NAME, "type": {"enum": [f"{kind}[]" for kind in _SCALARS]}},
            {"array": {"const": False}, **_FIELD_MORE},
        ),
        members(
            {
                "name": _FIELD_NAME,
                "type": {"const": "array"},
                "items": {"oneOf": [{"enum": _SCALARS}, members({"type": {"enum": _SCALARS}})]},
            },
            {"array": {"const": False}, **_FIELD_MORE},
        ),
    ],
}
_FIELDS_SENT = {"type": "array", "minItems": 1, "maxItems": MAX_FIELDS, "items": of("FieldSent")}
_SAID = {"description": NOTE, "fields": many(of("Field")), "metadata": _METADATA, "state": {"enum": _STATES}}
_ENTRY = {
    "id": ID, "gts_id": TEXT, "tenant_id": {"type": ["string", "null"], "format": "uuid"}, "type_id": TEXT,
    "name": TEXT, **_SAID, "version": NUMBER, "state_changed_at": MOMENT,
    "created_at": MOMENT, "created_by": ID, "updated_at": MOMENT, "updated_by": ID,
}  # fmt: skip
_NAME_SENT = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
_NOTES_SENT = {"description": NOTE, "metadata": _METADATA}
_KEPT = ("id", "gts_id", "tenant_id", "state_changed_at", "created_at", "created_by", "updated_at", "updated_by")
_IGNORES = dict.fromkeys(_KEPT, _IGNORED)
_FIXED: dict[str, Shape] = {
    "type_id": {"description": "As it is, if it is sent."},
    "state": {"description": "As it is, if it is sent."},
    "version": {
        "type": ["integer", "null"],
        "minimum": 1,
        "description": "The version that the change is made for, unless If-Match says it.",
    },
}
_DIFFERENCE = members(
    {"change": {"enum": ["added", "removed", "changed", "reordered"]}},
    {"field": TEXT, "member": TEXT, "from": {}, "to": {}},
)
_DIFFERENCES = {
    "members": many(TEXT), "fields": many(of("Difference")), "compatible": FLAG, "breaking": many(of("Difference")),
}  # fmt: skip
_REFERENCE = members({"id": ID, "name": TEXT, "state": TEXT, "version": NUMBER})
_COMPLAINT = members({"expected": NOTE, "actual": NOTE, "message": TEXT}, {"row": COUNT, "field": TEXT})


def _flat_or_wrapped(shape: Shape) -> Shape:
    return {"anyOf": [shape, members({"entity": shape})]}


# -- datasets

_COLUMN_TYPE = {
    "anyOf": [
        TEXT,
        members({"decimal": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}}),
        members({"list": of("ColumnType")}),
        members(
            {"struct": many({"type": "array", "prefixItems": [TEXT, of("ColumnType")], "minItems": 2, "maxItems": 2})}
        ),
    ]
}
_VERSION = {
    "version": COUNT, "operation": TEXT, "inserted": COUNT, "updated": COUNT, "deleted": COUNT, "rows": COUNT,
    "files": COUNT, "bytes": COUNT, "at": MOMENT, "author": TEXT, "commit_no": COUNT, "swept": FLAG,
}  # fmt: skip
_DATASET = {
    "id": ID, "name": TEXT, "schema_name": TEXT, "table_name": TEXT, "row_ids": FLAG, "read_only": FLAG, "created_at": MOMENT,
    "schema": many(of("Column")), **_VERSION,
}  # fmt: skip
_HEAD = {"dataset": ID, "name": TEXT, "version": COUNT}
_WRITTEN = {
    "dataset": ID, "name": TEXT, "version": COUNT, "operation": TEXT, "rows": COUNT,
    "inserted": COUNT, "updated": COUNT, "deleted": COUNT,
}  # fmt: skip

SHAPES: dict[str, Shape] = {
    "Problem": PROBLEM,
    "Field": _FIELD,
    "FieldSent": _FIELD_SENT,
    "Schema": members(_ENTRY),
    "SchemaPage": page(members({}, _ENTRY)),
    "SchemaSent": _flat_or_wrapped(
        members(
            {"name": _NAME_SENT, "type_id": TEXT, "fields": _FIELDS_SENT},
            {**_NOTES_SENT, "state": {"enum": ["ACTIVE", "DRAFT"]}, "version": _IGNORED, **_IGNORES},
        )
    ),
    "SchemaReplacement": _flat_or_wrapped(
        members({"name": _NAME_SENT, "fields": _FIELDS_SENT}, {**_NOTES_SENT, **_FIXED, **_IGNORES})
    ),
    "SchemaMergePatch": _flat_or_wrapped(
        members({}, {"name": _NAME_SENT, "fields": _FIELDS_SENT, **_NOTES_SENT, **_FIXED, **_IGNORES})
    ),
    "JsonPatch": many(
        {
            "type": "object",
            "required": ["op", "path"],
            "properties": {
                "op": {"enum": ["add", "remove", "replace", "move", "copy", "test"]},
                "path": TEXT,
                "from": TEXT,
                "value": {},
            },
        }
    ),
    "SchemaProposal": members({"name": TEXT, "type_id": TEXT, "fields": many(of("Field"))}),
    "Sample": {
        "anyOf": [
            members({"dataset": TEXT}, {"version": {"type": ["integer", "null"]}, "name": NOTE}),
            members({"rows": {"type": "array", "minItems": 1}}, {"name": NOTE}),
        ]
    },
    "Transition": members({"to": {"enum": _STATES}}, {"version": _FIXED["version"], "reason": NOTE}),
    "SchemaChange": _flat_or_wrapped(
        members(
            {"fields": _FIELDS_SENT},
            {**_NOTES_SENT, **_FIXED, "name": _NAME_SENT, "version": _IGNORED, **_IGNORES},
        )
    ),
    "Revision": members(
        {
            "version": NUMBER,
            "change": TEXT,
            "reason": NOTE,
            "changed_at": MOMENT,
            "changed_by": ID,
            "author": TEXT,
            "name": TEXT,
            **_SAID,
        }
    ),
    "Difference": _DIFFERENCE,
    "Differences": members({"from": NUMBER, "to": NUMBER, **_DIFFERENCES}),
    "Compatibility": members({**_DIFFERENCES, "query_count": COUNT, "accepted": FLAG}),
    "References": members({"query_count": COUNT, "queries": many(_REFERENCE)}),
    "Rows": members({"rows": {}}, {"strict": FLAG}),
    "Verdict": members({"valid": FLAG, "error_count": COUNT, "errors": many(_COMPLAINT)}),
    "ColumnType": _COLUMN_TYPE,
    "Column": members({"name": TEXT, "type": of("ColumnType"), "nullable": FLAG}),
    "Dataset": members(_DATASET),
    "DatasetPage": page(members({}, _DATASET)),
    "DatasetSent": members(
        {"name": TEXT, "schema": many(members({"name": TEXT, "type": of("ColumnType")}, {"nullable": FLAG}))},
        {"row_ids": FLAG, "read_only": FLAG},
    ),
    "DatasetColumns": members({**_HEAD, "schema": many(of("Column"))}),
    "DatasetVersion": members(_VERSION),
    "DatasetRows": members({**_HEAD, "value": many(ANY_OBJECT)}, {"@odata.nextLink": LINK}),
    "Receipt": members(
        {"key": TEXT, "commit_no": COUNT, "at": MOMENT, "replayed": FLAG, "written": many(members(_WRITTEN))}
    ),
}
