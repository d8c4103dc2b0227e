"""Who sent this token? A caller, if one of our keys signed it and it is in time.

A token says which algorithm and which key it was signed with. That only chooses among what is configured: the secret
serves HS256 and nothing else, and a public key serves the algorithms of its own type. Whatever else a header carries
(jku, x5u, jwk …) is not looked at. No refusal repeats a word of the token.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request
from uuid import UUID

import jwt

from penstock.core.caller import ROLES, Caller, from_claims
from penstock.errors import Invalid, PenstockError, Unauthenticated, Unavailable

_LEEWAY = timedelta(seconds=30)  # how far the clocks of two honest machines may be apart
_LONGEST = timedelta(days=3653)
_END_OF_TIME = 1 << 40  # in seconds; JSON may also say Infinity, which would never end
_MAX_TOKEN = 8 << 10
_MAX_KID = 256
_MIN_SECRET = 32  # bytes: as long as HS256's digest
_MIN_RSA = 2048  # bits
_MAX_JWKS = 1 << 20
_PATIENCE = 5.0  # seconds, for one fetch of the keys
_FRESH = timedelta(minutes=5)
_PAUSE = timedelta(seconds=10)  # between two fetches, whatever they brought

_SECRET_FITS = ("HS256",)
_KEY_FITS = {  # the type of a public key, and the algorithms that it may serve
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC P-256": ("ES256",),
    "EC P-384": ("ES384",),
    "EC P-521": ("ES512",),
}
_REFUSALS: dict[type[Exception], tuple[str, str]] = {
    jwt.InvalidSignatureError: ("bad_signature", "the token's signature does not fit the key it names"),
    jwt.InvalidIssuerError: ("wrong_issuer", "the token comes from another issuer"),
    jwt.InvalidAudienceError: ("wrong_audience", "the token is meant for another audience"),
    jwt.MissingRequiredClaimError: ("bad_token", "the token must carry exp, and the iss and aud that are asked for"),
}
_UNREADABLE = ("bad_token", "the token is not a JWT that can be read")
_log = logging.getLogger(__name__)


class Tokens:
    """What the tokens are checked against: a secret, the keys at an address, or both."""

    def __init__(
        self,
        secret: str | None = None,
        jwks_url: str | None = None,
        issuer: str | None = None,
        audience: str | None = None,
        *,
        clock: Callable[[], datetime] | None = None,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        if secret is None and jwks_url is None:
            raise Invalid("no_token_key", "tokens need a secret or the address of a JWKS to be checked against")
        self._clock = clock or (lambda: datetime.now(UTC))
        self._secret = None if secret is None else _Key(None, _SECRET_FITS, _secret(secret))
        self._published = None if jwks_url is None else _Published(_address(jwks_url), self._clock)
        self._issuer, self._audience, self._leeway = issuer, audience, leeway.total_seconds()

    @property
    def may_wait(self) -> bool:
        """Can a token make us ask somebody else?"""
        return self._published is not None

    def verify(self, token: str) -> Caller:
        algorithm, kid = _header(token)
        claims = self._claims(token, self._key(algorithm, kid))
        self._assert_in_time(claims)
        return _caller(claims)

    def _key(self, algorithm: str, kid: str | None) -> "_Key":
        if self._secret and algorithm in self._secret.fits:
            return self._secret
        if self._published and any(algorithm in fits for fits in _KEY_FITS.values()):
            return self._published.key(algorithm, kid)
        raise Unauthenticated("wrong_algorithm", "the token is signed with an algorithm that is not accepted here")

    def _claims(self, token: str, key: "_Key") -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key.value,
                algorithms=key.fits,
                issuer=self._issuer,
                audience=self._audience,  # with None, a token that is meant for anybody in particular is refused
                options={
                    "require": ["exp"],
                    "verify_exp": False,  # the moments are judged by our clock, below,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,  # and the subject by the caller
                },
            )
        except (jwt.PyJWTError, ValueError, RecursionError) as refusal:
            raise Unauthenticated(*_REFUSALS.get(type(refusal), _UNREADABLE)) from None

    def _assert_in_time(self, claims: dict[str, Any]) -> None:
        now = self._clock().timestamp()
        moments = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
        if not all(type(each) in (int, float) and abs(each) < _END_OF_TIME for each in moments.values()):
            raise Unauthenticated("bad_token", "the token's exp, nbf and iat must be seconds since 1970")
        if now >= moments["exp"] + self._leeway:
            raise Unauthenticated("token_expired", "the token has expired; get a new one")
        if max(moments.get("nbf", now), moments.get("iat", now)) > now + self._leeway:
            raise Unauthenticated("token_not_yet_valid", "the token is not valid yet; are the clocks right?")


def bearer(tokens: Tokens | None, dev: Caller | None, headers: Sequence[str]) -> Caller:
    """Who sends these authorization headers? `dev` is who sends none; without keys, whoever sends any."""
    if dev and (not headers or tokens is None):
        return dev
    if not headers:
        raise Unauthenticated("no_token", "send a token: authorization: Bearer …")
    if len(headers) > 1:
        raise Unauthenticated("bad_authorization", "there is more than one authorization header; send one")
    scheme, _, token = headers[0].partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated("bad_authorization", "the authorization header must be: Bearer, a blank, the token")
    assert tokens is not None  # an edge without tokens has a dev
    return tokens.verify(token)


def mint(
    secret: str,
    *,
    tenant: UUID,
    user: str,
    roles: Sequence[str],
    ttl: timedelta,
    issuer: str | None = None,
    audience: str | None = None,
    now: datetime | None = None,
) -> str:
    """A token signed with the secret, for people who have no identity provider."""
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        raise Invalid("unknown_role", f"{unknown or 'no role'} given; the roles are {', '.join(ROLES)}")
    if not timedelta(0) < ttl <= _LONGEST:
        raise Invalid("bad_ttl", f"a token lives for more than nothing and at most {_LONGEST.days} days, not {ttl}")
    now = now or datetime.now(UTC)
    claims: dict[str, Any] = {
        "tenant_id": str(tenant),
        "sub": user,
        "roles": list(dict.fromkeys(roles)),
        "iat": int(now.timestamp()),
        "exp": int((now + ttl).timestamp()),
    }
    claims |= {name: value for name, value in (("iss", issuer), ("aud", audience)) if value is not None}
    try:
        _caller(claims)  # what would be refused is not given out
    except PenstockError as refusal:
        raise Invalid("bad_claims", refusal.message) from None
    return jwt.encode(claims, _secret(secret), algorithm=_SECRET_FITS[0])


@dataclass(frozen=True, slots=True)
class _Key:
    id: str | None
    fits: tuple[str, ...]  # the algorithms that this key may serve
    value: Any  # bytes, or a public key of `cryptography`


class _Published:
    """The public keys at an address: asked for again when old or when one is missing, kept while there is no answer."""

    def __init__(self, url: str, clock: Callable[[], datetime]) -> None:
        self._url, self._clock = url, clock
        self._turn = threading.Lock()  # its holder is the one who asks
        self._keys: tuple[_Key, ...] | None = None
        self._asked: datetime | None = None
        self._answered: datetime | None = None

    def key(self, algorithm: str, kid: str | None) -> _Key:
        if not self._within(_FRESH, self._answered):
            self._ask(wait=0 if self._keys else _PATIENCE)  # old keys serve while somebody else asks
        if not self._named(kid):
            self._ask(wait=_PATIENCE)
        if self._keys is None:
            raise Unavailable(
                "keys_unavailable", "the keys that tokens are checked with cannot be fetched; retry later"
            )
        named = self._named(kid)
        match [key for key in named if algorithm in key.fits]:
            case [key]:
                return key
            case [_, *_]:
                raise Unauthenticated("unknown_key", "more than one key could have signed the token; it must name one")
            case _ if named:
                raise Unauthenticated("wrong_algorithm", "the token's algorithm is not one of the key it names")
            case _:
                raise Unauthenticated("unknown_key", "the token is signed with a key that is not known")

    def _named(self, kid: str | None) -> list[_Key]:
        return [key for key in self._keys or () if kid is None or key.id == kid]

    def _ask(self, wait: float) -> None:
        if not self._turn.acquire(timeout=wait):
            return
        try:
            if self._within(_PAUSE, self._asked):
                return  # just now, maybe by the thread that we waited for
            self._asked = self._clock()
            self._keys = _keys(_fetch(self._url))
            self._answered = self._asked
        except (OSError, HTTPException, ValueError, RecursionError) as trouble:
            _log.warning("no keys from %s: %s", self._url, trouble)
        finally:
            self._turn.release()

    def _within(self, span: timedelta, moment: datetime | None) -> bool:
        # A clock that was set back must not make keys young for ever.
        return moment is not None and timedelta(0) <= self._clock() - moment < span


def _header(token: str) -> tuple[str, str | None]:
    """The algorithm and the key that the token names. It may lie: only a signature tells."""
    if len(token) > _MAX_TOKEN:
        raise Unauthenticated("bad_token", f"the token is longer than {_MAX_TOKEN} characters")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthenticated(*_UNREADABLE) from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if "crit" in header:
        raise Unauthenticated("bad_token", "the token has critical extensions, and none are known here")
    if not isinstance(algorithm, str):
        raise Unauthenticated("wrong_algorithm", "the token must name the algorithm it is signed with")
    if kid is not None and not (isinstance(kid, str) and 0 < len(kid) <= _MAX_KID):
        raise Unauthenticated("bad_token", f"the token's kid must be text of 1 to {_MAX_KID} characters")
    return algorithm, kid


def _caller(claims: dict[str, Any]) -> Caller:
    # A line break would let two pairs of issuer and subject become one person; half a surrogate cannot be stored.
    texts = [claims.get("iss", ""), claims.get("sub", "")]
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise Unauthenticated("bad_token", "the token's iss and sub must be printable text")
    return from_claims(claims)


def _secret(text: str) -> bytes:
    try:
        secret = text.encode("utf-8", "surrogateescape")  # the very bytes that the environment held
        if len(secret) < _MIN_SECRET:
            raise Invalid("short_secret", f"the secret has {len(secret)} bytes; it needs {_MIN_SECRET} or more")
        jwt.get_algorithm_by_name("HS256").prepare_key(secret)
    except (jwt.PyJWTError, UnicodeError):
        raise Invalid("bad_secret", "the secret must be text that is no key, certificate or JWK") from None
    return secret


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise Invalid("bad_jwks_url", "the address of a JWKS must be http(s)://host…, without a user or a password")
    return url


def _fetch(url: str) -> bytes:
    asker = OpenerDirector()  # knows no file:, ftp: or data:, and follows no redirect
    for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
        asker.add_handler(handler)
    deadline = time.monotonic() + _PATIENCE
    body = bytearray()
    with asker.open(Request(url, headers={"Accept": "application/json"}), timeout=_PATIENCE) as answer:
        if answer.status != 200:
            raise OSError(f"status {answer.status}")
        while piece := answer.read1(64 << 10):
            body += piece
            if len(body) > _MAX_JWKS:
                raise OSError(f"more than {_MAX_JWKS} bytes")
            if time.monotonic() > deadline:  # a socket's timeout starts anew with every drop
                raise TimeoutError("too slow")
    return bytes(body)


def _keys(body: bytes) -> tuple[_Key, ...]:
    """The keys of a JWKS that may verify tokens. One that cannot be used does not spoil the others."""
    document = json.loads(body)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("there is no list of keys")
    found = [_usable(each) for each in listed if isinstance(each, dict)]
    return tuple(key for key in found if key is not None)


def _usable(jwk: dict[str, Any]) -> _Key | None:
    fits = _KEY_FITS.get(f"{jwk.get('kty')} {jwk.get('crv', '')}".strip(), ())  # no secrets: never "oct"
    fits = tuple(algorithm for algorithm in fits if jwk.get("alg") in (None, algorithm))
    if not fits or "d" in jwk or jwk.get("use", "sig") != "sig":  # "d": a private key that everybody knows
        return None
    try:
        public: Any = jwt.PyJWK(jwk, fits[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if jwk["kty"] == "RSA" and public.key_size < _MIN_RSA:
        return None
    return _Key(jwk.get("kid"), fits, public)
