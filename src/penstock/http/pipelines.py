"""Pipelines over REST: kept, found, changed, and checked while they are written."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Request, Response

from penstock.core.pipeline import Stored
from penstock.errors import NotFound
from penstock.http import bodies, errors, media, pages, samples, shapes
from penstock.http.asked import uuid
from penstock.http.bodies import Who, parsed
from penstock.http.conditions import expected, has
from penstock.http.documents import answers, header, query, unchanged
from penstock.http.documents import sent as sent_as
from penstock.http.edge import edge_of
from penstock.service import pipelines, readiness

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
_PERSON, _MOMENT = "5f0c2f2e-8d1c-4e57-a2b4-0d6a1b9c7e11", "2026-01-31T10:30:00.000000Z"
_PIPELINE = {
    "id": ID, **DEFINITION, "version": 1,
    "created_at": _MOMENT, "created_by": _PERSON, "updated_at": _MOMENT, "updated_by": _PERSON,
}  # fmt: skip
_FAULT = {
    "pointer": "/operations/0",
    "code": "APPEND_001",
    "message": "Dataset not found",
    "details": {"dataset_id": "a1b2c3d4-e5f6-7890-abcd-ef1234567890", "operation_order": 0},
}
_IF_MATCH = header("if-match", "The version that the change is made for, as its ETag.", example='"1"')

# The document says of an answer what its route says, and not that it might be JSON too.
router = APIRouter(prefix="/pipelines", tags=["pipelines"], default_response_class=Response)

Body = Annotated[bytes, Depends(bodies.content)]
Id = Annotated[str, Path(description="The pipeline's id.", examples=[ID])]


def _sent(shape: str, example: Any) -> dict[str, Any]:
    return {"required": True, "content": sent_as(shape, example)}


def searching(things: str, condition: str) -> list[dict[str, Any]]:
    """The parameters of a search, for the document."""
    return [
        query("$filter", f"Only such {things}.", example=condition),
        query("$orderby", "The order; the newest first unless given.", example="name desc"),
        query(
            "$top",
            f"How many at most: {pages.TOP} unless given, never more than {pages.MOST}.",
            kind=shapes.COUNT,
            example=10,
        ),
        samples.SKIP,
        query("$select", "Only these members.", example="id,name"),
        query("$count", "Also say how many there are.", kind=shapes.FLAG, example=True),
        query("$search", "Words that the name holds.", example="budgets"),
    ]


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
    openapi_extra={"parameters": searching("pipelines", "startswith(name, 'Budgets') and version gt 1")},
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
    openapi_extra={"requestBody": _sent("PipelineSent", DEFINITION)},
)
def create(request: Request, who: Who, body: Body) -> Response:
    media.assert_sent(request.headers.get("content-type"), (media.JSON,))
    stored = pipelines.create(edge_of(request).workspace, who, parsed(body))
    return _told(stored, 201, {"location": f"/pipelines/{stored.id}"})


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
    openapi_extra={"requestBody": _sent("PipelineDraft", DEFINITION)},
)
def validate(request: Request, who: Who, body: Body) -> Response:
    media.assert_sent(request.headers.get("content-type"), (media.JSON,))
    found = readiness.problems(edge_of(request).workspace, who, parsed(body))
    return _json({"valid": not found, "errors": errors.plain(found)})


@router.get(
    "/{id}",
    summary="Show a pipeline",
    responses=answers(200, "The pipeline.", _PIPELINE, shapes.of("Pipeline"), headers=["etag"], errors=[400, 403, 404])
    | unchanged(),
    openapi_extra={"parameters": [header("if-none-match", "An ETag that is known.", example='"1"')]},
)
def show(request: Request, who: Who, id: Id) -> Response:
    stored = pipelines.show(edge_of(request).workspace, who, pipeline_id(id))
    if has(request, _etag(stored)):
        return Response(status_code=304, headers={"etag": _etag(stored)})
    return _told(stored)


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
        "parameters": [_IF_MATCH],
        "requestBody": _sent("PipelineReplacement", {**DEFINITION, "version": 1}),
    },
)
def replace(request: Request, who: Who, id: Id, body: Body) -> Response:
    media.assert_sent(request.headers.get("content-type"), (media.JSON,))
    here = (edge_of(request).workspace, who, pipeline_id(id))
    return _told(pipelines.replace(*here, parsed(body), expected(request)))


@router.delete(
    "/{id}",
    status_code=204,
    summary="Delete a pipeline",
    description="What its runs did stays on record.",
    responses=answers(204, "It is gone.", errors=[400, 403, 404, 409, 412]),
    openapi_extra={"parameters": [_IF_MATCH]},
)
def delete(request: Request, who: Who, id: Id) -> Response:
    pipelines.remove(edge_of(request).workspace, who, pipeline_id(id), expected(request))
    return Response(status_code=204)


def pipeline_id(id: str) -> UUID:
    if found := uuid(id):
        return found
    raise NotFound("pipeline_not_found", "there is no such pipeline, or none that you may see", pipeline_id=id[:200])


def _told(stored: Stored, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return _json(stored.as_json(), status, {"etag": _etag(stored), **(headers or {})})


def _etag(stored: Stored) -> str:
    return f'"{stored.version}"'


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(errors.as_json(value), status, headers, media.JSON)
