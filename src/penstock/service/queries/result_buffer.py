"""Buffer query results until they are validated: in memory while the shared budget lasts, otherwise in a file."""

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack

import pyarrow as pa

from penstock.service.fair_shares import Shareholder
from penstock.service.memory_budget import MemoryBudget
from penstock.storage.spool import MAX_MEMORY_BYTES, Spool


class ResultBuffer:
    """Collect results within the memory budget of the requests. It is thread-safe."""

    def __init__(self, budget: MemoryBudget, max_result_bytes: int = MAX_MEMORY_BYTES) -> None:
        """Use at most `max_result_bytes` of memory for one result."""
        self._budget, self._max_result_bytes = budget, max_result_bytes

    def collect(self, caller: Shareholder, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Return all rows as a table. The budget is released when this table is garbage-collected: keep it."""
        buffered, remaining = list[pa.RecordBatch](), iter(batches)
        reservation = self._budget.reserve(caller)
        try:
            for batch in remaining:
                size = batch.get_total_buffer_size()
                buffered.append(batch)
                if reservation.size + size > self._max_result_bytes or not reservation.try_grow(size):
                    reservation.release()
                    return _spool_to_file(schema, buffered, remaining)
            table = pa.Table.from_batches(buffered, schema)
        except BaseException:
            reservation.release()
            raise
        reservation.release_with(table)
        return table


def _spool_to_file(schema: pa.Schema, buffered: list[pa.RecordBatch], remaining: Iterable[pa.RecordBatch]) -> pa.Table:
    with ExitStack() as cleanup:
        # A memory-mapped file stays readable after it has been deleted.
        folder = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="penstock-result-"))
        spool = Spool(schema, lambda: f"{folder}/rows", held_bytes=0)
        cleanup.callback(spool.close)
        while buffered:
            spool.add(buffered.pop(0))
        for batch in remaining:
            spool.add(batch)
        return spool.table()
