"""Read the rows of a snapshot from its data files as a stream."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from penstock.core.dataset.changes import DataFile
from penstock.core.dataset.deletion_vector import remaining
from penstock.core.names import ROW_ID_COLUMN, STORED_ROW_ID_COLUMN
from penstock.core.schema.compatibility import cast_batch
from penstock.errors import Unavailable
from penstock.storage.file_store import FileStore

T = TypeVar("T")

BATCH_ROWS = 128 << 10
_SAMPLE_BATCH_ROWS = 32 << 10  # rows per read of a sample
_READ_AHEAD = {"batch_readahead": 8, "fragment_readahead": 2}  # they determine the memory use

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
        read_ahead: read on all cores before rows are requested; not for streams that many slow clients keep open
    """
    output_schema = pa.schema([schema.field(name) for name in columns]) if columns is not None else schema
    filters_ids = ROW_ID_COLUMN in filter_columns
    if row_ids or filters_ids or not read_ahead or any(file.deleted for file in files):
        needed = pa.schema([field for field in schema if field.name in {*output_schema.names, *filter_columns}])
        batches = _read_lazily(
            store, files, needed, where, batch_rows, row_ids=row_ids or filters_ids, can_skip_groups=not filters_ids
        )
        output_schema = output_schema.append(ROW_ID_FIELD) if row_ids else output_schema
        return pa.RecordBatchReader.from_batches(
            output_schema, (batch.select(output_schema.names) for batch in batches)
        )
    # Columns are nullable here: an old file may lack a column that is required now.
    nullable_schema = pa.schema([field.with_nullable(True) for field in schema])
    dataset = pads.FileSystemDataset.from_paths(
        [store.locate(file.path) for file in files],
        schema=nullable_schema,
        format=pads.ParquetFileFormat(),
        filesystem=store.filesystem,
    )
    scanner = dataset.scanner(columns=output_schema.names, filter=where, batch_size=batch_rows, **_READ_AHEAD)
    return pa.RecordBatchReader.from_batches(output_schema, _read_scanner(scanner, output_schema))


def scan_with_row_ids(
    store: FileStore, file: DataFile, schema: pa.Schema, *, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Read the rows of one file with their ids in the stored row id column, to rewrite the file."""
    names = [*schema.names, STORED_ROW_ID_COLUMN]
    for batch in _read_file(store, file, schema, batch_rows):
        yield batch.rename_columns(names)


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
    total = sum(file.rows for file in sampled_files)
    reads_all = total <= limits.rows
    for file in sampled_files:
        with _translate_errors(), _open_parquet(store, file) as parquet:
            groups = range(parquet.metadata.num_row_groups)
            selected = groups if reads_all else _spread_evenly(groups, max(limits.groups // len(sampled_files), 1))
            for position, group in enumerate(selected, 1):
                fraction = (rows_before + file.rows * position / len(selected)) / total  # fraction of the rows so far
                max_rows = total if reads_all else int(limits.rows * fraction) - rows
                for value in _first_values(parquet, group, field, max_rows, int(limits.bytes * fraction) - size):
                    values.append(value)
                    rows, size = rows + len(value), size + value.nbytes
        rows_before += file.rows
    return pa.chunked_array(values, field.type)


def _read_scanner(scanner: pads.Scanner, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with _translate_errors():
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _read_lazily(
    store: FileStore,
    files: Sequence[DataFile],
    schema: pa.Schema,
    where: pc.Expression | None,
    batch_rows: int,
    *,
    row_ids: bool,
    can_skip_groups: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield a batch only when it is requested. Files do not store all row ids, so no group is skipped by them."""
    for file in files:
        for batch in _read_file(store, file, schema, batch_rows, where if can_skip_groups else None, row_ids=row_ids):
            # Row ids depend on positions among all rows of a file, so the filter is applied afterwards.
            matching = batch if where is None else batch.filter(where)
            if matching.num_rows:
                yield matching


def _read_file(
    store: FileStore,
    file: DataFile,
    schema: pa.Schema,
    batch_rows: int,
    where: pc.Expression | None = None,
    *,
    row_ids: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file; with `where`, only row groups that may contain matching rows."""
    output_schema = schema.append(ROW_ID_FIELD) if row_ids else schema
    with _translate_errors(), _open_parquet(store, file) as parquet:
        stored_columns = set(parquet.schema_arrow.names)
        columns = [name for name in schema.names if name in stored_columns]
        if row_ids and file.first_row_id is None:
            columns.append(STORED_ROW_ID_COLUMN)
        for first, groups in _consecutive_groups(store, file, parquet.metadata, schema, where):
            position, first_row_id = first, file.first_row_id or 0
            for batch in parquet.iter_batches(batch_rows, row_groups=groups, columns=columns):
                rows = cast_batch(batch, schema).columns
                if row_ids:
                    has_implicit_ids = file.first_row_id is not None
                    ids = (
                        pa.arange(first_row_id + position, first_row_id + position + batch.num_rows)
                        if has_implicit_ids
                        else batch.column(STORED_ROW_ID_COLUMN)
                    )
                    rows = [*rows, ids]
                yield remaining(pa.RecordBatch.from_arrays(rows, schema=output_schema), position, file.deleted)
                position += batch.num_rows


def _consecutive_groups(
    store: FileStore, file: DataFile, footer: pq.FileMetaData, schema: pa.Schema, where: pc.Expression | None
) -> Iterator[tuple[int, list[int]]]:
    """Yield lists of consecutive row groups with the position of their first row."""
    numbers = list(range(footer.num_row_groups))
    if where is not None:
        nullable_schema = pa.schema([field.with_nullable(True) for field in schema])
        fragment = pads.ParquetFileFormat().make_fragment(store.locate(file.path), filesystem=store.filesystem)
        with suppress(pa.ArrowNotImplementedError):  # Arrow compares no statistics of some types
            numbers = [group.id for group in fragment.subset(where, schema=nullable_schema).row_groups]
    starts = [0, *accumulate(footer.row_group(number).num_rows for number in range(footer.num_row_groups))]
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        consecutive = [number for _, number in run]
        yield starts[consecutive[0]], consecutive


def _first_values(parquet: pq.ParquetFile, group: int, field: pa.Field, rows: int, size: int) -> Iterator[pa.Array]:
    """Yield the first values of a row group, up to the limits."""
    if rows <= 0 or size <= 0:
        return
    columns, schema = [field.name] if field.name in parquet.schema_arrow.names else [], pa.schema([field])
    for batch in parquet.iter_batches(min(rows, _SAMPLE_BATCH_ROWS), row_groups=[group], columns=columns):
        value = cast_batch(batch, schema).column(0)
        count = min(rows, len(value), size * len(value) // max(value.nbytes, 1))
        # A slice would keep the whole batch in memory.
        yield value if count == len(value) else pa.concat_arrays([value.slice(0, count)])
        rows, size = rows - count, size - value.nbytes
        if rows <= 0 or size <= 0:
            return


def _spread_evenly(items: Sequence[T], count: int) -> Sequence[T]:
    """Return at most `count` items, evenly spread."""
    return items if len(items) <= count else [items[index * len(items) // count] for index in range(count)]


def _open_parquet(store: FileStore, file: DataFile) -> pq.ParquetFile:
    # With pre_buffer the whole file would be in memory from the first batch on.
    return pq.ParquetFile(store.locate(file.path), filesystem=store.filesystem, pre_buffer=False)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise read errors as Unavailable, also in the middle of a stream."""
    try:
        yield
    except FileNotFoundError as cause:
        raise Unavailable("file_missing.data_file") from cause
    except (OSError, pa.ArrowException) as cause:
        raise Unavailable("file_unreadable") from cause
