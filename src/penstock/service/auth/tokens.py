"""Verify tokens (JWT) against the configured keys, and mint tokens with the secret.

A token names its algorithm and its key. They only select among the configured keys: the secret verifies HS256 and no
other algorithm, and a public key verifies the algorithms of its own type. Other header members (jku, x5u, jwk …) are
ignored. No error message contains a part of the token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import jwt

from penstock.core.caller import ROLES, Caller, caller_from_claims
from penstock.errors import Invalid, PenstockError, Unauthenticated
from penstock.service.auth.jwks import KEY_ALGORITHMS, JwksKeys, VerificationKey, check_url

_LEEWAY = timedelta(seconds=30)  # tolerated difference between the clocks of two machines
_MAX_LIFETIME = timedelta(days=3653)
_MAX_TIMESTAMP = 1 << 40  # seconds; excludes Infinity, which JSON parsers accept
_MAX_TOKEN_LENGTH = 8 << 10
_CACHE_SECONDS = 15.0  # during which a verified token is accepted without a new verification
_MAX_CACHED_TOKENS = 2_000
_MAX_KEY_ID_LENGTH = 256
_MIN_SECRET_BYTES = 32  # the length of an HS256 digest
_SECRET_ALGORITHMS = ("HS256",)
_ERRORS: dict[type[Exception], str] = {  # errors of PyJWT and their reasons; any other error means `bad_token`
    jwt.InvalidSignatureError: "bad_signature",
    jwt.InvalidIssuerError: "wrong_issuer",
    jwt.InvalidAudienceError: "wrong_audience",
    jwt.MissingRequiredClaimError: "bad_token.missing_claims",
}
_UNREADABLE = "bad_token.unreadable"


@dataclass(frozen=True, slots=True)
class _Verified:
    caller: Caller
    at: float
    until: float  # after it the token is verified again: its key may be gone


class TokenVerifier:
    """Verify tokens against a secret, the keys of a JWKS, or both.

    Args:
        secret: the secret of HS256 tokens
        jwks_url: the URL of the public keys
        issuer: the required claim `iss`
        audience: the required claim `aud`
        clock: returns the current time
        leeway: the tolerated difference of the clocks

    Raises:
        Invalid: the secret or the URL is not valid, or both are missing
    """

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
            raise Invalid("missing_token_key.verifier")
        self._clock = clock or (lambda: datetime.now(UTC))
        self._secret = None if secret is None else VerificationKey(None, _SECRET_ALGORITHMS, _parse_secret(secret))
        self._jwks = None if jwks_url is None else JwksKeys(check_url(jwks_url), self._clock)
        self._issuer, self._audience, self._leeway = issuer, audience, leeway.total_seconds()
        self._verified: dict[str, _Verified] = {}  # by token

    def must_fetch_keys(self, token: str) -> bool:
        """Return whether the verification of a token would wait for the network."""
        if self._jwks is None or self._cached_caller(token):
            return False
        try:
            algorithm, kid = _parse_header(token)
        except Unauthenticated:
            return False
        return _is_key_algorithm(algorithm) and self._jwks.must_fetch(kid)

    def verify(self, token: str) -> Caller:
        """Return the caller of a valid token.

        Raises:
            Unauthenticated: the token is not valid
            Forbidden: the token grants no role
            Unavailable: the keys cannot be fetched
        """
        if caller := self._cached_caller(token):
            return caller
        now = self._clock().timestamp()
        algorithm, kid = _parse_header(token)
        claims = self._claims(token, self._key(algorithm, kid))
        self._assert_in_time(claims)
        caller = _caller_of(claims)
        self._remember(token, _Verified(caller, now, min(now + _CACHE_SECONDS, claims["exp"] + self._leeway)))
        return caller

    def _cached_caller(self, token: str) -> Caller | None:
        """Return the caller of a token that was verified a short time ago."""
        now = self._clock().timestamp()
        cached = self._verified.get(token)
        if cached and cached.at <= now < cached.until and (self._jwks is None or self._jwks.is_fresh):
            return cached.caller
        return None

    def _remember(self, token: str, verified: "_Verified") -> None:
        if len(self._verified) >= _MAX_CACHED_TOKENS:
            self._verified.clear()  # rare: tokens are few and live for minutes
        self._verified[token] = verified

    def _key(self, algorithm: str, kid: str | None) -> "VerificationKey":
        if self._secret and algorithm in self._secret.algorithms:
            return self._secret
        if self._jwks and _is_key_algorithm(algorithm):
            return self._jwks.key(algorithm, kid)
        raise Unauthenticated("wrong_algorithm.not_accepted")

    def _claims(self, token: str, key: "VerificationKey") -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key.value,
                algorithms=key.algorithms,
                issuer=self._issuer,
                audience=self._audience,  # None rejects a token that has an audience
                options={
                    "require": ["exp"],
                    "verify_exp": False,  # times are checked against our clock in _assert_in_time
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,  # the subject is checked in caller_from_claims
                },
            )
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise Unauthenticated(_ERRORS.get(type(error), _UNREADABLE)) from None

    def _assert_in_time(self, claims: dict[str, Any]) -> None:
        now = self._clock().timestamp()
        times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
        if not all(type(time) in (int, float) and abs(time) < _MAX_TIMESTAMP for time in times.values()):
            raise Unauthenticated("bad_token.times")
        if now >= times["exp"] + self._leeway:
            raise Unauthenticated("token_expired")
        if max(times.get("nbf", now), times.get("iat", now)) > now + self._leeway:
            raise Unauthenticated("token_not_yet_valid")


def authenticate(tokens: TokenVerifier | None, dev_caller: Caller | None, headers: Sequence[str]) -> Caller:
    """Return the caller of a request.

    Args:
        tokens: verifies tokens; None: every request is that of the local caller
        dev_caller: the local caller of a development server, for requests without a token
        headers: the Authorization headers of the request

    Raises:
        Unauthenticated: the request has no valid token
    """
    if dev_caller and (not headers or tokens is None):
        return dev_caller
    if not headers:
        raise Unauthenticated("missing_token")
    if len(headers) > 1:
        raise Unauthenticated("bad_authorization.several_headers")
    scheme, _, token = headers[0].partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated("bad_authorization.format")
    assert tokens is not None  # a server without a verifier has a local caller
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
    """Return a new token signed with the secret, for installations without an identity provider.

    Args:
        secret: the secret of the server
        tenant: the claim `tenant_id`
        user: the claim `sub`
        roles: the claim `roles`, at least one
        ttl: the lifetime
        issuer: the claim `iss`
        audience: the claim `aud`
        now: the time of issue

    Raises:
        Invalid: a claim is not valid
    """
    if not roles:
        raise Invalid("unknown_role.missing", {"valid": list(ROLES)})
    for role in roles:
        if role not in ROLES:
            raise Invalid("unknown_role.name", {"role": role, "valid": list(ROLES)})
    if not timedelta(0) < ttl <= _MAX_LIFETIME:
        raise Invalid("bad_ttl", {"max_days": _MAX_LIFETIME.days, "ttl": ttl})
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
        _caller_of(claims)  # a token that would be rejected is not minted
    except PenstockError as error:
        raise Invalid("bad_claims", error.message) from None
    return jwt.encode(claims, _parse_secret(secret), algorithm=_SECRET_ALGORITHMS[0])


def _is_key_algorithm(algorithm: str) -> bool:
    """Return whether a public key may verify an algorithm."""
    return any(algorithm in algorithms for algorithms in KEY_ALGORITHMS.values())


def _parse_header(token: str) -> tuple[str, str | None]:
    """Return the algorithm and the key id that the token names. They are untrusted until the signature is verified."""
    if len(token) > _MAX_TOKEN_LENGTH:
        raise Unauthenticated("bad_token.too_long", {"max_length": _MAX_TOKEN_LENGTH})
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthenticated(_UNREADABLE) from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if "crit" in header:
        raise Unauthenticated("bad_token.critical_extensions")
    if not isinstance(algorithm, str):
        raise Unauthenticated("wrong_algorithm.missing")
    if kid is not None and not (isinstance(kid, str) and 0 < len(kid) <= _MAX_KEY_ID_LENGTH):
        raise Unauthenticated("bad_token.key_id", {"max_length": _MAX_KEY_ID_LENGTH})
    return algorithm, kid


def _caller_of(claims: dict[str, Any]) -> Caller:
    # A line break could map two pairs of issuer and subject to one user id; a lone surrogate cannot be stored.
    texts = [claims.get("iss", ""), claims.get("sub", "")]
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise Unauthenticated("bad_token.not_printable")
    return caller_from_claims(claims)


def _parse_secret(text: str) -> bytes:
    try:
        secret = text.encode("utf-8", "surrogateescape")  # the bytes of the environment variable
        if len(secret) < _MIN_SECRET_BYTES:
            raise Invalid("short_secret", {"length": len(secret), "min_length": _MIN_SECRET_BYTES})
        jwt.get_algorithm_by_name("HS256").prepare_key(secret)
    except (jwt.PyJWTError, UnicodeError):
        raise Invalid("bad_secret") from None
    return secret
