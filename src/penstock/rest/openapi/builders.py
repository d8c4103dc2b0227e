"""Build the parts of an OpenAPI operation: responses, parameters and request bodies."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from penstock.rest import problems
from penstock.rest.openapi.schemas.base import LINK, TEXT, JsonSchema, ref

Operation = dict[str, Any]  # keyword arguments of a route: summary, description, responses, openapi_extra
Responses = dict[int | str, dict[str, Any]]  # by status

PUBLIC: dict[str, Any] = {"security": []}  # `openapi_extra` of a route that needs no token

_HEADERS: dict[str, dict[str, Any]] = {
    "x-request-id": {"description": "Id of the request in the log.", "schema": TEXT},
    "etag": {"description": "Version of the entity.", "schema": TEXT},
    "location": {"description": "URL of the entity.", "schema": LINK},
    "x-penstock-versions": {"description": "Dataset versions that were read.", "schema": TEXT},
    "odata-version": {"description": "Version of the OData protocol.", "schema": TEXT},
    "x-execution-id": {"description": "Id of the query execution.", "schema": TEXT},
    "www-authenticate": {"description": "Authentication scheme.", "schema": TEXT},
}
_ERROR_HEADERS = {401: ("www-authenticate",)}
_EARLY_STATUSES = (403, 500, 503)  # may be sent before a route is reached, or instead of its response
# One example per status: reason, message, facts.
_ERROR_EXAMPLES: dict[int, tuple[str, str, dict[str, Any]]] = {
    400: ("bad_json", "The body is not valid JSON: Expecting value at line 1, column 9", {"position": 8}),
    401: ("token_expired", "The token has expired", {}),
    403: (
        "role_too_low",
        "Role analytics.developer is required; ada has analytics.viewer",
        {"required_role": "analytics.developer"},
    ),
    404: ("dataset_not_found", "Dataset 'shop.orders' not found", {"dataset": "shop.orders"}),
    406: (
        "not_acceptable",
        "Cannot produce the requested media type. Available: application/json",
        {"offered": ["application/json"]},
    ),
    408: ("body_timed_out", "The request body did not arrive within 60 seconds", {}),
    409: ("stale_version", "shop.orders is no longer at version 3", {"dataset": "shop.orders", "base": 3}),
    412: ("precondition_failed", "The entity was changed by another user. Read it again", {"current_version": 4}),
    413: ("body_too_large", "The request body exceeds the limit of 4,194,304 bytes", {"limit": 4_194_304}),
    415: (
        "unsupported_media_type",
        "Content-Type 'text/xml' is not supported. Accepted: text/csv",
        {"accepted": ["text/csv"]},
    ),
    500: ("internal_error", "Internal error. Request id: 5f0c…", {"request_id": "5f0c…"}),
    501: ("type_not_for_engine", "The engine does not support the type of column 'x'", {"column": "x"}),
    503: ("database_busy", "The catalog is locked by another process. Retry later", {}),
}
_EXAMPLE_PATH = "/datasets"


def describe_responses(
    status: int,
    description: str,
    example: Any = None,
    schema: JsonSchema | None = None,
    *,
    media_type: str = "application/json",
    headers: Sequence[str] = (),
    errors: Sequence[int] = (),
) -> Responses:
    """Return the `responses` of a route.

    Args:
        status: the status of the successful response
        description: what the successful response contains
        example: an example body, or None if the response has none
        schema: the schema of the body
        media_type: the media type of the body
        headers: names of response headers that clients rely on
        errors: the statuses of the error responses
    """
    body = {} if example is None else {"content": {media_type: {"schema": schema, "example": example}}}
    success = {"description": description, "headers": _headers(*headers), **body}
    return {status: success, **{code: error_response(code) for code in errors}}


def error_responses(schema: str, examples: Mapping[int, Any]) -> Responses:
    """Return error responses that have a schema of their own. Errors before the route are problem documents."""
    responses: Responses = {}
    for status, example in examples.items():
        problem = error_response(status)
        early = problem["content"] if status in _EARLY_STATUSES else {}
        responses[status] = {**problem, "content": json_content(schema, example) | early}
    return responses


def error_response(status: int) -> dict[str, Any]:
    """Return a response with a problem document and an example of it."""
    reason, message, facts = _ERROR_EXAMPLES[status]
    example = problems.problem_document(reason, status, message, _EXAMPLE_PATH, facts)
    return {
        "description": HTTPStatus(status).phrase,
        "headers": _headers(*_ERROR_HEADERS.get(status, ())),
        "content": {problems.MEDIA_TYPE: {"schema": ref("Problem"), "example": example}},
    }


def not_modified() -> Responses:
    """Return the 304 response to a conditional request."""
    return {304: {"description": "Not modified.", "headers": _headers("etag")}}


def query_parameter(name: str, description: str, *, schema: JsonSchema = TEXT, example: Any) -> dict[str, Any]:
    """Return a parameter of the query string, for `openapi_extra`."""
    return {"name": name, "in": "query", "description": description, "schema": schema, "example": example}


def header_parameter(name: str, description: str, *, example: str) -> dict[str, Any]:
    """Return a request header, for `openapi_extra`."""
    return {"name": name, "in": "header", "description": description, "schema": TEXT, "example": example}


def json_body(schema: str, example: Any) -> dict[str, Any]:
    """Return a required JSON request body, for `openapi_extra`."""
    return {"required": True, "content": json_content(schema, example)}


def json_content(schema: str, example: Any, *media_types: str) -> dict[str, Any]:
    """Return the `content` of a JSON body, for each media type."""
    return {
        media_type: {"schema": ref(schema), "example": example} for media_type in media_types or ("application/json",)
    }


def required_header(name: str) -> dict[str, Any]:
    """Return the description of a response header that is always present."""
    return {**_HEADERS[name], "required": True}


def _headers(*names: str) -> dict[str, Any]:
    return {name: required_header(name) for name in ("x-request-id", *names)}
