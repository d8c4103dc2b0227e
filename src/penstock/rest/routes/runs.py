"""Runs over REST: started, watched, searched, cancelled."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Request, Response

from penstock.core.names import uuid
from penstock.core.pipeline.run import UNDER_WAY, Run
from penstock.errors import NotFound
from penstock.rest.requests import bodies
from penstock.rest import problems as errors
from penstock.rest.requests import media_types as media
from penstock.rest.responses import odata_page as pages
from penstock.rest.routes import pipelines
from penstock.rest.openapi import examples as samples
from penstock.rest.openapi import schemas as shapes
from penstock.rest.requests.bodies import Who
from penstock.rest.openapi.document import answers
from penstock.rest.openapi.document import sent as sent_as
from penstock.rest.context import edge_of
from penstock.service.pipelines import definitions as stored
from penstock.service.pipelines import run_worker as runs

SELECTABLE = (
    "created_by", "idempotency_key", "cancelling", "progress", "reads", "written", "commit_no", "results", "error",
    "pipeline",
)  # members that are shown, and not searched  # fmt: skip

_ID = "9b1d4e6f-3a2c-4d8e-b7f0-6c5a4b3c2d1e"
RUN = {
    "id": _ID, "pipeline_id": pipelines.ID, "name": pipelines.DEFINITION["name"], "state": "queued",
    "created_at": "2026-01-31T10:30:00.000000Z", "created_by": "5f0c2f2e-8d1c-4e57-a2b4-0d6a1b9c7e11", "author": "ada",
    "idempotency_key": "nightly-2026-01-31", "started_at": None, "ended_at": None, "cancelling": False,
    "progress": None, "reads": [], "written": [], "commit_no": None, "results": [], "error": None,
    "pipeline": pipelines.DEFINITION,
}  # fmt: skip
RESULT = {
    "success": True, "operation": "append", "order": 0,
    "result": {
        "rows_appended": 142, "source_dataset_id": "a1b2c3d4-e5f6-7890-abcd-ef1234567890",
        "working_dataset_rows_before": 1000, "working_dataset_rows_after": 1142, "execution_time_ms": 23,
        "aggregated": False, "filtered": True,
    },
}  # fmt: skip
_OVER = {
    **RUN, "state": "succeeded", "started_at": "2026-01-31T10:30:01.000000Z", "ended_at": "2026-01-31T10:30:04.000000Z",
    "reads": [{"dataset": samples.DATASET["id"], "name": "shop.orders", "version": 1, "newest": 1}],
    "written": samples.RECEIPT["written"], "commit_no": 2, "results": [RESULT],
}  # fmt: skip
_NOTHING = {"required": False, "content": sent_as("Nothing", {})}

router = APIRouter(tags=["runs"])

Nothing = Annotated[None, Depends(bodies.nothing)]
Id = Annotated[str, Path(description="The run's id.", examples=[_ID])]


@router.post(
    "/pipelines/{id}/runs",
    status_code=202,
    summary="Run a pipeline",
    description="It waits for its turn and runs in the background; what is wrong with its operations is found there. "
    "Sent again with the key of a run that is under way, the answer is that run; of one that has succeeded, that one, "
    "as 200. A run that failed or was cancelled frees its key.",
    responses={
        **answers(
            202,
            "It waits, or runs.",
            RUN,
            shapes.of("Run"),
            headers=["location"],
            errors=[400, 403, 404, 409, 413, 415],
        ),
        **answers(200, "It was run before, with this key.", _OVER, shapes.of("Run"), headers=["location"]),
    },
    openapi_extra={"parameters": [samples.KEY], "requestBody": _NOTHING},
)
def start(request: Request, who: Who, id: pipelines.Id, _nothing: Nothing) -> Response:
    edge = edge_of(request)
    pipeline = stored.show(edge.workspace, who, pipelines.pipeline_id(id))
    key = request.headers.get("idempotency-key")
    ticket = edge.runner.submit(who, pipeline.pipeline, pipeline_id=pipeline.id, key=key)
    asked_before = ticket.run.state not in UNDER_WAY
    return shown(runs.show(edge.workspace, who, ticket.run.id), 200 if asked_before else 202)


@router.get(
    "/runs",
    summary="Search runs",
    responses=answers(
        200,
        "A page of runs.",
        {"@odata.context": "$metadata#runs", "@odata.count": 1, "value": [_OVER]},
        shapes.of("RunPage"),
        errors=[400, 403],
    ),
    openapi_extra={"parameters": pages.searching("runs", f"state eq 'failed' and pipeline_id eq {pipelines.ID}")},
)
def search(request: Request, who: Who) -> Response:
    here = (edge_of(request).workspace, who)
    return pages.found(request, runs.FIELDS, SELECTABLE, lambda asked: runs.search(*here, asked), Run.as_json)


@router.get(
    "/runs/{id}",
    summary="Show a run",
    description="How far it is, or how it ended. While it is under way, Retry-After says when to look again.",
    responses=answers(200, "The run.", _OVER, shapes.of("Run"), headers=["location"], errors=[400, 403, 404]),
)
def show(request: Request, who: Who, id: Id) -> Response:
    return shown(runs.show(edge_of(request).workspace, who, _run_id(id)))


@router.post(
    "/runs/{id}/cancel",
    status_code=202,
    summary="Cancel a run",
    description="One that waits ends at once, one that runs soon after; nothing of it is written. One that is over "
    "stays as it is.",
    responses={
        **answers(
            202,
            "It was asked to stop.",
            {**RUN, "state": "running", "started_at": _OVER["started_at"], "cancelling": True},
            shapes.of("Run"),
            headers=["location"],
            errors=[400, 403, 404, 413, 415],
        ),
        **answers(200, "It was over already.", _OVER, shapes.of("Run"), headers=["location"]),
    },
    openapi_extra={"requestBody": _NOTHING},
)
def cancel(request: Request, who: Who, id: Id, _nothing: Nothing) -> Response:
    edge, run = edge_of(request), _run_id(id)
    over = runs.show(edge.workspace, who, run).state not in UNDER_WAY
    return shown(edge.runner.cancel(who, run), 200 if over else 202)


def shown(run: Run, status: int = 200) -> Response:
    headers = {"location": f"/runs/{run.id}"}
    if run.state in UNDER_WAY:
        headers["retry-after"] = str(errors.RETRY_AFTER)
    return media.json(run.as_json(), status, headers)


def _run_id(id: str) -> UUID:
    if found := uuid(id):
        return found
    raise NotFound("run_not_found", "there is no such run, or none that you may see", run_id=id[:200])
