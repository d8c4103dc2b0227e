"""Column statistics of a data file: lowest and highest value, and the number of NULLs.

Values are stored as plain numbers, text or bytes, so that they compare regardless of the column's type: dates count
days, timestamps microseconds, booleans are 0 and 1. Long texts are truncated to a looser bound.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

StatValue = int | float | Decimal | str | bytes
Bounds = Mapping[str, tuple[StatValue | None, StatValue | None]]  # column → lowest and highest value; None: unbounded

MAX_BOUND_LENGTH = 40  # characters or bytes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ColumnStats:
    low: StatValue | None  # None: unknown, or every value is NULL
    high: StatValue | None
    nulls: int


def has_stats(data_type: pa.DataType) -> bool:
    return not pt.is_nested(data_type)


def first_leaves(schema: pa.Schema) -> list[int]:
    """Return the number of the first leaf column of each field: Parquet numbers columns by leaves."""
    return [0, *accumulate(_count_leaves(field.type) for field in schema)][: len(schema)]


def count_leaves(schema: pa.Schema) -> int:
    return sum(_count_leaves(field.type) for field in schema)


def _count_leaves(data_type: pa.DataType) -> int:
    if isinstance(data_type, pa.BaseExtensionType):
        return _count_leaves(data_type.storage_type)
    if not pt.is_nested(data_type):
        return 1
    return sum(_count_leaves(data_type.field(i).type) for i in range(data_type.num_fields))


def stat_value(value: Any) -> StatValue:
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


def may_contain(stats: ColumnStats | None, rows: int, low: StatValue | None, high: StatValue | None) -> bool:
    """Check whether a row of the file may have a value between `low` and `high` (None: unbounded)."""
    if stats is None:
        return True
    if stats.nulls == rows:
        return False
    if low is not None and stats.high is not None and stats.high < low:  # type: ignore[operator]
        return False
    return not (high is not None and stats.low is not None and stats.low > high)  # type: ignore[operator]


def combine_stats(parts: Iterable[tuple[int, ColumnStats]]) -> ColumnStats:
    """Combine the statistics of several parts, such as row groups, each with its number of rows."""
    low: Any = None
    high: Any = None
    nulls, complete = 0, True
    for rows, part in parts:
        nulls += part.nulls
        if part.nulls == rows:
            continue
        if part.low is None or part.high is None:
            complete = False
            continue
        low = part.low if low is None else min(low, part.low)
        high = part.high if high is None else max(high, part.high)
    return ColumnStats(low, high, nulls) if complete else ColumnStats(None, None, nulls)


def truncate_bounds(stats: ColumnStats) -> ColumnStats:
    return ColumnStats(_truncate_low(stats.low), _truncate_high(stats.high), stats.nulls)


def is_exact(bound: StatValue) -> bool:
    """Check whether a bound is the value itself: truncated bounds have the maximum length."""
    return not isinstance(bound, str | bytes) or len(bound) < MAX_BOUND_LENGTH


def to_json(columns: Mapping[str, ColumnStats]) -> str:
    return json.dumps(
        {name: [_to_json_value(s.low), _to_json_value(s.high), s.nulls] for name, s in columns.items()},
        ensure_ascii=False,
        separators=(",", ":"),
    )


def stats_parser(schema: pa.Schema) -> Callable[[str], dict[str, ColumnStats]]:
    """Return a parser of the JSON from `to_json`, for the columns of a schema.

    The schema is the current one: bounds of a column that was widened since remain valid.
    """
    parsers = {column.name: _json_value_parser(column.type) for column in schema}

    def parse(text: str) -> dict[str, ColumnStats]:
        return {
            name: ColumnStats(None if low is None else into(low), None if high is None else into(high), nulls)
            for name, (low, high, nulls) in json.loads(text).items()
            if (into := parsers.get(name))
        }

    return parse


def _truncate_low(low: StatValue | None) -> StatValue | None:
    return low[:MAX_BOUND_LENGTH] if isinstance(low, str | bytes) else low


def _truncate_high(high: StatValue | None) -> StatValue | None:
    """Return a short value that is above all values that start like `high`; None if there is none."""
    if isinstance(high, bytes) and len(high) > MAX_BOUND_LENGTH:
        stem = high[:MAX_BOUND_LENGTH].rstrip(b"\xff")
        return (stem[:-1] + bytes([stem[-1] + 1])).ljust(MAX_BOUND_LENGTH, b"\0") if stem else None
    if isinstance(high, str) and len(high) > MAX_BOUND_LENGTH:
        words = high[:MAX_BOUND_LENGTH].rstrip("\U0010ffff")
        return (words[:-1] + _next_character(words[-1])).ljust(MAX_BOUND_LENGTH) if words else None
    return high


def _next_character(character: str) -> str:
    return "\ue000" if character == "\ud7ff" else chr(ord(character) + 1)  # skip the surrogates


def _to_json_value(value: StatValue | None) -> Any:
    match value:
        case bytes():
            return value.hex()
        case Decimal() | float():
            return str(value)
    return value


def _json_value_parser(data_type: pa.DataType) -> Callable[[Any], StatValue]:
    if pt.is_binary(data_type):
        return bytes.fromhex
    if pt.is_decimal(data_type):
        return Decimal
    if pt.is_floating(data_type):
        return float
    return lambda stored: stored
