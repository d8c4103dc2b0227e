"""Find the ranges that meet a range, with an ordinary index: every range lies in one bin.

Values are mapped to 64-bit keys that keep their order. A bin is all keys that share their leading
bits; a range goes into the smallest bin that holds both its ends. Bins come in 16 sizes, so a search
looks at 16 stretches of the index, however many ranges there are. What it finds may still miss (keys
are rounded outwards, and a bin is wider than its range); nothing that meets is ever left out.
"""

import math
import struct
from dataclasses import dataclass

from penstock.core.stats import Plain

_SIZES = range(4, 65, 4)  # the bits that a bin leaves open
_LAST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bins of one size, from `first` to `last`."""

    size: int
    first: int
    last: int


def bin_of(low: Plain, high: Plain) -> tuple[int, int]:
    """The size and number of the bin that a range lies in."""
    first, last = _key(low, up=False), _key(high, up=True)
    return next((size, first >> size) for size in _SIZES if first >> size == last >> size)


def stretches(low: Plain | None, high: Plain | None) -> list[Stretch]:
    """Where the ranges that meet `low … high` (None: without end) can lie."""
    first = 0 if low is None else _key(low, up=False)
    last = _LAST if high is None else _key(high, up=True)
    return [Stretch(size, first >> size, last >> size) for size in _SIZES] if first <= last else []


def _key(value: Plain, *, up: bool) -> int:
    if isinstance(value, str):
        value = value[:8].encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return int.from_bytes(value[:8].ljust(8, b"\0"), "big")
    near = _float(value)
    if up and near < value:
        near = math.nextafter(near, math.inf)
    elif not up and near > value:
        near = math.nextafter(near, -math.inf)
    (bits,) = struct.unpack(">Q", struct.pack(">d", near + 0.0))  # + 0.0: −0.0 and 0.0 are one key
    return int(_LAST - bits if bits >> 63 else bits | 1 << 63)


def _float(value: Plain) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
