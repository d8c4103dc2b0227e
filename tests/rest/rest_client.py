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
OTHER_TENANT = UUID("99999999-8888-7777-6666-555555555555")
HOUR = timedelta(hours=1)
PROBLEM_MEMBERS = ("type", "title", "status", "detail", "instance", "code", "error")


def token(role: Role = Role.ADMIN, tenant: UUID = TENANT, user: str = "ada") -> str:
    return mint(SECRET, tenant=tenant, user=user, roles=[role.claim], ttl=HOUR, now=datetime.now(UTC))


def bearer(access_token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {access_token}"}


class RestClient:
    """Requests of one caller."""

    def __init__(self, send: Callable[..., httpx.Response], bearer_token: str | None) -> None:
        self._send, self._bearer_token = send, bearer_token

    def __call__(
        self, method: str, path: str, *, code: int = 200, headers: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        authorization = bearer(self._bearer_token) if self._bearer_token else {}
        response = self._send(method, path, headers={**authorization, **(headers or {})}, **options)
        assert response.status_code == code, (response.status_code, response.text[:2000])
        check_response(response)
        return response

    def as_caller(self, role: Role = Role.ADMIN, tenant: UUID = TENANT) -> "RestClient":
        return RestClient(self._send, token(role, tenant))

    def without_token(self) -> "RestClient":
        return RestClient(self._send, None)


def check_response(response: httpx.Response) -> None:
    """Check the headers and the error format that every response has."""
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", response.headers["x-request-id"])
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "server" not in response.headers
    if response.status_code >= 400 and response.request.method != "HEAD":
        body = response.json()
        assert "Traceback" not in response.text
        if response.headers["content-type"] == "application/json":  # operations have a separate error format
            assert response.request.url.path.endswith("/operations")
            assert response.status_code != 401
            assert body.keys() == {"error"}
            assert body["error"].keys() == {"code", "message", "details"}
            return
        assert response.headers["content-type"] == "application/problem+json"
        assert all(name in body for name in PROBLEM_MEMBERS), body
        assert body["status"] == response.status_code
        assert body["type"] == f"urn:penstock:error:{body['code'].lower()}"
        assert ("www-authenticate" in response.headers) == (response.status_code == 401)


def wait_for_run(client: RestClient, run: dict[str, Any]) -> dict[str, Any]:
    """Wait until a run has ended, and return it."""
    while True:
        response = client("GET", f"/runs/{run['id']}")
        body: dict[str, Any] = response.json()
        assert ("retry-after" in response.headers) == (body["ended_at"] is None)
        if body["ended_at"]:
            return body
        time.sleep(0.1)  # without a pause the access log would fill the pipe


def in_process_client(app: FastAPI, bearer_token: str | None) -> RestClient:
    """Return a client that calls the application in this process."""

    async def send(method: str, path: str, **options: Any) -> httpx.Response:
        if isinstance(options.get("content"), Iterator):
            options["content"] = _stream_chunks(options["content"])
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return RestClient(lambda *args, **options: asyncio.run(send(*args, **options)), bearer_token)


async def _stream_chunks(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


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
