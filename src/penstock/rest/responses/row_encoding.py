"""Encode rows for responses: a page of rows as JSON, or all rows as a stream of Arrow or Parquet bytes."""

import io
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.rest.problems import as_json
from penstock.rest.requests import media_types
from penstock.service.memory_budget import Reservation
from penstock.service.row_json import rows_to_json

_COPIES = 4  # a batch as it is decoded, cast and returned, and its encoding
_TEXT_COPIES = 3  # rows, their text, and the body
_ARROW_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


def take_page(reader: pa.RecordBatchReader, skip: int, top: int, max_bytes: int) -> tuple[list[pa.RecordBatch], bool]:
    """Take a page of rows.

    Args:
        reader: the rows
        skip: number of rows to leave out
        top: maximum number of rows
        max_bytes: maximum size in memory; one row is taken even if it is larger

    Returns:
        the rows, and whether more rows follow
    """
    taken: list[pa.RecordBatch] = []
    for batch in reader:
        start = min(skip, batch.num_rows)
        skip -= start
        rest = batch.slice(start)
        if not rest.num_rows:
            continue
        if top == 0 or max_bytes <= 0:
            return taken, True
        fitting = max(0 if taken else 1, max_bytes * rest.num_rows // max(rest.nbytes, 1))
        part = rest.slice(0, min(top, fitting))
        if part.num_rows:
            taken.append(part)
        if part.num_rows < rest.num_rows:
            return taken, True
        top -= part.num_rows
        max_bytes -= part.nbytes
    return taken, False


def rows_response(
    head: dict[str, Any], batches: list[pa.RecordBatch], headers: dict[str, str], reservation: Reservation
) -> Response:
    """Return a JSON response with members, and the rows as `value`.

    Args:
        head: the other members
        batches: the rows
        headers: response headers
        reservation: for the memory of the text, until it is sent

    Raises:
        Unavailable: too little memory is left for the text
    """
    reservation.grow(_TEXT_COPIES * sum(batch.nbytes for batch in batches))
    try:
        # The rows are encoded already, with digits that a float would lose.
        start = as_json(head).decode()[:-1]
        body = f'{start}, "value": {rows_to_json(batches)}}}'.encode("utf-8", "backslashreplace")
    except BaseException:
        reservation.release()
        raise
    reservation.shrink(max(reservation.size - len(body), 0))
    return _PageResponse(body, headers, reservation)


class _PageResponse(Response):
    """A page of rows, whose memory is reserved until it is sent."""

    def __init__(self, body: bytes, headers: dict[str, str], reservation: Reservation) -> None:
        super().__init__(body, media_type=media_types.JSON, headers=headers)
        self._reservation = reservation
        reservation.release_with(self)  # if the response is never sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reservation.release()


def stream_rows(
    media_type: str, reader: pa.RecordBatchReader, reservation: Reservation | None = None, buffer_bytes: int = 0
) -> Iterator[bytes | memoryview]:
    """Encode all rows as Arrow or Parquet in bounded memory.

    The first batch is read before the response starts, so that its errors become error responses.

    Args:
        media_type: Arrow or Parquet
        reader: the rows
        reservation: grows by the memory of a batch and its encoding; None if the rows are counted elsewhere
        buffer_bytes: memory of the reader besides its batches

    Raises:
        Unavailable: too little memory is left for another stream
    """
    first = next(reader, None)
    if reservation and first is not None:
        reservation.grow(buffer_bytes + _COPIES * first.get_total_buffer_size())
    batches = reader if first is None else chain([first], reader)
    return _ENCODERS[media_type](reader.schema, batches)


class RowStream(StreamingResponse):
    """Stream all rows of a reader, and release them at the end, also if the client has disconnected."""

    def __init__(
        self,
        media_type: str,
        reader: pa.RecordBatchReader,
        headers: dict[str, str],
        *,
        reservation: Reservation | None = None,
        buffer_bytes: int = 0,
        owner: object = None,
    ) -> None:
        """Create the response.

        Args:
            media_type: Arrow or Parquet
            reader: the rows
            headers: response headers
            reservation: for the memory of the stream
            buffer_bytes: memory of the reader besides its batches
            owner: referenced until the end, because the memory budget counts it until it is released

        Raises:
            Unavailable: too little memory is left for another stream
        """
        self._reservation = reservation
        self._content = _stream(stream_rows(media_type, reader, reservation, buffer_bytes), owner)
        if reservation:
            reservation.release_with(self)  # if the response is never sent
        super().__init__(self._content, media_type=media_type, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._content.close()
            if self._reservation:
                self._reservation.release()


def _stream(content: Iterator[bytes | memoryview], _owner: object) -> Generator[bytes | memoryview]:
    yield from content


def stream_size(media_type: str, table: pa.Table) -> int | None:
    """Return the size of the stream of a table in bytes, or None if it is unknown before encoding."""
    if media_type != media_types.ARROW:
        return None
    batches = sum(map(pa.ipc.get_record_batch_size, table.to_batches()))
    return int(table.schema.serialize().size + batches + len(_ARROW_STREAM_END))


class _DrainingFile(io.RawIOBase):
    """A file in memory whose content is removed as it is read."""

    def __init__(self) -> None:
        self._buffer, self._position = bytearray(), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: object) -> int:
        chunk = memoryview(data)  # type: ignore[arg-type]
        self._buffer += chunk
        self._position += chunk.nbytes
        return chunk.nbytes

    def drain(self) -> bytes:
        content = bytes(self._buffer)
        self._buffer.clear()
        return content


def _encode_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    file = _DrainingFile()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            if content := file.drain():
                yield content
    yield file.drain()


def _encode_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[memoryview]:
    """Yield the messages of an Arrow stream without copying them into one buffer."""
    yield memoryview(schema.serialize())
    for batch in batches:
        yield memoryview(batch.serialize())
    yield memoryview(_ARROW_STREAM_END)


_ENCODERS: dict[str, Callable[[pa.Schema, Iterable[pa.RecordBatch]], Iterator[bytes | memoryview]]] = {
    media_types.ARROW: _encode_arrow,
    media_types.PARQUET: _encode_parquet,
}
