"""A token speaks for a caller only if one of our keys signed it and it is in time; nothing else gets in."""

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

from penstock.core.caller import ROLES, Role
from penstock.errors import Forbidden, Invalid, Unauthenticated, Unavailable
from penstock.service.auth import tokens
from penstock.service.auth.tokens import Tokens, mint

SECRET = "a secret of enough bytes, for tests only"
TENANT = UUID("11111111-2222-3333-4444-555555555555")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ISSUER = "https://id.example"
AUDIENCE = "penstock"

RSA = rsa.generate_private_key(65537, 2048)
RSA_PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
RSA_DER = RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
STRANGER = rsa.generate_private_key(65537, 2048)
SMALL_RSA = rsa.generate_private_key(65537, 1024)
CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1(), "secp256k1": ec.SECP256K1()}
EC = {name: ec.generate_private_key(curve) for name, curve in CURVES.items()}


def jwk(private: Any, kid: str | None = None, **more: Any) -> dict[str, Any]:
    kind = RSAAlgorithm if isinstance(private, rsa.RSAPrivateKey) else ECAlgorithm
    public = kind.to_jwk(private.public_key(), as_dict=True)
    return public | ({} if kid is None else {"kid": kid}) | more


def claims(**changes: Any) -> dict[str, Any]:
    """Good claims, with some changed, and those that are `...` left out."""
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
    """Any token at all, put together by hand: no library says what may be in it."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    message = ".".join(b64(part) for part in parts)
    return f"{message}.{b64(sign(message.encode()))}"


def hs(payload: Any, **header: Any) -> str:
    return token({"alg": "HS256", "typ": "JWT"} | header, payload)


def rs(payload: Any, key: rsa.RSAPrivateKey = RSA, kid: Any = "rsa", **header: Any) -> str:
    return token({"alg": "RS256", "kid": kid} | header, payload, lambda message: rs256(message, key))


@dataclass
class Clock:
    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Endpoint:
    """A real server on the loopback that answers with whatever the test says, and counts the questions."""

    url: str
    keys: list[Any] = field(default_factory=list)
    body: bytes | None = None  # instead of the keys
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drip: bool = False  # a space now and then, and the answer at last
    asked: int = 0
    free: threading.Event = field(default_factory=threading.Event)  # answers wait for it
    called: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place.asked += 1
            place.called.set()
            place.free.wait(20)
            body = json.dumps({"keys": place.keys}).encode() if place.body is None else place.body
            self.send_response(place.status)
            for name, value in place.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for _ in range(60 if place.drip else 0):
                self.wfile.write(b" ")
                threading.Event().wait(0.05)
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # closing waits for the answers under way

        def handle_error(self, *_: Any) -> None:
            pass  # the other side hung up, as it should

    monkeypatch.setenv("no_proxy", "*")
    server = Server(("127.0.0.1", 0), Handler)
    place = Endpoint(f"http://127.0.0.1:{server.server_port}/jwks.json")
    place.keys = [jwk(RSA, "rsa"), *(jwk(key, name) for name, key in EC.items())]
    place.free.set()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield place
    place.free.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shared(clock: Clock) -> Tokens:
    return Tokens(SECRET, None, ISSUER, AUDIENCE, clock=clock)


@pytest.fixture
def published(endpoint: Endpoint, clock: Clock) -> Tokens:
    return Tokens(None, endpoint.url, ISSUER, AUDIENCE, clock=clock)


@pytest.fixture
def both(endpoint: Endpoint, clock: Clock) -> Tokens:
    return Tokens(SECRET, endpoint.url, ISSUER, AUDIENCE, clock=clock)


def refused(door: Tokens, sent: str) -> str:
    """The reason of the refusal, which tells nothing of what was sent."""
    with pytest.raises(Unauthenticated) as caught:
        door.verify(sent)
    told = repr(caught.value.facts()) + "".join(traceback.format_exception(caught.value))
    assert not [part for part in [sent, *sent.split(".")] if len(part) > 6 and part in told], "the refusal echoes"
    assert "ann@example" not in told
    assert caught.value.__cause__ is None
    return caught.value.reason


# --- good tokens


def test_a_good_token_gives_its_caller(shared: Tokens) -> None:
    caller = shared.verify(hs(claims()))
    assert (caller.tenant, caller.name, caller.role) == (TENANT, "ann@example", Role.DEVELOPER)


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_an_rsa_key_serves_every_rsa_algorithm(published: Tokens, algorithm: str) -> None:
    sent = jwt.encode(claims(), RSA, algorithm=algorithm, headers={"kid": "rsa"})
    assert published.verify(sent).name == "ann@example"


@pytest.mark.parametrize(("curve", "algorithm"), [("P-256", "ES256"), ("P-384", "ES384"), ("P-521", "ES512")])
def test_a_curve_serves_its_own_algorithm(published: Tokens, curve: str, algorithm: str) -> None:
    sent = jwt.encode(claims(), EC[curve], algorithm=algorithm, headers={"kid": curve})
    assert published.verify(sent).name == "ann@example"


def test_with_a_secret_and_keys_both_kinds_of_token_are_good(both: Tokens) -> None:
    assert both.verify(hs(claims())) == both.verify(rs(claims()))


def test_a_token_for_several_audiences_is_good_if_we_are_one(shared: Tokens) -> None:
    assert shared.verify(hs(claims(aud=["other", AUDIENCE]))).tenant == TENANT


def test_without_issuer_and_audience_asked_for_tokens_need_none(clock: Clock) -> None:
    door = Tokens(SECRET, clock=clock)
    assert door.verify(hs(claims(iss=..., aud=...))).tenant == TENANT
    assert door.verify(hs(claims(aud=...))).tenant == TENANT


def test_the_highest_known_role_counts_and_unknown_ones_do_not(shared: Tokens) -> None:
    roles = ["analytics.viewer", "root", "analytics.admin", 7, None]
    assert shared.verify(hs(claims(roles=roles))).role is Role.ADMIN


def test_the_subject_of_one_issuer_is_one_person_and_of_another_another(clock: Clock) -> None:
    door = Tokens(SECRET, clock=clock)
    first, again = (door.verify(hs(claims(aud=...))).user for _ in range(2))
    other = door.verify(hs(claims(aud=..., iss="https://other.example"))).user
    assert first == again == UUID("99fd7a05-b7b6-59ab-a700-c628e5bbd748"), "ids in stored rows would be lost"
    assert first != other
    assert (first.version, other.version) == (5, 5)


def test_a_subject_that_is_a_uuid_is_the_person(shared: Tokens) -> None:
    person = UUID("99999999-aaaa-4bbb-8ccc-dddddddddddd")
    assert shared.verify(hs(claims(sub=str(person)))).user == person


def test_headers_that_offer_keys_are_not_looked_at(published: Tokens, endpoint: Endpoint) -> None:
    offers = {"jku": f"{endpoint.url}?evil", "x5u": "file:///etc/passwd", "x5c": ["…"], "jwk": jwk(STRANGER, "rsa")}
    assert published.verify(rs(claims(), **offers)).tenant == TENANT
    assert refused(published, rs(claims(), STRANGER, **offers)) == "bad_signature"
    assert endpoint.asked == 1


# --- forged tokens


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "nOnE", "", " none", "none\0", None, 0, [], ["none"], {}]
)
@pytest.mark.parametrize("signature", [b"", b"x", hs256(b"")])
def test_an_unsigned_token_is_refused(both: Tokens, algorithm: Any, signature: bytes) -> None:
    assert refused(both, token({"alg": algorithm}, claims(), lambda _: signature)) == "wrong_algorithm"


def test_a_token_without_an_algorithm_is_refused(both: Tokens) -> None:
    assert refused(both, token({"typ": "JWT"}, claims())) == "wrong_algorithm"


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
def test_a_public_key_is_no_secret(published: Tokens, both: Tokens, algorithm: str, public: bytes) -> None:
    digest = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}[algorithm]
    sent = token({"alg": algorithm, "kid": "rsa"}, claims(), lambda message: hmac.digest(public, message, digest))
    assert refused(published, sent) == "wrong_algorithm"
    assert refused(both, sent) == ("bad_signature" if algorithm == "HS256" else "wrong_algorithm")


@pytest.mark.parametrize("algorithm", ["HS384", "HS512", "RS256", "ES256", "PS256", "EdDSA", "hs256", "HS256 "])
def test_a_secret_serves_hs256_alone(shared: Tokens, algorithm: str) -> None:
    assert refused(shared, token({"alg": algorithm}, claims())) == "wrong_algorithm"


@pytest.mark.parametrize(
    ("algorithm", "kid"),
    [("ES256", "rsa"), ("RS256", "P-256"), ("ES384", "P-256"), ("ES256", "P-384"), ("PS512", "P-521")],
)
def test_a_key_serves_no_algorithm_of_another_type(published: Tokens, algorithm: str, kid: str) -> None:
    assert refused(published, token({"alg": algorithm, "kid": kid}, claims(), rs256)) == "wrong_algorithm"


def test_a_key_that_declares_its_algorithm_serves_no_other(published: Tokens, endpoint: Endpoint) -> None:
    endpoint.keys = [jwk(RSA, "rsa", alg="PS256")]
    assert refused(published, rs(claims())) == "wrong_algorithm"
    sent = jwt.encode(claims(), RSA, algorithm="PS256", headers={"kid": "rsa"})
    assert published.verify(sent).tenant == TENANT


@pytest.mark.parametrize("algorithm", ["ES256K", "EdDSA", "ES521"])
def test_algorithms_outside_the_list_are_refused(published: Tokens, endpoint: Endpoint, algorithm: str) -> None:
    assert refused(published, token({"alg": algorithm, "kid": "secp256k1"}, claims(), rs256)) == "wrong_algorithm"
    assert endpoint.asked == 0


def test_a_stranger_cannot_sign(shared: Tokens, published: Tokens) -> None:
    assert refused(published, rs(claims(), STRANGER)) == "bad_signature"
    other = token({"alg": "HS256"}, claims(), lambda message: hs256(message, b"another secret of enough bytes!!"))
    assert refused(shared, other) == "bad_signature"


def test_a_signature_does_not_carry_over_to_other_claims(shared: Tokens, published: Tokens) -> None:
    for door, make in ((shared, hs), (published, rs)):
        header, _, signature = make(claims()).split(".")
        _, payload, _ = make(claims(roles=["analytics.admin"])).split(".")
        assert refused(door, f"{header}.{payload}.{signature}") == "bad_signature"


def test_changing_any_one_character_spoils_a_token(shared: Tokens) -> None:
    good = hs(claims())
    for at, was in enumerate(good):
        changed = good[:at] + ("A" if was != "A" else "B") + good[at + 1 :]
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
def test_a_kid_is_a_name_and_nothing_else(published: Tokens, kid: str) -> None:
    assert refused(published, rs(claims(), kid=kid)) == "unknown_key"


@pytest.mark.parametrize("kid", ["", "k" * 257, 0, 1.5, True, None, ["rsa"], {"rsa": 1}])
def test_a_kid_that_is_no_short_text_is_refused(both: Tokens, endpoint: Endpoint, kid: Any) -> None:
    assert refused(both, rs(claims(), kid=kid)) == "bad_token"
    assert refused(both, hs(claims(), kid=kid)) == "bad_token"
    assert endpoint.asked == 0


@pytest.mark.parametrize("crit", [["exp"], ["b64"], [], "b64", None, 1])
@pytest.mark.parametrize("more", [{}, {"b64": True}, {"b64": False}])
def test_critical_extensions_are_refused(shared: Tokens, crit: Any, more: dict[str, Any]) -> None:
    assert refused(shared, hs(claims(), crit=crit, **more)) == "bad_token"


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


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_token_is_refused(shared: Tokens, sent: str) -> None:
    assert refused(shared, sent) == "bad_token"


def test_a_token_of_the_largest_size_is_good(shared: Tokens) -> None:
    fitting = next(sent for size in range(6200, 0, -1) if len(sent := hs(claims(more="x" * size))) <= 8192)
    assert len(fitting) > 8185
    assert shared.verify(fitting).tenant == TENANT


@settings(max_examples=100, deadline=None)
@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*", fullmatch=True))
def test_no_text_gets_in_or_breaks_the_door(sent: str) -> None:
    with pytest.raises(Unauthenticated):
        Tokens(SECRET, clock=Clock()).verify(sent)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda each: st.lists(each, max_size=3)
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["tenant_id", "sub", "roles", "iss", "aud", "exp", "nbf", "iat", "jti"]), json_values)
def test_signed_claims_of_any_shape_give_a_caller_or_a_refusal(name: str, value: Any) -> None:
    door = Tokens(SECRET, clock=Clock())
    with suppress(Unauthenticated, Forbidden):
        assert door.verify(hs(claims(aud=...) | {name: value})).tenant == TENANT


# --- claims


NOW = int(NOON.timestamp())
LATER = NOW + 600

CLAIMS = [
    ("no exp", {"exp": ...}, "bad_token"),
    ("exp is null", {"exp": None}, "bad_token"),
    ("exp is text", {"exp": str(LATER)}, "bad_token"),
    ("exp is true", {"exp": True}, "bad_token"),
    ("exp is never", {"exp": float("inf")}, "bad_token"),
    ("exp is no number", {"exp": float("nan")}, "bad_token"),
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
def test_claims_that_are_not_good_are_refused(shared: Tokens, changes: dict[str, Any], reason: str) -> None:
    assert refused(shared, hs(claims(**changes))) == reason


@pytest.mark.parametrize("roles", [[], ["root"], ["ANALYTICS.ADMIN"], [["analytics.admin"]], [3]])
def test_a_caller_without_a_known_role_is_forbidden(shared: Tokens, roles: list[Any]) -> None:
    with pytest.raises(Forbidden) as caught:
        shared.verify(hs(claims(roles=roles)))
    assert caught.value.reason == "no_role"


def test_an_issuer_that_is_no_plain_text_is_refused_even_if_none_is_asked_for(clock: Clock) -> None:
    for issuer in (None, 7, [ISSUER], "a\nb"):
        assert refused(Tokens(SECRET, clock=clock), hs(claims(aud=..., iss=issuer))) == "bad_token"


def test_a_token_meant_for_somebody_is_refused_by_one_who_has_no_name(clock: Clock) -> None:
    assert refused(Tokens(SECRET, clock=clock), hs(claims())) == "wrong_audience"


def test_clocks_may_differ_by_the_leeway(shared: Tokens) -> None:
    for moments in ({"exp": NOW - 29}, {"exp": NOW + 0.5}, {"nbf": NOW + 30}, {"iat": NOW + 30}):
        assert shared.verify(hs(claims(**moments))).tenant == TENANT


def test_a_good_token_expires_as_time_goes_by(shared: Tokens, clock: Clock) -> None:
    sent = hs(claims())
    clock.tick(629)
    assert shared.verify(sent).tenant == TENANT
    clock.tick(1)
    assert refused(shared, sent) == "token_expired"


def test_a_forged_token_is_not_told_what_else_is_wrong(shared: Tokens) -> None:
    sent = token({"alg": "HS256"}, claims(exp=1, iss="x", aud="y"), lambda message: hs256(message, b"wrong"))
    assert refused(shared, sent) == "bad_signature"


def test_every_refusal_in_the_table_is_told_by_some_token() -> None:
    told = {reason for _, _, reason in CLAIMS} | {"bad_signature"}
    assert {reason for reason, _ in tokens._REFUSALS.values()} <= told


# --- what the door is built from


@pytest.mark.parametrize("secret", ["", "short", "x" * 31, "é" * 15])
def test_a_short_secret_is_refused(secret: str) -> None:
    with pytest.raises(Invalid) as caught:
        Tokens(secret)
    assert caught.value.reason == "short_secret"


@pytest.mark.parametrize("secret", [RSA_PEM.decode(), json.dumps(jwk(RSA)), "\ud800" * 32])
def test_a_secret_that_is_a_public_key_or_no_text_is_refused(secret: str) -> None:
    with pytest.raises(Invalid) as caught:
        Tokens(secret)
    assert caught.value.reason == "bad_secret"
    assert secret not in repr(caught.value.facts())


def test_a_secret_is_counted_in_bytes_and_never_shown() -> None:
    door = Tokens("é" * 16)
    assert "é" not in repr(door)
    assert SECRET not in repr(Tokens(SECRET))


def test_a_door_without_any_key_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        Tokens(issuer=ISSUER)
    assert caught.value.reason == "no_token_key"


URLS = [
    *("", "jwks.json", "/etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "ftp://host/jwks", "data:,{}"),
    *("http://", "https:///jwks", "http://user:word@host/", "http://host:99999/", "http://[::1/", "http://ho st/"),
    *(" file:///etc/passwd", "http://host/\r\nX: y", "//host/jwks", "javascript:1"),
]


@pytest.mark.parametrize("url", URLS)
def test_only_http_addresses_are_asked_for_keys(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        Tokens(jwks_url=url)
    assert caught.value.reason == "bad_jwks_url"


# --- the published keys


def test_keys_are_fetched_once_and_kept_for_five_minutes(published: Tokens, endpoint: Endpoint, clock: Clock) -> None:
    assert endpoint.asked == 0, "nothing is fetched before it is needed"
    for seconds, asked in ((0, 1), (150, 1), (149, 1), (1, 2), (299, 2), (1, 3)):
        clock.tick(seconds)
        published.verify(rs(claims(exp=NOW + 9999)))
        assert endpoint.asked == asked


def test_a_removed_key_is_forgotten_when_the_kept_ones_are_old(
    published: Tokens, endpoint: Endpoint, clock: Clock
) -> None:
    published.verify(rs(claims()))
    endpoint.keys = []
    clock.tick(300)
    assert refused(published, rs(claims())) == "unknown_key"


def test_a_new_key_is_found_at_once(published: Tokens, endpoint: Endpoint, clock: Clock) -> None:
    published.verify(rs(claims()))
    endpoint.keys.append(jwk(STRANGER, "new"))
    clock.tick(10)
    assert published.verify(rs(claims(), STRANGER, "new")).tenant == TENANT
    assert endpoint.asked == 2


def test_unknown_kids_ask_for_keys_at_most_once_in_ten_seconds(
    published: Tokens, endpoint: Endpoint, clock: Clock
) -> None:
    for second in range(20):
        for each in range(5):
            assert refused(published, rs(claims(), kid=f"made-up-{second}-{each}")) == "unknown_key"
        clock.tick(1)
    assert endpoint.asked == 2
    assert published.verify(rs(claims())).tenant == TENANT


def test_a_token_with_a_bad_signature_asks_for_no_keys(published: Tokens, endpoint: Endpoint, clock: Clock) -> None:
    for _ in range(3):
        clock.tick(11)
        assert refused(published, rs(claims(), STRANGER)) == "bad_signature"
    assert endpoint.asked == 1


def test_a_token_of_the_secret_asks_for_no_keys(both: Tokens, endpoint: Endpoint) -> None:
    both.verify(hs(claims(), kid="anything"))
    assert endpoint.asked == 0


def down(endpoint: Endpoint) -> None:
    endpoint.status = 503


def lost(endpoint: Endpoint) -> None:
    endpoint.status = 404


def moved(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.headers = 302, {"Location": f"{endpoint.url}?moved"}


def moved_to_a_file(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.headers = 302, {"Location": "file:///etc/passwd"}


def no_json(endpoint: Endpoint) -> None:
    endpoint.body = b"<html>"


def no_keys(endpoint: Endpoint) -> None:
    endpoint.body = b'{"error": "maintenance"}'


def a_list(endpoint: Endpoint) -> None:
    endpoint.body = json.dumps(endpoint.keys).encode()


def an_object(endpoint: Endpoint) -> None:
    endpoint.body = json.dumps({"keys": {"rsa": endpoint.keys[0]}}).encode()


def deep(endpoint: Endpoint) -> None:
    endpoint.body = b"[" * 100_000


def oversized(endpoint: Endpoint) -> None:
    endpoint.body = json.dumps({"keys": endpoint.keys, "more": "x" * (1 << 20)}).encode()


def cut_short(endpoint: Endpoint) -> None:
    whole = json.dumps({"keys": endpoint.keys}).encode()
    endpoint.body, endpoint.headers = whole[:-20], {"Content-Length": str(len(whole))}


def hanging(endpoint: Endpoint) -> None:
    endpoint.free.clear()


def dripping(endpoint: Endpoint) -> None:
    endpoint.drip = True


TROUBLES = [
    down,
    lost,
    moved,
    moved_to_a_file,
    no_json,
    no_keys,
    a_list,
    an_object,
    deep,
    oversized,
    cut_short,
    hanging,
    dripping,
]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_PATIENCE", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_last_good_keys_stay_while_the_endpoint_is_in_trouble(
    published: Tokens, endpoint: Endpoint, clock: Clock, trouble: Callable[[Endpoint], None]
) -> None:
    published.verify(rs(claims()))
    trouble(endpoint)
    clock.tick(300)
    assert published.verify(rs(claims())).tenant == TENANT
    assert refused(published, rs(claims(), STRANGER, "new")) == "unknown_key"
    assert endpoint.asked == 2, "trouble is asked again after ten seconds, not with every token"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_without_any_keys_the_door_says_retry_later(
    published: Tokens, endpoint: Endpoint, clock: Clock, trouble: Callable[[Endpoint], None]
) -> None:
    trouble(endpoint)
    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            published.verify(rs(claims()))
        assert caught.value.reason == "keys_unavailable"
    assert endpoint.asked == 1
    endpoint.status, endpoint.body, endpoint.headers, endpoint.drip = 200, None, {}, False
    endpoint.free.set()
    clock.tick(10)
    assert published.verify(rs(claims())).tenant == TENANT


def test_an_endpoint_that_is_not_there_means_retry_later(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(Unavailable):
        Tokens(jwks_url="http://127.0.0.1:1/jwks.json", clock=clock).verify(rs(claims()))


def test_trouble_is_logged_for_the_operator(
    published: Tokens, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    down(endpoint)
    with pytest.raises(Unavailable):
        published.verify(rs(claims()))
    assert [record.getMessage() for record in caplog.records] == [f"no keys from {endpoint.url}: status 503"]


def test_a_clock_that_was_set_back_does_not_keep_keys_for_ever(
    published: Tokens, endpoint: Endpoint, clock: Clock
) -> None:
    published.verify(rs(claims()))
    clock.tick(-3600)
    published.verify(rs(claims()))
    assert endpoint.asked == 2


def test_symmetric_private_small_and_foreign_keys_in_a_set_are_ignored(published: Tokens, endpoint: Endpoint) -> None:
    oct_key = {"kty": "oct", "kid": "oct", "k": b64(SECRET.encode())}
    private = RSAAlgorithm.to_jwk(STRANGER, as_dict=True) | {"kid": "private"}
    endpoint.keys = [
        *(oct_key, oct_key | {"alg": "HS256"}, oct_key | {"alg": "RS256"}, oct_key | {"kid": "rsa"}, private),
        *(jwk(SMALL_RSA, "small"), jwk(STRANGER, "enc", use="enc"), jwk(STRANGER, "lying", alg="HS256")),
        *(jwk(STRANGER, "none", alg="none"), jwk(EC["secp256k1"], "k1"), jwk(EC["P-256"], "cross", alg="ES384")),
        jwk(RSA, "rsa", use="sig"),
    ]
    for kid, key in (("private", STRANGER), ("small", SMALL_RSA), ("enc", STRANGER), ("lying", STRANGER)):
        assert refused(published, rs(claims(), key, kid)) == "unknown_key"
    for kid in ("oct", "none", "k1", "cross"):
        assert refused(published, rs(claims(), kid=kid)) == "unknown_key"
        assert refused(published, hs(claims(), kid=kid)) == "wrong_algorithm"
    assert published.verify(rs(claims())).tenant == TENANT


def test_broken_keys_in_a_set_do_not_spoil_the_others(published: Tokens, endpoint: Endpoint) -> None:
    good_ec, odd = jwk(EC["P-256"], "ec"), [None, 7, "", "!", [], {}, "A", "AQAB" * 100]
    broken = [{**jwk(RSA), name: value} for name in ("kty", "n", "e", "kid", "alg", "use", "crv") for value in odd]
    broken += [{**good_ec, name: value} for name in ("kty", "x", "y", "crv") for value in odd]
    broken += [{name: value for name, value in good_ec.items() if name != gone} for gone in ("x", "y", "crv", "kty")]
    endpoint.keys = [*odd, *broken, jwk(RSA, "whole")]
    assert published.verify(rs(claims(), kid="whole")).tenant == TENANT


def test_a_token_without_a_kid_needs_a_single_key_that_fits(
    published: Tokens, endpoint: Endpoint, clock: Clock
) -> None:
    anonymous = token({"alg": "RS256"}, claims(), rs256)
    assert published.verify(anonymous).tenant == TENANT
    endpoint.keys.append(jwk(STRANGER, "second"))
    clock.tick(300)
    assert refused(published, anonymous) == "unknown_key"


# --- many at once


def test_many_threads_share_one_fetch(published: Tokens, endpoint: Endpoint) -> None:
    endpoint.free.clear()
    with ThreadPoolExecutor(16) as crowd:
        answers = [crowd.submit(published.verify, rs(claims())) for _ in range(16)]
        assert endpoint.called.wait(5)
        endpoint.free.set()
        assert {answer.result(10).tenant for answer in answers} == {TENANT}
    assert endpoint.asked == 1


def test_known_keys_serve_while_somebody_waits_for_new_ones(
    published: Tokens, endpoint: Endpoint, clock: Clock
) -> None:
    published.verify(rs(claims()))
    endpoint.called.clear()
    endpoint.free.clear()
    clock.tick(300)
    with ThreadPoolExecutor(2) as crowd:
        waiting = crowd.submit(published.verify, rs(claims()))
        assert endpoint.called.wait(5)
        try:
            assert crowd.submit(published.verify, rs(claims())).result(2).tenant == TENANT
            assert not waiting.done()
        finally:
            endpoint.free.set()
        assert waiting.result(10).tenant == TENANT
    assert endpoint.asked == 2


# --- minting


def minted(**changes: Any) -> str:
    given = {"tenant": TENANT, "user": "ann", "roles": ["analytics.viewer"], "ttl": timedelta(hours=1), "now": NOON}
    return mint(SECRET, **(given | changes))


@pytest.mark.parametrize("role", ROLES)
def test_what_is_minted_is_good_until_it_expires(clock: Clock, role: str) -> None:
    sent, door = minted(roles=[role]), Tokens(SECRET, clock=clock)
    caller = door.verify(sent)
    assert (caller.tenant, caller.name, caller.role) == (TENANT, "ann", ROLES[role])
    clock.tick(3600 + 30)
    assert refused(door, sent) == "token_expired"


def test_what_is_minted_names_its_issuer_and_audience(shared: Tokens) -> None:
    assert shared.verify(minted(issuer=ISSUER, audience=AUDIENCE)).name == "ann"
    assert refused(shared, minted(issuer=ISSUER, audience="other")) == "wrong_audience"
    assert refused(shared, minted(issuer="other", audience=AUDIENCE)) == "wrong_issuer"


def test_what_is_minted_is_good_now() -> None:
    assert Tokens(SECRET).verify(minted(now=None)).name == "ann"


BAD_MINTS = [
    ("an unknown role", {"roles": ["analytics.viewer", "root"]}, "unknown_role"),
    ("no role", {"roles": []}, "unknown_role"),
    ("a role that is no list", {"roles": "analytics.viewer"}, "unknown_role"),
    ("no time", {"ttl": timedelta(0)}, "bad_ttl"),
    ("time that is over", {"ttl": timedelta(seconds=-1)}, "bad_ttl"),
    ("more than ten years", {"ttl": timedelta(days=3654)}, "bad_ttl"),
    ("no user", {"user": ""}, "bad_claims"),
    ("a user that is too long", {"user": "u" * 256}, "bad_claims"),
    ("a user with a line break", {"user": "a\nb"}, "bad_claims"),
]


@pytest.mark.parametrize(("changes", "reason"), [case[1:] for case in BAD_MINTS], ids=[case[0] for case in BAD_MINTS])
def test_what_would_be_refused_is_not_minted(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Invalid) as caught:
        minted(**changes)
    assert caught.value.reason == reason
    if reason == "unknown_role":
        assert all(role in caught.value.message for role in ROLES)


def test_nothing_is_minted_with_a_short_secret() -> None:
    with pytest.raises(Invalid) as caught:
        mint("short", tenant=TENANT, user="ann", roles=["analytics.viewer"], ttl=timedelta(1))
    assert caught.value.reason == "short_secret"
