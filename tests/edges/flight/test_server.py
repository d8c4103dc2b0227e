"""The server as an operator meets it: limits, TLS, health, an end without loss, and slow clients that harm nobody."""

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

from edges.flight.conftest import EVENTS
from edges.flight.stage import Raw, Refused, command, heard, served, token
from edges.http.test_serve import certificate
from penstock.errors import Invalid, Unavailable
from penstock.flight import flight_pb2 as pb
from penstock.flight import flight_data as wire
from penstock.flight.interceptor import SERVICE, Call
from penstock.flight.context import Edge, FlightLimits
from penstock.flight.put_stream import Incoming
from penstock.flight.server import FlightServer
from penstock.lake import Lake

AT = {"schema_name": "analytics", "table_name": "events"}
TICKET = pb.Ticket(ticket=json.dumps(AT).encode())
ALONE = wire.encode(b"", descriptor=command(operation="insert").SerializeToString())


def limited(edge: Edge, **limits: Any) -> Edge:
    return Edge(edge.workspace, edge.tokens, limits=FlightLimits(**limits))


class Held:
    """A handler for DoPut that begins, and goes on when it is let."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Semaphore(0), threading.Event()
        self.go = asyncio.Event()
        self.was_active: bool | None = None

    async def put(self, _incoming: Incoming, call: Call) -> AsyncGenerator[bytes, None]:
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


def test_so_many_calls_at_once_and_no_more(edge: Edge) -> None:
    held = Held()
    with served(limited(edge, streams=3), put=held.put) as server, Raw(server, token()) as raw:
        answers: list[Any] = []
        clients = [threading.Thread(target=lambda: answers.append(raw.put([ALONE]))) for _ in range(3)]
        for client in clients:
            client.start()
            assert held.begun.acquire(timeout=30)
        with pytest.raises(Refused) as refusal:
            raw.get(AT)
        assert refusal.value.code == "RESOURCE_EXHAUSTED"
        assert refusal.value.sentence == "at most 3 calls at once; try again when others have ended"
        assert _status(raw.channel) == "SERVING"
        held.let()
        for client in clients:
            client.join(30)
        assert raw.get(AT).equals(EVENTS)
        assert len(answers) == 3


def test_a_server_that_stops_lets_calls_end_and_takes_no_new_ones(edge: Edge) -> None:
    held, answers = Held(), list[Any]()
    with served(edge, put=held.put) as server, Raw(server, token()) as raw, Raw(server, token()) as late:
        client = threading.Thread(target=lambda: answers.append(raw.put([ALONE])))
        client.start()
        assert held.begun.acquire(timeout=30)
        server.drain()
        with pytest.raises(Refused) as refusal:
            while True:  # it hears of that in its own time
                late.get(AT)
        assert refusal.value.code == "UNAVAILABLE"
        held.let()
        client.join(30)
    assert [pb.PutResult.FromString(each).app_metadata for each in answers[0]] == [b"done"]


def test_what_does_not_end_is_cut(edge: Edge) -> None:
    held, answers = Held(), list[Refused]()

    def put() -> None:
        try:
            raw.put([ALONE])
        except Refused as refusal:
            answers.append(refusal)

    with served(limited(edge, drain_seconds=0.2), put=held.put) as server, Raw(server, token()) as raw:
        client = threading.Thread(target=put)
        client.start()
        assert held.begun.acquire(timeout=30)
        server.stop()
        client.join(30)
    assert held.ended.is_set()
    assert answers[0].code in ("CANCELLED", "UNAVAILABLE")


def test_a_call_knows_that_its_client_has_gone(edge: Edge) -> None:
    held = Held()
    with served(edge, put=held.put) as server, Raw(server, token()) as raw:
        call = raw.channel.stream_stream(f"/{SERVICE}/DoPut")(
            iter([ALONE]), metadata=[("authorization", f"Bearer {token()}")], timeout=30
        )
        assert held.begun.acquire(timeout=30)
        call.cancel()
        assert held.ended.wait(30)
    assert held.was_active is False


def test_a_call_that_takes_longer_than_its_client_waits_is_ended(edge: Edge) -> None:
    held = Held()
    with served(edge, put=held.put) as server, Raw(server, token()) as raw:
        call = raw.channel.stream_stream(f"/{SERVICE}/DoPut")
        with pytest.raises(grpc.RpcError) as refusal:
            list(call(iter([ALONE]), metadata=[("authorization", f"Bearer {token()}")], timeout=0.3))
        assert refusal.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert held.ended.wait(30)


def test_slow_readers_hold_little_and_nobody_back(edge: Edge, lake: Lake) -> None:
    rows, readers = 1_000_000, 64
    table = pa.table({"n": pa.arange(0, rows), "x": pa.array([f"text {n}" for n in range(1_000)] * (rows // 1_000))})
    lake.create("analytics.wide", table)
    wide = {**AT, "table_name": "wide"}
    asked = pb.Ticket(ticket=json.dumps(wide).encode())
    with served(edge) as server:
        clients = [Raw(server, token()) for _ in range(8)]
        before = pa.total_allocated_bytes()
        streams = [clients[each % 8].stream("DoGet", asked) for each in range(readers)]
        for stream in streams:
            next(stream), next(stream)
        with Raw(server, token()) as other:  # all of it, while the others dawdle
            assert sum(len(each) for each in other.many("DoGet", asked)) > table.nbytes
        held = pa.total_allocated_bytes() - before
        for stream in streams:
            stream.cancel()
        for client in clients:
            client.channel.close()
    assert held < readers * table.nbytes / 4


def test_many_read_at_once(server: FlightServer) -> None:
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
    assert all(each.equals(EVENTS) for each in found)


def _status(channel: Any, service: str = "") -> str:
    asked = health_pb2.HealthCheckRequest(service=service)
    told = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=30)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(told.status))


def test_anybody_may_ask_how_it_is(server: FlightServer) -> None:
    with Raw(server) as nobody:
        assert _status(nobody.channel) == _status(nobody.channel, SERVICE) == "SERVING"
        with pytest.raises(grpc.RpcError) as refusal:
            _status(nobody.channel, "another")
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


def test_what_there_is_is_not_told_by_reflection(raw: Raw) -> None:
    for name in ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"):
        with pytest.raises(grpc.RpcError) as refusal:
            list(raw.channel.stream_stream(f"/{name}/ServerReflectionInfo")(iter([b""]), timeout=30))
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_certificate_makes_it_tls(edge: Edge, tmp_path: Path) -> None:
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
        with Raw(server, token()) as plain, pytest.raises(Refused) as refusal:
            plain.get(AT)
        assert refusal.value.code == "UNAVAILABLE"
    finally:
        server.stop()


def test_a_certificate_that_cannot_be_used_is_refused(edge: Edge, tmp_path: Path) -> None:
    cert, key = (tmp_path / name for name in certificate(tmp_path))
    key.write_text("no key")
    for pair in ((cert, key), (tmp_path / "nothing", key)):
        with pytest.raises(Invalid) as refusal:
            FlightServer(edge, "127.0.0.1", 0, pair)
        assert refusal.value.reason == "bad_certificate"


def test_a_taken_port_is_told_and_never_shared(edge: Edge, server: FlightServer) -> None:
    port = int(server.address.rpartition(":")[2])
    second = FlightServer(edge, "127.0.0.1", port)
    with pytest.raises(Unavailable) as refusal:
        second.start()
    assert refusal.value.reason == "cannot_listen"
    second.stop()


def test_a_server_that_never_started_can_be_stopped(edge: Edge) -> None:
    FlightServer(edge, "127.0.0.1", 0).stop()


def test_a_long_token_fits_before_a_call(raw: Raw) -> None:
    call = raw.channel.unary_stream(f"/{SERVICE}/ListActions")
    with pytest.raises(grpc.RpcError) as refusal:
        list(call(b"", metadata=[("authorization", f"Bearer {'x' * 20_000}")], timeout=30))
    assert heard(refusal.value).reason == "bad_token"


def test_two_servers_of_a_process_do_not_mix(edge: Edge, lake: Lake) -> None:
    with served(edge) as one, served(Edge(lake.workspace, None, lake.caller)) as two:
        with Raw(two) as raw:
            assert raw.get(AT).equals(EVENTS)
        with Raw(one) as raw, pytest.raises(Refused):
            raw.get(AT)
