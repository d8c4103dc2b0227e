"""A server on a free port, and a client that speaks gRPC and nothing else: it hears codes and sentences as they are."""

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
from penstock.flight import status as errors
from penstock.flight import ipc_messages as messages
from penstock.flight import flight_data as wire
from penstock.flight import flight_pb2 as pb
from penstock.flight.interceptor import SERVICE, Call
from penstock.flight.context import Edge
from penstock.flight.put_stream import Incoming
from penstock.flight.server import FlightServer
from penstock.service.auth.tokens import mint

SECRET = "a secret of enough bytes, for tests only"
TENANT = UUID("11111111-2222-3333-4444-555555555555")
OTHER = UUID("99999999-8888-7777-6666-555555555555")
SECONDS = 30  # that any call may take
INSIDE = ("Traceback", 'File "', ".py", "/tmp", "site-packages", ".parquet", "0x7f")  # what no client should hear of


def token(role: Role = Role.ADMIN, tenant: UUID = TENANT, user: str = "ada") -> str:
    return mint(SECRET, tenant=tenant, user=user, roles=[role.wire], ttl=timedelta(hours=1), now=datetime.now(UTC))


async def count(incoming: Incoming, call: Call) -> AsyncGenerator[bytes, None]:
    """A handler for DoPut that takes everything, and tells how many rows there were."""
    await incoming.descriptor()
    schema = await incoming.schema()
    rows = 0
    async for batch in incoming:
        assert batch.schema.equals(schema)
        rows += batch.num_rows
    yield str(rows).encode()


@contextmanager
def served(edge: Edge, **options: Any) -> Iterator[FlightServer]:
    server = FlightServer(edge, "127.0.0.1", 0, **{"put": count, **options})
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Refused(Exception):
    """What a client hears instead of an answer."""

    code: str
    sentence: str
    reason: str | None
    facts: dict[str, Any]


class Raw:
    """Calls of one caller. What is promised of every refusal is looked at here."""

    def __init__(self, server: FlightServer, sent: str | None = None, *, channel: Any = None) -> None:
        self._server, self._sent = server, sent
        place = server.address.split("://")[1]
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self.channel = channel or grpc.insecure_channel(place, options)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def as_(self, role: Role = Role.ADMIN, tenant: UUID = TENANT) -> "Raw":
        return Raw(self._server, token(role, tenant), channel=self.channel)

    def one(self, method: str, asked: Any, **headers: str) -> bytes:
        return self._guarded(lambda: self._call("unary_unary", method)(_coded(asked), **self._options(headers)))

    def many(self, method: str, asked: Any, **headers: str) -> list[bytes]:
        return self._guarded(lambda: list(self.stream(method, asked, **headers)))

    def stream(self, method: str, asked: Any, **headers: str) -> Any:
        return self._call("unary_stream", method)(_coded(asked), **self._options(headers))

    def put(self, sent: Iterable[bytes], method: str = "DoPut", **headers: str) -> list[bytes]:
        call = self._call("stream_stream", method)
        return self._guarded(lambda: list(call(iter(sent), **self._options(headers))))

    def get(self, ticket: dict[str, Any] | bytes, **headers: str) -> pa.Table:
        asked = pb.Ticket(ticket=ticket if isinstance(ticket, bytes) else json.dumps(ticket).encode())
        first, *rest = (wire.decode(message) for message in self.many("DoGet", asked, **headers))
        schema = messages.schema_of(first)
        return pa.Table.from_batches([messages.batch_of(each, schema, 1 << 30, 0) for each in rest], schema)

    def act(self, action: str, body: Any = None, **headers: str) -> Any:
        coded = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        [result] = self.many("DoAction", pb.Action(type=action, body=coded), **headers)
        return json.loads(pb.Result.FromString(result).body)

    def _call(self, kind: str, method: str) -> Any:
        return getattr(self.channel, kind)(f"/{SERVICE}/{method}")

    def _options(self, headers: dict[str, str]) -> dict[str, Any]:
        own = [("authorization", f"Bearer {self._sent}")] if self._sent else []
        return {
            "metadata": [*own, *((name.replace("_", "-"), value) for name, value in headers.items())],
            "timeout": SECONDS,
        }

    def _guarded(self, call: Any) -> Any:
        try:
            return call()
        except grpc.RpcError as refusal:
            raise heard(refusal) from None


def heard(refusal: Any) -> Refused:
    trailing = {each.key: each.value for each in refusal.trailing_metadata() or ()}
    told = Refused(
        refusal.code().name,
        refusal.details(),
        trailing.get(errors.REASON),
        json.loads(trailing.get(errors.FACTS, "{}")),
    )
    assert not any(inside in told.sentence for inside in INSIDE), told.sentence
    return told


def path(*words: str) -> pb.FlightDescriptor:
    return pb.FlightDescriptor(type=pb.FlightDescriptor.PATH, path=words)


def command(**members: Any) -> pb.FlightDescriptor:
    return pb.FlightDescriptor(type=pb.FlightDescriptor.CMD, cmd=json.dumps(members).encode())


def arrows(server: FlightServer, sent: str | None = None) -> tuple[fl.FlightClient, fl.FlightCallOptions]:
    """pyarrow's client, and what it sends with each call."""
    headers = [(b"authorization", f"Bearer {sent}".encode())] if sent else []
    return fl.connect(server.address), fl.FlightCallOptions(timeout=SECONDS, headers=headers)


def _coded(asked: Any) -> bytes:
    coded: bytes = asked if isinstance(asked, bytes) else asked.SerializeToString()
    return coded
