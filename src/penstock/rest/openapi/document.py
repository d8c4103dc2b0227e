"""Assemble the OpenAPI document from the routes and the component schemas."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from penstock.rest.odata_route import ODataRoute
from penstock.rest.openapi import parameters
from penstock.rest.openapi.builders import error_response, required_header
from penstock.rest.openapi.schemas import SCHEMAS
from penstock.rest.requests.content_negotiation import negotiated_types

DESCRIPTION = """
Versioned, multi-tenant datasets: every write atomic, every version readable.

Every error is `application/problem+json` with a `code` that never changes; an operation on a dataset returns its
errors as `{error: {code, message, details}}`. Every response has the header `x-request-id`.
"""
TAGS = [
    {"name": "datasets", "description": "Create, append to, read, change and drop datasets."},
    {"name": "pipelines", "description": "Sequences of operations that Spark executes and that are committed once."},
    {"name": "runs", "description": "Executions of pipelines."},
    {"name": "schemas", "description": "Result schemas of queries."},
    {"name": "queries", "description": "Registered SQL queries, whose results are validated against their schemas."},
    {"name": "service", "description": "Health and metrics."},
]
# Collections that POST adds to, with the path parameter that takes the id of a new item.
_COLLECTIONS = {"/gts": "id", "/queries": "id", "/datasets": "dataset", "/pipelines": "id"}


def install(app: FastAPI) -> None:
    """Make the application generate its OpenAPI document here, once."""
    app.openapi = cache(lambda: _openapi(app))  # type: ignore[method-assign]


def _openapi(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title="Penstock", version=version("penstock"), description=DESCRIPTION, tags=TAGS, routes=app.routes
    )
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    components["schemas"] = SCHEMAS  # replaces the framework's schemas of its own errors
    document["security"] = [{"bearer": []}]
    _restore_examples(document["paths"], app.state.routes)
    _add_protocol(document["paths"], app.state.routes)
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # invalid input is 400 in this API
            if operation.get("security") != []:
                for status in (401, 500, 503):
                    operation["responses"].setdefault(str(status), error_response(status))
    for collection, parameter in _COLLECTIONS.items():
        created = document["paths"][collection]["post"]["responses"]["201"]
        created["links"] = _links(document["paths"], collection, parameter)
    return document


def _restore_examples(paths: dict[str, Any], routes: Sequence[APIRoute]) -> None:
    """Put back the examples of the routes: the framework drops every member that is null."""
    for route in routes:
        if not route.include_in_schema:
            continue
        for method in route.methods or ():
            responses = paths[route.path][method.lower()]["responses"]
            for status, response in route.responses.items():
                if "content" in response:
                    responses[str(status)]["content"] = response["content"]


def _add_protocol(paths: dict[str, Any], routes: Sequence[APIRoute]) -> None:
    """Add what the routes share: the version headers of OData, and 406 where the media type is negotiated."""
    for route in routes:
        for method in (route.methods or ()) if route.include_in_schema else ():
            operation = paths[route.path][method.lower()]
            responses = operation["responses"]
            if operation.get("security") != [] and negotiated_types(route.responses):
                responses.setdefault("406", error_response(406))
            if isinstance(route, ODataRoute):
                operation["parameters"] = [*operation.get("parameters", []), parameters.ODATA_MAX_VERSION]
                for status in (status for status in responses if status < "400"):
                    responses[status].setdefault("headers", {})["odata-version"] = required_header("odata-version")


def _links(paths: dict[str, Any], collection: str, parameter: str) -> dict[str, Any]:
    """Link the response of a creation to the operations on the new item."""
    return {
        operation["operationId"]: {
            "operationId": operation["operationId"],
            "parameters": {parameter: "$response.body#/id"},
            **({"requestBody": "$response.body"} if method == "put" else {}),
        }
        for path, operations in paths.items()
        if path.startswith(f"{collection}/{{{parameter}}}")
        for method, operation in operations.items()
    }
