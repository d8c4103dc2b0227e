"""Every error as `application/problem+json` (RFC 9457), with the `error` sentence that clients look for."""

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

from penstock.errors import (BEHIND, AlreadyExists, Conflict, Forbidden, Invalid, NotFound, PenstockError, Unauthenticated, Unavailable, Undecided, Unsupported)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 1  # seconds

STATUS: dict[type[PenstockError], int] = {
    Invalid: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    AlreadyExists: 409,
    Conflict: 409,
    Unsupported: 409,
    Undecided: 500,
    Unavailable: 503,
}

# Reasons that HTTP has a better number for than their kind's.
STATUS_OF: dict[str, int] = {
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "body_timed_out": 408,
    "precondition_failed": 412,
    "body_too_large": 413,
    "write_too_large": 413,
    "url_too_long": 414,
    "unsupported_media_type": 415,
    "internal_error": 500,
    "schema_mismatch": 500,
    "schema_unavailable": 500,
    "codec_not_for_engine": 501,
    "type_not_for_engine": 501,
}

# What `error` says where clients rely on the words; elsewhere it is the title.
SENTENCES: dict[str, str] = {
    "schema_not_found": "Schema not found",
    "non_scalar_field": "Only scalar types allowed in query returns",
    "schema_name_taken": "Schema name already exists",
    "schema_in_use": "Schema is referenced by active queries",
    "schema_changed": "Schema was modified by another user",
    "schema_mismatch": "Schema mismatch",
    "schema_unavailable": "Schema not found",
    "role_too_low": "Insufficient permissions",
    "no_role": "Insufficient permissions",
}

_NO_TOKEN = "no_token"  # the one refusal of a caller who sent nothing that could be wrong
_log = logging.getLogger(__name__)
_OWN = ("type", "title", "status", "detail", "instance", "code", "error")


def install(app: FastAPI) -> None:
    """Let every error that a route raises, and every one of the framework's own, be told in our way."""
    app.add_exception_handler(PenstockError, _ours)
    app.add_exception_handler(HTTPException, _starlettes)
    app.add_exception_handler(RequestValidationError, _fastapis)


def status(error: PenstockError) -> int:
    return STATUS_OF.get(error.reason, STATUS[type(error)])


def answer(error: PenstockError, path: str) -> Response:
    return _response(problem(error.reason, status(error), error.message, path, error.context), headers(error))


def headers(error: PenstockError) -> dict[str, str]:
    """What an answer says besides its body, whatever shape that has."""
    code, said = status(error), dict[str, str]()
    if code == 401:
        said["www-authenticate"] = "Bearer" if error.reason == _NO_TOKEN else 'Bearer error="invalid_token"'
    if error.retry and code in (409, 503):
        said["retry-after"] = str(RETRY_AFTER)
    return said


def heard(error: PenstockError) -> PenstockError:
    """The error as a caller may hear it. What no caller can mend, whoever runs the server should know of."""
    if status(error) >= 500:
        _log.warning("%s: %s", error.reason, error.message)
    said = BEHIND.get(error.reason)
    return type(error)(error.reason, said) if said else error


def bug(request_id: str, path: str) -> Response:
    """What the caller hears of an error that is none of ours. The log has the rest."""
    detail = f"something went wrong that is not your fault; the log tells more under request {request_id}"
    return _response(problem("internal_error", 500, detail, path, {"request_id": request_id}), {})


def problem(reason: str, code: int, detail: str, path: str, context: Mapping[str, Any]) -> dict[str, Any]:
    title = reason.replace("_", " ").capitalize()
    facts = {name: plain(value) for name, value in context.items() if name not in _OWN}
    return {
        "type": f"urn:penstock:error:{reason}",
        "title": title,
        "status": code,
        "detail": detail,
        "instance": path,
        "code": reason.upper(),
        "error": SENTENCES.get(reason, title),
        **facts,
    }


def plain(value: Any) -> Any:
    """A fact as JSON can say it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(inner) for inner in value]
        case datetime() | date():
            return value.isoformat()
        case UUID():
            return str(value)
    return str(value)


def as_json(value: Any) -> bytes:
    """UTF-8; half a character, which UTF-8 cannot say, becomes its JSON escape."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    return answer(heard(error), request.url.path)


async def _starlettes(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    match error.status_code:
        case 404:
            return answer(NotFound("no_such_route", f"nothing is served at {path}; /docs shows what is"), path)
        case 405:
            allowed = _allowed(request)
            refusal = Invalid("method_not_allowed", f"{path} knows {', '.join(allowed)} only", allowed=allowed)
            told = answer(refusal, path)
            told.headers["allow"] = ", ".join(allowed)
            return told
        case code:
            reason = HTTPStatus(code).phrase.lower().replace(" ", "_").replace("-", "_")
            return _response(problem(reason, code, str(error.detail), path, {}), dict(error.headers or {}))


async def _fastapis(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [{"message": each["msg"], "where": [str(part) for part in each["loc"]]} for each in error.errors()]
    refusal = Invalid("bad_parameter", "a parameter cannot be read; `errors` tells which", errors=errors)
    return answer(refusal, request.url.path)


def _allowed(request: Request) -> list[str]:
    """The methods of all routes of the path; the framework tells those of the first.

    Where a route names the path itself, one that would take it for an id does not count.
    """
    routes: list[Route] = request.app.state.routes
    path = request.url.path
    matching = [route.path for route in routes if route.path_regex.match(path)]
    meant = path if path in matching else next(iter(matching), None)
    found = {method for route in routes if route.path == meant for method in route.methods or ()}
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


def _response(body: dict[str, Any], headers: dict[str, str]) -> Response:
    return Response(as_json(body), body["status"], headers, MEDIA_TYPE)
