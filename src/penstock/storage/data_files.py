"""Write rows to immutable Parquet files, and collect their statistics."""

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyarrow import fs

from penstock import failpoints
from penstock.core.dataset.changes import NewFile
from penstock.core.dataset.column_stats import ColumnStats, StatValue, combine_stats, first_leaves, has_stats
from penstock.core.dataset.row_groups import MAX_GROUP_BYTES, RowGroupBuffer, dictionary_columns
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.errors import PenstockError, Unavailable
from penstock.storage.file_store import FileHandle, FileStore, StoredFile

_LOCAL = fs.LocalFileSystem()


@dataclass(frozen=True, slots=True)
class FileSizing:
    """Target sizes of data files and row groups."""

    file_bytes: int = 128 << 20
    group_rows: int = 128 << 10  # a row group is the unit of reading, skipping and memory
    group_bytes: int = MAX_GROUP_BYTES


_FILE_NAME = re.compile(r"(?P<lease>[0-9a-f]{32})-[0-9a-f]{16}\.parquet\Z")


def new_file_name(lease: UUID) -> str:
    """Return a new file name that contains the writer lease."""
    return f"{lease.hex}-{uuid4().hex[:16]}.parquet"


def parse_lease(path: str) -> UUID | None:
    """Return the writer lease of a file, or None for a file that Penstock did not name."""
    match = _FILE_NAME.match(path.rpartition("/")[2])
    return UUID(match["lease"]) if match else None


def write_files(
    store: FileStore,
    folder: str,
    lease: UUID,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    sizing: FileSizing,
    on_rows_written: Callable[[int], None],
) -> tuple[NewFile, ...]:
    """Write batches in order to as many files as they need. All files are durable on return; on an error all are
    removed.

    Args:
        on_rows_written: called after each row group with its number of rows, for progress and heartbeats
    """
    writer = DataFileWriter(store, folder, lease, schema, sizing=sizing, on_rows_written=on_rows_written)
    try:
        for batch in batches:
            writer.add(batch)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


class DataFileWriter:
    """Writes batches that are added one by one. One row group is encoded while the next one is collected; no more are
    held.
    """

    def __init__(
        self,
        store: FileStore,
        folder: str,
        lease: UUID,
        schema: pa.Schema,
        *,
        sizing: FileSizing,
        on_rows_written: Callable[[int], None],
    ) -> None:
        self._store, self._folder, self._lease, self._schema = store, folder, lease, schema
        self._sizing, self._on_rows_written = sizing, on_rows_written
        self._buffer = RowGroupBuffer(schema, sizing.group_rows, sizing.group_bytes)
        self._executor = ThreadPoolExecutor(2)  # starts its threads lazily
        self._file: _OpenFile | None = None
        self._encoding: Future[int] | None = None
        self._sealed: list[Future[NewFile]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        for group in self._buffer.add(batch):
            self._encoding = self._executor.submit(self._file_for_group(group).write, group)

    def end_file(self) -> None:
        """End the current file: the next row begins another one."""
        self._flush()
        self._seal()

    def finish(self) -> tuple[NewFile, ...]:
        """Close all files and return them, durable. After an error here or in `add`, call `discard`."""
        self._flush()
        if self._file or self._sealed:
            self._seal()  # sync the folder while the last file is written
            self._store.sync(self._folder)
        files = tuple(sealed.result() for sealed in self._sealed)
        if files:
            failpoints.hit("stage.synced")
        self._executor.shutdown()
        return files

    def discard(self) -> None:
        """Remove all files that were written."""
        self._executor.shutdown()
        if self._file:
            self._file.discard()
        discard_files(self._store, [sealed.result() for sealed in self._sealed if not sealed.exception()])

    def _flush(self) -> None:
        """Write the rows that do not fill a row group."""
        if remaining := self._buffer.flush():
            self._on_rows_written(self._file_for_group(remaining).write(remaining))
        self._finish_group()

    def _file_for_group(self, group: pa.Table) -> "_OpenFile":
        """Return the file for the next row group."""
        self._finish_group()
        if self._file is None:
            path = f"{self._folder}/{new_file_name(self._lease)}"
            self._file = _OpenFile(self._store, path, self._schema, dictionary_columns(group))
        return self._file

    def _finish_group(self) -> None:
        """Wait for the row group that is being encoded. Close the file if it is large enough."""
        if self._encoding:
            self._on_rows_written(self._encoding.result())
            self._encoding = None
        if self._file and self._file.size >= self._sizing.file_bytes:
            self._seal()

    def _seal(self) -> None:
        file, self._file = self._file, None
        if file:
            self._sealed.append(self._executor.submit(file.seal))


def register_file(store: FileStore, draft: str, path: str, schema: pa.Schema) -> NewFile:
    """Store a file that an engine wrote. It must have exactly the columns of the schema, and may have row ids."""
    failpoints.hit("stage.written")
    with pq.ParquetFile(draft, filesystem=_LOCAL) as parquet:
        footer, stored = parquet.metadata, parquet.schema_arrow
    columns = {field.name: field.type for field in stored if field.name != STORED_ROW_ID_COLUMN}
    if columns != {field.name: field.type for field in schema}:
        raise AssertionError(f"engine wrote columns {columns}, expected {schema}")
    sealed = store.adopt(draft, path)
    return _describe_file(path, sealed, footer, stored)


def has_sorted_groups(store: FileStore, file: NewFile, column: str) -> bool:
    """Check whether the row groups of a file are in the order of a column, NULL last, by the statistics in its footer.

    A file without statistics counts as sorted, and so does one that cannot be read, so that a plan does not fail.
    """
    try:
        with store.open_tail(file) as source, pq.ParquetFile(source) as parquet:
            footer, schema = parquet.metadata, parquet.schema_arrow
    except (OSError, pa.ArrowException, Unavailable):
        return True
    if column not in schema.names:
        return True
    index = schema.get_field_index(column)
    leaf, data_type = first_leaves(schema)[index], schema.field(index).type
    high: Any = None
    has_nulls = False
    for group in map(footer.row_group, range(footer.num_row_groups)):
        stats = _group_stats(group.column(leaf), data_type)
        if stats.nulls < group.num_rows:
            if stats.low is None:
                return True
            if has_nulls or (high is not None and stats.low < high):
                return False
            high = stats.high
        has_nulls = has_nulls or stats.nulls > 0
    return True


def discard_files(store: FileStore, files: Iterable[NewFile]) -> None:
    """Remove files of a rejected write. Files that cannot be removed now are swept later."""
    with suppress(PenstockError):
        store.remove([file.path for file in files])


class _OpenFile:
    def __init__(self, store: FileStore, path: str, schema: pa.Schema, encoded: list[str]) -> None:
        self.path, self.schema = path, schema
        self._sink: FileHandle = store.create(path)
        self._footer: list[pq.FileMetaData] = []
        try:
            failpoints.hit("stage.opened")
            self._writer = pq.ParquetWriter(
                self._sink,
                schema,
                compression="zstd",
                use_dictionary=encoded or False,
                metadata_collector=self._footer,
            )
        except BaseException:
            self._sink.discard()
            raise

    @property
    def size(self) -> int:
        return self._sink.tell()

    def write(self, group: pa.Table) -> int:
        self._writer.write_table(group, row_group_size=group.num_rows)
        return int(group.num_rows)

    def seal(self) -> NewFile:
        try:
            self._writer.close()
            failpoints.hit("stage.written")
            return _describe_file(self.path, self._sink.seal(), self._footer[0], self.schema)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        with suppress(Exception):  # the writer may fail on a partial file; the file is removed anyway
            self._writer.close()
        self._sink.discard()


def _describe_file(path: str, sealed: StoredFile, footer: pq.FileMetaData, schema: pa.Schema) -> NewFile:
    stats = dict(_stats(footer, schema))
    row_ids = stats.pop(STORED_ROW_ID_COLUMN, None)
    return NewFile(
        path=path,
        rows=footer.num_rows,
        bytes=sealed.bytes,
        checksum=sealed.checksum,
        stats=stats,
        row_ids=(row_ids.low, row_ids.high) if row_ids else None,  # type: ignore[arg-type]
    )


def _stats(footer: pq.FileMetaData, schema: pa.Schema) -> Iterator[tuple[str, ColumnStats]]:
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    leaves = first_leaves(schema)
    for field, leaf in zip(schema, leaves, strict=True):
        if has_stats(field.type):
            yield field.name, combine_stats((g.num_rows, _group_stats(g.column(leaf), field.type)) for g in groups)


def _group_stats(column: pq.ColumnChunkMetaData, data_type: pa.DataType) -> ColumnStats:
    statistics = column.statistics
    if statistics is None or not statistics.has_null_count:
        return ColumnStats(None, None, 0)
    if not statistics.has_min_max:
        return ColumnStats(None, None, statistics.null_count)
    low, high = _stat_value(statistics.min_raw, data_type), _stat_value(statistics.max_raw, data_type)
    if low != low or high != high:  # some writers store NaN, which does not limit a range
        return ColumnStats(None, None, statistics.null_count)
    return ColumnStats(low, high, statistics.null_count)


def _stat_value(raw: Any, data_type: pa.DataType) -> StatValue:
    """Convert a value of a Parquet footer to a value of `core.dataset.column_stats`."""
    if pt.is_string(data_type):
        return str(raw, "utf-8")
    if pt.is_decimal(data_type):
        unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
        return Decimal(f"{unscaled}e-{data_type.scale}")
    if pt.is_boolean(data_type):
        return int(raw)
    return raw  # type: ignore[no-any-return]
