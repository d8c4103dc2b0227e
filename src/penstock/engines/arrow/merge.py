"""Merge with PyArrow: files are streamed batch by batch, and only the source's keys are held."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.core import merge
from penstock.core.groups import groups
from penstock.core.merge import Layout, Match, Matched, Output, Plan, Rest, Sink, TargetFile, Work
from penstock.core.names import CARRIED
from penstock.core.reach import Reach
from penstock.core.schema import conform
from penstock.engines.arrow.keys import Keys, comparable, first_repeat, highest
from penstock.errors import PenstockError, Unavailable

_FORMAT = pads.ParquetFileFormat()
_LOCAL = fs.LocalFileSystem()
_LEAN = pads.ParquetFragmentScanOptions(pre_buffer=False)
_ROW_ID = pa.field(CARRIED, pa.int64(), nullable=False)

_T = TypeVar("_T")


class Arrow:
    name = "pyarrow"

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or os.cpu_count() or 1

    def open(self, plan: Plan, source: pa.Table) -> "ArrowSession":
        return ArrowSession(plan, source, self._workers)

    def refuses(self, _schema: pa.Schema) -> str | None:
        return None  # what Arrow reads from Parquet, it writes


class ArrowSession:
    def __init__(self, plan: Plan, source: pa.Table, workers: int) -> None:
        self._plan, self._workers = plan, workers
        keys = [comparable(source[name]) for name in plan.keys]
        if nulls := {name: key.null_count for name, key in zip(plan.keys, keys, strict=True) if key.null_count}:
            raise merge.null_keys("source", nulls)
        numbers = Keys(keys).numbers
        if plan.write.deduplicates:
            kept = highest(numbers, [source[name] for name in plan.order_by])
            if len(kept) < source.num_rows:
                source, keys = source.take(kept), [key.take(kept) for key in keys]
        elif repeat := first_repeat(numbers):
            rows, at = repeat
            raise merge.duplicate_keys(plan.keys, rows, [source[name][at].as_py() for name in plan.keys])
        self._source, self._keys = source, keys
        self.reach = Reach.of(pa.table(dict(zip(plan.keys, keys, strict=True))))
        self._first = next((i for i, name in enumerate(plan.keys) if name in self.reach.columns), None)
        self._order = None if self._first is None else pc.array_sort_indices(keys[self._first])
        self._found: dict[str, pa.Array] = {}  # file → the source's rows that it holds
        self._hit = np.zeros(source.num_rows, dtype=bool)
        self._stop = threading.Event()

    def nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        counts = dict.fromkeys(self._plan.keys, 0)
        for each in self._all(self._nulls_in, files):
            for name, count in each.items():
                counts[name] += count
        return {name: count for name, count in counts.items() if count}

    def match(self, files: Sequence[TargetFile]) -> Match:
        self._found.clear()
        self._hit[:] = False
        counts = {}
        for file, (places, count) in zip(files, self._all(self._match_one, files), strict=True):
            if count:
                self._found[file.path], counts[file.path] = places, count
                self._hit[places.to_numpy()] = True
        return Match(counts, int(len(self._hit) - self._hit.sum()), len(self._hit))

    def write(self, work: Work, sink: Sink) -> list[Output]:
        moved: dict[tuple[Any, ...], list[pa.Table]] = {}
        written = self._all(lambda file: self._rewrite(file, sink, moved), work.rewrite)
        outputs = [output for output in written if output]
        fresh = self._source.take(np.flatnonzero(~self._hit)) if work.insert else self._source.slice(0, 0)
        whole = pa.Table.from_batches(map(self._padded, fresh.to_batches()), self._plan.schema)
        for parts, tables in self._parted(whole, moved):
            outputs += _fresh(tables, parts, sink)
        return outputs

    def close(self) -> None:
        self._found.clear()

    def _all(self, do: Callable[[TargetFile], _T], files: Sequence[TargetFile]) -> Iterator[_T]:
        """As many files at a time as there are workers, answered in order. An error, or Ctrl-C, stops the others."""
        if len(files) < 2 or self._workers < 2:
            yield from map(do, files)
            return
        self._stop.clear()
        with ThreadPoolExecutor(self._workers) as pool:
            try:
                yield from pool.map(do, files)
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    # Matching

    def _nulls_in(self, file: TargetFile) -> dict[str, int]:
        counts = {name: file.rows for name in self._plan.keys if name in file.parts and file.parts[name] is None}
        stored = [name for name in self._plan.keys if name not in file.parts]
        missing = pc.field(stored[0]).is_null() if stored else None
        for name in stored[1:]:
            missing = missing | pc.field(name).is_null()
        for batch in self._scan(file, stored, missing) if stored else ():
            for name in stored:
                counts[name] = counts.get(name, 0) + batch.column(name).null_count
        return counts

    def _match_one(self, file: TargetFile) -> tuple[pa.Array, int]:
        """The source's rows whose key the file has, and how many of the file's rows have one."""
        mine = self._near(file)
        keys = self._keys if mine is None else [key.take(mine) for key in self._keys]
        held = [name for name in self._plan.keys if name not in file.parts]
        lookup, found, count = Keys(keys), [], 0
        if not len(lookup.numbers):
            return pa.array([], pa.int64()), 0
        # A lookup builds its table of the source's keys each time, so it is asked about many rows at once.
        rows = max(self._plan.batch_rows, len(lookup.numbers))
        batches = self._scan(file, held, self._range(keys, file))
        for block in groups(batches, pa.schema([self._plan.schema.field(n) for n in held]), rows):
            places = lookup.find(self._key_columns(block, file)).drop_null()
            count += len(places)
            found.append(pc.unique(places))
        places = pc.unique(pa.chunked_array(found, pa.int32())).cast(pa.int64())
        return (places if mine is None else mine.take(places)).cast(pa.int64()), count

    def _near(self, file: TargetFile) -> pa.Array | None:
        """Those of the source's rows that lie within the file's range on one key column; None: all of them."""
        if self._first is None or self._order is None:
            return None
        name = self._plan.keys[self._first]
        low, high = file.bounds.get(name, (None, None))
        if low is None or high is None:
            return None
        first, last = self.reach.between(name, low, high)
        values = self.reach.columns[name]
        if (first, last) == (0, len(values)):
            return None
        near = values.slice(first, last - first)
        if len(values) == len(self._order):  # every value stands once, so sorted values and sorted rows are in step
            return self._order.slice(first, last - first)
        return pa.array(np.flatnonzero(pc.is_in(self._keys[self._first], value_set=near)))

    def _range(self, keys: Sequence[pa.Array], file: TargetFile) -> pc.Expression | None:
        """What the scanner may leave out: rows beyond the source's lowest and highest keys."""
        said: pc.Expression | None = None
        for name, key in zip(self._plan.keys, keys, strict=True):
            if name in file.parts or name not in self.reach.columns or pt.is_boolean(key.type):
                continue
            ends = pc.min_max(key)
            low, high = (ends[end].cast(self._plan.schema.field(name).type) for end in ("min", "max"))
            within = (pc.field(name) >= low) & (pc.field(name) <= high)
            said = within if said is None else said & within
        return said

    def _key_columns(self, rows: pa.Table | pa.RecordBatch, file: TargetFile) -> list[pa.Array]:
        return [
            comparable(
                pa.repeat(pa.scalar(file.parts[name], self._plan.schema.field(name).type), rows.num_rows)
                if name in file.parts
                else rows.column(name)
            )
            for name in self._plan.keys
        ]

    # Writing

    def _rewrite(self, file: TargetFile, sink: Sink, moved: dict[tuple[Any, ...], list[pa.Table]]) -> Output | None:
        path = sink.path()
        rows_stored = (stored(batch, file.layout.schema) for batch in self._successor(file, moved))
        rows = 0
        with _Writer(path, file.layout) as writer:
            for group in groups(rows_stored, file.layout.schema, file.layout.group_rows):
                writer.write(group)
                rows += group.num_rows
                sink.beat(group.num_rows)
        if not rows:
            os.unlink(path)
        return Output(path, rows, replaces=file, parts=file.parts) if rows else None

    def _successor(self, file: TargetFile, moved: dict[tuple[Any, ...], list[pa.Table]]) -> Iterator[pa.RecordBatch]:
        """The file's rows, in their order, as they are afterwards."""
        plan = self._plan
        mine = self._found.get(file.path)
        source = None if mine is None else self._source.take(mine).combine_chunks()
        lookup = None if mine is None else Keys([key.take(mine) for key in self._keys])
        wanted = plan.schema.names if plan.keeps_columns else plan.keys
        columns = [name for name in wanted if name not in file.parts]
        position = 0
        for batch in self._scan(file, [*columns, *([CARRIED] if plan.row_ids and file.first_row_id is None else [])]):
            if self._stop.is_set():
                return
            rows = self._whole(batch, file, position)
            position += batch.num_rows
            if source is None or lookup is None:
                places = pa.nulls(batch.num_rows, pa.int32())
            else:
                places = lookup.find(self._key_columns(batch, file))
            if places.null_count < len(places) and plan.write.matched is Matched.UPDATE:
                assert source is not None
                rows = self._updated(rows, places, source)
            if plan.write.rest is Rest.DELETE and places.null_count:
                rows = rows.filter(places.is_valid())
            if plan.partitions:
                rows = self._stay(rows, file, moved)
            if rows.num_rows:
                yield rows

    def _whole(self, batch: pa.RecordBatch, file: TargetFile, position: int) -> pa.RecordBatch:
        """The batch with the columns that its folder tells, and with its row ids."""
        columns, fields = [], []
        for field in self._plan.schema:
            if field.name in file.parts:
                columns.append(pa.repeat(pa.scalar(file.parts[field.name], field.type), batch.num_rows))
            elif (place := batch.schema.get_field_index(field.name)) >= 0:
                columns.append(batch.column(place))
            else:  # every row that stays takes this column from the source
                columns.append(pa.nulls(batch.num_rows, field.type))
            fields.append(field.with_nullable(True))
        if self._plan.row_ids:
            first = file.first_row_id
            ids = batch.column(CARRIED) if first is None else pa.arange(first + position, first + position + len(batch))
            columns.append(ids)
            fields.append(_ROW_ID)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _updated(self, rows: pa.RecordBatch, places: pa.Array, source: pa.Table) -> pa.RecordBatch:
        hit = places.is_valid()
        replacement = source.take(places.drop_null())
        picks = np.arange(rows.num_rows)
        picks[np.flatnonzero(hit)] = rows.num_rows + np.arange(replacement.num_rows)
        columns = []
        for field, column in zip(rows.schema, rows.columns, strict=True):
            if field.name in self._plan.given and (field.name not in self._plan.keys or pt.is_floating(field.type)):
                new = _one(replacement[field.name])
                if pt.is_primitive(field.type) and not pt.is_duration(field.type):
                    column = pc.replace_with_mask(column, hit, new)
                else:
                    column = pa.concat_arrays([column, new]).take(pa.array(picks))
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def _stay(
        self, rows: pa.RecordBatch, file: TargetFile, moved: dict[tuple[Any, ...], list[pa.Table]]
    ) -> pa.RecordBatch:
        """Those rows whose partition is still the file's own; the others are put with the rows of theirs."""
        here = tuple(file.parts[name] for name in self._plan.partitions)
        stay = rows.slice(0, 0)
        for parts, part in self._by_parts(pa.Table.from_batches([rows])):
            if parts == here:
                stay = part.combine_chunks().to_batches()[0]
            else:
                moved.setdefault(parts, []).append(part.select(self._plan.schema.names))
        return stay

    def _parted(
        self, fresh: pa.Table, moved: Mapping[tuple[Any, ...], list[pa.Table]]
    ) -> Iterator[tuple[dict[str, Any], list[pa.Table]]]:
        """Rows for new files, by partition: those that are new, and those that came from another."""
        gathered: dict[tuple[Any, ...], list[pa.Table]] = {parts: list(tables) for parts, tables in moved.items()}
        for parts, part in self._by_parts(fresh):
            gathered.setdefault(parts, []).append(part)
        for parts, tables in gathered.items():
            yield dict(zip(self._plan.partitions, parts, strict=True)), tables

    def _by_parts(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        names = self._plan.partitions
        if not rows.num_rows:
            return
        if not names:
            yield (), rows
            return
        numbers = Keys([comparable(rows[name]) for name in names]).numbers
        codes = numbers.dictionary_encode(null_encoding="encode").indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            part = rows if len(places) == rows.num_rows else rows.take(places)
            yield tuple(part[name][0].as_py() for name in names), part

    def _padded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Source rows as whole rows: what the source does not bring is NULL."""
        return conform(batch, self._plan.schema)

    def _scan(
        self, file: TargetFile, columns: Sequence[str], where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A file's rows in their order, `batch_rows` at most at once. Columns that it lacks are NULL."""
        # "Required" is a promise of the whole target; a file without the column could not keep it for the scanner.
        fields = [field.with_nullable(True) for field in self._plan.schema if field.name not in file.parts]
        if self._plan.row_ids:
            fields.append(_ROW_ID)
        with _translated(file.path):
            scanner = _FORMAT.make_fragment(file.path, filesystem=_LOCAL).scanner(
                schema=pa.schema(fields),
                columns=list(columns),
                filter=where,
                batch_size=self._plan.batch_rows,
                batch_readahead=2,
                fragment_readahead=1,
                fragment_scan_options=_LEAN,
                use_threads=False,
            )
            yield from scanner.to_batches()


class _Writer:
    """A Parquet file laid out as asked; gone again if it is not finished."""

    def __init__(self, path: str, layout: Layout) -> None:
        self._path = path
        with _translated(path):
            self._writer = pq.ParquetWriter(path, layout.schema, **{"compression": layout.codec, **layout.options})

    def write(self, group: pa.Table) -> None:
        with _translated(self._path):
            self._writer.write_table(group, row_group_size=group.num_rows)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            with _translated(self._path):
                self._writer.close()
        except PenstockError:
            if error is None:
                raise
        finally:
            if error:
                os.unlink(self._path)


def _fresh(tables: Iterable[pa.Table], parts: Mapping[str, Any], sink: Sink) -> Iterator[Output]:
    """New rows in files of about the size that is asked for."""
    layout = sink.layout
    batches = (stored(batch, layout.schema) for table in tables for batch in table.to_batches())
    pieces = groups(batches, layout.schema, layout.group_rows)
    piece = next(pieces, None)
    while piece is not None:
        path, rows, size = sink.path(), 0, 0
        with _Writer(path, layout) as writer:
            while piece is not None and size < sink.file_bytes:
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
def _translated(path: str) -> Iterator[None]:
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


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()
