"""Python client for the Flight service of Penstock. It raises the library's own errors.

Example:
    with penstock.flight_client("grpc://localhost:8815", token="…") as client:
        client.insert("shop.orders", [{"id": 1, "total": 2.5}])
        with client.transaction() as transaction:
            orders = transaction.read("shop.orders", where="total > 2", rowid=True).read_all()
            transaction.delete("shop.orders", orders["rowid"])
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

from penstock.core.dataset.row_ids import parse_row_ids
from penstock.core.names import DatasetName
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb
from penstock.flight import status as flight_status
from penstock.flight.interceptor import SERVICE_NAME, TRANSACTION_HEADER
from penstock.service.datasets.row_source import open_reader

_MAX_MESSAGE_BYTES = 256 << 20
_SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]


def flight_client(address: str, token: str | None = None, *, roots: bytes | None = None) -> "FlightClient":
    """Connect to the Flight service of a Penstock server.

    Args:
        address: grpc://host:port, or grpc+tls://host:port for TLS
        token: sent with every call; None for a server that runs with --dev
        roots: PEM certificates to trust for grpc+tls; None uses the system's

    Returns:
        A client. Close it, or use it as a context manager.

    Raises:
        Invalid: the address has another form (bad_address)

    Example:
        client = penstock.flight_client("grpc://localhost:8815", token="…")
    """
    return FlightClient(address, token, roots=roots)


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table with its newest version and the number of its rows."""

    name: str
    version: int
    rows: int


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of an insert, update or delete."""

    affected_rows: int
    returned: pa.Table | None = None  # the affected rows with their row ids, if `returning` was set


class TableClient:
    """Read and write tables. `FlightClient` commits each write; `FlightTransaction` commits all of them together.

    Every method raises `Unavailable` if the server cannot be reached, `Unauthenticated` for a missing or invalid token,
    `Forbidden` if the caller's role does not allow the call, and `NotFound` for an unknown table.
    """

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
        """Read rows of a table as a stream.

        Args:
            table: name of the table, as in "shop.orders"
            columns: columns to read; None reads all
            where: filter expression, as in "total > 2"
            version: version to read; None reads the newest
            rowid: add the row ids as the last column, `rowid`

        Returns:
            A reader over the matching rows.

        Raises:
            NotFound: the table or the version does not exist
            Invalid: a column does not exist, or the filter expression cannot be parsed

        Example:
            orders = client.read("shop.orders", columns=["id"], where="total > 2").read_all()
        """
        options = {"columns": columns and list(columns), "filter": where, "version": version, "rowid": rowid}
        ticket = pb.Ticket(ticket=_encode_command(table, options))
        stream = self._method("unary_stream", "DoGet")(ticket.SerializeToString(), metadata=self._metadata)
        with _translate_errors():
            schema = ipc_messages.decode_schema(flight_data.decode(next(stream)))
        return pa.RecordBatchReader.from_batches(schema, _decode_batches(stream, schema))

    def schema(self, table: str) -> pa.Schema:
        """Return the Arrow schema of a table.

        Args:
            table: name of the table

        Returns:
            The schema, without the row id.

        Raises:
            NotFound: the table does not exist

        Example:
            client.schema("shop.orders").names
        """
        name = DatasetName.parse(table)
        path = pb.FlightDescriptor(type=pb.FlightDescriptor.PATH, path=[name.schema, name.table])
        with _translate_errors():
            response = self._method("unary_unary", "GetSchema")(path.SerializeToString(), metadata=self._metadata)
        return pa.ipc.read_schema(pa.py_buffer(pb.SchemaResult.FromString(response).schema))

    def insert(
        self, table: str, rows: Any, *, returning: bool = False, idempotency_key: str | None = None
    ) -> WriteResult:
        """Insert rows. Either all rows are inserted or none.

        Args:
            table: name of the table
            rows: an Arrow table, batch or reader, a pandas or Polars frame, a dict of columns, a list of dicts, or the
                path of a file
            returning: return the inserted rows with their row ids
            idempotency_key: makes a retry safe: a second call with the same key and rows inserts nothing

        Returns:
            The number of inserted rows, and the rows if `returning` is set.

        Raises:
            Invalid: the rows do not match the table's schema
            Unsupported: the table is read-only

        Example:
            client.insert("shop.orders", [{"id": 1, "total": 2.5}], idempotency_key="order-1").affected_rows
        """
        command = {"operation": "insert", "returning": returning, "idempotency_key": idempotency_key}
        return self._put(table, rows, command)

    def update(
        self, table: str, row_ids: Any, rows: Any, *, returning: bool = False, idempotency_key: str | None = None
    ) -> WriteResult:
        """Replace rows by id: the row with id `row_ids[i]` becomes `rows[i]`. Either all rows are updated or none.

        Args:
            table: name of the table
            row_ids: 64-bit row ids: a list, an array or a column of a table
            rows: the new rows, as many as there are ids, in any form that `insert` takes
            returning: return the updated rows with their row ids
            idempotency_key: makes a retry safe, as for `insert`

        Returns:
            The number of updated rows, and the rows if `returning` is set.

        Raises:
            Invalid: the rows do not match the table's schema or the number of ids
            NotFound: a row id does not exist
            Unsupported: the table is read-only or has no row ids

        Example:
            client.update("shop.orders", [17], [{"id": 1, "total": 3.0}])
        """
        command = {
            "operation": "update",
            "row_ids": parse_row_ids(row_ids).to_pylist(),
            "returning": returning,
            "idempotency_key": idempotency_key,
        }
        return self._put(table, rows, command)

    def delete(
        self, table: str, row_ids: Any, *, returning: bool = False, idempotency_key: str | None = None
    ) -> WriteResult:
        """Delete rows by id. Unknown ids are ignored.

        Args:
            table: name of the table
            row_ids: 64-bit row ids: a list, an array or a column of a table
            returning: return the deleted rows with their row ids
            idempotency_key: makes a retry safe, as for `insert`

        Returns:
            The number of deleted rows, and the rows if `returning` is set.

        Raises:
            Unsupported: the table is read-only or has no row ids

        Example:
            large = client.read("shop.orders", where="total > 100", rowid=True).read_all()
            client.delete("shop.orders", large["rowid"])
        """
        command = {
            "row_ids": parse_row_ids(row_ids).to_pylist(),
            "returning": returning,
            "idempotency_key": idempotency_key,
        }
        response = self._run_action("delete", _encode_command(table, command))
        data = response.get("returning_data")
        return WriteResult(response["affected_rows"], data and _decode_table(base64.b64decode(data)))

    def _put(self, table: str, rows: Any, command: Mapping[str, Any]) -> WriteResult:
        if isinstance(rows, dict | list):  # Python values have no Arrow types yet
            rows = _to_arrow(rows, self.schema(table))
        source = open_reader(rows)
        count = rows.num_rows if isinstance(rows, pa.Table | pa.RecordBatch) else None
        descriptor = pb.FlightDescriptor(
            type=pb.FlightDescriptor.CMD, cmd=_encode_command(table, {**command, "expected_rows": count})
        )
        source_errors: list[BaseException] = []

        def messages() -> Iterator[bytes]:
            try:
                yield ipc_messages.encode_schema(source.schema, descriptor.SerializeToString())
                for batch in source:
                    yield from ipc_messages.encode_batch(batch, _MAX_MESSAGE_BYTES)
            except Exception as error:  # gRPC would only report that the stream broke
                source_errors.append(error)
                raise

        responses = self._method("stream_stream", "DoPut")(messages(), metadata=self._metadata)
        try:
            with _translate_errors():
                response = msgpack.unpackb(pb.PutResult.FromString(next(responses)).app_metadata)
        except PenstockError:
            if source_errors:
                raise source_errors[0] from None
            raise
        data = response["returning_data"]
        return WriteResult(response["affected_rows"], data and _decode_table(data))

    def _run_action(self, action: str, body: bytes = b"") -> Any:
        request = pb.Action(type=action, body=body).SerializeToString()
        with _translate_errors():
            responses = list(self._method("unary_stream", "DoAction")(request, metadata=self._metadata))
        return json.loads(pb.Result.FromString(responses[0]).body)

    def _method(self, arity: str, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._channel, arity)(f"/{SERVICE_NAME}/{name}")
        return method


class FlightClient(TableClient):
    """A connection to the Flight service of a Penstock server. It is thread-safe.

    Example:
        with penstock.FlightClient("grpc://localhost:8815", token="…") as client:
            client.tables()
    """

    def __init__(self, address: str, token: str | None = None, *, roots: bytes | None = None) -> None:
        """Connect to a server; the arguments are those of `flight_client`.

        Args:
            address: grpc://host:port, or grpc+tls://host:port for TLS
            token: sent with every call; None for a server that runs with --dev
            roots: PEM certificates to trust for grpc+tls; None uses the system's

        Raises:
            Invalid: the address has another form (bad_address)
        """
        url = urlsplit(address)
        if url.scheme not in _SCHEMES or not url.hostname or not url.port:
            raise Invalid("bad_address", {"address": address[:200]})
        if url.scheme == "grpc+tls":
            channel = grpc.secure_channel(url.netloc, grpc.ssl_channel_credentials(roots), options=_CHANNEL_OPTIONS)
        else:
            channel = grpc.insecure_channel(url.netloc, options=_CHANNEL_OPTIONS)
        super().__init__(channel, [("authorization", f"Bearer {token}")] if token else [])

    def tables(self, schema: str | None = None) -> list[TableInfo]:
        """List the tables of the tenant.

        Args:
            schema: only tables of this schema; None lists all

        Returns:
            The tables with their newest versions.

        Raises:
            NotFound: the schema has no tables

        Example:
            [table.name for table in client.tables("shop")]
        """
        body = json.dumps({"schema_name": schema} if schema else {}).encode()
        return [
            TableInfo(str(DatasetName(table["schema_name"], table["table_name"])), table["version"], table["rows"])
            for table in self._run_action("list_tables", body)["tables"]
        ]

    def create(self, table: str, schema: pa.Schema, *, row_ids: bool = True, read_only: bool = False) -> None:
        """Create an empty table.

        Args:
            table: name of the table, as in "shop.orders"
            schema: its columns
            row_ids: assign row ids, which updates and deletes need
            read_only: reject inserts, updates and deletes

        Raises:
            AlreadyExists: a table of that name exists
            Invalid: the name or a column is invalid

        Example:
            client.create("shop.orders", pa.schema([("id", pa.int64()), ("total", pa.float64())]))
        """
        encoded = base64.b64encode(schema.serialize()).decode()
        options = {"arrow_schema": encoded, "row_ids": row_ids, "read_only": read_only}
        self._run_action("create_table", _encode_command(table, options))

    def drop(self, table: str, *, force: bool = False) -> None:
        """Drop a table.

        Args:
            table: name of the table
            force: drop the table even if registered queries read it; they fail afterwards

        Raises:
            NotFound: the table does not exist
            Unsupported: registered queries read the table, and `force` is not set

        Example:
            client.drop("shop.orders")
        """
        self._run_action("drop_table", _encode_command(table, {"force": True} if force else {}))

    def transaction(self) -> "FlightTransaction":
        """Create a transaction: its reads see one snapshot, and its writes are committed together.

        Returns:
            The transaction. Used as a context manager, it commits at the end of the block, or rolls back on an error.

        Raises:
            Unavailable: the tenant has too many open transactions (too_many_transactions)

        Example:
            with client.transaction() as transaction:
                transaction.insert("shop.orders", [{"id": 2, "total": 1.0}])
                transaction.insert("shop.payments", [{"order_id": 2}])
        """
        id = self._run_action("create_transaction")["transaction_id"]
        return FlightTransaction(self._channel, [*self._metadata, (TRANSACTION_HEADER, id)], id)

    def close(self) -> None:
        """Close the connection. A `with` block closes it at its end.

        Example:
            client = penstock.flight_client("grpc://localhost:8815", token="…")
            client.close()
        """
        self._channel.close()

    def __enter__(self) -> "FlightClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FlightTransaction(TableClient):
    """An open transaction of a `FlightClient`."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]], id: str) -> None:
        super().__init__(channel, metadata)
        self.id = id

    @property
    def status(self) -> str:
        """The state on the server: active, committed, aborted or expired."""
        return str(self._run_action("get_transaction_status", self._body)["transaction_status"])

    def commit(self) -> None:
        """Commit all writes of the transaction.

        Raises:
            Conflict: another commit changed the same rows; create a new transaction and repeat the work
            CommitStateUnknown: the outcome is not known; read `status`

        Example:
            transaction = client.transaction()
            transaction.delete("shop.orders", [17])
            transaction.commit()
        """
        self._run_action("commit_transaction", self._body)

    def rollback(self) -> None:
        """Discard all writes of the transaction.

        Raises:
            Unsupported: the transaction has already ended (transaction_over)

        Example:
            transaction.rollback()
        """
        self._run_action("rollback_transaction", self._body)

    def __enter__(self) -> "FlightTransaction":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except PenstockError as rollback_error:  # the first error is the one that the caller needs
            error.add_note(f"The transaction could not be rolled back either: {rollback_error.message}")

    @property
    def _body(self) -> bytes:
        return json.dumps({"transaction_id": self.id}).encode()


def _decode_batches(stream: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = 0
    try:
        with _translate_errors():
            for message in stream:
                batch = ipc_messages.decode_batch(flight_data.decode(message), schema, _MAX_MESSAGE_BYTES, rows)
                rows += batch.num_rows
                yield batch
    finally:
        stream.cancel()  # a reader that is closed early ends the call


def _encode_command(table: str, options: Mapping[str, Any]) -> bytes:
    name = DatasetName.parse(table)
    members = {"schema_name": name.schema, "table_name": name.table, **options}
    return json.dumps({key: value for key, value in members.items() if value is not None}).encode()


def _to_arrow(rows: dict[str, Any] | list[Any], schema: pa.Schema) -> pa.Table:
    """Convert Python values to a table with the types and the column order of a schema."""
    if isinstance(rows, list) and not all(isinstance(row, dict) for row in rows):
        raise Invalid("bad_rows.not_dicts")
    names = rows if isinstance(rows, dict) else {name for row in rows for name in row}
    if unknown := [name for name in names if name not in schema.names]:
        raise Invalid("column_mismatch.unknown", {"columns": schema.names}, column=unknown[0])
    try:
        if isinstance(rows, list):
            return pa.Table.from_pylist(rows, schema)
        return pa.table({name: pa.array(rows[name], schema.field(name).type) for name in rows}).select(schema.names)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError, AttributeError) as cause:
        raise Invalid("bad_rows.conversion", {"cause": str(cause)[:200]}) from None


def _decode_table(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise the server's original error for a gRPC status."""
    try:
        yield
    except grpc.RpcError as rpc_error:
        raise _to_penstock_error(rpc_error) from None
    except StopIteration:
        raise Unavailable("missing_response") from None


def _to_penstock_error(rpc_error: Any) -> PenstockError:
    metadata = {key: value for key, value in rpc_error.trailing_metadata() or () if isinstance(value, str)}
    code, message = rpc_error.code(), rpc_error.details() or rpc_error.code().name
    reason = metadata.get(flight_status.REASON_HEADER)
    error_class = _CLASS_BY_NAME.get(metadata.get(flight_status.KIND_HEADER, ""))
    if reason is None or error_class is None:  # the status is from gRPC or from a proxy
        return _CLASS_BY_CODE.get(code, Unavailable)(code.name.lower(), message)
    return error_class(reason, message, **json.loads(metadata.get(flight_status.FACTS_HEADER, "{}")))


_CLASS_BY_NAME = {error_class.__name__: error_class for error_class in flight_status.CODE_BY_KIND}
_CLASS_BY_CODE = {code: error_class for error_class, code in flight_status.CODE_BY_KIND.items()}
