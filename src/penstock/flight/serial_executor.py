"""The work of one call, piece by piece: no two at once, also when the call is broken off and a thread still works."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from penstock.flight.interceptor import Call

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    def __init__(self, call: Call) -> None:
        self._call, self._turn = call, threading.Lock()

    async def run(self, do: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return await self._call.run(self._in_turn, partial(do, *args, **options))

    def later(self, do: Callable[[], object]) -> None:
        """For what nobody waits for."""
        self._call.work.begin(self._in_turn, do)

    @asynccontextmanager
    async def within(self, block: AbstractContextManager[T]) -> AsyncIterator[T]:
        """A `with` block that is entered and left in threads, and left in any case."""
        entering = self._call.work.begin(self._in_turn, block.__enter__)
        try:
            value = await asyncio.wrap_future(entering)
        except asyncio.CancelledError:  # the thread may enter all the same
            entering.add_done_callback(partial(self._leave, block))
            raise
        try:
            yield value
        except BaseException as error:
            await asyncio.shield(self.run(block.__exit__, type(error), error, error.__traceback__))
            raise
        await asyncio.shield(self.run(block.__exit__, None, None, None))

    def _leave(self, block: AbstractContextManager[T], entered: "Future[T]") -> None:
        if not entered.cancelled() and entered.exception() is None:
            self.later(partial(block.__exit__, asyncio.CancelledError, asyncio.CancelledError(), None))

    def _in_turn(self, do: Callable[[], T]) -> T:
        with self._turn:
            return do()
