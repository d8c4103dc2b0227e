"""OpenAPI descriptions of the routes of registered queries."""

from typing import Any

from penstock.rest.openapi import examples, parameters
from penstock.rest.openapi.builders import (
    Operation,
    Responses,
    describe_responses,
    json_body,
    not_modified,
)
from penstock.rest.openapi.revisions import list_revisions
from penstock.rest.openapi.schemas.base import ref

_DEFINITION = {
    "name": "Sales by region", "description": "One row per region", "sql": examples.SQL,
    "parameters": [{"name": "since", "type": "date", "required": False, "default": "2026-01-01"}],
    "returns_schema_id": examples.SCHEMA_ID,
}  # fmt: skip
_STORED = {**_DEFINITION, "state": "ACTIVE", "datasets": [{"schema_name": "shop", "table_name": "orders"}]}
_QUERY = {
    "id": examples.QUERY_ID, **_STORED, "version": 1, "state_changed_at": examples.TIMESTAMP, **examples.AUDIT_FIELDS,
}  # fmt: skip
_REVISION = {
    "version": 1, "change": "create", "reason": None, "changed_at": examples.TIMESTAMP,
    "changed_by": examples.USER_ID, "author": "ada", **_STORED,
}  # fmt: skip


def _query_responses(description: str, example: Any, errors: list[int]) -> Responses:
    return describe_responses(200, description, example, ref("Query"), headers=["etag"], errors=errors)


SEARCH_QUERIES: Operation = {
    "summary": "Search queries",
    "responses": describe_responses(
        200,
        "A page of queries.",
        {"@odata.context": "/$metadata#queries", "@odata.count": 1, "value": [_QUERY]},
        ref("QueryPage"),
        errors=[400, 403],
    ),
    "openapi_extra": {
        "parameters": parameters.search_parameters("queries", "state eq 'ACTIVE' and contains(name, 'region')")
    },
}
CREATE_QUERY: Operation = {
    "summary": "Register a query",
    "description": (
        "One SELECT over datasets, named `schema.table`, with parameters as `$name`. The result columns are compared "
        "with the schema: if a result can never match it, `errors` lists the reasons."
    ),
    "responses": describe_responses(
        201,
        "The new query.",
        _QUERY,
        ref("Query"),
        headers=["etag", "location"],
        errors=[400, 403, 404, 409, 413, 415],
    ),
    "openapi_extra": {"requestBody": json_body("QuerySent", _DEFINITION)},
}
SHOW_QUERY: Operation = {
    "summary": "Show a query",
    "responses": _query_responses("The query.", _QUERY, [400, 403, 404]) | not_modified(),
    "openapi_extra": {"parameters": [parameters.IF_NONE_MATCH]},
}
REPLACE_QUERY: Operation = {
    "summary": "Replace a query",
    "description": (
        "Replaces name, description, SQL, parameters and schema. The version that the change is based on is required, "
        "as `version` in the body or in If-Match."
    ),
    "responses": _query_responses("The changed query.", _QUERY | {"version": 2}, [400, 403, 404, 409, 412, 413, 415]),
    "openapi_extra": {
        "parameters": [parameters.IF_MATCH],
        "requestBody": json_body("QueryReplacement", {**_DEFINITION, "version": 1}),
    },
}
DELETE_QUERY: Operation = {
    "summary": "Delete a query",
    "description": "POST /queries/{id}/undelete undoes the deletion.",
    "responses": describe_responses(204, "The query was deleted.", errors=[400, 403, 404, 409, 412]),
    "openapi_extra": {"parameters": [parameters.IF_MATCH]},
}
UNDELETE_QUERY: Operation = {
    "summary": "Undo the deletion of a query",
    "description": (
        "A name selects the query that was deleted last among those with this name. The query has the state that it "
        "had before, and the next version. 409 if it is not deleted, if another query has taken its name, or if its "
        "result schema is deleted or ARCHIVED. Takes no parameters; the body is empty or {}."
    ),
    "responses": _query_responses("The query.", _QUERY | {"version": 2}, [400, 403, 404, 409, 412, 413, 415]),
    "openapi_extra": {"parameters": [parameters.IF_MATCH]},
}
TRANSITION_QUERY: Operation = {
    "summary": "Change the state of a query",
    "responses": _query_responses(
        "The changed query.", _QUERY | {"state": "DEPRECATED", "version": 2}, [400, 403, 404, 409, 412, 413, 415]
    ),
    "openapi_extra": {
        "parameters": [parameters.IF_MATCH],
        "requestBody": json_body("Transition", {"to": "DEPRECATED", "version": 1, "reason": "no longer used"}),
    },
}
LIST_REVISIONS: Operation = list_revisions("query", "QueryRevision", _REVISION)
SHOW_REVISION: Operation = {
    "summary": "Show a version of a query",
    "responses": describe_responses(200, "The revision.", _REVISION, ref("QueryRevision"), errors=[400, 403, 404]),
}
