"""Registered queries over REST: made, found, changed, moved through their states."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from penstock.core.registry.lifecycle import State
from penstock.core.registry.query import Query
from penstock.errors import Invalid
from penstock.rest.requests import media_types as media
from penstock.rest.responses import odata_page as pages
from penstock.rest.openapi import examples as samples
from penstock.rest.openapi import schemas as shapes
from penstock.rest.responses import revisions as versioned
from penstock.rest.requests.bodies import Body, Who, parsed
from penstock.rest.requests.preconditions import expected
from penstock.rest.openapi.document import answers, required, unchanged
from penstock.rest.context import edge_of
from penstock.service.queries import definitions as queries

SELECTABLE = ("sql", "parameters", "datasets", "state_changed_at")  # members that are shown, and not searched

ID = "9b1d5a3e-0c6f-4f0e-8a77-2f6f1c3b5d90"
SQL = "SELECT region, sum(amount) AS total FROM shop.orders WHERE day >= $since GROUP BY region"
_SENT = {
    "name": "Sales by region", "description": "One row a region", "sql": SQL,
    "parameters": [{"name": "since", "type": "date", "required": False, "default": "2026-01-01"}],
    "returns_schema_id": "7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d",
}  # fmt: skip
_SAID = {**_SENT, "state": "ACTIVE", "datasets": [{"schema_name": "shop", "table_name": "orders"}]}
_QUERY = {
    "id": ID, **_SAID, "version": 1, "state_changed_at": samples.MOMENT, **samples.STAMPS,
}  # fmt: skip
_REVISION = {
    "version": 1, "change": "create", "reason": None, "changed_at": samples.MOMENT,
    "changed_by": samples.PERSON, "author": "ada", **_SAID,
}  # fmt: skip

router = APIRouter(prefix="/queries", tags=["queries"])

Id = Annotated[str, Path(description="The query's id, or its name.", examples=[ID])]


def deprecation(one: Query) -> dict[str, str]:
    """What the headers of every answer about a query say of its state."""
    return {"deprecation": f"@{int(one.state_changed_at.timestamp())}"} if one.state is State.DEPRECATED else {}


def values(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The values of parameters in a body."""
    match sent.get("parameters"):
        case None:
            return {}
        case dict(given) if all(isinstance(value, str | int | float | None) for value in given.values()):
            return given
    raise Invalid("bad_payload", "parameters must be an object of texts, numbers, true, false and null")


def _shows(description: str, example: Any, errors: list[int]) -> dict[int | str, dict[str, Any]]:
    return answers(200, description, example, shapes.of("Query"), headers=["etag"], errors=errors)


@router.get(
    "",
    summary="Search queries",
    responses=answers(
        200,
        "A page of queries.",
        {"@odata.context": "$metadata#queries", "@odata.count": 1, "value": [_QUERY]},
        shapes.of("QueryPage"),
        errors=[400, 403],
    ),
    openapi_extra={"parameters": pages.searching("queries", "state eq 'ACTIVE' and contains(name, 'region')")},
)
def search(request: Request, who: Who) -> Response:
    here = (edge_of(request).workspace, who)
    return pages.found(request, queries.FIELDS, SELECTABLE, lambda asked: queries.search(*here, asked), Query.as_json)


@router.post(
    "",
    status_code=201,
    summary="Register a query",
    description="One SELECT over datasets, named `schema.table`, with parameters as `$name`. Its columns are looked at "
    "at once: if the result can never fit the schema, `errors` tells why.",
    responses=answers(
        201,
        "It is there.",
        _QUERY,
        shapes.of("Query"),
        headers=["etag", "location"],
        errors=[400, 403, 404, 409, 413, 415],
    ),
    openapi_extra={"requestBody": required("QuerySent", _SENT)},
)
def create(request: Request, who: Who, body: Body) -> Response:
    edge = edge_of(request)
    made = queries.create(edge.workspace, who, parsed(body), edge.results.inspected(who))
    return versioned.shown(made, {"location": f"/queries/{made.id}"}, 201)


@router.get(
    "/{id}",
    summary="Show a query",
    responses=_shows("The query.", _QUERY, [400, 403, 404]) | unchanged(),
    openapi_extra={"parameters": [versioned.IF_NONE_MATCH]},
)
def show(request: Request, who: Who, id: Id) -> Response:
    one = queries.show(edge_of(request).workspace, who, id)
    return versioned.shown_unless_known(request, one, deprecation(one))


@router.put(
    "/{id}",
    summary="Replace a query",
    description="Name, description, SQL, parameters and schema are replaced. Say which version the change is made for: "
    "as `version` in the body, or in If-Match.",
    responses=_shows("As it is now.", _QUERY | {"version": 2}, [400, 403, 404, 409, 412, 413, 415]),
    openapi_extra={
        "parameters": [versioned.IF_MATCH],
        "requestBody": required("QueryReplacement", {**_SENT, "version": 1}),
    },
)
def replace(request: Request, who: Who, id: Id, body: Body) -> Response:
    edge = edge_of(request)
    look = edge.results.inspected(who)
    return _shown(queries.replace_with(edge.workspace, who, id, parsed(body), expected(request), look))


@router.delete(
    "/{id}",
    status_code=204,
    summary="Delete a query",
    responses=answers(204, "It is gone.", errors=[400, 403, 404, 409, 412]),
    openapi_extra={"parameters": [versioned.IF_MATCH]},
)
def delete(request: Request, who: Who, id: Id) -> Response:
    queries.remove(edge_of(request).workspace, who, id, expected(request))
    return Response(status_code=204)


@router.post(
    "/{id}/transitions",
    summary="Take a query to another state",
    responses=_shows(
        "As it is now.", _QUERY | {"state": "DEPRECATED", "version": 2}, [400, 403, 404, 409, 412, 413, 415]
    ),
    openapi_extra={
        "parameters": [versioned.IF_MATCH],
        "requestBody": required("Transition", {"to": "DEPRECATED", "version": 1, "reason": "nobody reads it"}),
    },
)
def move(request: Request, who: Who, id: Id, body: Body) -> Response:
    return _shown(queries.move(edge_of(request).workspace, who, id, parsed(body), expected(request)))


@router.get("/{id}/versions", **versioned.listed("query", "QueryRevision", _REVISION))
def versions(request: Request, who: Who, id: Id) -> Response:
    return versioned.versions(request, partial(queries.versions, edge_of(request).workspace, who, id))


@router.get(
    "/{id}/versions/{version}",
    summary="Show a version of a query",
    responses=answers(200, "As it was.", _REVISION, shapes.of("QueryRevision"), errors=[400, 403, 404]),
)
def version(request: Request, who: Who, id: Id, version: versioned.Number) -> Response:
    found = queries.version(edge_of(request).workspace, who, id, versioned.numbered({"version": version}))
    return media.json(found.as_json())


def _shown(one: Query) -> Response:
    return versioned.shown(one, deprecation(one))
