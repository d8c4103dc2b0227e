"""Take rows from a memory-mapped table without copying the others, in a form that DuckDB can scan."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def without_views(rows: pa.Table) -> pa.Table:
    """Cast string and binary views to large types, because Arrow cannot take rows from views."""
    if not any(field.type in _VIEWS for field in rows.schema):
        return rows
    return rows.cast(pa.schema([field.with_type(_VIEWS.get(field.type, field.type)) for field in rows.schema]))


def without_nested_offsets(rows: pa.Table) -> pa.Table:
    """Copy nested columns that begin at an offset, because DuckDB cannot scan a struct inside such a column."""
    columns = [
        pa.chunked_array([_without_offset(chunk) for chunk in column.chunks], column.type)
        if pt.is_nested(column.type)
        else column
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _without_offset(chunk: pa.Array) -> pa.Array:
    return chunk.take(pa.array(np.arange(len(chunk)))) if _has_offset(chunk) else chunk


def _has_offset(array: pa.Array) -> bool:
    if array.offset:
        return True
    if pt.is_struct(array.type):
        return any(_has_offset(array.field(i)) for i in range(array.type.num_fields))
    return pt.is_nested(array.type) and _has_offset(array.values)


def take_rows(rows: pa.Table, indices: Any) -> pa.Table:
    """Take rows at ascending indices, batch by batch; `Table.take` would first concatenate every column."""
    start = first = 0
    parts = []
    for batch in rows.to_batches():
        last = int(np.searchsorted(indices, start + batch.num_rows))
        if last > first:
            parts.append(batch.take(pa.array(indices[first:last] - start)))
        start, first = start + batch.num_rows, last
    return pa.Table.from_batches(parts, rows.schema)
