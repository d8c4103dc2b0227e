"""Encode the response stream of DoGet: a thread reads and encodes one batch ahead of the client."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Future

import pyarrow as pa

from penstock.flight import ipc_messages
from penstock.flight.interceptor import FlightCall


async def encode_stream(call: FlightCall, reader: pa.RecordBatchReader) -> AsyncGenerator[bytes, None]:
    """Yield the schema and all batches of a reader as FlightData messages.

    A slow client blocks no thread. At most two batches are in memory: the one that is sent, and, if there is memory for
    another one of its size, the next one.

    Raises:
        Unavailable: too little memory is left for a batch (memory_exhausted, tenant_memory_exhausted)
    """
    sent, read_ahead = call.reserve(), call.reserve()
    encoder = _BatchEncoder(reader, call.context.limits.message_bytes)
    next_batch: Future[tuple[int, list[bytes]] | None] | None = None
    try:
        yield ipc_messages.encode_schema(reader.schema)
        while batch := await asyncio.wrap_future(next_batch or call.threads.submit(encoder.next)):
            rows, messages = batch
            read_ahead.release()
            size = sum(map(len, messages))
            sent.grow(size)
            next_batch = call.threads.submit(encoder.next) if read_ahead.try_grow(size) else None
            for message in messages:
                yield message
            sent.release()
            call.rows_out += rows
    finally:
        call.threads.submit(encoder.close)


class _BatchEncoder:
    def __init__(self, reader: pa.RecordBatchReader, max_message_bytes: int) -> None:
        self._reader, self._max_message_bytes = reader, max_message_bytes
        self._lock = threading.Lock()  # a call may end while a thread reads a batch

    def next(self) -> tuple[int, list[bytes]] | None:
        """Return the row count and the messages of the next batch; None at the end."""
        with self._lock:
            batch = next(self._reader, None)
        return (
            None if batch is None else (batch.num_rows, list(ipc_messages.encode_batch(batch, self._max_message_bytes)))
        )

    def close(self) -> None:
        with self._lock:
            self._reader.close()
