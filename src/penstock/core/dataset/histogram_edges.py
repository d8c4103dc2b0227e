"""Compute exact, round histogram edges for every ordered type."""

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from fractions import Fraction
from itertools import chain, count, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

EdgeNumber = int | Fraction  # a value on the axis: dates count days, timestamps microseconds

_MAX_DOUBLE = Fraction(1.7976931348623157e308)
_SECOND_MICROSECONDS, _DAY_MICROSECONDS = 1_000_000, 86_400_000_000
_CLOCK_STEPS_SECONDS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1_800,
    3_600,
    7_200,
    10_800,
    21_600,
    43_200,
)  # seconds
_MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1_200)
_MIN_DAYS_FOR_MONTHS = 100  # below that, bins of days are used
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_FIRST_ORDINAL, _LAST_ORDINAL = (
    date(101, 1, 1).toordinal(),
    date(9_800, 1, 1).toordinal(),
)  # leaves room for edges outside of the values


def edge_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of the edges for values of a type, with room below and above them where possible."""
    if pt.is_integer(data_type):
        return pa.int64()
    if pt.is_floating(data_type):
        return pa.float64()
    return pa.decimal128(38, data_type.scale) if pt.is_decimal(data_type) else data_type


def compute_edges(low: pa.Scalar, high: pa.Scalar, max_bins: int) -> list[pa.Scalar]:
    """Return the ascending edges of at most `max_bins` bins of equal width that cover `low` to `high`.

    Where the type has no room for a round number, the value itself is the edge.
    """
    data_type, low_number, high_number = low.type, to_number(low), to_number(high)
    if low_number == high_number:
        return [low, high]
    first, *inner, last = _month_edges(data_type, low_number, high_number, max_bins) or _step_edges(
        data_type, low_number, high_number, max_bins
    )
    edges = [_to_edge(first, data_type, low)]
    for position in inner:
        edge = _to_edge(position, data_type, high)
        if to_number(edge) > to_number(edges[-1]):  # neighbouring floats may be further apart than the step
            edges.append(edge)
    return [*edges, _to_edge(last, data_type, high)]


def to_number(value: pa.Scalar) -> EdgeNumber:
    if pt.is_date(value.type):
        return int(value.cast(pa.int32()).as_py())
    if pt.is_timestamp(value.type):
        return int(value.cast(pa.int64()).as_py())
    return Fraction(value.as_py())


def to_scalar(value: Any, data_type: pa.DataType) -> pa.Scalar:
    """Convert a number or text, in the form of `column_stats`, to an Arrow scalar."""
    if pt.is_date(data_type):
        return pa.scalar(value, pa.int32()).cast(data_type)
    if pt.is_timestamp(data_type):
        return pa.scalar(value, pa.int64()).cast(data_type)
    return pa.scalar(value, data_type)


def _month_edges(data_type: pa.DataType, low: EdgeNumber, high: EdgeNumber, max_bins: int) -> list[EdgeNumber]:
    """Return beginnings of months, quarters, years or decades; empty if days or seconds fit better."""
    if not pt.is_temporal(data_type):
        return []
    day = 1 if pt.is_date(data_type) else _DAY_MICROSECONDS
    ends = [int(end // day) + _EPOCH_ORDINAL for end in (low, high)]
    if ends[1] - ends[0] < _MIN_DAYS_FOR_MONTHS or ends[0] < _FIRST_ORDINAL or ends[1] > _LAST_ORDINAL:
        return []
    begin, end = (day_date.year * 12 + day_date.month - 1 for day_date in map(date.fromordinal, ends))
    step = next((step for step in _MONTH_STEPS if end // step - begin // step < max_bins), None)
    if step is None:
        return []
    months = range(begin // step * step, (end // step + 2) * step, step)
    return [(date(month // 12, month % 12 + 1, 1).toordinal() - _EPOCH_ORDINAL) * day for month in months]


def _step_edges(data_type: pa.DataType, low: EdgeNumber, high: EdgeNumber, max_bins: int) -> list[EdgeNumber]:
    """Return multiples of the smallest round step that gives at most `max_bins` bins."""
    step = next(step for step in _round_steps(data_type, high - low) if high // step - low // step < max_bins)
    return [multiple * step for multiple in range(int(low // step), int(high // step) + 2)]


def _round_steps(data_type: pa.DataType, width: EdgeNumber) -> Iterator[EdgeNumber]:
    """Yield round bin widths in ascending order. The first is far too small, so the right one is among them."""
    if pt.is_timestamp(data_type):
        seconds = (_SECOND_MICROSECONDS * step for step in _CLOCK_STEPS_SECONDS)
        days = (_DAY_MICROSECONDS * step for step in _decimal_steps(Fraction(width, _DAY_MICROSECONDS), 0))
        return chain(
            takewhile(lambda step: step < _SECOND_MICROSECONDS, _decimal_steps(Fraction(width), 0)), seconds, days
        )
    return _decimal_steps(
        Fraction(width), None if pt.is_floating(data_type) else -data_type.scale if pt.is_decimal(data_type) else 0
    )


def _decimal_steps(width: Fraction, min_power: int | None) -> Iterator[EdgeNumber]:
    """Yield 1, 2, 5, 10, 20, 50, …, from at least `10 ** min_power`."""
    first_power = (Decimal(width.numerator) / width.denominator).adjusted() - 2
    for power in count(first_power if min_power is None else max(first_power, min_power)):
        yield from (digit * Fraction(10) ** power for digit in (1, 2, 5))


def _to_edge(position: EdgeNumber, data_type: pa.DataType, default: pa.Scalar) -> pa.Scalar:
    if pt.is_floating(data_type):
        return to_scalar(float(position), data_type) if -_MAX_DOUBLE <= position <= _MAX_DOUBLE else default
    value: Any = (
        Decimal(f"{int(position * 10**data_type.scale)}e-{data_type.scale}")
        if pt.is_decimal(data_type)
        else int(position)
    )
    try:
        return to_scalar(value, data_type)
    except (pa.ArrowInvalid, OverflowError):
        return default
