"""ASGI middleware of the web UI: check origin and host, limit bodies and open pages, set the security policy."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from penstock.core.request_origin import LOOPBACK_HOSTS, is_cross_site, is_loopback
from penstock.ui import formatting

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_POLICY = (  # 'unsafe-eval': Vue compiles its templates in the browser
    b"default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'"
)
_POLICY_HEADER = b"content-security-policy"


@dataclass(frozen=True)
class RequestGuard:
    """Reject unwanted requests to the pages, and add the content security policy to responses.

    Requests to other paths pass unchanged.
    """

    app: Application
    mount_path: str  # path of the pages
    static_path: str  # path of the static files
    dev: bool  # development mode: no token is needed
    max_body_bytes: int
    accepts_page: Callable[[str], bool]  # whether a client with this address may open another page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not _is_below(scope["path"], self.mount_path):
            await self.app(scope, receive, send)
            return
        if rejection := self._check(scope):
            await _reject(scope["type"], *rejection, send)
            return
        if scope["path"] == self.mount_path:
            target = f"{self.mount_path}/"
            await _respond(307, f"Redirecting to {target}", send, (b"location", target.encode()))
            return

        is_disconnected = False

        async def receive_message() -> Message:
            nonlocal is_disconnected
            message = await receive()
            is_disconnected = is_disconnected or message["type"] == "http.disconnect"
            return message

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [(name, value) for name, value in message.get("headers", []) if name.lower() != _POLICY_HEADER]
                message = {**message, "headers": [*others, (_POLICY_HEADER, _POLICY)]}
            await send(message)

        try:
            await self.app(scope, receive_message, send_with_policy)
        except RuntimeError:
            if not is_disconnected:  # Starlette raises it, too, if the client disconnects before the response
                raise

    def _check(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and message of a rejection, or None if the request is accepted."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if self.dev and not is_loopback(headers.get("host", "")):
            return 403, f"Development mode accepts requests to {', '.join(LOOPBACK_HOSTS)} only."
        if is_cross_site(scope.get("method", "GET"), headers):
            return 403, "Requests from other origins are not allowed."
        if scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD"):
            path = scope["path"]
            is_new_page = "/_nicegui" not in path and not path.startswith(self.static_path)
            if is_new_page and not self.accepts_page((scope.get("client") or ("", 0))[0]):
                return 503, "Too many open pages. Try again in a minute."
            return None
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return 411, "The Content-Length header is required."
        if int(length) > self.max_body_bytes:
            return 413, f"The request body exceeds the limit of {formatting.format_count(self.max_body_bytes, 'byte')}."
        return None


async def _reject(scope_type: str, status: int, message: str, send: Send) -> None:
    if scope_type == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        await _respond(status, message, send)


async def _respond(status: int, message: str, send: Send, *extra_headers: tuple[bytes, bytes]) -> None:
    body = message.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        *extra_headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}/")
