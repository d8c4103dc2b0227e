"""What clients ask for is read strictly, and what is wrong with it is said exactly."""

import base64
import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from edges.flight.stage import command, path
from penstock.errors import Invalid, NotFound, PenstockError
from penstock.flight import commands
from penstock.flight.commands import CreateTransaction, Delete, Insert, ListTables, Table, TableTicket, Update
from penstock.flight.flight_pb2 import FlightDescriptor

MOST = 5_000
AT = {"schema_name": "a", "table_name": "b"}
ID = "550e8400-e29b-41d4-a716-446655440000"


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_an_insert_has_a_table_and_what_else_is_said() -> None:
    assert commands.put(command(operation="insert", **AT), MOST) == Insert("a", "b")
    said = {"returning": True, "expected_rows": 0, "idempotency_key": "k"}
    assert commands.put(command(operation="insert", **AT, **said), MOST) == Insert("a", "b", True, 0, "k")
    assert commands.put(command(operation="insert", **AT, returning=None), MOST) == Insert("a", "b")


IDS: list[list[int]] = [
    [],
    [1],
    [-(2**63), 2**63 - 1, 0],
    [3, 1, 3],
    list(range(MOST)),
    [2**62 + i for i in range(MOST)],
]


@pytest.mark.parametrize("ids", IDS, ids=len)
def test_row_ids_are_an_array_in_the_order_sent_few_or_many(ids: list[int]) -> None:
    update = commands.put(command(operation="update", **AT, row_ids=ids, returning=True), MOST)
    assert isinstance(update, Update)
    assert (update.row_ids.type, update.row_ids.to_pylist(), update.returning) == (pa.int64(), ids, True)
    spread = json.dumps({"row_ids": ids, **AT}, indent=3).replace("\n", "\r\n\t").encode()
    deletion = commands.delete(spread, MOST)
    assert isinstance(deletion, Delete)
    assert deletion.row_ids.to_pylist() == ids


NO_IDS: list[Any] = [
    [True], [1.0], [1.5], [None], ["1"], [2**63], [-(2**63) - 1], [[1]], {}, "1", 1, True,
]  # fmt: skip
PADDING = [1_000_000] * (MOST - 1)  # so many are read in another way


@pytest.mark.parametrize("ids", NO_IDS, ids=str)
@pytest.mark.parametrize("many", [False, True])
def test_what_is_no_list_of_whole_numbers_is_refused_few_or_many(ids: Any, many: bool) -> None:
    given = PADDING + ids if many and isinstance(ids, list) else ids
    with pytest.raises(Invalid) as refusal:
        commands.delete(body(**AT, row_ids=given), MOST)
    assert refusal.value.reason == "bad_member"
    assert refusal.value.message == "'row_ids' in the body of delete must be a list of whole numbers of 64 bits"


ODD_IDS = [b"1,,2", b"1 2", b"01", b"1,", b",1", b"+1", b"-", b"1e3", b"0x1", b"1,]", b"1;2"]


@pytest.mark.parametrize("odd", ODD_IDS)
@pytest.mark.parametrize("many", [False, True])
def test_numbers_are_written_as_in_json_few_or_many(odd: bytes, many: bool) -> None:
    numbers = json.dumps(PADDING if many else [1])[1:-1].encode() + b"," + odd
    with pytest.raises(Invalid) as refusal:
        commands.delete(b'{"schema_name": "a", "table_name": "b", "row_ids": [' + numbers + b"]}", 2 * MOST)
    assert refusal.value.reason in ("bad_member", "bad_json")


def test_many_numbers_in_another_place_are_no_row_ids() -> None:
    for odd in (
        {**AT, "inner": {"row_ids": PADDING}, "row_ids": []},
        {**AT, 'x"row_ids': PADDING, "row_ids": []},
        {**AT, "inner": {"row_ids": PADDING}},
    ):
        with pytest.raises(Invalid):
            commands.delete(body(**odd), MOST)
    doubled = body(**AT, row_ids=PADDING)[:-1] + b', "row_ids": []}'
    with pytest.raises(Invalid, match="'row_ids' is there twice"):
        commands.delete(doubled, MOST)
    with pytest.raises(Invalid, match="'row_ids' is no member of the ticket"):
        commands.ticket(body(**AT, row_ids=PADDING))


@pytest.mark.parametrize("ids", [[1] * (MOST + 1), [2**60] * (MOST + 1)], ids=["short", "long"])
def test_too_many_row_ids_hear_the_limit(ids: list[int]) -> None:
    with pytest.raises(Invalid) as refusal:
        commands.delete(body(**AT, row_ids=ids), MOST)
    assert (refusal.value.reason, refusal.value.message) == (
        "too_many_row_ids",
        "5,001 row_ids are too many: at most 5,000 go into one call",
    )


def test_a_ticket_says_which_rows_of_which_version() -> None:
    assert commands.ticket(body(**AT)) == TableTicket("a", "b")
    asked = {"version": 3, "columns": ["x", "y"], "filter": "x > 1", "rowid": True}
    assert commands.ticket(body(**AT, **asked)) == TableTicket("a", "b", 3, ("x", "y"), "x > 1", True)
    assert commands.described(path("a", "b")) == TableTicket("a", "b")
    assert commands.described(command(**AT, version=3)) == TableTicket("a", "b", 3)


def test_the_bodies_of_actions() -> None:
    schema = pa.schema([pa.field("x", pa.int32(), nullable=False)])
    coded = base64.b64encode(schema.serialize()).decode()
    made = commands.create_table(body(**AT, arrow_schema=coded, row_ids=False))
    assert (made.schema_name, made.table_name, made.row_ids, made.read_only) == ("a", "b", False, False)
    assert made.arrow_schema.equals(schema)
    assert commands.drop_table(body(**AT)) == Table("a", "b")
    assert commands.create_transaction(b"") == commands.create_transaction(b"{}") == CreateTransaction(None)
    assert commands.create_transaction(body(auto_commit=True)) == CreateTransaction(True)
    assert commands.transaction_ref(body(transaction_id=ID), "x").transaction_id == UUID(ID)
    assert commands.list_tables(b"") == ListTables(None)
    assert commands.list_tables(body(schema_name="a")) == ListTables("a")
    commands.list_schemas(b"")


REFUSED: list[tuple[bytes, str, str]] = [
    (b"", "bad_json", "the ticket is not JSON: Expecting value at line 1, column 1"),
    (b"\xff", "bad_json", "the ticket is not UTF-8"),
    (b"[]", "no_object", "the ticket must be a JSON object"),
    (b'{"schema_name": "a", "schema_name": "a"}', "bad_json", "the ticket is not JSON: member 'schema_name' is there twice"),
    (body(schema_name="a"), "missing_member", "the ticket lacks 'table_name'"),
    (body(schema_name=1, table_name="b"), "bad_member", "'schema_name' in the ticket must be text"),
    (body(schema_name="a\0", table_name="b"), "bad_member", "'schema_name' in the ticket must be text"),
    (body(**AT, version=0), "bad_member", "'version' in the ticket must be a whole number from 1 on"),
    (body(**AT, version=True), "bad_member", "'version' in the ticket must be a whole number from 1 on"),
    (body(**AT, version=2**63), "bad_member", "'version' in the ticket must be a whole number from 1 on"),
    (body(**AT, columns="x"), "bad_member", "'columns' in the ticket must be a list of names"),
    (body(**AT, columns=[1]), "bad_member", "'columns' in the ticket must be a list of names"),
    (body(**AT, rowid="yes"), "bad_member", "'rowid' in the ticket must be true or false"),
    (
        body(**AT, limit=1),
        "unknown_member",
        "'limit' is no member of the ticket; there are: schema_name, table_name, version, columns, filter, rowid",
    ),
    (body(**AT, filter="x" * (5 << 20)), "command_too_large", "the ticket may have 4,194,304 bytes, row ids aside"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "reason", "sentence"), REFUSED, ids=[reason for _, reason, _ in REFUSED])
def test_what_is_wrong_is_said_exactly(given: bytes, reason: str, sentence: str) -> None:
    with pytest.raises(Invalid) as refusal:
        commands.ticket(given)
    assert (refusal.value.reason, refusal.value.message) == (reason, sentence)


BAD_PUTS: list[tuple[FlightDescriptor, str]] = [
    (path("a", "b"), "no_command"),
    (FlightDescriptor(), "no_command"),
    (command(**AT), "missing_member"),
    (command(operation="merge", **AT), "unknown_operation"),
    (command(operation="delete", **AT, row_ids=[1]), "unknown_operation"),
    (command(operation="update", **AT), "missing_member"),
    (command(operation="insert", **AT, row_ids=[1]), "unknown_member"),
    (command(operation="insert", **AT, expected_rows=-1), "bad_member"),
]


@pytest.mark.parametrize(("given", "reason"), BAD_PUTS, ids=[reason for _, reason in BAD_PUTS])
def test_rows_need_a_command_that_is_known(given: FlightDescriptor, reason: str) -> None:
    with pytest.raises(Invalid) as refusal:
        commands.put(given, MOST)
    assert refusal.value.reason == reason


@pytest.mark.parametrize("given", [path(), path("a"), path("a", "b", "c"), FlightDescriptor()], ids=str)
def test_a_path_has_two_words(given: FlightDescriptor) -> None:
    with pytest.raises(Invalid) as refusal:
        commands.described(given)
    assert refusal.value.reason == "no_table"


@pytest.mark.parametrize("coded", ["", "!", "AAAA", base64.b64encode(b"\xff" * 100).decode(), 1])
def test_a_table_s_schema_is_an_arrow_message_in_base64(coded: Any) -> None:
    with pytest.raises(Invalid) as refusal:
        commands.create_table(body(**AT, arrow_schema=coded))
    assert refusal.value.reason == "bad_member"


@pytest.mark.parametrize("given", ["", "x", f"{{{ID}}}", ID.replace("-", ""), "1" * 10_000])
def test_what_can_be_no_transaction_is_not_found(given: str) -> None:
    with pytest.raises(PenstockError) as refusal:
        commands.transaction_ref(body(transaction_id=given), "commit_transaction")
    assert isinstance(refusal.value, NotFound)
    assert refusal.value.reason == "transaction_not_found"
