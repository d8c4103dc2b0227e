"""Who may run a query now: so many at once, so many who wait, and of both never all for one tenant."""

import threading
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from penstock.errors import Unavailable


class Places:
    def __init__(self, at_once: int, waiting: int) -> None:
        self._at_once, self._in_all = at_once, at_once + waiting  # who waits holds a thread that others may need
        self._running, self._there = Counter[Hashable](), Counter[Hashable]()  # by tenant; who is there waits or runs
        self._freed = threading.Condition()

    @contextmanager
    def one(self, tenant: Hashable, seconds: float) -> Iterator[None]:
        """A place for a query, as soon as there is one."""
        with self._freed:
            if self._there.total() >= self._in_all or self._there[tenant] >= _share(self._in_all):
                raise _busy()
            self._there[tenant] += 1
        try:
            with self._freed:
                if not self._freed.wait_for(lambda: self._is_free(tenant), seconds):
                    raise _busy()
                self._running[tenant] += 1
            try:
                yield
            finally:
                self._leave(self._running, tenant)
        finally:
            self._leave(self._there, tenant)

    def _is_free(self, tenant: Hashable) -> bool:
        return self._running.total() < self._at_once and self._running[tenant] < _share(self._at_once)

    def _leave(self, counted: Counter[Hashable], tenant: Hashable) -> None:
        with self._freed:
            counted[tenant] -= 1
            if not counted[tenant]:
                del counted[tenant]
            self._freed.notify_all()


def _share(places: int) -> int:
    """Of one tenant: three quarters, so that others always find a place. Of few places it may take all."""
    return places - places // 4


def _busy() -> Unavailable:
    return Unavailable("queries_busy", "too many queries run at once; try again in a moment")
