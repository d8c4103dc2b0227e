"""Problem documents: map every error to `application/problem+json` (RFC 9457)."""

import json
import logging
import math
from collections.abc import Mapping
from datetime import date, datetime
from http import HTTPStatus
from typing import Any
from uuid import UUID

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from penstock.errors import (
    AlreadyExists,
    CommitStateUnknown,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PenstockError,
    Unauthenticated,
    Unavailable,
    Unsupported,
    public_error,
)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1

STATUS_BY_KIND: dict[type[PenstockError], int] = {
    Invalid: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    AlreadyExists: 409,
    Conflict: 409,
    Unsupported: 409,
    CommitStateUnknown: 500,
    Unavailable: 503,
}

# Reasons with a more specific status than that of their kind.
STATUS_BY_REASON: dict[str, int] = {
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "body_timed_out": 408,
    "precondition_failed": 412,
    "body_too_large": 413,
    "too_many_values": 413,
    "write_too_large": 413,
    "url_too_long": 414,
    "unsupported_media_type": 415,
    "tenant_busy": 429,
    "tenant_memory_exhausted": 429,
    "internal_error": 500,
    "schema_mismatch": 500,
    "schema_unavailable": 500,
    "codec_not_for_engine": 501,
    "type_not_for_engine": 501,
}

# The member `error` where a contract fixes its sentence; elsewhere it equals the title.
CONTRACT_SENTENCES: dict[str, str] = {
    "schema_not_found": "Schema not found",
    "non_scalar_field": "Only scalar types allowed in query returns",
    "schema_name_taken": "Schema name already exists",
    "schema_in_use": "Schema is referenced by active queries",
    "schema_changed": "Schema was modified by another user",
    "schema_mismatch": "Schema mismatch",
    "schema_unavailable": "Schema not found",
    "role_too_low": "Insufficient permissions",
    "missing_role": "Insufficient permissions",
}

_MISSING_TOKEN = "missing_token"  # the one 401 without error="invalid_token" (RFC 6750)
_log = logging.getLogger(__name__)
_RESERVED_MEMBERS = ("type", "title", "status", "detail", "instance", "code", "error")


def install(app: FastAPI) -> None:
    """Register the handlers of Penstock errors and of the framework's own errors."""
    app.add_exception_handler(PenstockError, _handle_penstock_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error."""
    return STATUS_BY_REASON.get(error.reason, STATUS_BY_KIND[type(error)])


def problem_response(error: PenstockError, path: str) -> Response:
    """Return the problem document of an error as a response."""
    return _response(
        problem_document(error.reason, status_of(error), error.message, path, error.context), error_headers(error)
    )


def error_headers(error: PenstockError) -> dict[str, str]:
    """Return the response headers of an error: WWW-Authenticate and Retry-After."""
    code, headers = status_of(error), dict[str, str]()
    if code == 401:
        headers["www-authenticate"] = "Bearer" if error.reason == _MISSING_TOKEN else 'Bearer error="invalid_token"'
    if error.retry and code in (409, 429, 503):
        headers["retry-after"] = str(RETRY_AFTER_SECONDS)
    return headers


def redact(error: PenstockError) -> PenstockError:
    """Return the error without internal details. Log server errors, which only an operator can fix."""
    if status_of(error) >= 500:
        _log.warning("%s: %s", error.reason, error.message)
    return public_error(error)


def internal_error_response(request_id: str, path: str) -> Response:
    """Return the response to an unexpected exception. The log has its traceback under the request id."""
    detail = f"Internal error. Request id: {request_id}"
    return _response(problem_document("internal_error", 500, detail, path, {"request_id": request_id}), {})


def problem_document(reason: str, code: int, detail: str, path: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """Build a problem document; facts in `context` become members."""
    title = reason.replace("_", " ").capitalize()
    facts = {name: to_json_value(value) for name, value in context.items() if name not in _RESERVED_MEMBERS}
    return {
        "type": f"urn:penstock:error:{reason}",
        "title": title,
        "status": code,
        "detail": detail,
        "instance": path,
        "code": reason.upper(),
        "error": CONTRACT_SENTENCES.get(reason, title),
        **facts,
    }


def to_json_value(value: Any) -> Any:
    """Convert a fact of an error to a JSON value."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): to_json_value(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_json_value(inner) for inner in value]
        case datetime() | date():
            return value.isoformat()
        case UUID():
            return str(value)
    return str(value)


def as_json(value: Any) -> bytes:
    """Serialize to UTF-8. A lone surrogate, which UTF-8 cannot encode, becomes its JSON escape."""
    return encode_json(as_json_text(value))


def as_json_text(value: Any) -> str:
    """Serialize to text."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def encode_json(text: str) -> bytes:
    """Encode serialized JSON in UTF-8."""
    return text.encode("utf-8", "backslashreplace")


async def _handle_penstock_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    return problem_response(redact(error), request.url.path)


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    match error.status_code:
        case 404:
            return problem_response(NotFound("route_not_found", {"path": path}), path)
        case 405:
            allowed = _allowed_methods(request)
            values = {"method": request.scope["method"][:20], "path": path}
            response = problem_response(Invalid("method_not_allowed", values, allowed=allowed), path)
            response.headers["allow"] = ", ".join(allowed)
            return response
        case code:
            reason = HTTPStatus(code).phrase.lower().replace(" ", "_").replace("-", "_")
            return _response(problem_document(reason, code, str(error.detail), path, {}), dict(error.headers or {}))


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [{"message": item["msg"], "where": [str(part) for part in item["loc"]]} for item in error.errors()]
    return problem_response(Invalid("bad_parameter.framework", errors=errors), request.url.path)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes of the path; the framework reports those of the first route only.

    A route with a literal path takes precedence over one that would match the path as an id.
    """
    routes: list[Route] = request.app.state.routes
    path = request.url.path
    matching = [route.path for route in routes if route.path_regex.match(path)]
    route_path = path if path in matching else next(iter(matching), None)
    methods = {method for route in routes if route.path == route_path for method in route.methods or ()}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _response(body: dict[str, Any], headers: dict[str, str]) -> Response:
    return Response(as_json(body), body["status"], headers, MEDIA_TYPE)
