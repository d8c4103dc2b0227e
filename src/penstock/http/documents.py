"""What is served, told to programs (OpenAPI) and to people (/docs). All of it comes from this server."""

from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from importlib import resources
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from penstock.http import errors

OPEN: dict[str, Any] = {"security": []}  # `openapi_extra` of a route that asks for no token

DESCRIPTION = """
Versioned, multi-tenant datasets: every write atomic, every version readable.

Every error is `application/problem+json` with a `code` that never changes. Every answer carries `x-request-id`.
"""
TAGS = [
    {"name": "datasets", "description": "Make, fill, read and drop datasets."},
    {"name": "schemas", "description": "What queries promise to return."},
    {"name": "service", "description": "Health and metrics."},
]
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "code", "error"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What went wrong, and what to do about it."},
        "instance": {"type": "string", "description": "The path that was asked for."},
        "code": {"type": "string", "description": "The reason: one word that never changes."},
        "error": {"type": "string", "description": "The reason as a short sentence."},
        "errors": {"type": "array", "description": "Each thing that is wrong, where there are several."},
    },
    "additionalProperties": True,
}
# One example of each status: reason, sentence, facts.
_EXAMPLES: dict[int, tuple[str, str, dict[str, Any]]] = {
    400: ("bad_json", "the body is not JSON: Expecting value at line 1, column 9", {"position": 8}),
    401: ("token_expired", "the token has expired; get a new one", {}),
    403: (
        "role_too_low",
        "this needs the role analytics.developer; ada has analytics.viewer",
        {"required_role": "analytics.developer"},
    ),
    404: ("dataset_not_found", "there is no dataset 'shop.orders'", {"dataset": "shop.orders"}),
    406: ("not_acceptable", "this can be had as application/json", {"offered": ["application/json"]}),
    408: ("body_timed_out", "nothing came of the body for 60 seconds", {}),
    409: ("stale_version", "shop.orders has moved past version 3", {"dataset": "shop.orders", "base": 3}),
    412: ("precondition_failed", "it has changed since you read it; read it again", {"current_version": 4}),
    413: ("body_too_large", "the body has more than 4,194,304 bytes", {"limit": 4_194_304}),
    415: ("unsupported_media_type", "content-type 'text/xml' is not served here", {"accepted": ["text/csv"]}),
    500: ("internal_error", "something went wrong that is not your fault", {"request_id": "5f0c…"}),
    501: ("type_not_for_engine", "this engine cannot keep the type of column 'x'", {"column": "x"}),
    503: ("database_busy", "another process holds the catalog's write lock; try again", {}),
}
_PATH = "/datasets"

router = APIRouter(include_in_schema=False)


def answers(
    status: int, description: str, example: Any = None, *, kind: str = "application/json", errors: Sequence[int] = ()
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: the good one with an example, and each status of the bad ones with its own."""
    body = {} if example is None else {"content": {kind: {"example": example}}}
    return {status: {"description": description, **body}, **{code: _failure(code) for code in errors}}


def query(name: str, description: str, *, kind: str = "string", example: Any = None) -> dict[str, Any]:
    """A parameter of the query string, for `openapi_extra`."""
    shown = {} if example is None else {"example": example}
    return {"name": name, "in": "query", "description": description, "schema": {"type": kind}, **shown}


def header(name: str, description: str, *, example: str) -> dict[str, Any]:
    schema = {"type": "string"}
    return {"name": name, "in": "header", "description": description, "schema": schema, "example": example}


def install(app: FastAPI) -> None:
    app.openapi = cache(lambda: _openapi(app))  # type: ignore[method-assign]


def _openapi(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title="Penstock", version=version("penstock"), description=DESCRIPTION, tags=TAGS, routes=app.routes
    )
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = _PROBLEM
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["security"] = [{"bearer": []}]
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # bad input is 400 here
            if operation.get("security") != []:
                for code in (401, 500, 503):
                    operation["responses"].setdefault(str(code), _failure(code))
    return document


def _failure(code: int) -> dict[str, Any]:
    reason, sentence, facts = _EXAMPLES[code]
    example = errors.problem(reason, code, sentence, _PATH, facts)
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        "description": HTTPStatus(code).phrase,
        "content": {errors.MEDIA_TYPE: {"schema": schema, "example": example}},
    }


# The page and its parts. Nothing inline: the policy lets scripts come from files of this server only.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Penstock</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon.png">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#page", deepLinking: true, validatorUrl: null});\n'
_PARTS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}


@router.get("/openapi.json")
def openapi(request: Request) -> Response:
    return Response(errors.as_json(request.app.openapi()), media_type="application/json")


@router.get("/docs")
async def docs() -> Response:
    return Response(_PAGE, media_type="text/html", headers={"content-security-policy": _POLICY})


@router.get("/docs/start.js")
async def start() -> Response:
    return Response(_START, media_type="text/javascript")


def _part(name: str, kind: str) -> Any:
    def part() -> Response:
        return Response(_content(name), media_type=kind, headers={"cache-control": "public, max-age=86400"})

    return part


@cache
def _content(name: str) -> bytes:
    return (resources.files("fastapi_offline") / "static" / name).read_bytes()


for _name, _kind in _PARTS.items():
    router.add_api_route(f"/docs/{_name}", _part(_name, _kind), methods=["GET"])
router.add_api_route("/favicon.ico", _part("favicon.png", "image/png"), methods=["GET"])
