"""What the values of a column are like: how many are NULL, the lowest and the highest, and how they are spread.

What the catalog knows of files tells the first three without opening one, where it is exact; otherwise they are not
known. How values are spread takes the values themselves. NaN is neither low nor high.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.dataset.histogram_edges import edge_type, edges, scalar
from penstock.core.dataset.changes import NewFile
from penstock.core.dataset.column_stats import Plain, Stats, has_stats, is_exact
from penstock.errors import Invalid

MOST_BINS = 20
MOST_TOP = 20
LONGEST = 200  # characters of a text that are told


@dataclass(frozen=True, slots=True)
class Column:
    """None: not known. Where there is nothing but NULL, there is neither low nor high."""

    field: pa.Field
    nulls: int | None = None
    low: pa.Scalar | None = None
    high: pa.Scalar | None = None


@dataclass(frozen=True, slots=True)
class Histogram:
    """How the values that were read are spread: over bins, or which are the most frequent."""

    column: str
    rows: int  # that were read
    sampled: bool  # are there rows that were not?
    nulls: int  # of those that were read, as is all that follows
    not_finite: int  # NaN and the infinities, which are in no bin
    bins: pa.RecordBatch | None = None  # from, to, count; `to` belongs to the next bin, but that of the last to it
    top: pa.RecordBatch | None = None  # value, count, cut: is it only the beginning of the text?
    distinct: int | None = None  # values, where there is a top


@dataclass(frozen=True, slots=True)
class Profile:
    columns: tuple[Column, ...]
    histogram: Histogram | None = None


def known(schema: pa.Schema, files: Sequence[NewFile]) -> tuple[Column, ...]:
    """The columns, by the statistics of all files."""
    return tuple(_known(field, files) for field in schema)


def check_spread(field: pa.Field) -> None:
    if pt.is_nested(field.type) or pt.is_binary(field.type):
        raise Invalid(
            "no_histogram",
            f"column {field.name!r} is {field.type}; numbers, dates, times, texts and booleans have a histogram",
            column=field.name,
        )


def column(field: pa.Field, values: pa.ChunkedArray) -> Column:
    """As `known`, by all the values."""
    found = pc.min_max(values.filter(pc.invert(pc.is_nan(values))) if pt.is_floating(field.type) else values)
    return Column(field, values.null_count, *(found[end] if _is_told(found[end]) else None for end in ("min", "max")))


def histogram(field: pa.Field, values: pa.ChunkedArray, *, sampled: bool) -> Histogram:
    there = values.drop_null()
    if pt.is_string(field.type) or pt.is_boolean(field.type):
        top, distinct = _top(there)
        return Histogram(field.name, len(values), sampled, values.null_count, 0, top=top, distinct=distinct)
    finite = there.filter(pc.is_finite(there)) if pt.is_floating(field.type) else there
    not_finite = len(there) - len(finite)
    return Histogram(field.name, len(values), sampled, values.null_count, not_finite, bins=_bins(finite))


def _known(field: pa.Field, files: Sequence[NewFile]) -> Column:
    if not has_stats(field.type):
        return Column(field)
    # A file that lacks the column is older than it: its rows have NULL there.
    parts = [(file.rows, file.stats.get(field.name, Stats(None, None, file.rows))) for file in files]
    valued = [part for rows, part in parts if part.nulls < rows]
    lows, highs = [part.low for part in valued], [part.high for part in valued]
    if None in lows:  # a file without statistics; nobody has counted its NULLs
        return Column(field)
    return Column(
        field, sum(part.nulls for _, part in parts), _end(field.type, lows, min), _end(field.type, highs, max)
    )


def _end(kept: pa.DataType, bounds: list[Plain | None], outermost: Any) -> pa.Scalar | None:
    """The outermost bound as a value of the column; None where it may be less tight than the value is."""
    bound = None if None in bounds else outermost(bounds, default=None)
    if bound is None or not is_exact(bound):
        return None
    if pt.is_floating(kept):
        bound = float(bound) + 0.0  # files say −0.0 for either zero
    return scalar(bool(bound) if pt.is_boolean(kept) else bound, kept)


def _is_told(end: pa.Scalar) -> bool:
    return bool(end.is_valid and not (pt.is_string(end.type) and len(end.as_py()) > LONGEST))


def _top(there: pa.ChunkedArray) -> tuple[pa.RecordBatch, int]:
    counted = there.value_counts()
    table = pa.table({"value": counted.field("values"), "count": counted.field("counts")})
    order = pc.sort_indices(table, sort_keys=[("count", "descending"), ("value", "ascending")])
    first = table.take(order[:MOST_TOP])
    value, counts = first["value"].combine_chunks(), first["count"].combine_chunks()
    cut = pa.repeat(False, len(value))
    if pt.is_string(value.type):
        cut = pc.greater(pc.utf8_length(value), LONGEST)
        value = pc.utf8_slice_codeunits(value, 0, LONGEST)
    return pa.RecordBatch.from_arrays([value, counts, cut], ["value", "count", "cut"]), len(table)


def _bins(values: pa.ChunkedArray) -> pa.RecordBatch:
    kept = edge_type(values.type)
    values = values.cast(kept)
    ends = pc.min_max(values)
    marks = edges(ends["min"], ends["max"], MOST_BINS) if len(values) else []
    below = [0, *(pc.sum(pc.less(values, mark)).as_py() for mark in marks[1:-1]), len(values)]
    counts = [after - before for before, after in pairwise(below)] if marks else []
    columns = [pa.array(side, kept) for side in (marks[:-1], marks[1:])]
    return pa.RecordBatch.from_arrays([*columns, pa.array(counts, pa.int64())], ["from", "to", "count"])
