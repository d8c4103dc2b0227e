"""Rows on their way in: what a client's stream of FlightData says, asked for piece by piece."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pyarrow as pa
from google.protobuf.message import DecodeError

from penstock.errors import Invalid
from penstock.flight import ipc_messages as messages
from penstock.flight import flight_data as wire
from penstock.flight.flight_pb2 import FlightDescriptor
from penstock.flight.thread_pool import Work

_AT_ONCE = 32 << 10  # bytes: a smaller message is read faster than it is handed to a thread


Read = Callable[[], Awaitable[bytes | None]]  # the next message of a client; None: it has said all


class Incoming:
    """A descriptor, a schema, and batches that fit it, each proven sound. While one is worked on, the next arrives."""

    rows = 0  # so far

    def __init__(self, read: Read, work: Work, most: int) -> None:
        """`most`: bytes that a message may unpack to."""
        self._read, self._work, self._most = read, work, most
        self._ahead: asyncio.Task[bytes | None] | None = None
        self._held: wire.Data | None = None  # the next message, if it was looked at
        self._descriptor: FlightDescriptor | None = None
        self._schema: pa.Schema | None = None
        self._over = False

    async def descriptor(self) -> FlightDescriptor:
        if self._descriptor is None:
            first = await self._look()
            if first is None or first.descriptor is None:
                raise Invalid("no_descriptor", "the first message must say what the rows are for: a descriptor")
            self._descriptor = _descriptor(first.descriptor)
            if not first.header:  # it came alone
                self._held = None
        return self._descriptor

    async def schema(self) -> pa.Schema | None:
        """None if the stream ends without one: it brings no rows."""
        await self.descriptor()
        if self._schema is None and (data := await self._look()) is not None:
            self._held = None
            self._schema = messages.schema_of(data)
        return self._schema

    async def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        if (schema := await self.schema()) is None:
            return
        while (data := await self._look()) is not None:
            self._held = None
            if data.descriptor is not None:
                raise Invalid("late_descriptor", "only the first message of a stream has a descriptor", row=self.rows)
            self._fetch()
            if len(data.body) < _AT_ONCE:
                batch = messages.batch_of(data, schema, self._most, self.rows)
            else:
                batch = await self._work.run(messages.batch_of, data, schema, self._most, self.rows)
            self.rows += batch.num_rows
            if batch.num_rows:
                yield batch

    def close(self) -> None:
        """Nobody wants the rest."""
        self._over = True
        if self._ahead:
            self._ahead.cancel()
            self._ahead.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _look(self) -> wire.Data | None:
        """The next message that says something. What has no header says nothing about rows."""
        while self._held is None and not self._over:
            self._fetch()
            assert self._ahead
            message, self._ahead = await self._ahead, None
            if message is None:
                self._over = True
                break
            data = wire.decode(message)
            if data.header or (data.descriptor is not None and self._descriptor is None):
                self._held = data
            elif data.body:
                raise Invalid("bad_message", "a message has a body and no header", row=self.rows)
        return self._held

    def _fetch(self) -> None:
        """Let the next message come."""
        if self._ahead is None and not self._over:
            self._ahead = asyncio.get_running_loop().create_task(self._next())

    async def _next(self) -> bytes | None:
        return await self._read()


def _descriptor(coded: bytes) -> FlightDescriptor:
    try:
        found: FlightDescriptor = FlightDescriptor.FromString(coded)
    except DecodeError:
        raise Invalid("bad_message", "this is no FlightDescriptor message that can be read") from None
    return found
