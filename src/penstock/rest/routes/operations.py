"""One operation on one dataset over REST, answered as the operation itself answers, whether it is done or refused."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from penstock.core.pipeline import operations
from penstock.core.caller import Caller, Role
from penstock.core.pipeline.operations import MESSAGES, Operation, Ref, envelope
from penstock.core.pipeline.definition import MAX_NAME, Pipeline
from penstock.errors import Invalid, NotFound, PenstockError
from penstock.rest import problems as errors
from penstock.rest.requests import media_types as media
from penstock.rest.routes import pipelines
from penstock.rest.openapi import examples as samples
from penstock.rest.openapi import schemas as shapes
from penstock.rest.routes import runs as shows
from penstock.rest.requests.bodies import Body, Who, parsed
from penstock.rest.routes.datasets import Key, named
from penstock.rest.openapi.document import answers, required, told_as
from penstock.rest.context import Edge, edge_of
from penstock.service.datasets import read
from penstock.service.pipelines import run_worker as runs
from penstock.service.pipelines.run_worker import Runner, Ticket

_SHARE = 0.9  # of the time that an answer may take; then the run is told instead
_PAUSES = (0.01, 0.25)  # seconds between two looks at a run: the first, and the longest

_SOURCE = pipelines.APPEND["parameters"]["source"]["dataset_id"]  # type: ignore[index]


def _told(reason: str, message: str, **details: Any) -> dict[str, Any]:
    return envelope(Invalid(reason, message, **details, operation_order=0))


_REFUSALS = {
    400: _told(
        "append_003",
        MESSAGES["append_003"],
        extra_columns=["budget_type", "fiscal_year"],
        working_columns=["account_code", "amount", "description"],
    ),
    403: _told("role_too_low", "this needs the role analytics.developer", required_role=Role.DEVELOPER.wire),
    404: _told("append_001", MESSAGES["append_001"], dataset_id=_SOURCE),
    409: _told("read_only", "shop.orders is read-only", dataset="shop.orders"),
    413: _told("body_too_large", "the body has more than 4,194,304 bytes", limit=4_194_304),
    415: _told("unsupported_media_type", "there is no content-type; send one of application/json"),
    500: _told("commit_unanswered", "nobody knows whether it was done; look before you send it again"),
    503: _told("too_many_runs", "25 runs of yours are waiting already; try again when some have ended"),
}


class _Enveloped(APIRoute):
    """Tells every refusal as an operation does, once it is known who asks."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def told(request: Request) -> Response:
            request.state.begun = time.monotonic()
            try:
                return await handle(request)
            except PenstockError as error:
                if not hasattr(request.state, "caller"):
                    raise
                refusal = errors.heard(error)
                return media.json(errors.plain(envelope(refusal)), errors.status(refusal), errors.headers(refusal))

        return told


async def _writer(who: Who) -> None:
    who.require(Role.DEVELOPER)  # whoever may not write need not send it all


router = APIRouter(prefix="/datasets", tags=["datasets"], route_class=_Enveloped)


@router.post(
    "/{dataset}/operations",
    dependencies=[Depends(_writer)],
    summary="Do an operation",
    description="An append or a merge with this dataset as the working dataset, all or nothing. Every refusal comes as "
    "`{error: {code, message, details}}` in application/json; what is wrong with the token, as everywhere. What takes "
    "longer than an answer may goes on in the background: the answer is 202 and the run, whose `results` will hold what "
    "would have been the answer. Sent again with the key of one that is under way or done, the answer is the same.",
    responses={
        **answers(200, "It is done.", shows.RESULT, shapes.of("OperationDone")),
        **answers(202, "It goes on.", {**shows.RUN, "pipeline_id": None}, shapes.of("Run"), headers=["location"]),
        **told_as("OperationError", _REFUSALS),
    },
    openapi_extra={
        "parameters": [samples.KEY],
        "requestBody": required("OperationSent", pipelines.APPEND),
    },
)
async def operate(request: Request, who: Who, dataset: Key, body: Body) -> Response:
    edge = edge_of(request)
    operation, ticket = await run_in_threadpool(_begun, request, who, dataset, body)
    until = request.state.begun + edge.limits.answer_seconds * _SHARE
    over = await _over(edge.runner, ticket, until)
    if ticket.error:
        raise _of(operation, dataset, ticket.error)
    run = await run_in_threadpool(runs.show, edge.workspace, who, ticket.run.id)
    if not over:
        return shows.shown(run, 202)
    return media.json(run.results[0])


def _begun(request: Request, who: Caller, dataset: str, body: bytes) -> tuple[Operation, Ticket]:
    operation = operations.operation(parsed(body), 0)
    try:
        return operation, _submitted(edge_of(request), who, dataset, operation, request.headers.get("idempotency-key"))
    except PenstockError as refusal:
        raise _of(operation, dataset, refusal) from None


def _submitted(edge: Edge, who: Caller, dataset: str, operation: Operation, key: str | None) -> Ticket:
    working = read.find(edge.workspace, who, named(dataset))
    name = f"{operation.type} into {working.name}"[:MAX_NAME]
    return edge.runner.submit(who, Pipeline(name, Ref(working.dataset), (operation,)), key=key)


async def _over(runner: Runner, ticket: Ticket, until: float) -> bool:
    """Has it ended in time? Threads are few and runs may take long, so nobody waits for one in a thread."""
    pause, longest = _PAUSES
    while not await run_in_threadpool(runner.wait, ticket, 0):
        if time.monotonic() + pause > until:
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, longest)
    return True


def _of(operation: Operation, working: str, refusal: PenstockError) -> PenstockError:
    """A refusal in the words of the operation. Its caller named no pipeline, and gets no pointer into one."""
    order = {"operation_order": operation.order}
    if refusal.reason == "dataset_not_found":
        reason = f"{operation.type}_001"
        return NotFound(reason, MESSAGES[reason], dataset_id=working[:200], **order)
    facts = {name: fact for name, fact in refusal.context.items() if name != "pointer"}
    return type(refusal)(refusal.reason, refusal.message, **facts | order)
