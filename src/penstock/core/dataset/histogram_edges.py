"""The axis of a chart: round numbers around and between two values, exact, for every type that has an order."""

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from fractions import Fraction
from itertools import chain, count, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

Number = int | Fraction  # a value as the axis sees it: dates count days, timestamps microseconds

_LARGEST = Fraction(1.7976931348623157e308)  # of a double
_SECOND, _DAY = 1_000_000, 86_400_000_000
_OF_A_CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)  # seconds
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1_200)
_DAYS_ENOUGH = 100  # for months to be told apart
_EPOCH = date(1970, 1, 1).toordinal()
_EARLIEST, _LATEST = date(101, 1, 1).toordinal(), date(9_800, 1, 1).toordinal()  # of a calendar with room around


def edge_type(kept: pa.DataType) -> pa.DataType:
    """The type of edges for such values: it has room below and above them, as far as there is any."""
    if pt.is_integer(kept):
        return pa.int64()
    if pt.is_floating(kept):
        return pa.float64()
    return pa.decimal128(38, kept.scale) if pt.is_decimal(kept) else kept


def edges(low: pa.Scalar, high: pa.Scalar, most: int) -> list[pa.Scalar]:
    """The edges of at most so many bins of one width that hold all from `low` to `high`; in rising order.

    Where the type has no room for a round number, the value itself is the edge.
    """
    kept, least, greatest = low.type, number(low), number(high)
    if least == greatest:
        return [low, high]
    first, *inner, last = _months(kept, least, greatest, most) or _steps(kept, least, greatest, most)
    found = [_edge(first, kept, low)]
    for place in inner:
        edge = _edge(place, kept, high)
        if number(edge) > number(found[-1]):  # floats may lie further apart than the step is wide
            found.append(edge)
    return [*found, _edge(last, kept, high)]


def number(value: pa.Scalar) -> Number:
    if pt.is_date(value.type):
        return int(value.cast(pa.int32()).as_py())
    if pt.is_timestamp(value.type):
        return int(value.cast(pa.int64()).as_py())
    return Fraction(value.as_py())


def scalar(plain: Any, kept: pa.DataType) -> pa.Scalar:
    """The value that a number or a text stands for; `core.stats` has them so, too."""
    if pt.is_date(kept):
        return pa.scalar(plain, pa.int32()).cast(kept)
    if pt.is_timestamp(kept):
        return pa.scalar(plain, pa.int64()).cast(kept)
    return pa.scalar(plain, kept)


def _months(kept: pa.DataType, least: Number, greatest: Number, most: int) -> list[Number]:
    """Beginnings of months, quarters, years or decades; nothing where days or seconds do better."""
    if not pt.is_temporal(kept):
        return []
    day = 1 if pt.is_date(kept) else _DAY
    ends = [int(end // day) + _EPOCH for end in (least, greatest)]
    if ends[1] - ends[0] < _DAYS_ENOUGH or ends[0] < _EARLIEST or ends[1] > _LATEST:
        return []
    begin, end = (each.year * 12 + each.month - 1 for each in map(date.fromordinal, ends))
    many = next((many for many in _MONTHS if end // many - begin // many < most), None)
    if many is None:
        return []
    months = range(begin // many * many, (end // many + 2) * many, many)
    return [(date(month // 12, month % 12 + 1, 1).toordinal() - _EPOCH) * day for month in months]


def _steps(kept: pa.DataType, least: Number, greatest: Number, most: int) -> list[Number]:
    """Multiples of the least round number that is enough."""
    step = next(step for step in _round(kept, greatest - least) if greatest // step - least // step < most)
    return [place * step for place in range(int(least // step), int(greatest // step) + 2)]


def _round(kept: pa.DataType, width: Number) -> Iterator[Number]:
    """Widths of bins that people like. The first is far too small, so that the right one is among them."""
    if pt.is_timestamp(kept):
        seconds = (_SECOND * each for each in _OF_A_CLOCK)
        days = (_DAY * each for each in _decimal(Fraction(width, _DAY), 0))
        return chain(takewhile(lambda each: each < _SECOND, _decimal(Fraction(width), 0)), seconds, days)
    return _decimal(Fraction(width), None if pt.is_floating(kept) else -kept.scale if pt.is_decimal(kept) else 0)


def _decimal(width: Fraction, finest: int | None) -> Iterator[Number]:
    """1, 2, 5, 10, 20, 50, …; `finest`: the least power of ten."""
    size = (Decimal(width.numerator) / width.denominator).adjusted() - 2
    for power in count(size if finest is None else max(size, finest)):
        yield from (digit * Fraction(10) ** power for digit in (1, 2, 5))


def _edge(place: Number, kept: pa.DataType, otherwise: pa.Scalar) -> pa.Scalar:
    if pt.is_floating(kept):
        return scalar(float(place), kept) if -_LARGEST <= place <= _LARGEST else otherwise
    plain: Any = Decimal(f"{int(place * 10**kept.scale)}e-{kept.scale}") if pt.is_decimal(kept) else int(place)
    try:
        return scalar(plain, kept)
    except (pa.ArrowInvalid, OverflowError):
        return otherwise
