"""How every call is treated, whatever it asks for: named, counted, its caller known, its errors told, and logged on one line."""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar
from uuid import UUID, uuid4

import grpc
import grpc.aio

from penstock.core.caller import Caller
from penstock.errors import PenstockError, Unavailable
from penstock.flight import status as errors
from penstock.flight import auth as who
from penstock.flight.commands import transaction_id
from penstock.flight.context import Edge, Ended
from penstock.flight.thread_pool import Work

SERVICE = "arrow.flight.protocol.FlightService"
TRANSACTION = "x-transaction-id"

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_OURS_TO_MEND = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN)
_log = logging.getLogger(__name__)
_access = logging.getLogger("penstock.access")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """A call under way."""

    edge: Edge
    caller: Caller
    work: Work
    context: Any  # gRPC's
    task: "asyncio.Task[Any]"  # that gRPC runs the call in, and cancels when its client has gone
    rows_in: int = 0
    rows_out: int = 0

    async def run(self, do: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do something that may block, in a thread."""
        return await self.work.run(do, *args, **options)

    async def read(self) -> bytes | None:
        """The next message of a client that sends many; None: it has said all."""
        try:
            async with asyncio.timeout(self.edge.limits.idle_seconds):
                message = await self.context.read()
        except TimeoutError:
            seconds = f"{self.edge.limits.idle_seconds:g}"
            raise Unavailable("stream_idle", f"nothing came for {seconds} seconds, and nothing was written") from None
        return None if message is grpc.aio.EOF else message

    @property
    def transaction(self) -> UUID | None:
        """The transaction that the call is part of."""
        named = who.one(self.context.invocation_metadata(), TRANSACTION)
        return None if named is None else transaction_id(named)

    @property
    def is_active(self) -> bool:
        """Is somebody there to hear the answer, as far as is known? Ask right before what cannot be taken back."""
        return not (self.task.cancelling() or self.context.done())


class Manners(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Between gRPC and the methods: these get a `Call` where gRPC would give them its context."""

    def __init__(self, edge: Edge, work: Work) -> None:
        self._edge, self._work = edge, work
        self._under_way = 0
        self._of_tenant = Counter[UUID]()
        self._closed = False
        self._idle = asyncio.Event()  # once it is closed

    async def drain(self, seconds: float) -> bool:
        """Refuse new calls, and wait for those under way. Are they over?"""
        self._closed = True
        self._leave(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        return self._idle.is_set()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        _, service, method = details.method.split("/", 2) if details.method.count("/") == 2 else ("", "", "")
        if handler is None or service != SERVICE:  # health, which anybody may ask for
            return handler
        if not handler.response_streaming:
            return grpc.unary_unary_rpc_method_handler(self._one(method, handler.unary_unary))
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(self._many(method, handler.stream_stream))
        return grpc.unary_stream_rpc_method_handler(self._many(method, handler.unary_stream))

    def _one(self, method: str, do: Callable[[Any, Call], Awaitable[bytes]]) -> Any:
        async def answer(asked: Any, context: Any) -> bytes:
            async with self._call(method, context) as call:
                return await do(asked, call)

        return answer

    def _many(self, method: str, do: Callable[[Any, Call], Any]) -> Any:
        async def answer(asked: Any, context: Any) -> None:
            async with self._call(method, context) as call, aclosing(do(asked, call)) as told:
                async for message in told:
                    await context.write(message)

        return answer

    @asynccontextmanager
    async def _call(self, method: str, context: Any) -> AsyncIterator[Call]:
        request, start = _request_id(context), time.perf_counter()
        call: Call | None = None
        code = grpc.StatusCode.OK
        self._under_way += 1
        try:
            if self._closed:
                raise Unavailable("server_stopping", "the server stops and takes no more calls; try again later")
            _assert_room(self._under_way, self._edge.limits.streams)
            caller = await who.caller(self._edge, self._work, context.invocation_metadata())
            task = asyncio.current_task()
            assert task
            call = Call(self._edge, caller, self._work, context, task)
            self._of_tenant[caller.tenant] += 1
            _assert_room(self._of_tenant[caller.tenant], self._edge.limits.of_tenant)
            yield call
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except grpc.aio.InternalError:  # nobody is there to be answered
            code = grpc.StatusCode.CANCELLED
        except Exception as error:
            told = _told(error, request)
            code = told.code
            await context.abort(told.code, told.sentence, told.trailing)
        finally:
            self._leave(1)
            if call:
                self._of_tenant[call.caller.tenant] -= 1
            self._ended(method, code, call, request, time.perf_counter() - start)

    def _leave(self, calls: int) -> None:
        self._under_way -= calls
        if self._closed and not self._under_way:
            self._idle.set()

    def _ended(self, method: str, code: grpc.StatusCode, call: Call | None, request: str, seconds: float) -> None:
        rows_in, rows_out = (call.rows_in, call.rows_out) if call else (0, 0)
        self._edge.heard(Ended(method, code.name, seconds, rows_in, rows_out))
        facts = {
            "method": method,
            "code": code.name,
            "ms": round(seconds * 1000, 3),
            "rows_in": rows_in,
            "rows_out": rows_out,
            "tenant": call and str(call.caller.tenant),
            "user": call and str(call.caller.user),
            "request_id": request,
        }
        _access.info("call", extra={"facts": facts})


def _assert_room(calls: int, most: int) -> None:
    if calls > most:
        raise Unavailable(
            "too_many_calls", f"at most {most:,} calls at once; try again when others have ended", limit=most
        )


def _told(error: Exception, request: str) -> errors.Told:
    """What no caller can mend, whoever runs the server should know of."""
    facts = {"facts": {"request_id": request}}
    if not isinstance(error, PenstockError):
        _log.error("a bug in Penstock: %s", type(error).__name__, exc_info=error, extra=facts)
        return errors.bug(request)
    told = errors.told(error, request)
    if told.code in _OURS_TO_MEND:
        _log.warning("%s: %s", error.reason, error.message, extra=facts)
    return told


def _request_id(context: Any) -> str:
    given = who.values(context.invocation_metadata(), errors.REQUEST)
    return given[0] if len(given) == 1 and _ID.fullmatch(given[0]) else str(uuid4())
