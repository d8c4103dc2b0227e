"""Token verification: signatures, claims, times, JWKS."""

import asyncio
import base64
import hashlib
import hmac
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from conftest import examples
from penstock.core.caller import ROLES, Role
from penstock.errors import Forbidden, Invalid, Unauthenticated, Unavailable
from penstock.service.auth import async_authentication, jwks, tokens
from penstock.service.auth.async_authentication import AsyncAuthentication
from penstock.service.auth.tokens import TokenVerifier, mint

SECRET = "a secret of enough bytes, for tests only"
TENANT = UUID("11111111-2222-3333-4444-555555555555")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ISSUER = "https://id.example"
AUDIENCE = "penstock"

RSA = rsa.generate_private_key(65537, 2048)
RSA_PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
RSA_DER = RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
SMALL_RSA = rsa.generate_private_key(65537, 1024)
CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1(), "secp256k1": ec.SECP256K1()}
EC = {name: ec.generate_private_key(curve) for name, curve in CURVES.items()}


def jwk(private: Any, kid: str | None = None, **members: Any) -> dict[str, Any]:
    algorithm_class = RSAAlgorithm if isinstance(private, rsa.RSAPrivateKey) else ECAlgorithm
    public = algorithm_class.to_jwk(private.public_key(), as_dict=True)
    return public | ({} if kid is None else {"kid": kid}) | members


def claims(**changes: Any) -> dict[str, Any]:
    """Return valid claims with changes; a value of `...` removes the claim."""
    good = {
        "tenant_id": str(TENANT),
        "sub": "ann@example",
        "roles": ["analytics.developer"],
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": int(NOON.timestamp()) + 600,
    }
    return {name: value for name, value in (good | changes).items() if value is not ...}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def hs256(message: bytes, key: bytes = SECRET.encode()) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def rs256(message: bytes, key: rsa.RSAPrivateKey = RSA) -> bytes:
    return RSAAlgorithm(RSAAlgorithm.SHA256).sign(message, key)


def token(header: Any, payload: Any, sign: Callable[[bytes], bytes] = hs256) -> str:
    """Build a token by hand, without the checks of a library."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    message = ".".join(b64(part) for part in parts)
    return f"{message}.{b64(sign(message.encode()))}"


def hs(payload: Any, **header: Any) -> str:
    return token({"alg": "HS256", "typ": "JWT"} | header, payload)


def rs(payload: Any, key: rsa.RSAPrivateKey = RSA, kid: Any = "rsa", **header: Any) -> str:
    return token({"alg": "RS256", "kid": kid} | header, payload, lambda message: rs256(message, key))


@dataclass
class FakeClock:
    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Endpoint:
    """A JWKS server on the loopback interface with configurable responses, which counts the requests."""

    url: str
    keys: list[Any] = field(default_factory=list)
    body: bytes | None = None  # instead of the keys
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    slow: bool = False  # spaces at intervals, then the response
    fetches: int = 0
    released: threading.Event = field(default_factory=threading.Event)  # responses wait for this event
    called: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server_endpoint.fetches += 1
            server_endpoint.called.set()
            server_endpoint.released.wait(20)
            body = (
                json.dumps({"keys": server_endpoint.keys}).encode()
                if server_endpoint.body is None
                else server_endpoint.body
            )
            self.send_response(server_endpoint.status)
            for name, value in server_endpoint.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for _ in range(60 if server_endpoint.slow else 0):
                self.wfile.write(b" ")
                threading.Event().wait(0.05)
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # closing waits for active responses

        def handle_error(self, *_: Any) -> None:
            pass  # the client has closed the connection, as expected

    monkeypatch.setenv("no_proxy", "*")
    server = Server(("127.0.0.1", 0), Handler)
    server_endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/jwks.json")
    server_endpoint.keys = [jwk(RSA, "rsa"), *(jwk(key, name) for name, key in EC.items())]
    server_endpoint.released.set()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server_endpoint
    server_endpoint.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def shared(clock: FakeClock) -> TokenVerifier:
    return TokenVerifier(SECRET, None, ISSUER, AUDIENCE, clock=clock)


@pytest.fixture
def published(endpoint: Endpoint, clock: FakeClock) -> TokenVerifier:
    return TokenVerifier(None, endpoint.url, ISSUER, AUDIENCE, clock=clock)


@pytest.fixture
def both(endpoint: Endpoint, clock: FakeClock) -> TokenVerifier:
    return TokenVerifier(SECRET, endpoint.url, ISSUER, AUDIENCE, clock=clock)


def rejection_reason(verifier: TokenVerifier, encoded: str) -> str:
    """Return the reason of the rejection, and check that the error contains no part of the token."""
    with pytest.raises(Unauthenticated) as raised:
        verifier.verify(encoded)
    text = repr(raised.value.as_dict()) + "".join(traceback.format_exception(raised.value))
    assert not [part for part in [encoded, *encoded.split(".")] if len(part) > 6 and part in text], (
        "the error contains a part of the token"
    )
    assert "ann@example" not in text
    assert raised.value.__cause__ is None
    return raised.value.reason


# --- valid tokens


def test_verify_returns_caller_of_valid_token(shared: TokenVerifier) -> None:
    caller = shared.verify(hs(claims()))
    assert (caller.tenant, caller.name, caller.role) == (TENANT, "ann@example", Role.DEVELOPER)


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_rsa_key_verifies_every_rsa_algorithm(published: TokenVerifier, algorithm: str) -> None:
    encoded = jwt.encode(claims(), RSA, algorithm=algorithm, headers={"kid": "rsa"})
    assert published.verify(encoded).name == "ann@example"


@pytest.mark.parametrize(("curve", "algorithm"), [("P-256", "ES256"), ("P-384", "ES384"), ("P-521", "ES512")])
def test_ec_key_verifies_algorithm_of_its_curve(published: TokenVerifier, curve: str, algorithm: str) -> None:
    encoded = jwt.encode(claims(), EC[curve], algorithm=algorithm, headers={"kid": curve})
    assert published.verify(encoded).name == "ann@example"


def test_secret_and_jwks_both_verify(both: TokenVerifier) -> None:
    assert both.verify(hs(claims())) == both.verify(rs(claims()))


def test_token_with_one_matching_audience_is_accepted(shared: TokenVerifier) -> None:
    assert shared.verify(hs(claims(aud=["other", AUDIENCE]))).tenant == TENANT


def test_issuer_and_audience_are_optional_unless_required(clock: FakeClock) -> None:
    verifier = TokenVerifier(SECRET, clock=clock)
    assert verifier.verify(hs(claims(iss=..., aud=...))).tenant == TENANT
    assert verifier.verify(hs(claims(aud=...))).tenant == TENANT


def test_highest_valid_role_is_used(shared: TokenVerifier) -> None:
    roles = ["analytics.viewer", "root", "analytics.admin", 7, None]
    assert shared.verify(hs(claims(roles=roles))).role is Role.ADMIN


def test_user_id_depends_on_issuer_and_subject(clock: FakeClock) -> None:
    verifier = TokenVerifier(SECRET, clock=clock)
    first, repeated = (verifier.verify(hs(claims(aud=...))).user for _ in range(2))
    other = verifier.verify(hs(claims(aud=..., iss="https://other.example"))).user
    assert first == repeated == UUID("99fd7a05-b7b6-59ab-a700-c628e5bbd748"), "ids in stored rows would be lost"
    assert first != other
    assert (first.version, other.version) == (5, 5)


def test_uuid_subject_is_user_id(shared: TokenVerifier) -> None:
    user_id = UUID("99999999-aaaa-4bbb-8ccc-dddddddddddd")
    assert shared.verify(hs(claims(sub=str(user_id)))).user == user_id


def test_keys_in_token_header_are_ignored(published: TokenVerifier, endpoint: Endpoint) -> None:
    header_members = {
        "jku": f"{endpoint.url}?evil",
        "x5u": "file:///etc/passwd",
        "x5c": ["…"],
        "jwk": jwk(OTHER_RSA, "rsa"),
    }
    assert published.verify(rs(claims(), **header_members)).tenant == TENANT
    assert rejection_reason(published, rs(claims(), OTHER_RSA, **header_members)) == "bad_signature"
    assert endpoint.fetches == 1


# --- forged tokens


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "nOnE", "", " none", "none\0", None, 0, [], ["none"], {}]
)
@pytest.mark.parametrize("signature", [b"", b"x", hs256(b"")])
def test_unsigned_token_is_rejected(both: TokenVerifier, algorithm: Any, signature: bytes) -> None:
    assert rejection_reason(both, token({"alg": algorithm}, claims(), lambda _: signature)) == "wrong_algorithm"


def test_token_without_algorithm_is_rejected(both: TokenVerifier) -> None:
    assert rejection_reason(both, token({"typ": "JWT"}, claims())) == "wrong_algorithm"


PUBLIC = {
    "PEM": RSA_PEM,
    "PEM without its line break": RSA_PEM.strip(),
    "DER": RSA_DER,
    "JWK": json.dumps(jwk(RSA, "rsa")).encode(),
    "modulus": jwk(RSA)["n"].encode(),
    "nothing": b"",
}


@pytest.mark.parametrize("public", PUBLIC.values(), ids=PUBLIC.keys())
@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_public_key_is_not_accepted_as_hmac_secret(
    published: TokenVerifier, both: TokenVerifier, algorithm: str, public: bytes
) -> None:
    digest = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}[algorithm]
    encoded = token({"alg": algorithm, "kid": "rsa"}, claims(), lambda message: hmac.digest(public, message, digest))
    assert rejection_reason(published, encoded) == "wrong_algorithm"
    assert rejection_reason(both, encoded) == ("bad_signature" if algorithm == "HS256" else "wrong_algorithm")


@pytest.mark.parametrize("algorithm", ["HS384", "HS512", "RS256", "ES256", "PS256", "EdDSA", "hs256", "HS256 "])
def test_secret_verifies_only_hs256(shared: TokenVerifier, algorithm: str) -> None:
    assert rejection_reason(shared, token({"alg": algorithm}, claims())) == "wrong_algorithm"


@pytest.mark.parametrize(
    ("algorithm", "kid"),
    [("ES256", "rsa"), ("RS256", "P-256"), ("ES384", "P-256"), ("ES256", "P-384"), ("PS512", "P-521")],
)
def test_key_does_not_verify_algorithm_of_other_type(published: TokenVerifier, algorithm: str, kid: str) -> None:
    assert rejection_reason(published, token({"alg": algorithm, "kid": kid}, claims(), rs256)) == "wrong_algorithm"


def test_key_with_declared_algorithm_verifies_no_other(published: TokenVerifier, endpoint: Endpoint) -> None:
    endpoint.keys = [jwk(RSA, "rsa", alg="PS256")]
    assert rejection_reason(published, rs(claims())) == "wrong_algorithm"
    encoded = jwt.encode(claims(), RSA, algorithm="PS256", headers={"kid": "rsa"})
    assert published.verify(encoded).tenant == TENANT


@pytest.mark.parametrize("algorithm", ["ES256K", "EdDSA", "ES521"])
def test_unlisted_algorithm_is_rejected(published: TokenVerifier, endpoint: Endpoint, algorithm: str) -> None:
    assert (
        rejection_reason(published, token({"alg": algorithm, "kid": "secp256k1"}, claims(), rs256)) == "wrong_algorithm"
    )
    assert endpoint.fetches == 0


def test_signature_of_unknown_key_is_rejected(shared: TokenVerifier, published: TokenVerifier) -> None:
    assert rejection_reason(published, rs(claims(), OTHER_RSA)) == "bad_signature"
    other = token({"alg": "HS256"}, claims(), lambda message: hs256(message, b"another secret of enough bytes!!"))
    assert rejection_reason(shared, other) == "bad_signature"


def test_signature_of_other_claims_is_rejected(shared: TokenVerifier, published: TokenVerifier) -> None:
    for verifier, make in ((shared, hs), (published, rs)):
        header, _, signature = make(claims()).split(".")
        _, payload, _ = make(claims(roles=["analytics.admin"])).split(".")
        assert rejection_reason(verifier, f"{header}.{payload}.{signature}") == "bad_signature"


def test_changed_character_invalidates_token(shared: TokenVerifier) -> None:
    good = hs(claims())
    for index, original_character in enumerate(good):
        changed = good[:index] + ("A" if original_character != "A" else "B") + good[index + 1 :]
        with pytest.raises(Unauthenticated):
            shared.verify(changed)


KIDS = [
    "../../../../dev/null",
    "/dev/null",
    "x' UNION SELECT 'key",
    "rsa\0",
    "RSA",
    " rsa",
    "rsa ",
    "http://evil/",
    "😀",
]


@pytest.mark.parametrize("kid", KIDS)
def test_key_id_is_only_compared(published: TokenVerifier, kid: str) -> None:
    assert rejection_reason(published, rs(claims(), kid=kid)) == "unknown_key"


@pytest.mark.parametrize("kid", ["", "k" * 257, 0, 1.5, True, None, ["rsa"], {"rsa": 1}])
def test_key_id_of_wrong_type_or_length_is_rejected(both: TokenVerifier, endpoint: Endpoint, kid: Any) -> None:
    assert rejection_reason(both, rs(claims(), kid=kid)) == "bad_token"
    assert rejection_reason(both, hs(claims(), kid=kid)) == "bad_token"
    assert endpoint.fetches == 0


@pytest.mark.parametrize("crit", [["exp"], ["b64"], [], "b64", None, 1])
@pytest.mark.parametrize("header", [{}, {"b64": True}, {"b64": False}])
def test_critical_extensions_are_rejected(shared: TokenVerifier, crit: Any, header: dict[str, Any]) -> None:
    assert rejection_reason(shared, hs(claims(), crit=crit, **header)) == "bad_token"


GARBAGE = {
    "empty": "",
    "a space": " ",
    "a word": "hello",
    "two parts": "a.b",
    "dots": "..",
    "many dots": "." * 100,
    "five parts": "e30.e30.e30.e30.e30",
    "no JSON": token(b"hello", claims()),
    "a header that is a list": token([], claims()),
    "a header that is deep": token(b"[" * 5000, b"{}"),
    "a payload that is deep": token({"alg": "HS256"}, b"[" * 5000),
    "a payload that is a list": hs([]),
    "a payload that is no UTF-8": hs(b"\xff\xfe"),
    "a payload with a huge number": hs(b'{"exp": ' + b"9" * 5000 + b"}"),
    "a scheme before it": f"Bearer {hs(claims())}",
    "a line break behind it": f"{hs(claims())}\n",
    "letters beyond ASCII": f"{hs(claims())}é",
    "half a surrogate": f"{hs(claims())}\ud800",
    "wide digits": hs(claims()).replace("1", "１"),
    "padding": f"{hs(claims())}====",
    "too long": hs(claims(more="x" * 8192)),
    "a megabyte": "a" * (1 << 20),
}


@pytest.mark.parametrize("encoded", GARBAGE.values(), ids=GARBAGE.keys())
def test_malformed_token_is_rejected(shared: TokenVerifier, encoded: str) -> None:
    assert rejection_reason(shared, encoded) == "bad_token"


def test_token_of_maximum_length_is_accepted(shared: TokenVerifier) -> None:
    fitting = next(encoded for size in range(6200, 0, -1) if len(encoded := hs(claims(more="x" * size))) <= 8192)
    assert len(fitting) > 8185
    assert shared.verify(fitting).tenant == TENANT


@settings(max_examples=examples(100, soak=1_000))
@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*", fullmatch=True))
def test_random_text_is_rejected(encoded: str) -> None:
    with pytest.raises(Unauthenticated):
        TokenVerifier(SECRET, clock=FakeClock()).verify(encoded)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda each: st.lists(each, max_size=3)
)


@settings(max_examples=examples(200, soak=2_000))
@given(st.sampled_from(["tenant_id", "sub", "roles", "iss", "aud", "exp", "nbf", "iat", "jti"]), json_values)
def test_random_signed_claims_are_accepted_or_rejected(name: str, value: Any) -> None:
    verifier = TokenVerifier(SECRET, clock=FakeClock())
    with suppress(Unauthenticated, Forbidden):
        assert verifier.verify(hs(claims(aud=...) | {name: value})).tenant == TENANT


# --- claims


NOW = int(NOON.timestamp())
LATER = NOW + 600

CLAIMS = [
    ("no exp", {"exp": ...}, "bad_token"),
    ("exp is null", {"exp": None}, "bad_token"),
    ("exp is text", {"exp": str(LATER)}, "bad_token"),
    ("exp is true", {"exp": True}, "bad_token"),
    ("exp is never", {"exp": float("inf")}, "bad_token"),
    ("exp is not a number", {"exp": float("nan")}, "bad_token"),
    ("exp is beyond all time", {"exp": 10**400}, "bad_token"),
    ("expired", {"exp": NOW - 31}, "token_expired"),
    ("expired at the edge of the leeway", {"exp": NOW - 30}, "token_expired"),
    ("expired long ago", {"exp": -5}, "token_expired"),
    ("not yet valid", {"nbf": NOW + 31}, "token_not_yet_valid"),
    ("nbf is text", {"nbf": "now"}, "bad_token"),
    ("nbf is null", {"nbf": None}, "bad_token"),
    ("issued in the future", {"iat": NOW + 31}, "token_not_yet_valid"),
    ("iat is a list", {"iat": [NOW]}, "bad_token"),
    ("another issuer", {"iss": "https://evil.example"}, "wrong_issuer"),
    ("an issuer that only begins like ours", {"iss": f"{ISSUER}.evil"}, "wrong_issuer"),
    ("a list of issuers", {"iss": [ISSUER]}, "wrong_issuer"),
    ("no issuer", {"iss": ...}, "bad_token"),
    ("another audience", {"aud": "other"}, "wrong_audience"),
    ("other audiences", {"aud": ["other", "more"]}, "wrong_audience"),
    ("an audience that holds ours", {"aud": f"{AUDIENCE}-evil"}, "wrong_audience"),
    ("an audience of numbers", {"aud": [1]}, "wrong_audience"),
    ("no audience", {"aud": ...}, "bad_token"),
    ("no tenant", {"tenant_id": ...}, "bad_token"),
    ("a tenant that is no UUID", {"tenant_id": "acme"}, "bad_token"),
    ("a tenant that is a list", {"tenant_id": [str(TENANT)]}, "bad_token"),
    ("no roles", {"roles": ...}, "bad_token"),
    ("roles as text", {"roles": "analytics.admin"}, "bad_token"),
    ("roles as an object", {"roles": {"analytics.admin": True}}, "bad_token"),
    ("no sub", {"sub": ...}, "bad_token"),
    ("an empty sub", {"sub": ""}, "bad_token"),
    ("a sub of 256 characters", {"sub": "s" * 256}, "bad_token"),
    ("a sub that is a number", {"sub": 7}, "bad_token"),
    ("a sub with a line break", {"sub": "a\nb"}, "bad_token"),
    ("a sub with a NUL", {"sub": "a\0b"}, "bad_token"),
    ("a sub with half a surrogate", {"sub": "a\ud800"}, "bad_token"),
]


@pytest.mark.parametrize(("changes", "reason"), [case[1:] for case in CLAIMS], ids=[case[0] for case in CLAIMS])
def test_invalid_claims_are_rejected(shared: TokenVerifier, changes: dict[str, Any], reason: str) -> None:
    assert rejection_reason(shared, hs(claims(**changes))) == reason


@pytest.mark.parametrize("roles", [[], ["root"], ["ANALYTICS.ADMIN"], [["analytics.admin"]], [3]])
def test_token_without_valid_role_is_forbidden(shared: TokenVerifier, roles: list[Any]) -> None:
    with pytest.raises(Forbidden) as raised:
        shared.verify(hs(claims(roles=roles)))
    assert raised.value.reason == "missing_role"


def test_issuer_that_is_not_printable_is_rejected(clock: FakeClock) -> None:
    for issuer in (None, 7, [ISSUER], "a\nb"):
        assert rejection_reason(TokenVerifier(SECRET, clock=clock), hs(claims(aud=..., iss=issuer))) == "bad_token"


def test_token_with_audience_is_rejected_without_configured_audience(clock: FakeClock) -> None:
    assert rejection_reason(TokenVerifier(SECRET, clock=clock), hs(claims())) == "wrong_audience"


def test_times_within_leeway_are_accepted(shared: TokenVerifier) -> None:
    for moments in ({"exp": NOW - 29}, {"exp": NOW + 0.5}, {"nbf": NOW + 30}, {"iat": NOW + 30}):
        assert shared.verify(hs(claims(**moments))).tenant == TENANT


def test_token_expires_after_leeway(shared: TokenVerifier, clock: FakeClock) -> None:
    encoded = hs(claims())
    clock.tick(629)
    assert shared.verify(encoded).tenant == TENANT
    clock.tick(1)
    assert rejection_reason(shared, encoded) == "token_expired"


def test_forged_token_reports_only_bad_signature(shared: TokenVerifier) -> None:
    encoded = token({"alg": "HS256"}, claims(exp=1, iss="x", aud="y"), lambda message: hs256(message, b"wrong"))
    assert rejection_reason(shared, encoded) == "bad_signature"


def test_every_mapped_jwt_error_has_a_test_case() -> None:
    text = {reason for _, _, reason in CLAIMS} | {"bad_signature"}
    assert {key.partition(".")[0] for key in tokens._ERRORS.values()} <= text


# --- configuration


@pytest.mark.parametrize("secret", ["", "short", "x" * 31, "é" * 15])
def test_short_secret_is_rejected(secret: str) -> None:
    with pytest.raises(Invalid) as raised:
        TokenVerifier(secret)
    assert raised.value.reason == "short_secret"


@pytest.mark.parametrize("secret", [RSA_PEM.decode(), json.dumps(jwk(RSA)), "\ud800" * 32])
def test_secret_that_is_key_or_not_text_is_rejected(secret: str) -> None:
    with pytest.raises(Invalid) as raised:
        TokenVerifier(secret)
    assert raised.value.reason == "bad_secret"
    assert secret not in repr(raised.value.as_dict())


def test_secret_length_is_in_bytes_and_secret_is_not_in_repr() -> None:
    verifier = TokenVerifier("é" * 16)
    assert "é" not in repr(verifier)
    assert SECRET not in repr(TokenVerifier(SECRET))


def test_verifier_without_key_is_rejected() -> None:
    with pytest.raises(Invalid) as raised:
        TokenVerifier(issuer=ISSUER)
    assert raised.value.reason == "missing_token_key"


URLS = [
    *("", "jwks.json", "/etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "ftp://host/jwks", "data:,{}"),
    *("http://", "https:///jwks", "http://user:word@host/", "http://host:99999/", "http://[::1/", "http://ho st/"),
    *(" file:///etc/passwd", "http://host/\r\nX: y", "//host/jwks", "javascript:1"),
]


@pytest.mark.parametrize("url", URLS)
def test_jwks_url_other_than_http_is_rejected(url: str) -> None:
    with pytest.raises(Invalid) as raised:
        TokenVerifier(jwks_url=url)
    assert raised.value.reason == "bad_jwks_url"


# --- JWKS


def test_jwks_is_cached_for_five_minutes(published: TokenVerifier, endpoint: Endpoint, clock: FakeClock) -> None:
    assert endpoint.fetches == 0, "keys are not fetched before they are needed"
    for seconds, fetches in ((0, 1), (150, 1), (149, 1), (1, 2), (299, 2), (1, 3)):
        clock.tick(seconds)
        published.verify(rs(claims(exp=NOW + 9999)))
        assert endpoint.fetches == fetches


def test_removed_key_is_unknown_after_refresh(published: TokenVerifier, endpoint: Endpoint, clock: FakeClock) -> None:
    published.verify(rs(claims()))
    endpoint.keys = []
    clock.tick(300)
    assert rejection_reason(published, rs(claims())) == "unknown_key"


def test_new_key_is_fetched_on_demand(published: TokenVerifier, endpoint: Endpoint, clock: FakeClock) -> None:
    published.verify(rs(claims()))
    endpoint.keys.append(jwk(OTHER_RSA, "new"))
    clock.tick(10)
    assert published.verify(rs(claims(), OTHER_RSA, "new")).tenant == TENANT
    assert endpoint.fetches == 2


def test_unknown_key_ids_fetch_at_most_every_ten_seconds(
    published: TokenVerifier, endpoint: Endpoint, clock: FakeClock
) -> None:
    for second in range(20):
        for number in range(5):
            assert rejection_reason(published, rs(claims(), kid=f"made-up-{second}-{number}")) == "unknown_key"
        clock.tick(1)
    assert endpoint.fetches == 2
    assert published.verify(rs(claims())).tenant == TENANT


def test_bad_signature_fetches_no_keys(published: TokenVerifier, endpoint: Endpoint, clock: FakeClock) -> None:
    for _ in range(3):
        clock.tick(11)
        assert rejection_reason(published, rs(claims(), OTHER_RSA)) == "bad_signature"
    assert endpoint.fetches == 1


def test_hs256_token_fetches_no_keys(both: TokenVerifier, endpoint: Endpoint) -> None:
    both.verify(hs(claims(), kid="anything"))
    assert endpoint.fetches == 0


def respond_unavailable(endpoint: Endpoint) -> None:
    endpoint.status = 503


def respond_not_found(endpoint: Endpoint) -> None:
    endpoint.status = 404


def respond_redirect(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.headers = 302, {"Location": f"{endpoint.url}?moved"}


def respond_redirect_to_file(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.headers = 302, {"Location": "file:///etc/passwd"}


def respond_text(endpoint: Endpoint) -> None:
    endpoint.body = b"<html>"


def respond_without_keys(endpoint: Endpoint) -> None:
    endpoint.body = b'{"error": "maintenance"}'


def respond_list(endpoint: Endpoint) -> None:
    endpoint.body = json.dumps(endpoint.keys).encode()


def respond_object(endpoint: Endpoint) -> None:
    endpoint.body = json.dumps({"keys": {"rsa": endpoint.keys[0]}}).encode()


def respond_deep_json(endpoint: Endpoint) -> None:
    endpoint.body = b"[" * 100_000


def respond_oversized(endpoint: Endpoint) -> None:
    endpoint.body = json.dumps({"keys": endpoint.keys, "more": "x" * (1 << 20)}).encode()


def respond_incomplete(endpoint: Endpoint) -> None:
    content = json.dumps({"keys": endpoint.keys}).encode()
    endpoint.body, endpoint.headers = content[:-20], {"Content-Length": str(len(content))}


def respond_never(endpoint: Endpoint) -> None:
    endpoint.released.clear()


def respond_slowly(endpoint: Endpoint) -> None:
    endpoint.slow = True


FAILURES = [
    respond_unavailable,
    respond_not_found,
    respond_redirect,
    respond_redirect_to_file,
    respond_text,
    respond_without_keys,
    respond_list,
    respond_object,
    respond_deep_json,
    respond_oversized,
    respond_incomplete,
    respond_never,
    respond_slowly,
]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "_FETCH_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("failure", FAILURES)
def test_cached_keys_stay_in_use_while_endpoint_fails(
    published: TokenVerifier, endpoint: Endpoint, clock: FakeClock, failure: Callable[[Endpoint], None]
) -> None:
    published.verify(rs(claims()))
    failure(endpoint)
    clock.tick(300)
    assert published.verify(rs(claims())).tenant == TENANT
    assert rejection_reason(published, rs(claims(), OTHER_RSA, "new")) == "unknown_key"
    assert endpoint.fetches == 2, "trouble is asked again after ten seconds, not with every token"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("failure", FAILURES)
def test_verify_without_fetched_keys_is_unavailable(
    published: TokenVerifier, endpoint: Endpoint, clock: FakeClock, failure: Callable[[Endpoint], None]
) -> None:
    failure(endpoint)
    for _ in range(3):
        with pytest.raises(Unavailable) as raised:
            published.verify(rs(claims()))
        assert raised.value.reason == "keys_unavailable"
    assert endpoint.fetches == 1
    endpoint.status, endpoint.body, endpoint.headers, endpoint.slow = 200, None, {}, False
    endpoint.released.set()
    clock.tick(10)
    assert published.verify(rs(claims())).tenant == TENANT


def test_unreachable_endpoint_is_unavailable(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(Unavailable):
        TokenVerifier(jwks_url="http://127.0.0.1:1/jwks.json", clock=clock).verify(rs(claims()))


def test_failed_fetch_is_logged(published: TokenVerifier, endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    respond_unavailable(endpoint)
    with pytest.raises(Unavailable):
        published.verify(rs(claims()))
    assert [record.getMessage() for record in caplog.records] == [f"cannot fetch keys from {endpoint.url}: status 503"]


def test_clock_set_back_refreshes_keys(published: TokenVerifier, endpoint: Endpoint, clock: FakeClock) -> None:
    published.verify(rs(claims()))
    clock.tick(-3600)
    published.verify(rs(claims()))
    assert endpoint.fetches == 2


def test_unsuitable_keys_of_jwks_are_ignored(published: TokenVerifier, endpoint: Endpoint) -> None:
    oct_key = {"kty": "oct", "kid": "oct", "k": b64(SECRET.encode())}
    private = RSAAlgorithm.to_jwk(OTHER_RSA, as_dict=True) | {"kid": "private"}
    endpoint.keys = [
        *(oct_key, oct_key | {"alg": "HS256"}, oct_key | {"alg": "RS256"}, oct_key | {"kid": "rsa"}, private),
        *(jwk(SMALL_RSA, "small"), jwk(OTHER_RSA, "enc", use="enc"), jwk(OTHER_RSA, "lying", alg="HS256")),
        *(jwk(OTHER_RSA, "none", alg="none"), jwk(EC["secp256k1"], "k1"), jwk(EC["P-256"], "cross", alg="ES384")),
        jwk(RSA, "rsa", use="sig"),
    ]
    for kid, key in (("private", OTHER_RSA), ("small", SMALL_RSA), ("enc", OTHER_RSA), ("lying", OTHER_RSA)):
        assert rejection_reason(published, rs(claims(), key, kid)) == "unknown_key"
    for kid in ("oct", "none", "k1", "cross"):
        assert rejection_reason(published, rs(claims(), kid=kid)) == "unknown_key"
        assert rejection_reason(published, hs(claims(), kid=kid)) == "wrong_algorithm"
    assert published.verify(rs(claims())).tenant == TENANT


def test_malformed_keys_of_jwks_are_skipped(published: TokenVerifier, endpoint: Endpoint) -> None:
    good_ec, odd = jwk(EC["P-256"], "ec"), [None, 7, "", "!", [], {}, "A", "AQAB" * 100]
    broken = [{**jwk(RSA), name: value} for name in ("kty", "n", "e", "kid", "alg", "use", "crv") for value in odd]
    broken += [{**good_ec, name: value} for name in ("kty", "x", "y", "crv") for value in odd]
    broken += [
        {name: value for name, value in good_ec.items() if name != omitted} for omitted in ("x", "y", "crv", "kty")
    ]
    endpoint.keys = [*odd, *broken, jwk(RSA, "whole")]
    assert published.verify(rs(claims(), kid="whole")).tenant == TENANT


def test_token_without_key_id_needs_single_matching_key(
    published: TokenVerifier, endpoint: Endpoint, clock: FakeClock
) -> None:
    anonymous = token({"alg": "RS256"}, claims(), rs256)
    assert published.verify(anonymous).tenant == TENANT
    endpoint.keys.append(jwk(OTHER_RSA, "second"))
    clock.tick(300)
    assert rejection_reason(published, anonymous) == "unknown_key"


# --- concurrency


def test_concurrent_verifications_share_one_fetch(published: TokenVerifier, endpoint: Endpoint) -> None:
    endpoint.released.clear()
    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(published.verify, rs(claims())) for _ in range(16)]
        assert endpoint.called.wait(5)
        endpoint.released.set()
        assert {future.result(10).tenant for future in futures} == {TENANT}
    assert endpoint.fetches == 1


def test_cached_keys_verify_during_refresh(published: TokenVerifier, endpoint: Endpoint, clock: FakeClock) -> None:
    published.verify(rs(claims()))
    endpoint.called.clear()
    endpoint.released.clear()
    clock.tick(300)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(published.verify, rs(claims()))
        assert endpoint.called.wait(5)
        try:
            assert pool.submit(published.verify, rs(claims())).result(2).tenant == TENANT
            assert not waiting.done()
        finally:
            endpoint.released.set()
        assert waiting.result(10).tenant == TENANT
    assert endpoint.fetches == 2


# --- on an event loop


async def verified_tenants(
    authentication: AsyncAuthentication, verifier: TokenVerifier, tokens_sent: list[str]
) -> list[UUID | str]:
    """Authenticate requests at once, and return the tenant or the error reason of each."""
    requests = [authentication.authenticate(verifier, None, [f"Bearer {sent}"]) for sent in tokens_sent]
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    return [getattr(outcome, "tenant", getattr(outcome, "reason", repr(outcome))) for outcome in outcomes]


def test_cached_keys_verify_on_the_event_loop_while_a_fetch_hangs(
    published: TokenVerifier, endpoint: Endpoint, clock: FakeClock
) -> None:
    published.verify(rs(claims()))
    endpoint.called.clear()
    endpoint.released.clear()
    clock.tick(60)  # the keys are fresh, and may be fetched again for an unknown id
    unknown = [rs(claims(), kid=f"unknown {number}") for number in range(100)]

    async def run() -> None:
        authentication = AsyncAuthentication()
        waiting = asyncio.create_task(verified_tenants(authentication, published, unknown))
        await asyncio.to_thread(endpoint.called.wait, 20)
        try:
            assert await verified_tenants(authentication, published, [rs(claims())] * 10) == [TENANT] * 10
            assert not waiting.done()
        finally:
            endpoint.released.set()
        assert set(await waiting) == {"unknown_key", "server_busy"}
        assert (await waiting).count("server_busy") == len(unknown) - async_authentication._MAX_WAITING

    asyncio.run(run())
    assert endpoint.fetches == 2


def test_first_fetch_does_not_block_the_event_loop(published: TokenVerifier, endpoint: Endpoint) -> None:
    endpoint.released.clear()

    async def run() -> None:
        waiting = asyncio.create_task(verified_tenants(AsyncAuthentication(), published, [rs(claims())]))
        await asyncio.to_thread(endpoint.called.wait, 20)
        assert not waiting.done()
        endpoint.released.set()
        assert await waiting == [TENANT]

    asyncio.run(run())


def test_malformed_tokens_fetch_no_keys(published: TokenVerifier, endpoint: Endpoint) -> None:
    sent = ["", "a.b.c", "x" * 20_000, token({"alg": "none"}, claims()), hs(claims())]
    reasons = asyncio.run(verified_tenants(AsyncAuthentication(), published, sent))
    assert all(isinstance(reason, str) for reason in reasons)
    assert endpoint.fetches == 0


# --- minting


def minted(**changes: Any) -> str:
    arguments = {"tenant": TENANT, "user": "ann", "roles": ["analytics.viewer"], "ttl": timedelta(hours=1), "now": NOON}
    return mint(SECRET, **(arguments | changes))


@pytest.mark.parametrize("role", ROLES)
def test_minted_token_is_valid_until_expiry(clock: FakeClock, role: str) -> None:
    encoded, verifier = minted(roles=[role]), TokenVerifier(SECRET, clock=clock)
    caller = verifier.verify(encoded)
    assert (caller.tenant, caller.name, caller.role) == (TENANT, "ann", ROLES[role])
    clock.tick(3600 + 30)
    assert rejection_reason(verifier, encoded) == "token_expired"


def test_minted_token_has_issuer_and_audience(shared: TokenVerifier) -> None:
    assert shared.verify(minted(issuer=ISSUER, audience=AUDIENCE)).name == "ann"
    assert rejection_reason(shared, minted(issuer=ISSUER, audience="other")) == "wrong_audience"
    assert rejection_reason(shared, minted(issuer="other", audience=AUDIENCE)) == "wrong_issuer"


def test_minted_token_is_valid_now() -> None:
    assert TokenVerifier(SECRET).verify(minted(now=None)).name == "ann"


BAD_MINTS = [
    ("an unknown role", {"roles": ["analytics.viewer", "root"]}, "unknown_role"),
    ("no role", {"roles": []}, "unknown_role"),
    ("a role that is not a list", {"roles": "analytics.viewer"}, "unknown_role"),
    ("no time", {"ttl": timedelta(0)}, "bad_ttl"),
    ("time that is over", {"ttl": timedelta(seconds=-1)}, "bad_ttl"),
    ("more than ten years", {"ttl": timedelta(days=3654)}, "bad_ttl"),
    ("no user", {"user": ""}, "bad_claims"),
    ("a user that is too long", {"user": "u" * 256}, "bad_claims"),
    ("a user with a line break", {"user": "a\nb"}, "bad_claims"),
]


@pytest.mark.parametrize(("changes", "reason"), [case[1:] for case in BAD_MINTS], ids=[case[0] for case in BAD_MINTS])
def test_mint_of_invalid_claims_is_rejected(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Invalid) as raised:
        minted(**changes)
    assert raised.value.reason == reason
    if reason == "unknown_role":
        assert all(role in raised.value.message for role in ROLES)


def test_mint_with_short_secret_is_rejected() -> None:
    with pytest.raises(Invalid) as raised:
        mint("short", tenant=TENANT, user="ann", roles=["analytics.viewer"], ttl=timedelta(1))
    assert raised.value.reason == "short_secret"


def test_verified_token_is_verified_again_after_fifteen_seconds_or_its_end(clock: FakeClock) -> None:
    verifier = TokenVerifier(SECRET, issuer=ISSUER, audience=AUDIENCE, clock=clock)
    verified = list[str]()
    original = verifier._claims

    def count(token: str, key: Any) -> dict[str, Any]:
        verified.append(token)
        return original(token, key)

    verifier._claims = count  # type: ignore[method-assign]
    token = hs(claims(exp=NOW + 20))
    for seconds, count_after in ((0, 1), (14, 1), (1, 2), (14, 2), (1, 3)):
        clock.tick(seconds)
        assert verifier.verify(token).tenant
        assert len(verified) == count_after
    clock.tick(25)
    with pytest.raises(Unauthenticated, match="expired"):
        verifier.verify(token)
