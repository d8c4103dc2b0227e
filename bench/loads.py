"""HTTP load generator: send prepared requests over persistent connections and record the latencies.

Requests are prepared bytes, and only status and length of a response are parsed, because the load generator shares
the machine with the server and must not slow it down.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

MARK = b"@@@@@@@@"  # replaced by the version in a request; JSON ignores the leading spaces
_LENGTH = b"\r\ncontent-length:"
_TIMEOUT_SECONDS = 30.0  # to wait for the last responses


@dataclass(frozen=True)
class Load:
    port: int
    lines: Sequence[Sequence[bytes]]  # requests of each connection, sent in turn
    seconds: float
    versions: Sequence[Sequence[int]] = ()  # current version of each request; empty: requests have no MARK


@dataclass(frozen=True)
class Outcome:
    seconds: float
    took: list[float]  # seconds of each response
    busy: float  # CPU seconds of the load generator
    versions: list[list[int]]

    @property
    def rate(self) -> float:
        return len(self.took) / self.seconds


def run(load: Load) -> Outcome:
    return asyncio.run(_run(load))


async def _run(load: Load) -> Outcome:
    loop = asyncio.get_running_loop()
    busy, begun = time.process_time(), time.perf_counter()
    clients = []
    for index, requests in enumerate(load.lines):
        versions = list(load.versions[index]) if load.versions else None
        client = _Connection(requests, versions, begun + load.seconds, loop.create_future())
        await loop.create_connection(lambda client=client: client, "127.0.0.1", load.port)  # type: ignore[misc]
        clients.append(client)
    async with asyncio.timeout(load.seconds + _TIMEOUT_SECONDS):
        await asyncio.gather(*(client.over for client in clients))
    return Outcome(
        time.perf_counter() - begun,
        [seconds for client in clients for seconds in client.took],
        time.process_time() - busy,
        [client.versions or [] for client in clients],
    )


class _Connection(asyncio.Protocol):
    """Sends one request at a time: the next one after the response to the last one."""

    def __init__(
        self, requests: Sequence[bytes], versions: list[int] | None, until: float, over: "asyncio.Future[None]"
    ) -> None:
        self._requests, self.versions, self._until, self.over = requests, versions, until, over
        self.took: list[float] = []
        self._next = 0
        self._got, self._response_bytes = b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._response_bytes:
            end = self._got.find(b"\r\n\r\n")
            if end < 0:
                return
            at = self._got.find(_LENGTH, 0, end) + len(_LENGTH)
            self._response_bytes = end + 4 + int(self._got[at : self._got.find(b"\r", at)])
        if len(self._got) >= self._response_bytes:
            self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(exc or ConnectionError("The server closed a connection in use"))

    def _answered(self) -> None:
        now = time.perf_counter()
        self.took.append(now - self._sent)
        if not self._got.startswith(b"HTTP/1.1 200"):
            self.over.set_exception(AssertionError(self._got.decode(errors="replace")))
            self._transport.close()
            return
        if self.versions:
            self.versions[self._next] += 1
        self._next = (self._next + 1) % len(self._requests)
        if now < self._until:
            self._send()
        else:
            self.over.set_result(None)
            self._transport.close()

    def _send(self) -> None:
        request = self._requests[self._next]
        if self.versions:
            request = request.replace(MARK, b"%8d" % self.versions[self._next])
        self._got, self._response_bytes = b"", 0
        self._sent = time.perf_counter()
        self._transport.write(request)
