"""Run route functions in threads: admission by tenant and user, and cancellation when the client disconnects.

Every router belongs to a lane, so that long work of one lane does not delay short work of another.
"""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ParamSpec, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute

from penstock import cancellation
from penstock.cancellation import CancelToken
from penstock.core.caller import Caller
from penstock.rest import client_connection
from penstock.rest.requests import media_types
from penstock.service.admission import AsyncAdmissionControl

P = ParamSpec("P")
T = TypeVar("T")

_WATCH_AFTER_SECONDS = 0.05  # most requests are over by then, and are not watched
_URL_BYTES_PER_UNIT, _BODY_BYTES_PER_UNIT = 1 << 10, 512 << 10  # of a request that counts as one more
_COMPRESSED_FILE_WEIGHT = 3  # added to that of an upload whose rows may be much larger than its body
_COMPRESSED_FORMATS = ("parquet", "arrow")


class Lane(Enum):
    """Kind of work of a route, by how long it takes and what it waits for."""

    CATALOG = "catalog"  # short statements: registry, searches, definitions
    DATA = "data"  # files: rows, uploads, profiles
    COMPUTE = "compute"  # the query sandbox and Spark, which limit their own work


@dataclass(frozen=True, slots=True)
class LaneLimits:
    running: int  # requests at once; one tenant may use three quarters of them
    waiting: int  # requests that wait for them


LANE_LIMITS = {
    Lane.CATALOG: LaneLimits(16, 256),
    Lane.DATA: LaneLimits(16, 128),
    Lane.COMPUTE: LaneLimits(32, 128),
}


@dataclass(frozen=True, slots=True)
class RouteExecutor:
    """The lanes of one server."""

    wait_seconds: float = 30.0  # for admission
    _admission: dict[Lane, AsyncAdmissionControl] = field(
        default_factory=lambda: {
            lane: AsyncAdmissionControl(limits.running, limits.waiting) for lane, limits in LANE_LIMITS.items()
        }
    )
    _threads: dict[Lane, ThreadPoolExecutor] = field(  # which start their threads when they are needed
        default_factory=lambda: {
            lane: ThreadPoolExecutor(limits.running, f"{lane.value}-route") for lane, limits in LANE_LIMITS.items()
        }
    )

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the running and the waiting requests by lane."""
        return {lane.value: (lane_.running, lane_.waiting) for lane, lane_ in self._admission.items()}

    async def run(self, request: Request, caller: Caller, lane: Lane, function: Callable[[], T]) -> T:
        """Run a function for a caller, in a thread.

        Raises:
            Unavailable: the server (server_busy) or the tenant (tenant_busy) has too much work
            Unsupported: the client disconnected (request_cancelled)
        """
        token: CancelToken = getattr(request.state, "cancel_token", None) or CancelToken()
        with cancellation.active(token), _cancel_on_disconnect(request, token):
            async with self._admission[lane].admit(caller, self.wait_seconds, _weight(request)):
                context = contextvars.copy_context()
                work = asyncio.get_running_loop().run_in_executor(self._threads[lane], context.run, function)
                return await _run_to_its_end(work, token)


async def _run_to_its_end(work: "asyncio.Future[T]", token: CancelToken) -> T:
    """Await work in a thread. If this task is cancelled, cancel the work and wait for it: it still uses the lane."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        token.cancel()
        await asyncio.wait([work])
        raise


def in_lane(lane: Lane, base: type[APIRoute] = APIRoute) -> type[APIRoute]:
    """Return a route class that runs the functions of its routes in a lane. They must take `request` and `caller`."""

    class LaneRoute(base):  # type: ignore[valid-type, misc]
        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
            is_async = inspect.iscoroutinefunction(endpoint)
            super().__init__(path, endpoint if is_async else _run_in_lane(endpoint, lane), **options)

    return LaneRoute


def _run_in_lane(endpoint: Callable[P, Response], lane: Lane) -> Callable[P, Awaitable[Response]]:
    @functools.wraps(endpoint)
    async def run(*args: P.args, **options: P.kwargs) -> Response:
        request, caller = options["request"], options["caller"]
        assert isinstance(request, Request)
        assert isinstance(caller, Caller)
        executor: RouteExecutor = request.app.state.context.executor
        return await executor.run(request, caller, lane, functools.partial(endpoint, *args, **options))

    return run


def _weight(request: Request) -> int:
    """Estimate the cost of a request from the size of its filter, and the size and the format of its body."""
    body_bytes = int(request.headers.get("content-length", 0))
    file_format = media_types.FILE_FORMATS.get(media_types.content_type(request.headers.get("content-type")))
    return (
        1
        + len(request.scope["query_string"]) // _URL_BYTES_PER_UNIT
        + body_bytes // _BODY_BYTES_PER_UNIT
        + (_COMPRESSED_FILE_WEIGHT if file_format in _COMPRESSED_FORMATS else 0)
    )


@contextmanager
def _cancel_on_disconnect(request: Request, token: CancelToken) -> Iterator[None]:
    """Cancel the work of a request whose client disconnects. The body has been received before."""
    watch: asyncio.Task[None] | None = None

    def start() -> None:
        nonlocal watch
        watch = asyncio.ensure_future(_watch(request, token))

    timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, start)
    try:
        yield
    finally:
        timer.cancel()
        if watch:
            watch.cancel()


async def _watch(request: Request, token: CancelToken) -> None:
    await client_connection.wait_for_disconnect(request.scope, request.receive)
    token.cancel()
