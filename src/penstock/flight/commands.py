"""Parse the commands of clients from JSON: descriptors, tickets and the bodies of actions."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from penstock.core.names import MAX_COLUMNS, DatasetName, parse_uuid
from penstock.core.payload import json_cost
from penstock.core.payload.documents import parse_json
from penstock.core.payload.object_reader import ObjectReader, Problem, ReaderRules
from penstock.errors import Invalid, NotFound
from penstock.flight.flight_pb2 import FlightDescriptor
from penstock.service.datasets import ipc_batches

_MAX_COMMAND_BYTES = 64 << 10  # not counting row ids
_MAX_TICKET_BYTES = 1 << 20  # a ticket may name all columns of a wide table
_MAX_CREATE_BYTES = 2 << 20  # the base64 of a schema message
_MAX_VALUES = 16_384  # of a command; parsed values take far more memory than their text
_ROW_IDS_MEMBER = "row_ids"
_ROW_IDS = re.compile(rb'"row_ids"\s*:\s*\[')
_ARROW_ROW_IDS_BYTES = 4_096  # longer lists of row ids are parsed by Arrow
_INTEGER_LIST = r"^\s*-?(0|[1-9][0-9]*)\s*(,\s*-?(0|[1-9][0-9]*)\s*)*$"
_ONE_COLUMN = pacsv.ReadOptions(column_names=["id"], use_threads=False)
_NO_NULLS = pacsv.ConvertOptions(column_types={"id": pa.int64()}, null_values=[])
_EXPECTED = {  # in the message of bad_member
    Problem.NOT_TEXT: "text",
    Problem.INVALID_CHARACTERS: "text",
    Problem.NOT_A_FLAG: "true or false",
    Problem.NOT_AN_INTEGER: "a whole number, {minimum} or more",
    Problem.NOT_A_LIST: "a list of names",
    Problem.TOO_MANY_ITEMS: "a list of names",
    Problem.BAD_VALUE: "{expected}",
}


@dataclass(frozen=True, slots=True)
class TableName:
    """The table of a command. The names are not validated: an invalid name is one that does not exist."""

    schema_name: str
    table_name: str


@dataclass(frozen=True, slots=True)
class DropTable(TableName):
    force: bool = False  # drop the table even if registered queries read it


@dataclass(frozen=True, slots=True)
class PutCommand(TableName):
    """The members that inserts and updates have in common."""

    returning: bool = False
    expected_rows: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class InsertCommand(PutCommand):
    pass


@dataclass(frozen=True, slots=True)
class UpdateCommand(PutCommand):
    row_ids: pa.Array = None  # int64


@dataclass(frozen=True, slots=True)
class DeleteCommand(TableName):
    row_ids: pa.Array = None  # int64
    returning: bool = False
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class TableTicket(TableName):
    version: int | None = None  # None: the newest
    columns: tuple[str, ...] | None = None  # None: all
    filter: str | None = None
    rowid: bool = False


@dataclass(frozen=True, slots=True)
class CreateTransaction:
    auto_commit: bool | None = None  # None: the server's default


@dataclass(frozen=True, slots=True)
class TransactionRef:
    transaction_id: UUID


@dataclass(frozen=True, slots=True)
class ListTables:
    schema_name: str | None = None  # None: all


@dataclass(frozen=True, slots=True)
class CreateTable(TableName):
    arrow_schema: pa.Schema = None
    row_ids: bool = True
    read_only: bool = False

    @property
    def name(self) -> DatasetName:
        return DatasetName(self.schema_name, self.table_name)


def parse_put(descriptor: FlightDescriptor, max_row_ids: int) -> InsertCommand | UpdateCommand:
    """Return the command in the descriptor of a DoPut stream."""
    if descriptor.type != FlightDescriptor.CMD:
        raise Invalid("missing_command")
    reader = _read_object(descriptor.cmd, "the descriptor")
    match reader.text("operation", "", required=True):
        case "insert":
            command: InsertCommand | UpdateCommand = InsertCommand(*_read_table_name(reader), **_read_options(reader))
        case "update":
            table, options = _read_table_name(reader), _read_options(reader)
            command = UpdateCommand(*table, **options, row_ids=_read_row_ids(reader, max_row_ids))
        case other:
            raise Invalid("unknown_operation.put", {"operation": other[:80]})
    reader.reject_unknown()
    return command


def parse_delete(body: bytes, max_row_ids: int) -> DeleteCommand:
    reader = _read_object(body, "the body of delete")
    command = DeleteCommand(
        *_read_table_name(reader),
        _read_row_ids(reader, max_row_ids),
        reader.flag("returning", False),
        reader.text("idempotency_key", None),
    )
    reader.reject_unknown()
    return command


def parse_descriptor(descriptor: FlightDescriptor) -> TableTicket:
    """Return the table of a descriptor: a path of two names, or a command with the members of a ticket."""
    if descriptor.type == FlightDescriptor.CMD:
        return parse_ticket(descriptor.cmd, "the descriptor")
    if descriptor.type != FlightDescriptor.PATH or len(descriptor.path) != 2:
        raise Invalid("missing_table")
    return TableTicket(*descriptor.path)


def parse_ticket(body: bytes, source: str = "the ticket") -> TableTicket:
    reader = _read_object(body, source, max_bytes=_MAX_TICKET_BYTES)
    command = TableTicket(
        *_read_table_name(reader),
        reader.integer("version", 1, None),
        _read_columns(reader),
        reader.text("filter", None),
        reader.flag("rowid", False),
    )
    reader.reject_unknown()
    return command


def parse_create_transaction(body: bytes) -> CreateTransaction:
    reader = _read_object(body or b"{}", "the body of create_transaction")
    command = CreateTransaction(reader.flag("auto_commit", None))
    reader.reject_unknown()
    return command


def parse_transaction_ref(body: bytes, action: str) -> TransactionRef:
    reader = _read_object(body, f"the body of {action}")
    command = TransactionRef(parse_transaction_id(reader.text("transaction_id", "", required=True)))
    reader.reject_unknown()
    return command


def parse_transaction_id(text: str) -> UUID:
    """Return a transaction id. Text that is not a UUID is an id that does not exist."""
    if id := parse_uuid(text):
        return id
    raise transaction_not_found(text)


def transaction_not_found(text: str) -> NotFound:
    return NotFound("transaction_not_found.id", {"id": text[:60]})


def parse_list_schemas(body: bytes) -> None:
    _read_object(body or b"{}", "the body of list_schemas").reject_unknown()


def parse_list_tables(body: bytes) -> ListTables:
    reader = _read_object(body or b"{}", "the body of list_tables")
    command = ListTables(reader.text("schema_name", None))
    reader.reject_unknown()
    return command


def parse_create_table(body: bytes) -> CreateTable:
    reader = _read_object(body, "the body of create_table", max_bytes=_MAX_CREATE_BYTES)
    command = CreateTable(
        *_read_table_name(reader),
        _read_schema(reader, "arrow_schema"),
        reader.flag("row_ids", True),
        reader.flag("read_only", False),
    )
    reader.reject_unknown()
    return command


def parse_drop_table(body: bytes) -> DropTable:
    reader = _read_object(body, "the body of drop_table")
    command = DropTable(*_read_table_name(reader), reader.flag("force", False))
    reader.reject_unknown()
    return command


def _read_object(body: bytes, source: str, *, max_bytes: int = _MAX_COMMAND_BYTES) -> ObjectReader:
    """Parse a JSON object, and return a reader that raises the first error; `source` names the object in messages.

    A long list of row ids is not parsed: it is the member row_ids as bytes.
    """
    body, row_ids = _extract_row_ids(body)
    if len(body) > max_bytes:
        raise Invalid("command_too_large", {"source": source}, limit=max_bytes)
    if json_cost.has_more_values(body, _MAX_VALUES):
        raise Invalid("command_too_large.values", {"source": source}, limit=_MAX_VALUES)
    members = parse_json(body, source)
    if row_ids is not None and isinstance(members, dict) and members.get(_ROW_IDS_MEMBER) == []:
        members[_ROW_IDS_MEMBER] = row_ids
    return ObjectReader(members, ReaderRules(partial(_to_error, source), strict=True))


def _to_error(source: str, problem: Problem, member: str, values: Mapping[str, Any]) -> Invalid:
    match problem:
        case Problem.NOT_AN_OBJECT:
            return Invalid("not_an_object", {"source": source})
        case Problem.MISSING_MEMBER:
            return Invalid("missing_member.command", {"source": source}, member=member)
        case Problem.UNKNOWN_MEMBER:
            valid = values["valid"] or "none"
            return Invalid("unknown_member.command", {"unknown": member[:80], "source": source, "valid": valid})
    expected = _EXPECTED[problem].format_map(values)
    return Invalid("bad_member.command", {"source": source, "expected": expected}, member=member)


def _read_table_name(reader: ObjectReader) -> tuple[str, str]:
    return reader.text("schema_name", "", required=True), reader.text("table_name", "", required=True)


def _read_options(reader: ObjectReader) -> dict[str, Any]:
    return {
        "returning": reader.flag("returning", False),
        "expected_rows": reader.integer("expected_rows", 0, None),
        "idempotency_key": reader.text("idempotency_key", None),
    }


def _read_columns(reader: ObjectReader) -> tuple[str, ...] | None:
    names = reader.items("columns", MAX_COLUMNS, accept_empty=True)
    if not all(isinstance(name, str) for name in names):
        reader.report("columns", Problem.NOT_A_LIST)
    return tuple(names) if "columns" in reader else None


def _read_schema(reader: ObjectReader, name: str) -> pa.Schema:
    text = reader.text(name, "", required=True)
    try:
        return ipc_batches.decode_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError) as cause:  # Invalid is a ValueError
        if isinstance(cause, Invalid) and cause.reason == "schema_too_large":
            raise
        error = reader.to_error(name, Problem.BAD_VALUE, expected="the base64 of an Arrow IPC schema message")
        raise error from None


def _read_row_ids(reader: ObjectReader, max_row_ids: int) -> pa.Array:
    """Read the member row_ids as an int64 array."""
    reader.require(_ROW_IDS_MEMBER)
    ids = reader.get(_ROW_IDS_MEMBER)
    count = ids.count(b",") + 1 if isinstance(ids, bytes) else len(ids) if isinstance(ids, list) else 0
    if count > max_row_ids:
        raise Invalid("too_many_row_ids", {"count": count}, limit=max_row_ids)
    try:
        if isinstance(ids, bytes):
            return _parse_integers(ids)
        if isinstance(ids, list) and set(map(type, ids)) <= {int}:  # excludes bool, a subclass of int
            return pa.array(ids, pa.int64())
    except (OverflowError, ValueError):
        pass
    raise reader.to_error(_ROW_IDS_MEMBER, Problem.BAD_VALUE, expected="a list of 64-bit whole numbers")


def _extract_row_ids(body: bytes) -> tuple[bytes, bytes | None]:
    """Cut a long list of row ids out of a command and return the command and the list as text.

    Python's JSON parser would create an object for each id and hold the interpreter lock meanwhile. A list that is cut
    out of another object is not a problem, because no other object may have a member of that name.
    """
    begin = _ROW_IDS.search(body)
    end = body.find(b"]", begin.end()) if begin else -1
    if begin is None or end - begin.end() < _ARROW_ROW_IDS_BYTES:
        return body, None
    ids = body[begin.end() : end]
    if any(character in ids for character in (b"[", b'"')):  # the bracket found may not be the end of the list
        return body, None
    return body[: begin.end()] + body[end:], ids


def _parse_integers(text: bytes) -> pa.Array:
    """Parse comma-separated integers; raise ValueError for any other text."""
    whole = pa.Array.from_buffers(
        pa.large_binary(), 1, [None, pa.array([0, len(text)], pa.int64()).buffers()[1], pa.py_buffer(text)]
    )
    if not pc.match_substring_regex(whole, _INTEGER_LIST)[0].as_py():
        raise ValueError("not a list of integers")
    lines = text.translate(None, b" \t\r\n").replace(b",", b"\n")
    return pacsv.read_csv(pa.BufferReader(lines), _ONE_COLUMN, convert_options=_NO_NULLS)["id"].combine_chunks()
