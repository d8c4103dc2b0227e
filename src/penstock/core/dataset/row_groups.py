"""The same rows in pieces of the size of a Parquet row group, and how to encode such a piece."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

GROUP_BYTES = 64 << 20  # a row group is held in memory as a whole, so it ends here at the latest
_PARTS = 256  # a batch of a single row takes a hundred times its bytes, so that many are made one
_SAMPLE = 4096  # rows
_DIFFERENT = 0.98  # the part of a sample that differs where a column's values hardly ever repeat


def groups(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int, size: int = GROUP_BYTES
) -> Iterator[pa.Table]:
    gathered = Gathered(schema, rows, size)
    for batch in batches:
        yield from gathered.add(batch)
    if rest := gathered.rest():
        yield rest


class Gathered:
    """Batches that come one by one, until they make up a group."""

    def __init__(self, schema: pa.Schema, rows: int, size: int = GROUP_BYTES) -> None:
        self._schema, self._most_rows, self._most_bytes = schema, rows, size
        self._begin()

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """The groups that are complete by now."""
        while batch.num_rows:
            take = min(batch.num_rows, self._most_rows - self._rows)
            part, batch = batch.slice(0, take), batch.slice(take)
            self._parts.append(part)
            self._rows += take
            self._bytes += part.nbytes
            if self._rows >= self._most_rows or self._bytes >= self._most_bytes:
                yield self._group()
            elif len(self._parts) - self._packed >= _PARTS:
                self._parts[self._packed :] = [pa.concat_batches(self._parts[self._packed :])]
                self._packed += 1

    def rest(self) -> pa.Table | None:
        """What is left when no more batches come."""
        return self._group() if self._parts else None

    def _group(self) -> pa.Table:
        group = pa.Table.from_batches(self._parts, self._schema)
        self._begin()
        return group

    def _begin(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._packed = self._rows = self._bytes = 0


def repeating(piece: pa.Table) -> list[str]:
    """The Parquet columns that a dictionary may make smaller.

    Where values hardly ever repeat, writers build one, find it too large, and start over without it: half of the time
    that such a column takes. So we look at rows that lie together and at rows that lie apart first.
    """
    return [
        path
        for field in piece.schema
        if pt.is_nested(field.type) or pt.is_dictionary(field.type) or not _differs(piece[field.name])
        for path in _leaves(field)
    ]


def _differs(column: pa.ChunkedArray) -> bool:
    apart = np.arange(_SAMPLE) * max(len(column) // _SAMPLE, 1)
    return len(column) >= _SAMPLE and all(
        len(some) - some.null_count > _SAMPLE // 2
        and pc.count_distinct(some).as_py() >= _DIFFERENT * (len(some) - some.null_count)
        for some in (column.slice(0, _SAMPLE), column.take(pa.array(apart)))
    )


def _leaves(field: pa.Field, above: str = "") -> Iterator[str]:
    """The columns that Parquet makes of one of Arrow's."""
    kind, path = field.type, above + field.name
    if pt.is_struct(kind):
        for each in kind:
            yield from _leaves(each, f"{path}.")
    elif pt.is_map(kind):
        yield from _leaves(kind.key_field.with_name("key"), f"{path}.key_value.")
        yield from _leaves(kind.item_field.with_name("value"), f"{path}.key_value.")
    elif pt.is_nested(kind):
        yield from _leaves(kind.value_field.with_name("element"), f"{path}.list.")
    else:
        yield path
