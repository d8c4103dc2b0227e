"""Who sends this request? A caller, by the token in its one authorization header."""

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from penstock.core.caller import Caller
from penstock.errors import Forbidden, Unauthenticated
from penstock.http.edge import Edge, edge_of

_LOOPBACK = ("localhost", "127.0.0.1", "::1")  # names that no other site can have: a page of one cannot call here


async def caller(request: Request) -> Caller:
    """The dependency of every route that works for somebody. A secret takes no time; keys may have to be fetched."""
    edge = edge_of(request)
    headers = request.headers.getlist("authorization")
    if edge.dev and not headers and request.url.hostname not in _LOOPBACK:
        raise Forbidden(
            "not_loopback", f"without a token this is for {', '.join(_LOOPBACK)} only, whatever name was used"
        )
    waits = edge.tokens is not None and edge.tokens.may_wait
    found = await run_in_threadpool(_caller, edge, headers) if waits else _caller(edge, headers)
    edge.tenants.add(found.tenant)
    request.state.caller = found  # for the log
    return found


def _caller(edge: Edge, headers: list[str]) -> Caller:
    if edge.dev and (not headers or edge.tokens is None):
        return edge.dev
    if not headers:
        raise Unauthenticated("no_token", "send a token: authorization: Bearer …")
    if len(headers) > 1:
        raise Unauthenticated("bad_authorization", "there is more than one authorization header; send one")
    scheme, _, token = headers[0].partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated("bad_authorization", "the authorization header must be: Bearer, a blank, the token")
    assert edge.tokens is not None  # an edge without tokens has a dev
    return edge.tokens.verify(token)
