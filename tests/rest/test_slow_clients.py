"""Clients that disconnect, send slowly or stop reading: their work is cancelled and their memory released."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from penstock import cancellation
from penstock.rest.app import create_app
from penstock.rest.buffered_transport import BufferedTransport
from penstock.rest.context import HttpLimits, RestContext
from penstock.rest.requests.bodies import CallerDep
from penstock.rest.route_execution import Lane
from rest.dispatched_routes import add_route
from rest.rest_client import bearer, check_response, in_process_client, serve, token

SHORT = HttpLimits(response_timeout_seconds=1.0)
LONG = HttpLimits(response_timeout_seconds=120.0)
HUGE_LENGTH = "99999999999"
WAIT_SECONDS = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "condition not reached"
        time.sleep(0.02)


@contextmanager
def raw_request(address: str, path: str, *headers: str, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """Send the head of a GET request on a connection of its own."""
    parts = urlsplit(address)
    assert parts.hostname
    with socket.socket() as connection:
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(WAIT_SECONDS)
        connection.connect((parts.hostname, parts.port or 0))
        lines = [f"GET {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {token()}", *headers]
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
        yield connection


class CancellableWork:
    """The function of a route that runs until it is cancelled or released."""

    def __init__(self) -> None:
        self.started, self.cancelled, self.released = threading.Event(), threading.Event(), threading.Event()

    def run(self, request: Request, caller: CallerDep) -> Response:  # noqa: ARG002
        self.started.set()
        with cancellation.on_cancel(self.cancelled.set):
            while not (self.cancelled.is_set() or self.released.wait(0.01)):
                pass
        return Response("done")


def test_timeout_of_work_in_a_lane_is_not_reported_as_missing_body(rest_context: RestContext) -> None:
    app, work = create_app(replace(rest_context, limits=SHORT)), CancellableWork()
    add_route(app, "/work", work.run, lane=Lane.CATALOG)
    with serve(app, SHORT) as address:
        response = httpx.get(f"{address}/work", headers=bearer(token()), timeout=WAIT_SECONDS)
    check_response(response)
    assert (response.status_code, response.json()["code"]) == (503, "REQUEST_TIMED_OUT")
    assert response.headers["retry-after"] == "1"
    assert work.cancelled.is_set()


@pytest.mark.parametrize(
    "headers",
    [(), (f"content-length: {HUGE_LENGTH}",), ("content-type: application/json", "content-length: 5000000")],
    ids=["no body", "announced upload", "announced JSON"],
)
def test_work_of_a_disconnected_client_is_cancelled(rest_context: RestContext, headers: tuple[str, ...]) -> None:
    app, work = create_app(replace(rest_context, limits=LONG)), CancellableWork()
    add_route(app, "/work", work.run, lane=Lane.CATALOG)
    with serve(app, LONG) as address:
        with raw_request(address, "/work", *headers):
            assert work.started.wait(WAIT_SECONDS)
        try:
            assert work.cancelled.wait(WAIT_SECONDS)
        finally:
            work.released.set()


def test_work_of_a_pipelined_request_is_cancelled_at_disconnect(rest_context: RestContext) -> None:
    app, work = create_app(replace(rest_context, limits=LONG)), CancellableWork()
    add_route(app, "/work", work.run, lane=Lane.CATALOG)
    with serve(app, LONG) as address:
        with raw_request(address, "/work") as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")  # waits for the first response
            assert work.started.wait(WAIT_SECONDS)
        try:
            assert work.cancelled.wait(WAIT_SECONDS)
        finally:
            work.released.set()


def test_body_that_no_route_reads_does_not_extend_the_time_of_a_response(rest_context: RestContext) -> None:
    app, work = create_app(replace(rest_context, limits=SHORT)), CancellableWork()
    add_route(app, "/work", work.run, lane=Lane.CATALOG)
    with serve(app, SHORT) as address, raw_request(address, "/work", "transfer-encoding: chunked") as connection:
        stopped = threading.Event()

        def drip() -> None:
            while not stopped.wait(0.2):
                connection.sendall(b"1\r\nx\r\n")

        sender = threading.Thread(target=drip)
        sender.start()
        try:
            assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
        finally:
            stopped.set()
            sender.join()
            work.released.set()


def test_announced_body_does_not_interrupt_a_streamed_response(
    rest_context: RestContext, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(rest_context)
    client = in_process_client(app, token())
    client(
        "POST",
        "/datasets?name=demo.rows",
        code=201,
        content=b"id\n" + b"7\n" * 1_000,
        headers={"content-type": "text/csv"},
    )
    with (
        serve(app, LONG) as address,
        raw_request(
            address,
            "/datasets/demo.rows/rows",
            "accept: application/vnd.apache.arrow.stream",
            f"content-length: {HUGE_LENGTH}",
        ) as connection,
    ):
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            block = connection.recv(65_536)
            assert block, "the response is incomplete"
            received += block
    assert received.startswith(b"HTTP/1.1 200 ")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_connections_of_stalled_readers_are_aborted(
    rest_context: RestContext, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(replace(rest_context, limits=SHORT))
    add_route(app, "/stream", lambda: StreamingResponse(iter([b"x" * (4 << 20)] * 100)))
    add_route(app, "/body", lambda: Response(b"x" * (900 << 10)))  # the server buffers all of it at once
    with serve(app, SHORT) as address, caplog.at_level(logging.INFO):
        port = urlsplit(address).port
        assert port
        with (
            raw_request(address, "/stream", receive_buffer=4_096),
            raw_request(address, "/body", receive_buffer=4_096),
            raw_request(address, "/body", "connection: close", receive_buffer=4_096),
        ):
            wait_until(lambda: _served_connections(port) == 3)
            wait_until(lambda: _served_connections(port) == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def _served_connections(port: int) -> int:
    """Return the number of sockets of this process with a local port that are connected to a client."""
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_close_aborts_a_connection_that_does_not_receive_the_rest() -> None:
    events = list[str]()

    class StalledTransport(asyncio.Transport):
        def close(self) -> None:
            events.append("closed")

        def get_write_buffer_size(self) -> int:
            return 1

        def get_extra_info(self, name: str, default: object = None) -> object:  # noqa: ARG002
            return None

        def abort(self) -> None:
            events.append("aborted")

    async def close() -> None:
        BufferedTransport(StalledTransport(), asyncio.get_running_loop(), 0.0).close()
        assert events == ["closed"]
        while len(events) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(close(), WAIT_SECONDS))
    assert events == ["closed", "aborted"]


@pytest.mark.parametrize("path", ["/me%0A", "/gts%0A", "/healthz%0A"])
def test_path_with_line_break_is_unknown(rest_context: RestContext, path: str) -> None:
    client = in_process_client(create_app(rest_context), token())
    assert client("GET", f"{path}?bogus=1", code=404).json()["code"] == "ROUTE_NOT_FOUND"


def test_metrics_wait_for_no_request_thread(rest_context: RestContext) -> None:
    """Readiness and metrics run in threads of their own: busy lanes and uploads do not delay them."""
    app = create_app(replace(rest_context, limits=LONG))
    release = threading.Event()
    add_route(app, "/hold", lambda: Response(str(release.wait(WAIT_SECONDS))))  # in a shared thread
    with serve(app, LONG) as address:
        holders = [
            threading.Thread(target=httpx.get, args=(f"{address}/hold",), kwargs={"timeout": WAIT_SECONDS})
            for _ in range(50)  # more than the shared threads
        ]
        for holder in holders:
            holder.start()
        try:
            for path in ("/readyz", "/metrics"):
                assert httpx.get(f"{address}{path}", timeout=WAIT_SECONDS / 2).status_code == 200
        finally:
            release.set()
            for holder in holders:
                holder.join()
