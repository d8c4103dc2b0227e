"""Thread pool for blocking work: disk, catalog, decoding. No thread waits for a client."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool:
    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock flight")
        self._pending: set[Future[object]] = set()

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run a function in a thread and return its result. Cancelling the wait does not stop the thread."""
        return await asyncio.wrap_future(self.submit(function, *args, **options))

    def submit(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> "Future[T]":
        """Run a function in a thread and return its future."""
        future = self._pool.submit(contextvars.copy_context().run, partial(function, *args, **options))
        self._pending.add(future)  # type: ignore[arg-type]
        future.add_done_callback(self._pending.discard)
        return future

    def close(self, seconds: float) -> bool:
        """Reject new work and wait for the running work. Return True if all of it has ended in time."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return not wait(list(self._pending), seconds).not_done
