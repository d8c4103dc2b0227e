"""Hold rows so that they can be read several times: in memory up to a limit, else in a memory-mapped file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.errors import Unavailable

MAX_MEMORY_BYTES = 256 << 20


def spool(schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: Callable[[], str]) -> pa.Table:
    """Return all rows as one table. `path` is called for the name of a file if one is needed; the caller removes the
    file.
    """
    rows = Spool(schema, path)
    try:
        for batch in batches:
            rows.add(batch)
        return rows.table()
    finally:
        rows.close()


class Spool:
    """A spool for batches that are added one by one."""

    def __init__(self, schema: pa.Schema, path: Callable[[], str], *, held_bytes: int = MAX_MEMORY_BYTES) -> None:
        self._schema, self._new_path, self._free_bytes = schema, path, held_bytes
        self._batches: list[pa.RecordBatch] = []
        self._path = ""
        self._file: tuple[pa.NativeFile, pa.ipc.RecordBatchFileWriter] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch. Batches above the memory limit are written to the file."""
        self._free_bytes -= batch.nbytes
        self._batches.append(batch)
        if self._free_bytes < 0:
            with _translate_errors():
                self._spill()

    def table(self) -> pa.Table:
        """Return all added rows. No batch can be added afterwards."""
        if self._file is None:
            return pa.Table.from_batches(self._batches, self._schema)
        with _translate_errors():
            self.close()
            return pa.ipc.open_file(pa.memory_map(self._path)).read_all()

    def close(self) -> None:
        """Close the file. Rows that are mapped from it stay readable."""
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
        while self._batches:
            self._file[1].write_batch(self._batches.pop(0))


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise Unavailable("storage_failed.spool", {"error": cause.strerror or cause}) from None
