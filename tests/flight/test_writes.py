"""Inserts, updates and deletes over Flight: results and error messages."""

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight.flight_server import ROWS, FlightServerFixture, TableFixture, run_flight_server
from flight.paired_clients import (
    FlightTestClient,
    GrpcClient,
    PyArrowClient,
    put_messages,
    read_ipc_stream,
    split_batches,
)
from flight.raw_client import OTHER_TENANT, CallRejected, RawClient, token
from penstock.core.caller import Role
from penstock.flight import flight_data, ipc_messages
from penstock.flight.context import FlightLimits
from penstock.service.datasets import row_source
from penstock.service.workspace import WriteLimits
from support.workspaces import WorkspaceFixture

MAX_ROW_IDS, MAX_MESSAGE_BYTES, MAX_RETURNED_BYTES = 1_000, 1 << 20, 1 << 16
SCHEMA = ROWS.schema
NEW_ROWS = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
SCHEMA_WITH_ROW_ID = SCHEMA.append(pa.field("rowid", pa.int64(), nullable=False))
WRITE_RESULT = {"status": "success", "returning_data": None}


@pytest.fixture(scope="module")
def flight_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightServerFixture]:
    workspace = WorkspaceFixture.make(tmp_path_factory.mktemp("writes") / "workspace", None)
    with run_flight_server(
        workspace, FlightLimits(row_ids=MAX_ROW_IDS, message_bytes=MAX_MESSAGE_BYTES)
    ) as flight_server:
        flight_server.lake._workspace.limits = WriteLimits(returned_bytes=MAX_RETURNED_BYTES)
        yield flight_server


@pytest.fixture(scope="module")
def pyarrow_client(flight_server: FlightServerFixture) -> Iterator[PyArrowClient]:
    client = PyArrowClient(flight_server.address, token())
    yield client
    client.close()


@pytest.fixture(params=["gRPC", "pyarrow"])
def client(
    request: pytest.FixtureRequest, flight_server: FlightServerFixture, pyarrow_client: PyArrowClient
) -> FlightTestClient:
    return pyarrow_client if request.param == "pyarrow" else GrpcClient(flight_server.raw_client)


@pytest.fixture
def table(flight_server: FlightServerFixture) -> TableFixture:
    return flight_server.create_table()


def by_id(rows: pa.Table) -> dict[int, Any]:
    return dict(zip(rows["id"].to_pylist(), rows["word"].to_pylist(), strict=True))


def test_insert_is_visible_after_response(client: FlightTestClient, table: TableFixture) -> None:
    assert client.put(table.insert(), NEW_ROWS) == {**WRITE_RESULT, "affected_rows": 2}
    assert table.version == 2
    assert table.words_by_id() == {1: "one", 2: "two", 3: None, 4: "four", 5: "eight", 6: None}
    assert client.get({**table.reference, "rowid": True}).equals(table.dataset.to_arrow(row_ids=True))


def test_update_replaces_rows_by_position_of_id(client: FlightTestClient, table: TableFixture) -> None:
    assert client.put(table.update([4, 1]), NEW_ROWS) == {**WRITE_RESULT, "affected_rows": 2}
    assert table.version == 2
    assert {id: row["id"] for id, row in table.rows_by_id().items()} == {1: 9, 2: 2, 3: 3, 4: 8}
    assert table.words_by_id() == {1: None, 2: "two", 3: None, 4: "eight"}


def test_delete_returns_number_of_existing_rows(client: FlightTestClient, table: TableFixture) -> None:
    request = table.delete([3, 1, 3, 99, -1])
    assert client.do_action("delete", request) == {"status": "success", "affected_rows": 2}
    assert table.words_by_id() == {2: "two", 4: "four"}
    assert client.do_action("delete", request) == {"status": "success", "affected_rows": 0}
    assert table.version == 2, "a write without changes creates no version"


def test_row_ids_are_never_reused(client: FlightTestClient, table: TableFixture) -> None:
    client.do_action("delete", table.delete([1, 2, 3, 4]))
    client.put(table.insert(), NEW_ROWS)
    assert table.words_by_id() == {5: "eight", 6: None}


def test_returning_insert_and_update_returns_stored_rows(client: FlightTestClient, table: TableFixture) -> None:
    response = client.put(table.insert(returning=True), list(split_batches(NEW_ROWS, 1)))
    assert isinstance(response["returning_data"], bytes)
    returned = read_ipc_stream(response["returning_data"])
    assert returned.schema.equals(SCHEMA_WITH_ROW_ID)
    assert returned.combine_chunks().equals(NEW_ROWS.append_column(SCHEMA_WITH_ROW_ID.field("rowid"), pa.array([5, 6])))
    response = client.put(table.update([6, 2], returning=True), NEW_ROWS)
    returned = read_ipc_stream(response["returning_data"])
    assert returned.schema.equals(SCHEMA_WITH_ROW_ID)
    assert returned.to_pylist() == [{"id": 8, "word": "eight", "rowid": 6}, {"id": 9, "word": None, "rowid": 2}]
    assert response["affected_rows"] == 2


def test_returning_delete_returns_deleted_rows(client: FlightTestClient, table: TableFixture) -> None:
    response = client.do_action("delete", table.delete([4, 99, 2, 2], returning=True))
    assert isinstance(response["returning_data"], str)
    returned = read_ipc_stream(base64.b64decode(response["returning_data"], validate=True))
    assert returned.schema.equals(SCHEMA_WITH_ROW_ID)
    assert returned.to_pylist() == [{"id": 4, "word": "four", "rowid": 4}, {"id": 2, "word": "two", "rowid": 2}]
    response = client.do_action("delete", table.delete([4, 99], returning=True))
    assert (response["affected_rows"], read_ipc_stream(base64.b64decode(response["returning_data"])).num_rows) == (0, 0)


def test_returning_without_row_ids_has_no_rowid_column(
    client: FlightTestClient, flight_server: FlightServerFixture
) -> None:
    bare = flight_server.create_table(row_ids=False)
    returned = read_ipc_stream(client.put(bare.insert(returning=True), NEW_ROWS)["returning_data"])
    assert returned.equals(NEW_ROWS)
    assert bare.dataset.current().num_rows == 6


def test_returning_empty_insert_returns_no_rows(client: FlightTestClient, table: TableFixture) -> None:
    response = client.put(table.insert(returning=True), NEW_ROWS.slice(0, 0))
    returned = read_ipc_stream(response["returning_data"])
    assert (response["affected_rows"], returned.num_rows, returned.schema) == (0, 0, SCHEMA_WITH_ROW_ID)


@pytest.mark.parametrize("string_type", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("nullable", [True, False])
def test_insert_accepts_string_variants_and_nullability(
    client: FlightTestClient, table: TableFixture, string_type: pa.DataType, nullable: bool
) -> None:
    words = pa.array(["eight", "nine"]).cast(string_type)
    rows = pa.table(
        [NEW_ROWS["id"], words], pa.schema([("id", pa.int64()), pa.field("word", string_type, nullable=nullable)])
    )
    returned = read_ipc_stream(client.put(table.insert(returning=True), rows)["returning_data"])
    assert returned.schema.equals(SCHEMA_WITH_ROW_ID)
    client.put(table.update([1, 2]), rows)
    assert table.words_by_id() == {1: "eight", 2: "nine", 3: None, 4: "four", 5: "eight", 6: "nine"}


def test_insert_accepts_nested_string_variants(client: FlightTestClient, flight_server: FlightServerFixture) -> None:
    stored = pa.schema([("tags", pa.list_(pa.string())), ("who", pa.struct([("name", pa.string())]))])
    sent = pa.schema([("tags", pa.list_(pa.large_string())), ("who", pa.struct([("name", pa.large_string())]))])
    values = [{"tags": ["a", None], "who": {"name": "x"}}, {"tags": None, "who": None}]
    table = flight_server.create_table(pa.Table.from_pylist([], stored))
    client.put(table.insert(), pa.Table.from_pylist(values, sent))
    assert table.rows_by_id() == dict(enumerate(values, 1))


LONG_ROWS = pa.table({"id": range(100, 600), "word": [str(n) for n in range(500)]}, SCHEMA)


def test_insert_of_many_batches_creates_one_version(client: FlightTestClient, table: TableFixture) -> None:
    batches = [*split_batches(LONG_ROWS, 7), LONG_ROWS.to_batches()[0].slice(0, 0)]
    assert client.put(table.insert(), batches)["affected_rows"] == 500
    assert table.version == 2
    ids = list(range(5, 505))
    rows = table.rows_by_id()
    assert [rows[id]["id"] for id in ids] == LONG_ROWS["id"].to_pylist(), "row ids follow the order of the rows"
    reversed_rows = LONG_ROWS.take(list(range(499, -1, -1)))
    assert client.put(table.update(ids), [*split_batches(reversed_rows, 3)])["affected_rows"] == 500
    assert table.version == 3
    rows = table.rows_by_id()
    assert [rows[id]["id"] for id in ids] == reversed_rows["id"].to_pylist(), "matched by position across batches"


EMPTY_STREAMS: dict[str, Callable[[dict[str, Any]], list[bytes]]] = {
    "a descriptor": lambda command: put_messages(command, None),
    "a descriptor with the schema": lambda command: put_messages(command, SCHEMA),
    "a descriptor, then the schema": lambda command: put_messages(command, SCHEMA, separate_descriptor=True),
    "batches without rows": lambda command: put_messages(command, SCHEMA, NEW_ROWS.slice(0, 0).to_batches() * 3),
    "metadata": lambda command: [*put_messages(command, SCHEMA), flight_data.encode(b"", metadata=b"hello")],
}


@pytest.mark.parametrize("encode_stream", EMPTY_STREAMS.values(), ids=EMPTY_STREAMS)
def test_empty_stream_affects_no_rows(
    flight_server: FlightServerFixture, table: TableFixture, encode_stream: Any
) -> None:
    assert GrpcClient(flight_server.raw_client).send(encode_stream(table.insert())) == {
        **WRITE_RESULT,
        "affected_rows": 0,
    }
    assert GrpcClient(flight_server.raw_client).send(encode_stream(table.insert(expected_rows=0))) == {
        **WRITE_RESULT,
        "affected_rows": 0,
    }
    assert table.version == 1


@pytest.mark.parametrize("separate_descriptor", [True, False])
def test_descriptor_may_precede_the_schema(
    flight_server: FlightServerFixture, table: TableFixture, separate_descriptor: bool
) -> None:
    grpc_client, batches = GrpcClient(flight_server.raw_client), NEW_ROWS.to_batches()
    assert (
        grpc_client.send(put_messages(table.insert(), SCHEMA, batches, separate_descriptor=separate_descriptor))[
            "affected_rows"
        ]
        == 2
    )
    assert (
        grpc_client.send(put_messages(table.update([1, 2]), SCHEMA, batches, separate_descriptor=separate_descriptor))[
            "affected_rows"
        ]
        == 2
    )
    assert table.words_by_id() == {1: "eight", 2: None, 3: None, 4: "four", 5: "eight", 6: None}


def test_expected_rows_must_match(client: FlightTestClient, table: TableFixture) -> None:
    assert client.put(table.insert(expected_rows=500), LONG_ROWS)["affected_rows"] == 500
    assert client.put(table.update([1, 2], expected_rows=2), NEW_ROWS)["affected_rows"] == 2


KEYED_WRITES: dict[str, Callable[[FlightTestClient, TableFixture, pa.Table, list[int]], dict[str, Any]]] = {
    "insert": lambda client, table, rows, _: client.put(table.insert(returning=True, idempotency_key=table.name), rows),
    "update": lambda client, table, rows, ids: client.put(
        table.update(ids, returning=True, idempotency_key=table.name), rows
    ),
    "delete": lambda client, table, _, ids: client.do_action(
        "delete", table.delete(ids, returning=True, idempotency_key=table.name)
    ),
}


@pytest.mark.parametrize("verb", KEYED_WRITES)
def test_idempotency_key_repeats_response_without_second_write(
    client: FlightTestClient, table: TableFixture, verb: str
) -> None:
    send = partial(KEYED_WRITES[verb], client, table)
    first = send(NEW_ROWS, [4, 2])
    rows_after = table.rows_by_id()
    assert send(NEW_ROWS, [4, 2]) == first
    assert (table.version, table.rows_by_id()) == (2, rows_after)
    for rows, ids in (
        (NEW_ROWS.slice(0, 1), [4]),
        (NEW_ROWS, [2, 4]) if verb != "insert" else (NEW_ROWS.take([1, 0]), []),
    ):
        with pytest.raises(CallRejected) as raised:
            send(rows, ids)
        assert raised.value.code == "ALREADY_EXISTS"
        assert raised.value.message == f"The idempotency key '{table.name}' was used for another request. Use a new key"
    other_verb = next(name for name in KEYED_WRITES if name != verb)
    with pytest.raises(CallRejected) as raised:
        KEYED_WRITES[other_verb](client, table, NEW_ROWS, [1, 3])
    assert raised.value.code == "ALREADY_EXISTS"
    assert (table.version, table.rows_by_id()) == (2, rows_after)


FIVE_COLUMN_ROWS = pa.table(
    {"id": [1], "word": ["a"], "amount": [1.5], "day": pa.array([1], pa.date32()), "tags": [["x"]]},
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("word", pa.string()),
            ("amount", pa.float64()),
            ("day", pa.date32()),
            ("tags", pa.list_(pa.string())),
        ]
    ),
)


@pytest.fixture(scope="module")
def five_columns(flight_server: FlightServerFixture) -> Iterator[dict[str, TableFixture]]:
    """Create three tables of five columns that no test changes: plain, without row ids, read-only."""
    tables = {
        "events": TableFixture("events", flight_server.lake.create("analytics.events", FIVE_COLUMN_ROWS)),
        "bare": TableFixture("bare", flight_server.lake.create("analytics.bare", FIVE_COLUMN_ROWS, row_ids=False)),
        "frozen": TableFixture(
            "frozen", flight_server.lake.create("analytics.frozen", FIVE_COLUMN_ROWS, read_only=True)
        ),
    }
    yield tables
    assert flight_server.orphan_files() == set(), "a rejected write has left files"


def rows_with_changed_column(position: int, name: str, values: Any) -> pa.Table:
    """Return rows whose column at this position differs from the table."""
    return FIVE_COLUMN_ROWS.set_column(position, name, values)


@dataclass(frozen=True)
class WriteErrorCase:
    """A rejected write: the request, its table and rows, and the expected error."""

    name: str
    verb: str
    code: str
    message: str
    table: str = "events"
    rows: pa.Table = field(default_factory=lambda: FIVE_COLUMN_ROWS)
    members: dict[str, Any] = field(default_factory=dict)

    def send(self, client: FlightTestClient, table: TableFixture) -> Any:
        if self.verb == "DELETE":
            return client.do_action("delete", {**table.delete([1]), **self.members})
        command = table.insert() if self.verb == "INSERT" else table.update([1])
        return client.put({**command, **self.members}, self.rows)


SCHEMA_NOT_FOUND = "schema 'nowhere' not found"
INSERT, UPDATE, DELETE = "INSERT", "UPDATE", "DELETE"
INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, RESOURCE_EXHAUSTED = (
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
)
ERROR_CASES = [
    *(WriteErrorCase("unknown schema", verb, NOT_FOUND, SCHEMA_NOT_FOUND, members={"schema_name": "nowhere"}) for verb in (INSERT, UPDATE, DELETE)),
    *(WriteErrorCase("invalid schema name", verb, NOT_FOUND, "schema 'no where' not found", members={"schema_name": "no where"}) for verb in (INSERT, UPDATE, DELETE)),
    *(WriteErrorCase("unknown table", verb, NOT_FOUND, "table 'analytics.nothing' not found", members={"table_name": "nothing"}) for verb in (INSERT, UPDATE, DELETE)),
    *(WriteErrorCase("read-only", verb, FAILED_PRECONDITION, f"table 'frozen' does not support {verb} operations", "frozen") for verb in (INSERT, UPDATE, DELETE)),
    *(WriteErrorCase("no row ids", verb, FAILED_PRECONDITION, f"table 'bare' does not support {verb} (no rowid)", "bare") for verb in (UPDATE, DELETE)),
    *(WriteErrorCase("no ids", verb, INVALID_ARGUMENT, f"row_ids cannot be empty for {verb}", members={"row_ids": []}) for verb in (UPDATE, DELETE)),
    *(WriteErrorCase("too many ids", verb, RESOURCE_EXHAUSTED, "Too many row_ids: 1,001. The limit is 1,000 per call", members={"row_ids": [1] * 1_001}) for verb in (UPDATE, DELETE)),
    WriteErrorCase("an id that is not an integer", UPDATE, INVALID_ARGUMENT, "The member 'row_ids' in the descriptor must be a list of 64-bit whole numbers", members={"row_ids": [True]}),
    WriteErrorCase("an id that is not an integer", DELETE, INVALID_ARGUMENT, "The member 'row_ids' in the body of delete must be a list of 64-bit whole numbers", members={"row_ids": ["1"]}),
    WriteErrorCase("a duplicate id", UPDATE, INVALID_ARGUMENT, "row_id 1 is given more than once", members={"row_ids": [1, 1]}),
    WriteErrorCase("more ids than rows", UPDATE, INVALID_ARGUMENT, "row_ids count (4) does not match input rows (1)", members={"row_ids": [1, 5, 12, 99]}),
    WriteErrorCase("more rows than ids", UPDATE, INVALID_ARGUMENT, "row_ids count (1) does not match input rows (2)", rows=pa.concat_tables([FIVE_COLUMN_ROWS, FIVE_COLUMN_ROWS])),
    WriteErrorCase("no rows", UPDATE, INVALID_ARGUMENT, "row_ids count (1) does not match input rows (0)", rows=FIVE_COLUMN_ROWS.slice(0, 0)),
    WriteErrorCase("a missing row", UPDATE, NOT_FOUND, "row_id 99 not found in table", members={"row_ids": [99]}),
    *(
        WriteErrorCase(name, verb, INVALID_ARGUMENT, f"column mismatch: {message}", rows=rows)
        for verb in (INSERT, UPDATE)
        for name, rows, message in (
            ("a missing column", FIVE_COLUMN_ROWS.drop_columns(["tags"]), "table has 5 columns, input has 4"),
            ("an extra column", FIVE_COLUMN_ROWS.append_column("x", [[1]]), "table has 5 columns, input has 6"),
            ("another name", rows_with_changed_column(1, "wort", [["a"]]), "column 2 is 'word' in the table, 'wort' in the input"),
            ("a name in upper case", rows_with_changed_column(1, "WORD", [["a"]]), "column 2 is 'word' in the table, 'WORD' in the input"),
            ("another column order", FIVE_COLUMN_ROWS.select([1, 0, 2, 3, 4]), "column 1 is 'id' in the table, 'word' in the input"),
            ("a smaller number", rows_with_changed_column(0, "id", pa.array([1], pa.int32())), "column 'id' is int64 in the table, int32 in the input"),
            ("a whole number", rows_with_changed_column(2, "amount", [[1]]), "column 'amount' is double in the table, int64 in the input"),
            ("text for dates", rows_with_changed_column(3, "day", [["1970-01-02"]]), "column 'day' is date32[day] in the table, string in the input"),
            ("another element type", rows_with_changed_column(4, "tags", [[[1]]]), "column 'tags' is list<item: string> in the table, list<item: int64> in the input"),
            ("the rowid column", FIVE_COLUMN_ROWS.append_column("rowid", [[1]]), "table has 5 columns, input has 6"),
        )
    ),
    *(
        WriteErrorCase("null in a required column", verb, INVALID_ARGUMENT, f"{prefix}Column 'id' is required, but has no value in 1 of 1 row", rows=rows_with_changed_column(0, "id", pa.array([None], pa.int64())))
        for verb, prefix in ((INSERT, "Rows 0 to 0: "), (UPDATE, ""))
    ),
    *(WriteErrorCase("fewer rows than expected", verb, INVALID_ARGUMENT, "expected_rows (2) does not match input rows (1)", members={"expected_rows": 2}) for verb in (INSERT, UPDATE)),
    *(WriteErrorCase("a bad key", verb, INVALID_ARGUMENT, "The idempotency key must have 1 to 200 printable characters", members={"idempotency_key": ""}) for verb in (INSERT, UPDATE, DELETE)),
    WriteErrorCase("an unknown operation", INSERT, INVALID_ARGUMENT, "Unknown operation 'merge'. Valid operations: insert, update. Use the action delete to delete rows", members={"operation": "merge"}),
    WriteErrorCase("ids for an insert", INSERT, INVALID_ARGUMENT, "Unknown member 'row_ids' in the descriptor. Valid members: operation, schema_name, table_name, returning, expected_rows, idempotency_key", members={"row_ids": [1]}),
    WriteErrorCase("returning is not a boolean", INSERT, INVALID_ARGUMENT, "The member 'returning' in the descriptor must be true or false", members={"returning": "maybe"}),
    *(WriteErrorCase("too many returned bytes", verb, RESOURCE_EXHAUSTED, "The returned rows are larger than 65,536 bytes. Write fewer rows at once, or do not request the rows", rows=rows_with_changed_column(1, "word", [["x" * 70_000]]), members={"returning": True}) for verb in (INSERT, UPDATE)),
    *(WriteErrorCase("a message over the limit", verb, RESOURCE_EXHAUSTED, f"SERVER: Received message larger than max (LENGTH vs. {MAX_MESSAGE_BYTES})", rows=rows_with_changed_column(1, "word", [["x" * (1 << 20)]])) for verb in (INSERT, UPDATE)),
]  # fmt: skip


@pytest.mark.parametrize("case", ERROR_CASES, ids=[f"{case.verb} {case.name}" for case in ERROR_CASES])
def test_invalid_write_returns_contract_message(
    client: FlightTestClient, five_columns: dict[str, TableFixture], case: WriteErrorCase
) -> None:
    table = five_columns[case.table]
    with pytest.raises(CallRejected) as raised:
        case.send(client, table)
    assert raised.value.code == case.code
    assert re.sub(r"\d{7} vs", "LENGTH vs", raised.value.message) == case.message
    assert (table.version, table.dataset.to_arrow()) == (1, FIVE_COLUMN_ROWS)


def test_delete_with_too_large_returning_deletes_nothing(
    client: FlightTestClient, flight_server: FlightServerFixture
) -> None:
    table = flight_server.create_table(pa.table({"id": range(20), "word": ["x" * 5_000] * 20}, SCHEMA))
    with pytest.raises(CallRejected) as raised:
        client.do_action("delete", table.delete(list(range(1, 21)), returning=True))
    assert raised.value.code == "RESOURCE_EXHAUSTED"
    assert table.version == 1


def test_bad_batch_discards_earlier_batches(client: FlightTestClient, table: TableFixture) -> None:
    good, bad = NEW_ROWS.to_batches()[0], pa.record_batch([pa.nulls(1, pa.int64()), pa.array(["x"])], SCHEMA)
    for command in (table.insert(), table.update([1, 2, 3, 4, 5])):
        with pytest.raises(CallRejected) as raised:
            client.put(command, [good, good, bad])
        assert raised.value.code == "INVALID_ARGUMENT"
    assert (table.version, table.words_by_id()) == (1, {1: "one", 2: "two", 3: None, 4: "four"})


BROKEN_STREAMS: dict[str, tuple[Callable[[dict[str, Any]], list[bytes]], str, str]] = {
    "no messages": (lambda _: [], "missing_descriptor", "The first message of a DoPut stream must have a descriptor"),
    "no descriptor": (
        lambda _: [ipc_messages.encode_schema(SCHEMA)],
        "missing_descriptor",
        "The first message of a DoPut stream must have a descriptor",
    ),
    "a path": (
        lambda _: [ipc_messages.encode_schema(SCHEMA, b"\x08\x01\x1a\x01a\x1a\x01b")],
        "missing_command",
        'The descriptor must be a command, for example {"operation": "insert", …}',
    ),
    "no message": (lambda command: [*put_messages(command, SCHEMA), b"\xff"], "bad_message", "The message is not a valid FlightData message"),
    "rows before a schema": (
        lambda command: [*put_messages(command, None), *put_messages(command, SCHEMA, NEW_ROWS.to_batches())[1:]],
        "missing_schema",
        "The first message with data must be a schema, not a message of type 'record batch'",
    ),
    "a second schema": (
        lambda command: [*put_messages(command, SCHEMA), ipc_messages.encode_schema(SCHEMA)],
        "unexpected_message",
        "Expected a record batch, got a message of type 'schema'. A stream has exactly one schema",
    ),
    "a second descriptor": (
        lambda command: [*put_messages(command, SCHEMA), *put_messages(command, SCHEMA)],
        "late_descriptor",
        "Only the first message of a stream may have a descriptor",
    ),
    "no columns": (
        lambda command: put_messages(command, pa.schema([])),
        "column_mismatch",
        "column mismatch: table has 2 columns, input has 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case_name", BROKEN_STREAMS)
def test_invalid_put_stream_is_rejected(
    flight_server: FlightServerFixture, table: TableFixture, case_name: str
) -> None:
    encode_stream, reason, message = BROKEN_STREAMS[case_name]
    for command in (table.insert(), table.update([1])):
        with pytest.raises(CallRejected) as raised:
            flight_server.raw_client.put(encode_stream(command))
        assert (raised.value.code, raised.value.reason) == ("INVALID_ARGUMENT", reason)
        assert raised.value.message == message
    assert table.version == 1


def test_write_error_has_reason_and_facts(flight_server: FlightServerFixture, table: TableFixture) -> None:
    grpc_client = GrpcClient(flight_server.raw_client)
    with pytest.raises(CallRejected) as raised:
        grpc_client.put(table.update([1, 77, 78]), pa.concat_tables([NEW_ROWS, NEW_ROWS.slice(1)]))
    assert (raised.value.reason, raised.value.facts) == ("row_not_found", {"row_id": 77, "missing_rows": 2})


WRITES: dict[str, Callable[[FlightTestClient, TableFixture], Any]] = {
    "INSERT": lambda client, table: client.put(table.insert(), NEW_ROWS),
    "UPDATE": lambda client, table: client.put(table.update([1, 2]), NEW_ROWS),
    "DELETE": lambda client, table: client.do_action("delete", table.delete([1])),
}


@pytest.mark.parametrize("verb", WRITES)
@pytest.mark.parametrize("client_type", ["gRPC", "pyarrow"])
def test_writes_require_role_developer_of_the_tenant(
    flight_server: FlightServerFixture, table: TableFixture, verb: str, client_type: str
) -> None:
    def client(bearer_token: str) -> FlightTestClient:
        return (
            PyArrowClient(flight_server.address, bearer_token)
            if client_type == "pyarrow"
            else GrpcClient(RawClient(flight_server.service, bearer_token, channel=flight_server.raw_client.channel))
        )

    for bearer_token, code, message in (
        (
            token(Role.VIEWER),
            "PERMISSION_DENIED",
            "This operation requires the role analytics.developer. ada has the role analytics.viewer",
        ),
        (token(tenant=OTHER_TENANT), "NOT_FOUND", "schema 'analytics' not found"),
        ("x", "UNAUTHENTICATED", "The token is not a valid JWT"),
    ):
        with pytest.raises(CallRejected) as raised:
            WRITES[verb](client(bearer_token), table)
        assert (raised.value.code, raised.value.message) == (code, message)
    assert table.version == 1
    WRITES[verb](client(token(Role.DEVELOPER)), table)
    WRITES[verb](client(token(Role.ADMIN)), table)
    assert table.version == (2 if verb == "DELETE" else 3)


def test_table_names_ignore_case(client: FlightTestClient, table: TableFixture) -> None:
    reference = {"schema_name": "ANALYTICS", "table_name": table.name.upper()}
    assert client.put({**table.insert(), **reference}, NEW_ROWS)["affected_rows"] == 2
    assert table.version == 2


def test_delete_accepts_one_million_row_ids(tmp_path: Path, soak: bool) -> None:
    count = 1_000_000 if soak else 100_000
    rows = pa.table({"id": range(count), "word": ["w"] * count}, SCHEMA)
    with run_flight_server(WorkspaceFixture.make(tmp_path / "workspace", None)) as flight_server:
        table, grpc_client = flight_server.create_table(rows), GrpcClient(flight_server.raw_client)
        ids = list(range(count, 0, -1))
        assert grpc_client.put(table.update(ids), list(split_batches(rows, 10_000)))["affected_rows"] == count
        stored = table.dataset.to_arrow(row_ids=True)
        assert all(
            id + row == count for id, row in zip(stored["rowid"].to_pylist(), stored["id"].to_pylist(), strict=True)
        )
        assert grpc_client.do_action("delete", table.delete(ids))["affected_rows"] == count
        assert table.dataset.current().num_rows == 0


def test_insert_validates_every_batch_once(
    client: FlightTestClient, table: TableFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[int] = []
    validate_batch = row_source.validate_batch

    def count(batch: pa.RecordBatch, *args: Any) -> None:
        validated.append(batch.num_rows)
        validate_batch(batch, *args)

    monkeypatch.setattr(row_source, "validate_batch", count)
    batches = NEW_ROWS.to_batches() * 3
    assert client.put(table.insert(), batches)["affected_rows"] == 3 * NEW_ROWS.num_rows
    assert validated == [batch.num_rows for batch in batches]
