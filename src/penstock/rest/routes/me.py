"""Who am I to the service? A program that shows only what its user may do asks this first."""

from importlib.metadata import version

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from penstock.core.caller import ROLES
from penstock.rest.openapi import schemas as shapes
from penstock.rest.requests.bodies import Who
from penstock.rest.openapi.document import answers

VERSION = version("penstock")
_ME = {
    "name": "ada", "user": "5f0c2f2e-8d1c-4e57-a2b4-0d6a1b9c7e11", "tenant": "0b0f1c8e-5a0e-4c53-9d4f-3f6f0a3f1b2c",
    "role": "analytics.developer", "version": VERSION,
}  # fmt: skip
_SHAPE = {
    "name": shapes.TEXT, "user": shapes.ID, "tenant": shapes.ID, "role": {"enum": list(ROLES)}, "version": shapes.TEXT,
}  # fmt: skip

router = APIRouter(tags=["service"])


@router.get(
    "/me",
    summary="Who am I?",
    description="The caller as the service sees it, and the version of the service.",
    responses=answers(200, "You.", _ME, shapes.members(_SHAPE), errors=[400, 403]),
)
async def me(who: Who) -> Response:
    return JSONResponse(
        {
            "name": who.name,
            "user": str(who.user),
            "tenant": str(who.tenant),
            "role": who.role.wire,
            "version": VERSION,
        }
    )
