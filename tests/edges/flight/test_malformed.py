"""Whatever comes in, the server stays up, and every answer is clean."""

from datetime import datetime
from decimal import Decimal

import pyarrow as pa

from edges.flight.conftest import EVENTS
from edges.flight.fuzz import fuzz
from edges.flight.service import open_house
from edges.flight.stage import Raw, command
from edges.flight.test_incoming import packed
from penstock.flight import ipc_messages as messages
from penstock.flight import flight_data as wire
from workspaces import Place

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
    return [wire.encode(wire.decode(schema).header, descriptor=WHAT), *batches]


STREAMS = [
    sound(EVENTS),
    sound(ALL_KINDS),
    sound(ALL_KINDS, compression="lz4"),
    sound(ALL_KINDS, compression="zstd"),
    [wire.encode(b"", descriptor=WHAT), messages.of_schema(EVENTS.schema), *sound(EVENTS)[1:]],
    sound(pa.table({"word": pa.array(["a", "b", "a"] * 20).dictionary_encode()})),
]


def test_malformed_streams_are_refused_and_nothing_breaks(raw: Raw, soak: bool) -> None:
    told = fuzz(raw, STREAMS, 10_000 if soak else 400)
    assert told["INVALID_ARGUMENT"] > sum(told.values()) / 3  # else the mutations would mutate nothing
    assert told["OK"]
    assert raw.get(AT).equals(EVENTS)


def test_a_table_outlives_whatever_is_sent_to_it(embedded: Place, soak: bool) -> None:
    with open_house(embedded) as house:
        events = house.lake.create("analytics.events", EVENTS)
        told = fuzz(house.raw, [sound(EVENTS), STREAMS[4]], 10_000 if soak else 200, seed=2)
        assert told["OK"]
        rows = house.raw.get({**AT, "rowid": True})
        assert rows.num_rows == events.num_rows
        assert sorted(rows["rowid"].to_pylist()) == list(range(1, rows.num_rows + 1))
        house.raw.put(sound(EVENTS))
        assert events.num_rows == rows.num_rows + EVENTS.num_rows
