"""A client for Python: tables over Arrow Flight, with the errors of the library.

with penstock.flight_client("grpc://localhost:8815", token="…") as client:
    client.insert("shop.orders", [{"id": 1, "total": 2.5}])
    with client.transaction() as tx:
        orders = tx.read("shop.orders", where="total > 2", rowid=True).read_all()
        tx.delete("shop.orders", orders["rowid"])
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import grpc
import msgpack
import pyarrow as pa

from penstock.core.names import DatasetName
from penstock.core.dataset.row_ids import given_ids
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.flight import status as errors
from penstock.flight import ipc_messages as messages
from penstock.flight import flight_data as wire
from penstock.flight import flight_pb2 as pb
from penstock.flight.interceptor import SERVICE, TRANSACTION
from penstock.service.datasets.row_source import reader

_MESSAGE_BYTES = 256 << 20
_SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")
_OPTIONS = [("grpc.max_receive_message_length", _MESSAGE_BYTES), ("grpc.max_send_message_length", _MESSAGE_BYTES)]


def flight_client(address: str, token: str | None = None, *, roots: bytes | None = None) -> "FlightClient":
    """A connection to the Flight address of a Penstock service: grpc://host:8815, or grpc+tls://… with TLS.

    `roots`: certificates (PEM) to trust; the system's unless given.
    """
    return FlightClient(address, token, roots=roots)


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    version: int
    rows: int


@dataclass(frozen=True, slots=True)
class Written:
    affected_rows: int
    returned: pa.Table | None = None  # the rows with their ids, where asked for


class Tables:
    """What can be done with tables, at large or inside a transaction."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]]) -> None:
        self._channel, self._metadata = channel, tuple(metadata)

    def read(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        version: int | None = None,
        rowid: bool = False,
    ) -> pa.RecordBatchReader:
        """A stream of rows; with `rowid`, their ids as the last column."""
        asked = {"columns": columns and list(columns), "filter": where, "version": version, "rowid": rowid}
        ticket = pb.Ticket(ticket=_body(table, asked))
        stream = self._call("unary_stream", "DoGet")(ticket.SerializeToString(), metadata=self._metadata)
        with _heard():
            schema = messages.schema_of(wire.decode(next(stream)))
        return pa.RecordBatchReader.from_batches(schema, _batches(stream, schema))

    def schema(self, table: str) -> pa.Schema:
        """The columns of a table."""
        name = DatasetName.parse(table)
        path = pb.FlightDescriptor(type=pb.FlightDescriptor.PATH, path=[name.schema, name.table])
        with _heard():
            told = self._call("unary_unary", "GetSchema")(path.SerializeToString(), metadata=self._metadata)
        return pa.ipc.read_schema(pa.py_buffer(pb.SchemaResult.FromString(told).schema))

    def insert(self, table: str, rows: Any, *, returning: bool = False, key: str | None = None) -> Written:
        """Add rows: an Arrow table or reader, a pandas or Polars frame, a dict of columns, a list of dicts, a file.

        All of them or none. With a `key`, sent again, it happens once.
        """
        return self._put(table, rows, {"operation": "insert", "returning": returning, "idempotency_key": key})

    def update(
        self, table: str, row_ids: Any, rows: Any, *, returning: bool = False, key: str | None = None
    ) -> Written:
        """Put row i in place of the row with the i-th id. All of them or none."""
        asked = {
            "operation": "update",
            "row_ids": given_ids(row_ids).to_pylist(),
            "returning": returning,
            "idempotency_key": key,
        }
        return self._put(table, rows, asked)

    def delete(self, table: str, row_ids: Any, *, returning: bool = False, key: str | None = None) -> Written:
        """Take out the rows with these ids; ids that are not there are not missed."""
        asked = {"row_ids": given_ids(row_ids).to_pylist(), "returning": returning, "idempotency_key": key}
        told = self._act("delete", _body(table, asked))
        data = told.get("returning_data")
        return Written(told["affected_rows"], data and _table(base64.b64decode(data)))

    def _put(self, table: str, rows: Any, asked: Mapping[str, Any]) -> Written:
        if isinstance(rows, dict | list):  # Python's values leave the types open
            rows = _typed(rows, self.schema(table))
        source = reader(rows)
        count = rows.num_rows if isinstance(rows, pa.Table | pa.RecordBatch) else None
        descriptor = pb.FlightDescriptor(
            type=pb.FlightDescriptor.CMD, cmd=_body(table, {**asked, "expected_rows": count})
        )
        trouble: list[BaseException] = []

        def sent() -> Iterator[bytes]:
            try:
                yield messages.of_schema(source.schema, descriptor.SerializeToString())
                for batch in source:
                    yield from messages.of_batch(batch, _MESSAGE_BYTES)
            except Exception as error:  # gRPC would tell of it as of any broken stream
                trouble.append(error)
                raise

        answers = self._call("stream_stream", "DoPut")(sent(), metadata=self._metadata)
        try:
            with _heard():
                told = msgpack.unpackb(pb.PutResult.FromString(next(answers)).app_metadata)
        except PenstockError:
            if trouble:
                raise trouble[0] from None
            raise
        data = told["returning_data"]
        return Written(told["affected_rows"], data and _table(data))

    def _act(self, action: str, body: bytes = b"") -> Any:
        asked = pb.Action(type=action, body=body).SerializeToString()
        with _heard():
            answers = list(self._call("unary_stream", "DoAction")(asked, metadata=self._metadata))
        return json.loads(pb.Result.FromString(answers[0]).body)

    def _call(self, shape: str, method: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._channel, shape)(f"/{SERVICE}/{method}")
        return call


class FlightClient(Tables):
    """A connection to a Penstock service. Threads may share it."""

    def __init__(self, address: str, token: str | None = None, *, roots: bytes | None = None) -> None:
        """`roots`: certificates (PEM) to trust, for grpc+tls; the system's unless given."""
        at = urlsplit(address)
        if at.scheme not in _SCHEMES or not at.hostname or not at.port:
            raise Invalid("bad_address", f"{address[:200]!r} is no address; write grpc://host:8815 or grpc+tls://…")
        if at.scheme == "grpc+tls":
            channel = grpc.secure_channel(at.netloc, grpc.ssl_channel_credentials(roots), options=_OPTIONS)
        else:
            channel = grpc.insecure_channel(at.netloc, options=_OPTIONS)
        super().__init__(channel, [("authorization", f"Bearer {token}")] if token else [])

    def tables(self, schema: str | None = None) -> list[Table]:
        body = json.dumps({"schema_name": schema} if schema else {}).encode()
        return [
            Table(str(DatasetName(each["schema_name"], each["table_name"])), each["version"], each["rows"])
            for each in self._act("list_tables", body)["tables"]
        ]

    def create(self, table: str, schema: pa.Schema, *, row_ids: bool = True, read_only: bool = False) -> None:
        coded = base64.b64encode(schema.serialize()).decode()
        self._act("create_table", _body(table, {"arrow_schema": coded, "row_ids": row_ids, "read_only": read_only}))

    def drop(self, table: str) -> None:
        self._act("drop_table", _body(table, {}))

    def transaction(self) -> "Transaction":
        """Reads of one snapshot, and writes to any tables that become visible together at the end of the block."""
        made = self._act("create_transaction")["transaction_id"]
        return Transaction(self._channel, [*self._metadata, (TRANSACTION, made)], made)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> "FlightClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transaction(Tables):
    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]], id: str) -> None:
        super().__init__(channel, metadata)
        self.id = id

    @property
    def status(self) -> str:
        """active, committed, aborted or expired"""
        return str(self._act("get_transaction_status", self._named)["transaction_status"])

    def commit(self) -> None:
        self._act("commit_transaction", self._named)

    def rollback(self) -> None:
        self._act("rollback_transaction", self._named)

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except PenstockError as refusal:  # what went wrong first is what the caller should hear
            error.add_note(f"the transaction could not be rolled back either: {refusal.message}")

    @property
    def _named(self) -> bytes:
        return json.dumps({"transaction_id": self.id}).encode()


def _batches(stream: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    row = 0
    try:
        with _heard():
            for message in stream:
                batch = messages.batch_of(wire.decode(message), schema, _MESSAGE_BYTES, row)
                row += batch.num_rows
                yield batch
    finally:
        stream.cancel()  # nobody wants the rest


def _body(table: str, asked: Mapping[str, Any]) -> bytes:
    name = DatasetName.parse(table)
    members = {"schema_name": name.schema, "table_name": name.table, **asked}
    return json.dumps({key: value for key, value in members.items() if value is not None}).encode()


def _typed(rows: dict[str, Any] | list[Any], schema: pa.Schema) -> pa.Table:
    """Values of Python's with the table's types, and in its order."""
    if isinstance(rows, list) and not all(isinstance(row, dict) for row in rows):
        raise Invalid("no_rows", "a list of rows has a dict for each: [{'id': 1}, …]")
    named = rows if isinstance(rows, dict) else {name for row in rows for name in row}
    if unknown := [name for name in named if name not in schema.names]:
        told = f"column mismatch: the table has {', '.join(schema.names)}, and no {unknown[0]!r}"
        raise Invalid("column_mismatch", told, column=unknown[0])
    try:
        if isinstance(rows, list):
            return pa.Table.from_pylist(rows, schema)
        return pa.table({name: pa.array(rows[name], schema.field(name).type) for name in rows}).select(schema.names)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError, AttributeError) as cause:
        raise Invalid("no_rows", f"these values make no rows of the table: {str(cause)[:200]}") from None


def _table(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


@contextmanager
def _heard() -> Iterator[None]:
    """A status of gRPC's as the error that it was on the other side."""
    try:
        yield
    except grpc.RpcError as status:
        raise _error(status) from None
    except StopIteration:
        raise Unavailable("no_answer", "the server ended the call without an answer") from None


def _error(status: Any) -> PenstockError:
    told = {key: value for key, value in status.trailing_metadata() or () if isinstance(value, str)}
    message, reason = status.details() or status.code().name, told.get(errors.REASON)
    kind = _KINDS.get(told.get(errors.KIND, ""))
    if reason is None or kind is None:  # it came from gRPC, or from something on the way
        return _BY_CODE.get(status.code(), Unavailable)(status.code().name.lower(), message)
    return kind(reason, message, **json.loads(told.get(errors.FACTS, "{}")))


_KINDS = {kind.__name__: kind for kind in errors.CODE}
_BY_CODE = {code: kind for kind, code in errors.CODE.items()}
