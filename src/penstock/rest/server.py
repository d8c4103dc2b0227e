"""HTTP server: uvicorn with header timeouts, periodic jobs and graceful shutdown."""

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from penstock import reasons
from penstock.errors import Invalid, Unavailable
from penstock.rest import client_connection, problems
from penstock.rest.buffered_transport import BufferedTransport
from penstock.rest.context import HttpLimits

_BACKLOG = 1_024
_STALL_MARGIN_SECONDS = 1.0
_EXIT_GRACE_SECONDS = 2.0  # after the drain, to send the responses of cancelled requests
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and private key in PEM files."""

    certificate: Path
    key: Path


@dataclass
class Server:
    """Serve an application until SIGTERM or SIGINT."""

    app: FastAPI
    host: str
    port: int  # 0: any free port
    limits: HttpLimits = field(default_factory=HttpLimits)
    tls: Tls | None = None
    websockets: bool = False  # the application also handles WebSocket connections
    sockets: Sequence[socket.socket] = ()  # that listen already, in place of host and port

    def __post_init__(self) -> None:
        self._jobs: list[_Job] = []
        self._shutdown_callbacks: list[Callable[[], object]] = []
        self._running: _Uvicorn | None = None

    def add_periodic_job(self, seconds: float, job: Callable[[], object]) -> None:
        """Run a job at an interval in a thread of its own, from the start of the server. A job that fails is repeated."""
        self._jobs.append(_Job(seconds, job))

    def on_shutdown(self, callback: Callable[[], object]) -> None:
        """Register a callback for the start of the drain. It must return quickly."""
        self._shutdown_callbacks.append(callback)

    def run(self, on_listening: Callable[[str], None] = lambda _: None) -> None:
        """Serve until SIGTERM or SIGINT.

        Args:
            on_listening: called with the address as soon as the server accepts requests
        """
        config = self._config()
        with ExitStack() as cleanup:
            sockets = list(self.sockets) or [cleanup.enter_context(listening_socket(self.host, self.port))]
            address = _address(sockets[0], secure=self.tls is not None)
            self._running = _Uvicorn(config, lambda: self._start(on_listening, address), self._shutdown_callbacks)
            try:
                self._running.run(sockets=sockets)
            finally:
                for job in self._jobs:
                    job.stop()
        _log.info("stopped")

    def stop(self) -> None:
        """Stop as on SIGTERM, for a server that runs in a thread."""
        if self._running:
            self._running.should_exit = True

    def remaining_drain_seconds(self) -> float:
        """Return the rest of the drain time, for services that stop with this one."""
        return self._running.remaining_drain_seconds() if self._running else 0.0

    def _start(self, on_listening: Callable[[str], None], address: str) -> None:
        _log.info("listening", extra={"facts": {"address": address}})
        for job in self._jobs:
            job.start()
        on_listening(address)

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self.app,
            http=_protocol(self.limits),
            loop="asyncio",
            ws="websockets-sansio" if self.websockets else "none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=self.limits.idle_timeout_seconds,
            timeout_graceful_shutdown=self.limits.drain_seconds,
            ssl_certfile=self.tls.certificate if self.tls else None,
            ssl_keyfile=self.tls.key if self.tls else None,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as cause:
            raise Invalid("bad_certificate", {"cause": cause.strerror or str(cause)}) from None
        return config


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that reports its start and its shutdown."""

    def __init__(
        self, config: uvicorn.Config, on_start: Callable[[], None], shutdown_callbacks: Sequence[Callable[[], object]]
    ) -> None:
        super().__init__(config)
        self._on_start, self._shutdown_callbacks = on_start, shutdown_callbacks
        self._shutdown_started = 0.0  # on the monotonic clock

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals like the base class, but do not raise them again: the caller still has to close resources."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def remaining_drain_seconds(self) -> float:
        return max(self._shutdown_started + (self.config.timeout_graceful_shutdown or 0) - time.monotonic(), 0.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._shutdown_started = time.monotonic()
        for callback in self._shutdown_callbacks:
            callback()
        _log.info("stopping", extra={"facts": {"drain_seconds": self.config.timeout_graceful_shutdown}})
        await super().shutdown(sockets)

    def _stop(self, number: int, _frame: object) -> None:
        if self.should_exit and number == signal.SIGINT:  # second Ctrl-C
            _exit_now()
        self.should_exit = True
        timer = threading.Timer((self.config.timeout_graceful_shutdown or 0) + _EXIT_GRACE_SECONDS, _exit_now)
        timer.daemon = True
        timer.start()


def _exit_now() -> None:
    # A thread that executes a request cannot be stopped. Work that it has not committed is not written.
    _log.warning("Active requests are aborted: the drain time is over")
    os._exit(1)


class _Job:
    """A periodic job in a thread of its own."""

    def __init__(self, seconds: float, work: Callable[[], object]) -> None:
        self._seconds, self._work = seconds, work
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock job", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Start no further execution, and wait a moment for an active one."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_EXIT_GRACE_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._work()
            except Exception:
                _log.exception("A periodic job failed")
            self._stopped.wait(self._seconds)


def _protocol(limits: HttpLimits) -> type[asyncio.Protocol]:
    header_seconds, max_header_bytes = limits.header_timeout_seconds, limits.max_header_bytes
    # The middleware notices a stalled client first, and records it; this timer covers what is written after a response.
    stall_seconds = limits.response_timeout_seconds + _STALL_MARGIN_SECONDS

    class Protocol(HttpToolsProtocol):
        """Bound the size and the time of request headers, and the time in which a client receives what is written.

        Malformed requests are answered with a problem document.
        """

        _header_timer: asyncio.TimerHandle | None = None
        _stall_timer: asyncio.TimerHandle | None = None  # runs while the client does not receive
        _in_headers = True
        _header_bytes = 0
        _error_code = 400

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._cycles: list[RequestResponseCycle] = []  # of the requests without a complete response
            super().connection_made(BufferedTransport(transport, self.loop, stall_seconds))  # type: ignore[arg-type]
            self._start_timer()

        def on_response_complete(self) -> None:
            self._start_timer()
            super().on_response_complete()

        def handle_websocket_upgrade(self) -> None:
            self._cancel_timer()  # another protocol takes over
            assert isinstance(self.transport, BufferedTransport)
            self.transport.flush()
            self.transport = self.transport.transport
            super().handle_websocket_upgrade()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_timer()
            self._cancel_stall_timer()
            for cycle in self._cycles:  # uvicorn notifies only the last one of pipelined requests
                if not cycle.response_complete:
                    cycle.disconnected = True
                    cycle.message_event.set()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._cancel_stall_timer()
            self._stall_timer = self.loop.call_later(stall_seconds, self._abort)

        def resume_writing(self) -> None:
            self._cancel_stall_timer()
            super().resume_writing()

        def _abort(self) -> None:
            assert isinstance(self.transport, BufferedTransport)
            self.transport.abort()

        def _cancel_stall_timer(self) -> None:
            if self._stall_timer:
                self._stall_timer.cancel()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_headers and not self.transport.is_closing():
                self._header_bytes += len(data)
                if self._header_bytes > max_header_bytes:  # the parser has a part of them
                    self._error_code = 431
                    self.send_400_response("")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope[client_connection.ABORT_KEY] = self._abort  # type: ignore[literal-required]
            self._in_headers, self._header_bytes = True, 0

        def on_headers_complete(self) -> None:
            self._in_headers, self._header_bytes = False, 0
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > max_header_bytes:
                self._error_code = 431
                raise ValueError("headers too large")
            hosts = sum(name == b"host" for name, _ in self.headers)
            if hosts > 1 or (hosts == 0 and self.parser.get_http_version() != "1.0"):
                raise ValueError("a request must have one Host header")
            super().on_headers_complete()
            self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
            if self.cycle is not None:
                self._cycles.append(self.cycle)

        def send_400_response(self, msg: str) -> None:  # noqa: ARG002
            code, reason = self._error_code, "headers_too_large" if self._error_code == 431 else "bad_request"
            body = problems.as_json(problems.problem_document(reason, code, reasons.message(reason, {}), "", {}))
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                head = (
                    f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\ncontent-type: {problems.MEDIA_TYPE}\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                )
                self.transport.write(head.encode() + body)
            self.transport.close()

        def _cancel_timer(self) -> None:
            if self._header_timer:
                self._header_timer.cancel()

        def _start_timer(self) -> None:
            self._cancel_timer()
            self._header_timer = self.loop.call_later(header_seconds, self._on_header_timeout)

        def _on_header_timeout(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Protocol


@contextmanager
def listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address for the time of the block.

    Raises:
        Unavailable: the port is in use (cannot_listen)
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        # asyncio sets this only on sockets that it creates; without it the end of a response waits 40 ms for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, UnicodeError, OverflowError) as cause:
        reason = getattr(cause, "strerror", None) or cause
        raise Unavailable("cannot_listen.http", {"cause": reason}, host=host, port=port) from None
    with listener:
        yield listener


def _address(listener: socket.socket, *, secure: bool) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
