"""Two clients with the same interface: plain gRPC and pyarrow."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgpack
import pyarrow as pa
import pyarrow.flight as fl

from flight.raw_client import TIMEOUT_SECONDS, CallRejected, RawClient
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb

Members = dict[str, Any]  # of a command


class FlightTestClient(Protocol):
    """A client that raises `CallRejected` for an error status."""

    def put(self, command: Members, rows: Any, transaction: str | None = None) -> Members: ...
    def do_action(self, action: str, body: Members | None = None, transaction: str | None = None) -> Members: ...
    def get(self, ticket: Members, transaction: str | None = None) -> pa.Table: ...


class GrpcClient:
    def __init__(self, raw_client: RawClient) -> None:
        self.raw_client = raw_client

    def put(self, command: Members, rows: Any, transaction: str | None = None) -> Members:
        return self.send(put_messages(command, *schema_and_batches(rows)), transaction)

    def send(self, messages: Iterable[bytes], transaction: str | None = None) -> Members:
        """Send a stream of encoded messages."""
        [result] = self.raw_client.put(messages, **_transaction_headers(transaction))
        return unpack_result(pb.PutResult.FromString(result).app_metadata)

    def do_action(self, action: str, body: Members | None = None, transaction: str | None = None) -> Members:
        response: Members = self.raw_client.do_action(action, body, **_transaction_headers(transaction))
        return response

    def get(self, ticket: Members, transaction: str | None = None) -> pa.Table:
        return self.raw_client.get(ticket, **_transaction_headers(transaction))


class PyArrowClient:
    def __init__(self, address: str, token: str) -> None:
        self._client, self._token = fl.connect(address), token

    def put(self, command: Members, rows: Any, transaction: str | None = None) -> Members:
        schema, batches = schema_and_batches(rows)
        descriptor = fl.FlightDescriptor.for_command(json.dumps(command))
        try:
            writer, reader = self._client.do_put(descriptor, schema, self._options(transaction))
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                writer.done_writing()
                result = reader.read()
        except pa.ArrowException as error:
            raise _to_call_rejected(error) from None
        return unpack_result(result.to_pybytes())

    def do_action(self, action: str, body: Members | None = None, transaction: str | None = None) -> Members:
        encoded = b"" if body is None else json.dumps(body).encode()
        try:
            [result] = self._client.do_action(fl.Action(action, encoded), self._options(transaction))
        except pa.ArrowException as error:
            raise _to_call_rejected(error) from None
        response: Members = json.loads(result.body.to_pybytes())
        return response

    def get(self, ticket: Members, transaction: str | None = None) -> pa.Table:
        try:
            return self._client.do_get(fl.Ticket(json.dumps(ticket)), self._options(transaction)).read_all()
        except pa.ArrowException as error:
            raise _to_call_rejected(error) from None

    def close(self) -> None:
        self._client.close()

    def _options(self, transaction: str | None) -> fl.FlightCallOptions:
        headers = [(b"authorization", f"Bearer {self._token}".encode())]
        if transaction is not None:
            headers.append((b"x-transaction-id", transaction.encode()))
        return fl.FlightCallOptions(timeout=TIMEOUT_SECONDS, headers=headers)


def put_messages(
    command: Members, schema: pa.Schema | None, batches: Iterable[Any] = (), *, separate_descriptor: bool = False
) -> list[bytes]:
    """Return the messages of a DoPut, optionally with the descriptor in a separate message."""
    descriptor = encode_descriptor(command)
    if schema is None or separate_descriptor:
        messages = [flight_data.encode(b"", descriptor=descriptor)]
        messages += [ipc_messages.encode_schema(schema)] if schema is not None else []
    else:
        messages = [ipc_messages.encode_schema(schema, descriptor)]
    return messages + [message for batch in batches for message in ipc_messages.encode_batch(batch, 1 << 31)]


def encode_descriptor(command: Members) -> bytes:
    encoded: bytes = pb.FlightDescriptor(
        type=pb.FlightDescriptor.CMD, cmd=json.dumps(command).encode()
    ).SerializeToString()
    return encoded


def schema_and_batches(rows: Any) -> tuple[pa.Schema, Sequence[pa.RecordBatch]]:
    """Return the schema and the batches of a table or of a list of at least one batch."""
    return (rows.schema, rows.to_batches()) if isinstance(rows, pa.Table) else (rows[0].schema, rows)


def unpack_result(metadata: bytes) -> Members:
    response: Members = msgpack.unpackb(metadata)
    return response


def read_ipc_stream(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def _transaction_headers(transaction: str | None) -> dict[str, str]:
    return {} if transaction is None else {"x_transaction_id": transaction}


_STATUS_NAMES = {  # by pyarrow's text for the code
    "invalid argument": "INVALID_ARGUMENT",
    "not found": "NOT_FOUND",
    "precondition failed": "FAILED_PRECONDITION",
    "already exists": "ALREADY_EXISTS",
    "aborted": "ABORTED",
    "resource exhausted": "RESOURCE_EXHAUSTED",
    "unauthenticated": "UNAUTHENTICATED",
    "unauthorized": "PERMISSION_DENIED",
    "unavailable": "UNAVAILABLE",
}
_ERROR_TEXT = re.compile(
    r"(?:\w+: )?(?:Flight|gRPC) returned (?P<status>[a-z ]+) error, with message: (?P<message>.*?)"
    r"(?:\. gRPC client debug context: .*|\. Client context: .*|\. Detail: .*)?",
    re.DOTALL,
)


def _to_call_rejected(error: Exception) -> CallRejected:
    match = _ERROR_TEXT.fullmatch(str(error))
    assert match, f"not an error of the server: {error}"
    return CallRejected(_STATUS_NAMES[match["status"]], match["message"], None, {})


def split_batches(rows: pa.Table, size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of a size."""
    yield from rows.to_batches(max_chunksize=size)
