"""Authentication of REST requests: tokens are accepted only in one valid Authorization header."""

import base64
import hashlib
import hmac
import json
import time
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI

from penstock.core.caller import Role
from penstock.errors import Invalid
from penstock.lake import Lake
from penstock.rest.app import create_app
from penstock.rest.context import RestContext
from penstock.service.auth.tokens import TokenVerifier
from rest.rest_client import OTHER, SECRET, TENANT, Client, bearer, in_process_client, token

LATER = int(time.time()) + 3_600


def forged(header: dict[str, Any], key: bytes = SECRET.encode(), **changes: Any) -> str:
    """Return a signed token with any header and claims. A claim that is `...` is left out."""
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


def test_authenticate_signed_token_with_valid_claims_is_accepted(client: Client) -> None:
    client.without_token()("GET", "/datasets", headers=bearer(forged(HS)))
    client.without_token()("GET", "/datasets", headers=bearer(forged({**HS, "kid": "any"})))


@pytest.mark.parametrize("attack", ATTACKS)
def test_authenticate_forged_token_is_rejected(client: Client, attack: str) -> None:
    response = client.without_token()("GET", "/datasets", code=401, headers=bearer(ATTACKS[attack]))
    assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert ATTACKS[attack][:-1] not in response.text or len(ATTACKS[attack]) < 4


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
def test_authenticate_malformed_or_repeated_header_is_rejected(app: FastAPI, headers: str) -> None:
    import httpx

    sent = httpx.Headers([(name.encode(), value.encode("latin-1")) for name, value in HEADERS[headers]])
    response = in_process_client(app, None)._send("GET", "/datasets", headers=sent)
    assert (response.status_code, response.json()["status"]) == (401, 401)


@pytest.mark.parametrize(
    "where", [{"params": {"access_token": token()}}, {"headers": {"cookie": f"authorization={token()}"}}]
)
def test_authenticate_token_outside_the_header_is_ignored(client: Client, where: dict[str, Any]) -> None:
    client.without_token()("GET", "/datasets", code=401, **where)


def test_authenticate_scheme_is_case_insensitive(client: Client) -> None:
    client.without_token()("GET", "/datasets", headers={"authorization": f"bEARER {token()}"})


def test_request_without_token_reaches_only_public_routes(client: Client) -> None:
    anonymous = client.without_token()
    for path in ("/datasets", "/datasets/a.b", "/datasets/a.b/rows"):
        assert anonymous("GET", path, code=401).headers["www-authenticate"] == "Bearer"
    anonymous("POST", "/datasets", code=401, content=b"{}", headers={"content-type": "application/json"})
    for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
        anonymous("GET", path)


def test_request_with_token_without_role_is_forbidden(client: Client) -> None:
    problem = client.without_token()("GET", "/datasets", code=403, headers=bearer(forged(HS, roles=["root"]))).json()
    assert problem["error"] == "Insufficient permissions"
    assert problem["required_role"] == "analytics.viewer"


def test_dev_mode_request_without_token_is_accepted(edge: RestContext, local: Lake) -> None:
    local.create("demo.mine", {"id": [1]})
    alone = in_process_client(create_app(RestContext.create(edge.workspace, None, local.caller)), None)
    assert [each["name"] for each in alone("GET", "/datasets").json()["value"]] == ["demo.mine"]
    assert alone("GET", "/datasets", headers=bearer("whatever")).json()["value"]
    both = in_process_client(create_app(replace(edge, dev_caller=local.caller)), None)
    assert both("GET", "/datasets").json()["value"]
    assert both("GET", "/datasets", headers=bearer(token())).json()["value"] == []
    both("GET", "/datasets", code=401, headers=bearer("whatever"))


def test_context_without_token_keys_and_dev_caller_is_rejected(edge: RestContext) -> None:
    with pytest.raises(Invalid):
        RestContext.create(edge.workspace, None)


def test_dataset_of_other_tenant_returns_same_404_as_unknown_one(client: Client) -> None:
    made = client("POST", "/datasets", code=201, json={"name": "demo.x", "schema": [{"name": "id", "type": "int64"}]})
    there, other_tenant = made.json()["id"], client.as_(tenant=OTHER)
    absent = "00000000-0000-4000-8000-000000000000"
    for tail in ("", "/rows", "/schema", "/history", "/profile", "/profile?column=id"):
        path = f"/datasets/{{}}{tail}"
        theirs, none = (other_tenant("GET", path.format(each), code=404).text for each in (there, absent))
        assert theirs.replace(there, absent) == none
    other_tenant("DELETE", f"/datasets/{there}", code=404)
    assert other_tenant("GET", "/datasets").json()["value"] == []


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
def test_dataset_routes_require_roles(client: Client, role: Role, method: str, path: str, code: int) -> None:
    client("POST", "/datasets", code=201, json={"name": "demo.x", "schema": [{"name": "id", "type": "int64"}]})
    sent = {"content": b"id\n1\n", "headers": {"content-type": "text/csv"}} if method == "POST" else {}
    response = client.as_(role)(method, path, code=code, **sent)
    if code == 403:
        assert response.json()["required_role"] == (Role.ADMIN if method == "DELETE" else Role.DEVELOPER).claim


def test_dev_mode_request_with_foreign_host_is_rejected(local: Lake) -> None:
    client = in_process_client(create_app(RestContext.create(local._workspace, None, local.caller)), None)
    client("GET", "/gts")
    problem = client("GET", "/gts", headers={"host": "evil.example"}, code=403).json()
    assert problem["code"] == "NOT_LOOPBACK"


SITES: list[tuple[str, dict[str, str], bool]] = [  # method, headers, accepted
    ("POST", {}, True),
    ("POST", {"origin": "http://localhost"}, True),
    ("POST", {"origin": "http://localhost", "sec-fetch-site": "same-origin"}, True),
    ("POST", {"sec-fetch-site": "none"}, True),
    ("POST", {"origin": "https://evil.example"}, False),
    ("POST", {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, False),
    ("POST", {"origin": "null"}, False),
    ("POST", {"origin": "https://[evil"}, False),
    ("POST", {"sec-fetch-site": "cross-site"}, False),
    ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
    ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),
    ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
    ("GET", {"origin": "https://evil.example"}, False),
]


@pytest.mark.parametrize(("method", "headers", "accepted"), SITES)
def test_dev_mode_request_of_another_site_is_rejected(
    local: Lake, method: str, headers: dict[str, str], accepted: bool
) -> None:
    app = create_app(RestContext.create(local._workspace, TokenVerifier(SECRET), local.caller))
    path = f"/runs/{uuid4()}" if method == "GET" else f"/pipelines/{uuid4()}/runs"
    problem = in_process_client(app, None)(method, path, headers=headers, code=404 if accepted else 403).json()
    assert problem["code"] in (("PIPELINE_NOT_FOUND", "RUN_NOT_FOUND") if accepted else ("CROSS_SITE",))
    in_process_client(app, token())(method, path, headers=headers, code=404)  # a page of another site has no token
