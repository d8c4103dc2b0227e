"""How every request is treated, whatever it asks for: named, bounded in size and time, watched, and told on one line."""

import asyncio
import logging
import re
import time
from collections.abc import Iterator, MutableMapping
from typing import Any
from uuid import uuid4

from fastapi import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.core.caller import Caller
from penstock.errors import Invalid, PenstockError, Unavailable
from penstock.rest import problems as errors
from penstock.rest.requests import media_types as media
from penstock.rest.context import HttpLimits
from penstock.json_logs import REQUEST_ID
from penstock.rest.metrics import Metrics

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_PIECE = 1 << 20  # bytes that are given to the server at once
_LONGEST_PATH = 2_048  # characters of it in the log
_SAFE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
_log = logging.getLogger(__name__)
_access = logging.getLogger("penstock.access")


class Observed:
    """Gives a request its id, its answer safe headers, and the log and the metrics their due.

    What escapes from within is a bug: logged here, once, and told without its traceback. HEAD is GET without a body.
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
        told: MutableMapping[str, Any] = {"status": None, "bytes": 0}

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                told["status"] = message["status"]
                message = {**message, "headers": _dressed(message, request_id)}
            elif head:
                message = {**message, "body": b""}
            told["bytes"] += len(message.get("body", b""))
            await send(message)

        mark, start = REQUEST_ID.set(request_id), time.perf_counter()
        self._metrics.in_flight.inc()
        try:
            await self._app(inner, receive, tell)
        except ClientDisconnect:  # nobody is there to be answered
            told["disconnected"] = True
        except asyncio.CancelledError:  # the server stops, and has waited as long as it may
            if told["status"] is None:
                await _stopping(scope["path"])(inner, receive, tell)
        except Exception as bug:
            self._metrics.failed(bug)
            _log.exception("a bug in Penstock: %s", type(bug).__name__)
            if told["status"] is None:
                await errors.bug(request_id, scope["path"])(inner, receive, tell)
            # Else an answer stays without its end, and the server cuts the connection: the client knows.
        finally:
            self._metrics.in_flight.dec()
            self._done(scope["method"], inner, told, time.perf_counter() - start)
            REQUEST_ID.reset(mark)

    def _done(self, method: str, scope: Scope, told: MutableMapping[str, Any], seconds: float) -> None:
        route: str | None = getattr(scope.get("route"), "path", None)
        self._metrics.answered(method, route, told["status"], seconds)
        caller: Caller | None = scope["state"].get("caller")
        facts = {
            "method": method[:20],
            "route": route,
            "path": scope["path"][:_LONGEST_PATH],
            "status": told["status"],
            "ms": round(seconds * 1000, 3),
            "bytes": told["bytes"],
            **({"disconnected": True} if "disconnected" in told else {}),
            "tenant": caller and str(caller.tenant),
            "user": caller and str(caller.user),
        }
        _access.info("request", extra={"facts": facts})


class Bounded:
    """Refuses addresses and bodies that are too large, and answers for work that takes too long.

    Work in a thread cannot be stopped from outside: after its time is up it goes on, and nobody hears of it.
    """

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        self._app, self._limits = app, limits
        self._late: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
        if size > self._limits.url_bytes:
            refusal = Invalid("url_too_long", f"the address has more than {self._limits.url_bytes:,} bytes")
            await errors.answer(refusal, scope["path"][:200])(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._limits)
        work = asyncio.create_task(self._run(scope, exchange))
        work.add_done_callback(lambda _: exchange.begun.set())
        try:
            on_time = await exchange.in_time()
        except asyncio.CancelledError:
            work.cancel()
            raise
        if on_time:
            await work
            return
        self._late.add(work)
        work.add_done_callback(self._arrived)
        await exchange.give_up(send)

    async def _run(self, scope: Scope, exchange: "_Exchange") -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            if exchange.stuck:  # whatever became of it on its way up here
                raise ClientDisconnect from None
            raise

    def _arrived(self, work: "asyncio.Task[None]") -> None:
        self._late.discard(work)
        bug = None if work.cancelled() else work.exception()
        if bug and not isinstance(bug, ClientDisconnect):
            _log.error("a bug in Penstock, after its time was up", exc_info=bug)


class _Exchange:
    """One request and its answer, seen from between the server and the application."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: HttpLimits) -> None:
        self._scope, self._receive, self._send, self._limits = scope, receive, send, limits
        headers = Headers(scope=scope)
        self._most = limits.json_bytes if media.is_json(headers.get("content-type")) else limits.upload_bytes
        self._announced = int(headers.get("content-length", 0))
        self._got = 0
        self._over = self._listening = False
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limits.answer_seconds
        self.begun = asyncio.Event()  # the answer has begun, or the work is over
        self.stuck = False  # the client took nothing of the answer for too long

    async def receive(self) -> Message:
        if self._over:
            return {"type": "http.disconnect"}
        self._check(self._announced)
        self._listening = True
        message = await self._receive()
        self._listening = False
        self._got += len(message.get("body", b""))
        self._check(self._got)
        if self._most > self._limits.json_bytes:  # a small body has the one deadline; a large one must go on coming
            self._deadline = self._loop.time() + self._limits.answer_seconds
        return message

    async def send(self, message: Message) -> None:
        if not self._over:
            self.begun.set()
            for piece in _pieces(message):
                await self._offer(piece)

    async def _offer(self, message: Message) -> None:
        """Send it to a client that takes it within the time that an answer has; else the client is as good as gone."""
        try:
            async with asyncio.timeout(self._limits.answer_seconds):
                await self._send(message)
        except TimeoutError:
            self._over = self.stuck = True
            raise ClientDisconnect from None

    async def in_time(self) -> bool:
        """Did the answer begin before the deadline? Each piece of a large body moves it."""
        while not self.begun.is_set():
            try:
                async with asyncio.timeout_at(self._deadline):
                    await self.begun.wait()
            except TimeoutError:
                if self._loop.time() >= self._deadline and not self.begun.is_set():
                    self._over = True
                    return False
        return True

    async def give_up(self, send: Send) -> None:
        seconds = f"{self._limits.answer_seconds:g} seconds"
        refusal: PenstockError
        if self._listening:
            refusal = Invalid("body_timed_out", f"the body did not come within {seconds}")
        else:
            refusal = Unavailable(
                "request_timed_out",
                f"there is no answer after {seconds}, and the work may still be done; look before you send it again "
                "(a write with an idempotency-key can simply be sent again)",
            )
        told: Response = errors.answer(refusal, self._scope["path"])
        await told(self._scope, self._receive, send)

    def _check(self, size: int) -> None:
        if size > self._most:
            raise Invalid("body_too_large", f"the body has more than {self._most:,} bytes", limit=self._most)


def _pieces(message: Message) -> Iterator[Message]:
    """A large part of an answer in several: what the client does not take is held, and then it is not much."""
    body = memoryview(message.get("body", b""))
    for start in range(0, len(body) - _PIECE, _PIECE):
        yield {**message, "body": body[start : start + _PIECE], "more_body": True}
    rest = max(len(body) - 1, 0) // _PIECE * _PIECE
    yield {**message, "body": body[rest:]} if rest else message


def _stopping(path: str) -> Response:
    said = "the server stops, and what was asked for may or may not be done; look before you send it again"
    return errors.answer(Unavailable("server_stopping", said), path)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).getlist("x-request-id")
    return given[0] if len(given) == 1 and _ID.fullmatch(given[0]) else str(uuid4())


def _dressed(message: Message, request_id: str) -> list[tuple[bytes, bytes]]:
    headers = MutableHeaders(raw=list(message.get("headers", [])))
    headers["x-request-id"] = request_id
    for name, value in _SAFE.items():
        headers.setdefault(name, value)
    return headers.raw
