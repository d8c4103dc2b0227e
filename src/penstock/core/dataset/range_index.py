"""Range index: find ranges that overlap a range with an ordinary B-tree index.

Values are mapped to 64-bit keys that preserve their order. A bin is the set of all keys that share their leading bits;
its coordinate is its middle. A range gets the coordinate of the smallest bin that contains both its ends. A range that
overlaps the search range then has a coordinate between the searched ends, or lies in a bin that contains one of them:
one interval of the index and two coordinates for each of the 16 bin sizes, regardless of the number of ranges. Results
may contain false positives (keys are rounded outwards, and a bin is wider than its range), but no false negatives.
"""

import math
import struct
from dataclasses import dataclass

from penstock.core.dataset.column_stats import StatValue

_BIN_SIZES_BITS = range(4, 65, 4)  # bits that a bin leaves open; the last bin contains every key
_MAX_KEY = 2**64 - 1
_SIGN = 2**63  # SQL integers are signed

UNKNOWN_RANGE_COORDINATE = 0  # coordinate of a range with unknown ends; every search includes it


@dataclass(frozen=True, slots=True)
class SearchWindow:
    """Coordinates to search: from `first` to `last`, and the `enclosing` bins."""

    first: int
    last: int
    enclosing: tuple[int, ...]


def range_coordinate(low: StatValue, high: StatValue) -> int:
    """Return the coordinate of the range `low … high`."""
    first, last = _to_key(low, round_up=False), _to_key(high, round_up=True)
    return next(_bin_coordinate(first, size) for size in _BIN_SIZES_BITS if first >> size == last >> size)


def search_window(low: StatValue | None, high: StatValue | None) -> SearchWindow:
    """Return the coordinates of all ranges that may overlap `low … high` (None: unbounded)."""
    first = 0 if low is None else _to_key(low, round_up=False)
    last = _MAX_KEY if high is None else _to_key(high, round_up=True)
    enclosing = {_bin_coordinate(end, size) for end in (first, last) for size in _BIN_SIZES_BITS}
    return SearchWindow(first - _SIGN, last - _SIGN, tuple(sorted(enclosing)))


def _bin_coordinate(key: int, size: int) -> int:
    """Return the coordinate of the bin that contains the key.

    Its lowest set bit encodes the size, so coordinates are unique.
    """
    return (key >> size << size | 1 << size - 1) - _SIGN


def _to_key(value: StatValue, *, round_up: bool) -> int:
    if isinstance(value, str):
        value = value[:8].encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return int.from_bytes(value[:8].ljust(8, b"\0"), "big")
    rounded = _to_float(value)
    if round_up and rounded < value:
        rounded = math.nextafter(rounded, math.inf)
    elif not round_up and rounded > value:
        rounded = math.nextafter(rounded, -math.inf)
    (bits,) = struct.unpack(">Q", struct.pack(">d", rounded + 0.0))  # + 0.0 makes −0.0 and 0.0 the same key
    return int(_MAX_KEY - bits if bits >> 63 else bits | 1 << 63)


def _to_float(value: StatValue) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
