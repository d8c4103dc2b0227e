"""ListFlights, GetFlightInfo, GetSchema and DoGet with the raw client and with pyarrow."""

import json
import threading
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from flight.conftest import EVENTS
from flight.raw_client import (
    OTHER_TENANT,
    CallRejected,
    RawClient,
    command_descriptor,
    connect_pyarrow,
    path_descriptor,
    token,
)
from penstock.core.caller import Role
from penstock.core.names import DatasetName
from penstock.errors import Unavailable
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from penstock.service.datasets import read
from penstock.storage import scan

TABLE_REFERENCE = {"schema_name": "analytics", "table_name": "events"}
EVENTS_WITH_IDS = EVENTS.append_column(pa.field("rowid", pa.int64(), nullable=False), pa.array([1, 2, 3, 4, 5]))


def ticket(**members: Any) -> fl.Ticket:
    return fl.Ticket(json.dumps({**TABLE_REFERENCE, **members}))


READ_CASES: list[tuple[dict[str, Any], pa.Table]] = [
    ({}, EVENTS),
    ({"version": 1}, EVENTS.slice(0, 3)),
    ({"rowid": True}, EVENTS_WITH_IDS),
    ({"columns": ["word"]}, EVENTS.select(["word"])),
    ({"columns": ["word", "id"], "rowid": True}, EVENTS_WITH_IDS.select(["word", "id", "rowid"])),
    ({"filter": "id > 2 AND word IS NOT NULL"}, EVENTS.slice(3)),
    ({"filter": "id > 3", "columns": ["word"], "rowid": True, "version": 2}, EVENTS_WITH_IDS.slice(3).select(["word", "rowid"])),
    ({"filter": "id > 99"}, EVENTS.slice(0, 0)),
    ({"columns": [], "rowid": True}, EVENTS_WITH_IDS.select(["rowid"])),
    ({"columns": [], "rowid": True, "filter": "word = 'four'"}, EVENTS_WITH_IDS.slice(3, 1).select(["rowid"])),
    ({"filter": "rowid >= 2 AND rowid < 5 AND id <> 3", "columns": ["id"]}, EVENTS.take([1, 3]).select(["id"])),
    ({"filter": "rowid IN (5, 1, 99)", "rowid": True}, EVENTS_WITH_IDS.take([0, 4])),
    ({"filter": "rowid = 4 OR id = 1"}, EVENTS.take([0, 3])),
    ({"filter": "rowid < -1"}, EVENTS.slice(0, 0)),
    ({"filter": "rowid > 1.5 AND rowid < 3.5", "version": 1}, EVENTS.slice(1, 2)),
    ({"schema_name": "ANALYTICS", "table_name": "Events"}, EVENTS),
]  # fmt: skip


@pytest.mark.parametrize(("members", "expected"), READ_CASES, ids=[str(members) for members, _ in READ_CASES])
def test_do_get_returns_rows_to_every_client(
    server: FlightServer, raw_client: RawClient, members: dict[str, Any], expected: pa.Table
) -> None:
    rows = raw_client.get({**TABLE_REFERENCE, **members})
    assert rows.schema.equals(expected.schema)
    assert rows.equals(expected)
    client, options = connect_pyarrow(server, token())
    with client:
        assert client.do_get(ticket(**members), options).read_all().equals(expected)
        result = client.get_schema(fl.FlightDescriptor.for_command(json.dumps({**TABLE_REFERENCE, **members})), options)
        assert result.schema.equals(expected.schema)


def test_rowid_filter_opens_only_files_of_these_rows(lake: Lake) -> None:
    workspace, events = lake._workspace, read.find(lake._workspace, lake.caller, DatasetName("analytics", "events"))
    for where, count in (("rowid = 2", 1), ("rowid >= 4", 1), ("rowid > 9", 0), ("rowid > 2 AND id < 9", 2)):
        assert len(read.files(workspace, lake.caller, events, where)) == count, where


def test_rowid_filter_finds_updated_rows(raw_client: RawClient, lake: Lake) -> None:
    events = lake.dataset("analytics.events")
    events.merge(pa.table({"id": [2], "word": ["TWO"]}, EVENTS.schema), "id", "upsert")
    assert raw_client.get({**TABLE_REFERENCE, "filter": "rowid = 2"}).to_pylist() == [{"id": 2, "word": "TWO"}]


def test_flight_info_ticket_reads_described_rows(server: FlightServer, lake: Lake) -> None:
    client, options = connect_pyarrow(server, token())
    with client:
        info = client.get_flight_info(fl.FlightDescriptor.for_path("analytics", "events"), options)
        lake.dataset("analytics.events").append(EVENTS)  # the ticket pins the described version
        [endpoint] = info.endpoints
        assert (info.total_records, endpoint.locations) == (5, [])
        assert info.schema.equals(EVENTS.schema)
        assert client.do_get(endpoint.ticket, options).read_all().equals(EVENTS)
        request = fl.FlightDescriptor.for_command(json.dumps({**TABLE_REFERENCE, "filter": "id = 1", "rowid": True}))
        info = client.get_flight_info(request, options)
        assert (info.total_records, info.schema.names) == (-1, ["id", "word", "rowid"])
        assert client.do_get(info.endpoints[0].ticket, options).read_all().column("rowid").to_pylist() == [1, 6]


def test_list_flights_returns_every_table(server: FlightServer, raw_client: RawClient, lake: Lake) -> None:
    lake.create("shop.orders", schema=pa.schema([("x", pa.int8())]))
    infos = [pb.FlightInfo.FromString(item) for item in raw_client.call_stream("ListFlights", pb.Criteria())]
    assert [list(item.flight_descriptor.path) for item in infos] == [["analytics", "events"], ["shop", "orders"]]
    assert [item.total_records for item in infos] == [5, 0]
    assert raw_client.get(infos[0].endpoint[0].ticket.ticket).equals(EVENTS)
    client, options = connect_pyarrow(server, token())
    with client:
        assert [info.schema for info in client.list_flights(options=options)] == [
            EVENTS.schema,
            pa.schema([("x", pa.int8())]),
        ]


INVALID_READS: list[tuple[dict[str, Any], str, str]] = [
    ({"schema_name": "nope"}, "NOT_FOUND", "schema 'nope' not found"),
    ({"schema_name": "no schema's name"}, "NOT_FOUND", 'schema "no schema\'s name" not found'),
    ({"table_name": "nope"}, "NOT_FOUND", "table 'analytics.nope' not found"),
    ({"table_name": "no name"}, "NOT_FOUND", "table 'analytics.no name' not found"),
    ({"version": 9}, "NOT_FOUND", "Version 9 of analytics.events does not exist. The newest version is 2"),
    ({"columns": ["x"]}, "INVALID_ARGUMENT", "Column 'x' not found. analytics.events has id, word"),
    ({"columns": []}, "INVALID_ARGUMENT", "The list of columns is empty. Name at least one column, or omit the list to read all columns"),
    ({"filter": "id >"}, "INVALID_ARGUMENT", ""),
    ({"table_name": "bare", "filter": "rowid = 1"}, "INVALID_ARGUMENT", "Column 'rowid' not found. The dataset has id, word"),
    ({"table_name": "bare", "rowid": True}, "FAILED_PRECONDITION", "Dataset analytics.bare has no row ids"),
    ({"extra": 1}, "INVALID_ARGUMENT", "Unknown member 'extra' in the"),
]  # fmt: skip
CODES: dict[str, tuple[type[Exception], str]] = {
    "NOT_FOUND": (pa.ArrowKeyError, "not found error"),
    "INVALID_ARGUMENT": (pa.ArrowInvalid, "invalid argument error"),
    "FAILED_PRECONDITION": (pa.ArrowException, "precondition"),
}


@pytest.mark.parametrize(
    ("members", "code", "message"), INVALID_READS, ids=[str(members) for members, *_ in INVALID_READS]
)
def test_invalid_read_returns_same_error_from_every_method(
    server: FlightServer, raw_client: RawClient, lake: Lake, members: dict[str, Any], code: str, message: str
) -> None:
    lake.create("analytics.bare", EVENTS, row_ids=False)
    request = {**TABLE_REFERENCE, **members}
    for call in (
        lambda: raw_client.get(request),
        lambda: raw_client.call_unary("GetFlightInfo", command_descriptor(**request)),
        lambda: raw_client.call_unary("GetSchema", command_descriptor(**request)),
    ):
        with pytest.raises(CallRejected) as raised:
            call()
        assert raised.value.code == code
        assert raised.value.message.startswith(message)
    error_class, client_message = CODES[code]
    client, options = connect_pyarrow(server, token())
    with client, pytest.raises(error_class) as client_error:
        client.do_get(fl.Ticket(json.dumps(request)), options).read_all()
    assert message in str(client_error.value)
    assert client_message in str(client_error.value) or code == "FAILED_PRECONDITION"


def test_path_descriptor_equals_command_descriptor(raw_client: RawClient) -> None:
    assert raw_client.call_unary("GetSchema", path_descriptor("analytics", "events")) == raw_client.call_unary(
        "GetSchema", command_descriptor(**TABLE_REFERENCE)
    )
    with pytest.raises(CallRejected) as raised:
        raw_client.call_unary("GetFlightInfo", path_descriptor("analytics"))
    assert (raised.value.code, raised.value.reason) == ("INVALID_ARGUMENT", "missing_table")


def test_list_flights_rejects_criteria(raw_client: RawClient) -> None:
    with pytest.raises(CallRejected) as raised:
        raw_client.call_stream("ListFlights", pb.Criteria(expression=b"x"))
    assert (raised.value.code, raised.value.reason) == ("INVALID_ARGUMENT", "unknown_criteria")


@pytest.mark.parametrize("method", ["GetFlightInfo", "GetSchema"])
def test_invalid_protobuf_request_is_rejected(raw_client: RawClient, method: str) -> None:
    with pytest.raises(CallRejected) as raised:
        raw_client.call_unary(method, b"\xff\xff")
    assert (raised.value.code, raised.value.message) == (
        "INVALID_ARGUMENT",
        "The request is not a valid FlightDescriptor message",
    )


def test_read_of_other_tenant_is_not_found(raw_client: RawClient) -> None:
    other_tenant = raw_client.as_caller(tenant=OTHER_TENANT)
    assert other_tenant.call_stream("ListFlights", pb.Criteria()) == []
    assert other_tenant.do_action("list_schemas") == {"schemas": []}
    assert other_tenant.do_action("list_tables") == {"tables": []}
    for call in (
        lambda: other_tenant.get(TABLE_REFERENCE),
        lambda: other_tenant.call_unary("GetFlightInfo", path_descriptor("analytics", "events")),
        lambda: other_tenant.do_action("drop_table", TABLE_REFERENCE),
        lambda: other_tenant.do_action("list_tables", {"schema_name": "analytics"}),
    ):
        with pytest.raises(CallRejected) as raised:
            call()
        assert (raised.value.code, raised.value.message) == ("NOT_FOUND", "schema 'analytics' not found")


def test_viewer_can_read(raw_client: RawClient) -> None:
    assert raw_client.as_caller(Role.VIEWER).get(TABLE_REFERENCE).equals(EVENTS)


def test_open_read_stream_keeps_its_snapshot(raw_client: RawClient, lake: Lake) -> None:
    table = pa.table(
        {"n": pa.arange(0, 2_000_000), "x": ["a longer text"] * 2_000_000}
    )  # more than a flow control window
    lake.create("analytics.long", table)
    stream = raw_client.open_stream(
        "DoGet", pb.Ticket(ticket=json.dumps({**TABLE_REFERENCE, "table_name": "long"}).encode())
    )
    first = [next(stream), next(stream)]
    lake.dataset("analytics.long").append(table.slice(0, 10))
    raw_client.do_action("drop_table", {**TABLE_REFERENCE, "table_name": "long"})
    schema, *rest = (flight_data.decode(message) for message in (*first, *stream))
    batches = [ipc_messages.decode_batch(item, ipc_messages.decode_schema(schema), 1 << 30, 0) for item in rest]
    assert pa.Table.from_batches(batches).equals(table)
    assert max(len(item.body) for item in rest) < 4 << 20  # the default limit of clients


def test_do_get_splits_uneven_rows_into_similar_messages() -> None:
    texts = ["small"] * 1_000 + ["x" * (1 << 20)] * 9 + ["small"] * 1_000
    messages = [
        flight_data.decode(item)
        for item in ipc_messages.encode_batch(pa.RecordBatch.from_pydict({"t": texts}), 1 << 30)
    ]
    schema = pa.schema([("t", pa.string())])
    rows = pa.Table.from_batches([ipc_messages.decode_batch(item, schema, 1 << 30, 0) for item in messages])
    assert rows.column("t").to_pylist() == texts
    assert max(len(item.body) for item in messages) < 4 << 20


def test_do_get_with_unreadable_file_hides_its_path(
    raw_client: RawClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unavailable(
            "storage_failed", "the file system said: Input/output error (/data/x.parquet)", path="/data/x"
        )

    monkeypatch.setattr(scan, "cast_batch", fail)
    with pytest.raises(CallRejected) as raised:
        raw_client.get({**TABLE_REFERENCE, "rowid": True})
    assert raised.value == CallRejected(
        "UNAVAILABLE", "A file could not be read or written. Try again later", "storage_failed", {}
    )


def test_do_get_of_disconnected_client_releases_everything(
    raw_client: RawClient, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    lake.create("analytics.long", pa.table({"n": pa.arange(0, 2_000_000)}))
    request = pb.Ticket(ticket=json.dumps({**TABLE_REFERENCE, "table_name": "long"}).encode())
    ended = threading.Event()
    for _ in range(5):
        stream = raw_client.open_stream("DoGet", request)
        next(stream)
        stream.add_callback(ended.set)
        stream.cancel()
        assert ended.wait(30)
    assert raw_client.get(TABLE_REFERENCE).equals(EVENTS)
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


GROWN_READS: list[dict[str, Any]] = [
    {},
    {"columns": ["late"]},
    {"columns": ["late", "n"], "where": "n > 70000 AND n < 70010"},
    {"where": "late IS NULL AND n < 5"},
    {"where": "late = 7"},
    {"columns": ["x"], "where": "n = 199999 OR late = 9"},
]


@pytest.mark.parametrize("options", GROWN_READS, ids=str)
def test_do_get_without_read_ahead_returns_same_rows(lake: Lake, options: dict[str, Any]) -> None:
    """Read files of several row groups, some older than a column or a wider type."""
    table = pa.table({"n": pa.array(range(200_000), pa.int32()), "x": ["text"] * 200_000})
    dataset = lake.create("analytics.grown", table)
    dataset.alter(add=pa.schema([("late", pa.int64())]), widen={"n": pa.int64()})
    dataset.append(pa.table({"n": [1, 2], "x": ["a", None], "late": [7, 9]}))
    workspace, caller = lake._workspace, lake.caller
    snapshot = read.find(workspace, caller, DatasetName("analytics", "grown"))
    expected, rows = (
        read.scan_rows(workspace, caller, snapshot, read_ahead=read_ahead, **options).read_all()
        for read_ahead in (True, False)
    )
    assert rows.num_rows
    assert rows.equals(expected)
