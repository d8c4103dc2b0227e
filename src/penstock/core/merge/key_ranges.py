"""Where a set of keys lies, so that files which can hold none of them are never opened."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.dataset.column_stats import Bounds, Plain, plain

_WORD = 2**63
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000}  # dates count days, and have no unit


@dataclass(frozen=True, slots=True)
class Reach:
    """The values of each key column, sorted. A column that cannot be judged by its statistics is left out."""

    columns: Mapping[str, pa.Array]
    rows: int
    numbers: Mapping[str, Any] = field(default_factory=dict)  # the same values, where they are whole numbers

    @classmethod
    def of(cls, keys: pa.Table) -> "Reach":
        columns = {}
        for each, column in zip(keys.schema, keys.columns, strict=True):
            if not _comparable(each.type) or column.null_count:
                continue
            if pt.is_floating(each.type) and pc.any(pc.is_nan(column)).as_py():
                continue  # statistics say nothing of NaN
            columns[each.name] = _sorted(column)
        numbers = {name: n for name, values in columns.items() if (n := _numbers(values)) is not None}
        return cls(columns, keys.num_rows, numbers)

    def bounds(self) -> Bounds:
        """The lowest and the highest value of each column."""
        if not self.rows:
            return {}
        return {name: (_at(values, 0), _at(values, len(values) - 1)) for name, values in self.columns.items()}

    def meets(self, bounds: Bounds) -> bool:
        """Could a file with such values hold one of the keys?"""
        if not self.rows:
            return False
        for name, (low, high) in bounds.items():
            if name in self.columns and low is not None and high is not None:
                first, last = self.between(name, low, high)
                if first == last:
                    return False
        return True

    def between(self, name: str, low: Plain, high: Plain) -> tuple[int, int]:
        """Where the sorted values from `low` to `high` begin and end."""
        numbers, ends = self.numbers.get(name), cast(tuple[Any, Any], (low, high))
        if numbers is not None and all(-_WORD <= end < _WORD for end in ends):
            return int(np.searchsorted(numbers, ends[0], "left")), int(np.searchsorted(numbers, ends[1], "right"))
        values = _Values(self.columns[name])
        return bisect_left(values, low), bisect_right(values, high)


class _Values(Sequence[Plain]):
    """An Arrow array as a sequence of plain values."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, at: int) -> Plain:  # type: ignore[override]
        return _at(self._values, at)


def _at(values: pa.Array, at: int) -> Plain:
    value = values[at]
    if pt.is_temporal(value.type):  # as a number: Python's calendar ends in the year 9999
        return int(value.value) * _MICROSECONDS.get(getattr(value.type, "unit", ""), 1)
    return plain(value.as_py())


def _sorted(column: pa.ChunkedArray) -> pa.Array:
    """The different values, in order."""
    if pt.is_int64(column.type):
        numbers = np.sort(column.to_numpy())
        return pa.array(numbers[np.append(True, numbers[1:] != numbers[:-1])] if len(numbers) else numbers)
    whole = pc.unique(column)
    return whole.take(pc.array_sort_indices(whole))


def _numbers(values: pa.Array) -> Any:
    """Whole numbers, dates and microseconds as numpy has them: a search among those takes no time."""
    if pt.is_signed_integer(values.type):
        return values.to_numpy()
    if pt.is_date32(values.type):
        return values.cast(pa.int32()).to_numpy()
    if pt.is_timestamp(values.type) and values.type.unit == "us":
        return values.cast(pa.int64()).to_numpy()
    return None


def _comparable(kind: pa.DataType) -> bool:
    tests = (
        pt.is_boolean, pt.is_integer, pt.is_float32, pt.is_float64, pt.is_decimal128, pt.is_decimal256, pt.is_date32,
        pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary,
    )  # fmt: skip
    return any(test(kind) for test in tests) or (pt.is_timestamp(kind) and kind.unit != "ns")
