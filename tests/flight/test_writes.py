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

from flight.flight_server import ROWS, House, TableFixture, open_house
from flight.paired_clients import ByArrow, ByGrpc, Client, pieces, rows_of, stream
from flight.raw_client import OTHER, Raw, Refused, token
from penstock.core.caller import Role
from penstock.flight import flight_data, ipc_messages
from penstock.flight.context import FlightLimits
from penstock.service.datasets import row_source
from penstock.service.workspace import WriteLimits
from support.workspaces import WorkspaceFixture

MOST_IDS, MOST_MESSAGE, MOST_RETURNED = 1_000, 1 << 20, 1 << 16
SCHEMA = ROWS.schema
NEW = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
SCHEMA_WITH_ROW_ID = SCHEMA.append(pa.field("rowid", pa.int64(), nullable=False))
DONE = {"status": "success", "returning_data": None}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    workspace = WorkspaceFixture.make(tmp_path_factory.mktemp("writes") / "workspace", None)
    with open_house(workspace, FlightLimits(row_ids=MOST_IDS, message_bytes=MOST_MESSAGE)) as house:
        house.lake._workspace.limits = WriteLimits(returned_bytes=MOST_RETURNED)
        yield house


@pytest.fixture(scope="module")
def by_arrow(house: House) -> Iterator[ByArrow]:
    client = ByArrow(house.address, token())
    yield client
    client.close()


@pytest.fixture(params=["gRPC", "pyarrow"])
def client(request: pytest.FixtureRequest, house: House, by_arrow: ByArrow) -> Client:
    return by_arrow if request.param == "pyarrow" else ByGrpc(house.raw)


@pytest.fixture
def table(house: House) -> TableFixture:
    return house.table()


def by_id(rows: pa.Table) -> dict[int, Any]:
    return dict(zip(rows["id"].to_pylist(), rows["word"].to_pylist(), strict=True))


def test_insert_is_visible_after_response(client: Client, table: TableFixture) -> None:
    assert client.put(table.insert(), NEW) == {**DONE, "affected_rows": 2}
    assert table.version == 2
    assert table.words() == {1: "one", 2: "two", 3: None, 4: "four", 5: "eight", 6: None}
    assert client.get({**table.at, "rowid": True}).equals(table.dataset.to_arrow(row_ids=True))


def test_update_replaces_rows_by_position_of_id(client: Client, table: TableFixture) -> None:
    assert client.put(table.update([4, 1]), NEW) == {**DONE, "affected_rows": 2}
    assert table.version == 2
    assert {id: row["id"] for id, row in table.there().items()} == {1: 9, 2: 2, 3: 3, 4: 8}
    assert table.words() == {1: None, 2: "two", 3: None, 4: "eight"}


def test_delete_returns_number_of_existing_rows(client: Client, table: TableFixture) -> None:
    request = table.delete([3, 1, 3, 99, -1])
    assert client.act("delete", request) == {"status": "success", "affected_rows": 2}
    assert table.words() == {2: "two", 4: "four"}
    assert client.act("delete", request) == {"status": "success", "affected_rows": 0}
    assert table.version == 2, "what changes nothing makes no version"


def test_row_ids_are_never_reused(client: Client, table: TableFixture) -> None:
    client.act("delete", table.delete([1, 2, 3, 4]))
    client.put(table.insert(), NEW)
    assert table.words() == {5: "eight", 6: None}


def test_returning_insert_and_update_returns_stored_rows(client: Client, table: TableFixture) -> None:
    response = client.put(table.insert(returning=True), list(pieces(NEW, 1)))
    assert isinstance(response["returning_data"], bytes)
    back = rows_of(response["returning_data"])
    assert back.schema.equals(SCHEMA_WITH_ROW_ID)
    assert back.combine_chunks().equals(NEW.append_column(SCHEMA_WITH_ROW_ID.field("rowid"), pa.array([5, 6])))
    response = client.put(table.update([6, 2], returning=True), NEW)
    back = rows_of(response["returning_data"])
    assert back.schema.equals(SCHEMA_WITH_ROW_ID)
    assert back.to_pylist() == [{"id": 8, "word": "eight", "rowid": 6}, {"id": 9, "word": None, "rowid": 2}]
    assert response["affected_rows"] == 2


def test_returning_delete_returns_deleted_rows(client: Client, table: TableFixture) -> None:
    response = client.act("delete", table.delete([4, 99, 2, 2], returning=True))
    assert isinstance(response["returning_data"], str)
    back = rows_of(base64.b64decode(response["returning_data"], validate=True))
    assert back.schema.equals(SCHEMA_WITH_ROW_ID)
    assert back.to_pylist() == [{"id": 4, "word": "four", "rowid": 4}, {"id": 2, "word": "two", "rowid": 2}]
    response = client.act("delete", table.delete([4, 99], returning=True))
    assert (response["affected_rows"], rows_of(base64.b64decode(response["returning_data"])).num_rows) == (0, 0)


def test_returning_without_row_ids_has_no_rowid_column(client: Client, house: House) -> None:
    bare = house.table(row_ids=False)
    back = rows_of(client.put(bare.insert(returning=True), NEW)["returning_data"])
    assert back.equals(NEW)
    assert bare.dataset.current().num_rows == 6


def test_returning_empty_insert_returns_no_rows(client: Client, table: TableFixture) -> None:
    response = client.put(table.insert(returning=True), NEW.slice(0, 0))
    back = rows_of(response["returning_data"])
    assert (response["affected_rows"], back.num_rows, back.schema) == (0, 0, SCHEMA_WITH_ROW_ID)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("nullable", [True, False])
def test_insert_accepts_string_variants_and_nullability(
    client: Client, table: TableFixture, kind: pa.DataType, nullable: bool
) -> None:
    words = pa.array(["eight", "nine"]).cast(kind)
    rows = pa.table([NEW["id"], words], pa.schema([("id", pa.int64()), pa.field("word", kind, nullable=nullable)]))
    back = rows_of(client.put(table.insert(returning=True), rows)["returning_data"])
    assert back.schema.equals(SCHEMA_WITH_ROW_ID)
    client.put(table.update([1, 2]), rows)
    assert table.words() == {1: "eight", 2: "nine", 3: None, 4: "four", 5: "eight", 6: "nine"}


def test_insert_accepts_nested_string_variants(client: Client, house: House) -> None:
    stored = pa.schema([("tags", pa.list_(pa.string())), ("who", pa.struct([("name", pa.string())]))])
    sent = pa.schema([("tags", pa.list_(pa.large_string())), ("who", pa.struct([("name", pa.large_string())]))])
    values = [{"tags": ["a", None], "who": {"name": "x"}}, {"tags": None, "who": None}]
    table = house.table(pa.Table.from_pylist([], stored))
    client.put(table.insert(), pa.Table.from_pylist(values, sent))
    assert table.there() == dict(enumerate(values, 1))


LONG = pa.table({"id": range(100, 600), "word": [str(n) for n in range(500)]}, SCHEMA)


def test_insert_of_many_batches_creates_one_version(client: Client, table: TableFixture) -> None:
    batches = [*pieces(LONG, 7), LONG.to_batches()[0].slice(0, 0)]
    assert client.put(table.insert(), batches)["affected_rows"] == 500
    assert table.version == 2
    ids = list(range(5, 505))
    there = table.there()
    assert [there[id]["id"] for id in ids] == LONG["id"].to_pylist(), "ids follow the order sent"
    backwards = LONG.take(list(range(499, -1, -1)))
    assert client.put(table.update(ids), [*pieces(backwards, 3)])["affected_rows"] == 500
    assert table.version == 3
    there = table.there()
    assert [there[id]["id"] for id in ids] == backwards["id"].to_pylist(), "matched by position across batches"


EMPTY: dict[str, Callable[[dict[str, Any]], list[bytes]]] = {
    "a descriptor": lambda command: stream(command, None),
    "a descriptor with the schema": lambda command: stream(command, SCHEMA),
    "a descriptor, then the schema": lambda command: stream(command, SCHEMA, alone=True),
    "batches without rows": lambda command: stream(command, SCHEMA, NEW.slice(0, 0).to_batches() * 3),
    "metadata": lambda command: [*stream(command, SCHEMA), flight_data.encode(b"", metadata=b"hello")],
}


@pytest.mark.parametrize("sent", EMPTY.values(), ids=EMPTY)
def test_empty_stream_affects_no_rows(house: House, table: TableFixture, sent: Any) -> None:
    assert ByGrpc(house.raw).send(sent(table.insert())) == {**DONE, "affected_rows": 0}
    assert ByGrpc(house.raw).send(sent(table.insert(expected_rows=0))) == {**DONE, "affected_rows": 0}
    assert table.version == 1


@pytest.mark.parametrize("alone", [True, False])
def test_descriptor_may_precede_the_schema(house: House, table: TableFixture, alone: bool) -> None:
    raw, batches = ByGrpc(house.raw), NEW.to_batches()
    assert raw.send(stream(table.insert(), SCHEMA, batches, alone=alone))["affected_rows"] == 2
    assert raw.send(stream(table.update([1, 2]), SCHEMA, batches, alone=alone))["affected_rows"] == 2
    assert table.words() == {1: "eight", 2: None, 3: None, 4: "four", 5: "eight", 6: None}


def test_expected_rows_must_match(client: Client, table: TableFixture) -> None:
    assert client.put(table.insert(expected_rows=500), LONG)["affected_rows"] == 500
    assert client.put(table.update([1, 2], expected_rows=2), NEW)["affected_rows"] == 2


REQUESTS: dict[str, Callable[[Client, TableFixture, pa.Table, list[int]], dict[str, Any]]] = {
    "insert": lambda client, table, rows, _: client.put(table.insert(returning=True, idempotency_key=table.name), rows),
    "update": lambda client, table, rows, ids: client.put(
        table.update(ids, returning=True, idempotency_key=table.name), rows
    ),
    "delete": lambda client, table, _, ids: client.act(
        "delete", table.delete(ids, returning=True, idempotency_key=table.name)
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_idempotency_key_repeats_response_without_second_write(client: Client, table: TableFixture, kind: str) -> None:
    ask = partial(REQUESTS[kind], client, table)
    first = ask(NEW, [4, 2])
    then = table.there()
    assert ask(NEW, [4, 2]) == first
    assert (table.version, table.there()) == (2, then)
    for rows, ids in ((NEW.slice(0, 1), [4]), (NEW, [2, 4]) if kind != "insert" else (NEW.take([1, 0]), [])):
        with pytest.raises(Refused) as raised:
            ask(rows, ids)
        assert raised.value.code == "ALREADY_EXISTS"
        assert (
            raised.value.sentence == f"The idempotency key '{table.name}' was used for another request. Use a new key"
        )
    other = next(item for item in REQUESTS if item != kind)
    with pytest.raises(Refused) as raised:
        REQUESTS[other](client, table, NEW, [1, 3])
    assert raised.value.code == "ALREADY_EXISTS"
    assert (table.version, table.there()) == (2, then)


FIVE = pa.table(
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
def five(house: House) -> Iterator[dict[str, TableFixture]]:
    """Create a table of five columns that no test changes, one without row ids, and a read-only one."""
    tables = {
        "events": TableFixture("events", house.lake.create("analytics.events", FIVE)),
        "bare": TableFixture("bare", house.lake.create("analytics.bare", FIVE, row_ids=False)),
        "frozen": TableFixture("frozen", house.lake.create("analytics.frozen", FIVE, read_only=True)),
    }
    yield tables
    assert house.strays() == set(), "a refusal has left files behind"


def changed(position: int, name: str, values: Any) -> pa.Table:
    """Rows of which one column is not as the table has it."""
    return FIVE.set_column(position, name, values)


@dataclass(frozen=True)
class Case:
    """A rejected write: the request, its table and rows, and the expected error."""

    what: str
    verb: str
    code: str
    sentence: str
    table: str = "events"
    rows: pa.Table = field(default_factory=lambda: FIVE)
    more: dict[str, Any] = field(default_factory=dict)

    def ask(self, client: Client, table: TableFixture) -> Any:
        if self.verb == "DELETE":
            return client.act("delete", {**table.delete([1]), **self.more})
        request = table.insert() if self.verb == "INSERT" else table.update([1])
        return client.put({**request, **self.more}, self.rows)


NONE = "schema 'nowhere' not found"
IN, UP, OUT = "INSERT", "UPDATE", "DELETE"
BAD, GONE, CANNOT, MUCH = "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"
REFUSED = [
    *(Case("no such schema", verb, GONE, NONE, more={"schema_name": "nowhere"}) for verb in (IN, UP, OUT)),
    *(Case("no schema's name", verb, GONE, "schema 'no where' not found", more={"schema_name": "no where"}) for verb in (IN, UP, OUT)),
    *(Case("no such table", verb, GONE, "table 'analytics.nothing' not found", more={"table_name": "nothing"}) for verb in (IN, UP, OUT)),
    *(Case("read-only", verb, CANNOT, f"table 'frozen' does not support {verb} operations", "frozen") for verb in (IN, UP, OUT)),
    *(Case("no row ids", verb, CANNOT, f"table 'bare' does not support {verb} (no rowid)", "bare") for verb in (UP, OUT)),
    *(Case("no ids", verb, BAD, f"row_ids cannot be empty for {verb}", more={"row_ids": []}) for verb in (UP, OUT)),
    *(Case("too many ids", verb, MUCH, "Too many row_ids: 1,001. The limit is 1,000 per call", more={"row_ids": [1] * 1_001}) for verb in (UP, OUT)),
    Case("an id that is none", UP, BAD, "The member 'row_ids' in the descriptor must be a list of 64-bit whole numbers", more={"row_ids": [True]}),
    Case("an id that is none", OUT, BAD, "The member 'row_ids' in the body of delete must be a list of 64-bit whole numbers", more={"row_ids": ["1"]}),
    Case("an id twice", UP, BAD, "row_id 1 is given more than once", more={"row_ids": [1, 1]}),
    Case("more ids than rows", UP, BAD, "row_ids count (4) does not match input rows (1)", more={"row_ids": [1, 5, 12, 99]}),
    Case("more rows than ids", UP, BAD, "row_ids count (1) does not match input rows (2)", rows=pa.concat_tables([FIVE, FIVE])),
    Case("no rows", UP, BAD, "row_ids count (1) does not match input rows (0)", rows=FIVE.slice(0, 0)),
    Case("a row that is missing", UP, GONE, "row_id 99 not found in table", more={"row_ids": [99]}),
    *(
        Case(what, verb, BAD, f"column mismatch: {sentence}", rows=rows)
        for verb in (IN, UP)
        for what, rows, sentence in (
            ("a column less", FIVE.drop_columns(["tags"]), "table has 5 columns, input has 4"),
            ("a column more", FIVE.append_column("x", [[1]]), "table has 5 columns, input has 6"),
            ("another name", changed(1, "wort", [["a"]]), "column 2 is 'word' in the table, 'wort' in the input"),
            ("a name in capitals", changed(1, "WORD", [["a"]]), "column 2 is 'word' in the table, 'WORD' in the input"),
            ("another order", FIVE.select([1, 0, 2, 3, 4]), "column 1 is 'id' in the table, 'word' in the input"),
            ("a smaller number", changed(0, "id", pa.array([1], pa.int32())), "column 'id' is int64 in the table, int32 in the input"),
            ("a whole number", changed(2, "amount", [[1]]), "column 'amount' is double in the table, int64 in the input"),
            ("words for days", changed(3, "day", [["1970-01-02"]]), "column 'day' is date32[day] in the table, string in the input"),
            ("another list", changed(4, "tags", [[[1]]]), "column 'tags' is list<item: string> in the table, list<item: int64> in the input"),
            ("the id column", FIVE.append_column("rowid", [[1]]), "table has 5 columns, input has 6"),
        )
    ),
    *(
        Case("a null where none may be", verb, BAD, f"{where}Column 'id' is required, but has no value in 1 of 1 row", rows=changed(0, "id", pa.array([None], pa.int64())))
        for verb, where in ((IN, "Rows 0 to 0: "), (UP, ""))
    ),
    *(Case("fewer rows than expected", verb, BAD, "expected_rows (2) does not match input rows (1)", more={"expected_rows": 2}) for verb in (IN, UP)),
    *(Case("a bad key", verb, BAD, "The idempotency key must have 1 to 200 printable characters", more={"idempotency_key": ""}) for verb in (IN, UP, OUT)),
    Case("what is no operation", IN, BAD, "Unknown operation 'merge'. Valid operations: insert, update. Use the action delete to delete rows", more={"operation": "merge"}),
    Case("ids for an insert", IN, BAD, "Unknown member 'row_ids' in the descriptor. Valid members: operation, schema_name, table_name, returning, expected_rows, idempotency_key", more={"row_ids": [1]}),
    Case("returning perhaps", IN, BAD, "The member 'returning' in the descriptor must be true or false", more={"returning": "maybe"}),
    *(Case("a large answer", verb, MUCH, "The returned rows are larger than 65,536 bytes. Write fewer rows at once, or do not request the rows", rows=changed(1, "word", [["x" * 70_000]]), more={"returning": True}) for verb in (IN, UP)),
    *(Case("a large message", verb, MUCH, f"SERVER: Received message larger than max (LENGTH vs. {MOST_MESSAGE})", rows=changed(1, "word", [["x" * (1 << 20)]])) for verb in (IN, UP)),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=[f"{case.verb} {case.what}" for case in REFUSED])
def test_invalid_write_returns_contract_message(client: Client, five: dict[str, TableFixture], case: Case) -> None:
    table = five[case.table]
    with pytest.raises(Refused) as raised:
        case.ask(client, table)
    assert raised.value.code == case.code
    assert re.sub(r"\d{7} vs", "LENGTH vs", raised.value.sentence) == case.sentence
    assert (table.version, table.dataset.to_arrow()) == (1, FIVE)


def test_delete_with_too_large_returning_deletes_nothing(client: Client, house: House) -> None:
    table = house.table(pa.table({"id": range(20), "word": ["x" * 5_000] * 20}, SCHEMA))
    with pytest.raises(Refused) as raised:
        client.act("delete", table.delete(list(range(1, 21)), returning=True))
    assert raised.value.code == "RESOURCE_EXHAUSTED"
    assert table.version == 1


def test_bad_batch_discards_earlier_batches(client: Client, table: TableFixture) -> None:
    good, bad = NEW.to_batches()[0], pa.record_batch([pa.nulls(1, pa.int64()), pa.array(["x"])], SCHEMA)
    for request in (table.insert(), table.update([1, 2, 3, 4, 5])):
        with pytest.raises(Refused) as raised:
            client.put(request, [good, good, bad])
        assert raised.value.code == "INVALID_ARGUMENT"
    assert (table.version, table.words()) == (1, {1: "one", 2: "two", 3: None, 4: "four"})


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], list[bytes]], str, str]] = {
    "nothing": (lambda _: [], "missing_descriptor", "The first message of a DoPut stream must have a descriptor"),
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
    "no message": (lambda command: [*stream(command, SCHEMA), b"\xff"], "bad_message", "The message is not a valid FlightData message"),
    "rows before a schema": (
        lambda command: [*stream(command, None), *stream(command, SCHEMA, NEW.to_batches())[1:]],
        "missing_schema",
        "The first message with data must be a schema, not a message of type 'record batch'",
    ),
    "a second schema": (
        lambda command: [*stream(command, SCHEMA), ipc_messages.encode_schema(SCHEMA)],
        "unexpected_message",
        "Expected a record batch, got a message of type 'schema'. A stream has exactly one schema",
    ),
    "a second descriptor": (
        lambda command: [*stream(command, SCHEMA), *stream(command, SCHEMA)],
        "late_descriptor",
        "Only the first message of a stream may have a descriptor",
    ),
    "no columns": (
        lambda command: stream(command, pa.schema([])),
        "column_mismatch",
        "column mismatch: table has 2 columns, input has 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_invalid_put_stream_is_rejected(house: House, table: TableFixture, kind: str) -> None:
    sent, reason, sentence = BROKEN[kind]
    for request in (table.insert(), table.update([1])):
        with pytest.raises(Refused) as raised:
            house.raw.put(sent(request))
        assert (raised.value.code, raised.value.reason) == ("INVALID_ARGUMENT", reason)
        assert raised.value.sentence == sentence
    assert table.version == 1


def test_write_error_has_reason_and_facts(house: House, table: TableFixture) -> None:
    raw = ByGrpc(house.raw)
    with pytest.raises(Refused) as raised:
        raw.put(table.update([1, 77, 78]), pa.concat_tables([NEW, NEW.slice(1)]))
    assert (raised.value.reason, raised.value.facts) == ("row_not_found", {"row_id": 77, "missing_rows": 2})


WRITES: dict[str, Callable[[Client, TableFixture], Any]] = {
    "INSERT": lambda client, table: client.put(table.insert(), NEW),
    "UPDATE": lambda client, table: client.put(table.update([1, 2]), NEW),
    "DELETE": lambda client, table: client.act("delete", table.delete([1])),
}


@pytest.mark.parametrize("verb", WRITES)
@pytest.mark.parametrize("kind", ["gRPC", "pyarrow"])
def test_writes_require_role_developer_of_the_tenant(house: House, table: TableFixture, verb: str, kind: str) -> None:
    def client(sent: str) -> Client:
        return (
            ByArrow(house.address, sent)
            if kind == "pyarrow"
            else ByGrpc(Raw(house.service, sent, channel=house.raw.channel))
        )

    for sent, code, sentence in (
        (
            token(Role.VIEWER),
            "PERMISSION_DENIED",
            "This operation requires the role analytics.developer. ada has the role analytics.viewer",
        ),
        (token(tenant=OTHER), "NOT_FOUND", "schema 'analytics' not found"),
        ("x", "UNAUTHENTICATED", "The token is not a valid JWT"),
    ):
        with pytest.raises(Refused) as raised:
            WRITES[verb](client(sent), table)
        assert (raised.value.code, raised.value.sentence) == (code, sentence)
    assert table.version == 1
    WRITES[verb](client(token(Role.DEVELOPER)), table)
    WRITES[verb](client(token(Role.ADMIN)), table)
    assert table.version == (2 if verb == "DELETE" else 3)


def test_table_names_ignore_case(client: Client, table: TableFixture) -> None:
    named = {"schema_name": "ANALYTICS", "table_name": table.name.upper()}
    assert client.put({**table.insert(), **named}, NEW)["affected_rows"] == 2
    assert table.version == 2


def test_delete_accepts_one_million_row_ids(tmp_path: Path, soak: bool) -> None:
    count = 1_000_000 if soak else 100_000
    rows = pa.table({"id": range(count), "word": ["w"] * count}, SCHEMA)
    with open_house(WorkspaceFixture.make(tmp_path / "workspace", None)) as house:
        table, raw = house.table(rows), ByGrpc(house.raw)
        ids = list(range(count, 0, -1))
        assert raw.put(table.update(ids), list(pieces(rows, 10_000)))["affected_rows"] == count
        there = table.dataset.to_arrow(row_ids=True)
        assert all(
            id + row == count for id, row in zip(there["rowid"].to_pylist(), there["id"].to_pylist(), strict=True)
        )
        assert raw.act("delete", table.delete(ids))["affected_rows"] == count
        assert table.dataset.current().num_rows == 0


def test_insert_validates_every_batch_once(
    client: Client, table: TableFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[int] = []
    validate_batch = row_source.validate_batch

    def count(batch: pa.RecordBatch, *args: Any) -> None:
        validated.append(batch.num_rows)
        validate_batch(batch, *args)

    monkeypatch.setattr(row_source, "validate_batch", count)
    batches = NEW.to_batches() * 3
    assert client.put(table.insert(), batches)["affected_rows"] == 3 * NEW.num_rows
    assert validated == [batch.num_rows for batch in batches]
