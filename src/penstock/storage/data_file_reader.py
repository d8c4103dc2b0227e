"""Read the rows of one data file in slices of bounded size, with their positions in the file.

The caller provides the file on this machine, with `open_local` or `stream_local` of the store.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, groupby

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyarrow import fs

from penstock.core.dataset.changes import DataFile
from penstock.errors import Unavailable
from penstock.storage.file_store import FileStore

_LOCAL = fs.LocalFileSystem()
MAX_BATCH_BYTES = 16 << 20  # of a decoded batch, estimated from the schema and the footer

COLUMN_BUFFERS_BYTES = 8 << 20  # encoded bytes in memory, of all columns of a file
_MIN_BUFFER_BYTES, _MAX_BUFFER_BYTES = 16 << 10, 1 << 20  # of one column


def read_positions(
    store: FileStore, file: DataFile, columns: Sequence[str], batch_rows: int, prune: "RowGroupFilter | None" = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the stored rows of a file in order, each batch with the position of its first row in the file.

    A batch contains consecutive rows, and the types of the file. A row group is decoded in slices, not as a whole.

    Args:
        columns: the columns to read; a column that the file lacks is left out
        batch_rows: the largest number of rows in a batch; wide rows make batches smaller
        prune: skips row groups that contain no matching row; all other rows are read
    """
    with translate_errors():
        footer, groups = (None, None) if prune is None else prune.select(store, file)
        with open_parquet(store, file, columns=len(columns), footer=footer) as parquet:
            stored = parquet.schema_arrow
            names = [name for name in columns if name in stored.names]
            row_bytes = _row_bytes(parquet.metadata, [stored.field(name).type for name in names])
            max_rows = max(1, min(batch_rows, int(MAX_BATCH_BYTES / row_bytes)))
            for first, run in _consecutive_groups(parquet.metadata, groups):
                position = first
                for batch in parquet.iter_batches(max_rows, row_groups=run, columns=names):
                    yield position, batch
                    position += batch.num_rows


class RowGroupFilter:
    """Selects the row groups that may contain matching rows by their statistics."""

    def __init__(self, where: pc.Expression, schema: pa.Schema) -> None:
        self._where = where
        # Columns are nullable here: an old file may lack a column that is required now.
        self._schema = pa.schema([field.with_nullable(True) for field in schema])

    def select(self, store: FileStore, file: DataFile) -> tuple[pq.FileMetaData, list[int] | None]:
        """Return the footer of a file and the numbers of the row groups; None for all."""
        fragment = pads.ParquetFileFormat().make_fragment(store.locate(file.path), filesystem=_LOCAL)
        groups = None
        with suppress(pa.ArrowNotImplementedError):  # Arrow compares no statistics of some types
            groups = [group.id for group in fragment.subset(self._where, schema=self._schema).row_groups]
        return fragment.metadata, groups


def open_parquet(
    store: FileStore, file: DataFile, *, columns: int, footer: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """Open a file to read a number of columns, with small buffers.

    With `pre_buffer` the whole file would be in memory from the first batch on, and without a buffer size the encoded
    columns of a row group.
    """
    buffer_bytes = min(max(COLUMN_BUFFERS_BYTES // max(columns, 1), _MIN_BUFFER_BYTES), _MAX_BUFFER_BYTES)
    location = store.locate(file.path)
    return pq.ParquetFile(location, filesystem=_LOCAL, metadata=footer, pre_buffer=False, buffer_size=buffer_bytes)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise read errors as Unavailable, also in the middle of a stream."""
    try:
        yield
    except FileNotFoundError as cause:
        raise Unavailable("file_missing.data_file") from cause
    except (OSError, pa.ArrowException) as cause:
        raise Unavailable("file_unreadable") from cause


def _row_bytes(footer: pq.FileMetaData, types: Sequence[pa.DataType]) -> float:
    """Estimate the size of a decoded row: at least its fixed widths, and its encoded size in the widest row group."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    encoded = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=0)
    return max(encoded, sum(map(_fixed_bytes, types)), 1)


def _fixed_bytes(data_type: pa.DataType) -> float:
    try:
        return float(data_type.bit_width) / 8
    except ValueError:  # the width varies
        return 4.0  # an offset


def _consecutive_groups(footer: pq.FileMetaData, groups: Sequence[int] | None) -> Iterator[tuple[int, list[int]]]:
    """Yield lists of consecutive row groups with the position of their first row."""
    numbers = range(footer.num_row_groups)
    starts = [0, *accumulate(footer.row_group(number).num_rows for number in numbers)]
    for _, run in groupby(enumerate(numbers if groups is None else groups), lambda pair: pair[1] - pair[0]):
        consecutive = [number for _, number in run]
        yield starts[consecutive[0]], consecutive
