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
from flight.raw_client import CallRejected, RawClient, command_descriptor, running_server, to_call_rejected, token
from penstock.errors import Invalid, Unavailable
from penstock.flight import flight_data
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightContext, FlightLimits
from penstock.flight.interceptor import SERVICE_NAME, FlightCall
from penstock.flight.put_stream import PutStream
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from rest.test_serve import write_certificate

TABLE_REFERENCE = {"schema_name": "analytics", "table_name": "events"}
TICKET = pb.Ticket(ticket=json.dumps(TABLE_REFERENCE).encode())
DESCRIPTOR_MESSAGE = flight_data.encode(b"", descriptor=command_descriptor(operation="insert").SerializeToString())


def with_limits(flight_context: FlightContext, **limits: Any) -> FlightContext:
    return FlightContext(flight_context.workspace, flight_context.tokens, limits=FlightLimits(**limits))


class BlockingPutHandler:
    """A DoPut handler that starts and then waits for an event."""

    def __init__(self) -> None:
        self.started, self.ended = threading.Semaphore(0), threading.Event()
        self.released = asyncio.Event()
        self.was_active: bool | None = None

    async def put(self, _incoming: PutStream, call: FlightCall) -> AsyncGenerator[bytes, None]:
        self._loop = asyncio.get_running_loop()
        self.started.release()
        try:
            await self.released.wait()
            yield b"done"
        finally:
            self.was_active = call.is_active
            self.ended.set()

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self.released.set)


def test_server_rejects_calls_over_limit(flight_context: FlightContext) -> None:
    handler = BlockingPutHandler()
    with (
        running_server(with_limits(flight_context, streams=3), put=handler.put) as server,
        RawClient(server, token()) as raw_client,
    ):
        responses: list[Any] = []
        threads = [
            threading.Thread(target=lambda: responses.append(raw_client.put([DESCRIPTOR_MESSAGE]))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
            assert handler.started.acquire(timeout=30)
        with pytest.raises(CallRejected) as raised:
            raw_client.get(TABLE_REFERENCE)
        assert raised.value.code == "RESOURCE_EXHAUSTED"
        assert raised.value.message == "The limit of 3 concurrent calls is reached. Retry later"
        assert _health_status(raw_client.channel) == "SERVING"
        handler.release()
        for thread in threads:
            thread.join(30)
        assert raw_client.get(TABLE_REFERENCE).equals(EVENTS)
        assert len(responses) == 3


def test_drain_finishes_active_calls_and_rejects_new_ones(flight_context: FlightContext) -> None:
    handler, responses = BlockingPutHandler(), list[Any]()
    with (
        running_server(flight_context, put=handler.put) as server,
        RawClient(server, token()) as raw_client,
        RawClient(server, token()) as late_client,
    ):
        thread = threading.Thread(target=lambda: responses.append(raw_client.put([DESCRIPTOR_MESSAGE])))
        thread.start()
        assert handler.started.acquire(timeout=30)
        server.drain()
        with pytest.raises(CallRejected) as raised:
            while True:  # the client may receive the stop later
                late_client.get(TABLE_REFERENCE)
        assert raised.value.code == "UNAVAILABLE"
        handler.release()
        thread.join(30)
    assert [pb.PutResult.FromString(item).app_metadata for item in responses[0]] == [b"done"]


def test_stop_cancels_calls_after_drain_time(flight_context: FlightContext) -> None:
    handler, errors = BlockingPutHandler(), list[CallRejected]()

    def put() -> None:
        try:
            raw_client.put([DESCRIPTOR_MESSAGE])
        except CallRejected as error:
            errors.append(error)

    with (
        running_server(with_limits(flight_context, drain_seconds=0.2), put=handler.put) as server,
        RawClient(server, token()) as raw_client,
    ):
        thread = threading.Thread(target=put)
        thread.start()
        assert handler.started.acquire(timeout=30)
        server.stop()
        thread.join(30)
    assert handler.ended.is_set()
    assert errors[0].code in ("CANCELLED", "UNAVAILABLE")


def test_call_is_inactive_after_client_disconnects(flight_context: FlightContext) -> None:
    handler = BlockingPutHandler()
    with running_server(flight_context, put=handler.put) as server, RawClient(server, token()) as raw_client:
        call = raw_client.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")(
            iter([DESCRIPTOR_MESSAGE]), metadata=[("authorization", f"Bearer {token()}")], timeout=30
        )
        assert handler.started.acquire(timeout=30)
        call.cancel()
        assert handler.ended.wait(30)
    assert handler.was_active is False


def test_call_is_cancelled_at_client_deadline(flight_context: FlightContext) -> None:
    handler = BlockingPutHandler()
    with running_server(flight_context, put=handler.put) as server, RawClient(server, token()) as raw_client:
        call = raw_client.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")
        with pytest.raises(grpc.RpcError) as raised:
            list(call(iter([DESCRIPTOR_MESSAGE]), metadata=[("authorization", f"Bearer {token()}")], timeout=0.3))
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert handler.ended.wait(30)


def test_slow_readers_use_bounded_memory_and_block_no_other_call(flight_context: FlightContext, lake: Lake) -> None:
    rows, readers = 1_000_000, 64
    table = pa.table({"n": pa.arange(0, rows), "x": pa.array([f"text {n}" for n in range(1_000)] * (rows // 1_000))})
    lake.create("analytics.wide", table)
    reference = {**TABLE_REFERENCE, "table_name": "wide"}
    request = pb.Ticket(ticket=json.dumps(reference).encode())
    with running_server(flight_context) as server:
        clients = [RawClient(server, token()) for _ in range(8)]
        bytes_before = pa.total_allocated_bytes()
        streams = [clients[item % 8].open_stream("DoGet", request) for item in range(readers)]
        for stream in streams:
            next(stream), next(stream)
        with RawClient(server, token()) as other_client:  # a complete read while the other readers stall
            assert sum(len(item) for item in other_client.call_stream("DoGet", request)) > table.nbytes
        allocated_bytes = pa.total_allocated_bytes() - bytes_before
        for stream in streams:
            stream.cancel()
        for client in clients:
            client.channel.close()
    assert allocated_bytes < readers * table.nbytes / 4


def test_server_serves_concurrent_reads(server: FlightServer) -> None:
    def read(into: list[pa.Table]) -> None:
        with RawClient(server, token()) as raw_client:
            into += [raw_client.get(TABLE_REFERENCE) for _ in range(10)]

    tables: list[pa.Table] = []
    threads = [threading.Thread(target=read, args=(tables,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(tables) == 160
    assert all(table.equals(EVENTS) for table in tables)


def _health_status(channel: Any, service: str = "") -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=30)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def test_health_service_needs_no_token(server: FlightServer) -> None:
    with RawClient(server) as anonymous:
        assert _health_status(anonymous.channel) == _health_status(anonymous.channel, SERVICE_NAME) == "SERVING"
        with pytest.raises(grpc.RpcError) as raised:
            _health_status(anonymous.channel, "another")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_server_has_no_reflection_service(raw_client: RawClient) -> None:
    for name in ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"):
        with pytest.raises(grpc.RpcError) as raised:
            list(raw_client.channel.stream_stream(f"/{name}/ServerReflectionInfo")(iter([b""]), timeout=30))
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_server_with_certificate_uses_tls(flight_context: FlightContext, tmp_path: Path) -> None:
    cert, key = (tmp_path / name for name in write_certificate(tmp_path))
    server = FlightServer(flight_context, "127.0.0.1", 0, (cert, key))
    server.start()
    try:
        assert server.address.startswith("grpc+tls://")
        secure_channel = grpc.secure_channel(
            server.address.split("://")[1], grpc.ssl_channel_credentials(cert.read_bytes())
        )
        with RawClient(server, token(), channel=secure_channel) as raw_client:
            assert raw_client.get(TABLE_REFERENCE).equals(EVENTS)
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token()}".encode())], timeout=30)
        with fl.connect(server.address, tls_root_certs=cert.read_bytes()) as client:
            assert client.do_get(fl.Ticket(TICKET.ticket), options).read_all().equals(EVENTS)
        with RawClient(server, token()) as plain, pytest.raises(CallRejected) as raised:
            plain.get(TABLE_REFERENCE)
        assert raised.value.code == "UNAVAILABLE"
    finally:
        server.stop()


def test_server_with_unusable_certificate_is_rejected(flight_context: FlightContext, tmp_path: Path) -> None:
    cert, key = (tmp_path / name for name in write_certificate(tmp_path))
    key.write_text("no key")
    for pair in ((cert, key), (tmp_path / "nothing", key)):
        with pytest.raises(Invalid) as raised:
            FlightServer(flight_context, "127.0.0.1", 0, pair)
        assert raised.value.reason == "bad_certificate"


def test_server_with_used_port_fails_and_does_not_share_it(flight_context: FlightContext, server: FlightServer) -> None:
    port = int(server.address.rpartition(":")[2])
    second = FlightServer(flight_context, "127.0.0.1", port)
    with pytest.raises(Unavailable) as raised:
        second.start()
    assert raised.value.reason == "cannot_listen"
    second.stop()


def test_stop_before_start_succeeds(flight_context: FlightContext) -> None:
    FlightServer(flight_context, "127.0.0.1", 0).stop()


def test_server_accepts_long_token(raw_client: RawClient) -> None:
    call = raw_client.channel.unary_stream(f"/{SERVICE_NAME}/ListActions")
    with pytest.raises(grpc.RpcError) as raised:
        list(call(b"", metadata=[("authorization", f"Bearer {'x' * 20_000}")], timeout=30))
    assert to_call_rejected(raised.value).reason == "bad_token"


def test_two_servers_in_one_process_are_independent(flight_context: FlightContext, lake: Lake) -> None:
    with (
        running_server(flight_context) as first,
        running_server(FlightContext(lake._workspace, None, lake.caller)) as second,
    ):
        with RawClient(second) as raw_client:
            assert raw_client.get(TABLE_REFERENCE).equals(EVENTS)
        with RawClient(first) as raw_client, pytest.raises(CallRejected):
            raw_client.get(TABLE_REFERENCE)
