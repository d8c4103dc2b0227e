"""Authentication of Flight calls by token, and without a token in development mode."""

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import jwt
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from flight.conftest import EVENTS
from flight.raw_client import SECRET, TENANT, CallRejected, RawClient, connect_pyarrow, running_server, token
from penstock.core.caller import Role
from penstock.errors import Invalid
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightContext
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from penstock.service.auth.tokens import TokenVerifier, mint

TABLE_REFERENCE = {"schema_name": "analytics", "table_name": "events"}


def mint_token(secret: str, age: timedelta = timedelta()) -> str:
    roles, now = [Role.ADMIN.claim], datetime.now(UTC) - age
    return mint(secret, tenant=TENANT, user="ada", roles=roles, ttl=timedelta(hours=1), now=now)


HEADERS: list[tuple[list[str], str]] = [
    ([], "missing_token"),
    (["Bearer"], "bad_authorization"),
    ([f"Basic {token()}"], "bad_authorization"),
    (["Bearer x"], "bad_token"),
    ([f"Bearer {mint_token(SECRET, timedelta(hours=2))}"], "token_expired"),
    ([f"Bearer {mint_token('another secret that has enough bytes')}"], "bad_signature"),
    ([f"Bearer {token()}", f"Bearer {token()}"], "bad_authorization"),
]
METHODS: list[tuple[str, str]] = [
    ("unary_stream", "ListFlights"), ("unary_unary", "GetFlightInfo"), ("unary_unary", "GetSchema"),
    ("unary_stream", "DoGet"), ("stream_stream", "DoPut"), ("unary_stream", "DoAction"), ("unary_stream", "ListActions"),
    ("stream_stream", "Handshake"), ("stream_stream", "DoExchange"), ("unary_unary", "PollFlightInfo"),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "reason"), HEADERS, ids=[reason for _, reason in HEADERS])
def test_call_without_valid_token_is_rejected(raw_client: RawClient, headers: list[str], reason: str) -> None:
    call = raw_client.channel.unary_stream("/arrow.flight.protocol.FlightService/ListActions")
    with pytest.raises(grpc.RpcError) as raised:
        list(call(b"", metadata=[("authorization", item) for item in headers], timeout=30))
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    trailing = {item.key: item.value for item in raised.value.trailing_metadata()}
    assert trailing["penstock-reason"] == reason
    assert not any(header.split()[-1] in raised.value.details() for header in headers if "Bearer e" in header)


@pytest.mark.parametrize(("call_type", "method"), METHODS, ids=[method for _, method in METHODS])
def test_every_method_requires_a_token(server: FlightServer, call_type: str, method: str) -> None:
    with RawClient(server) as anonymous, pytest.raises(CallRejected) as raised:
        _call_method(anonymous, call_type, method)
    assert (raised.value.code, raised.value.message) == (
        "UNAUTHENTICATED",
        'The request has no token. Send the header "Authorization: Bearer <token>"',
    )


@pytest.mark.parametrize(
    ("call_type", "method"), [*METHODS[-2:], ("unary_unary", "Nothing")], ids=["exchange", "poll", "unknown"]
)
def test_unimplemented_method_is_reported(raw_client: RawClient, call_type: str, method: str) -> None:
    with pytest.raises(CallRejected) as raised:
        _call_method(raw_client, call_type, method)
    assert raised.value.code == "UNIMPLEMENTED"
    assert raised.value.reason == (None if method == "Nothing" else "not_implemented")


class HandshakeHandler(fl.ClientAuthHandler):  # type: ignore[misc]
    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(b"hello")
        self.response = incoming.read()

    def get_token(self) -> bytes:
        return b""


def test_handshake_confirms_token(server: FlightServer) -> None:
    client, options = connect_pyarrow(server, token())
    with client:
        handler = HandshakeHandler()
        client.authenticate(handler, options)
        assert handler.response == b""
        assert list(client.list_flights(options=options))
    client, options = connect_pyarrow(server, "no token")
    with client, pytest.raises(fl.FlightUnauthenticatedError):
        client.authenticate(HandshakeHandler(), options)


def _call_method(raw_client: RawClient, call_type: str, method: str) -> Any:
    match call_type:
        case "unary_unary":
            return raw_client.call_unary(method, b"")
        case "unary_stream":
            return raw_client.call_stream(method, b"")
    return raw_client.put([], method)


def test_authentication_errors_reach_pyarrow(server: FlightServer) -> None:
    client, options = connect_pyarrow(server)
    with client, pytest.raises(pa.ArrowException, match="has no token"):
        list(client.list_flights(options=options))


def test_token_with_unknown_role_is_forbidden(raw_client: RawClient, server: FlightServer) -> None:
    claims = {"tenant_id": str(TENANT), "sub": "ada", "roles": ["cook"], "exp": datetime.now(UTC) + timedelta(hours=1)}
    with RawClient(server, jwt.encode(claims, SECRET, "HS256")) as client, pytest.raises(CallRejected) as raised:
        client.do_action("list_schemas")
    assert (raised.value.code, raised.value.reason) == ("PERMISSION_DENIED", "missing_role")


def test_dev_caller_needs_no_token(lake: Lake) -> None:
    with running_server(FlightContext(lake._workspace, None, lake.caller)) as server:
        with RawClient(server) as raw_client:
            assert raw_client.get(TABLE_REFERENCE).equals(EVENTS)
        with RawClient(server, "whatever") as raw_client:
            assert raw_client.get(TABLE_REFERENCE).equals(EVENTS)
    with running_server(
        FlightContext(lake._workspace, TokenVerifier(SECRET), lake.caller)
    ) as server:  # with keys, a token takes precedence over the dev caller
        with RawClient(server) as raw_client:
            assert raw_client.get(TABLE_REFERENCE).equals(EVENTS)
        with RawClient(server, "whatever") as raw_client, pytest.raises(CallRejected) as raised:
            raw_client.get(TABLE_REFERENCE)
        assert raised.value.code == "UNAUTHENTICATED"


def test_context_without_keys_and_dev_caller_is_invalid(lake: Lake) -> None:
    with pytest.raises(Invalid, match="needs token keys"):
        FlightContext(lake._workspace, None)


def test_context_records_served_tenants(flight_context: FlightContext, raw_client: RawClient) -> None:
    raw_client.call_stream("ListActions", pb.Empty())
    assert flight_context.tenants == {TENANT}
