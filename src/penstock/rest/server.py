"""The server: listens, serves, does its periodic jobs, and stops without dropping what is under way."""

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import Invalid, Unavailable
from penstock.rest import problems as errors
from penstock.rest.context import HttpLimits

_BACKLOG = 1_024
_LAST_WORDS = 2.0  # seconds after the drain, for what is cut to be told
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Path
    key: Path


@dataclass
class Server:
    app: FastAPI
    host: str
    port: int  # 0: any that is free
    limits: HttpLimits = field(default_factory=HttpLimits)
    tls: Tls | None = None
    sockets: bool = False  # does the application speak WebSocket, too?

    def __post_init__(self) -> None:
        self._jobs: list[_Job] = []
        self._besides: list[Callable[[], object]] = []
        self._running: _Uvicorn | None = None

    def every(self, seconds: float, job: Callable[[], object]) -> None:
        """Run a job now and then, in a thread of its own, while the server runs. One that fails is run again."""
        self._jobs.append(_Job(seconds, job))

    def when_stopping(self, tell: Callable[[], object]) -> None:
        """Tell somebody who serves beside this one that the drain begins. It must not take long."""
        self._besides.append(tell)

    def run(self, listening: Callable[[str], None] = lambda _: None) -> None:
        """Serve until SIGTERM or SIGINT. `listening` hears the address as soon as requests are answered there."""
        config = self._config()
        with _bound(self.host, self.port) as place:
            address = _address(place, secure=self.tls is not None)
            self._running = _Uvicorn(config, lambda: self._begin(listening, address), self._besides)
            try:
                self._running.run(sockets=[place])
            finally:
                for job in self._jobs:
                    job.stop()
        _log.info("stopped")

    def stop(self) -> None:
        """Do as SIGTERM would; for a server that runs in a thread."""
        if self._running:
            self._running.should_exit = True

    def patience(self) -> float:
        """Seconds of the drain that are left for what goes on beside the requests."""
        return self._running.patience() if self._running else 0.0

    def _begin(self, listening: Callable[[str], None], address: str) -> None:
        _log.info("listening", extra={"facts": {"address": address}})
        for job in self._jobs:
            job.start()
        listening(address)

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self.app,
            http=_protocol(self.limits.header_seconds),
            loop="asyncio",
            ws="websockets-sansio" if self.sockets else "none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=self.limits.idle_seconds,
            timeout_graceful_shutdown=self.limits.drain_seconds,
            h11_max_incomplete_event_size=self.limits.header_bytes,
            ssl_certfile=self.tls.certificate if self.tls else None,
            ssl_keyfile=self.tls.key if self.tls else None,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as cause:
            said = cause.strerror or str(cause)
            raise Invalid("bad_certificate", f"the certificate and its key cannot be used: {said}") from None
        return config


class _Uvicorn(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, begun: Callable[[], None], besides: Sequence[Callable[[], object]]
    ) -> None:
        super().__init__(config)
        self._begun, self._besides = begun, besides
        self._stopping = 0.0  # since when

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._begun()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As the base does, but a signal that was obeyed is not raised again: the caller has things to close."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def patience(self) -> float:
        return max(self._stopping + (self.config.timeout_graceful_shutdown or 0) - time.monotonic(), 0.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping = time.monotonic()
        for tell in self._besides:
            tell()
        _log.info("stopping", extra={"facts": {"drain_seconds": self.config.timeout_graceful_shutdown}})
        await super().shutdown(sockets)

    def _stop(self, number: int, _frame: object) -> None:
        if self.should_exit and number == signal.SIGINT:  # Ctrl-C for the second time
            _cut()
        self.should_exit = True
        cut = threading.Timer((self.config.timeout_graceful_shutdown or 0) + _LAST_WORDS, _cut)
        cut.daemon = True
        cut.start()


def _cut() -> None:
    # A thread that works on a request cannot be stopped, only left behind. What it had not committed was not written.
    _log.warning("requests that were still under way are cut")
    os._exit(1)


class _Job:
    def __init__(self, seconds: float, work: Callable[[], object]) -> None:
        self._seconds, self._work = seconds, work
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock job", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No further round. One that is under way has a moment to end."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_WORDS)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._work()
            except Exception:
                _log.exception("a periodic job failed")
            self._over.wait(self._seconds)


def _protocol(header_seconds: float) -> type[asyncio.Protocol]:
    class Protocol(H11Protocol):
        """Cuts whoever takes for ever to say what it wants, and refuses in our words what is no HTTP."""

        _due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def on_response_complete(self) -> None:
            self._wait()
            super().on_response_complete()

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            self._rest()  # another protocol takes over
            super().handle_websocket_upgrade(event)

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:  # noqa: ARG002
            refusal = sys.exception()
            code = refusal.error_status_hint if isinstance(refusal, h11.RemoteProtocolError) else 400
            reason, detail = (
                ("headers_too_large", "the request's headers are too large")
                if code == 431
                else ("bad_request", "this is no HTTP request that can be read")
            )
            body = errors.as_json(errors.problem(reason, code, detail, "", {}))
            headers = [
                (b"content-type", errors.MEDIA_TYPE.encode()),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                for event in (h11.Response(status_code=code, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _rest(self) -> None:
            if self._due:
                self._due.cancel()

        def _wait(self) -> None:
            self._rest()
            self._due = self.loop.call_later(header_seconds, self._overdue)

        def _overdue(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Protocol


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        place = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        # asyncio does this only for sockets it made itself; without it an answer's end waits 40 ms for an ACK.
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, UnicodeError, OverflowError) as cause:
        said = getattr(cause, "strerror", None) or cause
        raise Unavailable(
            "cannot_listen", f"cannot listen on {host} port {port}: {said}", host=host, port=port
        ) from None
    with place:
        yield place


def _address(place: socket.socket, *, secure: bool) -> str:
    host, port = place.getsockname()[:2]
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
