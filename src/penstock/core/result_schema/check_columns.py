"""Validate a columnar result against a result schema. Single rows are read only to describe errors.

The result equals that of `check_rows` on the same rows as JSON, in which dates and instants are text. Only values that
JSON cannot represent are described in Arrow's terms: a date column is not a string, and a day after the year 9999 cannot
be written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.payload.object_reader import escape_text
from penstock.core.result_schema.field import FieldType, ResultField, field_type, is_list
from penstock.core.result_schema.report import (
    MAX_DESCRIBED,
    ValidationReport,
    missing_field,
    type_mismatch,
    unexpected_field,
)
from penstock.core.result_schema.values import DATE, DATETIME

Mask: TypeAlias = npt.NDArray[np.bool_]
Validity: TypeAlias = Any  # True: all values are valid; False: none; or a BooleanArray. Undefined for NULLs

_PATTERNS = {FieldType.DATE: DATE, FieldType.DATETIME: DATETIME}  # of the types that may arrive as text
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # days from 0001-01-01 to 9999-12-31, relative to 1970-01-01
_TICKS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}  # per day


def check_batches(
    fields: Sequence[ResultField], schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, strict: bool = False
) -> ValidationReport:
    """Validate all rows. Undeclared columns are errors only if `strict`."""
    checker = ColumnChecker(fields, schema, strict=strict)
    for batch in batches:
        checker.add(batch)
    return checker.report


class ColumnChecker:
    """Validate a result batch by batch, without keeping the batches."""

    def __init__(self, fields: Sequence[ResultField], schema: pa.Schema, *, strict: bool = False) -> None:
        self._columns: list[_DeclaredColumn | _ExtraColumn] = [
            _DeclaredColumn(field, _column_index(schema, field.name)) for field in fields
        ]
        self._columns += [_ExtraColumn(index) for index in _extra_columns(fields, schema) if strict]
        self._rows = 0
        self._count = 0
        self._described: list[dict[str, Any]] = []

    @property
    def report(self) -> ValidationReport:
        return ValidationReport(self._count, tuple(self._described))

    def add(self, batch: pa.RecordBatch) -> None:
        remaining = MAX_DESCRIBED - len(self._described)
        first = list[tuple[int, int]]()
        for index, column in enumerate(self._columns):
            if (invalid := column.invalid_rows(batch)) is not None:
                self._count += int(np.count_nonzero(invalid))
                first += [(row, index) for row in (np.flatnonzero(invalid)[:remaining].tolist() if remaining else ())]
        for row, index in sorted(first)[:remaining]:
            self._described.append(self._columns[index].describe(batch, row, self._rows + row))
        self._rows += batch.num_rows


def schema_mismatches(
    fields: Sequence[ResultField], schema: pa.Schema, *, strict: bool = False
) -> list[dict[str, Any]]:
    """Return the mismatches that follow from the columns alone.

    A column that is valid only while it is NULL counts as a mismatch.
    """
    mismatches = list[dict[str, Any]]()
    for field in fields:
        if (index := _column_index(schema, field.name)) is None:
            mismatches += [] if field.optional else [missing_field(None, field)]
        elif not _may_fit(field, data_type := schema.field(index).type):
            mismatches.append(type_mismatch(None, field, _type_name(data_type)))
    if strict:
        mismatches += [
            unexpected_field(None, schema.field(index).name, _type_name(schema.field(index).type))
            for index in _extra_columns(fields, schema)
        ]
    return mismatches


@dataclass(frozen=True, slots=True)
class _DeclaredColumn:
    field: ResultField
    index: int | None  # index of its column; None if it is absent

    def invalid_rows(self, batch: pa.RecordBatch) -> Mask | None:
        if self.index is None:
            return None if self.field.optional else np.ones(batch.num_rows, bool)
        return _invalid_mask(self.field, batch.column(self.index))

    def describe(self, batch: pa.RecordBatch, row: int, number: int) -> dict[str, Any]:
        if self.index is None:
            return missing_field(number, self.field)
        cell = batch.column(self.index).slice(row, 1)
        return type_mismatch(number, self.field, _describe_mismatch(self.field, cell))


@dataclass(frozen=True, slots=True)
class _ExtraColumn:
    index: int

    def invalid_rows(self, batch: pa.RecordBatch) -> Mask | None:
        return np.ones(batch.num_rows, bool)

    def describe(self, batch: pa.RecordBatch, row: int, number: int) -> dict[str, Any]:
        return unexpected_field(
            number, batch.schema.field(self.index).name, _cell_type(batch.column(self.index).slice(row, 1))
        )


def _column_index(schema: pa.Schema, name: str) -> int | None:
    return next(iter(schema.get_all_field_indices(name)), None)


def _extra_columns(fields: Sequence[ResultField], schema: pa.Schema) -> list[int]:
    declared = {field.name for field in fields}
    return [index for index, name in enumerate(schema.names) if name not in declared]


def _invalid_mask(field: ResultField, column: pa.Array) -> Mask | None:
    """Return a mask of the invalid cells; None if all are valid."""
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    validity = _array_validity(field.type, column) if field.array else _validity(field.type, column)
    if validity is True:
        if field.optional or not column.null_count:
            return None
        validity = column.is_valid()
    elif validity is False:
        validity = column.is_null() if field.optional else pa.repeat(False, len(column))
    else:
        validity = validity.fill_null(field.optional)
    return ~validity.to_numpy(zero_copy_only=False) if validity.false_count else None


def _validity(expected_type: FieldType, column: pa.Array) -> Validity:
    actual = field_type(column.type)
    if actual == (FieldType.STRING, False) and expected_type in _PATTERNS:
        return _text_validity(expected_type, column)
    if actual != (expected_type, False):
        return False
    if pt.is_floating(column.type):
        return pc.is_finite(column)
    return _year_validity(column) if expected_type in _PATTERNS else True


def _array_validity(expected_type: FieldType, column: pa.Array) -> Validity:
    if not is_list(column.type):
        return False
    if (invalid := _invalid_mask(_item_field(expected_type), column.flatten())) is None:
        return True
    validity = np.ones(len(column), bool)
    validity[pc.list_parent_indices(column).to_numpy()[invalid]] = False
    return pa.array(validity, mask=column.is_null().to_numpy(zero_copy_only=False))


def _text_validity(expected_type: FieldType, column: pa.Array) -> Validity:
    if pt.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if expected_type is FieldType.DATE and _are_dates(column):
        return True
    return pc.match_substring_regex(column, f"^(?:{_PATTERNS[expected_type]})$")


def _are_dates(texts: pa.Array) -> bool:
    """Check whether all texts are dates. Arrow parses dates ten times faster than it matches a pattern."""
    lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if not set(lengths.values()) <= {len("2026-01-31"), None}:
        return False
    try:
        return _year_validity(texts.cast(pa.date32())) is True
    except pa.ArrowInvalid:
        return False


def _year_validity(column: pa.Array) -> Validity:
    """Check for years 1 to 9999. DuckDB's infinite values are outside."""
    ticks_per_day = (
        1 if pt.is_date32(column.type) else _TICKS_PER_DAY["ms" if pt.is_date64(column.type) else column.type.unit]
    )
    ticks = column.view(pa.int32() if pt.is_date32(column.type) else pa.int64())
    first, last = _FIRST_DAY * ticks_per_day, (_LAST_DAY + 1) * ticks_per_day - 1
    ends = pc.min_max(ticks).as_py()
    if ends["min"] is None or (first <= ends["min"] and ends["max"] <= last):
        return True
    return pc.and_(pc.greater_equal(ticks, first), pc.less_equal(ticks, last))


def _describe_mismatch(field: ResultField, cell: pa.Array) -> str:
    """Describe the mismatch of a single cell."""
    if field.array and is_list(cell.type) and not cell.null_count:
        items = cell.flatten()
        invalid = _invalid_mask(_item_field(field.type), items)
        assert invalid is not None
        return f"array with {_cell_type(items.slice(int(np.argmax(invalid)), 1))}"
    return _cell_type(cell)


def _item_field(expected_type: FieldType) -> ResultField:
    return ResultField("item", expected_type)  # items of an array are never null


def _cell_type(cell: pa.Array) -> str:
    """Return the type name of a single cell."""
    if pt.is_dictionary(cell.type):
        cell = cell.dictionary_decode()
    if cell.null_count:
        return "null"
    if is_list(cell.type):
        return "array"
    if pt.is_floating(cell.type) and not pc.is_finite(cell)[0].as_py():
        return "non-finite number"
    out_of_range = (pt.is_date(cell.type) or pt.is_timestamp(cell.type)) and _year_validity(cell) is not True
    return _type_name(cell.type) + " out of range" * out_of_range


def _type_name(data_type: pa.DataType) -> str:
    """Return the name of an Arrow type: the field type if it has one."""
    if (declared := field_type(data_type)) is not None:
        return f"{declared[0]}[]" if declared[1] else str(declared[0])
    if is_list(data_type):
        return "array"
    return "object" if pt.is_nested(data_type) else escape_text(str(data_type))


def _may_fit(field: ResultField, data_type: pa.DataType) -> bool:
    if pt.is_null(data_type):
        return field.optional
    if field.array and is_list(data_type) and pt.is_null(data_type.value_type):
        return True  # as long as it is empty
    actual = field_type(data_type)
    return actual == (field.type, field.array) or (
        actual == (FieldType.STRING, field.array) and field.type in _PATTERNS
    )
