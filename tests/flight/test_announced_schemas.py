"""Inserts with the schema that create_table received: types are stored as other types, and values are cast."""

import base64
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from flight.flight_server import run_flight_server
from flight.raw_client import CallRejected, command_descriptor
from flight.test_put_stream import encode_stream
from penstock.flight import flight_data
from penstock.flight import flight_pb2 as pb
from support.workspaces import WorkspaceFixture

TYPES: list[tuple[pa.DataType, Any]] = [
    (pa.int8(), -1),
    (pa.uint8(), 255),
    (pa.uint16(), 65_535),
    (pa.uint32(), 2**32 - 1),
    (pa.uint64(), 2**64 - 1),
    (pa.float64(), 1.5),
    (pa.large_string(), "a"),
    (pa.string_view(), "a string of more than 12 bytes"),
    (pa.large_binary(), b"a"),
    (pa.binary_view(), b"a"),
    (pa.binary(3), b"abc"),
    (pa.date64(), date(2020, 1, 2)),
    (pa.timestamp("s"), datetime(2020, 1, 2)),
    (pa.timestamp("ns"), datetime(2020, 1, 2, 3, 4, 5, 6)),
    (pa.decimal32(5, 2), Decimal("1.25")),
    (pa.decimal64(10, 2), Decimal("1.25")),
    (pa.decimal256(38, 2), Decimal("1.25")),
    (pa.large_list(pa.uint8()), [1, 2]),
    (pa.list_(pa.uint8(), 2), [1, 2]),
    (pa.list_view(pa.int64()), [1, 2]),
    (pa.large_list_view(pa.large_string()), ["a", None]),
    (pa.struct([("a", pa.uint8()), ("b", pa.large_string())]), {"a": 1, "b": "x"}),
]
SCHEMA = pa.schema([(f"c{n}", data_type) for n, (data_type, _) in enumerate(TYPES)])
TABLE_REFERENCE = {"schema_name": "shop", "table_name": "announced"}


def insert_messages(rows: pa.Table, **members: Any) -> list[bytes]:
    descriptor = command_descriptor(**TABLE_REFERENCE, **members).SerializeToString()
    return [flight_data.encode(b"", descriptor=descriptor), *encode_stream(rows)]


def test_insert_and_update_with_announced_schema_are_accepted(sqlite_workspace: WorkspaceFixture) -> None:
    rows = pa.table([pa.array([value, None], data_type) for data_type, value in TYPES], schema=SCHEMA)
    with run_flight_server(sqlite_workspace) as flight_server:
        response = flight_server.raw_client.do_action(
            "create_table", {**TABLE_REFERENCE, "arrow_schema": base64.b64encode(SCHEMA.serialize()).decode()}
        )
        stored = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(response["arrow_schema"])))
        for members in ({"operation": "insert", "returning": True}, {"operation": "update", "row_ids": [1, 2]}):
            [put_result] = flight_server.raw_client.put(insert_messages(rows, **members))
            result = msgpack.unpackb(pb.PutResult.FromString(put_result).app_metadata)
            assert result["affected_rows"] == 2
            if result["returning_data"]:
                returned = pa.ipc.open_stream(result["returning_data"]).read_all()
                assert returned.schema.remove(len(TYPES)).equals(stored)
        table = flight_server.raw_client.get(TABLE_REFERENCE)
        assert table.schema.equals(stored)
        assert table.to_pylist() == rows.to_pylist()


def test_insert_of_value_that_does_not_fit_is_rejected(sqlite_workspace: WorkspaceFixture) -> None:
    schema = pa.schema([("at", pa.timestamp("ns"))])
    with run_flight_server(sqlite_workspace) as flight_server:
        flight_server.raw_client.do_action(
            "create_table", {**TABLE_REFERENCE, "arrow_schema": base64.b64encode(schema.serialize()).decode()}
        )
        with pytest.raises(CallRejected) as raised:
            flight_server.raw_client.put(
                insert_messages(
                    pa.table([pa.array([1], pa.int64()).cast(pa.timestamp("ns"))], schema=schema), operation="insert"
                )
            )
        assert (raised.value.code, raised.value.reason) == ("INVALID_ARGUMENT", "value_does_not_fit")
