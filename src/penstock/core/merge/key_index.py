"""Find rows by key: composite keys become one number each, and values are looked up by hash."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_NAN = pa.scalar(float("nan"))
_MAX_KEY_NUMBER = 2**62  # upper limit of the numbers of composite keys


def comparable(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a key column in a form in which equal keys are equal values.

    There is one NaN and one zero, and the type supports lookup.
    """
    array = column if isinstance(column, pa.Array) else _combine_chunks(column)
    data_type = array.type
    if pt.is_dictionary(data_type):
        return comparable(array.dictionary_decode())
    if pt.is_floating(data_type):
        number = array.cast(pa.float64()) if data_type != pa.float64() else array
        return pc.if_else(pc.is_nan(number), _NAN, pc.add(number, 0.0))
    if pt.is_string_view(data_type) or pt.is_binary_view(data_type):
        return array.cast(pa.large_string() if pt.is_string_view(data_type) else pa.large_binary())
    if pt.is_decimal(data_type) and data_type.bit_width < 128:
        return array.cast(pa.decimal128(data_type.precision, data_type.scale))
    return array


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@dataclass(frozen=True, slots=True)
class _KeyColumn:
    values: pa.Array  # distinct values of a key column
    pairs: pa.Array | None = None  # distinct numbers of the columns before, if these had to be renumbered


class KeyIndex:
    """Index of keys, each a row of comparable columns."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._columns: list[_KeyColumn] = []
        self.numbers = columns[0]
        self._order: Any = None
        if len(columns) > 1:
            self.numbers = self._assign_numbers(columns)
        elif (integers := _as_integers(columns[0])) is not None:
            self._order = np.argsort(integers)
            self._sorted = integers[self._order]

    def lookup(self, columns: Sequence[pa.Array]) -> tuple[Any, Any]:
        """Find the rows that have a key of the index.

        Returns:
            Row positions in ascending order, and the matching positions in the index.
        """
        if self._order is not None and _is_sorted(rows := _as_integers(columns[0])):
            # Sorted rows are searched for each key, because there are fewer keys than rows.
            first, last = np.searchsorted(rows, self._sorted, "left"), np.searchsorted(rows, self._sorted, "right")
            hits = np.flatnonzero(last - first)
            times = (last - first)[hits]
            start = np.repeat(first[hits] - np.concatenate(([0], np.cumsum(times)[:-1])), times)
            return start + np.arange(len(start)), np.repeat(self._order[hits], times)
        positions = pc.index_in(self._lookup_numbers(columns), value_set=self.numbers)
        return np.flatnonzero(positions.is_valid()), positions.drop_null().to_numpy()

    def _assign_numbers(self, columns: Sequence[pa.Array]) -> pa.Array:
        numbers: pa.Array | None = None
        room = 1
        for column in columns:
            values = pc.unique(column)
            pairs = None
            if room * max(len(values), 1) > _MAX_KEY_NUMBER:
                pairs = pc.unique(numbers)
                numbers, room = _index_of(numbers, pairs), len(pairs)
            self._columns.append(_KeyColumn(values, pairs))
            numbers = _combine_numbers(numbers, _index_of(column, values), len(values))
            room *= max(len(values), 1)
        return numbers

    def _lookup_numbers(self, columns: Sequence[pa.Array]) -> pa.Array:
        if not self._columns:
            return columns[0]
        numbers: pa.Array | None = None
        for indexed, column in zip(self._columns, columns, strict=True):
            if indexed.pairs is not None:
                numbers = _index_of(numbers, indexed.pairs)
            numbers = _combine_numbers(numbers, _index_of(column, indexed.values), len(indexed.values))
        return numbers


def _as_integers(column: pa.Array) -> Any:
    """Return integers, dates and timestamps as numpy integers; None for other types and columns with NULL."""
    data_type = column.type
    if column.null_count or not (pt.is_integer(data_type) or pt.is_date32(data_type) or pt.is_timestamp(data_type)):
        return None
    return column.view(
        pa.int32() if pt.is_date32(data_type) else data_type if pt.is_integer(data_type) else pa.int64()
    ).to_numpy()


def _is_sorted(rows: Any) -> bool:
    return rows is not None and len(rows) > 0 and bool((rows[1:] >= rows[:-1]).all())


def _has_repeats(ordered: Any) -> bool:
    return bool((ordered[1:] == ordered[:-1]).any())


def first_repeat(numbers: pa.Array) -> tuple[int, int] | None:
    """Return the number of repeated keys and the position of the first one; None if all keys differ."""
    if (integers := _as_integers(numbers)) is not None and not _has_repeats(np.sort(integers)):
        return None
    codes = numbers.dictionary_encode().indices.to_numpy()
    if not len(codes) or codes.max() + 1 == len(codes):
        return None
    # Codes are assigned in order of appearance, so a new key has a code above all before it.
    repeated = np.flatnonzero(codes[1:] <= np.maximum.accumulate(codes)[:-1]) + 1
    return len(repeated), int(repeated[0])


def best_per_key(numbers: pa.Array, order_by: Sequence[pa.Array]) -> pa.Array:
    """Return the positions of the best row per key, in their original order."""
    count = len(numbers)
    columns: dict[str, pa.Array] = {}
    for ranking in map(comparable, order_by):
        if pt.is_floating(ranking.type):  # Arrow sorts NaN with the NULLs; here NaN is above all numbers
            columns[str(len(columns))] = pc.fill_null(pc.is_nan(ranking), False).cast(pa.int8())
        columns[str(len(columns))] = ranking
    columns["position"] = pa.array(np.arange(count))
    sorting = [(name, "descending", "at_end") for name in columns]
    best_first = pc.sort_indices(pa.table(columns), sort_keys=sorting)
    codes = numbers.dictionary_encode().indices.take(best_first).to_numpy()
    _, firsts = np.unique(codes, return_index=True)
    return pa.array(np.sort(best_first.to_numpy()[firsts]))


def _index_of(column: pa.Array, values: pa.Array) -> pa.Array:
    return pc.index_in(column, value_set=values).cast(pa.int64())


def _combine_numbers(numbers: pa.Array | None, index: pa.Array, size: int) -> pa.Array:
    return index if numbers is None else pc.add(pc.multiply(numbers, size), index)
