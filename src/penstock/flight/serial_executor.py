"""Run the blocking steps of one call in threads, one at a time, even if the call is cancelled during a step."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from penstock.flight.interceptor import FlightCall

P = ParamSpec("P")
T = TypeVar("T")


class SerialExecutor:
    def __init__(self, call: FlightCall) -> None:
        self._call, self._lock = call, threading.Lock()

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a function in a thread and return its result."""
        return await self._call.run(self._run_locked, partial(function, *args, **options))

    def submit(self, function: Callable[[], object]) -> None:
        """Run a function in a thread without waiting for it."""
        self._call.threads.submit(self._run_locked, function)

    @asynccontextmanager
    async def enter_context(self, block: AbstractContextManager[T]) -> AsyncIterator[T]:
        """Enter and exit a context manager in threads. Every context that was entered is exited."""
        entering = self._call.threads.submit(self._run_locked, block.__enter__)
        try:
            value = await asyncio.wrap_future(entering)
        except asyncio.CancelledError:  # the thread may still enter the context
            entering.add_done_callback(partial(self._exit_cancelled, block))
            raise
        try:
            yield value
        except BaseException as error:
            await asyncio.shield(self.run(block.__exit__, type(error), error, error.__traceback__))
            raise
        await asyncio.shield(self.run(block.__exit__, None, None, None))

    def _exit_cancelled(self, block: AbstractContextManager[T], entered: "Future[T]") -> None:
        if not entered.cancelled() and entered.exception() is None:
            self.submit(partial(block.__exit__, asyncio.CancelledError, asyncio.CancelledError(), None))

    def _run_locked(self, function: Callable[[], T]) -> T:
        with self._lock:
            return function()
