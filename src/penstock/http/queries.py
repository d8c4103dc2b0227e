"""Registered queries over REST: made, found, changed, moved through their states."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response

from penstock.core.lifecycle import State
from penstock.core.query import Query
from penstock.errors import Invalid
from penstock.http import bodies, errors, media, pages, shapes
from penstock.http.asked import number, parameters
from penstock.http.bodies import Who, parsed
from penstock.http.conditions import expected, has
from penstock.http.documents import answers, header, query, unchanged
from penstock.http.documents import sent as sent_as
from penstock.http.edge import edge_of
from penstock.http.pipelines import searching
from penstock.service import queries

VERSIONS = 100
LAST = 2**31 - 1  # no query has as many versions
SELECTABLE = ("sql", "parameters", "datasets", "state_changed_at")  # members that are shown, and not searched

ID = "9b1d5a3e-0c6f-4f0e-8a77-2f6f1c3b5d90"
SQL = "SELECT region, sum(amount) AS total FROM shop.orders WHERE day >= $since GROUP BY region"
_SENT = {
    "name": "Sales by region", "description": "One row a region", "sql": SQL,
    "parameters": [{"name": "since", "type": "date", "required": False, "default": "2026-01-01"}],
    "returns_schema_id": "7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d",
}  # fmt: skip
_PERSON, _MOMENT = "5f0c2f2e-8d1c-4e57-a2b4-0d6a1b9c7e11", "2026-01-31T10:30:00.000000Z"
_SAID = {**_SENT, "state": "ACTIVE", "datasets": [{"schema_name": "shop", "table_name": "orders"}]}
_QUERY = {
    "id": ID, **_SAID, "version": 1, "state_changed_at": _MOMENT,
    "created_at": _MOMENT, "created_by": _PERSON, "updated_at": _MOMENT, "updated_by": _PERSON,
}  # fmt: skip
_REVISION = {
    "version": 1, "change": "create", "reason": None, "changed_at": _MOMENT, "changed_by": _PERSON, "author": "ada",
    **_SAID,
}  # fmt: skip
_IF_MATCH = header("if-match", "The version that the change is made for, as its ETag.", example='"1"')

# The document says of an answer what its route says, and not that it might be JSON too.
router = APIRouter(prefix="/queries", tags=["queries"], default_response_class=Response)

Body = Annotated[bytes, Depends(bodies.content)]
Id = Annotated[str, Path(description="The query's id, or its name.", examples=[ID])]
Number = Annotated[str, Path(description="The version.", examples=["1"])]


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


def _sent(shape: str, example: Any) -> dict[str, Any]:
    return {"required": True, "content": sent_as(shape, example)}


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
    openapi_extra={"parameters": searching("queries", "state eq 'ACTIVE' and contains(name, 'region')")},
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
    openapi_extra={"requestBody": _sent("QuerySent", _SENT)},
)
def create(request: Request, who: Who, body: Body) -> Response:
    media.assert_sent(request.headers.get("content-type"), (media.JSON,))
    edge = edge_of(request)
    made = queries.create(edge.workspace, who, parsed(body), edge.results.inspected(who))
    return _shown(made, 201, {"location": f"/queries/{made.id}"})


@router.get(
    "/{id}",
    summary="Show a query",
    responses=_shows("The query.", _QUERY, [400, 403, 404]) | unchanged(),
    openapi_extra={"parameters": [header("if-none-match", "An ETag that is known.", example='"1"')]},
)
def show(request: Request, who: Who, id: Id) -> Response:
    one = queries.show(edge_of(request).workspace, who, id)
    if has(request, _etag(one)):
        return Response(status_code=304, headers=_headers(one))
    return _shown(one)


@router.put(
    "/{id}",
    summary="Replace a query",
    description="Name, description, SQL, parameters and schema are replaced. Say which version the change is made for: "
    "as `version` in the body, or in If-Match.",
    responses=_shows("As it is now.", _QUERY | {"version": 2}, [400, 403, 404, 409, 412, 413, 415]),
    openapi_extra={
        "parameters": [_IF_MATCH],
        "requestBody": _sent("QueryReplacement", {**_SENT, "version": 1}),
    },
)
def replace(request: Request, who: Who, id: Id, body: Body) -> Response:
    media.assert_sent(request.headers.get("content-type"), (media.JSON,))
    edge = edge_of(request)
    look = edge.results.inspected(who)
    return _shown(queries.replace_with(edge.workspace, who, id, parsed(body), expected(request), look))


@router.delete(
    "/{id}",
    status_code=204,
    summary="Delete a query",
    responses=answers(204, "It is gone.", errors=[400, 403, 404, 409, 412]),
    openapi_extra={"parameters": [_IF_MATCH]},
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
        "parameters": [_IF_MATCH],
        "requestBody": _sent("Transition", {"to": "DEPRECATED", "version": 1, "reason": "nobody reads it"}),
    },
)
def move(request: Request, who: Who, id: Id, body: Body) -> Response:
    media.assert_sent(request.headers.get("content-type"), (media.JSON,))
    return _shown(queries.move(edge_of(request).workspace, who, id, parsed(body), expected(request)))


@router.get(
    "/{id}/versions",
    summary="List a query's versions",
    responses=answers(
        200,
        "The newest first.",
        {"value": [_REVISION]},
        shapes.members({"value": shapes.many(shapes.of("QueryRevision"))}),
        errors=[400, 403, 404],
    ),
    openapi_extra={
        "parameters": [
            query("before", "Only versions below this one.", kind=shapes.COUNT, example=10),
            query("$top", "How many at most.", kind=shapes.COUNT, example=VERSIONS),
        ]
    },
)
def versions(request: Request, who: Who, id: Id) -> Response:
    asked = parameters(request)
    limit, before = number(asked, "$top", VERSIONS), number(asked, "before", LAST)
    found = queries.versions(edge_of(request).workspace, who, id, before=min(before, LAST), limit=limit)
    return _json({"value": [each.as_json() for each in found]})


@router.get(
    "/{id}/versions/{version}",
    summary="Show a version of a query",
    responses=answers(200, "As it was.", _REVISION, shapes.of("QueryRevision"), errors=[400, 403, 404]),
)
def version(request: Request, who: Who, id: Id, version: Number) -> Response:
    asked = min(number({"version": version}, "version", 0), LAST)
    return _json(queries.version(edge_of(request).workspace, who, id, asked).as_json())


def _shown(one: Query, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return _json(one.as_json(), status, _headers(one) | (headers or {}))


def _headers(one: Query) -> dict[str, str]:
    return {"etag": _etag(one), **deprecation(one)}


def _etag(one: Query) -> str:
    return f'"{one.version}"'


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(errors.as_json(value), status, headers, media.JSON)
