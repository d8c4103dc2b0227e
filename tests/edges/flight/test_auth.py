"""Who may call: whoever sends one good token; and on a developer's own machine, whoever sends none."""

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import jwt
import pyarrow as pa
import pytest

from edges.flight.conftest import EVENTS
from edges.flight.stage import SECRET, TENANT, Raw, Refused, arrows, served, token
from penstock.core.caller import Role
from penstock.errors import Invalid
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import Edge
from penstock.flight.server import FlightServer
from penstock.lake import Lake
from penstock.service.auth.tokens import Tokens, mint

AT = {"schema_name": "analytics", "table_name": "events"}


def minted(secret: str, age: timedelta = timedelta()) -> str:
    roles, now = [Role.ADMIN.wire], datetime.now(UTC) - age
    return mint(secret, tenant=TENANT, user="ada", roles=roles, ttl=timedelta(hours=1), now=now)


HEADERS: list[tuple[list[str], str]] = [
    ([], "no_token"),
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
def test_without_a_good_token_nobody_is_served(raw: Raw, headers: list[str], reason: str) -> None:
    call = raw.channel.unary_stream("/arrow.flight.protocol.FlightService/ListActions")
    with pytest.raises(grpc.RpcError) as refusal:
        list(call(b"", metadata=[("authorization", each) for each in headers], timeout=30))
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    trailing = {each.key: each.value for each in refusal.value.trailing_metadata()}
    assert trailing["penstock-reason"] == reason
    assert not any(header.split()[-1] in refusal.value.details() for header in headers if "Bearer e" in header)


@pytest.mark.parametrize(("kind", "method"), METHODS, ids=[method for _, method in METHODS])
def test_every_method_asks_for_a_token(server: FlightServer, kind: str, method: str) -> None:
    with Raw(server) as nobody, pytest.raises(Refused) as refusal:
        _ask(nobody, kind, method)
    assert (refusal.value.code, refusal.value.sentence) == ("UNAUTHENTICATED", "send a token: authorization: Bearer …")


@pytest.mark.parametrize(
    ("kind", "method"), [*METHODS[-3:], ("unary_unary", "Nothing")], ids=["handshake", "exchange", "poll", "unknown"]
)
def test_what_is_not_served_says_so(raw: Raw, kind: str, method: str) -> None:
    with pytest.raises(Refused) as refusal:
        _ask(raw, kind, method)
    assert refusal.value.code == "UNIMPLEMENTED"
    assert refusal.value.reason == (None if method == "Nothing" else "not_served")


def _ask(raw: Raw, kind: str, method: str) -> Any:
    match kind:
        case "unary_unary":
            return raw.one(method, b"")
        case "unary_stream":
            return raw.many(method, b"")
    return raw.put([], method)


def test_pyarrow_hears_the_same(server: FlightServer) -> None:
    client, options = arrows(server)
    with client, pytest.raises(pa.ArrowException, match="send a token"):
        list(client.list_flights(options=options))


def test_a_role_that_is_none_of_ours_may_do_nothing(raw: Raw, server: FlightServer) -> None:
    claims = {"tenant_id": str(TENANT), "sub": "ada", "roles": ["cook"], "exp": datetime.now(UTC) + timedelta(hours=1)}
    with Raw(server, jwt.encode(claims, SECRET, "HS256")) as cook, pytest.raises(Refused) as refusal:
        cook.act("list_schemas")
    assert (refusal.value.code, refusal.value.reason) == ("PERMISSION_DENIED", "no_role")


def test_on_a_developer_s_machine_no_token_is_needed(lake: Lake) -> None:
    with served(Edge(lake.workspace, None, lake.caller)) as server:
        with Raw(server) as raw:
            assert raw.get(AT).equals(EVENTS)
        with Raw(server, "whatever") as raw:
            assert raw.get(AT).equals(EVENTS)
    with served(Edge(lake.workspace, Tokens(SECRET), lake.caller)) as server:  # where there are keys, a token counts
        with Raw(server) as raw:
            assert raw.get(AT).equals(EVENTS)
        with Raw(server, "whatever") as raw, pytest.raises(Refused) as refusal:
            raw.get(AT)
        assert refusal.value.code == "UNAUTHENTICATED"


def test_an_edge_that_nobody_could_enter_is_not_made(lake: Lake) -> None:
    with pytest.raises(Invalid, match="nobody could enter"):
        Edge(lake.workspace, None)


def test_tenants_that_were_served_are_known(edge: Edge, raw: Raw) -> None:
    raw.many("ListActions", pb.Empty())
    assert edge.tenants == {TENANT}
