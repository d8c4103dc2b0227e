"""Split rows into Parquet row groups, and choose the columns to dictionary-encode."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

MAX_GROUP_BYTES = 64 << 20  # a row group is held in memory as a whole
_MAX_PARTS = 256  # a batch of one row takes a hundred times its bytes, so small batches are combined
_SAMPLE_ROWS = 4096
_MIN_DISTINCT_RATIO = 0.98  # ratio of distinct values from which a column is treated as distinct


def split_row_groups(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, max_rows: int, max_bytes: int = MAX_GROUP_BYTES
) -> Iterator[pa.Table]:
    buffer = RowGroupBuffer(schema, max_rows, max_bytes)
    for batch in batches:
        yield from buffer.add(batch)
    if last := buffer.flush():
        yield last


class RowGroupBuffer:
    """Buffer of record batches until they form a row group."""

    def __init__(self, schema: pa.Schema, max_rows: int, max_bytes: int = MAX_GROUP_BYTES) -> None:
        self._schema, self._max_rows, self._max_bytes = schema, max_rows, max_bytes
        self._reset()

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Add a batch and yield the groups that are complete."""
        while batch.num_rows:
            take = min(batch.num_rows, self._max_rows - self._rows)
            part, batch = batch.slice(0, take), batch.slice(take)
            self._parts.append(part)
            self._rows += take
            self._bytes += part.nbytes
            if self._rows >= self._max_rows or self._bytes >= self._max_bytes:
                yield self._take_group()
            elif len(self._parts) - self._combined >= _MAX_PARTS:
                self._parts[self._combined :] = [pa.concat_batches(self._parts[self._combined :])]
                self._combined += 1

    def flush(self) -> pa.Table | None:
        """Return the remaining rows as a group; None if there are none."""
        return self._take_group() if self._parts else None

    def _take_group(self) -> pa.Table:
        group = pa.Table.from_batches(self._parts, self._schema)
        self._reset()
        return group

    def _reset(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._combined = self._rows = self._bytes = 0


def dictionary_columns(group: pa.Table) -> list[str]:
    """Return the Parquet columns that dictionary encoding may make smaller.

    For values that rarely repeat, writers build a dictionary, find it too large and start over, which doubles the time of
    such a column. A sample of adjacent rows and one of distant rows detect such columns.
    """
    return [
        path
        for field in group.schema
        if pt.is_nested(field.type) or pt.is_dictionary(field.type) or not _is_mostly_distinct(group[field.name])
        for path in _leaf_paths(field)
    ]


def _is_mostly_distinct(column: pa.ChunkedArray) -> bool:
    spread = np.arange(_SAMPLE_ROWS) * max(len(column) // _SAMPLE_ROWS, 1)
    return len(column) >= _SAMPLE_ROWS and all(
        len(sample) - sample.null_count > _SAMPLE_ROWS // 2
        and pc.count_distinct(sample).as_py() >= _MIN_DISTINCT_RATIO * (len(sample) - sample.null_count)
        for sample in (column.slice(0, _SAMPLE_ROWS), column.take(pa.array(spread)))
    )


def _leaf_paths(field: pa.Field, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the Parquet columns of an Arrow field."""
    data_type, path = field.type, prefix + field.name
    if pt.is_struct(data_type):
        for child in data_type:
            yield from _leaf_paths(child, f"{path}.")
    elif pt.is_map(data_type):
        yield from _leaf_paths(data_type.key_field.with_name("key"), f"{path}.key_value.")
        yield from _leaf_paths(data_type.item_field.with_name("value"), f"{path}.key_value.")
    elif pt.is_nested(data_type):
        yield from _leaf_paths(data_type.value_field.with_name("element"), f"{path}.list.")
    else:
        yield path
