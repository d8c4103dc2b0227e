"""Routes for probes and monitoring: liveness, readiness and metrics."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from penstock.errors import Unavailable
from penstock.rest.context import context_of
from penstock.rest.metrics import MEDIA_TYPE, Metrics
from penstock.rest.openapi import service as docs
from penstock.rest.process_group import METRICS_ACTION, ProcessGroup, merge_metrics
from penstock.service.health import check_readiness

router = APIRouter(tags=["service"])

T = TypeVar("T")


class _SharedProbe(Generic[T]):
    """Run a probe in a thread of its own. Requests that arrive meanwhile share its result, so that probes never queue."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._active: asyncio.Future[T] | None = None

    async def run(self, probe: Callable[[], T]) -> T:
        if self._active is None or self._active.done():
            self._active = asyncio.get_running_loop().run_in_executor(self._executor, probe)
        return await asyncio.shield(self._active)


class Probes:
    """The probes of one application."""

    def __init__(self) -> None:
        self.readiness = _SharedProbe[dict[str, str]]("readiness")
        self.metrics = _SharedProbe[bytes]("metrics")


@router.get("/healthz", **docs.CHECK_LIVENESS)
async def healthz() -> Response:
    return JSONResponse({"status": "up"})


@router.get("/readyz", **docs.CHECK_READINESS)
async def readyz(request: Request) -> Response:
    context = context_of(request)
    probes: Probes = request.app.state.probes
    parts = await probes.readiness.run(lambda: check_readiness(context.workspace, context.run_worker))
    failed = [name for name, state in parts.items() if state != "ok"]
    if failed:
        raise Unavailable("not_ready", {"failed": failed}, parts=parts)
    return JSONResponse({"status": "ready", "parts": parts})


@router.get("/metrics", **docs.SHOW_METRICS)
async def metrics(request: Request) -> Response:
    registry: Metrics = request.app.state.metrics
    group: ProcessGroup | None = context_of(request).group

    def render() -> bytes:  # the gauges of runs query the catalog
        own = registry.render()
        return merge_metrics([own, *group.fetch_others(METRICS_ACTION)]) if group else own

    probes: Probes = request.app.state.probes
    return Response(await probes.metrics.run(render), media_type=MEDIA_TYPE)
