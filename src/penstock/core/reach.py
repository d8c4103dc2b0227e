"""Where a set of keys lies, so that files which can hold none of them are never opened."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.stats import Plain, plain

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000}  # dates count days, and have no unit

Bounds = Mapping[str, tuple[Plain | None, Plain | None]]  # column → lowest and highest value; None: not known


@dataclass(frozen=True, slots=True)
class Reach:
    """The values of each key column, sorted. A column that cannot be judged by its statistics is left out."""

    columns: Mapping[str, pa.Array]
    rows: int

    @classmethod
    def of(cls, keys: pa.Table) -> "Reach":
        columns = {}
        for field, column in zip(keys.schema, keys.columns, strict=True):
            if not _comparable(field.type) or column.null_count:
                continue
            if pt.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
                continue  # statistics say nothing of NaN
            columns[field.name] = _sorted(column)
        return cls(columns, keys.num_rows)

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
    whole = pc.unique(column)
    return whole.take(pc.array_sort_indices(whole))


def _comparable(kind: pa.DataType) -> bool:
    tests = (
        pt.is_boolean, pt.is_integer, pt.is_floating, pt.is_decimal, pt.is_date32,
        pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary,
    )  # fmt: skip
    return any(test(kind) for test in tests) or (pt.is_timestamp(kind) and kind.unit != "ns")
