"""Answers that stay true: what they are of is part of their key. The ones that nobody asks for go first."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")
_SHARE = 4  # of all room, that one answer may take


class Cache(Generic[_Value]):
    def __init__(self, most_bytes: int) -> None:
        self._most, self._held = most_bytes, 0
        self._kept: OrderedDict[Hashable, tuple[_Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> _Value | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Hashable, value: _Value, size: int) -> None:
        if size > self._most // _SHARE:
            return
        with self._lock:
            _, before = self._kept.pop(key, (None, 0))
            self._kept[key] = (value, size)
            self._held += size - before
            while self._held > self._most:
                _, (_, gone) = self._kept.popitem(last=False)
                self._held -= gone
