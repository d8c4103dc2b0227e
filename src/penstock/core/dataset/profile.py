"""Column profiles: NULL count, lowest and highest value, and histogram.

The first three come from the catalog's file statistics where these are exact; otherwise they are unknown. A histogram
reads the values. NaN counts neither as lowest nor as highest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.dataset.changes import NewFile
from penstock.core.dataset.column_stats import ColumnStats, StatValue, has_stats, is_exact
from penstock.core.dataset.histogram_edges import compute_edges, edge_type, to_scalar
from penstock.core.formatting import format_value
from penstock.errors import Invalid

MAX_BINS = 20
MAX_TOP_VALUES = 20
MAX_VALUE_LENGTH = 200  # characters of a reported text


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """Profile of a column. None means unknown; a column with only NULL has neither low nor high."""

    field: pa.Field
    nulls: int | None = None
    low: pa.Scalar | None = None
    high: pa.Scalar | None = None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Distribution of the values read: counts per bin, or the most frequent values."""

    column: str
    rows: int  # read
    sampled: bool  # whether there are rows that were not read
    nulls: int  # of the rows read, as are the fields below
    not_finite: int  # NaN and infinities, which are in no bin
    bins: pa.RecordBatch | None = None  # from, to, count; `to` is exclusive, except in the last bin
    top: pa.RecordBatch | None = None  # value, count, cut (whether the text is truncated)
    distinct: int | None = None  # number of distinct values, if there is `top`


@dataclass(frozen=True, slots=True)
class DatasetProfile:
    columns: tuple[ColumnProfile, ...]
    histogram: Histogram | None = None


def profile_from_stats(schema: pa.Schema, files: Sequence[NewFile]) -> tuple[ColumnProfile, ...]:
    """Compute column profiles from the statistics of all files."""
    return tuple(_column_from_stats(field, files) for field in schema)


def check_histogram_type(field: pa.Field) -> None:
    if pt.is_nested(field.type) or pt.is_binary(field.type):
        raise Invalid(
            "histogram_not_supported",
            {"name": field.name, "data_type": format_value(field.type)},
            column=field.name,
        )


def profile_column(field: pa.Field, values: pa.ChunkedArray) -> ColumnProfile:
    """Compute the profile of a column from all its values."""
    ends = pc.min_max(values.filter(pc.invert(pc.is_nan(values))) if pt.is_floating(field.type) else values)
    return ColumnProfile(
        field, values.null_count, *(ends[end] if _is_reportable(ends[end]) else None for end in ("min", "max"))
    )


def compute_histogram(field: pa.Field, values: pa.ChunkedArray, *, sampled: bool) -> Histogram:
    present = values.drop_null()
    if pt.is_string(field.type) or pt.is_boolean(field.type):
        top, distinct = _top_values(present)
        return Histogram(field.name, len(values), sampled, values.null_count, 0, top=top, distinct=distinct)
    finite = present.filter(pc.is_finite(present)) if pt.is_floating(field.type) else present
    not_finite = len(present) - len(finite)
    return Histogram(field.name, len(values), sampled, values.null_count, not_finite, bins=_count_bins(finite))


def _column_from_stats(field: pa.Field, files: Sequence[NewFile]) -> ColumnProfile:
    if not has_stats(field.type):
        return ColumnProfile(field)
    # A file without the column is older than the column: its rows have NULL.
    parts = [(file, file.stats.get(field.name, ColumnStats(None, None, file.rows))) for file in files]
    valued = [(file, part) for file, part in parts if part.nulls < file.rows]
    if any(part.low is None for _, part in valued):  # a file without statistics: its NULL count is unknown
        return ColumnProfile(field)
    nulls = [_live_nulls(file, part) for file, part in parts]
    return ColumnProfile(
        field,
        None if None in nulls else sum(count for count in nulls if count is not None),
        _exact_bound(field.type, [(part.low, file.deleted is None) for file, part in valued], min),
        _exact_bound(field.type, [(part.high, file.deleted is None) for file, part in valued], max),
    )


def _live_nulls(file: NewFile, stats: ColumnStats) -> int | None:
    """Return the number of NULLs in the rows that are not deleted; None if it is unknown."""
    if stats.nulls == file.rows:
        return file.live_rows
    return stats.nulls if file.deleted is None or not stats.nulls else None


def _exact_bound(
    data_type: pa.DataType, bounds: list[tuple[StatValue | None, bool]], outermost: Any
) -> pa.Scalar | None:
    """Return the outermost bound as a value of the column; None if it may be truncated, or of a deleted row.

    Args:
        bounds: bounds of files, each with a flag: whether the row with this value is certainly not deleted
    """
    values = [value for value, _ in bounds]
    bound = None if None in values else outermost(values, default=None)
    if bound is None or not is_exact(bound) or (bound, True) not in bounds:
        return None
    if pt.is_floating(data_type):
        bound = float(bound) + 0.0  # Parquet statistics contain -0.0 for either zero
    return to_scalar(bool(bound) if pt.is_boolean(data_type) else bound, data_type)


def _is_reportable(end: pa.Scalar) -> bool:
    return bool(end.is_valid and not (pt.is_string(end.type) and len(end.as_py()) > MAX_VALUE_LENGTH))


def _top_values(values: pa.ChunkedArray) -> tuple[pa.RecordBatch, int]:
    counted = values.value_counts()
    table = pa.table({"value": counted.field("values"), "count": counted.field("counts")})
    order = pc.sort_indices(table, sort_keys=[("count", "descending"), ("value", "ascending")])
    first = table.take(order[:MAX_TOP_VALUES])
    value, counts = first["value"].combine_chunks(), first["count"].combine_chunks()
    cut = pa.repeat(False, len(value))
    if pt.is_string(value.type):
        cut = pc.greater(pc.utf8_length(value), MAX_VALUE_LENGTH)
        value = pc.utf8_slice_codeunits(value, 0, MAX_VALUE_LENGTH)
    return pa.RecordBatch.from_arrays([value, counts, cut], ["value", "count", "cut"]), len(table)


def _count_bins(values: pa.ChunkedArray) -> pa.RecordBatch:
    data_type = edge_type(values.type)
    values = values.cast(data_type)
    ends = pc.min_max(values)
    edges = compute_edges(ends["min"], ends["max"], MAX_BINS) if len(values) else []
    below = [0, *(pc.sum(pc.less(values, mark)).as_py() for mark in edges[1:-1]), len(values)]
    counts = [after - before for before, after in pairwise(below)] if edges else []
    columns = [pa.array(side, data_type) for side in (edges[:-1], edges[1:])]
    return pa.RecordBatch.from_arrays([*columns, pa.array(counts, pa.int64())], ["from", "to", "count"])
