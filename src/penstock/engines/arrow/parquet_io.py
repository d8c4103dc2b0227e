"""Read Parquet files batch by batch and write their successors, several at a time, in bounded memory."""

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

from penstock.core.dataset.row_groups import groups, repeating
from penstock.core.merge import Layout, Output, Sink
from penstock.core.names import CARRIED
from penstock.errors import PenstockError, Unavailable

ROW_ID = pa.field(CARRIED, pa.int64(), nullable=False)

_FORMAT = pads.ParquetFileFormat()
_LOCAL = fs.LocalFileSystem()
_LEAN = pads.ParquetFragmentScanOptions(pre_buffer=False)

_T = TypeVar("_T")
_R = TypeVar("_R")


class Workers:
    """As many threads as there are cores: Arrow encodes a file on one of them."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or os.cpu_count() or 1
        self._stop = threading.Event()

    def each(self, do: Callable[[_T], _R], things: Sequence[_T], per_worker: int = 1) -> Iterator[_R]:
        """So many things at a time for each worker, answered in order. An error, or Ctrl-C, stops the others."""
        self._stop.clear()
        if len(things) < 2 or self._count < 2:
            yield from map(do, things)
            return
        with ThreadPoolExecutor(self._count * per_worker) as pool:
            try:
                yield from pool.map(do, things)
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    @property
    def stopped(self) -> bool:
        """Has another failed? What is done now is for nothing."""
        return self._stop.is_set()


def batches(
    path: str,
    schema: pa.Schema,
    columns: Sequence[str],
    rows: int,
    *,
    where: pc.Expression | None = None,
    fragment: Any = None,
) -> Iterator[pa.RecordBatch]:
    """Rows in their order, `rows` at most at once. Columns that the file lacks are NULL; narrower types are cast."""
    with translated(path):
        scanner = (fragment or _fragment(path)).scanner(
            schema=_loose(schema),
            columns=list(columns),
            filter=where,
            batch_size=rows,
            batch_readahead=2,
            fragment_readahead=1,
            fragment_scan_options=_LEAN,
            use_threads=False,
        )
        yield from scanner.to_batches()


def stretches(
    path: str, schema: pa.Schema, columns: Sequence[str], rows: int, where: pc.Expression | None
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """The rows of the row groups that may hold what is asked for, each stretch with the position of its first."""
    with translated(path):
        fragment = _fragment(path)
        footer = fragment.metadata
        starts = [0, *accumulate(footer.row_group(i).num_rows for i in range(footer.num_row_groups))]
        numbers = list(range(footer.num_row_groups))
        if where is not None:
            with suppress(pa.ArrowNotImplementedError):  # of some types Arrow compares no statistics
                numbers = [group.id for group in fragment.subset(where, schema=_loose(schema)).row_groups]
    for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        stretch = [number for _, number in run]
        part = fragment.subset(row_group_ids=stretch)
        yield starts[stretch[0]], batches(path, schema, columns, rows, fragment=part)


def replaced(rows: pa.RecordBatch, positions: Any, new: pa.Table, columns: Collection[str]) -> pa.RecordBatch:
    """The rows with new values in these columns at these positions, which lie in order."""
    hit = np.zeros(len(rows), dtype=bool)
    hit[positions] = True
    mask, picks = pa.array(hit), np.arange(len(rows))
    picks[positions] = len(rows) + np.arange(new.num_rows)
    made = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name in columns:
            values = new[field.name].combine_chunks()
            if pt.is_primitive(field.type) and not pt.is_duration(field.type):
                column = pc.replace_with_mask(column, mask, values)
            else:
                column = pa.concat_arrays([column, values]).take(pa.array(picks))
        made.append(column)
    return pa.RecordBatch.from_arrays(made, schema=rows.schema)


class Pieces:
    """Rows that are taken by their places, batch by batch: Arrow would first make one array of each whole column."""

    def __init__(self, rows: pa.Table) -> None:
        self._schema, self._batches = rows.schema, rows.to_batches()
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def take(self, places: Any) -> pa.Table:
        if len(self._batches) == 1:
            return pa.Table.from_batches([self._batches[0].take(pa.array(places))])
        order = None if (places[1:] > places[:-1]).all() else np.argsort(places, kind="stable")
        ascending = places if order is None else places[order]
        ends = np.searchsorted(ascending, self._starts)
        taken = [
            self._batches[i].take(pa.array(ascending[ends[i] : ends[i + 1]] - int(self._starts[i])))
            for i in np.flatnonzero(np.diff(ends))
        ]
        found = pa.Table.from_batches(taken, self._schema).combine_chunks()
        return found if order is None else found.take(pa.array(np.argsort(order, kind="stable")))


def written(
    sources: Iterable[pa.Table | Iterable[pa.RecordBatch]],
    parts: Mapping[str, Any],
    layout: Layout,
    sink: Sink,
    *,
    one: bool = False,
) -> Iterator[Output]:
    """Write rows into files of about the size that is asked for, or into `one`; no rows, no file."""
    rows_of = (
        stored(batch, layout.schema)
        for source in sources
        for batch in (source.to_batches() if isinstance(source, pa.Table) else source)
    )
    pieces = groups(rows_of, layout.schema, layout.group_rows)
    piece = next(pieces, None)
    while piece is not None:
        path, rows, size = sink.path(), 0, 0
        with _Writer(path, layout, piece) as writer:
            while piece is not None and (one or size < sink.file_bytes):
                writer.write(piece)
                rows += piece.num_rows
                size = os.path.getsize(path)
                sink.beat(piece.num_rows)
                piece = next(pieces, None)
        yield Output(path, rows, parts=parts)


def stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch as a file stores it: its columns in its order, text as a dictionary where it was one."""
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if pt.is_dictionary(field.type) and not pt.is_dictionary(column.type):
            column = column.dictionary_encode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Arrow's errors as ours. A stream is part of the call, so it is guarded to its end."""
    try:
        yield
    except (OSError, pa.ArrowException) as cause:
        if isinstance(cause, PenstockError):
            raise
        said = str(cause).partition("\n")[0][:200]
        raise Unavailable(
            "file_failed", f"{os.path.basename(path)} could not be read or written: {said}", path=os.path.basename(path)
        ) from cause


class _Writer:
    """A Parquet file laid out as asked; gone again if it is not finished."""

    def __init__(self, path: str, layout: Layout, first: pa.Table) -> None:
        self._path = path
        options = {"compression": layout.codec, **layout.options}
        before = options.get("use_dictionary", True)
        encoded = [path for path in repeating(first) if before is True or path in (before or ())]
        options["use_dictionary"] = encoded or False
        if layout.differences:
            counted = [field.name for field in layout.schema if _counts(field.type) and field.name not in encoded]
            options["column_encoding"] = dict.fromkeys(counted, "DELTA_BINARY_PACKED")
        with translated(path):
            self._writer = pq.ParquetWriter(path, layout.schema, **options)

    def write(self, group: pa.Table) -> None:
        with translated(self._path):
            self._writer.write_table(group, row_group_size=group.num_rows)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            with translated(self._path):
                self._writer.close()
        except PenstockError:
            if error is None:
                raise
        finally:
            if error:
                os.unlink(self._path)


def _counts(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pt.is_integer, pt.is_date32, pt.is_timestamp))


def _fragment(path: str) -> Any:
    return _FORMAT.make_fragment(path, filesystem=_LOCAL)


def _loose(schema: pa.Schema) -> pa.Schema:
    # "Required" is a promise of the whole target; a file without the column could not keep it for the scanner.
    return pa.schema([field.with_nullable(True) for field in schema])
