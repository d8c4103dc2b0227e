"""Ask a server again and again over a few connections that stay open, and note how long each answer took.

Requests are bytes that were made before, and of an answer only its status and its length are read: whoever asks
shares the machine with whoever answers, and must not slow it down.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

MARK = b"@@@@@@@@"  # the version's place in a request; blanks before a number are nothing to JSON
_LENGTH = b"\r\ncontent-length:"
_PATIENCE = 30.0  # seconds, for the last answers


@dataclass(frozen=True)
class Load:
    port: int
    lines: Sequence[Sequence[bytes]]  # for each connection the requests that it sends in turn
    seconds: float
    versions: Sequence[Sequence[int]] = ()  # for each request the version that it has reached; none: it has no MARK


@dataclass(frozen=True)
class Outcome:
    seconds: float
    took: list[float]  # by each answer
    busy: float  # seconds of a core that asking took
    versions: list[list[int]]

    @property
    def rate(self) -> float:
        return len(self.took) / self.seconds


def run(load: Load) -> Outcome:
    return asyncio.run(_run(load))


async def _run(load: Load) -> Outcome:
    loop = asyncio.get_running_loop()
    busy, begun = time.process_time(), time.perf_counter()
    asking = []
    for place, requests in enumerate(load.lines):
        versions = list(load.versions[place]) if load.versions else None
        asked = _Connection(requests, versions, begun + load.seconds, loop.create_future())
        await loop.create_connection(lambda asked=asked: asked, "127.0.0.1", load.port)  # type: ignore[misc]
        asking.append(asked)
    async with asyncio.timeout(load.seconds + _PATIENCE):
        await asyncio.gather(*(each.over for each in asking))
    return Outcome(
        time.perf_counter() - begun,
        [each for asked in asking for each in asked.took],
        time.process_time() - busy,
        [asked.versions or [] for asked in asking],
    )


class _Connection(asyncio.Protocol):
    """One request at a time: the next is sent when the last was answered."""

    def __init__(
        self, requests: Sequence[bytes], versions: list[int] | None, until: float, over: "asyncio.Future[None]"
    ) -> None:
        self._requests, self.versions, self._until, self.over = requests, versions, until, over
        self.took: list[float] = []
        self._next = 0
        self._got, self._wanted = b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._wanted:
            end = self._got.find(b"\r\n\r\n")
            if end < 0:
                return
            at = self._got.find(_LENGTH, 0, end) + len(_LENGTH)
            self._wanted = end + 4 + int(self._got[at : self._got.find(b"\r", at)])
        if len(self._got) >= self._wanted:
            self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(exc or ConnectionError("the server closed a connection that was in use"))

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
        self._got, self._wanted = b"", 0
        self._sent = time.perf_counter()
        self._transport.write(request)
