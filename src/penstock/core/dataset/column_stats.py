"""What is known of a file's columns without opening it: lowest and highest value, and how many are NULL.

Values are kept plain, so that they compare whatever the column's type: dates count days, timestamps
microseconds, booleans are 0 and 1. Long texts are cut: the bound stays a bound, only less tight.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

Plain = int | float | Decimal | str | bytes
Bounds = Mapping[str, tuple[Plain | None, Plain | None]]  # column → lowest and highest value; None: without end

_CUT = 40  # characters or bytes of a bound that are worth keeping
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Stats:
    low: Plain | None  # None: not known, or every value is NULL
    high: Plain | None
    nulls: int


def has_stats(kept: pa.DataType) -> bool:
    return not pt.is_nested(kept)


def plain(value: Any) -> Plain:
    match value:
        case bool():
            return int(value)
        case datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return (aware - _EPOCH) // _MICROSECOND
        case date():
            return (value - _EPOCH.date()).days
        case int() | float() | Decimal() | str() | bytes():
            return value
    raise TypeError(f"no statistics for a {type(value).__name__}")


def may_hold(stats: Stats | None, rows: int, low: Plain | None, high: Plain | None) -> bool:
    """Could some row of the file have a value between `low` and `high` (None: without end)?"""
    if stats is None:
        return True
    if stats.nulls == rows:
        return False
    if low is not None and stats.high is not None and stats.high < low:  # type: ignore[operator]
        return False
    return not (high is not None and stats.low is not None and stats.low > high)  # type: ignore[operator]


def united(parts: Iterable[tuple[int, Stats]]) -> Stats:
    """The statistics of several pieces (row groups, each with its number of rows) taken together."""
    low: Any = None
    high: Any = None
    nulls, known = 0, True
    for rows, part in parts:
        nulls += part.nulls
        if part.nulls == rows:
            continue
        if part.low is None or part.high is None:
            known = False
            continue
        low = part.low if low is None else min(low, part.low)
        high = part.high if high is None else max(high, part.high)
    return Stats(low, high, nulls) if known else Stats(None, None, nulls)


def cut(stats: Stats) -> Stats:
    return Stats(_below(stats.low), _above(stats.high), stats.nulls)


def is_exact(bound: Plain) -> bool:
    """Is it the value itself? What was cut is as long as what is kept can be."""
    return not isinstance(bound, str | bytes) or len(bound) < _CUT


def to_json(columns: Mapping[str, Stats]) -> str:
    return json.dumps(
        {name: [_out(s.low), _out(s.high), s.nulls] for name, s in columns.items()},
        ensure_ascii=False,
        separators=(",", ":"),
    )


def from_json(schema: pa.Schema) -> Callable[[str], dict[str, Stats]]:
    """Reads what `to_json` wrote, of the columns that a schema has; there may be many files.

    The schema is that of today: the bounds of a column that was widened are still bounds.
    """
    reads = {column.name: _in(column.type) for column in schema}

    def read(text: str) -> dict[str, Stats]:
        return {
            name: Stats(None if low is None else into(low), None if high is None else into(high), nulls)
            for name, (low, high, nulls) in json.loads(text).items()
            if (into := reads.get(name))
        }

    return read


def _below(low: Plain | None) -> Plain | None:
    return low[:_CUT] if isinstance(low, str | bytes) else low


def _above(high: Plain | None) -> Plain | None:
    """A short value that is still above all that start like `high`; None where there is none."""
    if isinstance(high, bytes) and len(high) > _CUT:
        stem = high[:_CUT].rstrip(b"\xff")
        return (stem[:-1] + bytes([stem[-1] + 1])).ljust(_CUT, b"\0") if stem else None
    if isinstance(high, str) and len(high) > _CUT:
        words = high[:_CUT].rstrip("\U0010ffff")
        return (words[:-1] + _next(words[-1])).ljust(_CUT) if words else None
    return high


def _next(character: str) -> str:
    return "\ue000" if character == "\ud7ff" else chr(ord(character) + 1)  # surrogates are no characters


def _out(value: Plain | None) -> Any:
    match value:
        case bytes():
            return value.hex()
        case Decimal() | float():
            return str(value)
    return value


def _in(kept: pa.DataType) -> Callable[[Any], Plain]:
    if pt.is_binary(kept):
        return bytes.fromhex
    if pt.is_decimal(kept):
        return Decimal
    if pt.is_floating(kept):
        return float
    return lambda stored: stored
