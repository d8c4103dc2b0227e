"""OpenAPI description of the route that executes one operation on a dataset."""

from typing import Any

from penstock.core.caller import Role
from penstock.core.pipeline.responses import MESSAGES
from penstock.core.pipeline.responses import error_response as operation_error
from penstock.errors import Invalid
from penstock.rest.openapi import examples, parameters
from penstock.rest.openapi.builders import Operation, describe_responses, error_responses, json_body
from penstock.rest.openapi.schemas.base import ref


def _error(reason: str, message: str, **details: Any) -> dict[str, Any]:
    return operation_error(Invalid(reason, message, **details, operation_order=0))


_ERRORS = {
    400: _error(
        "append_003",
        MESSAGES["append_003"],
        extra_columns=["budget_type", "fiscal_year"],
        working_columns=["account_code", "amount", "description"],
    ),
    403: _error("role_too_low", "Role analytics.developer is required", required_role=Role.DEVELOPER.claim),
    404: _error("append_001", MESSAGES["append_001"], dataset_id=examples.SOURCE_DATASET_ID),
    406: _error("not_acceptable", "Cannot produce the requested media type. Available: application/json"),
    409: _error("read_only", "shop.orders is read-only", dataset="shop.orders"),
    413: _error("body_too_large", "The request body exceeds the limit of 4,194,304 bytes", limit=4_194_304),
    415: _error("unsupported_media_type", "The Content-Type header is missing. Accepted: application/json"),
    500: _error("commit_unanswered", "The outcome of the commit is unknown. Check it before you repeat the request"),
    503: _error("too_many_runs", "Your tenant has 25 runs in the queue, limit 25. Retry when some of them have ended"),
}

EXECUTE_OPERATION: Operation = {
    "summary": "Execute an operation",
    "description": (
        "Atomic append or merge with this dataset as the working dataset. Errors are `{error: {code, message, details}}` "
        "in application/json; authentication errors are problem documents. An operation that exceeds the response timeout "
        "continues in the background: the response is 202 with the run, whose `results` will contain the result. A repeated "
        "request with the key of an active or finished operation returns the same response."
    ),
    "responses": {
        **describe_responses(200, "Result of the operation.", examples.OPERATION_RESULT, ref("OperationDone")),
        **describe_responses(
            202,
            "The operation continues as a run.",
            {**examples.QUEUED_RUN, "pipeline_id": None},
            ref("Run"),
            headers=["location"],
        ),
        **error_responses("OperationError", _ERRORS),
    },
    "openapi_extra": {
        "parameters": [parameters.IDEMPOTENCY_KEY],
        "requestBody": json_body("OperationSent", examples.APPEND_OPERATION),
    },
}
