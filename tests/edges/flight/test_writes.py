"""Inserts, updates and deletes over the wire: what they do, what they answer, and in which words they are refused."""

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from edges.flight.clients import ByArrow, ByGrpc, Client, pieces, rows_of, stream
from edges.flight.service import ROWS, House, Shown, open_house
from edges.flight.stage import OTHER, Raw, Refused, token
from penstock.core.caller import Role
from penstock.flight import ipc_messages as messages
from penstock.flight import flight_data as wire
from penstock.flight.context import FlightLimits
from penstock.service.workspace import Limits
from workspaces import Place

MOST_IDS, MOST_MESSAGE, MOST_RETURNED = 1_000, 1 << 20, 1 << 16
SCHEMA = ROWS.schema
NEW = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
SHOWN = SCHEMA.append(pa.field("rowid", pa.int64(), nullable=False))
DONE = {"status": "success", "returning_data": None}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    place = Place.make(tmp_path_factory.mktemp("writes") / "workspace", None)
    with open_house(place, FlightLimits(row_ids=MOST_IDS, message_bytes=MOST_MESSAGE)) as house:
        house.lake.workspace.limits = Limits(returned_bytes=MOST_RETURNED)
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
def table(house: House) -> Shown:
    return house.table()


def by_id(rows: pa.Table) -> dict[int, Any]:
    return dict(zip(rows["id"].to_pylist(), rows["word"].to_pylist(), strict=True))


def test_an_insert_is_there_when_it_is_answered(client: Client, table: Shown) -> None:
    assert client.put(table.insert(), NEW) == {**DONE, "affected_rows": 2}
    assert table.version == 2
    assert table.words() == {1: "one", 2: "two", 3: None, 4: "four", 5: "eight", 6: None}
    assert client.get({**table.at, "rowid": True}).equals(table.dataset.to_arrow(row_ids=True))


def test_an_update_puts_row_i_in_place_of_the_ith_id(client: Client, table: Shown) -> None:
    assert client.put(table.update([4, 1]), NEW) == {**DONE, "affected_rows": 2}
    assert table.version == 2
    assert {id: row["id"] for id, row in table.there().items()} == {1: 9, 2: 2, 3: 3, 4: 8}
    assert table.words() == {1: None, 2: "two", 3: None, 4: "eight"}


def test_a_delete_takes_out_what_is_there_and_tells_how_many(client: Client, table: Shown) -> None:
    asked = table.delete([3, 1, 3, 99, -1])
    assert client.act("delete", asked) == {"status": "success", "affected_rows": 2}
    assert table.words() == {2: "two", 4: "four"}
    assert client.act("delete", asked) == {"status": "success", "affected_rows": 0}
    assert table.version == 2, "what changes nothing makes no version"


def test_ids_are_never_given_twice(client: Client, table: Shown) -> None:
    client.act("delete", table.delete([1, 2, 3, 4]))
    client.put(table.insert(), NEW)
    assert table.words() == {5: "eight", 6: None}


def test_what_was_written_is_given_back_as_it_is_stored(client: Client, table: Shown) -> None:
    told = client.put(table.insert(returning=True), list(pieces(NEW, 1)))
    assert isinstance(told["returning_data"], bytes)
    back = rows_of(told["returning_data"])
    assert back.schema.equals(SHOWN)
    assert back.combine_chunks().equals(NEW.append_column(SHOWN.field("rowid"), pa.array([5, 6])))
    told = client.put(table.update([6, 2], returning=True), NEW)
    back = rows_of(told["returning_data"])
    assert back.schema.equals(SHOWN)
    assert back.to_pylist() == [{"id": 8, "word": "eight", "rowid": 6}, {"id": 9, "word": None, "rowid": 2}]
    assert told["affected_rows"] == 2


def test_what_was_deleted_is_given_back_as_it_was(client: Client, table: Shown) -> None:
    told = client.act("delete", table.delete([4, 99, 2, 2], returning=True))
    assert isinstance(told["returning_data"], str)
    back = rows_of(base64.b64decode(told["returning_data"], validate=True))
    assert back.schema.equals(SHOWN)
    assert back.to_pylist() == [{"id": 4, "word": "four", "rowid": 4}, {"id": 2, "word": "two", "rowid": 2}]
    told = client.act("delete", table.delete([4, 99], returning=True))
    assert (told["affected_rows"], rows_of(base64.b64decode(told["returning_data"])).num_rows) == (0, 0)


def test_rows_without_ids_are_given_back_without(client: Client, house: House) -> None:
    bare = house.table(row_ids=False)
    back = rows_of(client.put(bare.insert(returning=True), NEW)["returning_data"])
    assert back.equals(NEW)
    assert bare.dataset.now().num_rows == 6


def test_an_insert_of_nothing_gives_nothing_back(client: Client, table: Shown) -> None:
    told = client.put(table.insert(returning=True), NEW.slice(0, 0))
    back = rows_of(told["returning_data"])
    assert (told["affected_rows"], back.num_rows, back.schema) == (0, 0, SHOWN)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("nullable", [True, False])
def test_the_kinds_of_string_and_the_promise_of_null_do_not_matter(
    client: Client, table: Shown, kind: pa.DataType, nullable: bool
) -> None:
    words = pa.array(["eight", "nine"]).cast(kind)
    rows = pa.table([NEW["id"], words], pa.schema([("id", pa.int64()), pa.field("word", kind, nullable=nullable)]))
    back = rows_of(client.put(table.insert(returning=True), rows)["returning_data"])
    assert back.schema.equals(SHOWN)
    client.put(table.update([1, 2]), rows)
    assert table.words() == {1: "eight", 2: "nine", 3: None, 4: "four", 5: "eight", 6: "nine"}


def test_strings_inside_of_others_are_one_kind_too(client: Client, house: House) -> None:
    kept = pa.schema([("tags", pa.list_(pa.string())), ("who", pa.struct([("name", pa.string())]))])
    sent = pa.schema([("tags", pa.list_(pa.large_string())), ("who", pa.struct([("name", pa.large_string())]))])
    values = [{"tags": ["a", None], "who": {"name": "x"}}, {"tags": None, "who": None}]
    table = house.table(pa.Table.from_pylist([], kept))
    client.put(table.insert(), pa.Table.from_pylist(values, sent))
    assert table.there() == dict(enumerate(values, 1))


LONG = pa.table({"id": range(100, 600), "word": [str(n) for n in range(500)]}, SCHEMA)


def test_many_batches_are_one_version(client: Client, table: Shown) -> None:
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
    "a descriptor": lambda asked: stream(asked, None),
    "a descriptor with the schema": lambda asked: stream(asked, SCHEMA),
    "a descriptor, then the schema": lambda asked: stream(asked, SCHEMA, alone=True),
    "batches without rows": lambda asked: stream(asked, SCHEMA, NEW.slice(0, 0).to_batches() * 3),
    "metadata": lambda asked: [*stream(asked, SCHEMA), wire.encode(b"", metadata=b"hello")],
}


@pytest.mark.parametrize("sent", EMPTY.values(), ids=EMPTY)
def test_an_empty_stream_is_a_success_of_no_rows(house: House, table: Shown, sent: Any) -> None:
    assert ByGrpc(house.raw).send(sent(table.insert())) == {**DONE, "affected_rows": 0}
    assert ByGrpc(house.raw).send(sent(table.insert(expected_rows=0))) == {**DONE, "affected_rows": 0}
    assert table.version == 1


@pytest.mark.parametrize("alone", [True, False])
def test_a_descriptor_comes_alone_or_with_the_schema(house: House, table: Shown, alone: bool) -> None:
    raw, batches = ByGrpc(house.raw), NEW.to_batches()
    assert raw.send(stream(table.insert(), SCHEMA, batches, alone=alone))["affected_rows"] == 2
    assert raw.send(stream(table.update([1, 2]), SCHEMA, batches, alone=alone))["affected_rows"] == 2
    assert table.words() == {1: "eight", 2: None, 3: None, 4: "four", 5: "eight", 6: None}


def test_as_many_rows_as_expected_are_taken(client: Client, table: Shown) -> None:
    assert client.put(table.insert(expected_rows=500), LONG)["affected_rows"] == 500
    assert client.put(table.update([1, 2], expected_rows=2), NEW)["affected_rows"] == 2


REQUESTS: dict[str, Callable[[Client, Shown, pa.Table, list[int]], dict[str, Any]]] = {
    "insert": lambda client, table, rows, _: client.put(table.insert(returning=True, idempotency_key=table.name), rows),
    "update": lambda client, table, rows, ids: client.put(
        table.update(ids, returning=True, idempotency_key=table.name), rows
    ),
    "delete": lambda client, table, _, ids: client.act(
        "delete", table.delete(ids, returning=True, idempotency_key=table.name)
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_that_is_sent_again_happens_once_and_hears_the_same(client: Client, table: Shown, kind: str) -> None:
    ask = partial(REQUESTS[kind], client, table)
    first = ask(NEW, [4, 2])
    then = table.there()
    assert ask(NEW, [4, 2]) == first
    assert (table.version, table.there()) == (2, then)
    for rows, ids in ((NEW.slice(0, 1), [4]), (NEW, [2, 4]) if kind != "insert" else (NEW.take([1, 0]), [])):
        with pytest.raises(Refused) as refusal:
            ask(rows, ids)
        assert refusal.value.code == "ALREADY_EXISTS"
        assert (
            refusal.value.sentence == f"the idempotency key '{table.name}' was used for another request; take a new one"
        )
    other = next(each for each in REQUESTS if each != kind)
    with pytest.raises(Refused) as refusal:
        REQUESTS[other](client, table, NEW, [1, 3])
    assert refusal.value.code == "ALREADY_EXISTS"
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
def five(house: House) -> Iterator[dict[str, Shown]]:
    """A table of five columns that nobody changes, one without ids, and a read-only one."""
    tables = {
        "events": Shown("events", house.lake.create("analytics.events", FIVE)),
        "bare": Shown("bare", house.lake.create("analytics.bare", FIVE, row_ids=False)),
        "frozen": Shown("frozen", house.lake.create("analytics.frozen", FIVE, read_only=True)),
    }
    yield tables
    assert house.strays() == set(), "a refusal has left files behind"


def changed(place: int, name: str, values: Any) -> pa.Table:
    """Rows of which one column is not as the table has it."""
    return FIVE.set_column(place, name, values)


@dataclass(frozen=True)
class Case:
    """A write that is refused: what is asked, of which table, with which rows, and what is heard."""

    what: str
    verb: str
    code: str
    sentence: str
    table: str = "events"
    rows: pa.Table = field(default_factory=lambda: FIVE)
    more: dict[str, Any] = field(default_factory=dict)

    def ask(self, client: Client, table: Shown) -> Any:
        if self.verb == "DELETE":
            return client.act("delete", {**table.delete([1]), **self.more})
        asked = table.insert() if self.verb == "INSERT" else table.update([1])
        return client.put({**asked, **self.more}, self.rows)


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
    *(Case("too many ids", verb, MUCH, "1,001 row_ids are too many: at most 1,000 go into one call", more={"row_ids": [1] * 1_001}) for verb in (UP, OUT)),
    Case("an id that is none", UP, BAD, "'row_ids' in the descriptor must be a list of whole numbers of 64 bits", more={"row_ids": [True]}),
    Case("an id that is none", OUT, BAD, "'row_ids' in the body of delete must be a list of whole numbers of 64 bits", more={"row_ids": ["1"]}),
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
        Case("a null where none may be", verb, BAD, f"{where}column 'id' is required, and 1 of 1 rows have no value", rows=changed(0, "id", pa.array([None], pa.int64())))
        for verb, where in ((IN, "rows 0 to 0: "), (UP, ""))
    ),
    *(Case("fewer rows than expected", verb, BAD, "expected_rows (2) does not match input rows (1)", more={"expected_rows": 2}) for verb in (IN, UP)),
    *(Case("a bad key", verb, BAD, "an idempotency key is 1 to 200 printable characters", more={"idempotency_key": ""}) for verb in (IN, UP, OUT)),
    Case("what is no operation", IN, BAD, "'merge' is no operation here: insert and update are; delete is an action", more={"operation": "merge"}),
    Case("ids for an insert", IN, BAD, "'row_ids' is no member of the descriptor; there are: operation, schema_name, table_name, returning, expected_rows, idempotency_key", more={"row_ids": [1]}),
    Case("returning perhaps", IN, BAD, "'returning' in the descriptor must be true or false", more={"returning": "maybe"}),
    *(Case("a large answer", verb, MUCH, "a write gives back at most 65,536 bytes of rows; name fewer rows, or ask for none", rows=changed(1, "word", [["x" * 70_000]]), more={"returning": True}) for verb in (IN, UP)),
    *(Case("a large message", verb, MUCH, f"SERVER: Received message larger than max (LENGTH vs. {MOST_MESSAGE})", rows=changed(1, "word", [["x" * (1 << 20)]])) for verb in (IN, UP)),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=[f"{case.verb} {case.what}" for case in REFUSED])
def test_what_cannot_be_written_is_refused_in_these_words(client: Client, five: dict[str, Shown], case: Case) -> None:
    table = five[case.table]
    with pytest.raises(Refused) as refusal:
        case.ask(client, table)
    assert refusal.value.code == case.code
    assert re.sub(r"\d{7} vs", "LENGTH vs", refusal.value.sentence) == case.sentence
    assert (table.version, table.dataset.to_arrow()) == (1, FIVE)


def test_a_delete_that_would_give_too_much_back_deletes_nothing(client: Client, house: House) -> None:
    table = house.table(pa.table({"id": range(20), "word": ["x" * 5_000] * 20}, SCHEMA))
    with pytest.raises(Refused) as refusal:
        client.act("delete", table.delete(list(range(1, 21)), returning=True))
    assert refusal.value.code == "RESOURCE_EXHAUSTED"
    assert table.version == 1


def test_a_bad_batch_in_the_middle_undoes_those_before_it(client: Client, table: Shown) -> None:
    good, bad = NEW.to_batches()[0], pa.record_batch([pa.nulls(1, pa.int64()), pa.array(["x"])], SCHEMA)
    for asked in (table.insert(), table.update([1, 2, 3, 4, 5])):
        with pytest.raises(Refused) as refusal:
            client.put(asked, [good, good, bad])
        assert refusal.value.code == "INVALID_ARGUMENT"
    assert (table.version, table.words()) == (1, {1: "one", 2: "two", 3: None, 4: "four"})


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], list[bytes]], str, str]] = {
    "nothing": (lambda _: [], "no_descriptor", "the first message must say what the rows are for: a descriptor"),
    "no descriptor": (
        lambda _: [messages.of_schema(SCHEMA)],
        "no_descriptor",
        "the first message must say what the rows are for: a descriptor",
    ),
    "a path": (
        lambda _: [messages.of_schema(SCHEMA, b"\x08\x01\x1a\x01a\x1a\x01b")],
        "no_command",
        'say what to do with the rows in a command: {"operation": "insert", …}',
    ),
    "no message": (lambda asked: [*stream(asked, SCHEMA), b"\xff"], "bad_message", "this is no FlightData message that can be read"),
    "rows before a schema": (
        lambda asked: [*stream(asked, None), *stream(asked, SCHEMA, NEW.to_batches())[1:]],
        "no_schema",
        "the rows begin with a record batch; a schema must come before them",
    ),
    "a second schema": (
        lambda asked: [*stream(asked, SCHEMA), messages.of_schema(SCHEMA)],
        "no_rows",
        "a schema comes where rows should; a stream has one schema",
    ),
    "a second descriptor": (
        lambda asked: [*stream(asked, SCHEMA), *stream(asked, SCHEMA)],
        "late_descriptor",
        "only the first message of a stream has a descriptor",
    ),
    "no columns": (
        lambda asked: stream(asked, pa.schema([])),
        "column_mismatch",
        "column mismatch: table has 2 columns, input has 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_stream_that_is_none_is_refused(house: House, table: Shown, kind: str) -> None:
    sent, reason, sentence = BROKEN[kind]
    for asked in (table.insert(), table.update([1])):
        with pytest.raises(Refused) as refusal:
            house.raw.put(sent(asked))
        assert (refusal.value.code, refusal.value.reason) == ("INVALID_ARGUMENT", reason)
        assert refusal.value.sentence == sentence
    assert table.version == 1


def test_the_raw_client_hears_the_reason_and_the_facts(house: House, table: Shown) -> None:
    raw = ByGrpc(house.raw)
    with pytest.raises(Refused) as refusal:
        raw.put(table.update([1, 77, 78]), pa.concat_tables([NEW, NEW.slice(1)]))
    assert (refusal.value.reason, refusal.value.facts) == ("row_not_found", {"row_id": 77, "missing_rows": 2})


WRITES: dict[str, Callable[[Client, Shown], Any]] = {
    "INSERT": lambda client, table: client.put(table.insert(), NEW),
    "UPDATE": lambda client, table: client.put(table.update([1, 2]), NEW),
    "DELETE": lambda client, table: client.act("delete", table.delete([1])),
}


@pytest.mark.parametrize("verb", WRITES)
@pytest.mark.parametrize("kind", ["gRPC", "pyarrow"])
def test_developers_write_and_nobody_below_nobody_else(house: House, table: Shown, verb: str, kind: str) -> None:
    def client(sent: str) -> Client:
        return (
            ByArrow(house.address, sent)
            if kind == "pyarrow"
            else ByGrpc(Raw(house.service, sent, channel=house.raw.channel))
        )

    for sent, code, sentence in (
        (token(Role.VIEWER), "PERMISSION_DENIED", "this needs the role analytics.developer; ada has analytics.viewer"),
        (token(tenant=OTHER), "NOT_FOUND", "schema 'analytics' not found"),
        ("x", "UNAUTHENTICATED", "the token is not a JWT that can be read"),
    ):
        with pytest.raises(Refused) as refusal:
            WRITES[verb](client(sent), table)
        assert (refusal.value.code, refusal.value.sentence) == (code, sentence)
    assert table.version == 1
    WRITES[verb](client(token(Role.DEVELOPER)), table)
    WRITES[verb](client(token(Role.ADMIN)), table)
    assert table.version == (2 if verb == "DELETE" else 3)


def test_names_are_found_in_any_case(client: Client, table: Shown) -> None:
    named = {"schema_name": "ANALYTICS", "table_name": table.name.upper()}
    assert client.put({**table.insert(), **named}, NEW)["affected_rows"] == 2
    assert table.version == 2


def test_a_million_ids_go_into_one_call(tmp_path: Path, soak: bool) -> None:
    count = 1_000_000 if soak else 100_000
    rows = pa.table({"id": range(count), "word": ["w"] * count}, SCHEMA)
    with open_house(Place.make(tmp_path / "workspace", None)) as house:
        table, raw = house.table(rows), ByGrpc(house.raw)
        ids = list(range(count, 0, -1))
        assert raw.put(table.update(ids), list(pieces(rows, 10_000)))["affected_rows"] == count
        there = table.dataset.to_arrow(row_ids=True)
        assert all(
            id + row == count for id, row in zip(there["rowid"].to_pylist(), there["id"].to_pylist(), strict=True)
        )
        assert raw.act("delete", table.delete(ids))["affected_rows"] == count
        assert table.dataset.now().num_rows == 0
