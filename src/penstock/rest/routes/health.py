"""Is the process up, can it serve, and what has it done so far?"""

import logging
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from penstock.catalog import migrate as upgrade
from penstock.errors import PenstockError, Unavailable
from penstock.rest.openapi import schemas as shapes
from penstock.rest.openapi.document import OPEN, answers
from penstock.rest.context import edge_of
from penstock.rest.metrics import MEDIA_TYPE, Metrics
from penstock.service.workspace import Workspace

router = APIRouter(tags=["service"])
_OK = {"const": "ok"}
_READY = shapes.members({"status": {"const": "ready"}, "parts": shapes.members({"catalog": _OK, "store": _OK})})
_log = logging.getLogger(__name__)


@router.get(
    "/healthz",
    summary="Is the process up?",
    responses=answers(200, "It is.", {"status": "up"}, shapes.members({"status": {"const": "up"}})),
    openapi_extra=OPEN,
)
async def healthz() -> Response:
    return JSONResponse({"status": "up"})


@router.get(
    "/readyz",
    summary="Can it serve?",
    description="The catalog can be reached and is at the right revision, and the store can be written to.",
    responses=answers(
        200, "It can.", {"status": "ready", "parts": {"catalog": "ok", "store": "ok"}}, _READY, errors=[503]
    ),
    openapi_extra=OPEN,
)
def readyz(request: Request) -> Response:
    ws = edge_of(request).workspace
    parts = {"catalog": _catalog(ws), "store": _store(ws)}
    failed = [name for name, state in parts.items() if state != "ok"]
    if failed:
        raise Unavailable("not_ready", f"cannot serve now: {', '.join(failed)}", parts=parts)
    return JSONResponse({"status": "ready", "parts": parts})


@router.get(
    "/metrics",
    summary="Counts and times, for Prometheus",
    responses=answers(200, "The metrics.", "penstock_http_in_flight 1.0\n", shapes.TEXT, kind="text/plain"),
    openapi_extra=OPEN,
)
def metrics(request: Request) -> Response:  # in a thread: the runner may be busy with the catalog
    found: Metrics = request.app.state.metrics
    return Response(found.text(), media_type=MEDIA_TYPE)


def _catalog(ws: Workspace) -> str:
    try:
        upgrade.assert_current(ws.db)
    except PenstockError as error:
        return _told("catalog", error)
    return "ok"


def _store(ws: Workspace) -> str:
    try:
        sink = ws.store.create(f"scratch/ready-{uuid4().hex}")
        try:
            sink.write(b"penstock")
            sink.flush()
        finally:
            sink.discard()
    except (PenstockError, OSError) as error:
        return _told("store", error)
    return "ok"


def _told(part: str, error: Exception) -> str:
    """Anybody may ask, so the answer is one word. The log has the sentence, which may name hosts and paths."""
    _log.warning("not ready: %s: %s", part, error)
    return getattr(error, "reason", "failed")
