"""Authentication of Flight calls by token, and without a token in development mode."""

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import jwt
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from flight.conftest import EVENTS
from flight.raw_client import SECRET, TENANT, Raw, Refused, arrows, served, token
from penstock.core.caller import Role
from penstock.errors import Invalid
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightContext
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from penstock.service.auth.tokens import TokenVerifier, mint

AT = {"schema_name": "analytics", "table_name": "events"}


def minted(secret: str, age: timedelta = timedelta()) -> str:
    roles, now = [Role.ADMIN.claim], datetime.now(UTC) - age
    return mint(secret, tenant=TENANT, user="ada", roles=roles, ttl=timedelta(hours=1), now=now)


HEADERS: list[tuple[list[str], str]] = [
    ([], "missing_token"),
    (["Bearer"], "bad_authorization"),
    ([f"Basic {token()}"], "bad_authorization"),
    (["Bearer x"], "bad_token"),
    ([f"Bearer {minted(SECRET, timedelta(hours=2))}"], "token_expired"),
    ([f"Bearer {minted('another secret that has enough bytes')}"], "bad_signature"),
    ([f"Bearer {token()}", f"Bearer {token()}"], "bad_authorization"),
]
METHODS: list[tuple[str, str]] = [
    ("unary_stream", "ListFlights"), ("unary_unary", "GetFlightInfo"), ("unary_unary", "GetSchema"),
    ("unary_stream", "DoGet"), ("stream_stream", "DoPut"), ("unary_stream", "DoAction"), ("unary_stream", "ListActions"),
    ("stream_stream", "Handshake"), ("stream_stream", "DoExchange"), ("unary_unary", "PollFlightInfo"),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "reason"), HEADERS, ids=[reason for _, reason in HEADERS])
def test_call_without_valid_token_is_rejected(raw: Raw, headers: list[str], reason: str) -> None:
    call = raw.channel.unary_stream("/arrow.flight.protocol.FlightService/ListActions")
    with pytest.raises(grpc.RpcError) as raised:
        list(call(b"", metadata=[("authorization", item) for item in headers], timeout=30))
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    trailing = {item.key: item.value for item in raised.value.trailing_metadata()}
    assert trailing["penstock-reason"] == reason
    assert not any(header.split()[-1] in raised.value.details() for header in headers if "Bearer e" in header)


@pytest.mark.parametrize(("kind", "method"), METHODS, ids=[method for _, method in METHODS])
def test_every_method_requires_a_token(server: FlightServer, kind: str, method: str) -> None:
    with Raw(server) as anonymous, pytest.raises(Refused) as raised:
        _ask(anonymous, kind, method)
    assert (raised.value.code, raised.value.sentence) == (
        "UNAUTHENTICATED",
        'The request has no token. Send the header "Authorization: Bearer <token>"',
    )


@pytest.mark.parametrize(
    ("kind", "method"), [*METHODS[-2:], ("unary_unary", "Nothing")], ids=["exchange", "poll", "unknown"]
)
def test_unimplemented_method_is_reported(raw: Raw, kind: str, method: str) -> None:
    with pytest.raises(Refused) as raised:
        _ask(raw, kind, method)
    assert raised.value.code == "UNIMPLEMENTED"
    assert raised.value.reason == (None if method == "Nothing" else "not_implemented")


class Handler(fl.ClientAuthHandler):  # type: ignore[misc]
    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(b"hello")
        self.answer = incoming.read()

    def get_token(self) -> bytes:
        return b""


def test_handshake_confirms_token(server: FlightServer) -> None:
    client, options = arrows(server, token())
    with client:
        handler = Handler()
        client.authenticate(handler, options)
        assert handler.answer == b""
        assert list(client.list_flights(options=options))
    client, options = arrows(server, "no token")
    with client, pytest.raises(fl.FlightUnauthenticatedError):
        client.authenticate(Handler(), options)


def _ask(raw: Raw, kind: str, method: str) -> Any:
    match kind:
        case "unary_unary":
            return raw.one(method, b"")
        case "unary_stream":
            return raw.many(method, b"")
    return raw.put([], method)


def test_authentication_errors_reach_pyarrow(server: FlightServer) -> None:
    client, options = arrows(server)
    with client, pytest.raises(pa.ArrowException, match="has no token"):
        list(client.list_flights(options=options))


def test_token_with_unknown_role_is_forbidden(raw: Raw, server: FlightServer) -> None:
    claims = {"tenant_id": str(TENANT), "sub": "ada", "roles": ["cook"], "exp": datetime.now(UTC) + timedelta(hours=1)}
    with Raw(server, jwt.encode(claims, SECRET, "HS256")) as cook, pytest.raises(Refused) as raised:
        cook.act("list_schemas")
    assert (raised.value.code, raised.value.reason) == ("PERMISSION_DENIED", "missing_role")


def test_dev_caller_needs_no_token(lake: Lake) -> None:
    with served(FlightContext(lake._workspace, None, lake.caller)) as server:
        with Raw(server) as raw:
            assert raw.get(AT).equals(EVENTS)
        with Raw(server, "whatever") as raw:
            assert raw.get(AT).equals(EVENTS)
    with served(
        FlightContext(lake._workspace, TokenVerifier(SECRET), lake.caller)
    ) as server:  # where there are keys, a token counts
        with Raw(server) as raw:
            assert raw.get(AT).equals(EVENTS)
        with Raw(server, "whatever") as raw, pytest.raises(Refused) as raised:
            raw.get(AT)
        assert raised.value.code == "UNAUTHENTICATED"


def test_context_without_keys_and_dev_caller_is_invalid(lake: Lake) -> None:
    with pytest.raises(Invalid, match="needs token keys"):
        FlightContext(lake._workspace, None)


def test_context_records_served_tenants(edge: FlightContext, raw: Raw) -> None:
    raw.many("ListActions", pb.Empty())
    assert edge.tenants == {TENANT}
