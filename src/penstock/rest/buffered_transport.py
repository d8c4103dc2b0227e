"""Transport that sends the head and the body of a small response together: one system call and one packet, not two."""

import asyncio
import socket
import struct
from collections.abc import Iterable
from typing import Any

_MAX_BUFFERED_BYTES = 64 << 10
_DISCARD_AT_CLOSE = struct.pack("ii", 1, 0)  # linger for no time


class BufferedTransport:
    """Collects what is written in one step of the event loop, and sends it at its end.

    All other methods are those of the transport.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, close_seconds: float) -> None:
        """Wrap a transport; `close_seconds` is the time for a client to receive the rest after `close`."""
        self.transport, self._loop, self._close_seconds = transport, loop, close_seconds
        self._parts: list[bytes | memoryview] = []
        self._bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write data, at the latest in the next step of the event loop."""
        if not self._parts:
            if len(data) > _MAX_BUFFERED_BYTES:
                self.transport.write(data)
                return
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes > _MAX_BUFFERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Pass the collected data to the transport."""
        if self._parts:
            parts, self._parts, self._bytes = self._parts, [], 0
            self.transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        """Send what was written, then close the connection. It is aborted if the client does not receive the rest."""
        self.flush()
        self.transport.close()
        if self.transport.get_write_buffer_size():  # otherwise it would stay open for as long as the client likes
            self._loop.call_later(self._close_seconds, self.abort)

    def abort(self) -> None:
        """Close the connection at once. Also the system discards what the client has not received."""
        connection: socket.socket | None = self.transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD_AT_CLOSE)
        self.transport.abort()

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        """Write several parts, in order with all others."""
        for part in parts:
            self.write(part)

    def write_eof(self) -> None:
        """Close the write end after what was written."""
        self.flush()
        self.transport.write_eof()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)
