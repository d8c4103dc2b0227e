"""Admission control: limit the running and waiting work, in total, per tenant and per user."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

from penstock import cancellation
from penstock.cancellation import CancelToken
from penstock.errors import Unavailable
from penstock.service.fair_shares import Exhausted, FairShares, Shareholder

_BUSY_REASONS = {Exhausted.PROCESS: "server_busy", Exhausted.TENANT: "tenant_busy", Exhausted.USER: "tenant_busy"}


class AdmissionControl:
    """Admission for threads: a thread waits until its work may run."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._running = FairShares(max_running)
        self._admitted = FairShares(max_running + max_waiting)  # bounded because every waiting caller holds a thread
        self._released = threading.Condition()

    @contextmanager
    def admit(self, caller: Shareholder, seconds: float) -> Iterator[None]:
        """Wait until work of the caller may run.

        Raises:
            Unavailable: too much work waits already, or none ended in `seconds` (server_busy, tenant_busy)
            Unsupported: the request was cancelled while it waited (request_cancelled, query_cancelled)
        """
        if exhausted := self._admitted.take(caller):
            raise Unavailable(_BUSY_REASONS[exhausted])
        try:
            self._wait(caller, seconds)
            try:
                yield
            finally:
                self._running.give_back(caller)
                self._notify()
        finally:
            self._admitted.give_back(caller)

    def _wait(self, caller: Shareholder, seconds: float) -> None:
        exhausted: Exhausted | None = None

        def can_run() -> bool:
            nonlocal exhausted
            cancellation.raise_if_cancelled()
            exhausted = self._running.take(caller)
            return exhausted is None

        with cancellation.on_cancel(self._notify), self._released:
            if not self._released.wait_for(can_run, seconds) and exhausted:
                raise Unavailable(_BUSY_REASONS[exhausted])

    def _notify(self) -> None:
        with self._released:
            self._released.notify_all()


@dataclass(slots=True, eq=False)
class _Waiter:
    caller: Shareholder
    weight: int
    loop: asyncio.AbstractEventLoop
    granted: "asyncio.Future[None]"
    token: CancelToken | None

    @property
    def is_granted(self) -> bool:
        return self.granted.done() and not self.granted.cancelled() and self.granted.exception() is None

    def cancel(self) -> None:
        if self.token and not self.granted.done():
            self.granted.set_exception(self.token.error())


class AsyncAdmissionControl:
    """Admission for the tasks of one event loop, with a weight: expensive work counts as several requests."""

    def __init__(self, capacity: int, max_waiting: int) -> None:
        self._running, self._waiting = FairShares(capacity), FairShares(max_waiting)
        self._queue: list[_Waiter] = []

    @property
    def running(self) -> int:
        return self._running.used

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def admit(self, caller: Shareholder, seconds: float, weight: int = 1) -> AsyncIterator[None]:
        """Wait until work of the caller may run.

        Raises:
            Unavailable: too much work waits already, or none ended in `seconds` (server_busy, tenant_busy)
            Unsupported: the request was cancelled while it waited (request_cancelled, query_cancelled)
        """
        weight = min(weight, self._running.user_capacity)
        if self._queue or self._running.take(caller, weight):
            await self._wait(caller, seconds, weight)
        try:
            yield
        finally:
            self._running.give_back(caller, weight)
            self._grant()

    async def _wait(self, caller: Shareholder, seconds: float, weight: int) -> None:
        if exhausted := self._waiting.take(caller):
            raise Unavailable(_BUSY_REASONS[exhausted])
        loop = asyncio.get_running_loop()
        waiter = _Waiter(caller, weight, loop, loop.create_future(), cancellation.current())
        self._queue.append(waiter)
        try:
            self._grant()
            with cancellation.on_cancel(partial(waiter.loop.call_soon_threadsafe, waiter.cancel)):
                async with asyncio.timeout(seconds):
                    await waiter.granted
        except BaseException as error:
            if waiter.is_granted:  # at the same moment
                self._running.give_back(caller, weight)
            else:
                self._queue.remove(waiter)
            self._grant()
            if isinstance(error, TimeoutError):
                raise Unavailable("server_busy") from None
            raise
        finally:
            self._waiting.give_back(caller)

    def _grant(self) -> None:
        """Let waiting work run, in the order of its arrival. A caller at its limit does not delay other callers."""
        blocked: set[tuple[object, object | None]] = set()
        for waiter in list(self._queue):
            tenant, user = waiter.caller.tenant, waiter.caller.user
            if waiter.granted.done() or (tenant, None) in blocked or (tenant, user) in blocked:
                continue  # a waiter that is done was cancelled, and its task will remove it
            match self._running.take(waiter.caller, waiter.weight):
                case None:
                    self._queue.remove(waiter)
                    waiter.granted.set_result(None)
                case Exhausted.PROCESS:
                    return
                case Exhausted.TENANT:
                    blocked.add((tenant, None))
                case Exhausted.USER:
                    blocked.add((tenant, user))
