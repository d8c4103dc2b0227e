"""Return memory that requests have freed to the operating system.

The allocators keep freed blocks for later requests. After a burst of large requests a server would hold hundreds of
unused mebibytes.
"""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

INTERVAL_SECONDS = 5.0

_MIN_EXCESS_BYTES = 16 << 20  # less is not worth a walk through the heap
_MIN_RELEASED_SHARE = 0.05  # of the excess; a release of less counts as one without effect
_MAX_SKIPPED_CALLS = 3  # after releases without effect: one release in 20 seconds

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # parameters of mallopt in glibc
_MMAP_THRESHOLD_BYTES = 8 << 20  # larger blocks go back when they are freed; Flight clients send smaller messages
_ARENAS = 4  # each keeps free memory of its own; glibc would create eight per core


def limit_allocator_memory() -> None:
    """Bound the free memory that the C allocator keeps, before threads start. It has no effect without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def exclude_startup_objects_from_collection() -> None:
    """Make garbage collections short: modules and other objects of the start are not walked again."""
    gc.collect()
    gc.freeze()


def release_free_memory() -> None:
    """Collect garbage, and return the free blocks of Arrow's pool and of the C allocator."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def anonymous_memory_bytes() -> int:
    """Return the anonymous resident memory of this process; 0 where the system does not report it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    return int(status.read_text().partition("RssAnon:")[2].split()[0]) << 10


class MemoryReleaser:
    """Release free memory while the process has more than after its best release; call `run` every few seconds."""

    def __init__(
        self,
        measure: Callable[[], int] = anonymous_memory_bytes,
        release: Callable[[], None] = release_free_memory,
    ) -> None:
        self._measure, self._release = measure, release
        self._floor: int | None = None  # the least memory after a release
        self._skipped_calls = self._calls_to_skip = 0

    def run(self) -> None:
        """Release free memory if there may be some. After a release without effect, skip the next calls."""
        if self._skipped_calls < self._calls_to_skip:
            self._skipped_calls += 1
            return
        self._skipped_calls = 0
        before = self._measure()
        if self._floor is not None and before - self._floor < _MIN_EXCESS_BYTES:
            return
        self._release()
        after = self._measure()
        excess = before - (self._floor or 0)
        in_vain = before - after < _MIN_RELEASED_SHARE * excess
        self._calls_to_skip = min(self._calls_to_skip + 1, _MAX_SKIPPED_CALLS) if in_vain else 0
        self._floor = min(after, self._floor or after)
