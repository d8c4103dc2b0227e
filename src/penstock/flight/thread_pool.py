"""Threads for what blocks: disk, catalog, decoding. Nobody holds one while a client is waited for."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Work:
    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock flight")
        self._under_way: set[Future[object]] = set()

    async def run(self, do: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Whoever gives up waiting leaves the work going on: a thread cannot be stopped."""
        return await asyncio.wrap_future(self.begin(do, *args, **options))

    def begin(self, do: Callable[P, T], *args: P.args, **options: P.kwargs) -> "Future[T]":
        """The same, for who does not wait yet."""
        begun = self._pool.submit(contextvars.copy_context().run, partial(do, *args, **options))
        self._under_way.add(begun)  # type: ignore[arg-type]
        begun.add_done_callback(self._under_way.discard)
        return begun

    def close(self, seconds: float) -> bool:
        """Take no more, and wait for what is under way. Is all of it over?"""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return not wait(list(self._under_way), seconds).not_done
