"""Malformed streams: the server survives and returns clean errors."""

from datetime import datetime
from decimal import Decimal

import pyarrow as pa

from flight.conftest import EVENTS
from flight.flight_server import open_house
from flight.message_fuzzer import fuzz
from flight.raw_client import Raw, command
from flight.test_put_stream import packed
from penstock.flight import flight_data, ipc_messages
from support.workspaces import WorkspaceFixture

AT = {"schema_name": "analytics", "table_name": "events"}
WHAT = command(operation="insert", **AT).SerializeToString()
ALL_KINDS = pa.table(
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


def sound(table: pa.Table, **options: object) -> list[bytes]:
    schema, *batches = packed(table, 20, **options)
    return [flight_data.encode(flight_data.decode(schema).header, descriptor=WHAT), *batches]


STREAMS = [
    sound(EVENTS),
    sound(ALL_KINDS),
    sound(ALL_KINDS, compression="lz4"),
    sound(ALL_KINDS, compression="zstd"),
    [flight_data.encode(b"", descriptor=WHAT), ipc_messages.encode_schema(EVENTS.schema), *sound(EVENTS)[1:]],
    sound(pa.table({"word": pa.array(["a", "b", "a"] * 20).dictionary_encode()})),
]


def test_malformed_streams_are_rejected_and_server_survives(raw: Raw, soak: bool) -> None:
    response = fuzz(raw, STREAMS, 10_000 if soak else 400)
    assert response["INVALID_ARGUMENT"] > sum(response.values()) / 3  # else the mutations would mutate nothing
    assert response["OK"]
    assert raw.get(AT).equals(EVENTS)


def test_table_is_unchanged_after_malformed_writes(sqlite_workspace: WorkspaceFixture, soak: bool) -> None:
    with open_house(sqlite_workspace) as house:
        events = house.lake.create("analytics.events", EVENTS)
        response = fuzz(house.raw, [sound(EVENTS), STREAMS[4]], 10_000 if soak else 200, seed=2)
        assert response["OK"]
        rows = house.raw.get({**AT, "rowid": True})
        assert rows.num_rows == events.num_rows
        assert sorted(rows["rowid"].to_pylist()) == list(range(1, rows.num_rows + 1))
        house.raw.put(sound(EVENTS))
        assert events.num_rows == rows.num_rows + EVENTS.num_rows
