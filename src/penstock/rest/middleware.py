"""ASGI middleware: request ids, security headers, access log, metrics, and limits of size and time."""

import asyncio
import logging
import re
import time
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.cancellation import CancelToken
from penstock.core.caller import Caller
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.json_logs import REQUEST_ID
from penstock.rest import client_connection, problems
from penstock.rest.context import HttpLimits
from penstock.rest.metrics import Metrics
from penstock.rest.requests import media_types

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MAX_CHUNK_BYTES = 1 << 20  # of a response, passed to the server at once
_MAX_LOGGED_PATH = 2_048  # characters
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
_log = logging.getLogger(__name__)
_access = logging.getLogger("penstock.access")


class AccessLogMiddleware:
    """Assign the request id, add security headers, write the access log and the metrics.

    An unexpected exception is logged here, once, and answered without its traceback. HEAD is served as GET without a
    body.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"
        request_id = _request_id(scope)
        inner = {**scope, "method": "GET" if head else scope["method"], "state": dict(scope.get("state", {}))}
        outcome: MutableMapping[str, Any] = {"status": None, "bytes": 0}

        async def send_response(message: Message) -> None:
            if message["type"] == "http.response.start":
                outcome["status"] = message["status"]
                message = {**message, "headers": _with_security_headers(message, request_id)}
            elif head:
                message = {**message, "body": b""}
            outcome["bytes"] += len(message.get("body", b""))
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                record()  # the work may continue after a timeout

        def record() -> None:
            if not outcome.get("recorded"):
                outcome["recorded"] = True
                self._record(scope["method"], inner, outcome, time.perf_counter() - start)

        context_token, start = REQUEST_ID.set(request_id), time.perf_counter()
        self._metrics.in_flight.inc()
        try:
            await self._app(inner, receive, send_response)
        except ClientDisconnect:  # the client has disconnected
            outcome["disconnected"] = True
        except asyncio.CancelledError:  # the server stops, and the drain time is over
            if outcome["status"] is None:
                await _stopping_response(scope["path"])(inner, receive, send_response)
        except Exception as exception:
            self._metrics.record_exception(exception)
            _log.exception("Internal error: %s", type(exception).__name__)
            if outcome["status"] is None:
                await problems.internal_error_response(request_id, scope["path"])(inner, receive, send_response)
            # Otherwise the response is incomplete, and the server closes the connection: the client notices.
        finally:
            self._metrics.in_flight.dec()
            record()
            REQUEST_ID.reset(context_token)

    def _record(self, method: str, scope: Scope, outcome: MutableMapping[str, Any], seconds: float) -> None:
        route: str | None = getattr(scope.get("route"), "path", None)
        self._metrics.record_request(method, route, outcome["status"], seconds)
        caller: Caller | None = scope["state"].get("caller")
        facts = {
            "method": method[:20],
            "route": route,
            "path": scope["path"][:_MAX_LOGGED_PATH],
            "status": outcome["status"],
            "ms": round(seconds * 1000, 3),
            "bytes": outcome["bytes"],
            **({"disconnected": True} if "disconnected" in outcome else {}),
            "tenant": caller and str(caller.tenant),
            "user": caller and str(caller.user),
        }
        _access.info("request", extra={"facts": facts})


class LimitsMiddleware:
    """Reject URLs and bodies that are too large, and respond when a request takes too long.

    After a timeout the work is cancelled. A step that cannot be interrupted continues, and its result is discarded.
    """

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
        if size > self._limits.max_url_bytes:
            error = Invalid("url_too_long", {"limit": self._limits.max_url_bytes})
            await problems.problem_response(error, scope["path"][:200])(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._limits)
        scope.setdefault("state", {})["cancel_token"] = exchange.cancel_token
        scope[client_connection.WAIT_KEY] = exchange.wait_for_disconnect
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            if not exchange.timed_out:  # otherwise the client has its response
                raise
        except Exception:
            if exchange.stalled:  # the application may have replaced the ClientDisconnect by another exception
                raise ClientDisconnect from None
            raise
        finally:
            await exchange.end()


class _Exchange:
    """One request and its response, between the server and the application."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: HttpLimits) -> None:
        self._scope, self._receive, self._send, self._limits = scope, receive, send, limits
        headers = Headers(scope=scope)
        self._max_bytes = (
            limits.max_json_bytes if media_types.is_json(headers.get("content-type")) else limits.max_upload_bytes
        )
        self._content_length = int(headers.get("content-length", 0))
        self._received_bytes = 0
        self._closed = self._receiving = self._responding = False
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limits.response_timeout_seconds
        self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        self._timeout_response: asyncio.Task[None] | None = None
        self.cancel_token = CancelToken()
        self.stalled = False  # the client accepted no part of the response for too long

    async def receive(self) -> Message:
        if self._closed or self._responding:
            await self.wait_for_disconnect()
            return {"type": "http.disconnect"}
        self._check_size(self._content_length)
        self._receiving = True
        message = await self._receive()
        self._receiving = False
        self._received_bytes += len(message.get("body", b""))
        self._check_size(self._received_bytes)
        if self._max_bytes > self._limits.max_json_bytes:  # uploads: the timeout applies to each part of the body
            self._deadline = self._loop.time() + self._limits.response_timeout_seconds
        return message

    async def wait_for_disconnect(self) -> None:
        """Return when the client has disconnected. What it still sends is discarded, and extends no deadline."""
        while not self._closed and (await self._receive())["type"] != "http.disconnect":
            pass

    async def send(self, message: Message) -> None:
        if not self._closed:
            self._timer.cancel()
            self._responding = True
            for chunk in _split(message):
                await self._send_chunk(chunk)

    async def _send_chunk(self, message: Message) -> None:
        """Send a part of the response; abort the connection of a client that does not accept it in time."""
        try:
            async with asyncio.timeout(self._limits.response_timeout_seconds):
                await self._send(message)
        except TimeoutError:
            await client_connection.abort(self._scope, self._receive)
            self._closed = self.stalled = True
            raise ClientDisconnect from None

    @property
    def timed_out(self) -> bool:
        """Return whether the response was an error because of the time."""
        return self._timeout_response is not None

    async def end(self) -> None:
        """End the exchange when the application has returned."""
        self._timer.cancel()
        if self._timeout_response:
            await self._timeout_response

    def _check_deadline(self) -> None:
        """Send the error response of a timeout, unless a part of a large body has extended the deadline."""
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
            return
        self._closed = True
        self.cancel_token.cancel()
        self._timeout_response = self._loop.create_task(self._send_timeout())

    async def _send_timeout(self) -> None:
        seconds = f"{self._limits.response_timeout_seconds:g}"
        error: PenstockError
        if self._receiving:
            error = Invalid("body_timed_out", {"seconds": seconds})
        else:
            error = Unavailable("request_timed_out", {"seconds": seconds})
        response = problems.problem_response(error, self._scope["path"])
        with suppress(ClientDisconnect):
            await response(self._scope, self._receive, self._send_chunk)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise Invalid("body_too_large", limit=self._max_bytes)


def _split(message: Message) -> Iterator[Message]:
    """Split a large part of a response, which bounds the bytes that wait for a slow client."""
    body = memoryview(message.get("body", b""))
    for start in range(0, len(body) - _MAX_CHUNK_BYTES, _MAX_CHUNK_BYTES):
        yield {**message, "body": body[start : start + _MAX_CHUNK_BYTES], "more_body": True}
    rest = max(len(body) - 1, 0) // _MAX_CHUNK_BYTES * _MAX_CHUNK_BYTES
    yield {**message, "body": body[rest:]} if rest else message


def _stopping_response(path: str) -> Response:
    return problems.problem_response(Unavailable("server_stopping.request"), path)


def _request_id(scope: Scope) -> str:
    """Return the request id of the client if it is valid, or a new one."""
    values = Headers(scope=scope).getlist("x-request-id")
    return values[0] if len(values) == 1 and _REQUEST_ID.fullmatch(values[0]) else str(uuid4())


def _with_security_headers(message: Message, request_id: str) -> list[tuple[bytes, bytes]]:
    headers = MutableHeaders(raw=list(message.get("headers", [])))
    headers["x-request-id"] = request_id
    for name, value in _SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    return headers.raw
