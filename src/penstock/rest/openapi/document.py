"""What is served, told to programs (OpenAPI) and to people (/docs). All of it comes from this server."""

from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib import resources
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from penstock.rest import problems as errors
from penstock.rest.openapi import schemas as shapes

OPEN: dict[str, Any] = {"security": []}  # `openapi_extra` of a route that asks for no token

DESCRIPTION = """
Versioned, multi-tenant datasets: every write atomic, every version readable.

Every error is `application/problem+json` with a `code` that never changes; an operation on a dataset tells its errors in
an envelope of its own. Every answer carries `x-request-id`.
"""
TAGS = [
    {"name": "datasets", "description": "Make, fill, read, change and drop datasets."},
    {"name": "pipelines", "description": "Operations that run on Spark, in order, and are committed once."},
    {"name": "runs", "description": "What became of pipelines that were run."},
    {"name": "schemas", "description": "What queries promise to return."},
    {"name": "queries", "description": "SQL over datasets, whose results are checked against their schemas."},
    {"name": "service", "description": "Health and metrics."},
]
# Headers of answers that clients rely on.
_HEADERS: dict[str, dict[str, Any]] = {
    "x-request-id": {"description": "The name of this request in the log.", "schema": shapes.TEXT},
    "etag": {"description": "The version of what is shown.", "schema": shapes.TEXT},
    "location": {"description": "Where it is.", "schema": shapes.LINK},
    "x-penstock-versions": {"description": "The versions that were read.", "schema": shapes.TEXT},
    "www-authenticate": {"description": "How to say who you are.", "schema": shapes.TEXT},
}
_FAILURE_HEADERS = {401: ("www-authenticate",)}
# What is made by a POST, and the parameter of the paths below that takes its id.
_MADE = {"/gts": "id", "/queries": "id", "/datasets": "dataset", "/pipelines": "id"}
_EARLY = (403, 500, 503)  # may come before a route is reached, or instead of its answer
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
    status: int,
    description: str,
    example: Any = None,
    schema: shapes.Shape | None = None,
    *,
    kind: str = "application/json",
    headers: Sequence[str] = (),
    errors: Sequence[int] = (),
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: the good one with its shape and an example, and each status of the bad ones."""
    body = {} if example is None else {"content": {kind: {"schema": schema, "example": example}}}
    good = {"description": description, "headers": _headers(*headers), **body}
    return {status: good, **{code: _failure(code) for code in errors}}


def told_as(shape: str, examples: Mapping[int, Any]) -> dict[int | str, dict[str, Any]]:
    """Failures that a route tells in a shape of its own. What comes before the route is a problem even there."""
    told: dict[int | str, dict[str, Any]] = {}
    for code, example in examples.items():
        problem = _failure(code)
        told[code] = {**problem, "content": sent(shape, example) | (problem["content"] if code in _EARLY else {})}
    return told


def unchanged() -> dict[int | str, dict[str, Any]]:
    """The answer to who has it already."""
    return {304: {"description": "Unchanged.", "headers": _headers("etag")}}


def query(name: str, description: str, *, kind: shapes.Shape = shapes.TEXT, example: Any) -> dict[str, Any]:
    """A parameter of the query string, for `openapi_extra`."""
    return {"name": name, "in": "query", "description": description, "schema": kind, "example": example}


def header(name: str, description: str, *, example: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": shapes.TEXT, "example": example}


def required(shape: str, example: Any) -> dict[str, Any]:
    """A body in JSON that has to be there, for `openapi_extra`."""
    return {"required": True, "content": sent(shape, example)}


def sent(shape: str, example: Any, *kinds: str) -> dict[str, Any]:
    """The content of a body in JSON, for `openapi_extra`."""
    return {kind: {"schema": shapes.of(shape), "example": example} for kind in kinds or ("application/json",)}


def install(app: FastAPI) -> None:
    app.openapi = cache(lambda: _openapi(app))  # type: ignore[method-assign]


def _openapi(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title="Penstock", version=version("penstock"), description=DESCRIPTION, tags=TAGS, routes=app.routes
    )
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    components["schemas"] = shapes.SHAPES  # and not what the framework says about its own errors
    document["security"] = [{"bearer": []}]
    _put_back_examples(document["paths"], app.state.routes)
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # bad input is 400 here
            if operation.get("security") != []:
                for code in (401, 500, 503):
                    operation["responses"].setdefault(str(code), _failure(code))
    for made, parameter in _MADE.items():
        document["paths"][made]["post"]["responses"]["201"]["links"] = _links(document["paths"], made, parameter)
    return document


def _put_back_examples(paths: dict[str, Any], routes: Sequence[APIRoute]) -> None:
    """As the routes have them: the framework drops every member that is null, and an answer has all of them."""
    for route in routes:
        if not route.include_in_schema:
            continue
        for method in route.methods or ():
            told = paths[route.path][method.lower()]["responses"]
            for code, response in route.responses.items():
                if "content" in response:
                    told[str(code)]["content"] = response["content"]


def _links(paths: dict[str, Any], made: str, parameter: str) -> dict[str, Any]:
    """From an answer to all that can be done with what was made."""
    return {
        operation["operationId"]: {
            "operationId": operation["operationId"],
            "parameters": {parameter: "$response.body#/id"},
            **({"requestBody": "$response.body"} if method == "put" else {}),
        }
        for path, operations in paths.items()
        if path.startswith(f"{made}/{{{parameter}}}")
        for method, operation in operations.items()
    }


def _failure(code: int) -> dict[str, Any]:
    reason, sentence, facts = _EXAMPLES[code]
    example = errors.problem(reason, code, sentence, _PATH, facts)
    schema = shapes.of("Problem")
    return {
        "description": HTTPStatus(code).phrase,
        "headers": _headers(*_FAILURE_HEADERS.get(code, ())),
        "content": {errors.MEDIA_TYPE: {"schema": schema, "example": example}},
    }


def _headers(*names: str) -> dict[str, Any]:
    return {name: {**_HEADERS[name], "required": True} for name in ("x-request-id", *names)}


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
