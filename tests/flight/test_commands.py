"""Strict parsing of client commands, with exact error messages."""

import base64
import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from flight.raw_client import command_descriptor, path_descriptor
from penstock.errors import Invalid, NotFound, PenstockError
from penstock.flight import commands
from penstock.flight.commands import (
    CreateTransaction,
    DeleteCommand,
    DropTable,
    InsertCommand,
    ListTables,
    TableTicket,
    UpdateCommand,
)
from penstock.flight.flight_pb2 import FlightDescriptor

MAX_ROW_IDS = 5_000
TABLE_REFERENCE = {"schema_name": "a", "table_name": "b"}
TRANSACTION_ID = "550e8400-e29b-41d4-a716-446655440000"


def encode_body(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_parse_put_insert_returns_table_and_options() -> None:
    assert commands.parse_put(command_descriptor(operation="insert", **TABLE_REFERENCE), MAX_ROW_IDS) == InsertCommand(
        "a", "b"
    )
    options = {"returning": True, "expected_rows": 0, "idempotency_key": "k"}
    assert commands.parse_put(
        command_descriptor(operation="insert", **TABLE_REFERENCE, **options), MAX_ROW_IDS
    ) == InsertCommand("a", "b", True, 0, "k")
    assert commands.parse_put(
        command_descriptor(operation="insert", **TABLE_REFERENCE, returning=None), MAX_ROW_IDS
    ) == InsertCommand("a", "b")


ROW_ID_LISTS: list[list[int]] = [
    [],
    [1],
    [-(2**63), 2**63 - 1, 0],
    [3, 1, 3],
    list(range(MAX_ROW_IDS)),
    [2**62 + i for i in range(MAX_ROW_IDS)],
]


@pytest.mark.parametrize("ids", ROW_ID_LISTS, ids=len)
def test_row_ids_keep_order_in_short_and_long_lists(ids: list[int]) -> None:
    update = commands.parse_put(
        command_descriptor(operation="update", **TABLE_REFERENCE, row_ids=ids, returning=True), MAX_ROW_IDS
    )
    assert isinstance(update, UpdateCommand)
    assert (update.row_ids.type, update.row_ids.to_pylist(), update.returning) == (pa.int64(), ids, True)
    indented = json.dumps({"row_ids": ids, **TABLE_REFERENCE}, indent=3).replace("\n", "\r\n\t").encode()
    deletion = commands.parse_delete(indented, MAX_ROW_IDS)
    assert isinstance(deletion, DeleteCommand)
    assert deletion.row_ids.to_pylist() == ids


INVALID_ROW_IDS: list[Any] = [
    [True], [1.0], [1.5], [None], ["1"], [2**63], [-(2**63) - 1], [[1]], {}, "1", 1, True,
]  # fmt: skip
PADDING = [1_000_000] * (MAX_ROW_IDS - 1)  # long lists have a separate parser


@pytest.mark.parametrize("ids", INVALID_ROW_IDS, ids=str)
@pytest.mark.parametrize("in_long_list", [False, True])
def test_row_ids_that_are_not_integers_are_rejected(ids: Any, in_long_list: bool) -> None:
    payload = PADDING + ids if in_long_list and isinstance(ids, list) else ids
    with pytest.raises(Invalid) as raised:
        commands.parse_delete(encode_body(**TABLE_REFERENCE, row_ids=payload), MAX_ROW_IDS)
    assert raised.value.reason == "bad_member"
    assert raised.value.message == "The member 'row_ids' in the body of delete must be a list of 64-bit whole numbers"


MALFORMED_ROW_IDS = [b"1,,2", b"1 2", b"01", b"1,", b",1", b"+1", b"-", b"1e3", b"0x1", b"1,]", b"1;2"]


@pytest.mark.parametrize("malformed", MALFORMED_ROW_IDS)
@pytest.mark.parametrize("in_long_list", [False, True])
def test_row_ids_must_be_json_numbers(malformed: bytes, in_long_list: bool) -> None:
    numbers = json.dumps(PADDING if in_long_list else [1])[1:-1].encode() + b"," + malformed
    with pytest.raises(Invalid) as raised:
        commands.parse_delete(
            b'{"schema_name": "a", "table_name": "b", "row_ids": [' + numbers + b"]}", 2 * MAX_ROW_IDS
        )
    assert raised.value.reason in ("bad_member", "bad_json")


def test_long_list_in_another_member_is_not_row_ids() -> None:
    for members in (
        {**TABLE_REFERENCE, "inner": {"row_ids": PADDING}, "row_ids": []},
        {**TABLE_REFERENCE, 'x"row_ids': PADDING, "row_ids": []},
        {**TABLE_REFERENCE, "inner": {"row_ids": PADDING}},
    ):
        with pytest.raises(Invalid):
            commands.parse_delete(encode_body(**members), MAX_ROW_IDS)
    duplicate_member = encode_body(**TABLE_REFERENCE, row_ids=PADDING)[:-1] + b', "row_ids": []}'
    with pytest.raises(Invalid, match="'row_ids' is duplicated"):
        commands.parse_delete(duplicate_member, MAX_ROW_IDS)
    with pytest.raises(Invalid, match="Unknown member 'row_ids' in the ticket"):
        commands.parse_ticket(encode_body(**TABLE_REFERENCE, row_ids=PADDING))


@pytest.mark.parametrize("ids", [[1] * (MAX_ROW_IDS + 1), [2**60] * (MAX_ROW_IDS + 1)], ids=["short", "long"])
def test_too_many_row_ids_reports_the_limit(ids: list[int]) -> None:
    with pytest.raises(Invalid) as raised:
        commands.parse_delete(encode_body(**TABLE_REFERENCE, row_ids=ids), MAX_ROW_IDS)
    assert (raised.value.reason, raised.value.message) == (
        "too_many_row_ids",
        "Too many row_ids: 5,001. The limit is 5,000 per call",
    )


def test_parse_ticket_returns_version_columns_and_filter() -> None:
    assert commands.parse_ticket(encode_body(**TABLE_REFERENCE)) == TableTicket("a", "b")
    options = {"version": 3, "columns": ["x", "y"], "filter": "x > 1", "rowid": True}
    assert commands.parse_ticket(encode_body(**TABLE_REFERENCE, **options)) == TableTicket(
        "a", "b", 3, ("x", "y"), "x > 1", True
    )
    assert commands.parse_descriptor(path_descriptor("a", "b")) == TableTicket("a", "b")
    assert commands.parse_descriptor(command_descriptor(**TABLE_REFERENCE, version=3)) == TableTicket("a", "b", 3)


def test_parse_action_bodies() -> None:
    schema = pa.schema([pa.field("x", pa.int32(), nullable=False)])
    encoded = base64.b64encode(schema.serialize()).decode()
    create_table = commands.parse_create_table(encode_body(**TABLE_REFERENCE, arrow_schema=encoded, row_ids=False))
    assert (create_table.schema_name, create_table.table_name, create_table.row_ids, create_table.read_only) == (
        "a",
        "b",
        False,
        False,
    )
    assert create_table.arrow_schema.equals(schema)
    assert commands.parse_drop_table(encode_body(**TABLE_REFERENCE)) == DropTable("a", "b")
    assert commands.parse_drop_table(encode_body(**TABLE_REFERENCE, force=True)) == DropTable("a", "b", force=True)
    assert commands.parse_create_transaction(b"") == commands.parse_create_transaction(b"{}") == CreateTransaction(None)
    assert commands.parse_create_transaction(encode_body(auto_commit=True)) == CreateTransaction(True)
    assert commands.parse_transaction_ref(encode_body(transaction_id=TRANSACTION_ID), "x").transaction_id == UUID(
        TRANSACTION_ID
    )
    assert commands.parse_list_tables(b"") == ListTables(None)
    assert commands.parse_list_tables(encode_body(schema_name="a")) == ListTables("a")
    commands.parse_list_schemas(b"")


INVALID_TICKETS: list[tuple[bytes, str, str]] = [
    (b"", "bad_json", "the ticket is not valid JSON: Expecting value at line 1, column 1"),
    (b"\xff", "bad_json", "the ticket is not valid UTF-8"),
    (b"[]", "not_an_object", "Expected a JSON object in the ticket"),
    (b'{"schema_name": "a", "schema_name": "a"}', "bad_json", "the ticket is not valid JSON: member 'schema_name' is duplicated"),
    (encode_body(schema_name="a"), "missing_member", "Missing member 'table_name' in the ticket"),
    (encode_body(schema_name=1, table_name="b"), "bad_member", "The member 'schema_name' in the ticket must be text"),
    (encode_body(schema_name="a\0", table_name="b"), "bad_member", "The member 'schema_name' in the ticket must be text"),
    (encode_body(**TABLE_REFERENCE, version=0), "bad_member", "The member 'version' in the ticket must be a whole number, 1 or more"),
    (encode_body(**TABLE_REFERENCE, version=True), "bad_member", "The member 'version' in the ticket must be a whole number, 1 or more"),
    (encode_body(**TABLE_REFERENCE, version=2**63), "bad_member", "The member 'version' in the ticket must be a whole number, 1 or more"),
    (encode_body(**TABLE_REFERENCE, columns="x"), "bad_member", "The member 'columns' in the ticket must be a list of names"),
    (encode_body(**TABLE_REFERENCE, columns=[1]), "bad_member", "The member 'columns' in the ticket must be a list of names"),
    (encode_body(**TABLE_REFERENCE, rowid="yes"), "bad_member", "The member 'rowid' in the ticket must be true or false"),
    (
        encode_body(**TABLE_REFERENCE, limit=1),
        "unknown_member",
        "Unknown member 'limit' in the ticket. Valid members: schema_name, table_name, version, columns, filter, rowid",
    ),
    (encode_body(**TABLE_REFERENCE, filter="x" * (5 << 20)), "command_too_large", "Too many bytes in the ticket. The limit is 1,048,576, not counting row ids"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "reason", "message"), INVALID_TICKETS, ids=[reason for _, reason, _ in INVALID_TICKETS]
)
def test_parse_ticket_reports_each_error(payload: bytes, reason: str, message: str) -> None:
    with pytest.raises(Invalid) as raised:
        commands.parse_ticket(payload)
    assert (raised.value.reason, raised.value.message) == (reason, message)


BAD_PUTS: list[tuple[FlightDescriptor, str]] = [
    (path_descriptor("a", "b"), "missing_command"),
    (FlightDescriptor(), "missing_command"),
    (command_descriptor(**TABLE_REFERENCE), "missing_member"),
    (command_descriptor(operation="merge", **TABLE_REFERENCE), "unknown_operation"),
    (command_descriptor(operation="delete", **TABLE_REFERENCE, row_ids=[1]), "unknown_operation"),
    (command_descriptor(operation="update", **TABLE_REFERENCE), "missing_member"),
    (command_descriptor(operation="insert", **TABLE_REFERENCE, row_ids=[1]), "unknown_member"),
    (command_descriptor(operation="insert", **TABLE_REFERENCE, expected_rows=-1), "bad_member"),
]


@pytest.mark.parametrize(("payload", "reason"), BAD_PUTS, ids=[reason for _, reason in BAD_PUTS])
def test_parse_put_rejects_unknown_commands(payload: FlightDescriptor, reason: str) -> None:
    with pytest.raises(Invalid) as raised:
        commands.parse_put(payload, MAX_ROW_IDS)
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    "payload", [path_descriptor(), path_descriptor("a"), path_descriptor("a", "b", "c"), FlightDescriptor()], ids=str
)
def test_parse_descriptor_requires_path_of_two_names(payload: FlightDescriptor) -> None:
    with pytest.raises(Invalid) as raised:
        commands.parse_descriptor(payload)
    assert raised.value.reason == "missing_table"


@pytest.mark.parametrize("encoded", ["", "!", "AAAA", base64.b64encode(b"\xff" * 100).decode(), 1])
def test_parse_create_table_requires_base64_arrow_schema(encoded: Any) -> None:
    with pytest.raises(Invalid) as raised:
        commands.parse_create_table(encode_body(**TABLE_REFERENCE, arrow_schema=encoded))
    assert raised.value.reason == "bad_member"


@pytest.mark.parametrize("payload", ["", "x", f"{{{TRANSACTION_ID}}}", TRANSACTION_ID.replace("-", ""), "1" * 10_000])
def test_parse_transaction_id_with_invalid_uuid_is_not_found(payload: str) -> None:
    with pytest.raises(PenstockError) as raised:
        commands.parse_transaction_ref(encode_body(transaction_id=payload), "commit_transaction")
    assert isinstance(raised.value, NotFound)
    assert raised.value.reason == "transaction_not_found"
