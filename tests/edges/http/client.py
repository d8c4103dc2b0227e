"""A client that looks at every answer twice: what was promised of all of them holds for each."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from queue import Queue
from typing import Any
from uuid import UUID

import httpx
from fastapi import FastAPI

from penstock.core.caller import Role
from penstock.rest.context import HttpLimits
from penstock.rest.server import Server
from penstock.service.auth.tokens import mint

SECRET = "a secret of enough bytes, for tests only"
TENANT = UUID("11111111-2222-3333-4444-555555555555")
OTHER = UUID("99999999-8888-7777-6666-555555555555")
HOUR = timedelta(hours=1)
OWN = ("type", "title", "status", "detail", "instance", "code", "error")


def token(role: Role = Role.ADMIN, tenant: UUID = TENANT, user: str = "ada") -> str:
    return mint(SECRET, tenant=tenant, user=user, roles=[role.wire], ttl=HOUR, now=datetime.now(UTC))


def bearer(sent: str) -> dict[str, str]:
    return {"authorization": f"Bearer {sent}"}


class Client:
    """Requests of one caller."""

    def __init__(self, send: Callable[..., httpx.Response], sent: str | None) -> None:
        self._send, self._sent = send, sent

    def __call__(
        self, method: str, path: str, *, code: int = 200, headers: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        own = bearer(self._sent) if self._sent else {}
        answer = self._send(method, path, headers={**own, **(headers or {})}, **options)
        assert answer.status_code == code, (answer.status_code, answer.text[:2000])
        check(answer)
        return answer

    def as_(self, role: Role = Role.ADMIN, tenant: UUID = TENANT) -> "Client":
        return Client(self._send, token(role, tenant))

    def nobody(self) -> "Client":
        return Client(self._send, None)


def check(answer: httpx.Response) -> None:
    """What holds for every answer of the service."""
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", answer.headers["x-request-id"])
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers
    if answer.status_code >= 400 and answer.request.method != "HEAD":
        told = answer.json()
        assert "Traceback" not in answer.text
        if answer.headers["content-type"] == "application/json":  # an operation tells what was wrong in its own way
            assert answer.request.url.path.endswith("/operations")
            assert answer.status_code != 401
            assert told.keys() == {"error"}
            assert told["error"].keys() == {"code", "message", "details"}
            return
        assert answer.headers["content-type"] == "application/problem+json"
        assert all(name in told for name in OWN), told
        assert told["status"] == answer.status_code
        assert told["type"] == f"urn:penstock:error:{told['code'].lower()}"
        assert ("www-authenticate" in answer.headers) == (answer.status_code == 401)


def ended(client: Client, run: dict[str, Any]) -> dict[str, Any]:
    """A run as it is when it is over."""
    while True:
        answer = client("GET", f"/runs/{run['id']}")
        told: dict[str, Any] = answer.json()
        assert ("retry-after" in answer.headers) == (told["ended_at"] is None)
        if told["ended_at"]:
            return told
        time.sleep(0.1)  # a server that is asked without a pause writes more to its log than a pipe can hold


def near(app: FastAPI, sent: str | None) -> Client:
    """Without a wire."""

    async def ask(method: str, path: str, **options: Any) -> httpx.Response:
        if isinstance(options.get("content"), Iterator):
            options["content"] = _pieces(options["content"])
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return Client(lambda *args, **options: asyncio.run(ask(*args, **options)), sent)


async def _pieces(content: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


@contextmanager
def wire(app: FastAPI, limits: HttpLimits) -> Iterator[str]:
    """A real server on a free port of the loopback; gives its address."""
    server, address = Server(app, "127.0.0.1", 0, limits), Queue[str]()
    thread = threading.Thread(target=server.run, args=(address.put,))
    thread.start()
    try:
        yield address.get(timeout=30)
    finally:
        server.stop()
        thread.join(30)
    assert not thread.is_alive()
