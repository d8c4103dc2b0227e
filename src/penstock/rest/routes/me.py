"""Route that returns the authenticated caller, so that clients can offer only permitted actions."""

from importlib.metadata import version

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from penstock.rest.openapi import service as docs
from penstock.rest.requests.bodies import CallerDep

VERSION = version("penstock")

router = APIRouter(tags=["service"])


@router.get("/me", **docs.SHOW_CALLER)
async def me(caller: CallerDep) -> Response:
    return JSONResponse(
        {
            "name": caller.name,
            "user": str(caller.user),
            "tenant": str(caller.tenant),
            "role": caller.role.claim,
            "version": VERSION,
        }
    )
