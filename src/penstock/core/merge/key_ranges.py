"""Sorted key values, to skip files whose statistics exclude all keys."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.dataset.column_stats import Bounds, StatValue, stat_value

_INT64_LIMIT = 2**63
_MICROSECONDS_PER_UNIT = {"s": 1_000_000, "ms": 1_000}  # dates count days, and have no unit


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Sorted values per key column. Columns that cannot be compared with statistics are absent."""

    columns: Mapping[str, pa.Array]
    rows: int
    numbers: Mapping[str, Any] = field(default_factory=dict)  # the same values as integers, where possible

    @classmethod
    def of(cls, keys: pa.Table) -> "KeyRanges":
        columns = {}
        for key_field, column in zip(keys.schema, keys.columns, strict=True):
            if not _has_comparable_stats(key_field.type) or column.null_count:
                continue
            if pt.is_floating(key_field.type) and pc.any(pc.is_nan(column)).as_py():
                continue  # statistics do not include NaN
            columns[key_field.name] = _sort_distinct(column)
        numbers = {name: n for name, values in columns.items() if (n := _as_integers(values)) is not None}
        return cls(columns, keys.num_rows, numbers)

    def bounds(self) -> Bounds:
        """Return the lowest and the highest value per column."""
        if not self.rows:
            return {}
        return {
            name: (_plain_value(values, 0), _plain_value(values, len(values) - 1))
            for name, values in self.columns.items()
        }

    def overlaps(self, bounds: Bounds) -> bool:
        """Check whether a file with these bounds may contain one of the keys."""
        if not self.rows:
            return False
        for name, (low, high) in bounds.items():
            if name in self.columns and low is not None and high is not None:
                first, last = self.between(name, low, high)
                if first == last:
                    return False
        return True

    def between(self, name: str, low: StatValue, high: StatValue) -> tuple[int, int]:
        """Return the interval of positions of the sorted values from `low` to `high`."""
        numbers, ends = self.numbers.get(name), cast(tuple[Any, Any], (low, high))
        if numbers is not None and all(-_INT64_LIMIT <= end < _INT64_LIMIT for end in ends):
            return int(np.searchsorted(numbers, ends[0], "left")), int(np.searchsorted(numbers, ends[1], "right"))
        values = _PlainValues(self.columns[name])
        return bisect_left(values, low), bisect_right(values, high)


class _PlainValues(Sequence[StatValue]):
    """View of an Arrow array as a sequence of plain values."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, at: int) -> StatValue:  # type: ignore[override]
        return _plain_value(self._values, at)


def _plain_value(values: pa.Array, index: int) -> StatValue:
    value = values[index]
    if pt.is_temporal(value.type):  # as a number, because Python's calendar ends in the year 9999
        return int(value.value) * _MICROSECONDS_PER_UNIT.get(getattr(value.type, "unit", ""), 1)
    return stat_value(value.as_py())


def _sort_distinct(column: pa.ChunkedArray) -> pa.Array:
    """Return the distinct values in ascending order."""
    if pt.is_int64(column.type):
        numbers = np.sort(column.to_numpy())
        return pa.array(numbers[np.append(True, numbers[1:] != numbers[:-1])] if len(numbers) else numbers)
    distinct = pc.unique(column)
    return distinct.take(pc.array_sort_indices(distinct))


def _as_integers(values: pa.Array) -> Any:
    """Return integers, dates and microseconds as numpy integers, which are fast to search; None for other types."""
    if pt.is_signed_integer(values.type):
        return values.to_numpy()
    if pt.is_date32(values.type):
        return values.cast(pa.int32()).to_numpy()
    if pt.is_timestamp(values.type) and values.type.unit == "us":
        return values.cast(pa.int64()).to_numpy()
    return None


def _has_comparable_stats(data_type: pa.DataType) -> bool:
    tests = (
        pt.is_boolean, pt.is_integer, pt.is_float32, pt.is_float64, pt.is_decimal128, pt.is_decimal256, pt.is_date32,
        pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary,
    )  # fmt: skip
    return any(test(data_type) for test in tests) or (pt.is_timestamp(data_type) and data_type.unit != "ns")
