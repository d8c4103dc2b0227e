"""What a client asks for, as data: descriptors, tickets and the bodies of actions, read strictly from JSON."""

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from penstock.core.names import MAX_COLUMNS, DatasetName, unstorable, uuid
from penstock.core.payload.documents import from_json
from penstock.errors import Invalid, NotFound
from penstock.flight.flight_pb2 import FlightDescriptor

_MOST_BYTES = 4 << 20  # of a command, its row ids aside
_LAST = 2**63 - 1
_IDS = re.compile(rb'"row_ids"\s*:\s*\[')
_MANY = 4_096  # bytes of row ids: so many are read by Arrow
_NUMBERS = r"^\s*-?(0|[1-9][0-9]*)\s*(,\s*-?(0|[1-9][0-9]*)\s*)*$"
_ONE_COLUMN = pacsv.ReadOptions(column_names=["id"], use_threads=False)
_NO_NULLS = pacsv.ConvertOptions(column_types={"id": pa.int64()}, null_values=[])


@dataclass(frozen=True, slots=True)
class Table:
    """The table that a command is about. Its names may be no names at all: then there is none."""

    schema_name: str
    table_name: str


@dataclass(frozen=True, slots=True)
class Put(Table):
    """What inserts and updates have in common."""

    returning: bool = False
    expected_rows: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Insert(Put):
    pass


@dataclass(frozen=True, slots=True)
class Update(Put):
    row_ids: pa.Array = None  # int64


@dataclass(frozen=True, slots=True)
class Delete(Table):
    row_ids: pa.Array = None  # int64
    returning: bool = False
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class TableTicket(Table):
    version: int | None = None  # None: the newest
    columns: tuple[str, ...] | None = None  # None: all
    filter: str | None = None
    rowid: bool = False


@dataclass(frozen=True, slots=True)
class CreateTransaction:
    auto_commit: bool | None = None  # None: as the server has it


@dataclass(frozen=True, slots=True)
class TransactionRef:
    transaction_id: UUID


@dataclass(frozen=True, slots=True)
class ListTables:
    schema_name: str | None = None  # None: all


@dataclass(frozen=True, slots=True)
class CreateTable(Table):
    arrow_schema: pa.Schema = None
    row_ids: bool = True
    read_only: bool = False

    @property
    def name(self) -> DatasetName:
        return DatasetName(self.schema_name, self.table_name)


def put(descriptor: FlightDescriptor, most_ids: int) -> Insert | Update:
    if descriptor.type != FlightDescriptor.CMD:
        raise Invalid("no_command", 'say what to do with the rows in a command: {"operation": "insert", …}')
    members = _Members(descriptor.cmd, "the descriptor", most_ids)
    match members.text("operation"):
        case "insert":
            command: Insert | Update = Insert(*members.table(), **members.put())
        case "update":
            command = Update(*members.table(), **members.put(), row_ids=members.ids())
        case other:
            raise Invalid(
                "unknown_operation", f"{other[:80]!r} is no operation here: insert and update are; delete is an action"
            )
    members.end()
    return command


def delete(body: bytes, most_ids: int) -> Delete:
    members = _Members(body, "the body of delete", most_ids)
    command = Delete(
        *members.table(), members.ids(), members.flag("returning", False), members.optional_text("idempotency_key")
    )
    members.end()
    return command


def described(descriptor: FlightDescriptor) -> TableTicket:
    """The table that a descriptor means: by its path, or by a command that could be its ticket."""
    if descriptor.type == FlightDescriptor.CMD:
        return ticket(descriptor.cmd, "the descriptor")
    if descriptor.type != FlightDescriptor.PATH or len(descriptor.path) != 2:
        raise Invalid("no_table", "a descriptor names a table: a path of two words, schema and table, or a command")
    return TableTicket(*descriptor.path)


def ticket(body: bytes, what: str = "the ticket") -> TableTicket:
    members = _Members(body, what)
    command = TableTicket(
        *members.table(),
        members.number("version", 1),
        members.texts("columns"),
        members.optional_text("filter"),
        members.flag("rowid", False),
    )
    members.end()
    return command


def create_transaction(body: bytes) -> CreateTransaction:
    members = _Members(body or b"{}", "the body of create_transaction")
    command = CreateTransaction(members.flag("auto_commit", None))
    members.end()
    return command


def transaction_ref(body: bytes, action: str) -> TransactionRef:
    members = _Members(body, f"the body of {action}")
    command = TransactionRef(transaction_id(members.text("transaction_id")))
    members.end()
    return command


def transaction_id(text: str) -> UUID:
    """What can be no transaction's id is one that is not there."""
    if id := uuid(text):
        return id
    raise no_transaction(text)


def no_transaction(text: str) -> NotFound:
    return NotFound("transaction_not_found", f"there is no transaction {text[:60]!a}")


def list_schemas(body: bytes) -> None:
    _Members(body or b"{}", "the body of list_schemas").end()


def list_tables(body: bytes) -> ListTables:
    members = _Members(body or b"{}", "the body of list_tables")
    command = ListTables(members.optional_text("schema_name"))
    members.end()
    return command


def create_table(body: bytes) -> CreateTable:
    members = _Members(body, "the body of create_table")
    command = CreateTable(
        *members.table(),
        members.schema("arrow_schema"),
        members.flag("row_ids", True),
        members.flag("read_only", False),
    )
    members.end()
    return command


def drop_table(body: bytes) -> Table:
    members = _Members(body, "the body of drop_table")
    command = Table(*members.table())
    members.end()
    return command


class _Members:
    """The members of a JSON object, each taken by its name and type. Those that are left at the end are refused."""

    def __init__(self, body: bytes, what: str, most_ids: int = 0) -> None:
        self._what, self._most_ids = what, most_ids
        self._known: list[str] = []
        body, self._ids = _cut_ids(body)
        if len(body) > _MOST_BYTES:
            raise Invalid(
                "command_too_large", f"{what} may have {_MOST_BYTES:,} bytes, row ids aside", limit=_MOST_BYTES
            )
        self._given = from_json(body, what)
        if not isinstance(self._given, dict):
            raise Invalid("no_object", f"{what} must be a JSON object")

    def end(self) -> None:
        if unknown := sorted(self._given.keys() - set(self._known)):
            known = ", ".join(self._known) or "none"
            raise Invalid("unknown_member", f"{unknown[0][:80]!r} is no member of {self._what}; there are: {known}")

    def table(self) -> tuple[str, str]:
        return self.text("schema_name"), self.text("table_name")

    def put(self) -> dict[str, Any]:
        return {
            "returning": self.flag("returning", False),
            "expected_rows": self.number("expected_rows", 0),
            "idempotency_key": self.optional_text("idempotency_key"),
        }

    def text(self, name: str) -> str:
        found = self.optional_text(name)
        if found is None:
            raise self._missing(name)
        return found

    def optional_text(self, name: str) -> str | None:
        match self._take(name):
            case None:
                return None
            case str(found) if not unstorable(found):
                return found
        raise self._bad(name, "text")

    def texts(self, name: str) -> tuple[str, ...] | None:
        match self._take(name):
            case None:
                return None
            case [*found] if len(found) <= MAX_COLUMNS and all(isinstance(each, str) for each in found):
                return tuple(found)
        raise self._bad(name, "a list of names")

    def flag(self, name: str, default: bool | None) -> Any:
        match self._take(name):
            case None:
                return default
            case bool(found):
                return found
        raise self._bad(name, "true or false")

    def number(self, name: str, least: int) -> int | None:
        match self._take(name):
            case None:
                return None
            case bool():
                pass
            case int(found) if least <= found <= _LAST:
                return found
        raise self._bad(name, f"a whole number from {least} on")

    def schema(self, name: str) -> pa.Schema:
        text = self.text(name)
        try:
            coded = base64.b64decode(text, validate=True)
            return pa.ipc.read_schema(pa.py_buffer(coded))
        except (binascii.Error, ValueError, OSError, pa.ArrowException):
            raise self._bad(name, "the base64 of an Arrow IPC schema message") from None

    def ids(self) -> pa.Array:
        """An array of int64, empty if there are none."""
        name = "row_ids"
        given = self._take(name)
        if given is None:
            raise self._missing(name)
        many = self._ids if given == [] else None
        count = many.count(b",") + 1 if many is not None else len(given) if isinstance(given, list) else 0
        if count > self._most_ids:
            raise Invalid(
                "too_many_row_ids",
                f"{count:,} row_ids are too many: at most {self._most_ids:,} go into one call",
                limit=self._most_ids,
            )
        try:
            if many is not None:
                return _numbers(many)
            if isinstance(given, list) and set(map(type, given)) <= {int}:  # to Python a bool is an int; here it is not
                return pa.array(given, pa.int64())
        except (OverflowError, ValueError):
            pass
        raise self._bad(name, "a list of whole numbers of 64 bits")

    def _take(self, name: str) -> Any:
        self._known.append(name)
        return self._given.get(name)

    def _missing(self, name: str) -> Invalid:
        return Invalid("missing_member", f"{self._what} lacks {name!r}", member=name)

    def _bad(self, name: str, wanted: str) -> Invalid:
        return Invalid("bad_member", f"{name!r} in {self._what} must be {wanted}", member=name)


def _cut_ids(body: bytes) -> tuple[bytes, bytes | None]:
    """The command with its many row ids left out, and those ids as text.

    Python would make an object of each, and let nobody else go on meanwhile. What is cut out of another place than
    that of row ids is missed there: a member of that name is known nowhere else.
    """
    begin = _IDS.search(body)
    end = body.find(b"]", begin.end()) if begin else -1
    if begin is None or end - begin.end() < _MANY:
        return body, None
    ids = body[begin.end() : end]
    if any(odd in ids for odd in (b"[", b'"')):  # it goes on after what looks like its end
        return body, None
    return body[: begin.end()] + body[end:], ids


def _numbers(text: bytes) -> pa.Array:
    """Numbers that stand between commas. ValueError if something else does."""
    whole = pa.Array.from_buffers(
        pa.large_binary(), 1, [None, pa.array([0, len(text)], pa.int64()).buffers()[1], pa.py_buffer(text)]
    )
    if not pc.match_substring_regex(whole, _NUMBERS)[0].as_py():
        raise ValueError("not numbers")
    lines = text.translate(None, b" \t\r\n").replace(b",", b"\n")
    return pacsv.read_csv(pa.BufferReader(lines), _ONE_COLUMN, convert_options=_NO_NULLS)["id"].combine_chunks()
