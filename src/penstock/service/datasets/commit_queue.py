"""Queue small writes that arrive together, so that they share a commit.

The first write of a group key is committed at once. Writes with the same key that arrive during this commit are queued and
committed together after it. There is no timer: a write never waits for others.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import Unavailable

_MAX_THREADS = 32  # concurrent commits of all callers; a commit that waits for a locked dataset occupies its thread


class QueuedWrite(Protocol):
    """A complete write that waits for its commit."""

    @property
    def group_key(self) -> Hashable:
        """Return the key that writes of one commit share; None: the write is committed alone."""
        ...

    @property
    def done(self) -> Future[Any]:
        """Return the future of the result. `commit_group` completes it."""
        ...

    def discard(self) -> None:
        """Remove the staged files of a write that is not committed."""
        ...


Write = TypeVar("Write", bound=QueuedWrite)


class CommitQueue(Generic[Write]):
    """Commit the writes of a server process in groups.

    Args:
        name: prefix of the names of the threads
        take_group: takes the next group from a queue, in order
        commit_group: commits a group and completes the futures of its writes
    """

    def __init__(
        self,
        name: str,
        take_group: Callable[[deque[Write]], list[Write]],
        commit_group: Callable[[list[Write]], None],
    ) -> None:
        self._take_group, self._commit_group = take_group, commit_group
        self._pool = ThreadPoolExecutor(_MAX_THREADS, name)
        self._lock = threading.Condition()
        self._queues: dict[Hashable, deque[Write]] = {}  # a queue exists as long as a thread serves it
        self._closed = False

    def submit(self, write: Write) -> Future[Any]:
        """Queue a write. Cancelling the future before the commit begins discards the write."""
        with self._lock:
            if not self._closed:
                self._enqueue(write)
                return write.done
        write.discard()
        write.done.set_exception(Unavailable("shutting_down"))
        return write.done

    def close(self) -> None:
        """Reject new writes, and wait until the submitted ones are committed."""
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: not self._queues)
        self._pool.shutdown()

    def _enqueue(self, write: Write) -> None:
        if write.group_key is None:
            self._pool.submit(self._commit_alone, write)
        elif write.group_key in self._queues:
            self._queues[write.group_key].append(write)
        else:
            self._queues[write.group_key] = deque([write])
            self._pool.submit(self._commit_queue, write.group_key)

    def _commit_alone(self, write: Write) -> None:
        if write.done.set_running_or_notify_cancel():
            self._commit_group([write])
        else:
            write.discard()

    def _commit_queue(self, group_key: Hashable) -> None:
        """Commit one group of a queue, and reschedule the rest, so that other queues get a thread."""
        try:
            with self._lock:
                group = self._take_group(self._queues[group_key])
            if group:
                self._commit_group(group)
        finally:
            with self._lock:
                if self._queues[group_key]:
                    self._pool.submit(self._commit_queue, group_key)
                else:
                    del self._queues[group_key]
                    self._lock.notify_all()
