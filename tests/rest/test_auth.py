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
from rest.rest_client import OTHER_TENANT, SECRET, TENANT, RestClient, bearer, in_process_client, token

FUTURE = int(time.time()) + 3_600


def forge_token(header: dict[str, Any], key: bytes = SECRET.encode(), **changes: Any) -> str:
    """Return a signed token with any header and claims. A claim that is `...` is left out."""
    claims = {"tenant_id": str(TENANT), "sub": "ada", "roles": ["analytics.admin"], "exp": FUTURE, **changes}
    parts = [{"typ": "JWT", **header}, {name: value for name, value in claims.items() if value is not ...}]
    message = ".".join(_encode_base64(json.dumps(part).encode()) for part in parts)
    return f"{message}.{_encode_base64(hmac.new(key, message.encode(), hashlib.sha256).digest())}"


def _encode_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


HS256_HEADER = {"alg": "HS256"}
PUBLIC_KEY = b"-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----\n"
FORGED_TOKENS = {
    "no algorithm": forge_token({"alg": "none"}),
    "no algorithm, no signature": forge_token({"alg": "none"}).rpartition(".")[0] + ".",
    "no algorithm in mixed case": forge_token({"alg": "nOnE"}),
    "public key as the secret": forge_token(HS256_HEADER, PUBLIC_KEY),
    "another secret": forge_token(HS256_HEADER, b"another secret of enough bytes, surely"),
    "algorithm of public keys": forge_token({"alg": "RS256", "kid": "a"}),
    "key id is a path": forge_token({"alg": "RS256", "kid": "../../../../dev/null"}, b""),
    "key id is the path of an empty secret": forge_token({**HS256_HEADER, "kid": "/dev/null"}, b""),
    "key URL": forge_token({"alg": "RS256", "jku": "http://evil.example/keys"}),
    "key id is SQL": forge_token({**HS256_HEADER, "kid": "x' UNION SELECT 'k"}, b"k"),
    "key id is a number": forge_token({**HS256_HEADER, "kid": 7}),
    "critical extensions": forge_token({**HS256_HEADER, "crit": ["exp"]}),
    "no expiry": forge_token(HS256_HEADER, exp=...),
    "expired": forge_token(HS256_HEADER, exp=1_000_000_000),
    "expiry is text": forge_token(HS256_HEADER, exp=str(FUTURE)),
    "infinite expiry": forge_token(HS256_HEADER, exp=float("inf")),
    "not valid yet": forge_token(HS256_HEADER, nbf=FUTURE),
    "no tenant": forge_token(HS256_HEADER, tenant_id=...),
    "invalid tenant": forge_token(HS256_HEADER, tenant_id="*"),
    "no subject": forge_token(HS256_HEADER, sub=...),
    "long subject": forge_token(HS256_HEADER, sub="a" * 20_000),
    "not a token": "x",
    "dots": "...",
    "first half of a token": token()[: len(token()) // 2],
    "changed signature": token()[:-2] + ("AA" if not token().endswith("AA") else "BB"),
}


def test_authenticate_signed_token_with_valid_claims_is_accepted(client: RestClient) -> None:
    client.without_token()("GET", "/datasets", headers=bearer(forge_token(HS256_HEADER)))
    client.without_token()("GET", "/datasets", headers=bearer(forge_token({**HS256_HEADER, "kid": "any"})))


@pytest.mark.parametrize("case_name", FORGED_TOKENS)
def test_authenticate_forged_token_is_rejected(client: RestClient, case_name: str) -> None:
    response = client.without_token()("GET", "/datasets", code=401, headers=bearer(FORGED_TOKENS[case_name]))
    assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert FORGED_TOKENS[case_name][:-1] not in response.text or len(FORGED_TOKENS[case_name]) < 4


MALFORMED_HEADERS: dict[str, list[tuple[str, str]]] = {
    "two headers": [("authorization", f"Bearer {token()}")] * 2,
    "two schemes": [("authorization", f"Bearer {token()}"), ("authorization", "Basic YTpi")],
    "two tokens in one header": [("authorization", f"Bearer {token()}, Bearer {token()}")],
    "basic": [("authorization", "Basic YTpi")],
    "no scheme": [("authorization", token())],
    "no token": [("authorization", "Bearer")],
    "empty": [("authorization", "")],
    "two spaces": [("authorization", f"Bearer  {token()}")],
    "characters outside ASCII": [("authorization", "Bearer \xe4\xf6")],
}


@pytest.mark.parametrize("case_name", MALFORMED_HEADERS)
def test_authenticate_malformed_or_repeated_header_is_rejected(app: FastAPI, case_name: str) -> None:
    import httpx

    headers = httpx.Headers([(name.encode(), value.encode("latin-1")) for name, value in MALFORMED_HEADERS[case_name]])
    response = in_process_client(app, None)._send("GET", "/datasets", headers=headers)
    assert (response.status_code, response.json()["status"]) == (401, 401)


@pytest.mark.parametrize(
    "options", [{"params": {"access_token": token()}}, {"headers": {"cookie": f"authorization={token()}"}}]
)
def test_authenticate_token_outside_the_header_is_ignored(client: RestClient, options: dict[str, Any]) -> None:
    client.without_token()("GET", "/datasets", code=401, **options)


def test_authenticate_scheme_is_case_insensitive(client: RestClient) -> None:
    client.without_token()("GET", "/datasets", headers={"authorization": f"bEARER {token()}"})


def test_request_without_token_reaches_only_public_routes(client: RestClient) -> None:
    anonymous = client.without_token()
    for path in ("/datasets", "/datasets/a.b", "/datasets/a.b/rows"):
        assert anonymous("GET", path, code=401).headers["www-authenticate"] == "Bearer"
    anonymous("POST", "/datasets", code=401, content=b"{}", headers={"content-type": "application/json"})
    for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
        anonymous("GET", path)


def test_request_with_token_without_role_is_forbidden(client: RestClient) -> None:
    problem = client.without_token()(
        "GET", "/datasets", code=403, headers=bearer(forge_token(HS256_HEADER, roles=["root"]))
    ).json()
    assert problem["error"] == "Insufficient permissions"
    assert problem["required_role"] == "analytics.viewer"


def test_dev_mode_request_without_token_is_accepted(rest_context: RestContext, local_lake: Lake) -> None:
    local_lake.create("demo.mine", {"id": [1]})
    dev_client = in_process_client(
        create_app(RestContext.create(rest_context.workspace, None, local_lake.caller)), None
    )
    assert [dataset["name"] for dataset in dev_client("GET", "/datasets").json()["value"]] == ["demo.mine"]
    assert dev_client("GET", "/datasets", headers=bearer("whatever")).json()["value"]
    client_with_keys = in_process_client(create_app(replace(rest_context, dev_caller=local_lake.caller)), None)
    assert client_with_keys("GET", "/datasets").json()["value"]
    assert client_with_keys("GET", "/datasets", headers=bearer(token())).json()["value"] == []
    client_with_keys("GET", "/datasets", code=401, headers=bearer("whatever"))


def test_context_without_token_keys_and_dev_caller_is_rejected(rest_context: RestContext) -> None:
    with pytest.raises(Invalid):
        RestContext.create(rest_context.workspace, None)


def test_dataset_of_other_tenant_returns_same_404_as_unknown_one(client: RestClient) -> None:
    created = client(
        "POST", "/datasets", code=201, json={"name": "demo.x", "schema": [{"name": "id", "type": "int64"}]}
    )
    dataset_id, other_tenant = created.json()["id"], client.as_caller(tenant=OTHER_TENANT)
    unknown_id = "00000000-0000-4000-8000-000000000000"
    for suffix in ("", "/rows", "/schema", "/history", "/profile", "/profile?column=id"):
        path = f"/datasets/{{}}{suffix}"
        existing_text, unknown_text = (
            other_tenant("GET", path.format(id), code=404).text for id in (dataset_id, unknown_id)
        )
        assert existing_text.replace(dataset_id, unknown_id) == unknown_text
    other_tenant("DELETE", f"/datasets/{dataset_id}", code=404)
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
def test_dataset_routes_require_roles(client: RestClient, role: Role, method: str, path: str, code: int) -> None:
    client("POST", "/datasets", code=201, json={"name": "demo.x", "schema": [{"name": "id", "type": "int64"}]})
    options = {"content": b"id\n1\n", "headers": {"content-type": "text/csv"}} if method == "POST" else {}
    response = client.as_caller(role)(method, path, code=code, **options)
    if code == 403:
        assert response.json()["required_role"] == (Role.ADMIN if method == "DELETE" else Role.DEVELOPER).claim


def test_dev_mode_request_with_foreign_host_is_rejected(local_lake: Lake) -> None:
    client = in_process_client(create_app(RestContext.create(local_lake._workspace, None, local_lake.caller)), None)
    client("GET", "/gts")
    problem = client("GET", "/gts", headers={"host": "evil.example"}, code=403).json()
    assert problem["code"] == "NOT_LOOPBACK"


SITE_REQUESTS: list[tuple[str, dict[str, str], bool]] = [  # method, headers, accepted
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


@pytest.mark.parametrize(("method", "headers", "accepted"), SITE_REQUESTS)
def test_dev_mode_request_of_another_site_is_rejected(
    local_lake: Lake, method: str, headers: dict[str, str], accepted: bool
) -> None:
    app = create_app(RestContext.create(local_lake._workspace, TokenVerifier(SECRET), local_lake.caller))
    path = f"/runs/{uuid4()}" if method == "GET" else f"/pipelines/{uuid4()}/runs"
    problem = in_process_client(app, None)(method, path, headers=headers, code=404 if accepted else 403).json()
    assert problem["code"] in (("PIPELINE_NOT_FOUND", "RUN_NOT_FOUND") if accepted else ("CROSS_SITE",))
    # A page of another site has no token, so a request with a token is accepted.
    in_process_client(app, token())(method, path, headers=headers, code=404)
