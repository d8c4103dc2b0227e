"""The processes of one `penstock serve --processes N`: requests between them over local sockets, and merged metrics."""

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_TIMEOUT_SECONDS = 2.0  # a process that does not respond in time is left out
_MAX_BYTES = 16 << 20
_MAX_REQUEST_BYTES = 64 << 10
_EQUAL_IN_ALL = ("penstock_runs_queued",)  # gauges that every process reads from the catalog
METRICS_ACTION = "metrics"
_log = logging.getLogger(__name__)

SiblingRequest = Mapping[str, Any]  # JSON members of a request to another process of the group
SiblingHandler = Callable[[SiblingRequest], bytes]


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The number of a process among its siblings, and the folder of their sockets."""

    folder: str  # of the local sockets; only their user can open them
    index: int
    count: int

    def listen(self, handlers: Mapping[str, SiblingHandler]) -> None:
        """Serve the requests of the siblings by their action, in a thread. Handlers must return quickly."""
        path = self._socket_path(self.index)
        path.unlink(missing_ok=True)  # of an ended process
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(self.count * 4)
        threading.Thread(target=self._serve, args=(listener, handlers), name="penstock group", daemon=True).start()

    def fetch_others(self, action: str, members: SiblingRequest | None = None) -> list[bytes]:
        """Send a request to all siblings, and return the responses of those that respond in time."""
        request = json.dumps({"action": action, **(members or {})}).encode()
        responses = []
        for index in range(self.count):
            if index == self.index:
                continue
            try:
                responses.append(self._fetch(index, request))
            except OSError as error:
                _log.warning("process %d does not respond: %s", index, error)
        return responses

    def _serve(self, listener: socket.socket, handlers: Mapping[str, SiblingHandler]) -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_TIMEOUT_SECONDS)
                try:
                    request = json.loads(_receive_all(connection, _MAX_REQUEST_BYTES))
                    connection.sendall(handlers[request["action"]](request))
                except OSError as error:  # the sibling has ended
                    _log.debug("a sibling closed the connection before the response: %s", error)
                except Exception:  # the thread must continue
                    _log.exception("A request of a sibling failed")

    def _fetch(self, index: int, request: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            connection.connect(str(self._socket_path(index)))
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return _receive_all(connection, _MAX_BYTES)

    def _socket_path(self, index: int) -> Path:
        return Path(self.folder) / f"{index}.sock"


def _receive_all(connection: socket.socket, max_bytes: int) -> bytes:
    received = bytearray()
    while chunk := connection.recv(1 << 16):
        received += chunk
        if len(received) > max_bytes:
            raise OSError("the message is too large")
    return bytes(received)


def merge_metrics(texts: Iterable[bytes]) -> bytes:
    """Add up the samples of several processes, in the Prometheus text format."""
    lines: dict[str, float | None] = {}  # comments have no value
    for text in texts:
        for line in text.decode().splitlines():
            if line.startswith("#"):
                lines.setdefault(line, None)
                continue
            name, _, value = line.rpartition(" ")
            before = lines.get(name)
            if before is None:
                lines[name] = float(value)
            elif name.startswith(_EQUAL_IN_ALL) or name.partition("{")[0].endswith("_created"):
                lines[name] = max(before, float(value))
            else:
                lines[name] = before + float(value)
    return "".join(name + "\n" if value is None else f"{name} {value!r}\n" for name, value in lines.items()).encode()


@dataclass(frozen=True)
class PageRedirect:
    """Send browsers to the one process that serves the web page: its sessions live in that process."""

    app: ASGIApp
    port: int
    prefixes: tuple[str, ...] = field(default=("/ui", "/_nicegui"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["server"][1] == self.port or not self._is_page(scope["path"]):
            await self.app(scope, receive, send)
            return
        host = dict(scope["headers"]).get(b"host", b"localhost").decode("latin-1").rpartition(":")
        name = host[0] if host[1] and host[2].isdigit() else host[2]
        query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
        url = f"{scope['scheme']}://{name}:{self.port}{scope['path']}{query}"
        await RedirectResponse(url, 307)(scope, receive, send)

    def _is_page(self, path: str) -> bool:
        return any(path == prefix or path.startswith(f"{prefix}/") for prefix in self.prefixes)


def to_argument(group: ProcessGroup, http_fd: int, page_fd: int | None, page_port: int | None) -> str:
    """Encode a process's part of the group as an argument of its command line."""
    return json.dumps([group.folder, group.index, group.count, http_fd, page_fd, page_port])


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """Options that a supervisor passes to its process."""

    group: ProcessGroup
    http_socket: socket.socket
    page_socket: socket.socket | None  # only the process that serves the page
    page_port: int | None


def from_argument(text: str) -> ChildOptions:
    """Decode the argument of `to_argument`."""
    folder, index, count, http_fd, page_fd, page_port = json.loads(text)
    page_socket = None if page_fd is None else socket.socket(fileno=page_fd)
    return ChildOptions(ProcessGroup(folder, index, count), socket.socket(fileno=http_fd), page_socket, page_port)
