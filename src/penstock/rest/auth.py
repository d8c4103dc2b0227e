"""Who sends this request? A caller, by the token in its one authorization header."""

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from penstock.core.caller import Caller
from penstock.errors import Forbidden
from penstock.rest.context import edge_of
from penstock.service.auth.tokens import bearer

_LOOPBACK = ("localhost", "127.0.0.1", "::1")  # names that no other site can have: a page of one cannot call here


async def caller(request: Request) -> Caller:
    """The dependency of every route that works for somebody. A secret takes no time; keys may have to be fetched."""
    edge = edge_of(request)
    headers = request.headers.getlist("authorization")
    if edge.dev and not headers and request.url.hostname not in _LOOPBACK:
        raise Forbidden(
            "not_loopback", f"without a token this is for {', '.join(_LOOPBACK)} only, whatever name was used"
        )
    asked = (edge.tokens, edge.dev, headers)
    waits = edge.tokens is not None and edge.tokens.may_wait
    found = await run_in_threadpool(bearer, *asked) if waits else bearer(*asked)
    edge.tenants.add(found.tenant)
    request.state.caller = found  # for the log
    return found
