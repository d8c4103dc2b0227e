"""Routes of runs: start, search, show and cancel."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response

from penstock.core.names import parse_uuid
from penstock.core.odata.entity_set import JSON_OBJECT, JSON_OBJECTS, EntitySet
from penstock.core.pipeline.run import ACTIVE_STATES, Run
from penstock.errors import NotFound
from penstock.rest import problems
from penstock.rest.context import context_of
from penstock.rest.odata_route import ODataRoute
from penstock.rest.openapi import examples
from penstock.rest.openapi import runs as docs
from penstock.rest.requests import media_types
from penstock.rest.requests.bodies import CallerDep, EmptyBody
from penstock.rest.responses import odata_page
from penstock.rest.route_execution import Lane, in_lane
from penstock.rest.routes.pipelines import PipelineId, parse_pipeline_id
from penstock.service.pipelines import definitions, runs

ENTITY_SET = EntitySet(
    "runs",
    "Run",
    runs.SEARCH_FIELDS,
    {
        "created_by": "Edm.Guid",
        "idempotency_key": "Edm.String",
        "cancelling": "Edm.Boolean",
        "progress": JSON_OBJECT,
        "reads": JSON_OBJECTS,
        "written": JSON_OBJECTS,
        "commit_no": "Edm.Int64",
        "results": JSON_OBJECTS,
        "error": JSON_OBJECT,
        "pipeline": JSON_OBJECT,
    },
)

router = APIRouter(tags=["runs"], route_class=in_lane(Lane.CATALOG, ODataRoute))

RunId = Annotated[str, Path(description="The run's id.", examples=[examples.RUN_ID])]


@router.post("/pipelines/{id}/runs", status_code=202, **docs.START_RUN)
def start(request: Request, caller: CallerDep, id: PipelineId, _body: EmptyBody) -> Response:
    context = context_of(request)
    stored = definitions.show(context.workspace, caller, parse_pipeline_id(id))
    key = request.headers.get("idempotency-key")
    handle = context.run_worker.submit(caller, stored.pipeline, pipeline_id=stored.id, key=key)
    is_replay = handle.run.state not in ACTIVE_STATES
    return run_response(runs.show(context.workspace, caller, handle.run.id), 200 if is_replay else 202)


@router.get("/runs", **docs.SEARCH_RUNS)
def search(request: Request, caller: CallerDep) -> Response:
    ws = context_of(request).workspace
    return odata_page.search_response(
        request, ENTITY_SET, lambda options: runs.search(ws, caller, options), Run.as_json
    )


@router.get("/runs/{id}", **docs.SHOW_RUN)
def show(request: Request, caller: CallerDep, id: RunId) -> Response:
    return run_response(runs.show(context_of(request).workspace, caller, _parse_run_id(id)))


@router.post("/runs/{id}/cancel", status_code=202, **docs.CANCEL_RUN)
def cancel(request: Request, caller: CallerDep, id: RunId, _body: EmptyBody) -> Response:
    context, run_id = context_of(request), _parse_run_id(id)
    had_ended = runs.show(context.workspace, caller, run_id).state not in ACTIVE_STATES
    return run_response(context.run_worker.cancel(caller, run_id), 200 if had_ended else 202)


def run_response(run: Run, status: int = 200) -> Response:
    """Return a run with its location, and Retry-After while it is active."""
    headers = {"location": f"/runs/{run.id}"}
    if run.state in ACTIVE_STATES:
        headers["retry-after"] = str(problems.RETRY_AFTER_SECONDS)
    return media_types.json_response(run.as_json(), status, headers)


def _parse_run_id(id: str) -> UUID:
    if run_id := parse_uuid(id):
        return run_id
    raise NotFound("run_not_found", run_id=id[:200])
