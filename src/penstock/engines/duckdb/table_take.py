"""Take some rows out of a table that may be larger than memory: nothing of the others is copied."""

from typing import Any

import numpy as np
import pyarrow as pa

_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def takable(rows: pa.Table) -> pa.Table:
    """The rows, with columns from which Arrow can take: from views it cannot."""
    if not any(field.type in _VIEWS for field in rows.schema):
        return rows
    return rows.cast(pa.schema([field.with_type(_VIEWS.get(field.type, field.type)) for field in rows.schema]))


def taken(rows: pa.Table, places: Any) -> pa.Table:
    """The rows at places that ascend. Batch by batch: Arrow would first make one array of all of a column's."""
    start = first = 0
    pieces = []
    for batch in rows.to_batches():
        last = int(np.searchsorted(places, start + batch.num_rows))
        if last > first:
            pieces.append(batch.take(pa.array(places[first:last] - start)))
        start, first = start + batch.num_rows, last
    return pa.Table.from_batches(pieces, rows.schema)
