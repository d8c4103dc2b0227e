"""OpenAPI descriptions of the routes of result schemas (/gts)."""

from typing import Any

from penstock.core import result_schema
from penstock.core.registry import gts
from penstock.rest.openapi import examples, parameters
from penstock.rest.openapi.builders import (
    Operation,
    Responses,
    describe_responses,
    json_body,
    json_content,
    not_modified,
    query_parameter,
)
from penstock.rest.openapi.revisions import list_revisions
from penstock.rest.openapi.schemas.base import ANY_OBJECT, COUNT, FLAG, TEXT, ref
from penstock.rest.requests import media_types

_FIELD = {"name": "order_id", "type": "string", "optional": False, "description": "Order identifier"}
_DRAFT = {"name": "Orders by day", "type_id": gts.QUERY_RETURNS, "description": "One row per order", "fields": [_FIELD]}
_PROPOSAL = {"name": "Orders by day", "type_id": gts.QUERY_RETURNS, "fields": [_FIELD]}
_ENTRY = {
    "id": examples.SCHEMA_ID, "gts_id": f"{gts.QUERY_RETURNS}{examples.SCHEMA_ID}", "tenant_id": examples.TENANT_ID,
    **_DRAFT, "metadata": {"owner": "sales"}, "state": "ACTIVE", "version": 1,
    "state_changed_at": examples.TIMESTAMP, **examples.AUDIT_FIELDS,
}  # fmt: skip
_ENTITY = {"@odata.context": "/$metadata#gts/$entity", **_ENTRY}
_REVISION = {
    "version": 1, "change": "create", "reason": "requested by sales", "changed_at": examples.TIMESTAMP,
    "changed_by": examples.USER_ID, "author": "ada", "name": _DRAFT["name"], "description": _DRAFT["description"],
    "fields": [_FIELD], "metadata": {"owner": "sales"}, "state": "ACTIVE",
}  # fmt: skip
_FIELD_CHANGE = {"change": "changed", "field": "order_id", "member": "type", "from": "string", "to": "number"}
_DIFF = {"members": ["fields"], "fields": [_FIELD_CHANGE], "compatible": False, "breaking": [_FIELD_CHANGE]}
_FORCE = query_parameter(
    "force", "Apply a change that breaks referencing queries (admin only). Default: false.", schema=FLAG, example=False
)


def _schema_responses(description: str, example: Any, errors: list[int]) -> Responses:
    return describe_responses(200, description, example, ref("Schema"), headers=["etag"], errors=errors)


SEARCH_SCHEMAS: Operation = {
    "summary": "Search schemas",
    "responses": describe_responses(
        200,
        "A page of schemas.",
        {"@odata.context": "/$metadata#gts", "@odata.count": 1, "value": [_ENTRY]},
        ref("SchemaPage"),
        errors=[400, 403],
    ),
    "openapi_extra": {
        "parameters": parameters.search_parameters(
            "schemas",
            "state eq 'ACTIVE' and fields/any(f: f/name eq 'order_id')",
            "the name or the description",
            "orders",
        )
    },
}
COUNT_SCHEMAS: Operation = {
    "summary": "Count schemas",
    "description": "The number of schemas that match `$filter` and `$search`. Other options have no effect.",
    "responses": describe_responses(
        200, "The number of schemas.", "42", TEXT, media_type=media_types.TEXT, errors=[400, 403]
    ),
    "openapi_extra": SEARCH_SCHEMAS["openapi_extra"],
}
CREATE_SCHEMA: Operation = {
    "summary": "Create a schema",
    "responses": describe_responses(
        201,
        "The new schema.",
        _ENTITY,
        ref("Schema"),
        headers=["etag", "location"],
        errors=[400, 403, 409, 413, 415],
    ),
    "openapi_extra": {"requestBody": json_body("SchemaSent", _DRAFT)},
}
INFER_SCHEMA: Operation = {
    "summary": "Infer a schema",
    "description": (
        "From a dataset, JSON rows, SQL, or a sample file in CSV, JSON lines, Parquet or Arrow. Nothing is stored; the "
        "response can be sent to POST /gts."
    ),
    "responses": describe_responses(
        200, "The inferred schema.", _PROPOSAL, ref("SchemaProposal"), errors=[400, 403, 404, 413, 415]
    ),
    "openapi_extra": {
        "parameters": [query_parameter("name", "The name to propose.", example="Orders by day")],
        "requestBody": {
            "required": True,
            "content": {
                **json_content("Sample", {"dataset": "shop.orders", "version": 3}),
                **examples.ROW_FILES,
            },
        },
    },
}
SHOW_SCHEMA: Operation = {
    "summary": "Show a schema",
    "responses": _schema_responses("The schema.", _ENTITY, [400, 403, 404]) | not_modified(),
    "openapi_extra": {"parameters": [parameters.IF_NONE_MATCH]},
}
REPLACE_SCHEMA: Operation = {
    "summary": "Replace a schema",
    "description": (
        "Replaces name, description, fields and metadata. The version that the change is based on is required, as "
        "`version` in the body or in If-Match."
    ),
    "responses": _schema_responses(
        "The changed schema.", _ENTITY | {"version": 2}, [400, 403, 404, 409, 412, 413, 415]
    ),
    "openapi_extra": {
        "parameters": [parameters.IF_MATCH, _FORCE],
        "requestBody": json_body("SchemaReplacement", {**_DRAFT, "version": 1}),
    },
}
PATCH_SCHEMA: Operation = {
    "summary": "Change a schema",
    "description": "With a JSON Merge Patch (also as application/json) or a JSON Patch.",
    "responses": _schema_responses(
        "The changed schema.", _ENTITY | {"version": 2}, [400, 403, 404, 409, 412, 413, 415]
    ),
    "openapi_extra": {
        "parameters": [parameters.IF_MATCH, _FORCE],
        "requestBody": {
            "required": True,
            "content": {
                **json_content(
                    "SchemaMergePatch",
                    {"description": "One row per order", "version": 1},
                    media_types.JSON,
                    "application/merge-patch+json",
                ),
                **json_content(
                    "JsonPatch",
                    [
                        {"op": "test", "path": "/version", "value": 1},
                        {"op": "replace", "path": "/name", "value": "Orders"},
                    ],
                    "application/json-patch+json",
                ),
            },
        },
    },
}
DELETE_SCHEMA: Operation = {
    "summary": "Delete a schema",
    "description": "POST /gts/{id}/undelete undoes the deletion.",
    "responses": describe_responses(204, "The schema was deleted.", errors=[400, 403, 404, 409, 412]),
    "openapi_extra": {"parameters": [parameters.IF_MATCH]},
}
UNDELETE_SCHEMA: Operation = {
    "summary": "Undo the deletion of a schema",
    "description": (
        "The schema has the state that it had before, and the next version. 409 if it is not deleted, or if another "
        "schema has taken its name. Takes no parameters; the body is empty or {}."
    ),
    "responses": _schema_responses("The schema.", _ENTITY | {"version": 2}, [400, 403, 404, 409, 412, 413, 415]),
    "openapi_extra": {"parameters": [parameters.IF_MATCH]},
}
TRANSITION_SCHEMA: Operation = {
    "summary": "Change the state of a schema",
    "responses": _schema_responses(
        "The changed schema.", _ENTITY | {"state": "DEPRECATED", "version": 2}, [400, 403, 404, 409, 412, 413, 415]
    ),
    "openapi_extra": {
        "parameters": [parameters.IF_MATCH],
        "requestBody": json_body("Transition", {"to": "DEPRECATED", "version": 1, "reason": "replaced by Orders v2"}),
    },
}
LIST_REVISIONS: Operation = list_revisions("schema", "Revision", _REVISION)
SHOW_REVISION: Operation = {
    "summary": "Show a version of a schema",
    "responses": describe_responses(200, "The revision.", _REVISION, ref("Revision"), errors=[400, 403, 404]),
}
DIFF_REVISIONS: Operation = {
    "summary": "Compare two versions of a schema",
    "responses": describe_responses(
        200, "The differences.", {"from": 1, "to": 2, **_DIFF}, ref("Differences"), errors=[400, 403, 404]
    ),
    "openapi_extra": {
        "parameters": [
            query_parameter("from", "First version.", schema=COUNT, example=1) | {"required": True},
            query_parameter("to", "Second version.", schema=COUNT, example=2) | {"required": True},
        ]
    },
}
CHECK_COMPATIBILITY: Operation = {
    "summary": "Check the compatibility of a change",
    "responses": describe_responses(
        200,
        "The compatibility report.",
        {**_DIFF, "query_count": 2, "accepted": False},
        ref("Compatibility"),
        errors=[400, 403, 404, 413, 415],
    ),
    "openapi_extra": {"requestBody": json_body("SchemaChange", {"fields": [{**_FIELD, "type": "number"}]})},
}
LIST_REFERENCES: Operation = {
    "summary": "List the queries that reference a schema",
    "responses": describe_responses(
        200,
        "The referencing queries.",
        {
            "query_count": 1,
            "queries": [{"id": examples.SCHEMA_ID, "name": "daily orders", "state": "ACTIVE", "version": 1}],
        },
        ref("References"),
        errors=[400, 403, 404],
    ),
}
EXPORT_JSON_SCHEMA: Operation = {
    "summary": "Export a schema as JSON Schema",
    "responses": describe_responses(
        200,
        "A JSON Schema of one row.",
        result_schema.json_schema("Orders by day", None, result_schema.parse_fields([_FIELD])),
        ANY_OBJECT,
        media_type="application/schema+json",
        errors=[400, 403, 404],
    ),
}
VALIDATE_ROWS: Operation = {
    "summary": "Validate rows against a schema",
    "responses": describe_responses(
        200,
        "The validation report with at most 100 errors.",
        {
            "valid": False,
            "error_count": 1,
            "errors": [
                {
                    "row": 0,
                    "field": "order_id",
                    "expected": "string",
                    "actual": "number",
                    "message": "Type mismatch for field order_id",
                }
            ],
        },
        ref("Verdict"),
        errors=[400, 403, 404, 413, 415],
    ),
    "openapi_extra": {"requestBody": json_body("Rows", {"rows": [{"order_id": "A-1"}], "strict": False})},
}
