"""Read the rows of a snapshot from its data files as a stream."""

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.core.dataset.changes import DataFile
from penstock.core.dataset.deletion_vector import DeletionVector, remaining
from penstock.core.names import ROW_ID_COLUMN, STORED_ROW_ID_COLUMN
from penstock.core.schema.compatibility import cast_batch
from penstock.storage.data_file_reader import (
    COLUMN_BUFFERS_BYTES,
    MAX_BATCH_BYTES,
    RowGroupFilter,
    open_parquet,
    read_positions,
    translate_errors,
)
from penstock.storage.file_store import FileStore
from penstock.storage.read_ahead import read_ahead as read_batches_ahead

T = TypeVar("T")

BATCH_ROWS = 128 << 10
_SAMPLE_BATCH_ROWS = 32 << 10  # rows per read of a sample

# Memory of one scan. `tests/storage/test_scan_memory.py` measures both.
_READ_AHEAD_BYTES = 32 << 20  # of decoded batches that wait for the consumer
SCAN_BUFFER_BYTES = COLUMN_BUFFERS_BYTES
SCAN_BYTES = 6 * MAX_BATCH_BYTES  # encoded pages, a batch as it is decoded, cast and filtered, and free blocks
READ_AHEAD_SCAN_BYTES = SCAN_BYTES + _READ_AHEAD_BYTES + MAX_BATCH_BYTES  # the last batch may exceed the limit

_MASK = pa.field("\x1fremains", pa.bool_())  # names of columns are printable, so no column has this one
ROW_ID_FIELD = pa.field(ROW_ID_COLUMN, pa.int64(), nullable=False)


def scan(
    store: FileStore,
    files: Sequence[DataFile],
    schema: pa.Schema,
    *,
    where: pc.Expression | None = None,
    row_ids: bool = False,
    batch_rows: int = BATCH_ROWS,
    columns: Sequence[str] | None = None,
    filter_columns: Collection[str] = (),
    read_ahead: bool = True,
) -> pa.RecordBatchReader:
    """Read rows in the order of the files. Missing columns are NULL; columns whose type was widened since are cast.

    Args:
        columns: the columns to return; all unless given
        filter_columns: the columns that `where` reads in addition; the row ids may be one of them
        row_ids: append the column of row ids
        read_ahead: read before rows are requested, and hold up to READ_AHEAD_SCAN_BYTES, else SCAN_BYTES; not for
            streams that many slow clients keep open
    """
    output_schema = pa.schema([schema.field(name) for name in columns]) if columns is not None else schema
    needed = pa.schema([field for field in schema if field.name in {*output_schema.names, *filter_columns}])
    filters_ids = ROW_ID_COLUMN in filter_columns
    output_schema = output_schema.append(ROW_ID_FIELD) if row_ids else output_schema
    reader = _FileReader(store, needed, where, batch_rows, row_ids or filters_ids, can_prune=not filters_ids)
    batches = _read_files(reader, files)
    return pa.RecordBatchReader.from_batches(
        output_schema,
        _finish(read_batches_ahead(batches, _READ_AHEAD_BYTES) if read_ahead else batches, output_schema),
    )


def scan_with_row_ids(
    store: FileStore, files: Sequence[DataFile], schema: pa.Schema, *, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Read the rows of files with their ids in the stored row id column, to rewrite the files."""
    stored_schema = schema.append(pa.field(STORED_ROW_ID_COLUMN, pa.int64(), nullable=False))
    for batch in _read_files(_FileReader(store, schema, None, batch_rows, row_ids=True), files):
        yield pa.RecordBatch.from_arrays(_remove_deleted(batch).columns, schema=stored_schema)


def _read_files(reader: "_FileReader", files: Sequence[DataFile]) -> Generator[pa.RecordBatch]:
    with closing(reader.store.stream_local(files)) as local_files:
        for file in local_files:
            yield from reader.read(file)


def _finish(batches: Iterator[pa.RecordBatch], output_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Remove deleted rows in the thread of the consumer, while the next batch is decoded in another."""
    for batch in batches:
        rows = _remove_deleted(batch)
        if rows.num_rows:
            columns = [rows.column(name) for name in output_schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=output_schema)


def _remove_deleted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Apply the mask in the last column, if the batch has one."""
    if batch.schema.names[-1:] != [_MASK.name]:
        return batch
    mask = batch.column(batch.num_columns - 1)
    return batch.select(batch.schema.names[:-1]).filter(mask)


class _FileReader:
    """Reads the matching rows of data files, one batch whenever it is requested."""

    def __init__(
        self,
        store: FileStore,
        schema: pa.Schema,
        where: pc.Expression | None,
        batch_rows: int,
        row_ids: bool,
        *,
        can_prune: bool = True,
    ) -> None:
        self.store, self._where, self._batch_rows, self._row_ids = store, where, batch_rows, row_ids
        # Columns are nullable here: an old file may lack a column that is required now.
        self._schema = pa.schema([field.with_nullable(True) for field in schema])
        # Files do not store all row ids, so no row group is skipped by them.
        self._prune = RowGroupFilter(where, schema) if where is not None and can_prune else None

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows of a file in order.

        Without a filter, a batch with deleted rows has a last column: the mask of the rows that remain.
        """
        stores_ids = file.first_row_id is None
        columns = [*self._schema.names, STORED_ROW_ID_COLUMN] if self._row_ids and stores_ids else self._schema.names
        with translate_errors():
            for first_position, stored in read_positions(self.store, file, columns, self._batch_rows, self._prune):
                # Row ids and positions count all rows of the file, so the filter comes last.
                rows = self._to_schema(file, first_position, stored)
                if self._where is not None:
                    matching = remaining(rows, first_position, file.deleted).filter(self._where)
                else:
                    mask = file.deleted.mask(first_position, rows.num_rows) if file.deleted else None
                    matching = rows if mask is None else rows.append_column(_MASK, mask)
                del stored, rows  # nothing but the result stays in memory while the consumer has it
                if matching.num_rows:
                    yield matching

    def _to_schema(self, file: DataFile, first_position: int, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Cast stored rows to the schema, and append their ids if they are needed."""
        rows = cast_batch(stored, self._schema)
        if not self._row_ids:
            return rows
        if file.first_row_id is None:
            ids = stored.column(STORED_ROW_ID_COLUMN)
        else:
            first_id = file.first_row_id + first_position
            ids = pa.arange(first_id, first_id + stored.num_rows)
        return pa.RecordBatch.from_arrays([*rows.columns, ids], schema=self._schema.append(ROW_ID_FIELD))


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """Limits of a sample."""

    rows: int = 1_000_000
    bytes: int = 64 << 20  # size of the values in memory
    files: int = 128
    groups: int = 256  # used if there are more rows than `rows`


def sample(store: FileStore, files: Sequence[DataFile], field: pa.Field, limits: SampleLimits) -> pa.ChunkedArray:
    """Return the values of one column: all of them, or the first values of row groups spread over all files."""
    sampled_files, values, rows, size, rows_before = _spread_evenly(files, limits.files), list[pa.Array](), 0, 0, 0
    total = sum(file.live_rows for file in sampled_files)
    reads_all = total <= limits.rows
    with closing(store.stream_local(sampled_files)) as local_files:
        for file in local_files:
            with translate_errors(), open_parquet(store, file, columns=1) as parquet:
                groups = range(parquet.metadata.num_row_groups)
                starts = [0, *accumulate(parquet.metadata.row_group(group).num_rows for group in groups)]
                selected = groups if reads_all else _spread_evenly(groups, max(limits.groups // len(sampled_files), 1))
                for position, group in enumerate(selected, 1):
                    fraction = (
                        rows_before + file.live_rows * position / len(selected)
                    ) / total  # fraction of the rows so far
                    max_rows = total if reads_all else int(limits.rows * fraction) - rows
                    max_bytes = int(limits.bytes * fraction) - size
                    batches = _column_batches(parquet, group, field, max_rows, starts[group], file.deleted)
                    for value in _first_values(batches, max_rows, max_bytes):
                        values.append(value)
                        rows, size = rows + len(value), size + value.nbytes
            rows_before += file.live_rows
    return pa.chunked_array(values, field.type)


def _column_batches(
    parquet: pq.ParquetFile, group: int, field: pa.Field, rows: int, start: int, deleted: DeletionVector | None
) -> Iterator[pa.Array]:
    """Yield the values of a column in a row group, without those of deleted rows."""
    columns, schema = [field.name] if field.name in parquet.schema_arrow.names else [], pa.schema([field])
    batch_rows = max(min(rows, _SAMPLE_BATCH_ROWS), 1)
    for batch in parquet.iter_batches(batch_rows, row_groups=[group], columns=columns):
        yield remaining(cast_batch(batch, schema), start, deleted).column(0)
        start += batch.num_rows


def _first_values(batches: Iterator[pa.Array], rows: int, size: int) -> Iterator[pa.Array]:
    """Yield the first values, up to the limits."""
    if rows <= 0 or size <= 0:
        return
    for value in batches:
        count = min(rows, len(value), size * len(value) // max(value.nbytes, 1))
        # A slice would keep the whole batch in memory.
        yield value if count == len(value) else pa.concat_arrays([value.slice(0, count)])
        rows, size = rows - count, size - value.nbytes
        if rows <= 0 or size <= 0:
            return


def _spread_evenly(items: Sequence[T], count: int) -> Sequence[T]:
    """Return at most `count` items, evenly spread."""
    return items if len(items) <= count else [items[index * len(items) // count] for index in range(count)]
