"""HTTP clients for tests that check the common properties of every response."""

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
PROBLEM_MEMBERS = ("type", "title", "status", "detail", "instance", "code", "error")


def token(role: Role = Role.ADMIN, tenant: UUID = TENANT, user: str = "ada") -> str:
    return mint(SECRET, tenant=tenant, user=user, roles=[role.claim], ttl=HOUR, now=datetime.now(UTC))


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
        check_response(answer)
        return answer

    def as_(self, role: Role = Role.ADMIN, tenant: UUID = TENANT) -> "Client":
        return Client(self._send, token(role, tenant))

    def without_token(self) -> "Client":
        return Client(self._send, None)


def check_response(answer: httpx.Response) -> None:
    """Check the headers and the error format that every response has."""
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", answer.headers["x-request-id"])
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers
    if answer.status_code >= 400 and answer.request.method != "HEAD":
        body = answer.json()
        assert "Traceback" not in answer.text
        if answer.headers["content-type"] == "application/json":  # operations have an error format of their own
            assert answer.request.url.path.endswith("/operations")
            assert answer.status_code != 401
            assert body.keys() == {"error"}
            assert body["error"].keys() == {"code", "message", "details"}
            return
        assert answer.headers["content-type"] == "application/problem+json"
        assert all(name in body for name in PROBLEM_MEMBERS), body
        assert body["status"] == answer.status_code
        assert body["type"] == f"urn:penstock:error:{body['code'].lower()}"
        assert ("www-authenticate" in answer.headers) == (answer.status_code == 401)


def wait_for_run(client: Client, run: dict[str, Any]) -> dict[str, Any]:
    """Wait until a run has ended, and return it."""
    while True:
        answer = client("GET", f"/runs/{run['id']}")
        body: dict[str, Any] = answer.json()
        assert ("retry-after" in answer.headers) == (body["ended_at"] is None)
        if body["ended_at"]:
            return body
        time.sleep(0.1)  # without a pause the access log would fill the pipe


def in_process_client(app: FastAPI, sent: str | None) -> Client:
    """Return a client that calls the application in this process."""

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
def serve(app: FastAPI, limits: HttpLimits) -> Iterator[str]:
    """Start a server on a free loopback port and yield its address."""
    server, address = Server(app, "127.0.0.1", 0, limits), Queue[str]()
    thread = threading.Thread(target=server.run, args=(address.put,))
    thread.start()
    try:
        yield address.get(timeout=30)
    finally:
        server.stop()
        thread.join(30)
    assert not thread.is_alive()
