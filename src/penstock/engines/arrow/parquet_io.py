"""Read and write Parquet files in batches, several files at a time, in bounded memory."""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import accumulate, groupby
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core.dataset.row_groups import dictionary_columns, split_row_groups
from penstock.core.merge import FileLayout, FileSink, OutputFile
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.core.schema.compatibility import cast_batch
from penstock.errors import PenstockError, Unavailable

ROW_ID = pa.field(STORED_ROW_ID_COLUMN, pa.int64(), nullable=False)

_FORMAT = pads.ParquetFileFormat()
_LOCAL = fs.LocalFileSystem()
_READ_BYTES = 1 << 20  # per column that is read

_T = TypeVar("_T")
_R = TypeVar("_R")


class WorkerThreads:
    """Thread pool with one thread per core; Arrow encodes one file on one thread."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or os.cpu_count() or 1
        self._stop = threading.Event()

    def map(self, function: Callable[[_T], _R], items: Sequence[_T], per_worker: int = 1) -> Iterator[_R]:
        """Apply a function to items in parallel and yield results in order. An error or Ctrl-C stops the other calls."""
        self._stop.clear()
        if len(items) < 2 or self._count < 2:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(self._count * per_worker) as pool:
            try:
                yield from pool.map(function, items)
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    @property
    def is_stopped(self) -> bool:
        """Return True if another call has failed, so the results of this one are not used."""
        return self._stop.is_set()


def read_batches(
    path: str,
    schema: pa.Schema,
    columns: Sequence[str],
    batch_rows: int,
    row_groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, in batches of at most `batch_rows`.

    Columns that the file lacks are NULL; narrower types are cast to `schema`. Memory follows the batch, not the row
    group: a dataset scanner would decode a row group as a whole.
    """
    fields = pa.schema([schema.field(name).with_nullable(True) for name in columns])
    with (
        translate_errors(path, reading=True),
        pq.ParquetFile(path, filesystem=_LOCAL, buffer_size=_READ_BYTES, pre_buffer=False) as parquet,
    ):
        groups = list(range(parquet.num_row_groups) if row_groups is None else row_groups)
        stored = [name for name in columns if name in parquet.schema_arrow.names]
        if stored:
            for batch in parquet.iter_batches(batch_rows, row_groups=groups, columns=stored, use_threads=False):
                yield cast_batch(batch, fields)
            return
        rows = sum(parquet.metadata.row_group(i).num_rows for i in groups)
        for start in range(0, rows, batch_rows):
            nulls = [pa.nulls(min(batch_rows, rows - start), field.type) for field in fields]
            yield pa.RecordBatch.from_arrays(nulls, schema=fields)


def read_positions(
    path: str, schema: pa.Schema, columns: Sequence[str], batch_rows: int, positions: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file at ascending positions, in order. Row groups without such a row are not read."""
    if not len(positions):
        return
    with translate_errors(path, reading=True):
        metadata = _open_fragment(path).metadata
        starts = np.cumsum([0, *(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))])
    group_ids = np.unique(np.searchsorted(starts, positions, "right") - 1)
    for run in np.split(group_ids, np.flatnonzero(np.diff(group_ids) > 1) + 1):
        start = int(starts[run[0]])
        for batch in read_batches(path, schema, columns, batch_rows, run.tolist()):
            first, last = np.searchsorted(positions, [start, start + len(batch)])
            if last > first:
                yield batch.take(pa.array(positions[first:last] - start))
            start += len(batch)


def filter_batches(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, where: pc.Expression | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that match `where`, through a filtered scanner over the batches."""
    if where is None:
        yield from batches
        return
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    scanner = pads.Scanner.from_batches(reader, filter=where, batch_readahead=1, use_threads=False)
    yield from scanner.to_batches()


def read_row_group_runs(
    path: str, schema: pa.Schema, columns: Sequence[str], batch_rows: int, where: pc.Expression | None
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield runs of adjacent row groups that may match `where`, each with the position of its first row."""
    with translate_errors(path, reading=True):
        fragment = _open_fragment(path)
        metadata = fragment.metadata
        starts = [0, *accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))]
        group_ids = list(range(metadata.num_row_groups))
        if where is not None:
            with suppress(pa.ArrowNotImplementedError):  # Arrow cannot compare the statistics of some types
                group_ids = [
                    group.id for group in fragment.subset(where, schema=_with_nullable_fields(schema)).row_groups
                ]
    for _, run in groupby(enumerate(group_ids), lambda each: each[1] - each[0]):
        run_ids = [number for _, number in run]
        yield starts[run_ids[0]], read_batches(path, schema, columns, batch_rows, run_ids)


def replace_values(
    rows: pa.RecordBatch, positions: Any, new_rows: pa.Table, columns: Collection[str]
) -> pa.RecordBatch:
    """Return the batch with values of `new_rows` in `columns` at `positions` (ascending)."""
    is_replaced = np.zeros(len(rows), dtype=bool)
    is_replaced[positions] = True
    mask, indices = pa.array(is_replaced), np.arange(len(rows))
    indices[positions] = len(rows) + np.arange(new_rows.num_rows)
    arrays = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name in columns:
            values = new_rows[field.name].combine_chunks()
            if pt.is_primitive(field.type) and not pt.is_duration(field.type):
                column = pc.replace_with_mask(column, mask, values)
            else:
                column = pa.concat_arrays([column, values]).take(pa.array(indices))
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


class RowPicker:
    """Take rows of a table by index, batch by batch; `Table.take` would first concatenate every column."""

    def __init__(self, rows: pa.Table) -> None:
        self._schema, self._batches = rows.schema, rows.to_batches()
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def take(self, indices: Any) -> pa.Table:
        if len(self._batches) == 1:
            return pa.Table.from_batches([self._batches[0].take(pa.array(indices))])
        order = None if (indices[1:] > indices[:-1]).all() else np.argsort(indices, kind="stable")
        sorted_indices = indices if order is None else indices[order]
        ends = np.searchsorted(sorted_indices, self._starts)
        parts = [
            self._batches[i].take(pa.array(sorted_indices[ends[i] : ends[i + 1]] - int(self._starts[i])))
            for i in np.flatnonzero(np.diff(ends))
        ]
        table = pa.Table.from_batches(parts, self._schema).combine_chunks()
        return table if order is None else table.take(pa.array(np.argsort(order, kind="stable")))


def write_files(
    sources: Iterable[pa.Table | Iterable[pa.RecordBatch]],
    partition_values: Mapping[str, Any],
    layout: FileLayout,
    sink: FileSink,
    *,
    single_file: bool = False,
) -> Iterator[OutputFile]:
    """Write rows into files of about `sink.file_bytes`, or into a single file. Without rows no file is written."""
    batches = (
        to_stored_types(batch, layout.schema)
        for source in sources
        for batch in (source.to_batches() if isinstance(source, pa.Table) else source)
    )
    row_groups = split_row_groups(batches, layout.schema, layout.group_rows)
    row_group = next(row_groups, None)
    while row_group is not None:
        path, rows, size = sink.path(), 0, 0
        with ParquetFileWriter(path, layout, row_group) as writer:
            while row_group is not None and (single_file or size < sink.file_bytes):
                writer.write(row_group)
                rows += row_group.num_rows
                size = os.path.getsize(path)
                sink.add_rows(row_group.num_rows)
                row_group = next(row_groups, None)
        yield OutputFile(path, rows, partition_values=partition_values)


def to_stored_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to the stored schema: column order, types and dictionary encoding."""
    arrays = []
    for field in schema:
        column = batch.column(field.name)
        if pt.is_dictionary(field.type) and not pt.is_dictionary(column.type):
            column = column.dictionary_encode()
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def translate_errors(path: str, *, reading: bool = False) -> Iterator[None]:
    """Translate errors of Arrow into `Unavailable`, also while a generator in the block is read."""
    try:
        yield
    except (OSError, pa.ArrowException) as cause:
        if isinstance(cause, PenstockError):
            raise
        message = str(cause).partition("\n")[0][:200].rstrip(": ")
        name = os.path.basename(path)
        if reading and getattr(cause, "errno", None) is None:  # not an error of the operating system
            raise Unavailable("file_damaged", {"cause": message}, path=name) from cause
        raise Unavailable("file_failed", {"cause": message}, path=name) from cause


class ParquetFileWriter:
    """Parquet writer for a `FileLayout`; removes the file if an error occurs before it is closed."""

    def __init__(self, path: str, layout: FileLayout, first: pa.Table) -> None:
        self._path = path
        options = {"compression": layout.codec, **layout.options}
        dictionary_option = options.get("use_dictionary", True)
        encoded_columns = [
            path for path in dictionary_columns(first) if dictionary_option is True or path in (dictionary_option or ())
        ]
        options["use_dictionary"] = encoded_columns or False
        if layout.differences:
            delta_columns = [
                field.name
                for field in layout.schema
                if _is_delta_type(field.type) and field.name not in encoded_columns
            ]
            options["column_encoding"] = dict.fromkeys(delta_columns, "DELTA_BINARY_PACKED")
        with translate_errors(path):
            self._writer = pq.ParquetWriter(path, layout.schema, **options)

    def write(self, group: pa.Table) -> None:
        with translate_errors(self._path):
            self._writer.write_table(group, row_group_size=group.num_rows)

    def __enter__(self) -> "ParquetFileWriter":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            with translate_errors(self._path):
                self._writer.close()
        except PenstockError:
            if error is None:
                raise
        finally:
            if error:
                os.unlink(self._path)


def _is_delta_type(data_type: pa.DataType) -> bool:
    return any(test(data_type) for test in (pt.is_integer, pt.is_date32, pt.is_timestamp))


def _open_fragment(path: str) -> Any:
    return _FORMAT.make_fragment(path, filesystem=_LOCAL)


def _with_nullable_fields(schema: pa.Schema) -> pa.Schema:
    # A required column may be missing in an old file, which the scanner reads as NULL.
    return pa.schema([field.with_nullable(True) for field in schema])
