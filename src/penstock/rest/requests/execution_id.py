"""The header `x-execution-id`: the id of a query execution, chosen by the client."""

from uuid import UUID

from fastapi import Request

from penstock.errors import Invalid
from penstock.service.queries.executions import parse_execution_id

EXECUTION_HEADER = "x-execution-id"  # of a request and of its response


def requested_execution_id(request: Request) -> UUID | None:
    """Return the execution id of a request, or None if the client has chosen none.

    Raises:
        Invalid: the header is not one UUID (bad_execution_id)
    """
    match request.headers.getlist(EXECUTION_HEADER):
        case []:
            return None
        case [text]:
            return parse_execution_id(text)
    raise Invalid("bad_execution_id")
