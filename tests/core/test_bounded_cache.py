"""The cache stays within its memory limit."""

import sys
from collections.abc import Callable, Hashable

import pytest

from penstock.core.bounded_cache import BoundedCache

ENTRY = 1_000  # approximate bytes of an entry besides its key and value


@pytest.mark.parametrize(
    ("key", "size"),
    [
        (lambda n: n, 0),
        (lambda n: ("x" * 10_000, n), 0),
        (lambda n: (1, (2, ("x" * 10_000, n))), 0),
        (lambda n: n, 700),
    ],
    ids=["values of nothing", "long keys", "long keys inside", "values"],
)
def test_cache_stays_within_its_bytes(key: Callable[[int], Hashable], size: int) -> None:
    cache = BoundedCache[int](1 << 20)
    for n in range(5_000):
        cache.put(key(n), n, size)
    entry_bytes = ENTRY + size + (10_000 if isinstance(key(0), tuple) else 0)
    assert 1 < len(cache) <= (1 << 20) // entry_bytes
    assert cache.get(key(4_999)) == 4_999
    assert cache.get(key(0)) is None


def test_cache_evicts_least_recently_used_entry() -> None:
    cache = BoundedCache[str](8 * (ENTRY + sys.getsizeof(1) + 10))
    for n in range(8):
        cache.put(n, "x", 0)
        cache.get(0)
    for n in range(8, 12):
        cache.put(n, "x", 0)
    assert [n for n in range(12) if cache.get(n)] == [0, *range(5, 12)]


def test_cache_rejects_entry_over_its_share() -> None:
    cache = BoundedCache[str](100_000)
    cache.put("large", "x", 26_000)
    cache.put("x" * 26_000, "x", 0)
    cache.put("small", "x", 23_000)
    assert [cache.get(key) for key in ("large", "x" * 26_000, "small")] == [None, None, "x"]


def test_put_replaces_entry_of_same_key() -> None:
    cache = BoundedCache[int](10_000)
    for n in range(100):
        cache.put("key", n, 1_000)
    assert (len(cache), cache.get("key")) == (1, 99)
