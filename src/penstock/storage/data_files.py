"""Write rows into immutable Parquet files, and know what is in them."""

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

from penstock import failpoints as faults
from penstock.core.dataset.changes import NewFile
from penstock.core.dataset.row_groups import GROUP_BYTES, Gathered, repeating
from penstock.core.names import CARRIED
from penstock.core.dataset.column_stats import Plain, Stats, has_stats, united
from penstock.errors import PenstockError
from penstock.storage.file_store import Sealed, Sink, Store


@dataclass(frozen=True, slots=True)
class Shape:
    """How large files and their parts become."""

    file_bytes: int = 128 << 20
    group_rows: int = 128 << 10  # a row group is read, skipped and held in memory as a whole
    group_bytes: int = GROUP_BYTES


_NAME = re.compile(r"(?P<lease>[0-9a-f]{32})-[0-9a-f]{16}\.parquet\Z")


def name(lease: UUID) -> str:
    """A name that was never used, and that tells whose file it is."""
    return f"{lease.hex}-{uuid4().hex[:16]}.parquet"


def lease_of(path: str) -> UUID | None:
    """Whose file it is; None for a file that Penstock did not name."""
    match = _NAME.match(path.rpartition("/")[2])
    return UUID(match["lease"]) if match else None


def write(
    store: Store,
    folder: str,
    lease: UUID,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    shape: Shape,
    wrote: Callable[[int], None],
) -> tuple[NewFile, ...]:
    """Write the batches, in order, into as many files as they need. All are durable when it returns; none on failure.

    `wrote` hears of every row group: a place to show progress and signs of life.
    """
    writer = Writer(store, folder, lease, schema, shape=shape, wrote=wrote)
    try:
        for batch in batches:
            writer.add(batch)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


class Writer:
    """Writes batches that come one by one. A row group is encoded while the next one is gathered; no more are held."""

    def __init__(
        self,
        store: Store,
        folder: str,
        lease: UUID,
        schema: pa.Schema,
        *,
        shape: Shape,
        wrote: Callable[[int], None],
    ) -> None:
        self._store, self._folder, self._lease, self._schema = store, folder, lease, schema
        self._shape, self._wrote = shape, wrote
        self._gathered = Gathered(schema, shape.group_rows, shape.group_bytes)
        self._beside = ThreadPoolExecutor(2)  # starts no thread before it has something to do
        self._file: _OpenFile | None = None
        self._encoding: Future[int] | None = None
        self._sealed: list[Future[NewFile]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for group in self._gathered.add(batch):
            self._encoding = self._beside.submit(self._ready(group).write, group)

    def finish(self) -> tuple[NewFile, ...]:
        """The files, all durable. After a failure, here or in `add`, `discard` removes what there is."""
        if rest := self._gathered.rest():
            self._wrote(self._ready(rest).write(rest))
        self._encoded()
        if self._file or self._sealed:
            self._seal()  # all names are there, so that they become durable while the last content does
            self._store.sync(self._folder)
        done = tuple(sealed.result() for sealed in self._sealed)
        if done:
            faults.at("stage.synced")
        self._beside.shutdown()
        return done

    def discard(self) -> None:
        self._beside.shutdown()
        if self._file:
            self._file.discard()
        discard(self._store, [sealed.result() for sealed in self._sealed if not sealed.exception()])

    def _ready(self, group: pa.Table) -> "_OpenFile":
        """The file that takes the next row group."""
        self._encoded()
        if self._file is None:
            path = f"{self._folder}/{name(self._lease)}"
            self._file = _OpenFile(self._store, path, self._schema, repeating(group))
        return self._file

    def _encoded(self) -> None:
        """Wait for the row group that is being encoded. A file that is large enough ends with it."""
        if self._encoding:
            self._wrote(self._encoding.result())
            self._encoding = None
        if self._file and self._file.size >= self._shape.file_bytes:
            self._seal()

    def _seal(self) -> None:
        file, self._file = self._file, None
        if file:
            self._sealed.append(self._beside.submit(file.seal))


def adopt(store: Store, located: str, path: str, schema: pa.Schema) -> NewFile:
    """Take over a file that an engine has written. It must hold exactly these columns, and row ids where it carries them."""
    faults.at("stage.written")
    sealed = store.adopt(located, path)
    with pq.ParquetFile(store.locate(path), filesystem=store.filesystem) as parquet:
        footer, stored = parquet.metadata, parquet.schema_arrow
    found = {field.name: field.type for field in stored if field.name != CARRIED}
    if found != {field.name: field.type for field in schema}:
        raise AssertionError(f"an engine wrote {found}, and not {schema}")
    return _known(path, sealed, footer, stored)


def discard(store: Store, files: Iterable[NewFile]) -> None:
    """Remove files of a write that was refused. What cannot be removed now is swept later."""
    for file in files:
        with suppress(PenstockError):
            store.remove(file.path)


class _OpenFile:
    def __init__(self, store: Store, path: str, schema: pa.Schema, encoded: list[str]) -> None:
        self.path, self.schema = path, schema
        self._sink: Sink = store.create(path)
        self._footer: list[pq.FileMetaData] = []
        try:
            faults.at("stage.opened")
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
            faults.at("stage.written")
            return _known(self.path, self._sink.seal(), self._footer[0], self.schema)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        with suppress(Exception):  # the writer may complain of what is half done; the file goes all the same
            self._writer.close()
        self._sink.discard()


def _known(path: str, sealed: Sealed, footer: pq.FileMetaData, schema: pa.Schema) -> NewFile:
    stats = dict(_stats(footer, schema))
    ids = stats.pop(CARRIED, None)
    return NewFile(
        path=path,
        rows=footer.num_rows,
        bytes=sealed.bytes,
        checksum=sealed.checksum,
        stats=stats,
        row_ids=(ids.low, ids.high) if ids else None,  # type: ignore[arg-type]
    )


def _stats(footer: pq.FileMetaData, schema: pa.Schema) -> Iterator[tuple[str, Stats]]:
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    leaf = 0
    for field in schema:
        if has_stats(field.type):
            yield field.name, united((g.num_rows, _group_stats(g.column(leaf), field.type)) for g in groups)
        leaf += _leaves(field.type)


def _leaves(kept: pa.DataType) -> int:
    """Parquet counts columns by their leaves."""
    return sum(_leaves(kept.field(i).type) for i in range(kept.num_fields)) if pt.is_nested(kept) else 1


def _group_stats(column: pq.ColumnChunkMetaData, kept: pa.DataType) -> Stats:
    found = column.statistics
    if found is None or not found.has_null_count:
        return Stats(None, None, 0)
    if not found.has_min_max:
        return Stats(None, None, found.null_count)
    low, high = _plain(found.min_raw, kept), _plain(found.max_raw, kept)
    if low != low or high != high:  # NaN bounds nothing; not every writer leaves it out
        return Stats(None, None, found.null_count)
    return Stats(low, high, found.null_count)


def _plain(raw: Any, kept: pa.DataType) -> Plain:
    """A footer's value as core.stats keeps it."""
    if pt.is_string(kept):
        return str(raw, "utf-8")
    if pt.is_decimal(kept):
        unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
        return Decimal(f"{unscaled}e-{kept.scale}")
    if pt.is_boolean(kept):
        return int(raw)
    return raw  # type: ignore[no-any-return]
