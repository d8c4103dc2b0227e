"""Transport that sends the head and the body of a small response together: one system call and one packet, not two."""

import asyncio
from typing import Any

_MAX_BUFFERED_BYTES = 64 << 10


class BufferedTransport:
    """Collects the data of one step of the event loop, and sends it at the end of the step.

    All other methods are those of the transport.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.transport, self._loop = transport, loop
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
        """Send the collected data, then close the connection."""
        self.flush()
        self.transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)
