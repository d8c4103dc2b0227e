"""Take some rows out of a table that may be larger than memory: nothing of the others is copied."""

import pyarrow as pa
import pyarrow.compute as pc

_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def takable(rows: pa.Table) -> pa.Table:
    """The rows, with columns from which Arrow can take: from views it cannot."""
    if not any(field.type in _VIEWS for field in rows.schema):
        return rows
    return rows.cast(pa.schema([field.with_type(_VIEWS.get(field.type, field.type)) for field in rows.schema]))


def taken(rows: pa.Table, places: pa.ChunkedArray) -> pa.Table:
    """The rows at places that ascend. Batch by batch: Arrow would first make one array of all of a column's."""
    batches = rows.to_batches()
    some = places.combine_chunks()
    start = first = 0
    pieces = []
    for batch in batches:
        last = pc.search_sorted(some, start + batch.num_rows).as_py()
        if last > first:
            pieces.append(batch.take(pc.subtract(some.slice(first, last - first), start)))
        start, first = start + batch.num_rows, last
    return pa.Table.from_batches(pieces, rows.schema)
