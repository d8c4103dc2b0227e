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
OTHER_TENANT = UUID("99999999-8888-7777-6666-555555555555")
TIMEOUT_SECONDS = 30  # of a call
INTERNALS = (
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


async def count_rows(incoming: PutStream, call: FlightCall) -> AsyncGenerator[bytes, None]:
    """Accept all rows of a DoPut and return their number."""
    await incoming.descriptor()
    schema = await incoming.schema()
    rows = 0
    async for batch in incoming:
        assert batch.schema.equals(schema)
        rows += batch.num_rows
    yield str(rows).encode()


@contextmanager
def running_server(flight_context: FlightContext, **options: Any) -> Iterator[FlightServer]:
    server = FlightServer(flight_context, "127.0.0.1", 0, **{"put": count_rows, **options})
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class CallRejected(Exception):
    """The error status of a call."""

    code: str
    message: str
    reason: str | None
    facts: dict[str, Any]


class RawClient:
    """Calls of one caller. Checks that no error message contains internals."""

    def __init__(
        self,
        server: FlightServer,
        bearer_token: str | None = None,
        *,
        channel: Any = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._server, self._bearer_token, self._timeout_seconds = server, bearer_token, timeout_seconds
        target = server.address.split("://")[1]
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self.channel = channel or grpc.insecure_channel(target, options)

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def as_caller(self, role: Role = Role.ADMIN, tenant: UUID = TENANT) -> "RawClient":
        return RawClient(self._server, token(role, tenant), channel=self.channel)

    def call_unary(self, method: str, request: Any, **headers: str) -> bytes:
        return self._convert_errors(
            lambda: self._call("unary_unary", method)(_serialize(request), **self._options(headers))
        )

    def call_stream(self, method: str, request: Any, **headers: str) -> list[bytes]:
        return self._convert_errors(lambda: list(self.open_stream(method, request, **headers)))

    def open_stream(self, method: str, request: Any, **headers: str) -> Any:
        return self._call("unary_stream", method)(_serialize(request), **self._options(headers))

    def put(self, messages: Iterable[bytes], method: str = "DoPut", **headers: str) -> list[bytes]:
        call = self._call("stream_stream", method)
        return self._convert_errors(lambda: list(call(iter(messages), **self._options(headers))))

    def get(self, ticket: dict[str, Any] | bytes, **headers: str) -> pa.Table:
        request = pb.Ticket(ticket=ticket if isinstance(ticket, bytes) else json.dumps(ticket).encode())
        first, *rest = (flight_data.decode(message) for message in self.call_stream("DoGet", request, **headers))
        schema = ipc_messages.decode_schema(first)
        return pa.Table.from_batches(
            [ipc_messages.decode_batch(message, schema, 1 << 30, 0) for message in rest], schema
        )

    def do_action(self, action: str, body: Any = None, **headers: str) -> Any:
        encoded = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        [result] = self.call_stream("DoAction", pb.Action(type=action, body=encoded), **headers)
        return json.loads(pb.Result.FromString(result).body)

    def _call(self, call_type: str, method: str) -> Any:
        return getattr(self.channel, call_type)(f"/{SERVICE_NAME}/{method}")

    def _options(self, headers: dict[str, str]) -> dict[str, Any]:
        authorization = [("authorization", f"Bearer {self._bearer_token}")] if self._bearer_token else []
        return {
            "metadata": [*authorization, *((name.replace("_", "-"), value) for name, value in headers.items())],
            "timeout": self._timeout_seconds,
        }

    def _convert_errors(self, call: Any) -> Any:
        try:
            return call()
        except grpc.RpcError as error:
            raise to_call_rejected(error) from None


def to_call_rejected(error: Any) -> CallRejected:
    trailing = {item.key: item.value for item in error.trailing_metadata() or ()}
    rejected = CallRejected(
        error.code().name,
        error.details(),
        trailing.get(status.REASON_HEADER),
        json.loads(trailing.get(status.FACTS_HEADER, "{}")),
    )
    assert not any(internal in rejected.message for internal in INTERNALS), rejected.message
    return rejected


def path_descriptor(*words: str) -> pb.FlightDescriptor:
    return pb.FlightDescriptor(type=pb.FlightDescriptor.PATH, path=words)


def command_descriptor(**members: Any) -> pb.FlightDescriptor:
    return pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=json.dumps(members).encode())


def connect_pyarrow(
    server: FlightServer, bearer_token: str | None = None
) -> tuple[fl.FlightClient, fl.FlightCallOptions]:
    """Return a client of pyarrow and the options of its calls."""
    headers = [(b"authorization", f"Bearer {bearer_token}".encode())] if bearer_token else []
    return fl.connect(server.address), fl.FlightCallOptions(timeout=TIMEOUT_SECONDS, headers=headers)


def _serialize(request: Any) -> bytes:
    serialized: bytes = request if isinstance(request, bytes) else request.SerializeToString()
    return serialized
