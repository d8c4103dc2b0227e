"""Rows on their way out: read and coded in a thread, one batch ahead of what the client takes."""

import asyncio
import threading
from collections.abc import AsyncGenerator

import pyarrow as pa

from penstock.flight import ipc_messages as messages
from penstock.flight.interceptor import Call


async def sent(call: Call, reader: pa.RecordBatchReader) -> AsyncGenerator[bytes, None]:
    """The schema and all rows. However slowly they are taken, no thread waits, and two batches are held at most."""
    rows = _Rows(reader, call.edge.limits.message_bytes)
    ahead = call.work.begin(rows.next)
    try:
        yield messages.of_schema(reader.schema)
        while batch := await asyncio.wrap_future(ahead):
            ahead = call.work.begin(rows.next)
            count, pieces = batch
            for piece in pieces:
                yield piece
            call.rows_out += count
    finally:
        call.work.begin(rows.close)


class _Rows:
    def __init__(self, reader: pa.RecordBatchReader, most: int) -> None:
        self._reader, self._most = reader, most
        self._turn = threading.Lock()  # a client may go away while a batch is read

    def next(self) -> tuple[int, list[bytes]] | None:
        """The next batch as messages; None at the end."""
        with self._turn:
            batch = next(self._reader, None)
        return None if batch is None else (batch.num_rows, list(messages.of_batch(batch, self._most)))

    def close(self) -> None:
        with self._turn:
            self._reader.close()
