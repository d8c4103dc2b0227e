"""gRPC interceptor of the Flight service: authentication, limits, request ids, error status, metrics and access log."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar
from uuid import UUID, uuid4

import grpc
import grpc.aio

from penstock.core.caller import Caller
from penstock.errors import Conflict, PenstockError, Unavailable
from penstock.flight import auth, status
from penstock.flight.commands import parse_transaction_id
from penstock.flight.context import CallStats, FlightContext
from penstock.flight.thread_pool import ThreadPool
from penstock.service.fair_shares import Exhausted, FairShares
from penstock.service.memory_budget import Reservation

SERVICE_NAME = "arrow.flight.protocol.FlightService"
TRANSACTION_HEADER = "x-transaction-id"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_INLINE_BYTES = 4 << 10  # parsing less takes less time than passing it to a thread
_LOGGED_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN)  # errors that only the operator can fix
_log = logging.getLogger(__name__)
_access_log = logging.getLogger("penstock.access")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class FlightCall:
    """An active call with its authenticated caller."""

    context: FlightContext
    caller: Caller
    threads: ThreadPool
    servicer: Any  # grpc.aio.ServicerContext
    task: "asyncio.Task[Any]"  # runs the call; gRPC cancels it when the client disconnects
    rows_in: int = 0
    rows_out: int = 0
    _reservations: list[Reservation] = field(default_factory=list)

    def reserve(self, size: int = 0) -> Reservation:
        """Reserve memory until it is released, or until the end of the call.

        Raises:
            Unavailable: too little is left (memory_exhausted, tenant_memory_exhausted)
        """
        reservation = self.context.workspace.memory.reserve(self.caller, size)
        self._reservations.append(reservation)
        return reservation

    def release_memory(self) -> None:
        for reservation in self._reservations:
            reservation.release()

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a function that may block in a thread."""
        return await self.threads.run(function, *args, **options)

    async def parse(self, size: int, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Parse a request of a size: a short one at once, a longer one in a thread, so that no other call waits."""
        if size < _INLINE_BYTES:
            return function(*args, **options)
        return await self.run(function, *args, **options)

    async def read(self) -> bytes | None:
        """Return the next message of a client stream; None at its end."""
        try:
            async with asyncio.timeout(self.context.limits.idle_seconds):
                message = await self.servicer.read()
        except TimeoutError:
            seconds = f"{self.context.limits.idle_seconds:g}"
            raise Unavailable("stream_idle", {"seconds": seconds}) from None
        return None if message is grpc.aio.EOF else message

    @property
    def transaction(self) -> UUID | None:
        """The id of the transaction that the call belongs to."""
        text = auth.single_header(self.servicer.invocation_metadata(), TRANSACTION_HEADER)
        return None if text is None else parse_transaction_id(text)

    @property
    def is_active(self) -> bool:
        """False once the client is known to have disconnected; check it right before a step that cannot be undone."""
        return not (self.task.cancelling() or self.servicer.done())


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wrap the RPC methods: each receives a `FlightCall` in place of the gRPC context."""

    def __init__(self, context: FlightContext, threads: ThreadPool) -> None:
        self._context, self._threads = context, threads
        self._active = 0  # calls, also those that are not authenticated yet
        self._shares = FairShares(context.limits.streams)
        self._closed = False
        self._drained = asyncio.Event()  # set when no call is active after `drain` has begun

    async def drain(self, seconds: float) -> bool:
        """Reject new calls and wait for the active ones. Return True if all have ended in time."""
        self._closed = True
        self._release(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        return self._drained.is_set()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        _, service, method = details.method.split("/", 2) if details.method.count("/") == 2 else ("", "", "")
        if handler is None or service != SERVICE_NAME:  # the health service needs no authentication
            return handler
        if not handler.response_streaming:
            return grpc.unary_unary_rpc_method_handler(self._wrap_unary(method, handler.unary_unary))
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(self._wrap_streaming(method, handler.stream_stream))
        return grpc.unary_stream_rpc_method_handler(self._wrap_streaming(method, handler.unary_stream))

    def _wrap_unary(self, method: str, handler: Callable[[Any, FlightCall], Awaitable[bytes]]) -> Any:
        async def respond(request: Any, servicer: Any) -> bytes:
            response = await self._serve(method, servicer, lambda call: handler(request, call))
            return response or b""  # gRPC sends no response with an error status

        return respond

    def _wrap_streaming(self, method: str, handler: Callable[[Any, FlightCall], Any]) -> Any:
        async def respond(request: Any, servicer: Any) -> None:
            async def write_all(call: FlightCall) -> None:
                async with aclosing(handler(request, call)) as messages:
                    async for message in messages:
                        await servicer.write(message)

            await self._serve(method, servicer, write_all)

        return respond

    async def _serve(self, method: str, servicer: Any, handle: Callable[[FlightCall], Awaitable[T]]) -> T | None:
        """Authenticate a call and handle it. An error becomes the status of the call.

        The status is set and not raised: gRPC would keep the exception, and with it the last message, in a cycle.
        """
        request_id, start = _request_id(servicer), time.perf_counter()
        call: FlightCall | None = None
        code = grpc.StatusCode.OK
        self._active += 1
        try:
            if self._closed:
                raise Unavailable("server_stopping")
            if self._active > self._shares.capacity:
                raise Unavailable("too_many_calls", limit=self._shares.capacity)
            caller = await auth.authenticate_call(self._context, servicer.invocation_metadata())
            task = asyncio.current_task()
            assert task
            with self._share(caller):
                call = FlightCall(self._context, caller, self._threads, servicer, task)
                return await handle(call)
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except grpc.aio.InternalError:  # the client has disconnected
            code = grpc.StatusCode.CANCELLED
        except Exception as error:
            code = _set_status(servicer, _to_status(error, request_id))
        finally:
            if call:
                call.release_memory()
            self._release(1)
            self._record(method, code, call, request_id, time.perf_counter() - start)
        return None

    @contextmanager
    def _share(self, caller: Caller) -> Iterator[None]:
        """Count a call of a tenant and of a user."""
        limits = {Exhausted.TENANT: self._shares.tenant_capacity, Exhausted.USER: self._shares.user_capacity}
        if exhausted := self._shares.take(caller):
            raise Unavailable("too_many_calls", limit=limits.get(exhausted, self._shares.capacity))
        try:
            yield
        finally:
            self._shares.give_back(caller)

    def _release(self, calls: int) -> None:
        self._active -= calls
        if self._closed and not self._active:
            self._drained.set()

    def _record(
        self, method: str, code: grpc.StatusCode, call: FlightCall | None, request_id: str, seconds: float
    ) -> None:
        """Update the metrics and write the access log line of a finished call."""
        rows_in, rows_out = (call.rows_in, call.rows_out) if call else (0, 0)
        self._context.on_call(CallStats(method, code.name, seconds, rows_in, rows_out))
        facts = {
            "method": method,
            "code": code.name,
            "ms": round(seconds * 1000, 3),
            "rows_in": rows_in,
            "rows_out": rows_out,
            "tenant": call and str(call.caller.tenant),
            "user": call and str(call.caller.user),
            "request_id": request_id,
        }
        _access_log.info("call", extra={"facts": facts})


def _set_status(servicer: Any, call_status: status.CallStatus) -> grpc.StatusCode:
    servicer.set_code(call_status.code)
    servicer.set_details(call_status.message)
    servicer.set_trailing_metadata(call_status.trailing_metadata)
    return call_status.code


def _to_status(error: Exception, request_id: str) -> status.CallStatus:
    """Convert an error to a status, and log the errors that no caller can fix."""
    facts = {"facts": {"request_id": request_id}}
    if not isinstance(error, PenstockError):
        _log.error("Unexpected error: %s", type(error).__name__, exc_info=error, extra=facts)
        return status.internal_error_status(request_id)
    call_status = status.to_call_status(error, request_id)
    if call_status.code in _LOGGED_CODES and not isinstance(error, Conflict):
        _log.warning("%s: %s", error.reason, error.message, extra=facts)
    return call_status


def _request_id(servicer: Any) -> str:
    """Return the client's request id if it is well-formed, otherwise a new one."""
    values = auth.header_values(servicer.invocation_metadata(), status.REQUEST_ID_HEADER)
    return values[0] if len(values) == 1 and _REQUEST_ID.fullmatch(values[0]) else str(uuid4())
