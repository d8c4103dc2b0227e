"""Server operation: limits, TLS, health, graceful stop and slow clients."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flight.conftest import EVENTS
from flight.raw_client import Raw, Refused, command, served, to_refused, token
from penstock.errors import Invalid, Unavailable
from penstock.flight import flight_data
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightContext, FlightLimits
from penstock.flight.interceptor import SERVICE_NAME, FlightCall
from penstock.flight.put_stream import PutStream
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from rest.test_serve import certificate

AT = {"schema_name": "analytics", "table_name": "events"}
TICKET = pb.Ticket(ticket=json.dumps(AT).encode())
ALONE = flight_data.encode(b"", descriptor=command(operation="insert").SerializeToString())


def limited(edge: FlightContext, **limits: Any) -> FlightContext:
    return FlightContext(edge.workspace, edge.tokens, limits=FlightLimits(**limits))


class Held:
    """A DoPut handler that starts and then waits for an event."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Semaphore(0), threading.Event()
        self.go = asyncio.Event()
        self.was_active: bool | None = None

    async def put(self, _incoming: PutStream, call: FlightCall) -> AsyncGenerator[bytes, None]:
        self._loop = asyncio.get_running_loop()
        self.begun.release()
        try:
            await self.go.wait()
            yield b"done"
        finally:
            self.was_active = call.is_active
            self.ended.set()

    def let(self) -> None:
        self._loop.call_soon_threadsafe(self.go.set)


def test_server_rejects_calls_over_limit(edge: FlightContext) -> None:
    held = Held()
    with served(limited(edge, streams=3), put=held.put) as server, Raw(server, token()) as raw:
        answers: list[Any] = []
        clients = [threading.Thread(target=lambda: answers.append(raw.put([ALONE]))) for _ in range(3)]
        for client in clients:
            client.start()
            assert held.begun.acquire(timeout=30)
        with pytest.raises(Refused) as raised:
            raw.get(AT)
        assert raised.value.code == "RESOURCE_EXHAUSTED"
        assert raised.value.sentence == "The limit of 3 concurrent calls is reached. Retry later"
        assert _status(raw.channel) == "SERVING"
        held.let()
        for client in clients:
            client.join(30)
        assert raw.get(AT).equals(EVENTS)
        assert len(answers) == 3


def test_drain_finishes_active_calls_and_rejects_new_ones(edge: FlightContext) -> None:
    held, answers = Held(), list[Any]()
    with served(edge, put=held.put) as server, Raw(server, token()) as raw, Raw(server, token()) as late:
        client = threading.Thread(target=lambda: answers.append(raw.put([ALONE])))
        client.start()
        assert held.begun.acquire(timeout=30)
        server.drain()
        with pytest.raises(Refused) as raised:
            while True:  # the client may notice the stop later
                late.get(AT)
        assert raised.value.code == "UNAVAILABLE"
        held.let()
        client.join(30)
    assert [pb.PutResult.FromString(item).app_metadata for item in answers[0]] == [b"done"]


def test_stop_cancels_calls_after_drain_time(edge: FlightContext) -> None:
    held, answers = Held(), list[Refused]()

    def put() -> None:
        try:
            raw.put([ALONE])
        except Refused as error:
            answers.append(error)

    with served(limited(edge, drain_seconds=0.2), put=held.put) as server, Raw(server, token()) as raw:
        client = threading.Thread(target=put)
        client.start()
        assert held.begun.acquire(timeout=30)
        server.stop()
        client.join(30)
    assert held.ended.is_set()
    assert answers[0].code in ("CANCELLED", "UNAVAILABLE")


def test_call_is_inactive_after_client_disconnects(edge: FlightContext) -> None:
    held = Held()
    with served(edge, put=held.put) as server, Raw(server, token()) as raw:
        call = raw.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")(
            iter([ALONE]), metadata=[("authorization", f"Bearer {token()}")], timeout=30
        )
        assert held.begun.acquire(timeout=30)
        call.cancel()
        assert held.ended.wait(30)
    assert held.was_active is False


def test_call_is_cancelled_at_client_deadline(edge: FlightContext) -> None:
    held = Held()
    with served(edge, put=held.put) as server, Raw(server, token()) as raw:
        call = raw.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")
        with pytest.raises(grpc.RpcError) as raised:
            list(call(iter([ALONE]), metadata=[("authorization", f"Bearer {token()}")], timeout=0.3))
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert held.ended.wait(30)


def test_slow_readers_use_bounded_memory_and_block_no_other_call(edge: FlightContext, lake: Lake) -> None:
    rows, readers = 1_000_000, 64
    table = pa.table({"n": pa.arange(0, rows), "x": pa.array([f"text {n}" for n in range(1_000)] * (rows // 1_000))})
    lake.create("analytics.wide", table)
    wide = {**AT, "table_name": "wide"}
    request = pb.Ticket(ticket=json.dumps(wide).encode())
    with served(edge) as server:
        clients = [Raw(server, token()) for _ in range(8)]
        before = pa.total_allocated_bytes()
        streams = [clients[item % 8].stream("DoGet", request) for item in range(readers)]
        for stream in streams:
            next(stream), next(stream)
        with Raw(server, token()) as other:  # all of it, while the others dawdle
            assert sum(len(item) for item in other.many("DoGet", request)) > table.nbytes
        held = pa.total_allocated_bytes() - before
        for stream in streams:
            stream.cancel()
        for client in clients:
            client.channel.close()
    assert held < readers * table.nbytes / 4


def test_server_serves_concurrent_reads(server: FlightServer) -> None:
    def read(into: list[pa.Table]) -> None:
        with Raw(server, token()) as raw:
            into += [raw.get(AT) for _ in range(10)]

    found: list[pa.Table] = []
    threads = [threading.Thread(target=read, args=(found,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 160
    assert all(item.equals(EVENTS) for item in found)


def _status(channel: Any, service: str = "") -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=30)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def test_health_service_needs_no_token(server: FlightServer) -> None:
    with Raw(server) as anonymous:
        assert _status(anonymous.channel) == _status(anonymous.channel, SERVICE_NAME) == "SERVING"
        with pytest.raises(grpc.RpcError) as raised:
            _status(anonymous.channel, "another")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_server_has_no_reflection_service(raw: Raw) -> None:
    for name in ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"):
        with pytest.raises(grpc.RpcError) as raised:
            list(raw.channel.stream_stream(f"/{name}/ServerReflectionInfo")(iter([b""]), timeout=30))
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_server_with_certificate_uses_tls(edge: FlightContext, tmp_path: Path) -> None:
    cert, key = (tmp_path / name for name in certificate(tmp_path))
    server = FlightServer(edge, "127.0.0.1", 0, (cert, key))
    server.start()
    try:
        assert server.address.startswith("grpc+tls://")
        trusting = grpc.secure_channel(server.address.split("://")[1], grpc.ssl_channel_credentials(cert.read_bytes()))
        with Raw(server, token(), channel=trusting) as raw:
            assert raw.get(AT).equals(EVENTS)
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token()}".encode())], timeout=30)
        with fl.connect(server.address, tls_root_certs=cert.read_bytes()) as client:
            assert client.do_get(fl.Ticket(TICKET.ticket), options).read_all().equals(EVENTS)
        with Raw(server, token()) as plain, pytest.raises(Refused) as raised:
            plain.get(AT)
        assert raised.value.code == "UNAVAILABLE"
    finally:
        server.stop()


def test_server_with_unusable_certificate_is_rejected(edge: FlightContext, tmp_path: Path) -> None:
    cert, key = (tmp_path / name for name in certificate(tmp_path))
    key.write_text("no key")
    for pair in ((cert, key), (tmp_path / "nothing", key)):
        with pytest.raises(Invalid) as raised:
            FlightServer(edge, "127.0.0.1", 0, pair)
        assert raised.value.reason == "bad_certificate"


def test_server_with_used_port_fails_and_does_not_share_it(edge: FlightContext, server: FlightServer) -> None:
    port = int(server.address.rpartition(":")[2])
    second = FlightServer(edge, "127.0.0.1", port)
    with pytest.raises(Unavailable) as raised:
        second.start()
    assert raised.value.reason == "cannot_listen"
    second.stop()


def test_stop_before_start_succeeds(edge: FlightContext) -> None:
    FlightServer(edge, "127.0.0.1", 0).stop()


def test_server_accepts_long_token(raw: Raw) -> None:
    call = raw.channel.unary_stream(f"/{SERVICE_NAME}/ListActions")
    with pytest.raises(grpc.RpcError) as raised:
        list(call(b"", metadata=[("authorization", f"Bearer {'x' * 20_000}")], timeout=30))
    assert to_refused(raised.value).reason == "bad_token"


def test_two_servers_in_one_process_are_independent(edge: FlightContext, lake: Lake) -> None:
    with served(edge) as one, served(FlightContext(lake._workspace, None, lake.caller)) as two:
        with Raw(two) as raw:
            assert raw.get(AT).equals(EVENTS)
        with Raw(one) as raw, pytest.raises(Refused):
            raw.get(AT)
