"""Fetch and cache the public keys of a JSON Web Key Set (JWKS)."""

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

import jwt

from penstock.errors import Invalid, Unauthenticated, Unavailable

_MIN_RSA_BITS = 2048
_MAX_JWKS_BYTES = 1 << 20
_FETCH_SECONDS = 5.0  # timeout of one fetch
_FRESH_FOR = timedelta(minutes=5)  # keys are fetched again afterwards
_MIN_FETCH_INTERVAL = timedelta(seconds=10)  # after a success or a failure
KEY_ALGORITHMS = {  # the types of public keys, and the algorithms that they may verify
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC P-256": ("ES256",),
    "EC P-384": ("ES384",),
    "EC P-521": ("ES512",),
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key with the algorithms that it may verify."""

    id: str | None
    algorithms: tuple[str, ...]
    value: Any  # bytes, or a public key of `cryptography`


class JwksKeys:
    """Cache the public keys of a JWKS URL.

    Keys are fetched again when they are old or a key is missing. If a fetch fails, the cached keys stay in use.
    """

    def __init__(self, url: str, clock: Callable[[], datetime]) -> None:
        self._url, self._clock = url, clock
        self._lock = threading.Lock()  # held by the thread that fetches
        self._keys: tuple[VerificationKey, ...] | None = None
        self._fetch_started_at: datetime | None = None
        self._fetched_at: datetime | None = None

    def key(self, algorithm: str, kid: str | None) -> VerificationKey:
        """Return the key with this id for an algorithm.

        Raises:
            Unauthenticated: no key, or more than one, matches
            Unavailable: no keys could be fetched yet
        """
        if not self.is_fresh:
            self._refresh(wait=0 if self._keys else _FETCH_SECONDS)  # old keys stay in use while another thread fetches
        if not self._keys_with_id(kid):
            self._refresh(wait=_FETCH_SECONDS)
        if self._keys is None:
            raise Unavailable("keys_unavailable")
        candidates = self._keys_with_id(kid)
        match [key for key in candidates if algorithm in key.algorithms]:
            case [key]:
                return key
            case [_, *_]:
                raise Unauthenticated("unknown_key.ambiguous")
            case _ if candidates:
                raise Unauthenticated("wrong_algorithm.wrong_key_type")
            case _:
                raise Unauthenticated("unknown_key.not_found")

    @property
    def is_fresh(self) -> bool:
        """Return whether the keys were fetched a short time ago."""
        return self._within(_FRESH_FOR, self._fetched_at)

    def must_fetch(self, kid: str | None) -> bool:
        """Return whether `key` would fetch keys, or wait for another thread that fetches them."""
        if self._keys_with_id(kid) and (self.is_fresh or self._lock.locked()):
            return False
        return self._lock.locked() or not self._within(_MIN_FETCH_INTERVAL, self._fetch_started_at)

    def _keys_with_id(self, kid: str | None) -> list[VerificationKey]:
        return [key for key in self._keys or () if kid is None or key.id == kid]

    def _refresh(self, wait: float) -> None:
        if not self._lock.acquire(timeout=wait):
            return
        try:
            if self._within(_MIN_FETCH_INTERVAL, self._fetch_started_at):
                return  # fetched just now, perhaps by the thread that held the lock
            self._fetch_started_at = self._clock()
            self._keys = _parse_keys(_fetch(self._url))
            self._fetched_at = self._fetch_started_at
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            _log.warning("cannot fetch keys from %s: %s", self._url, error)
        finally:
            self._lock.release()

    def _within(self, span: timedelta, time: datetime | None) -> bool:
        # A negative age means that the clock was set back: the keys count as old.
        return time is not None and timedelta(0) <= self._clock() - time < span


def _fetch(url: str) -> bytes:
    opener = OpenerDirector()  # without handlers for file:, ftp: and data: URLs and for redirects
    for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    deadline = time.monotonic() + _FETCH_SECONDS
    body = bytearray()
    with opener.open(Request(url, headers={"Accept": "application/json"}), timeout=_FETCH_SECONDS) as response:
        if response.status != 200:
            raise OSError(f"status {response.status}")
        while chunk := response.read1(64 << 10):
            body += chunk
            if len(body) > _MAX_JWKS_BYTES:
                raise OSError(f"more than {_MAX_JWKS_BYTES} bytes")
            if time.monotonic() > deadline:  # the timeout of a socket restarts with every received byte
                raise TimeoutError("too slow")
    return bytes(body)


def _parse_keys(body: bytes) -> tuple[VerificationKey, ...]:
    """Return the keys of a JWKS that may verify tokens. Unusable keys are skipped."""
    document = json.loads(body)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("the document has no list of keys")
    keys = [_parse_key(jwk) for jwk in listed if isinstance(jwk, dict)]
    return tuple(key for key in keys if key is not None)


def _parse_key(jwk: dict[str, Any]) -> VerificationKey | None:
    algorithms = KEY_ALGORITHMS.get(
        f"{jwk.get('kty')} {jwk.get('crv', '')}".strip(), ()
    )  # never "oct", which is a secret
    algorithms = tuple(algorithm for algorithm in algorithms if jwk.get("alg") in (None, algorithm))
    if not algorithms or "d" in jwk or jwk.get("use", "sig") != "sig":  # "d": a published private key
        return None
    try:
        public: Any = jwt.PyJWK(jwk, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if jwk["kty"] == "RSA" and public.key_size < _MIN_RSA_BITS:
        return None
    return VerificationKey(jwk.get("kid"), algorithms, public)


def check_url(url: str) -> str:
    """Return the URL of a JWKS.

    Raises:
        Invalid: the URL is not http or https, or has a user name
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not url.isprintable() or " " in url:
        raise Invalid("bad_jwks_url")
    return url
