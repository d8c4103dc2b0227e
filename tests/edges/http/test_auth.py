"""Who may enter: a token in its one header, and nothing that only looks like one."""

import base64
import hashlib
import hmac
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI

from edges.http.client import OTHER, SECRET, TENANT, Client, bearer, near, token
from penstock.core.caller import Role
from penstock.errors import Invalid
from penstock.rest.app import application
from penstock.rest.context import Edge
from penstock.lake import Lake

LATER = int(time.time()) + 3_600


def forged(header: dict[str, Any], key: bytes = SECRET.encode(), **changes: Any) -> str:
    """Any token at all. A claim that is `...` is left out."""
    claims = {"tenant_id": str(TENANT), "sub": "ada", "roles": ["analytics.admin"], "exp": LATER, **changes}
    parts = [{"typ": "JWT", **header}, {name: value for name, value in claims.items() if value is not ...}]
    message = ".".join(_b64(json.dumps(part).encode()) for part in parts)
    return f"{message}.{_b64(hmac.new(key, message.encode(), hashlib.sha256).digest())}"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


HS = {"alg": "HS256"}
PEM = b"-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----\n"
ATTACKS = {
    "no algorithm": forged({"alg": "none"}),
    "no algorithm, no signature": forged({"alg": "none"}).rpartition(".")[0] + ".",
    "no algorithm in odd case": forged({"alg": "nOnE"}),
    "a public key as the secret": forged(HS, PEM),
    "another secret": forged(HS, b"another secret of enough bytes, surely"),
    "an algorithm of public keys": forged({"alg": "RS256", "kid": "a"}),
    "a key by its path": forged({"alg": "RS256", "kid": "../../../../dev/null"}, b""),
    "an empty secret by a path": forged({**HS, "kid": "/dev/null"}, b""),
    "a key by an address": forged({"alg": "RS256", "jku": "http://evil.example/keys"}),
    "a kid of SQL": forged({**HS, "kid": "x' UNION SELECT 'k"}, b"k"),
    "a kid that is no text": forged({**HS, "kid": 7}),
    "critical extensions": forged({**HS, "crit": ["exp"]}),
    "no end": forged(HS, exp=...),
    "an end long ago": forged(HS, exp=1_000_000_000),
    "an end that is text": forged(HS, exp=str(LATER)),
    "no end in sight": forged(HS, exp=float("inf")),
    "not yet": forged(HS, nbf=LATER),
    "no tenant": forged(HS, tenant_id=...),
    "a tenant that is none": forged(HS, tenant_id="*"),
    "no subject": forged(HS, sub=...),
    "huge": forged(HS, sub="a" * 20_000),
    "not a token": "x",
    "dots": "...",
    "half": token()[: len(token()) // 2],
    "a letter changed": token()[:-2] + ("AA" if not token().endswith("AA") else "BB"),
}


def test_the_forger_can_also_make_a_good_one(client: Client) -> None:
    client.nobody()("GET", "/datasets", headers=bearer(forged(HS)))
    client.nobody()("GET", "/datasets", headers=bearer(forged({**HS, "kid": "any"})))


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_not_let_in(client: Client, attack: str) -> None:
    told = client.nobody()("GET", "/datasets", code=401, headers=bearer(ATTACKS[attack]))
    assert told.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert ATTACKS[attack][:-1] not in told.text or len(ATTACKS[attack]) < 4


HEADERS: dict[str, list[tuple[str, str]]] = {
    "two": [("authorization", f"Bearer {token()}")] * 2,
    "two of two schemes": [("authorization", f"Bearer {token()}"), ("authorization", "Basic YTpi")],
    "two in one": [("authorization", f"Bearer {token()}, Bearer {token()}")],
    "basic": [("authorization", "Basic YTpi")],
    "no scheme": [("authorization", token())],
    "no token": [("authorization", "Bearer")],
    "empty": [("authorization", "")],
    "a blank too many": [("authorization", f"Bearer  {token()}")],
    "odd characters": [("authorization", "Bearer \xe4\xf6")],
}


@pytest.mark.parametrize("headers", HEADERS)
def test_only_one_good_header_counts(app: FastAPI, headers: str) -> None:
    import httpx

    sent = httpx.Headers([(name.encode(), value.encode("latin-1")) for name, value in HEADERS[headers]])
    told = near(app, None)._send("GET", "/datasets", headers=sent)
    assert (told.status_code, told.json()["status"]) == (401, 401)


@pytest.mark.parametrize(
    "where", [{"params": {"access_token": token()}}, {"headers": {"cookie": f"authorization={token()}"}}]
)
def test_a_token_anywhere_else_is_none(client: Client, where: dict[str, Any]) -> None:
    client.nobody()("GET", "/datasets", code=401, **where)


def test_the_scheme_is_known_in_any_case(client: Client) -> None:
    client.nobody()("GET", "/datasets", headers={"authorization": f"bEARER {token()}"})


def test_without_a_token_only_the_open_doors_open(client: Client) -> None:
    nobody = client.nobody()
    for path in ("/datasets", "/datasets/a.b", "/datasets/a.b/rows"):
        assert nobody("GET", path, code=401).headers["www-authenticate"] == "Bearer"
    nobody("POST", "/datasets", code=401, content=b"{}", headers={"content-type": "application/json"})
    for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
        nobody("GET", path)


def test_a_token_without_a_role_is_known_and_may_do_nothing(client: Client) -> None:
    told = client.nobody()("GET", "/datasets", code=403, headers=bearer(forged(HS, roles=["root"]))).json()
    assert told["error"] == "Insufficient permissions"
    assert told["required_role"] == "analytics.viewer"


def test_on_a_developer_s_own_machine_no_token_is_needed(edge: Edge, local: Lake) -> None:
    local.create("demo.mine", {"id": [1]})
    alone = near(application(Edge(edge.workspace, None, local.caller)), None)
    assert [each["name"] for each in alone("GET", "/datasets").json()["value"]] == ["demo.mine"]
    assert alone("GET", "/datasets", headers=bearer("whatever")).json()["value"]
    both = near(application(replace(edge, dev=local.caller)), None)
    assert both("GET", "/datasets").json()["value"]
    assert both("GET", "/datasets", headers=bearer(token())).json()["value"] == []
    both("GET", "/datasets", code=401, headers=bearer("whatever"))


def test_an_edge_that_nobody_could_enter_is_not_made(edge: Edge) -> None:
    with pytest.raises(Invalid):
        Edge(edge.workspace, None)


def test_what_is_not_yours_looks_like_what_is_not_there(client: Client) -> None:
    made = client("POST", "/datasets", code=201, json={"name": "demo.x", "schema": [{"name": "id", "type": "int64"}]})
    there, stranger = made.json()["id"], client.as_(tenant=OTHER)
    absent = "00000000-0000-4000-8000-000000000000"
    for tail in ("", "/rows", "/schema", "/history", "/profile", "/profile?column=id"):
        path = f"/datasets/{{}}{tail}"
        theirs, none = (stranger("GET", path.format(each), code=404).text for each in (there, absent))
        assert theirs.replace(there, absent) == none
    stranger("DELETE", f"/datasets/{there}", code=404)
    assert stranger("GET", "/datasets").json()["value"] == []


ROLES = [
    (Role.VIEWER, "GET", "/datasets", 200),
    (Role.VIEWER, "GET", "/datasets/demo.x/rows", 200),
    (Role.VIEWER, "POST", "/datasets", 403),
    (Role.VIEWER, "POST", "/datasets/demo.x/rows", 403),
    (Role.VIEWER, "DELETE", "/datasets/demo.x", 403),
    (Role.DEVELOPER, "POST", "/datasets/demo.x/rows", 200),
    (Role.DEVELOPER, "DELETE", "/datasets/demo.x", 403),
    (Role.ADMIN, "DELETE", "/datasets/demo.x", 204),
]


@pytest.mark.parametrize(("role", "method", "path", "code"), ROLES)
def test_each_role_may_do_its_own(client: Client, role: Role, method: str, path: str, code: int) -> None:
    client("POST", "/datasets", code=201, json={"name": "demo.x", "schema": [{"name": "id", "type": "int64"}]})
    sent = {"content": b"id\n1\n", "headers": {"content-type": "text/csv"}} if method == "POST" else {}
    told = client.as_(role)(method, path, code=code, **sent)
    if code == 403:
        assert told.json()["required_role"] == (Role.ADMIN if method == "DELETE" else Role.DEVELOPER).wire


def test_on_a_developer_s_own_machine_another_site_s_page_gets_nothing(local: Lake) -> None:
    client = near(application(Edge(local.workspace, None, local.caller)), None)
    client("GET", "/gts")
    told = client("GET", "/gts", headers={"host": "evil.example"}, code=403).json()
    assert told["code"] == "NOT_LOOPBACK"
