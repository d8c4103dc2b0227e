"""Routes of active query executions: list them and cancel one."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from penstock.rest.context import context_of
from penstock.rest.openapi import examples
from penstock.rest.openapi import query_executions as docs
from penstock.rest.requests import media_types
from penstock.rest.requests.bodies import CallerDep
from penstock.rest.route_execution import Lane, in_lane
from penstock.rest.sibling_executions import SiblingExecutions
from penstock.service.queries.executions import ExecutionSource, cancel_execution, list_executions

# Not the lane of the executions, so that they can be cancelled while they use all of it.
router = APIRouter(prefix="/queries/executions", tags=["queries"], route_class=in_lane(Lane.CATALOG))

ExecutionId = Annotated[str, Path(description="The execution's id.", examples=[examples.EXECUTION_ID])]


@router.get("", **docs.LIST_EXECUTIONS)
def list_(request: Request, caller: CallerDep) -> Response:
    records = list_executions(_sources(request), caller)
    return media_types.json_response({"value": [record.as_json() for record in records]})


@router.delete("/{id}", status_code=204, **docs.CANCEL_EXECUTION)
def cancel(request: Request, caller: CallerDep, id: ExecutionId) -> Response:
    cancel_execution(context_of(request).workspace, _sources(request), caller, id)
    return Response(status_code=204)


def _sources(request: Request) -> Sequence[ExecutionSource]:
    context = context_of(request)
    own = context.query_executor.executions
    return (own, SiblingExecutions(context.group)) if context.group else (own,)
