"""Decode the request stream of DoPut: descriptor, schema and record batches."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError

from penstock.errors import Invalid
from penstock.flight import flight_data, ipc_messages
from penstock.flight.flight_pb2 import FlightDescriptor
from penstock.flight.thread_pool import ThreadPool
from penstock.service.memory_budget import Reservation

_INLINE_BYTES = 32 << 10  # decoding a smaller body takes less time than passing it to a thread
_INLINE_HEADER_BYTES = 4 << 10  # a header is parsed field by field
P = ParamSpec("P")
T = TypeVar("T")

ReadMessage = Callable[[], Awaitable[bytes | None]]  # returns the client's next message; None at the end
Reserve = Callable[[], Reservation]


class PutStream:
    """Iterate over the validated batches of a DoPut stream. The next message is received while a batch is processed.

    The memory of a message is reserved when it arrives, that of its batch before it is decoded and decompressed.
    """

    rows = 0  # received so far

    def __init__(
        self, read_message: ReadMessage, threads: ThreadPool, max_message_bytes: int, reserve: Reserve
    ) -> None:
        """Decode messages of at most `max_message_bytes`, decompressed."""
        self._read_message, self._threads, self._max_message_bytes = read_message, threads, max_message_bytes
        self._messages, self._batches = reserve(), reserve()  # memory of messages and of batches
        self._prefetch: asyncio.Task[bytes | None] | None = None
        self._peeked: flight_data.FlightData | None = None  # the next message, if it was decoded but not consumed
        self._peeked_bytes = 0
        self._descriptor: FlightDescriptor | None = None
        self._schema: pa.Schema | None = None
        self._ended = False

    async def descriptor(self) -> FlightDescriptor:
        """Return the descriptor of the first message."""
        if self._descriptor is None:
            first = await self._peek()
            if first is None or first.descriptor is None:
                raise Invalid("missing_descriptor")
            self._descriptor = _parse_descriptor(first.descriptor)
            if not first.header:  # the message has no schema
                self._peeked = None
                self._messages.shrink(self._peeked_bytes - len(first.descriptor))
        return self._descriptor

    async def schema(self) -> pa.Schema | None:
        """Return the schema; None if the stream ends before it, and so has no rows."""
        await self.descriptor()
        if self._schema is None and (data := await self._peek()) is not None:
            self._peeked = None
            self._schema = await self._decode(data, ipc_messages.decode_schema)
            self._messages.shrink(self._peeked_bytes)
        return self._schema

    async def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        if (schema := await self.schema()) is None:
            return
        while (data := await self._peek()) is not None:
            self._peeked = None
            if data.descriptor is not None:
                raise Invalid("late_descriptor", row=self.rows)
            self._batches.grow(await self._decode(data, ipc_messages.memory_size, self._max_message_bytes))
            batch = await self._decode(data, ipc_messages.decode_batch, schema, self._max_message_bytes, self.rows)
            del data
            self._messages.shrink(self._peeked_bytes)
            self._start_prefetch()
            self.rows += batch.num_rows
            if batch.num_rows:
                yield batch
            del batch
            self._batches.release()

    def close(self) -> None:
        """Stop reading; messages that still arrive are ignored."""
        self._ended = True
        if self._prefetch:
            self._prefetch.cancel()
            self._prefetch.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _decode(
        self,
        data: flight_data.FlightData,
        function: Callable[Concatenate[flight_data.FlightData, P], T],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        if len(data.header) < _INLINE_HEADER_BYTES and len(data.body) < _INLINE_BYTES:
            return function(data, *args, **options)
        return await self._threads.run(function, data, *args, **options)

    async def _peek(self) -> flight_data.FlightData | None:
        """Return the next message with content. Messages with metadata alone are skipped."""
        while self._peeked is None and not self._ended:
            self._start_prefetch()
            assert self._prefetch
            prefetch, self._prefetch = self._prefetch, None  # a task that keeps its exception would be a cycle
            message = await prefetch
            del prefetch
            if message is None:
                self._ended = True
                break
            data, self._peeked_bytes = flight_data.decode(message), len(message)
            if data.header or (data.descriptor is not None and self._descriptor is None):
                self._peeked = data
            elif data.body:
                raise Invalid("bad_message.missing_header", row=self.rows)
            else:
                self._messages.shrink(self._peeked_bytes)
        return self._peeked

    def _start_prefetch(self) -> None:
        """Begin to receive the next message."""
        if self._prefetch is None and not self._ended:
            self._prefetch = asyncio.get_running_loop().create_task(self._receive())

    async def _receive(self) -> bytes | None:
        message = await self._read_message()
        if message is not None:
            self._messages.grow(len(message))
        return message


def _parse_descriptor(serialized: bytes) -> FlightDescriptor:
    flight_data.check_field_count(serialized)
    try:
        descriptor: FlightDescriptor = FlightDescriptor.FromString(serialized)
    except DecodeError:
        raise Invalid("bad_message.descriptor") from None
    return descriptor
