"""Routes for probes and monitoring: liveness, readiness and metrics."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from penstock.errors import Unavailable
from penstock.rest.context import context_of
from penstock.rest.metrics import MEDIA_TYPE, Metrics
from penstock.rest.openapi import service as docs
from penstock.rest.process_group import METRICS_ACTION, ProcessGroup, merge_metrics
from penstock.service.health import check_readiness

router = APIRouter(tags=["service"])


@router.get("/healthz", **docs.CHECK_LIVENESS)
async def healthz() -> Response:
    return JSONResponse({"status": "up"})


@router.get("/readyz", **docs.CHECK_READINESS)
def readyz(request: Request) -> Response:
    context = context_of(request)
    parts = check_readiness(context.workspace, context.run_worker)
    failed = [name for name, state in parts.items() if state != "ok"]
    if failed:
        raise Unavailable("not_ready", {"failed": failed}, parts=parts)
    return JSONResponse({"status": "ready", "parts": parts})


@router.get("/metrics", **docs.SHOW_METRICS)
def metrics(request: Request) -> Response:  # in a thread: the gauges of runs query the catalog
    registry: Metrics = request.app.state.metrics
    group: ProcessGroup | None = context_of(request).group
    own = registry.render()
    return Response(merge_metrics([own, *group.fetch_others(METRICS_ACTION)]) if group else own, media_type=MEDIA_TYPE)
