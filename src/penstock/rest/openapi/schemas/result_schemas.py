"""Component schemas of result schemas: fields, entries, revisions, differences and validation reports."""

from penstock.core.registry.lifecycle import LifecycleState
from penstock.core.registry.schema_entry import MAX_NAME_LENGTH
from penstock.core.result_schema import MAX_DESCRIPTION, MAX_FIELDS, FieldType
from penstock.rest.openapi.schemas.base import (
    COUNT,
    EXPECTED_VERSION,
    FLAG,
    IMMUTABLE,
    LINK,
    NULLABLE_OBJECT,
    NULLABLE_TEXT,
    NULLABLE_UUID,
    POSITIVE_INTEGER,
    SERVER_MANAGED,
    TEXT,
    TIMESTAMP,
    UUID,
    JsonSchema,
    array_of,
    flat_or_wrapped,
    object_of,
    page_of,
    ref,
)

SCALAR_TYPES = [str(field_type) for field_type in FieldType]
STATES = [str(state) for state in LifecycleState]
FIELD_NAME: JsonSchema = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,127}$"}
ENTRY_NAME: JsonSchema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH}
AUDIT_MEMBERS = {"created_at": TIMESTAMP, "created_by": UUID, "updated_at": TIMESTAMP, "updated_by": UUID}
REVISION_MEMBERS = {
    "version": POSITIVE_INTEGER, "change": TEXT, "reason": NULLABLE_TEXT,
    "changed_at": TIMESTAMP, "changed_by": UUID, "author": TEXT,
}  # fmt: skip
PARAMETER_VALUES: JsonSchema = {
    "type": ["object", "null"],
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}

_FIELD = object_of(
    {"name": FIELD_NAME, "type": {"enum": SCALAR_TYPES}, "optional": FLAG},
    {"array": FLAG, "description": TEXT},
)
_FIELD_OPTIONS = {"optional": FLAG, "description": {"type": ["string", "null"], "maxLength": MAX_DESCRIPTION}}
_FIELD_INPUT: JsonSchema = {
    "description": "A scalar field, or an array of scalars in one of three notations.",
    "oneOf": [
        object_of({"name": FIELD_NAME, "type": {"enum": SCALAR_TYPES}}, {"array": FLAG, **_FIELD_OPTIONS}),
        object_of(
            {"name": FIELD_NAME, "type": {"enum": [f"{scalar}[]" for scalar in SCALAR_TYPES]}},
            {"array": {"const": False}, **_FIELD_OPTIONS},
        ),
        object_of(
            {
                "name": FIELD_NAME,
                "type": {"const": "array"},
                "items": {"oneOf": [{"enum": SCALAR_TYPES}, object_of({"type": {"enum": SCALAR_TYPES}})]},
            },
            {"array": {"const": False}, **_FIELD_OPTIONS},
        ),
    ],
}
_FIELDS_INPUT: JsonSchema = {"type": "array", "minItems": 1, "maxItems": MAX_FIELDS, "items": ref("FieldSent")}
_DRAFT_MEMBERS = {
    "description": NULLABLE_TEXT, "fields": array_of(ref("Field")), "metadata": NULLABLE_OBJECT, "state": {"enum": STATES},
}  # fmt: skip
_ENTRY_MEMBERS = {
    "id": UUID, "gts_id": TEXT, "tenant_id": NULLABLE_UUID, "type_id": TEXT,
    "name": TEXT, **_DRAFT_MEMBERS, "version": POSITIVE_INTEGER, "state_changed_at": TIMESTAMP, **AUDIT_MEMBERS,
}  # fmt: skip
_NOTES_INPUT = {"description": NULLABLE_TEXT, "metadata": NULLABLE_OBJECT}
_SERVER_MANAGED = dict.fromkeys(
    ("@odata.context", "id", "gts_id", "tenant_id", "state_changed_at", *AUDIT_MEMBERS), SERVER_MANAGED
)
_IMMUTABLE = {"type_id": IMMUTABLE, "state": IMMUTABLE, "version": EXPECTED_VERSION}
_DIFF_MEMBERS = {
    "members": array_of(TEXT), "fields": array_of(ref("Difference")), "compatible": FLAG, "breaking": array_of(ref("Difference")),
}  # fmt: skip
_REFERENCE = object_of({"id": UUID, "name": TEXT, "state": TEXT, "version": POSITIVE_INTEGER})
_ROW_ERROR = object_of(
    {"expected": NULLABLE_TEXT, "actual": NULLABLE_TEXT, "message": TEXT}, {"row": COUNT, "field": TEXT}
)

SCHEMAS: dict[str, JsonSchema] = {
    "Field": _FIELD,
    "FieldSent": _FIELD_INPUT,
    "Schema": object_of({"@odata.context": LINK, **_ENTRY_MEMBERS}),
    "SchemaPage": page_of(object_of({}, _ENTRY_MEMBERS)),
    "SchemaSent": flat_or_wrapped(
        object_of(
            {"name": ENTRY_NAME, "type_id": TEXT, "fields": _FIELDS_INPUT},
            {**_NOTES_INPUT, "state": {"enum": ["ACTIVE", "DRAFT"]}, "version": SERVER_MANAGED, **_SERVER_MANAGED},
        )
    ),
    "SchemaReplacement": flat_or_wrapped(
        object_of({"name": ENTRY_NAME, "fields": _FIELDS_INPUT}, {**_NOTES_INPUT, **_IMMUTABLE, **_SERVER_MANAGED})
    ),
    "SchemaMergePatch": flat_or_wrapped(
        object_of({}, {"name": ENTRY_NAME, "fields": _FIELDS_INPUT, **_NOTES_INPUT, **_IMMUTABLE, **_SERVER_MANAGED})
    ),
    "JsonPatch": array_of(
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
    "SchemaProposal": object_of({"name": TEXT, "type_id": TEXT, "fields": array_of(ref("Field"))}),
    "Sample": {
        "anyOf": [
            object_of({"dataset": TEXT}, {"version": {"type": ["integer", "null"]}, "name": NULLABLE_TEXT}),
            object_of({"rows": {"type": "array", "minItems": 1}}, {"name": NULLABLE_TEXT}),
            object_of({"sql": TEXT}, {"parameters": PARAMETER_VALUES, "name": NULLABLE_TEXT}),
        ]
    },
    "Transition": object_of({"to": {"enum": STATES}}, {"version": EXPECTED_VERSION, "reason": NULLABLE_TEXT}),
    "SchemaChange": flat_or_wrapped(
        object_of(
            {"fields": _FIELDS_INPUT},
            {**_NOTES_INPUT, **_IMMUTABLE, "name": ENTRY_NAME, "version": SERVER_MANAGED, **_SERVER_MANAGED},
        )
    ),
    "Revision": object_of({**REVISION_MEMBERS, "name": TEXT, **_DRAFT_MEMBERS}),
    "Difference": object_of(
        {"change": {"enum": ["added", "removed", "changed", "reordered"]}},
        {"field": TEXT, "member": TEXT, "from": {}, "to": {}},
    ),
    "Differences": object_of({"from": POSITIVE_INTEGER, "to": POSITIVE_INTEGER, **_DIFF_MEMBERS}),
    "Compatibility": object_of({**_DIFF_MEMBERS, "query_count": COUNT, "accepted": FLAG}),
    "References": object_of({"query_count": COUNT, "queries": array_of(_REFERENCE)}),
    "Rows": object_of({"rows": {}}, {"strict": FLAG}),
    "Verdict": object_of({"valid": FLAG, "error_count": COUNT, "errors": array_of(_ROW_ERROR)}),
}
