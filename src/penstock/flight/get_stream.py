"""Encode the response stream of DoGet: a thread reads and encodes one batch ahead of the client."""

import asyncio
import threading
from collections.abc import AsyncGenerator

import pyarrow as pa

from penstock.flight import ipc_messages
from penstock.flight.interceptor import FlightCall


async def encode_stream(call: FlightCall, reader: pa.RecordBatchReader) -> AsyncGenerator[bytes, None]:
    """Yield the schema and all batches of a reader as FlightData messages.

    A slow client blocks no thread, and at most two batches are in memory.

    Raises:
        Unavailable: too little memory is left for a batch (memory_exhausted, tenant_memory_exhausted)
    """
    memory = call.reserve()
    encoder = _BatchEncoder(reader, call.context.limits.message_bytes)
    next_batch = call.threads.submit(encoder.next)
    try:
        yield ipc_messages.encode_schema(reader.schema)
        while batch := await asyncio.wrap_future(next_batch):
            rows, messages = batch
            memory.grow(sum(map(len, messages)))
            next_batch = call.threads.submit(encoder.next)
            for message in messages:
                yield message
            memory.release()
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
