"""Routes of pipelines: search, create, validate, show, replace, delete and undelete."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response

from penstock.core.names import parse_uuid
from penstock.core.odata.entity_set import JSON_OBJECT, JSON_OBJECTS, EntitySet
from penstock.core.pipeline.definition import StoredPipeline
from penstock.errors import NotFound
from penstock.rest import problems
from penstock.rest.context import context_of
from penstock.rest.odata_route import ODataRoute
from penstock.rest.openapi import examples
from penstock.rest.openapi import pipelines as docs
from penstock.rest.requests import media_types
from penstock.rest.requests.bodies import Body, CallerDep, DeveloperBody, EmptyBody, parse_json
from penstock.rest.requests.preconditions import if_match
from penstock.rest.responses import odata_page, revisions
from penstock.rest.route_execution import Lane, in_lane
from penstock.service.pipelines import definitions, planning

ENTITY_SET = EntitySet(
    "pipelines",
    "Pipeline",
    definitions.SEARCH_FIELDS,
    {"working": JSON_OBJECT, "operations": JSON_OBJECTS, "output": JSON_OBJECT},
)

router = APIRouter(prefix="/pipelines", tags=["pipelines"], route_class=in_lane(Lane.CATALOG, ODataRoute))

PipelineId = Annotated[str, Path(description="The pipeline's id.", examples=[examples.PIPELINE_ID])]


@router.get("", **docs.SEARCH_PIPELINES)
def search(request: Request, caller: CallerDep) -> Response:
    ws = context_of(request).workspace
    return odata_page.search_response(
        request, ENTITY_SET, lambda options: definitions.search(ws, caller, options), StoredPipeline.as_json
    )


@router.post("", status_code=201, **docs.CREATE_PIPELINE)
def create(request: Request, caller: CallerDep, body: DeveloperBody) -> Response:
    stored = definitions.create(context_of(request).workspace, caller, parse_json(body))
    return revisions.entity_response(stored, {"location": f"/pipelines/{stored.id}"}, 201)


@router.post("/validate", **docs.VALIDATE_PIPELINE)
def validate(request: Request, caller: CallerDep, body: Body) -> Response:
    errors = planning.validate_pipeline(context_of(request).workspace, caller, parse_json(body))
    return media_types.json_response({"valid": not errors, "errors": problems.to_json_value(errors)})


@router.get("/{id}", **docs.SHOW_PIPELINE)
def show(request: Request, caller: CallerDep, id: PipelineId) -> Response:
    stored = definitions.show(context_of(request).workspace, caller, parse_pipeline_id(id))
    return revisions.conditional_response(request, stored)


@router.put("/{id}", **docs.REPLACE_PIPELINE)
def replace(request: Request, caller: CallerDep, id: PipelineId, body: DeveloperBody) -> Response:
    ws, pipeline_id = context_of(request).workspace, parse_pipeline_id(id)
    stored = definitions.replace(ws, caller, pipeline_id, parse_json(body), if_match(request))
    return revisions.entity_response(stored)


@router.delete("/{id}", status_code=204, **docs.DELETE_PIPELINE)
def delete(request: Request, caller: CallerDep, id: PipelineId) -> Response:
    definitions.remove(context_of(request).workspace, caller, parse_pipeline_id(id), if_match(request))
    return Response(status_code=204)


@router.post("/{id}/undelete", **docs.UNDELETE_PIPELINE)
def undelete(request: Request, caller: CallerDep, id: PipelineId, _body: EmptyBody) -> Response:
    ws, pipeline_id = context_of(request).workspace, parse_pipeline_id(id)
    return revisions.entity_response(definitions.undelete(ws, caller, pipeline_id, if_match(request)))


def parse_pipeline_id(id: str) -> UUID:
    """Parse a pipeline id.

    Raises:
        NotFound: the text is not a UUID, so no pipeline can have this id
    """
    if pipeline_id := parse_uuid(id):
        return pipeline_id
    raise NotFound("pipeline_not_found", pipeline_id=id[:200])
