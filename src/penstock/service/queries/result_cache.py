"""Answers that stay true: what they are of is part of their key. The ones that nobody asks for go first."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")
_SHARE = 4  # of all room, that one answer may take
_ENTRY = 1_000  # bytes that an entry takes besides its key and what it holds


class Cache(Generic[_Value]):
    def __init__(self, most_bytes: int) -> None:
        self._most, self._held = most_bytes, 0
        self._kept: OrderedDict[Hashable, tuple[_Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> _Value | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Hashable, value: _Value, size: int) -> None:
        """Keep it, if it is not too large. `size` is of the value; what else it takes is counted here."""
        size += _ENTRY + _weight(key)
        if size > self._most // _SHARE:
            return
        with self._lock:
            _, before = self._kept.pop(key, (None, 0))
            self._kept[key] = (value, size)
            self._held += size - before
            while self._held > self._most:
                _, (_, gone) = self._kept.popitem(last=False)
                self._held -= gone


def _weight(key: Hashable) -> int:
    inner = sum(map(_weight, key)) if isinstance(key, tuple) else 0
    return sys.getsizeof(key) + inner
