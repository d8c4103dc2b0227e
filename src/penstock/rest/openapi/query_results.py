"""OpenAPI descriptions of the routes that run queries and preview SQL."""

from typing import Any

from penstock.rest.openapi import examples, parameters
from penstock.rest.openapi.builders import (
    Operation,
    Responses,
    describe_responses,
    header_parameter,
    json_body,
    query_parameter,
)
from penstock.rest.openapi.schemas.base import BYTES, COUNT, FLAG, TEXT, ref
from penstock.rest.requests import media_types
from penstock.rest.requests.execution_id import EXECUTION_HEADER
from penstock.rest.requests.page_limits import DEFAULT_ROWS, MAX_ROWS
from penstock.rest.requests.version_pins import VERSIONS_HEADER, VERSIONS_PARAMETER
from penstock.service.queries.execution import MAX_PREVIEW_ROWS

_ROW = {"region": "EMEA", "total": 120450.5}
_VERSIONS = {"shop.orders": 3}
_PAGE = {
    "@odata.context": f"/$metadata#queries/{examples.QUERY_ID}/results",
    "@odata.count": 3,
    "@penstock.versions": _VERSIONS,
    "@odata.nextLink": (
        f"/queries/{examples.QUERY_ID}/results?since=2026-01-01&$count=true&versions=shop.orders%3A3&$skiptoken=WzFd"
    ),
    "value": [_ROW],
}
_PREVIEW = {
    "columns": [{"name": "region", "type": "string"}, {"name": "total", "type": "double"}],
    "@penstock.versions": _VERSIONS,
    "more": False,
    "value": [_ROW],
}
_QUERY_PARAMETERS: dict[str, Any] = {
    "name": "parameters",
    "in": "query",
    "description": "Parameters of the query, by name.",
    "schema": {"type": "object", "additionalProperties": TEXT},
    "style": "form",
    "explode": True,
    "example": {"since": "2026-01-01"},
}
_EXECUTION_ID = header_parameter(
    EXECUTION_HEADER,
    "Id of the execution, chosen by the client, to cancel it with DELETE /queries/executions/{id}. Default: a new UUID.",
    example=examples.EXECUTION_ID,
)


def _results_responses() -> Responses:
    responses = describe_responses(
        200,
        "The rows.",
        _PAGE,
        ref("QueryResults"),
        headers=[VERSIONS_HEADER, EXECUTION_HEADER],
        errors=[400, 403, 404, 406, 409],
    )
    responses[200]["content"] |= {media_types.ARROW: {"schema": BYTES}, media_types.PARQUET: {"schema": BYTES}}
    return responses


RUN_QUERY: Operation = {
    "summary": "Run a query",
    "description": (
        "Every row is validated against the query's schema before the first one is sent. Rows that do not match cause the "
        "error SCHEMA_MISMATCH, which names fields and rows but no values. JSON responses are pages, ordered by `$orderby` "
        "or else by the ORDER BY of the query, and then by all fields; `@odata.nextLink` is the next page of the same versions. Arrow and Parquet responses "
        "contain all rows, or those that `$top` and `$skip` select."
    ),
    "responses": _results_responses(),
    "openapi_extra": {
        "parameters": [
            query_parameter("$filter", "Filter expression over the fields of the schema.", example="total gt 100000"),
            query_parameter("$orderby", "Sort order.", example="total desc"),
            query_parameter(
                "$top",
                f"Maximum number of rows in all pages together. A JSON page has {DEFAULT_ROWS} rows without `$top`, and at "
                f"most {MAX_ROWS:,}.",
                schema=COUNT,
                example=10,
            ),
            parameters.SKIP,
            parameters.PREFER,
            query_parameter("$select", "Fields to return; only these are validated.", example="region,total"),
            query_parameter(
                "$count", "Also return the number of matching rows (JSON only).", schema=FLAG, example=True
            ),
            query_parameter(VERSIONS_PARAMETER, "Versions of datasets. Default: the newest.", example="shop.orders:3"),
            _QUERY_PARAMETERS,
            _EXECUTION_ID,
        ]
    },
}
PREVIEW_SQL: Operation = {
    "summary": "Preview SQL",
    "description": (
        f"The first {MAX_PREVIEW_ROWS:,} rows of a SELECT that is not registered, without validation. Types that "
        "JSON does not have are text."
    ),
    "responses": describe_responses(
        200,
        "The rows.",
        _PREVIEW,
        ref("Preview"),
        headers=[VERSIONS_HEADER, EXECUTION_HEADER],
        errors=[400, 403, 404, 409, 413, 415],
    ),
    "openapi_extra": {
        "parameters": [_EXECUTION_ID],
        "requestBody": json_body("PreviewSent", {"sql": examples.SQL, "parameters": {"since": "2026-01-01"}}),
    },
}
