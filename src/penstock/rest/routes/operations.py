"""Route that executes one operation on a dataset. Its results and errors have the format of the operation contract."""

import asyncio
import time
from functools import partial

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from penstock.core.caller import Caller, Role
from penstock.core.pipeline.definition import MAX_NAME_LENGTH, PipelineDefinition
from penstock.core.pipeline.operations import DatasetRef, Operation
from penstock.core.pipeline.parse import parse_operation
from penstock.core.pipeline.responses import MESSAGES, error_response
from penstock.errors import NotFound, PenstockError
from penstock.rest import problems
from penstock.rest.context import RestContext, context_of
from penstock.rest.dispatcher import Handler
from penstock.rest.openapi import operations as docs
from penstock.rest.requests import media_types
from penstock.rest.requests.bodies import Body, CallerDep, parse_json
from penstock.rest.route_execution import Lane
from penstock.rest.routes.datasets import DatasetKey, parse_dataset_key
from penstock.rest.routes.runs import run_response
from penstock.service.datasets import read
from penstock.service.pipelines import runs
from penstock.service.pipelines.run_worker import RunHandle, RunWorker

_WAIT_SHARE = 0.9  # of the response timeout; after that the response is 202 with the run
_POLL_SECONDS = (0.01, 0.25)  # the first and the longest pause


class _OperationRoute(APIRoute):
    """A route whose errors have the format of an operation, once the caller is authenticated."""

    def wrap_handler(self, handle: Handler) -> Handler:
        async def handle_errors(request: Request) -> Response:
            request.state.started = time.monotonic()
            try:
                return await handle(request)
            except PenstockError as error:
                if not hasattr(request.state, "caller"):
                    raise
                public = problems.redact(error)
                body = problems.to_json_value(error_response(public))
                return media_types.json_response(body, problems.status_of(public), problems.error_headers(public))

        return handle_errors


async def _require_developer(caller: CallerDep) -> None:
    caller.require(Role.DEVELOPER)  # before the body is received


router = APIRouter(prefix="/datasets", tags=["datasets"], route_class=_OperationRoute)


@router.post("/{dataset}/operations", dependencies=[Depends(_require_developer)], **docs.EXECUTE_OPERATION)
async def operate(request: Request, caller: CallerDep, dataset: DatasetKey, body: Body) -> Response:
    context = context_of(request)
    start = partial(_start, request, caller, dataset, body)
    operation, handle = await context.executor.run(request, caller, Lane.COMPUTE, start)
    deadline = request.state.started + context.limits.response_timeout_seconds * _WAIT_SHARE
    has_ended = await _wait(context.run_worker, handle, deadline)
    if handle.error:
        raise _operation_error(operation, dataset, handle.error)
    show = partial(runs.show, context.workspace, caller, handle.run.id)
    run = await context.executor.run(request, caller, Lane.COMPUTE, show)
    if not has_ended:
        return run_response(run, 202)
    return media_types.json_response(run.results[0])


def _start(request: Request, caller: Caller, dataset: str, body: bytes) -> tuple[Operation, RunHandle]:
    operation = parse_operation(parse_json(body), 0)
    key = request.headers.get("idempotency-key")
    try:
        return operation, _submit(context_of(request), caller, dataset, operation, key)
    except PenstockError as error:
        raise _operation_error(operation, dataset, error) from None


def _submit(context: RestContext, caller: Caller, dataset: str, operation: Operation, key: str | None) -> RunHandle:
    working = read.find(context.workspace, caller, parse_dataset_key(dataset))
    name = f"{operation.type} into {working.name}"[:MAX_NAME_LENGTH]
    pipeline = PipelineDefinition(name, DatasetRef(working.dataset), (operation,))
    return context.run_worker.submit(caller, pipeline, key=key)


async def _wait(run_worker: RunWorker, handle: RunHandle, deadline: float) -> bool:
    """Wait for the end of a run, and return whether it ended before the deadline.

    The run is polled: a thread that waits for a long run would be missing for other requests.
    """
    pause, max_pause = _POLL_SECONDS
    while not await run_in_threadpool(run_worker.wait, handle, 0):
        if time.monotonic() + pause > deadline:
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, max_pause)
    return True


def _operation_error(operation: Operation, working: str, error: PenstockError) -> PenstockError:
    """Return an error as the operation contract defines it, without the pointer into the internal pipeline."""
    order = {"operation_order": operation.order}
    if error.reason == "dataset_not_found":
        reason = f"{operation.type}_001"
        return NotFound(reason, MESSAGES[reason], dataset_id=working[:200], **order)
    facts = {name: fact for name, fact in error.context.items() if name != "pointer"}
    return type(error)(error.reason, error.message, **facts | order)
