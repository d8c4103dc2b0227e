"""The gRPC server of the Flight service. It runs in its own thread and drains active calls before it stops."""

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
from penstock.flight.context import FlightContext
from penstock.flight.interceptor import SERVICE_NAME, CallInterceptor
from penstock.flight.read_handlers import OpenReader, committed_reader
from penstock.flight.rpc import FlightRpcHandler, PutHandler, reject_put
from penstock.flight.table_actions import ACTIONS, ActionHandler
from penstock.flight.thread_pool import ThreadPool

_LOOKAHEAD_BYTES = 4 << 20  # bytes of a stream that gRPC receives before they are read
_IDENTITY = 1 << 0  # the only accepted compression of gRPC: another one would expand before any check
_GRACE_SECONDS = 1.0  # for responses that are being sent, and for threads of cancelled calls
_log = logging.getLogger(__name__)

Tls = tuple[Path, Path]  # certificate file and key file


class FlightServer:
    def __init__(
        self,
        context: FlightContext,
        host: str,
        port: int,
        tls: Tls | None = None,
        *,
        put: PutHandler = reject_put,
        actions: Mapping[str, ActionHandler] = ACTIONS,
        open_reader: OpenReader | None = None,
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            context: workspace, tokens and limits
            host: address to listen on
            port: port to listen on; 0 takes a free one
            tls: certificate and key; None listens without TLS
            put: handler of DoPut
            actions: handlers of DoAction by name
            open_reader: opens the rows of tickets; None reads committed versions
        """
        self._context, self._host, self._port = context, host, port
        self._credentials = None if tls is None else _load_credentials(*tls)
        self._threads = ThreadPool(context.limits.threads)
        self._interceptor = CallInterceptor(context, self._threads)
        self._rpc_handler = FlightRpcHandler(
            context.limits, put, actions, open_reader or committed_reader(context.workspace)
        )
        self._thread = threading.Thread(target=self._run, name="penstock flight", daemon=True)
        self._started: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    @property
    def address(self) -> str:
        """The address for clients: grpc://host:port or grpc+tls://host:port."""
        scheme = "grpc" if self._credentials is None else "grpc+tls"
        return f"{scheme}://{_bracket_ipv6(self._host)}:{self._port}"

    def start(self) -> int:
        """Listen and return the port.

        Raises:
            Unavailable: the port is in use (cannot_listen)
        """
        self._thread.start()
        self._port = self._started.result()
        _log.info("listening", extra={"facts": {"address": self.address}})
        return self._port

    def drain(self) -> None:
        """Reject new calls and let the active ones finish, without waiting for them."""
        if self._loop and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self) -> None:
        """Drain, cancel calls that exceed the drain time, and wait for the end of the server."""
        self.drain()
        if self._thread.ident:
            self._thread.join()
        if not self._threads.close(_GRACE_SECONDS):
            _log.warning("Threads of cancelled calls are still running")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server(interceptors=[self._interceptor], options=self._options())
        server.add_generic_rpc_handlers((self._rpc_handler,))
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        for name in ("", SERVICE_NAME):
            await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        port = self._bind(server)
        await server.start()
        self._started.set_result(port)
        await self._stopping.wait()
        await servicer.enter_graceful_shutdown()
        drained = await self._interceptor.drain(self._context.limits.drain_seconds)
        await server.stop(_GRACE_SECONDS if drained else 0)
        await _wait_for_other_tasks(_GRACE_SECONDS)

    def _bind(self, server: Any) -> int:
        address = f"{_bracket_ipv6(self._host)}:{self._port}"
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise Unavailable("cannot_listen.flight", host=self._host, port=self._port)
        return int(port)

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self._context.limits.message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.compression_enabled_algorithms_bitset", _IDENTITY),
            ("grpc.per_message_decompression", 0),
            ("grpc.max_metadata_size", self._context.limits.metadata_bytes),
            ("grpc.http2.bdp_probe", 0),  # it mistakes a slow server for a long network and receives ever more ahead
            ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
            # Otherwise a second server could bind the port and take half of the calls.
            ("grpc.so_reuseport", int(self._context.limits.shared_port)),
            ("grpc.keepalive_time_ms", 60_000),  # detects clients that have vanished
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]


async def _wait_for_other_tasks(seconds: float) -> None:
    """Wait for the tasks of cancelled calls. gRPC prints a traceback for each one that the end of the loop cancels."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=seconds)


def _load_credentials(certificate: Path, key: Path) -> Any:
    try:
        # gRPC does not report a bad certificate, so the ssl module checks it first.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    except (OSError, ssl.SSLError) as error:
        raise Invalid("bad_certificate", {"cause": error.strerror or str(error)}) from None


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host
