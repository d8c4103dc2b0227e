"""LRU cache that is bounded in bytes. Its users choose keys that include every input, so entries never become stale."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")
_MAX_ENTRY_SHARE = 4  # one entry may take a quarter of the cache
_ENTRY_OVERHEAD_BYTES = 1_000  # memory of an entry, besides its key and its value


class BoundedCache(Generic[_Value]):
    """A cache that threads may share."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._entries: OrderedDict[Hashable, tuple[_Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> _Value | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, value: _Value, size: int) -> None:
        """Add a value of `size` bytes, unless it is too large; key and overhead are added to the size."""
        size += _ENTRY_OVERHEAD_BYTES + _key_bytes(key)
        if size > self._max_bytes // _MAX_ENTRY_SHARE:
            return
        with self._lock:
            _, replaced_size = self._entries.pop(key, (None, 0))
            self._entries[key] = (value, size)
            self._bytes += size - replaced_size
            while self._bytes > self._max_bytes:
                _, (_, evicted_size) = self._entries.popitem(last=False)
                self._bytes -= evicted_size


def _key_bytes(key: Hashable) -> int:
    inner = sum(map(_key_bytes, key)) if isinstance(key, tuple) else 0
    return sys.getsizeof(key) + inner
