"""Two clients with the same interface: plain gRPC and pyarrow."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgpack
import pyarrow as pa
import pyarrow.flight as fl

from flight.raw_client import SECONDS, Raw, Refused
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb

Members = dict[str, Any]  # of a command


class Client(Protocol):
    """A client that raises `Refused` for an error status."""

    def put(self, command: Members, rows: Any, transaction: str | None = None) -> Members: ...
    def act(self, action: str, body: Members | None = None, transaction: str | None = None) -> Members: ...
    def get(self, ticket: Members, transaction: str | None = None) -> pa.Table: ...


class ByGrpc:
    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def put(self, command: Members, rows: Any, transaction: str | None = None) -> Members:
        return self.send(stream(command, *schema_and_batches(rows)), transaction)

    def send(self, sent: Iterable[bytes], transaction: str | None = None) -> Members:
        """Send a stream of encoded messages."""
        [answer] = self.raw.put(sent, **_named(transaction))
        return unpacked(pb.PutResult.FromString(answer).app_metadata)

    def act(self, action: str, body: Members | None = None, transaction: str | None = None) -> Members:
        answer: Members = self.raw.act(action, body, **_named(transaction))
        return answer

    def get(self, ticket: Members, transaction: str | None = None) -> pa.Table:
        return self.raw.get(ticket, **_named(transaction))


class ByArrow:
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
                answer = reader.read()
        except pa.ArrowException as error:
            raise _to_refused(error) from None
        return unpacked(answer.to_pybytes())

    def act(self, action: str, body: Members | None = None, transaction: str | None = None) -> Members:
        coded = b"" if body is None else json.dumps(body).encode()
        try:
            [answer] = self._client.do_action(fl.Action(action, coded), self._options(transaction))
        except pa.ArrowException as error:
            raise _to_refused(error) from None
        response: Members = json.loads(answer.body.to_pybytes())
        return response

    def get(self, ticket: Members, transaction: str | None = None) -> pa.Table:
        try:
            return self._client.do_get(fl.Ticket(json.dumps(ticket)), self._options(transaction)).read_all()
        except pa.ArrowException as error:
            raise _to_refused(error) from None

    def close(self) -> None:
        self._client.close()

    def _options(self, transaction: str | None) -> fl.FlightCallOptions:
        headers = [(b"authorization", f"Bearer {self._token}".encode())]
        if transaction is not None:
            headers.append((b"x-transaction-id", transaction.encode()))
        return fl.FlightCallOptions(timeout=SECONDS, headers=headers)


def stream(
    command: Members, schema: pa.Schema | None, batches: Iterable[Any] = (), *, alone: bool = False
) -> list[bytes]:
    """The messages of a DoPut. `alone`: the descriptor has a message to itself."""
    descriptor = described(command)
    if schema is None or alone:
        first = [flight_data.encode(b"", descriptor=descriptor)]
        first += [ipc_messages.encode_schema(schema)] if schema is not None else []
    else:
        first = [ipc_messages.encode_schema(schema, descriptor)]
    return first + [message for batch in batches for message in ipc_messages.encode_batch(batch, 1 << 31)]


def described(command: Members) -> bytes:
    coded: bytes = pb.FlightDescriptor(
        type=pb.FlightDescriptor.CMD, cmd=json.dumps(command).encode()
    ).SerializeToString()
    return coded


def schema_and_batches(rows: Any) -> tuple[pa.Schema, Sequence[pa.RecordBatch]]:
    """Rows are a table, or batches of which there is at least one."""
    return (rows.schema, rows.to_batches()) if isinstance(rows, pa.Table) else (rows[0].schema, rows)


def unpacked(metadata: bytes) -> Members:
    response: Members = msgpack.unpackb(metadata)
    return response


def rows_of(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def _named(transaction: str | None) -> dict[str, str]:
    return {} if transaction is None else {"x_transaction_id": transaction}


_WORDS = {  # that pyarrow has for codes
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
    r"(?:\w+: )?(?:Flight|gRPC) returned (?P<word>[a-z ]+) error, with message: (?P<sentence>.*?)"
    r"(?:\. gRPC client debug context: .*|\. Client context: .*|\. Detail: .*)?",
    re.DOTALL,
)


def _to_refused(error: Exception) -> Refused:
    response = _ERROR_TEXT.fullmatch(str(error))
    assert response, f"nothing that a server says: {error}"
    return Refused(_WORDS[response["word"]], response["sentence"], None, {})


def pieces(rows: pa.Table, size: int) -> Iterator[pa.RecordBatch]:
    """The rows in batches of a size."""
    yield from rows.to_batches(max_chunksize=size)
