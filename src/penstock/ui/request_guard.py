"""Keeps others away from the pages: the scripts of other sites, bodies without end, and more visitors than there is room for."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")  # names that no other site can have
_POLICY = (  # Vue compiles its templates in the browser, hence the evaluation
    b"default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'"
)
_HEADER = b"content-security-policy"


@dataclass(frozen=True)
class Guard:
    """Stands before the application, and looks at what is meant for the pages."""

    app: Application
    at: str  # where the pages are
    dev: bool  # nobody needs a token
    largest: int  # bytes of a body
    full: Callable[[], bool]  # is there no room for another page?

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not _below(scope["path"], self.at):
            await self.app(scope, receive, send)
            return
        if refusal := self._refusal(scope):
            await _refuse(scope["type"], *refusal, send)
            return
        if scope["path"] == self.at:
            await _answer(307, "The pages are one slash further.", send, (b"location", f"{self.at}/".encode()))
            return

        gone = False

        async def hear() -> Message:
            nonlocal gone
            message = await receive()
            gone = gone or message["type"] == "http.disconnect"
            return message

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message.get("headers", []) if name.lower() != _HEADER]
                message = {**message, "headers": [*kept, (_HEADER, _POLICY)]}
            await send(message)

        try:
            await self.app(scope, hear, tell)
        except RuntimeError:
            if not gone:  # Starlette takes a visitor who leaves before the answer for a page without an answer
                raise

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.dev and _hostname(f"//{host}") not in _LOOPBACK:
            return 403, f"Without a token this page is for {', '.join(_LOOPBACK)} only."
        if origin is not None and _netloc(origin) != host:
            return 403, "Pages of other sites have no business here."
        if scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD"):
            new = scope["path"].count("/_nicegui") == 0  # not a part of a page that is there
            return (503, "There are too many open pages; try again in a minute.") if new and self.full() else None
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return 411, "Say how long the body is."
        return (413, f"A file may have {self.largest:,} bytes here.") if int(length) > self.largest else None


async def _refuse(kind: str, status: int, sentence: str, send: Send) -> None:
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        await _answer(status, sentence, send)


async def _answer(status: int, sentence: str, send: Send, *more: tuple[bytes, bytes]) -> None:
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _below(path: str, at: str) -> bool:
    return path == at or path.startswith(f"{at}/")


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _netloc(address: str) -> str | None:
    try:
        return urlsplit(address).netloc
    except ValueError:
        return None
