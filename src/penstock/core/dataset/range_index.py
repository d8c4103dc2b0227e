"""Find the ranges that meet a range, with an ordinary index: every range has one place on a line.

Values are mapped to 64-bit keys that keep their order. A bin is all keys that share their leading bits, and its place
is its middle. A range gets the place of the smallest bin that holds both its ends. A range that meets what is searched
for then lies at a place between the searched ends, or in a bin that holds one of them: one stretch of the index and
two places for each of the 16 sizes of bins, however many ranges there are. What is found may still miss (keys are
rounded outwards, and a bin is wider than its range); nothing that meets is ever left out.
"""

import math
import struct
from dataclasses import dataclass

from penstock.core.dataset.column_stats import Plain

_SIZES = range(4, 65, 4)  # the bits that a bin leaves open; the last bin holds every key
_LAST = 2**64 - 1
_SIGN = 2**63  # databases count from −2⁶³

EVERYWHERE = 0  # the place of a range that is not known: every search looks there


@dataclass(frozen=True, slots=True)
class Search:
    """Where to look: the places from `first` to `last`, and those `around` them."""

    first: int
    last: int
    around: tuple[int, ...]


def place(low: Plain, high: Plain) -> int:
    first, last = _key(low, up=False), _key(high, up=True)
    return next(_middle(first, size) for size in _SIZES if first >> size == last >> size)


def search(low: Plain | None, high: Plain | None) -> Search:
    """Where the ranges that meet `low … high` (None: without end) have their places."""
    first = 0 if low is None else _key(low, up=False)
    last = _LAST if high is None else _key(high, up=True)
    around = {_middle(end, size) for end in (first, last) for size in _SIZES}
    return Search(first - _SIGN, last - _SIGN, tuple(sorted(around)))


def _middle(key: int, size: int) -> int:
    """The place of the bin that holds the key: its lowest bit tells the size, so no two bins share a place."""
    return (key >> size << size | 1 << size - 1) - _SIGN


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
