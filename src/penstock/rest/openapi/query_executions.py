"""OpenAPI descriptions of the routes of active query executions."""

from penstock.rest.openapi import examples
from penstock.rest.openapi.builders import Operation, describe_responses
from penstock.rest.openapi.schemas.base import ref
from penstock.service.queries.executions import MAX_EXECUTIONS

_EXECUTION = {
    "id": examples.EXECUTION_ID,
    "query": "totals",
    "user": "ada",
    "started_at": "2026-01-31T10:30:00+00:00",
    "seconds": 12.5,
}

LIST_EXECUTIONS: Operation = {
    "summary": "List active query executions",
    "description": (
        f"The executions that run or wait, oldest first, at most {MAX_EXECUTIONS:,}: those of the caller, and for an admin "
        "those of all users of the tenant. `query` is the name of the query, or `preview`."
    ),
    "responses": describe_responses(
        200, "The executions.", {"value": [_EXECUTION]}, ref("QueryExecutions"), errors=[400, 403]
    ),
}
CANCEL_EXECUTION: Operation = {
    "summary": "Cancel a query execution",
    "description": (
        "The process of the query is killed, and its request is answered with 409 QUERY_CANCELLED. Users cancel their own "
        "executions, admins those of all users of the tenant. The response is 404 if the execution has ended or the "
        "caller may not see it."
    ),
    "responses": describe_responses(204, "The execution was cancelled.", errors=[400, 403, 404]),
}
