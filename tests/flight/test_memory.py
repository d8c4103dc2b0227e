"""Memory of Flight streams: reserved before it is taken, bounded per user, and released with the call."""

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

from flight.broken_clients import Streams, Stuck
from flight.conftest import EVENTS
from flight.flight_server import ROWS, House, eventually, open_house
from flight.raw_client import OTHER, SECONDS, Raw, Refused, command, served, to_refused, token
from flight.test_put_stream import packed
from flight.test_server import Held, limited
from penstock.core.caller import Role
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightContext, FlightLimits
from penstock.flight.interceptor import SERVICE_NAME
from penstock.service.memory_budget import MemoryBudget
from support.workspaces import WorkspaceFixture

MESSAGE_BYTES = 8 << 20
ALONE = flight_data.encode(b"", descriptor=command(operation="insert").SerializeToString())
NUMBERS = pa.table({"n": pa.array(np.zeros(MESSAGE_BYTES // 8, "int64"))})


@pytest.fixture
def house(sqlite_workspace: WorkspaceFixture) -> Iterator[House]:
    with open_house(sqlite_workspace) as house:
        yield house


def insert_messages(house: House, rows: pa.Table, **options: Any) -> list[bytes]:
    """The messages of an insert into a new table of ROWS' schema."""
    descriptor = command(**house.table().insert(**options))
    return [flight_data.encode(b"", descriptor=descriptor.SerializeToString()), *packed(rows, rows.num_rows)]


def refused_puts(house: House) -> dict[str, list[bytes]]:
    """Streams that are refused at different steps, each with one long message."""
    count = MESSAGE_BYTES // 100
    ids, words = pa.array(range(count)), pa.array(["x" * 100] * count)
    without_ids = pa.table([pa.nulls(count, pa.int64()), words], names=["id", "word"])
    schema, batch = packed(pa.table([ids, words], schema=ROWS.schema), count)
    start = insert_messages(house, ROWS)[0]
    broken = flight_data.encode(b"garbage!", bytes(MESSAGE_BYTES))
    return {
        "a broken batch": [start, schema, broken],
        "no header": [start, schema, flight_data.encode(b"", bytes(MESSAGE_BYTES))],
        "another schema": [start, *packed(NUMBERS, NUMBERS.num_rows)],
        "NULL in a required column": [start, *packed(without_ids, count)],
        "a second descriptor": [start, schema, flight_data.encode(b"", bytes(MESSAGE_BYTES), descriptor=b"")],
        "too few rows": [insert_messages(house, ROWS, expected_rows=count + 1)[0], schema, batch],
    }


@pytest.mark.parametrize("in_transaction", [False, True])
def test_refused_put_releases_its_message_without_garbage_collection(house: House, in_transaction: bool) -> None:
    streams = refused_puts(house)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for messages in streams.values():
            headers = {"x_transaction_id": house.begin()} if in_transaction else {}
            with pytest.raises(Refused):
                house.raw.put(messages, **headers)
            eventually(lambda: house.lake._workspace.memory.used_bytes == 0)
            eventually(lambda: not _long_blocks())
    finally:
        tracemalloc.stop()
        gc.enable()


def _long_blocks() -> list[Any]:
    """The blocks of Python memory that could hold a message."""
    return [trace for trace in tracemalloc.take_snapshot().traces if trace.size > MESSAGE_BYTES // 2]


def test_compressed_grpc_message_is_rejected_before_it_expands(edge: FlightContext) -> None:
    with served(edge) as server, Raw(server, token()) as raw:
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            call = raw.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")
            tracemalloc.start()
            try:
                with pytest.raises(grpc.RpcError) as raised:
                    sent = iter([ALONE, bytes(32 << 20)])
                    list(call(sent, compression=compression, metadata=_bearer(), timeout=SECONDS))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, to_refused(raised.value)
            assert peak < 48 << 20  # the client's own message
        assert raw.put([ALONE])


def _bearer(user: str = "ada") -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token(user=user)}")]


def test_put_message_beyond_memory_budget_is_rejected(edge: FlightContext) -> None:
    edge.workspace.memory = MemoryBudget(10 << 20)  # of which a user may take 5.6 MiB
    with served(edge) as server, Raw(server, token()) as raw:
        zeros = [ALONE, *packed(NUMBERS, NUMBERS.num_rows, compression="zstd")]
        assert sum(map(len, zeros)) < 1 << 20
        for sent in (zeros, [ALONE, *packed(NUMBERS, NUMBERS.num_rows)]):
            with pytest.raises(Refused) as raised:
                raw.put(sent)
            assert (raised.value.code, raised.value.reason) == ("RESOURCE_EXHAUSTED", "tenant_memory_exhausted")
        [answer] = raw.put([ALONE, *packed(NUMBERS, 100_000)])  # any number of shorter messages
        assert int(pb.PutResult.FromString(answer).app_metadata) == NUMBERS.num_rows
    assert edge.workspace.memory.used_bytes == 0


def test_returned_rows_are_reserved(house: House) -> None:
    memory = house.lake._workspace.memory = MemoryBudget(4 << 20)
    rows = pa.concat_tables([pa.table([range(1_000), ["x" * 1_000] * 1_000], schema=ROWS.schema)] * 8)
    with pytest.raises(Refused) as raised:
        house.raw.put([insert_messages(house, rows, returning=True)[0], *packed(rows, 500)])
    assert raised.value.reason == "tenant_memory_exhausted"
    eventually(lambda: memory.used_bytes == 0)


def test_get_beyond_memory_budget_is_rejected(edge: FlightContext) -> None:
    edge.workspace.memory = MemoryBudget(100)
    at = {"schema_name": "analytics", "table_name": "events"}
    with served(edge) as server, Raw(server, token()) as raw:
        with pytest.raises(Refused) as raised:
            raw.get(at)
        assert raised.value.reason == "memory_exhausted"
        edge.workspace.memory = MemoryBudget(1 << 20)
        assert raw.get(at).equals(EVENTS)  # without read-ahead
    assert edge.workspace.memory.used_bytes == 0


def test_puts_of_one_user_leave_capacity_to_others(edge: FlightContext) -> None:
    """Of 4 concurrent calls a tenant has 3 and a user 3; another tenant is served while they are silent."""
    held = Held()
    with served(limited(edge, puts=4), put=held.put) as server:
        answers: list[str] = []

        def put(raw: Raw) -> None:
            answers.append(pb.PutResult.FromString(raw.put([ALONE])[0]).app_metadata.decode())

        with Raw(server, token()) as one, Raw(server, token(tenant=OTHER)) as other:
            clients = [threading.Thread(target=put, args=(one,)) for _ in range(6)]
            for client in clients:
                client.start()
            for _ in range(3):
                assert held.begun.acquire(timeout=SECONDS)
            clients.append(threading.Thread(target=put, args=(other,)))
            clients[-1].start()
            assert held.begun.acquire(timeout=SECONDS)
            held.let()
            for client in clients:
                client.join(SECONDS)
    assert answers == ["done"] * 7  # the others have waited


def test_calls_of_one_user_leave_capacity_to_other_users(edge: FlightContext) -> None:
    """Of 16 calls a tenant has 12 and a user 9."""
    held = Held()
    with served(limited(edge, streams=16), put=held.put) as server:
        streams = Streams(server.address, [(Stuck([ALONE]), None) for _ in range(8)])
        try:
            with Raw(server, token()) as ada, Raw(server, token(user="bob")) as bob:
                ninth = ada.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")(
                    iter(Stuck([ALONE])), metadata=_bearer(), timeout=SECONDS
                )
                for _ in range(9):
                    assert held.begun.acquire(timeout=SECONDS)
                with pytest.raises(Refused) as raised:
                    ada.act("list_schemas")
                assert raised.value.sentence == "The limit of 9 concurrent calls is reached. Retry later"
                assert bob.act("list_schemas") == {"schemas": ["analytics"]}
                ninth.cancel()
        finally:
            streams.cancel()
            streams.close()


def test_put_of_viewer_is_rejected_before_its_descriptor(edge: FlightContext) -> None:
    with served(edge) as server, Raw(server) as raw:
        silent = Stuck([])
        metadata = [("authorization", f"Bearer {token(Role.VIEWER)}")]
        with pytest.raises(grpc.RpcError) as raised:
            list(raw.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")(iter(silent), metadata=metadata, timeout=SECONDS))
        silent.released.set()
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_idle_put_ends_after_idle_time(edge: FlightContext) -> None:
    assert FlightLimits().idle_seconds == 60
    with served(limited(edge, idle_seconds=0.1)) as server, Raw(server) as raw:
        silent = Stuck([ALONE, ipc_messages.encode_schema(NUMBERS.schema)])
        with pytest.raises(grpc.RpcError) as raised:
            list(raw.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")(iter(silent), metadata=_bearer(), timeout=SECONDS))
        silent.released.set()
        assert to_refused(raised.value).reason == "stream_idle"
