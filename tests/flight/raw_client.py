"""A running Flight server, and a plain gRPC client that returns codes and messages unchanged."""

import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import grpc
import pyarrow as pa
import pyarrow.flight as fl

from penstock.core.caller import Role
from penstock.flight import flight_data, ipc_messages, status
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightContext
from penstock.flight.interceptor import SERVICE_NAME, FlightCall
from penstock.flight.put_stream import PutStream
from penstock.flight.server import FlightServer
from penstock.service.auth.tokens import mint

SECRET = "a secret of enough bytes, for tests only"
TENANT = UUID("11111111-2222-3333-4444-555555555555")
OTHER = UUID("99999999-8888-7777-6666-555555555555")
SECONDS = 30  # that any call may take
INSIDE = (
    "Traceback",
    'File "',
    ".py",
    "/tmp",
    "site-packages",
    ".parquet",
    "0x7f",
)  # internals that no message may contain


def token(role: Role = Role.ADMIN, tenant: UUID = TENANT, user: str = "ada") -> str:
    return mint(SECRET, tenant=tenant, user=user, roles=[role.claim], ttl=timedelta(hours=1), now=datetime.now(UTC))


async def count(incoming: PutStream, call: FlightCall) -> AsyncGenerator[bytes, None]:
    """Accept all rows of a DoPut and return their number."""
    await incoming.descriptor()
    schema = await incoming.schema()
    rows = 0
    async for batch in incoming:
        assert batch.schema.equals(schema)
        rows += batch.num_rows
    yield str(rows).encode()


@contextmanager
def served(edge: FlightContext, **options: Any) -> Iterator[FlightServer]:
    server = FlightServer(edge, "127.0.0.1", 0, **{"put": count, **options})
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Refused(Exception):
    """The error status of a call."""

    code: str
    sentence: str
    reason: str | None
    facts: dict[str, Any]


class Raw:
    """Calls of one caller. Checks that no error message contains internals."""

    def __init__(
        self, server: FlightServer, sent: str | None = None, *, channel: Any = None, seconds: float = SECONDS
    ) -> None:
        self._server, self._sent, self._seconds = server, sent, seconds
        workspace = server.address.split("://")[1]
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self.channel = channel or grpc.insecure_channel(workspace, options)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def as_(self, role: Role = Role.ADMIN, tenant: UUID = TENANT) -> "Raw":
        return Raw(self._server, token(role, tenant), channel=self.channel)

    def one(self, method: str, request: Any, **headers: str) -> bytes:
        return self._guarded(lambda: self._call("unary_unary", method)(_coded(request), **self._options(headers)))

    def many(self, method: str, request: Any, **headers: str) -> list[bytes]:
        return self._guarded(lambda: list(self.stream(method, request, **headers)))

    def stream(self, method: str, request: Any, **headers: str) -> Any:
        return self._call("unary_stream", method)(_coded(request), **self._options(headers))

    def put(self, sent: Iterable[bytes], method: str = "DoPut", **headers: str) -> list[bytes]:
        call = self._call("stream_stream", method)
        return self._guarded(lambda: list(call(iter(sent), **self._options(headers))))

    def get(self, ticket: dict[str, Any] | bytes, **headers: str) -> pa.Table:
        request = pb.Ticket(ticket=ticket if isinstance(ticket, bytes) else json.dumps(ticket).encode())
        first, *rest = (flight_data.decode(message) for message in self.many("DoGet", request, **headers))
        schema = ipc_messages.decode_schema(first)
        return pa.Table.from_batches([ipc_messages.decode_batch(item, schema, 1 << 30, 0) for item in rest], schema)

    def act(self, action: str, body: Any = None, **headers: str) -> Any:
        coded = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        [result] = self.many("DoAction", pb.Action(type=action, body=coded), **headers)
        return json.loads(pb.Result.FromString(result).body)

    def _call(self, kind: str, method: str) -> Any:
        return getattr(self.channel, kind)(f"/{SERVICE_NAME}/{method}")

    def _options(self, headers: dict[str, str]) -> dict[str, Any]:
        own = [("authorization", f"Bearer {self._sent}")] if self._sent else []
        return {
            "metadata": [*own, *((name.replace("_", "-"), value) for name, value in headers.items())],
            "timeout": self._seconds,
        }

    def _guarded(self, call: Any) -> Any:
        try:
            return call()
        except grpc.RpcError as error:
            raise to_refused(error) from None


def to_refused(error: Any) -> Refused:
    trailing = {item.key: item.value for item in error.trailing_metadata() or ()}
    response = Refused(
        error.code().name,
        error.details(),
        trailing.get(status.REASON_HEADER),
        json.loads(trailing.get(status.FACTS_HEADER, "{}")),
    )
    assert not any(inside in response.sentence for inside in INSIDE), response.sentence
    return response


def path(*words: str) -> pb.FlightDescriptor:
    return pb.FlightDescriptor(type=pb.FlightDescriptor.PATH, path=words)


def command(**members: Any) -> pb.FlightDescriptor:
    return pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=json.dumps(members).encode())


def arrows(server: FlightServer, sent: str | None = None) -> tuple[fl.FlightClient, fl.FlightCallOptions]:
    """pyarrow's client, and what it sends with each call."""
    headers = [(b"authorization", f"Bearer {sent}".encode())] if sent else []
    return fl.connect(server.address), fl.FlightCallOptions(timeout=SECONDS, headers=headers)


def _coded(request: Any) -> bytes:
    coded: bytes = request if isinstance(request, bytes) else request.SerializeToString()
    return coded
