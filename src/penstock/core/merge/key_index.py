"""Find rows by their key: a key of several columns becomes one number, and values are looked up by hash."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_NAN = pa.scalar(float("nan"))
_ROOM = 2**62  # numbers of composite keys stay below


def comparable(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A key column in a form in which equal keys are equal values: one NaN, one zero, types that can be looked up."""
    whole = column if isinstance(column, pa.Array) else _whole(column)
    kind = whole.type
    if pt.is_dictionary(kind):
        return comparable(whole.dictionary_decode())
    if pt.is_floating(kind):
        number = whole.cast(pa.float64()) if kind != pa.float64() else whole
        return pc.if_else(pc.is_nan(number), _NAN, pc.add(number, 0.0))
    if pt.is_string_view(kind) or pt.is_binary_view(kind):
        return whole.cast(pa.large_string() if pt.is_string_view(kind) else pa.large_binary())
    if pt.is_decimal(kind) and kind.bit_width < 128:
        return whole.cast(pa.decimal128(kind.precision, kind.scale))
    return whole


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@dataclass(frozen=True, slots=True)
class _Column:
    values: pa.Array  # the different values of a key column
    pairs: pa.Array | None = None  # the different numbers so far, where they had to be packed


class Keys:
    """A list of keys, each a row of comparable columns."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._columns: list[_Column] = []
        self.numbers = columns[0]
        self._order: Any = None
        if len(columns) > 1:
            self.numbers = self._numbered(columns)
        elif (counts := _counts(columns[0])) is not None:
            self._order = np.argsort(counts)
            self._sorted = counts[self._order]

    def meet(self, columns: Sequence[pa.Array]) -> tuple[Any, Any]:
        """Which rows have a key of the list, in their order, and the places of those keys in the list."""
        if self._order is not None and _is_sorted(rows := _counts(columns[0])):
            # Rows that lie in order are asked for the keys, and not the keys for the rows: there are fewer.
            first, last = np.searchsorted(rows, self._sorted, "left"), np.searchsorted(rows, self._sorted, "right")
            hit = np.flatnonzero(last - first)
            times = (last - first)[hit]
            start = np.repeat(first[hit] - np.concatenate(([0], np.cumsum(times)[:-1])), times)
            return start + np.arange(len(start)), np.repeat(self._order[hit], times)
        places = pc.index_in(self._number(columns), value_set=self.numbers)
        return np.flatnonzero(places.is_valid()), places.drop_null().to_numpy()

    def _numbered(self, columns: Sequence[pa.Array]) -> pa.Array:
        numbers: pa.Array | None = None
        room = 1
        for column in columns:
            values = pc.unique(column)
            pairs = None
            if room * max(len(values), 1) > _ROOM:
                pairs = pc.unique(numbers)
                numbers, room = _place(numbers, pairs), len(pairs)
            self._columns.append(_Column(values, pairs))
            numbers = _joined(numbers, _place(column, values), len(values))
            room *= max(len(values), 1)
        return numbers

    def _number(self, columns: Sequence[pa.Array]) -> pa.Array:
        if not self._columns:
            return columns[0]
        numbers: pa.Array | None = None
        for known, column in zip(self._columns, columns, strict=True):
            if known.pairs is not None:
                numbers = _place(numbers, known.pairs)
            numbers = _joined(numbers, _place(column, known.values), len(known.values))
        return numbers


def _counts(column: pa.Array) -> Any:
    """Whole numbers, dates and times as numpy has them; None for others, and where a value is missing."""
    kind = column.type
    if column.null_count or not (pt.is_integer(kind) or pt.is_date32(kind) or pt.is_timestamp(kind)):
        return None
    return column.view(pa.int32() if pt.is_date32(kind) else kind if pt.is_integer(kind) else pa.int64()).to_numpy()


def _is_sorted(rows: Any) -> bool:
    return rows is not None and len(rows) > 0 and bool((rows[1:] >= rows[:-1]).all())


def _repeats(ordered: Any) -> bool:
    return bool((ordered[1:] == ordered[:-1]).any())


def first_repeat(numbers: pa.Array) -> tuple[int, int] | None:
    """How many keys stood before, and the place of the first that did; None if all differ."""
    if (counts := _counts(numbers)) is not None and not _repeats(np.sort(counts)):
        return None
    codes = numbers.dictionary_encode().indices.to_numpy()
    if not len(codes) or codes.max() + 1 == len(codes):
        return None
    # Codes are given in the order of appearance, so a new key has a code above all before it.
    repeated = np.flatnonzero(codes[1:] <= np.maximum.accumulate(codes)[:-1]) + 1
    return len(repeated), int(repeated[0])


def highest(numbers: pa.Array, order_by: Sequence[pa.Array]) -> pa.Array:
    """The places of the rows that stay when each key may stand once, in the order in which they came."""
    count = len(numbers)
    columns: dict[str, pa.Array] = {}
    for each in map(comparable, order_by):
        if pt.is_floating(each.type):  # Arrow sorts NaN to the NULLs; here it is above all numbers
            columns[str(len(columns))] = pc.fill_null(pc.is_nan(each), False).cast(pa.int8())
        columns[str(len(columns))] = each
    columns["place"] = pa.array(np.arange(count))
    sorting = [(name, "descending", "at_end") for name in columns]
    best_first = pc.sort_indices(pa.table(columns), sort_keys=sorting)
    codes = numbers.dictionary_encode().indices.take(best_first).to_numpy()
    _, firsts = np.unique(codes, return_index=True)
    return pa.array(np.sort(best_first.to_numpy()[firsts]))


def _place(column: pa.Array, values: pa.Array) -> pa.Array:
    return pc.index_in(column, value_set=values).cast(pa.int64())


def _joined(numbers: pa.Array | None, place: pa.Array, size: int) -> pa.Array:
    return place if numbers is None else pc.add(pc.multiply(numbers, size), place)
