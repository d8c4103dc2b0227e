"""The Flight server: listens in a thread of its own, and stops without dropping what is under way."""

import asyncio
import logging
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from penstock.errors import Invalid, Unavailable
from penstock.flight.table_actions import ACTIONS, Action
from penstock.flight.interceptor import SERVICE, Manners
from penstock.flight.context import Edge
from penstock.flight.rpc import Methods, Put, no_put
from penstock.flight.read_handlers import Opened, at_large
from penstock.flight.thread_pool import Work

_AHEAD = 4 << 20  # bytes of a stream that may come before they are wanted
_LAST_WORDS = 1.0  # seconds, for answers on their way, and for threads whose calls were cut
_log = logging.getLogger(__name__)

Tls = tuple[Path, Path]  # a certificate and its key


class FlightServer:
    def __init__(
        self,
        edge: Edge,
        host: str,
        port: int,
        tls: Tls | None = None,
        *,
        put: Put = no_put,
        actions: Mapping[str, Action] = ACTIONS,
        opened: Opened | None = None,
    ) -> None:
        """Port 0: any that is free. `opened`: who gives the rows of tickets; the newest versions unless given."""
        self._edge, self._host, self._port = edge, host, port
        self._credentials = None if tls is None else _credentials(*tls)
        self._work = Work(edge.limits.threads)
        self._manners = Manners(edge, self._work)
        self._methods = Methods(put, actions, opened or at_large(edge.workspace))
        self._thread = threading.Thread(target=self._run, name="penstock flight", daemon=True)
        self._started: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    @property
    def address(self) -> str:
        """As clients write it."""
        scheme = "grpc" if self._credentials is None else "grpc+tls"
        return f"{scheme}://{_bracketed(self._host)}:{self._port}"

    def start(self) -> int:
        """Listen; the answer is the port."""
        self._thread.start()
        self._port = self._started.result()
        _log.info("listening", extra={"facts": {"address": self.address}})
        return self._port

    def drain(self) -> None:
        """Take no more calls, and let those under way end. Does not wait."""
        if self._loop and self._thread.is_alive():
            with suppress(RuntimeError):  # it has just ended by itself
                self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self) -> None:
        """Drain, cut what takes too long, and wait for the end."""
        self.drain()
        if self._thread.ident:
            self._thread.join()
        if not self._work.close(_LAST_WORDS):
            _log.warning("work for calls that were cut goes on")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:
            if self._started.done():
                raise
            self._started.set_exception(failure)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server(interceptors=[self._manners], options=self._options())
        server.add_generic_rpc_handlers((self._methods,))
        state = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(state, server)
        for name in ("", SERVICE):
            await state.set(name, health_pb2.HealthCheckResponse.SERVING)
        port = self._bind(server)
        await server.start()
        self._started.set_result(port)
        await self._stopping.wait()
        await state.enter_graceful_shutdown()
        drained = await self._manners.drain(self._edge.limits.drain_seconds)
        await server.stop(_LAST_WORDS if drained else 0)

    def _bind(self, server: Any) -> int:
        place = f"{_bracketed(self._host)}:{self._port}"
        try:
            if self._credentials is None:
                port = server.add_insecure_port(place)
            else:
                port = server.add_secure_port(place, self._credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise Unavailable(
                "cannot_listen",
                f"cannot listen on {self._host} port {self._port} for Flight; is it taken?",
                host=self._host,
                port=self._port,
            )
        return int(port)

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self._edge.limits.message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", self._edge.limits.metadata_bytes),
            ("grpc.http2.bdp_probe", 0),  # it takes a server that is slow for a long way, and lets ever more come
            ("grpc.http2.lookahead_bytes", _AHEAD),
            ("grpc.so_reuseport", 0),  # else a second server could take half of the calls
            ("grpc.keepalive_time_ms", 60_000),  # a client that vanished is noticed
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]


def _credentials(certificate: Path, key: Path) -> Any:
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)  # gRPC would not complain
        return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    except (OSError, ssl.SSLError) as cause:
        said = cause.strerror or str(cause)
        raise Invalid("bad_certificate", f"the certificate and its key cannot be used: {said}") from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
