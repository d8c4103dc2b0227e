"""Routes of registered queries: search, create, show, replace, delete, undelete, change state and list revisions."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from penstock.core.odata.entity_set import JSON_OBJECTS, EntitySet
from penstock.core.registry.query import RegisteredQuery
from penstock.errors import Invalid
from penstock.rest.context import context_of
from penstock.rest.odata_route import ODataRoute
from penstock.rest.openapi import examples
from penstock.rest.openapi import queries as docs
from penstock.rest.requests import media_types
from penstock.rest.requests.bodies import Body, CallerDep, DeveloperBody, EmptyBody, parse_json
from penstock.rest.requests.preconditions import if_match
from penstock.rest.responses import odata_page, revisions
from penstock.rest.route_execution import Lane, in_lane
from penstock.service.queries import definitions

ENTITY_SET = EntitySet(
    "queries",
    "Query",
    definitions.FIELDS,
    {
        "sql": "Edm.String",
        "parameters": JSON_OBJECTS,
        "datasets": JSON_OBJECTS,
        "state_changed_at": "Edm.DateTimeOffset",
    },
    row_collections=("results",),
)

router = APIRouter(prefix="/queries", tags=["queries"], route_class=in_lane(Lane.CATALOG, ODataRoute))

QueryKey = Annotated[str, Path(description="The query's id, or its name.", examples=[examples.QUERY_ID])]


def parameter_values(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameter values in a body.

    Raises:
        Invalid: `parameters` is not an object of scalars
    """
    match payload.get("parameters"):
        case None:
            return {}
        case dict(values) if all(isinstance(value, str | int | float | None) for value in values.values()):
            return values
    raise Invalid("bad_payload.parameter_values")


@router.get("", **docs.SEARCH_QUERIES)
def search(request: Request, caller: CallerDep) -> Response:
    ws = context_of(request).workspace
    return odata_page.search_response(
        request, ENTITY_SET, lambda options: definitions.search(ws, caller, options), RegisteredQuery.as_json
    )


@router.post("", status_code=201, **docs.CREATE_QUERY)
def create(request: Request, caller: CallerDep, body: DeveloperBody) -> Response:
    context = context_of(request)
    inspect = context.query_executor.inspector(caller)
    query = definitions.create(context.workspace, caller, parse_json(body), inspect)
    return revisions.entity_response(query, {"location": f"/queries/{query.id}"}, 201)


@router.get("/{id}", **docs.SHOW_QUERY)
def show(request: Request, caller: CallerDep, id: QueryKey) -> Response:
    query = definitions.show(context_of(request).workspace, caller, id)
    return revisions.conditional_response(request, query, revisions.deprecation_headers(query))


@router.put("/{id}", **docs.REPLACE_QUERY)
def replace(request: Request, caller: CallerDep, id: QueryKey, body: DeveloperBody) -> Response:
    context = context_of(request)
    inspect = context.query_executor.inspector(caller)
    return _query_response(
        definitions.replace_with(context.workspace, caller, id, parse_json(body), if_match(request), inspect)
    )


@router.delete("/{id}", status_code=204, **docs.DELETE_QUERY)
def delete(request: Request, caller: CallerDep, id: QueryKey) -> Response:
    definitions.delete(context_of(request).workspace, caller, id, if_match(request))
    return Response(status_code=204)


@router.post("/{id}/undelete", **docs.UNDELETE_QUERY)
def undelete(request: Request, caller: CallerDep, id: QueryKey, _body: EmptyBody) -> Response:
    return _query_response(definitions.undelete(context_of(request).workspace, caller, id, if_match(request)))


@router.post("/{id}/transitions", **docs.TRANSITION_QUERY)
def move(request: Request, caller: CallerDep, id: QueryKey, body: Body) -> Response:
    ws = context_of(request).workspace
    return _query_response(definitions.change_state(ws, caller, id, parse_json(body), if_match(request)))


@router.get("/{id}/versions", **docs.LIST_REVISIONS)
def versions(request: Request, caller: CallerDep, id: QueryKey) -> Response:
    list_versions = partial(definitions.list_versions, context_of(request).workspace, caller, id)
    return revisions.revisions_response(request, list_versions)


@router.get("/{id}/versions/{version}", **docs.SHOW_REVISION)
def version(request: Request, caller: CallerDep, id: QueryKey, version: revisions.VersionPath) -> Response:
    number = revisions.parse_version({"version": version})
    revision = definitions.get_version(context_of(request).workspace, caller, id, number)
    return media_types.json_response(revision.as_json())


def _query_response(query: RegisteredQuery) -> Response:
    return revisions.entity_response(query, revisions.deprecation_headers(query))
