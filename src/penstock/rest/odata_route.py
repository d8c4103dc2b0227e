"""Route class of OData resources: negotiate the version of the protocol (OData 4.01 part 1, 5.1)."""

import re
from decimal import Decimal

from fastapi import Request, Response
from fastapi.routing import APIRoute

from penstock.core.odata.csdl import VERSION
from penstock.errors import Invalid, PenstockError
from penstock.rest import problems
from penstock.rest.dispatcher import Handler
from penstock.rest.requests.bodies import CallerDep

VERSION_HEADER, MAX_VERSION_HEADER = "OData-Version", "OData-MaxVersion"
_REQUEST_VERSIONS = ("4.0", "4.01")  # of request bodies
_VERSION_NUMBER = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")


class ODataRoute(APIRoute):
    """A route that adds OData-Version to every response and error. `check_odata_version` checks its requests."""

    def wrap_handler(self, handle: Handler) -> Handler:
        async def add_version(request: Request) -> Response:
            try:
                response = await handle(request)
            except PenstockError as error:
                response = problems.problem_response(problems.redact(error), request.url.path)
            response.headers[VERSION_HEADER] = VERSION
            return response

        return add_version


async def check_odata_version(request: Request, _caller: CallerDep) -> None:
    """Check that the client accepts the version of the responses; a dependency of routes that need a caller.

    Raises:
        Invalid: a version header of a request to an OData route is malformed, or its version is not supported
    """
    if not isinstance(request.scope["route"], ODataRoute):
        return
    max_version = _version_number(request, MAX_VERSION_HEADER)
    if max_version is not None and Decimal(max_version) < Decimal(VERSION):
        raise Invalid("bad_odata_version.too_low", {"version": VERSION}, header=MAX_VERSION_HEADER)
    request_version = _version_number(request, VERSION_HEADER)
    if request_version is not None and request_version not in _REQUEST_VERSIONS:
        raise Invalid("bad_odata_version.unknown", {"valid": _REQUEST_VERSIONS}, header=VERSION_HEADER)


def _version_number(request: Request, header: str) -> str | None:
    lines = request.headers.getlist(header)
    if not lines:
        return None
    text = ",".join(lines).strip()
    if not _VERSION_NUMBER.fullmatch(text):
        raise Invalid("bad_odata_version", header=header)
    return text
