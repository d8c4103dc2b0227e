"""Memory of Flight streams: reserved before allocation, bounded per user, and released with the call."""

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

from flight.broken_clients import InterruptedStream, InterruptedStreams
from flight.conftest import EVENTS
from flight.flight_server import ROWS, FlightServerFixture, run_flight_server, wait_until
from flight.raw_client import (
    OTHER_TENANT,
    TIMEOUT_SECONDS,
    CallRejected,
    RawClient,
    command_descriptor,
    running_server,
    to_call_rejected,
    token,
)
from flight.test_put_stream import encode_stream
from flight.test_server import BlockingPutHandler, with_limits
from penstock.core.caller import Role
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightContext, FlightLimits
from penstock.flight.interceptor import SERVICE_NAME
from penstock.service.memory_budget import MemoryBudget
from support.workspaces import WorkspaceFixture

MESSAGE_BYTES = 8 << 20
DESCRIPTOR_MESSAGE = flight_data.encode(b"", descriptor=command_descriptor(operation="insert").SerializeToString())
NUMBERS = pa.table({"n": pa.array(np.zeros(MESSAGE_BYTES // 8, "int64"))})


@pytest.fixture
def flight_server(sqlite_workspace: WorkspaceFixture) -> Iterator[FlightServerFixture]:
    with run_flight_server(sqlite_workspace) as flight_server:
        yield flight_server


def insert_messages(flight_server: FlightServerFixture, rows: pa.Table, **options: Any) -> list[bytes]:
    """Return the messages of an insert into a new table with the schema of ROWS."""
    descriptor = command_descriptor(**flight_server.create_table().insert(**options))
    return [flight_data.encode(b"", descriptor=descriptor.SerializeToString()), *encode_stream(rows, rows.num_rows)]


def rejected_puts(flight_server: FlightServerFixture) -> dict[str, list[bytes]]:
    """Return streams that the server rejects at different steps, each with one long message."""
    count = MESSAGE_BYTES // 100
    ids, words = pa.array(range(count)), pa.array(["x" * 100] * count)
    without_ids = pa.table([pa.nulls(count, pa.int64()), words], names=["id", "word"])
    schema, batch = encode_stream(pa.table([ids, words], schema=ROWS.schema), count)
    start = insert_messages(flight_server, ROWS)[0]
    broken = flight_data.encode(b"garbage!", bytes(MESSAGE_BYTES))
    return {
        "a broken batch": [start, schema, broken],
        "no header": [start, schema, flight_data.encode(b"", bytes(MESSAGE_BYTES))],
        "another schema": [start, *encode_stream(NUMBERS, NUMBERS.num_rows)],
        "NULL in a required column": [start, *encode_stream(without_ids, count)],
        "a second descriptor": [start, schema, flight_data.encode(b"", bytes(MESSAGE_BYTES), descriptor=b"")],
        "too few rows": [insert_messages(flight_server, ROWS, expected_rows=count + 1)[0], schema, batch],
    }


@pytest.mark.parametrize("in_transaction", [False, True])
def test_rejected_put_releases_its_message_without_garbage_collection(
    flight_server: FlightServerFixture, in_transaction: bool
) -> None:
    streams = rejected_puts(flight_server)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for messages in streams.values():
            headers = {"x_transaction_id": flight_server.begin_transaction()} if in_transaction else {}
            with pytest.raises(CallRejected):
                flight_server.raw_client.put(messages, **headers)
            wait_until(lambda: flight_server.lake._workspace.memory.used_bytes == 0)
            wait_until(lambda: not _long_blocks())
    finally:
        tracemalloc.stop()
        gc.enable()


def _long_blocks() -> list[Any]:
    """Return the blocks of Python memory that are large enough for a message."""
    return [trace for trace in tracemalloc.take_snapshot().traces if trace.size > MESSAGE_BYTES // 2]


def test_compressed_grpc_message_is_rejected_before_it_expands(flight_context: FlightContext) -> None:
    with running_server(flight_context) as server, RawClient(server, token()) as raw_client:
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            call = raw_client.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")
            tracemalloc.start()
            try:
                with pytest.raises(grpc.RpcError) as raised:
                    messages = iter([DESCRIPTOR_MESSAGE, bytes(32 << 20)])
                    list(call(messages, compression=compression, metadata=_bearer(), timeout=TIMEOUT_SECONDS))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, to_call_rejected(raised.value)
            assert peak < 48 << 20  # the client's own message
        assert raw_client.put([DESCRIPTOR_MESSAGE])


def _bearer(user: str = "ada") -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token(user=user)}")]


def test_put_message_beyond_memory_budget_is_rejected(flight_context: FlightContext) -> None:
    flight_context.workspace.memory = MemoryBudget(10 << 20)  # a user may reserve 5.6 MiB of it
    with running_server(flight_context) as server, RawClient(server, token()) as raw_client:
        zeros = [DESCRIPTOR_MESSAGE, *encode_stream(NUMBERS, NUMBERS.num_rows, compression="zstd")]
        assert sum(map(len, zeros)) < 1 << 20
        for messages in (zeros, [DESCRIPTOR_MESSAGE, *encode_stream(NUMBERS, NUMBERS.num_rows)]):
            with pytest.raises(CallRejected) as raised:
                raw_client.put(messages)
            assert (raised.value.code, raised.value.reason) == ("RESOURCE_EXHAUSTED", "tenant_memory_exhausted")
        [result] = raw_client.put(
            [DESCRIPTOR_MESSAGE, *encode_stream(NUMBERS, 100_000)]
        )  # any number of shorter messages
        assert int(pb.PutResult.FromString(result).app_metadata) == NUMBERS.num_rows
    assert flight_context.workspace.memory.used_bytes == 0


def test_returned_rows_are_reserved(flight_server: FlightServerFixture) -> None:
    memory = flight_server.lake._workspace.memory = MemoryBudget(4 << 20)
    rows = pa.concat_tables([pa.table([range(1_000), ["x" * 1_000] * 1_000], schema=ROWS.schema)] * 8)
    with pytest.raises(CallRejected) as raised:
        flight_server.raw_client.put(
            [insert_messages(flight_server, rows, returning=True)[0], *encode_stream(rows, 500)]
        )
    assert raised.value.reason == "tenant_memory_exhausted"
    wait_until(lambda: memory.used_bytes == 0)


def test_get_beyond_memory_budget_is_rejected(flight_context: FlightContext) -> None:
    flight_context.workspace.memory = MemoryBudget(100)
    reference = {"schema_name": "analytics", "table_name": "events"}
    with running_server(flight_context) as server, RawClient(server, token()) as raw_client:
        with pytest.raises(CallRejected) as raised:
            raw_client.get(reference)
        assert raised.value.reason == "memory_exhausted"
        flight_context.workspace.memory = MemoryBudget(1 << 20)
        assert raw_client.get(reference).equals(EVENTS)  # without read-ahead
    assert flight_context.workspace.memory.used_bytes == 0


def test_puts_of_one_user_leave_capacity_to_others(flight_context: FlightContext) -> None:
    """A limit of 4 concurrent calls allows 3 per tenant and 3 per user, so another tenant is served meanwhile."""
    handler = BlockingPutHandler()
    with running_server(with_limits(flight_context, puts=4), put=handler.put) as server:
        responses: list[str] = []

        def put(raw_client: RawClient) -> None:
            responses.append(pb.PutResult.FromString(raw_client.put([DESCRIPTOR_MESSAGE])[0]).app_metadata.decode())

        with RawClient(server, token()) as first_client, RawClient(server, token(tenant=OTHER_TENANT)) as second_client:
            threads = [threading.Thread(target=put, args=(first_client,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for _ in range(3):
                assert handler.started.acquire(timeout=TIMEOUT_SECONDS)
            threads.append(threading.Thread(target=put, args=(second_client,)))
            threads[-1].start()
            assert handler.started.acquire(timeout=TIMEOUT_SECONDS)
            handler.release()
            for thread in threads:
                thread.join(TIMEOUT_SECONDS)
    assert responses == ["done"] * 7  # calls over the limit have waited


def test_calls_of_one_user_leave_capacity_to_other_users(flight_context: FlightContext) -> None:
    """A limit of 16 calls allows 12 per tenant and 9 per user."""
    handler = BlockingPutHandler()
    with running_server(with_limits(flight_context, streams=16), put=handler.put) as server:
        streams = InterruptedStreams(
            server.address, [(InterruptedStream([DESCRIPTOR_MESSAGE]), None) for _ in range(8)]
        )
        try:
            with RawClient(server, token()) as ada, RawClient(server, token(user="bob")) as bob:
                ninth_call = ada.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")(
                    iter(InterruptedStream([DESCRIPTOR_MESSAGE])), metadata=_bearer(), timeout=TIMEOUT_SECONDS
                )
                for _ in range(9):
                    assert handler.started.acquire(timeout=TIMEOUT_SECONDS)
                with pytest.raises(CallRejected) as raised:
                    ada.do_action("list_schemas")
                assert raised.value.message == "The limit of 9 concurrent calls is reached. Retry later"
                assert bob.do_action("list_schemas") == {"schemas": ["analytics"]}
                ninth_call.cancel()
        finally:
            streams.cancel()
            streams.close()


def test_put_of_viewer_is_rejected_before_its_descriptor(flight_context: FlightContext) -> None:
    with running_server(flight_context) as server, RawClient(server) as raw_client:
        idle_stream = InterruptedStream([])
        metadata = [("authorization", f"Bearer {token(Role.VIEWER)}")]
        with pytest.raises(grpc.RpcError) as raised:
            list(
                raw_client.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")(
                    iter(idle_stream), metadata=metadata, timeout=TIMEOUT_SECONDS
                )
            )
        idle_stream.released.set()
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_idle_put_ends_after_idle_time(flight_context: FlightContext) -> None:
    assert FlightLimits().idle_seconds == 60
    with running_server(with_limits(flight_context, idle_seconds=0.1)) as server, RawClient(server) as raw_client:
        idle_stream = InterruptedStream([DESCRIPTOR_MESSAGE, ipc_messages.encode_schema(NUMBERS.schema)])
        with pytest.raises(grpc.RpcError) as raised:
            list(
                raw_client.channel.stream_stream(f"/{SERVICE_NAME}/DoPut")(
                    iter(idle_stream), metadata=_bearer(), timeout=TIMEOUT_SECONDS
                )
            )
        idle_stream.released.set()
        assert to_call_rejected(raised.value).reason == "stream_idle"
