"""Rows held so that they can be read again: in memory while they are few, else in a file that is mapped into memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.errors import Unavailable

HELD_BYTES = 256 << 20


def spool(schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: Callable[[], str]) -> pa.Table:
    """All rows as one table. `path` gives the name of a file, if one is needed; the caller removes it."""
    held = Spool(schema, path)
    try:
        for batch in batches:
            held.add(batch)
        return held.table()
    finally:
        held.close()


class Spool:
    """The same for batches that come one by one."""

    def __init__(self, schema: pa.Schema, path: Callable[[], str], *, held_bytes: int = HELD_BYTES) -> None:
        self._schema, self._new_path, self._room = schema, path, held_bytes
        self._held: list[pa.RecordBatch] = []
        self._path = ""
        self._file: tuple[pa.NativeFile, pa.ipc.RecordBatchFileWriter] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._room -= batch.nbytes
        self._held.append(batch)
        if self._room < 0:
            with _stored():
                self._spill()

    def table(self) -> pa.Table:
        """All that was added. Nothing can be added after it."""
        if self._file is None:
            return pa.Table.from_batches(self._held, self._schema)
        with _stored():
            self.close()
            return pa.ipc.open_file(pa.memory_map(self._path)).read_all()

    def close(self) -> None:
        """Be done with the file. What is mapped of it stays readable."""
        if self._file is not None and not self._file[0].closed:
            sink, writer = self._file
            try:
                writer.close()
            finally:
                sink.close()

    def _spill(self) -> None:
        if self._file is None:
            self._path = self._new_path()
            sink = pa.OSFile(self._path, "wb")
            self._file = sink, pa.ipc.new_file(sink, self._schema)
        while self._held:
            self._file[1].write_batch(self._held.pop(0))


@contextmanager
def _stored() -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise Unavailable("storage_failed", f"the rows could not be set aside: {cause.strerror or cause}") from None
