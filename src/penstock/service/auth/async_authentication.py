"""Authenticate requests on an event loop: a slow key server delays only the requests that need its keys."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.core.caller import Caller
from penstock.errors import Unavailable
from penstock.service.auth.tokens import TokenVerifier, authenticate

_FETCH_THREADS = 4  # one fetches the keys, the others wait for it
_MAX_WAITING = 64  # requests that wait for keys


class AsyncAuthentication:
    """Verify tokens on the event loop, or in threads of its own if their keys must be fetched."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_FETCH_THREADS, "token-keys")  # starts its threads lazily
        self._waiting = 0  # changed on the event loop only

    async def authenticate(
        self, tokens: TokenVerifier | None, dev_caller: Caller | None, headers: Sequence[str]
    ) -> Caller:
        """Return the caller of a request, like `tokens.authenticate`.

        Raises:
            Unauthenticated: the request has no valid token
            Unavailable: too many requests wait for keys (server_busy), or no keys could be fetched yet
        """
        if tokens is None or len(headers) != 1 or not tokens.must_fetch_keys(headers[0].partition(" ")[2]):
            return authenticate(tokens, dev_caller, headers)
        if self._waiting >= _MAX_WAITING:
            raise Unavailable("server_busy")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, authenticate, tokens, dev_caller, headers)
        finally:
            self._waiting -= 1
