"""Authenticate requests by the bearer token in the Authorization header."""

from fastapi import Request

from penstock.core.caller import Caller
from penstock.core.request_origin import LOOPBACK_HOSTS, is_cross_site, is_loopback
from penstock.errors import Forbidden
from penstock.rest.context import context_of


async def authenticate_request(request: Request) -> Caller:
    """Return the caller of a request; a dependency of every route that needs one.

    Raises:
        Unauthenticated: the token is missing or invalid
        Forbidden: the request has no token, and was not sent to the loopback address or comes from another site
    """
    context = context_of(request)
    headers = request.headers.getlist("authorization")
    if context.dev_caller and not headers:  # any page that the developer opens in a browser could send such a request
        if not is_loopback(request.headers.get("host", "")):
            raise Forbidden("not_loopback", {"hosts": ", ".join(LOOPBACK_HOSTS)})
        if is_cross_site(request.method, request.headers):
            raise Forbidden("cross_site")
    caller = await context.authentication.authenticate(context.tokens, context.dev_caller, headers)
    context.tenants.add(caller.tenant)
    request.state.caller = caller  # read by the access log
    return caller
