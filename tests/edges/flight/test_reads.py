"""Tables are listed, described and streamed out, to pyarrow's client and to one that knows nothing but gRPC."""

import json
import threading
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from edges.flight.conftest import EVENTS
from edges.flight.stage import OTHER, Raw, Refused, arrows, command, path, token
from penstock.core.caller import Role
from penstock.core.names import DatasetName
from penstock.errors import Unavailable
from penstock.flight import flight_pb2 as pb
from penstock.flight import ipc_messages as messages
from penstock.flight import flight_data as wire
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from penstock.service.datasets import read
from penstock.storage import scan

AT = {"schema_name": "analytics", "table_name": "events"}
WITH_IDS = EVENTS.append_column(pa.field("rowid", pa.int64(), nullable=False), pa.array([1, 2, 3, 4, 5]))


def ticket(**more: Any) -> fl.Ticket:
    return fl.Ticket(json.dumps({**AT, **more}))


ASKED: list[tuple[dict[str, Any], pa.Table]] = [
    ({}, EVENTS),
    ({"version": 1}, EVENTS.slice(0, 3)),
    ({"rowid": True}, WITH_IDS),
    ({"columns": ["word"]}, EVENTS.select(["word"])),
    ({"columns": ["word", "id"], "rowid": True}, WITH_IDS.select(["word", "id", "rowid"])),
    ({"filter": "id > 2 AND word IS NOT NULL"}, EVENTS.slice(3)),
    ({"filter": "id > 3", "columns": ["word"], "rowid": True, "version": 2}, WITH_IDS.slice(3).select(["word", "rowid"])),
    ({"filter": "id > 99"}, EVENTS.slice(0, 0)),
    ({"schema_name": "ANALYTICS", "table_name": "Events"}, EVENTS),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "expected"), ASKED, ids=[str(asked) for asked, _ in ASKED])
def test_a_ticket_brings_its_rows_to_any_client(
    server: FlightServer, raw: Raw, asked: dict[str, Any], expected: pa.Table
) -> None:
    there = raw.get({**AT, **asked})
    assert there.schema.equals(expected.schema)
    assert there.equals(expected)
    client, options = arrows(server, token())
    with client:
        assert client.do_get(ticket(**asked), options).read_all().equals(expected)
        described = client.get_schema(fl.FlightDescriptor.for_command(json.dumps({**AT, **asked})), options)
        assert described.schema.equals(expected.schema)


def test_a_description_leads_to_the_rows_that_it_tells_of(server: FlightServer, lake: Lake) -> None:
    client, options = arrows(server, token())
    with client:
        info = client.get_flight_info(fl.FlightDescriptor.for_path("analytics", "events"), options)
        lake.dataset("analytics.events").append(EVENTS)  # the ticket is for what was described
        [endpoint] = info.endpoints
        assert (info.total_records, endpoint.locations) == (5, [])
        assert info.schema.equals(EVENTS.schema)
        assert client.do_get(endpoint.ticket, options).read_all().equals(EVENTS)
        asked = fl.FlightDescriptor.for_command(json.dumps({**AT, "filter": "id = 1", "rowid": True}))
        info = client.get_flight_info(asked, options)
        assert (info.total_records, info.schema.names) == (-1, ["id", "word", "rowid"])
        assert client.do_get(info.endpoints[0].ticket, options).read_all().column("rowid").to_pylist() == [1, 6]


def test_every_table_is_listed(server: FlightServer, raw: Raw, lake: Lake) -> None:
    lake.create("shop.orders", schema=pa.schema([("x", pa.int8())]))
    listed = [pb.FlightInfo.FromString(each) for each in raw.many("ListFlights", pb.Criteria())]
    assert [list(each.flight_descriptor.path) for each in listed] == [["analytics", "events"], ["shop", "orders"]]
    assert [each.total_records for each in listed] == [5, 0]
    assert raw.get(listed[0].endpoint[0].ticket.ticket).equals(EVENTS)
    client, options = arrows(server, token())
    with client:
        assert [info.schema for info in client.list_flights(options=options)] == [
            EVENTS.schema,
            pa.schema([("x", pa.int8())]),
        ]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"schema_name": "nope"}, "NOT_FOUND", "schema 'nope' not found"),
    ({"schema_name": "no schema's name"}, "NOT_FOUND", 'schema "no schema\'s name" not found'),
    ({"table_name": "nope"}, "NOT_FOUND", "table 'analytics.nope' not found"),
    ({"table_name": "no name"}, "NOT_FOUND", "table 'analytics.no name' not found"),
    ({"version": 9}, "NOT_FOUND", "version 9 of analytics.events does not exist; the newest is 2"),
    ({"columns": ["x"]}, "INVALID_ARGUMENT", "there is no column 'x'; analytics.events has id, word"),
    ({"columns": []}, "INVALID_ARGUMENT", "no column is asked for; name one or more, or none for all"),
    ({"filter": "id >"}, "INVALID_ARGUMENT", ""),
    ({"table_name": "bare", "rowid": True}, "FAILED_PRECONDITION", "analytics.bare keeps no row ids"),
    ({"extra": 1}, "INVALID_ARGUMENT", "'extra' is no member of the"),
]  # fmt: skip
CODES: dict[str, tuple[type[Exception], str]] = {
    "NOT_FOUND": (pa.ArrowKeyError, "not found error"),
    "INVALID_ARGUMENT": (pa.ArrowInvalid, "invalid argument error"),
    "FAILED_PRECONDITION": (pa.ArrowException, "precondition"),
}


@pytest.mark.parametrize(("asked", "code", "sentence"), REFUSED, ids=[str(asked) for asked, *_ in REFUSED])
def test_what_cannot_be_read_is_refused_in_words_wherever_it_is_asked(
    server: FlightServer, raw: Raw, lake: Lake, asked: dict[str, Any], code: str, sentence: str
) -> None:
    lake.create("analytics.bare", EVENTS, row_ids=False)
    wanted = {**AT, **asked}
    for ask in (
        lambda: raw.get(wanted),
        lambda: raw.one("GetFlightInfo", command(**wanted)),
        lambda: raw.one("GetSchema", command(**wanted)),
    ):
        with pytest.raises(Refused) as refusal:
            ask()
        assert refusal.value.code == code
        assert refusal.value.sentence.startswith(sentence)
    kind, said = CODES[code]
    client, options = arrows(server, token())
    with client, pytest.raises(kind) as told:
        client.do_get(fl.Ticket(json.dumps(wanted)), options).read_all()
    assert sentence in str(told.value)
    assert said in str(told.value) or code == "FAILED_PRECONDITION"


def test_a_path_is_as_good_as_a_command(raw: Raw) -> None:
    assert raw.one("GetSchema", path("analytics", "events")) == raw.one("GetSchema", command(**AT))
    with pytest.raises(Refused) as refusal:
        raw.one("GetFlightInfo", path("analytics"))
    assert (refusal.value.code, refusal.value.reason) == ("INVALID_ARGUMENT", "no_table")


def test_flights_are_listed_without_criteria(raw: Raw) -> None:
    with pytest.raises(Refused) as refusal:
        raw.many("ListFlights", pb.Criteria(expression=b"x"))
    assert (refusal.value.code, refusal.value.reason) == ("INVALID_ARGUMENT", "unknown_criteria")


@pytest.mark.parametrize("method", ["GetFlightInfo", "GetSchema"])
def test_what_is_no_message_is_refused(raw: Raw, method: str) -> None:
    with pytest.raises(Refused) as refusal:
        raw.one(method, b"\xff\xff")
    assert (refusal.value.code, refusal.value.sentence) == (
        "INVALID_ARGUMENT",
        "this is no FlightDescriptor message that can be read",
    )


def test_other_tenants_see_nothing(raw: Raw) -> None:
    stranger = raw.as_(tenant=OTHER)
    assert stranger.many("ListFlights", pb.Criteria()) == []
    assert stranger.act("list_schemas") == {"schemas": []}
    assert stranger.act("list_tables") == {"tables": []}
    for ask in (
        lambda: stranger.get(AT),
        lambda: stranger.one("GetFlightInfo", path("analytics", "events")),
        lambda: stranger.act("drop_table", AT),
        lambda: stranger.act("list_tables", {"schema_name": "analytics"}),
    ):
        with pytest.raises(Refused) as refusal:
            ask()
        assert (refusal.value.code, refusal.value.sentence) == ("NOT_FOUND", "schema 'analytics' not found")


def test_a_viewer_may_read(raw: Raw) -> None:
    assert raw.as_(Role.VIEWER).get(AT).equals(EVENTS)


def test_a_stream_that_is_held_open_gets_its_snapshot_while_the_table_changes(raw: Raw, lake: Lake) -> None:
    table = pa.table({"n": pa.arange(0, 2_000_000), "x": ["a longer text"] * 2_000_000})  # more than a window holds
    lake.create("analytics.long", table)
    stream = raw.stream("DoGet", pb.Ticket(ticket=json.dumps({**AT, "table_name": "long"}).encode()))
    first = [next(stream), next(stream)]
    lake.dataset("analytics.long").append(table.slice(0, 10))
    raw.act("drop_table", {**AT, "table_name": "long"})
    schema, *rest = (wire.decode(message) for message in (*first, *stream))
    batches = [messages.batch_of(each, messages.schema_of(schema), 1 << 30, 0) for each in rest]
    assert pa.Table.from_batches(batches).equals(table)
    assert max(len(each.body) for each in rest) < 4 << 20  # what clients take unless told otherwise


def test_rows_of_very_different_sizes_are_sent_in_messages_of_a_size() -> None:
    texts = ["small"] * 1_000 + ["x" * (1 << 20)] * 9 + ["small"] * 1_000
    sent = [wire.decode(each) for each in messages.of_batch(pa.RecordBatch.from_pydict({"t": texts}), 1 << 30)]
    schema = pa.schema([("t", pa.string())])
    there = pa.Table.from_batches([messages.batch_of(each, schema, 1 << 30, 0) for each in sent])
    assert there.column("t").to_pylist() == texts
    assert max(len(each.body) for each in sent) < 4 << 20


def test_a_file_that_fails_in_the_middle_of_a_stream_is_told_without_its_place(
    raw: Raw, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unavailable(
            "storage_failed", "the file system said: Input/output error (/data/x.parquet)", path="/data/x"
        )

    monkeypatch.setattr(scan, "conform", fail)
    with pytest.raises(Refused) as refusal:
        raw.get({**AT, "rowid": True})
    assert refusal.value == Refused(
        "UNAVAILABLE", "a file could not be read or written; try again later", "storage_failed", {}
    )


def test_a_client_that_goes_away_leaves_no_trace(raw: Raw, lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    lake.create("analytics.long", pa.table({"n": pa.arange(0, 2_000_000)}))
    asked = pb.Ticket(ticket=json.dumps({**AT, "table_name": "long"}).encode())
    ended = threading.Event()
    for _ in range(5):
        stream = raw.stream("DoGet", asked)
        next(stream)
        stream.add_callback(ended.set)
        stream.cancel()
        assert ended.wait(30)
    assert raw.get(AT).equals(EVENTS)
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


GROWN: list[dict[str, Any]] = [
    {},
    {"columns": ["late"]},
    {"columns": ["late", "n"], "where": "n > 70000 AND n < 70010"},
    {"where": "late IS NULL AND n < 5"},
    {"where": "late = 7"},
    {"columns": ["x"], "where": "n = 199999 OR late = 9"},
]


@pytest.mark.parametrize("asked", GROWN, ids=str)
def test_rows_that_are_read_when_asked_for_are_those_that_are_read_ahead(lake: Lake, asked: dict[str, Any]) -> None:
    """Over files of several row groups, some of them older than a column, or than a wider type."""
    table = pa.table({"n": pa.array(range(200_000), pa.int32()), "x": ["text"] * 200_000})
    grown = lake.create("analytics.grown", table)
    grown.alter(add=pa.schema([("late", pa.int64())]), widen={"n": pa.int64()})
    grown.append(pa.table({"n": [1, 2], "x": ["a", None], "late": [7, 9]}))
    ws, caller = lake.workspace, lake.caller
    snapshot = read.find(ws, caller, DatasetName("analytics", "grown"))
    ahead, pulled = (read.rows(ws, caller, snapshot, ahead=way, **asked).read_all() for way in (True, False))
    assert pulled.num_rows
    assert pulled.equals(ahead)
