"""A result as columns: does it keep the promise? Rows are looked at one by one only to describe what is wrong.

The verdict is that of `check_rows` on the same rows as JSON, where dates and instants are text. Only what JSON has no
word for is told in Arrow's: a column of dates is no string, and a day after the year 9999 cannot be written at all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.result_schema.field import Field, FieldType, field_type, is_list
from penstock.core.result_schema.values import DATE, MOMENT, shown
from penstock.core.result_schema.report import MAX_DESCRIBED, Verdict, mismatched, missing, unexpected

Mask: TypeAlias = npt.NDArray[np.bool_]
Good: TypeAlias = Any  # True: all values are good; False: none; or a BooleanArray of which. Of nulls it says nothing

_PATTERNS = {FieldType.DATE: DATE, FieldType.DATETIME: MOMENT}  # of those that may come as text
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # from 0001-01-01 to 9999-12-31, seen from 1970-01-01
_TICKS = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}  # of a day


def check_batches(
    fields: Sequence[Field], schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, strict: bool = False
) -> Verdict:
    """Do all rows keep the promise? Columns that nobody promised are refused only if `strict`."""
    checker = Checker(fields, schema, strict=strict)
    for batch in batches:
        checker.add(batch)
    return checker.verdict


class Checker:
    """Takes a result batch by batch, keeps none of it, and knows the verdict on what it has seen."""

    def __init__(self, fields: Sequence[Field], schema: pa.Schema, *, strict: bool = False) -> None:
        self._columns: list[_Promised | _Extra] = [_Promised(field, _place(schema, field.name)) for field in fields]
        self._columns += [_Extra(place) for place in _extra(fields, schema) if strict]
        self._rows = 0
        self._count = 0
        self._told: list[dict[str, Any]] = []

    @property
    def verdict(self) -> Verdict:
        return Verdict(self._count, tuple(self._told))

    def add(self, batch: pa.RecordBatch) -> None:
        room = MAX_DESCRIBED - len(self._told)
        first = list[tuple[int, int]]()
        for place, column in enumerate(self._columns):
            if (wrong := column.wrong(batch)) is not None:
                self._count += int(np.count_nonzero(wrong))
                first += [(row, place) for row in (np.flatnonzero(wrong)[:room].tolist() if room else ())]
        for row, place in sorted(first)[:room]:
            self._told.append(self._columns[place].told(batch, row, self._rows + row))
        self._rows += batch.num_rows


def certain_mismatches(fields: Sequence[Field], schema: pa.Schema, *, strict: bool = False) -> list[dict[str, Any]]:
    """What no row of such columns can keep. A column that is good only while it is NULL is among it."""
    found = list[dict[str, Any]]()
    for field in fields:
        if (place := _place(schema, field.name)) is None:
            found += [] if field.optional else [missing(None, field)]
        elif not _may_fit(field, kind := schema.field(place).type):
            found.append(mismatched(None, field, _named(kind)))
    if strict:
        found += [
            unexpected(None, schema.field(at).name, _named(schema.field(at).type)) for at in _extra(fields, schema)
        ]
    return found


@dataclass(frozen=True, slots=True)
class _Promised:
    field: Field
    place: int | None  # of its column; None if there is none

    def wrong(self, batch: pa.RecordBatch) -> Mask | None:
        if self.place is None:
            return None if self.field.optional else np.ones(batch.num_rows, bool)
        return _wrong(self.field, batch.column(self.place))

    def told(self, batch: pa.RecordBatch, row: int, number: int) -> dict[str, Any]:
        if self.place is None:
            return missing(number, self.field)
        cell = batch.column(self.place).slice(row, 1)
        return mismatched(number, self.field, _mismatch(self.field, cell))


@dataclass(frozen=True, slots=True)
class _Extra:
    place: int

    def wrong(self, batch: pa.RecordBatch) -> Mask | None:
        return np.ones(batch.num_rows, bool)

    def told(self, batch: pa.RecordBatch, row: int, number: int) -> dict[str, Any]:
        return unexpected(number, batch.schema.field(self.place).name, _said(batch.column(self.place).slice(row, 1)))


def _place(schema: pa.Schema, name: str) -> int | None:
    return next(iter(schema.get_all_field_indices(name)), None)


def _extra(fields: Sequence[Field], schema: pa.Schema) -> list[int]:
    known = {field.name for field in fields}
    return [place for place, name in enumerate(schema.names) if name not in known]


def _wrong(field: Field, column: pa.Array) -> Mask | None:
    """Which cells are not what the field promises; None if all are."""
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    good = _good_arrays(field.type, column) if field.array else _good(field.type, column)
    if good is True:
        if field.optional or not column.null_count:
            return None
        good = column.is_valid()
    elif good is False:
        good = column.is_null() if field.optional else pa.repeat(False, len(column))
    else:
        good = good.fill_null(field.optional)
    return ~good.to_numpy(zero_copy_only=False) if good.false_count else None


def _good(kind: FieldType, column: pa.Array) -> Good:
    have = field_type(column.type)
    if have == (FieldType.STRING, False) and kind in _PATTERNS:
        return _good_texts(kind, column)
    if have != (kind, False):
        return False
    if pt.is_floating(column.type):
        return pc.is_finite(column)
    return _in_years(column) if kind in _PATTERNS else True


def _good_arrays(kind: FieldType, column: pa.Array) -> Good:
    if not is_list(column.type):
        return False
    if (wrong := _wrong(_item(kind), column.flatten())) is None:
        return True
    good = np.ones(len(column), bool)
    good[pc.list_parent_indices(column).to_numpy()[wrong]] = False
    return pa.array(good, mask=column.is_null().to_numpy(zero_copy_only=False))


def _good_texts(kind: FieldType, column: pa.Array) -> Good:
    if pt.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if kind is FieldType.DATE and _are_days(column):
        return True
    return pc.match_substring_regex(column, f"^(?:{_PATTERNS[kind]})$")


def _are_days(texts: pa.Array) -> bool:
    """Arrow reads a day ten times faster than it matches one, and reads nothing else of this length."""
    lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if not set(lengths.values()) <= {len("2026-01-31"), None}:
        return False
    try:
        return _in_years(texts.cast(pa.date32())) is True
    except pa.ArrowInvalid:
        return False


def _in_years(column: pa.Array) -> Good:
    """Days and instants that four digits can name the year of. DuckDB's infinite ones are none."""
    a_day = 1 if pt.is_date32(column.type) else _TICKS["ms" if pt.is_date64(column.type) else column.type.unit]
    ticks = column.view(pa.int32() if pt.is_date32(column.type) else pa.int64())
    least, greatest = _FIRST_DAY * a_day, (_LAST_DAY + 1) * a_day - 1
    seen = pc.min_max(ticks).as_py()
    if seen["min"] is None or (least <= seen["min"] and seen["max"] <= greatest):
        return True
    return pc.and_(pc.greater_equal(ticks, least), pc.less_equal(ticks, greatest))


def _mismatch(field: Field, cell: pa.Array) -> str:
    """What the one value of a column is, of which something is wrong."""
    if field.array and is_list(cell.type) and not cell.null_count:
        items = cell.flatten()
        wrong = _wrong(_item(field.type), items)
        assert wrong is not None
        return f"array with {_said(items.slice(int(np.argmax(wrong)), 1))}"
    return _said(cell)


def _item(kind: FieldType) -> Field:
    return Field("item", kind)  # an array holds no nulls


def _said(cell: pa.Array) -> str:
    """What the one value of a column is called."""
    if pt.is_dictionary(cell.type):
        cell = cell.dictionary_decode()
    if cell.null_count:
        return "null"
    if is_list(cell.type):
        return "array"
    if pt.is_floating(cell.type) and not pc.is_finite(cell)[0].as_py():
        return "non-finite number"
    out_of_range = (pt.is_date(cell.type) or pt.is_timestamp(cell.type)) and _in_years(cell) is not True
    return _named(cell.type) + " out of range" * out_of_range


def _named(kind: pa.DataType) -> str:
    """What a type is called: as a field's where it can fill one."""
    if (have := field_type(kind)) is not None:
        return f"{have[0]}[]" if have[1] else str(have[0])
    if is_list(kind):
        return "array"
    return "object" if pt.is_nested(kind) else shown(str(kind))


def _may_fit(field: Field, kind: pa.DataType) -> bool:
    if pt.is_null(kind):
        return field.optional
    if field.array and is_list(kind) and pt.is_null(kind.value_type):
        return True  # while it is empty
    have = field_type(kind)
    return have == (field.type, field.array) or (have == (FieldType.STRING, field.array) and field.type in _PATTERNS)
