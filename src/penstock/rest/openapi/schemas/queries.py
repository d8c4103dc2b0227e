"""Component schemas of registered queries, their revisions, results and previews."""

from penstock.core.registry.query import MAX_PARAMETERS, MAX_SQL_LENGTH
from penstock.rest.openapi.schemas.base import (
    ANY_OBJECT,
    COUNT,
    EXPECTED_VERSION,
    FLAG,
    IMMUTABLE,
    LINK,
    NULLABLE_TEXT,
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
from penstock.rest.openapi.schemas.result_schemas import (
    AUDIT_MEMBERS,
    ENTRY_NAME,
    FIELD_NAME,
    PARAMETER_VALUES,
    REVISION_MEMBERS,
    SCALAR_TYPES,
    STATES,
)

_DEFINITION_MEMBERS = {
    "name": TEXT, "description": NULLABLE_TEXT, "sql": TEXT, "parameters": array_of(ref("Parameter")),
    "returns_schema_id": UUID, "state": {"enum": STATES},
    "datasets": array_of(object_of({"schema_name": TEXT, "table_name": TEXT}, {"version": COUNT})),
}  # fmt: skip
_QUERY_MEMBERS = {
    "id": UUID, **_DEFINITION_MEMBERS, "version": POSITIVE_INTEGER, "state_changed_at": TIMESTAMP, **AUDIT_MEMBERS,
}  # fmt: skip
_REQUIRED_INPUT = {
    "name": ENTRY_NAME,
    "sql": {"type": "string", "minLength": 1, "maxLength": MAX_SQL_LENGTH},
    "returns_schema_id": TEXT,
}
_OPTIONAL_INPUT = {
    "description": NULLABLE_TEXT,
    "parameters": {"type": ["array", "null"], "items": ref("ParameterSent"), "maxItems": MAX_PARAMETERS},
}
_SERVER_MANAGED = dict.fromkeys(("id", "datasets", "state_changed_at", *AUDIT_MEMBERS), SERVER_MANAGED)
_VERSIONS_BY_DATASET: JsonSchema = {"type": "object", "additionalProperties": COUNT}
_SECONDS: JsonSchema = {"type": "number", "minimum": 0}
_ROWS_MEMBERS = {"@penstock.versions": _VERSIONS_BY_DATASET, "value": array_of(ANY_OBJECT)}

SCHEMAS: dict[str, JsonSchema] = {
    "Parameter": object_of({"name": FIELD_NAME, "type": {"enum": SCALAR_TYPES}, "required": FLAG}, {"default": {}}),
    "ParameterSent": object_of(
        {"name": FIELD_NAME, "type": {"enum": SCALAR_TYPES}},
        {"required": {"type": ["boolean", "null"]}, "default": {}},
    ),
    "Query": object_of(_QUERY_MEMBERS),
    "QueryPage": page_of(object_of({}, _QUERY_MEMBERS)),
    "QuerySent": flat_or_wrapped(
        object_of(
            _REQUIRED_INPUT,
            {
                **_OPTIONAL_INPUT,
                "state": {"enum": ["ACTIVE", "DRAFT", None]},
                "version": SERVER_MANAGED,
                **_SERVER_MANAGED,
            },
        )
    ),
    "QueryReplacement": flat_or_wrapped(
        object_of(
            _REQUIRED_INPUT,
            {**_OPTIONAL_INPUT, "state": IMMUTABLE, "version": EXPECTED_VERSION, **_SERVER_MANAGED},
        )
    ),
    "QueryRevision": object_of({**REVISION_MEMBERS, **_DEFINITION_MEMBERS}),
    "QueryResults": object_of(
        {"@odata.context": LINK, **_ROWS_MEMBERS}, {"@odata.count": COUNT, "@odata.nextLink": LINK}
    ),
    "QueryExecutions": object_of({"value": array_of(ref("QueryExecution"))}),
    "QueryExecution": object_of(
        {"id": UUID, "query": TEXT, "user": TEXT, "started_at": TIMESTAMP, "seconds": _SECONDS}
    ),
    "PreviewSent": object_of({"sql": TEXT}, {"parameters": PARAMETER_VALUES}),
    "Preview": object_of(
        {"columns": array_of(object_of({"name": TEXT, "type": ref("ColumnType")})), "more": FLAG, **_ROWS_MEMBERS},
    ),
}
