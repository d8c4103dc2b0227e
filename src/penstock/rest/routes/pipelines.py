"""Pipelines over REST: kept, found, changed, and checked while they are written."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response

from penstock.core.names import uuid
from penstock.core.pipeline.definition import Stored
from penstock.errors import NotFound
from penstock.rest import problems as errors
from penstock.rest.requests import media_types as media
from penstock.rest.responses import odata_page as pages
from penstock.rest.openapi import examples as samples
from penstock.rest.openapi import schemas as shapes
from penstock.rest.responses import revisions as versioned
from penstock.rest.requests.bodies import Body, Who, parsed
from penstock.rest.requests.preconditions import expected
from penstock.rest.openapi.document import answers, required, unchanged
from penstock.rest.context import edge_of
from penstock.service.pipelines import definitions as pipelines
from penstock.service.pipelines import planning as readiness

SELECTABLE = ("working", "operations", "output")  # members that are shown, and not searched

APPEND = {
    "type": "append",
    "order": 0,
    "parameters": {
        "source": {"dataset_id": "a1b2c3d4-e5f6-7890-abcd-ef1234567890"},
        "source_selector": "budget_type = 'original'",
    },
}
DEFINITION = {
    "name": "Budgets into transactions",
    "working": {"dataset_id": samples.DATASET["id"]},
    "operations": [APPEND],
}
ID = "2f8a7c1e-6d0b-4b6f-8f57-1b9d3e5a7c20"
_PIPELINE = {
    "id": ID, **DEFINITION, "version": 1,
    **samples.STAMPS,
}  # fmt: skip
_FAULT = {
    "pointer": "/operations/0",
    "code": "APPEND_001",
    "message": "Dataset not found",
    "details": {"dataset_id": "a1b2c3d4-e5f6-7890-abcd-ef1234567890", "operation_order": 0},
}

router = APIRouter(prefix="/pipelines", tags=["pipelines"])

Id = Annotated[str, Path(description="The pipeline's id.", examples=[ID])]


@router.get(
    "",
    summary="Search pipelines",
    responses=answers(
        200,
        "A page of pipelines.",
        {"@odata.context": "$metadata#pipelines", "@odata.count": 1, "value": [_PIPELINE]},
        shapes.of("PipelinePage"),
        errors=[400, 403],
    ),
    openapi_extra={"parameters": pages.searching("pipelines", "startswith(name, 'Budgets') and version gt 1")},
)
def search(request: Request, who: Who) -> Response:
    here = (edge_of(request).workspace, who)
    return pages.found(
        request, pipelines.FIELDS, SELECTABLE, lambda asked: pipelines.search(*here, asked), Stored.as_json
    )


@router.post(
    "",
    status_code=201,
    summary="Make a pipeline",
    description="Its shape must be right, and `errors` tells everything that is not. The datasets that it names are "
    "looked at when it runs; POST /pipelines/validate looks at once.",
    responses=answers(
        201,
        "It is there.",
        _PIPELINE,
        shapes.of("Pipeline"),
        headers=["etag", "location"],
        errors=[400, 403, 409, 413, 415],
    ),
    openapi_extra={"requestBody": required("PipelineSent", DEFINITION)},
)
def create(request: Request, who: Who, body: Body) -> Response:
    stored = pipelines.create(edge_of(request).workspace, who, parsed(body))
    return versioned.shown(stored, {"location": f"/pipelines/{stored.id}"}, 201)


@router.post(
    "/validate",
    summary="Check a pipeline",
    description="Everything that is wrong with it, each with its place: its shape, or, if that is right, what its "
    "operations meet in the datasets as they are now. Nothing is stored, and no row is read.",
    responses=answers(
        200,
        "The verdict.",
        {"valid": False, "errors": [_FAULT]},
        shapes.of("PipelineVerdict"),
        errors=[400, 403, 413, 415],
    ),
    openapi_extra={"requestBody": required("PipelineDraft", DEFINITION)},
)
def validate(request: Request, who: Who, body: Body) -> Response:
    found = readiness.problems(edge_of(request).workspace, who, parsed(body))
    return media.json({"valid": not found, "errors": errors.plain(found)})


@router.get(
    "/{id}",
    summary="Show a pipeline",
    responses=answers(200, "The pipeline.", _PIPELINE, shapes.of("Pipeline"), headers=["etag"], errors=[400, 403, 404])
    | unchanged(),
    openapi_extra={"parameters": [versioned.IF_NONE_MATCH]},
)
def show(request: Request, who: Who, id: Id) -> Response:
    stored = pipelines.show(edge_of(request).workspace, who, pipeline_id(id))
    return versioned.shown_unless_known(request, stored)


@router.put(
    "/{id}",
    summary="Replace a pipeline",
    description="Say which version the change is made for: as `version` in the body, or in If-Match. Runs that are "
    "under way go on as they began.",
    responses=answers(
        200,
        "As it is now.",
        _PIPELINE | {"version": 2},
        shapes.of("Pipeline"),
        headers=["etag"],
        errors=[400, 403, 404, 409, 412, 413, 415],
    ),
    openapi_extra={
        "parameters": [versioned.IF_MATCH],
        "requestBody": required("PipelineReplacement", {**DEFINITION, "version": 1}),
    },
)
def replace(request: Request, who: Who, id: Id, body: Body) -> Response:
    here = (edge_of(request).workspace, who, pipeline_id(id))
    return versioned.shown(pipelines.replace(*here, parsed(body), expected(request)))


@router.delete(
    "/{id}",
    status_code=204,
    summary="Delete a pipeline",
    description="What its runs did stays on record.",
    responses=answers(204, "It is gone.", errors=[400, 403, 404, 409, 412]),
    openapi_extra={"parameters": [versioned.IF_MATCH]},
)
def delete(request: Request, who: Who, id: Id) -> Response:
    pipelines.remove(edge_of(request).workspace, who, pipeline_id(id), expected(request))
    return Response(status_code=204)


def pipeline_id(id: str) -> UUID:
    if found := uuid(id):
        return found
    raise NotFound("pipeline_not_found", "there is no such pipeline, or none that you may see", pipeline_id=id[:200])
