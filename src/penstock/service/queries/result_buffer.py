"""Rows held back until the last one has come: in memory while there is room for all who hold some, else in a file."""

import tempfile
import threading
import weakref
from collections.abc import Iterable
from contextlib import ExitStack

import pyarrow as pa

from penstock.storage.spool import HELD_BYTES, Spool

ROOM_BYTES = 512 << 20  # for all answers that a process holds at once


class Room:
    """Memory that answers share. Threads may share it."""

    def __init__(self, most_bytes: int = ROOM_BYTES, one_bytes: int = HELD_BYTES) -> None:
        self._left, self._one = most_bytes, one_bytes
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        return self._left

    def hold(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """All rows. What they take is given back when the table is gone, so whoever reads them must keep it."""
        held, taken, coming = list[pa.RecordBatch](), 0, iter(batches)
        try:
            for batch in coming:
                size = batch.get_total_buffer_size()
                held.append(batch)
                if taken + size > self._one or not self._take(size):
                    return _set_aside(schema, held, coming)
                taken += size
            table = pa.Table.from_batches(held, schema)
            weakref.finalize(table, self._give, taken).atexit = False
            taken = 0  # it is the table's now
            return table
        finally:
            self._give(taken)

    def _take(self, size: int) -> bool:
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
            return fits

    def _give(self, size: int) -> None:
        with self._lock:
            self._left += size


def _set_aside(schema: pa.Schema, held: list[pa.RecordBatch], coming: Iterable[pa.RecordBatch]) -> pa.Table:
    with ExitStack() as leaving:
        # A file that is mapped stays readable when its name is gone.
        folder = leaving.enter_context(tempfile.TemporaryDirectory(prefix="penstock-result-"))
        rows = Spool(schema, lambda: f"{folder}/rows", held_bytes=0)
        leaving.callback(rows.close)
        while held:
            rows.add(held.pop(0))
        for batch in coming:
            rows.add(batch)
        return rows.table()
