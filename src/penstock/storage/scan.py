"""Read the rows of a version from its files, as a stream."""

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
from penstock.core.names import CARRIED, ROWID
from penstock.core.schema.canonical import conform
from penstock.errors import Unavailable
from penstock.storage.file_store import Store

T = TypeVar("T")

BATCH_ROWS = 128 << 10
_SAMPLED = 32 << 10  # rows of a sample that are read at once
_READ_AHEAD = {"batch_readahead": 8, "fragment_readahead": 2}  # what is held in memory follows from these

_ID = pa.field(ROWID, pa.int64(), nullable=False)


def scan(
    store: Store,
    files: Sequence[DataFile],
    schema: pa.Schema,
    *,
    where: pc.Expression | None = None,
    row_ids: bool = False,
    batch_rows: int = BATCH_ROWS,
    columns: Sequence[str] | None = None,
    filtered: Collection[str] = (),
    ahead: bool = True,
) -> pa.RecordBatchReader:
    """Rows in the order of the files. Columns that a file lacks are NULL; types that were widened since are cast.

    `columns` are shown; `filtered` are what `where` reads besides. `ahead`: read before it is asked for, on all cores;
    not for a stream that many may hold open, and slowly.
    """
    shown = pa.schema([schema.field(name) for name in columns]) if columns is not None else schema
    if row_ids or not ahead:
        needed = pa.schema([field for field in schema if field.name in {*shown.names, *filtered}])
        batches = _pulled(store, files, needed, where, batch_rows, row_ids=row_ids)
        shown = shown.append(_ID) if row_ids else shown
        return pa.RecordBatchReader.from_batches(shown, (batch.select(shown.names) for batch in batches))
    # "Required" is the catalog's promise; an old file without the column could not keep it for the scanner.
    loose = pa.schema([field.with_nullable(True) for field in schema])
    dataset = pads.FileSystemDataset.from_paths(
        [store.locate(file.path) for file in files],
        schema=loose,
        format=pads.ParquetFileFormat(),
        filesystem=store.filesystem,
    )
    scanner = dataset.scanner(columns=shown.names, filter=where, batch_size=batch_rows, **_READ_AHEAD)
    return pa.RecordBatchReader.from_batches(shown, _told(scanner, shown))


def carried(
    store: Store, file: DataFile, schema: pa.Schema, *, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The rows of one file with their ids in the hidden column: what a rewritten file is made of."""
    names = [*schema.names, CARRIED]
    for batch in _one(store, file, schema, batch_rows):
        yield batch.rename_columns(names)


@dataclass(frozen=True, slots=True)
class Most:
    """How much a sample takes at most."""

    rows: int = 1_000_000
    bytes: int = 64 << 20  # of values in memory
    files: int = 128
    groups: int = 256  # where there are more rows than that


def sample(store: Store, files: Sequence[DataFile], field: pa.Field, most: Most) -> pa.ChunkedArray:
    """Values of one column: all of them, or those with which row groups begin, here and there in all the files."""
    opened, values, rows, size, passed = _spread(files, most.files), list[pa.Array](), 0, 0, 0
    total = sum(file.rows for file in opened)
    are_few = total <= most.rows
    for file in opened:
        with _translated(), _opened(store, file) as parquet:
            groups = range(parquet.metadata.num_row_groups)
            picked = groups if are_few else _spread(groups, max(most.groups // len(opened), 1))
            for place, group in enumerate(picked, 1):
                part = (passed + file.rows * place / len(picked)) / total  # of the files, so far
                room = total if are_few else int(most.rows * part) - rows
                for value in _beginning(parquet, group, field, room, int(most.bytes * part) - size):
                    values.append(value)
                    rows, size = rows + len(value), size + value.nbytes
        passed += file.rows
    return pa.chunked_array(values, field.type)


def _told(scanner: pads.Scanner, shown: pa.Schema) -> Iterator[pa.RecordBatch]:
    with _translated():
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=shown)


def _pulled(
    store: Store,
    files: Sequence[DataFile],
    schema: pa.Schema,
    where: pc.Expression | None,
    batch_rows: int,
    *,
    row_ids: bool,
) -> Iterator[pa.RecordBatch]:
    """A batch when it is asked for, and not before."""
    for file in files:
        for batch in _one(store, file, schema, batch_rows, where, row_ids=row_ids):
            # A position counts all rows of a file, so the filter comes after it.
            kept = batch if where is None else batch.filter(where)
            if kept.num_rows:
                yield kept


def _one(
    store: Store,
    file: DataFile,
    schema: pa.Schema,
    batch_rows: int,
    where: pc.Expression | None = None,
    *,
    row_ids: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file; with `where`, of those row groups that may hold wanted ones."""
    shown = schema.append(_ID) if row_ids else schema
    with _translated(), _opened(store, file) as parquet:
        held = set(parquet.schema_arrow.names)
        columns = [name for name in schema.names if name in held]
        if row_ids and file.first_row_id is None:
            columns.append(CARRIED)
        for first, groups in _stretches(store, file, parquet.metadata, schema, where):
            position = first + (file.first_row_id or 0)
            for batch in parquet.iter_batches(batch_rows, row_groups=groups, columns=columns):
                rows = conform(batch, schema).columns
                if row_ids:
                    fresh = file.first_row_id is not None
                    ids = pa.arange(position, position + batch.num_rows) if fresh else batch.column(CARRIED)
                    rows = [*rows, ids]
                yield pa.RecordBatch.from_arrays(rows, schema=shown)
                position += batch.num_rows


def _stretches(
    store: Store, file: DataFile, footer: pq.FileMetaData, schema: pa.Schema, where: pc.Expression | None
) -> Iterator[tuple[int, list[int]]]:
    """Row groups that follow one another, with the position of their first row."""
    numbers = list(range(footer.num_row_groups))
    if where is not None:
        loose = pa.schema([field.with_nullable(True) for field in schema])
        fragment = pads.ParquetFileFormat().make_fragment(store.locate(file.path), filesystem=store.filesystem)
        with suppress(pa.ArrowNotImplementedError):  # of some types Arrow compares no statistics
            numbers = [group.id for group in fragment.subset(where, schema=loose).row_groups]
    starts = [0, *accumulate(footer.row_group(number).num_rows for number in range(footer.num_row_groups))]
    for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        stretch = [number for _, number in run]
        yield starts[stretch[0]], stretch


def _beginning(parquet: pq.ParquetFile, group: int, field: pa.Field, rows: int, size: int) -> Iterator[pa.Array]:
    """The first values of a row group, as many as there is room for."""
    if rows <= 0 or size <= 0:
        return
    held, only = [field.name] if field.name in parquet.schema_arrow.names else [], pa.schema([field])
    for batch in parquet.iter_batches(min(rows, _SAMPLED), row_groups=[group], columns=held):
        value = conform(batch, only).column(0)
        fitting = min(rows, len(value), size * len(value) // max(value.nbytes, 1))
        # A slice would hold on to all of the batch.
        yield value if fitting == len(value) else pa.concat_arrays([value.slice(0, fitting)])
        rows, size = rows - fitting, size - value.nbytes
        if rows <= 0 or size <= 0:
            return


def _spread(things: Sequence[T], most: int) -> Sequence[T]:
    """At most so many of them, from everywhere."""
    return things if len(things) <= most else [things[place * len(things) // most] for place in range(most)]


def _opened(store: Store, file: DataFile) -> pq.ParquetFile:
    # With a buffer for what comes later, all of the file would be held from the first batch on.
    return pq.ParquetFile(store.locate(file.path), filesystem=store.filesystem, pre_buffer=False)


@contextmanager
def _translated() -> Iterator[None]:
    """A stream is part of the call: a file that fails in its middle is told like one that fails at its start."""
    try:
        yield
    except FileNotFoundError as cause:
        raise Unavailable(
            "file_missing", "a data file is gone: it was swept while it was read, or removed from the workspace by hand"
        ) from cause
    except (OSError, pa.ArrowException) as cause:
        raise Unavailable(
            "file_unreadable", "a data file cannot be read; `penstock doctor --verify` tells which"
        ) from cause
