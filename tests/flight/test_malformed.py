"""Malformed streams: the server survives and returns clean errors."""

from datetime import datetime
from decimal import Decimal

import pyarrow as pa

from flight.conftest import EVENTS
from flight.flight_server import run_flight_server
from flight.message_fuzzer import fuzz
from flight.raw_client import RawClient, command_descriptor
from flight.test_put_stream import encode_stream
from penstock.flight import flight_data, ipc_messages
from support.workspaces import WorkspaceFixture

TABLE_REFERENCE = {"schema_name": "analytics", "table_name": "events"}
INSERT_COMMAND = command_descriptor(operation="insert", **TABLE_REFERENCE).SerializeToString()
ALL_TYPES = pa.table(
    {
        "flag": [True, None, False] * 20,
        "number": pa.array([1, 2, None] * 20, pa.int16()),
        "part": [0.5, None, float("nan")] * 20,
        "text": ["a", None, "a longer text " * 3] * 20,
        "view": pa.array(["a", None, "a longer text " * 3] * 20, pa.string_view()),
        "large": pa.array(["a", None, "ä"] * 20, pa.large_string()),
        "bytes": [b"", b"\0\xff", None] * 20,
        "money": [Decimal("1.20"), None, Decimal("-3.45")] * 20,
        "at": [datetime(2026, 1, 31), None, datetime(1, 1, 1)] * 20,
        "list": [[1, None], [], None] * 20,
        "struct": [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None] * 20,
        "fixed": pa.array([[1, 2], None, [3, 4]] * 20, pa.list_(pa.int8(), 2)),
        "map": pa.array([[("a", 1)], [], None] * 20, pa.map_(pa.string(), pa.int32())),
        "nothing": pa.nulls(60),
    }
)


def valid_stream(table: pa.Table, **options: object) -> list[bytes]:
    schema, *batches = encode_stream(table, 20, **options)
    return [flight_data.encode(flight_data.decode(schema).header, descriptor=INSERT_COMMAND), *batches]


STREAMS = [
    valid_stream(EVENTS),
    valid_stream(ALL_TYPES),
    valid_stream(ALL_TYPES, compression="lz4"),
    valid_stream(ALL_TYPES, compression="zstd"),
    [
        flight_data.encode(b"", descriptor=INSERT_COMMAND),
        ipc_messages.encode_schema(EVENTS.schema),
        *valid_stream(EVENTS)[1:],
    ],
    valid_stream(pa.table({"word": pa.array(["a", "b", "a"] * 20).dictionary_encode()})),
]


def test_malformed_streams_are_rejected_and_server_survives(raw_client: RawClient, soak: bool) -> None:
    outcomes = fuzz(raw_client, STREAMS, 10_000 if soak else 400)
    assert outcomes["INVALID_ARGUMENT"] > sum(outcomes.values()) / 3  # otherwise the mutations have no effect
    assert outcomes["OK"]
    assert raw_client.get(TABLE_REFERENCE).equals(EVENTS)


def test_table_is_unchanged_after_malformed_writes(sqlite_workspace: WorkspaceFixture, soak: bool) -> None:
    with run_flight_server(sqlite_workspace) as flight_server:
        events = flight_server.lake.create("analytics.events", EVENTS)
        outcomes = fuzz(flight_server.raw_client, [valid_stream(EVENTS), STREAMS[4]], 10_000 if soak else 200, seed=2)
        assert outcomes["OK"]
        rows = flight_server.raw_client.get({**TABLE_REFERENCE, "rowid": True})
        assert rows.num_rows == events.num_rows
        assert sorted(rows["rowid"].to_pylist()) == list(range(1, rows.num_rows + 1))
        flight_server.raw_client.put(valid_stream(EVENTS))
        assert events.num_rows == rows.num_rows + EVENTS.num_rows
