"""OpenAPI descriptions of the routes of runs."""

from penstock.rest.openapi import examples, parameters
from penstock.rest.openapi.builders import Operation, describe_responses, json_content
from penstock.rest.openapi.schemas.base import ref

_EMPTY_BODY = {"required": False, "content": json_content("Nothing", {})}

START_RUN: Operation = {
    "summary": "Run a pipeline",
    "description": (
        "The run is queued and executed in the background, where errors of its operations are found. A repeated request "
        "with the idempotency key of an active run returns that run; with the key of a successful run, that run with "
        "status 200. A run that failed or was cancelled releases its key."
    ),
    "responses": {
        **describe_responses(
            202,
            "The queued or running run.",
            examples.QUEUED_RUN,
            ref("Run"),
            headers=["location"],
            errors=[400, 403, 404, 409, 413, 415],
        ),
        **describe_responses(
            200, "The successful run with the same key.", examples.SUCCEEDED_RUN, ref("Run"), headers=["location"]
        ),
    },
    "openapi_extra": {"parameters": [parameters.IDEMPOTENCY_KEY], "requestBody": _EMPTY_BODY},
}
SEARCH_RUNS: Operation = {
    "summary": "Search runs",
    "responses": describe_responses(
        200,
        "A page of runs.",
        {"@odata.context": "/$metadata#runs", "@odata.count": 1, "value": [examples.SUCCEEDED_RUN]},
        ref("RunPage"),
        errors=[400, 403],
    ),
    "openapi_extra": {
        "parameters": parameters.search_parameters(
            "runs", f"state eq 'failed' and pipeline_id eq {examples.PIPELINE_ID}"
        )
    },
}
SHOW_RUN: Operation = {
    "summary": "Show a run",
    "description": "Progress or result of a run. While the run is active, Retry-After is the polling interval.",
    "responses": describe_responses(
        200, "The run.", examples.SUCCEEDED_RUN, ref("Run"), headers=["location"], errors=[400, 403, 404]
    ),
}
CANCEL_RUN: Operation = {
    "summary": "Cancel a run",
    "description": (
        "A queued run ends at once, a running one soon after; nothing is written. A run that has ended is not changed."
    ),
    "responses": {
        **describe_responses(
            202,
            "Cancellation was requested.",
            {
                **examples.QUEUED_RUN,
                "state": "running",
                "started_at": examples.SUCCEEDED_RUN["started_at"],
                "cancelling": True,
            },
            ref("Run"),
            headers=["location"],
            errors=[400, 403, 404, 413, 415],
        ),
        **describe_responses(
            200, "The run had already ended.", examples.SUCCEEDED_RUN, ref("Run"), headers=["location"]
        ),
    },
    "openapi_extra": {"requestBody": _EMPTY_BODY},
}
