"""Arrow's messages in and out of FlightData: schemas, and batches of rows that are proven sound."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.errors import Invalid
from penstock.flight import flight_data as wire
from penstock.storage import arrow_ipc as ipc

PIECE_BYTES = 3 << 20  # of a message that we send: many clients take 4 MiB and not more unless told to
_MOST_HEADER = 4 << 20  # bytes
_ALIGNED = 64
_LENGTH = 8  # bytes in front of a header: four that go on, four that count
_BROKEN = (
    pa.ArrowException,
    ValueError,
    OSError,
    MemoryError,
    KeyError,
)  # what Arrow says of bytes that are no message


def of_schema(schema: pa.Schema, descriptor: bytes | None = None) -> bytes:
    """The first message of a stream; a client's says what the rows are for."""
    return _told(schema.serialize(), descriptor)


def of_batch(batch: pa.RecordBatch, most: int) -> Iterator[bytes]:
    """The rows, in as many messages as it takes. One row is not cut; if it alone is over `most`, it cannot be sent."""
    for piece in _pieces(batch):
        message = _told(piece.serialize())
        if len(message) > most:
            raise Invalid("row_too_large", f"a row is too large to be sent: a message may have {most:,} bytes")
        yield message


def schema_of(data: wire.Data) -> pa.Schema:
    framed = _framed(data)
    try:
        message = pa.ipc.read_message(framed)
        if message.type != "schema":
            raise Invalid("no_schema", f"the rows begin with a {message.type}; a schema must come before them")
        return pa.ipc.read_schema(message)
    except Invalid:
        raise
    except _BROKEN as cause:
        raise Invalid("broken_schema", f"the schema cannot be read: {_said(cause)}") from None


def batch_of(data: wire.Data, schema: pa.Schema, most: int, row: int) -> pa.RecordBatch:
    """A batch, checked in full. Unpacked it may have `most` bytes; `row` is the number of its first."""
    framed = _framed(data)
    try:
        message = pa.ipc.read_message(framed)
        match message.type:
            case "record batch":
                pass
            case "dictionary":
                raise Invalid("dictionary_sent", "dictionaries are not taken; send the values themselves", row=row)
            case other:
                raise Invalid("no_rows", f"a {other} comes where rows should; a stream has one schema", row=row)
        if ipc.unpacked_size(message.metadata.to_pybytes(), pa.BufferReader(message.body or b"")) > most:
            raise Invalid(
                "batch_too_large", f"the batch at row {row:,} unpacks to more than {most:,} bytes", row=row, limit=most
            )
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate()  # before anything is asked of it
        batch.validate(full=True)  # without the full check a wild offset in a string column ends the process
    except Invalid:
        raise
    except _BROKEN as cause:
        raise Invalid("broken_batch", f"the rows from {row:,} on are broken: {_said(cause)}", row=row) from None
    return batch


def _told(message: pa.Buffer, descriptor: bytes | None = None) -> bytes:
    """A message with its length in front, as FlightData, which tells the length by itself."""
    size = int.from_bytes(message.slice(4, 4).to_pybytes(), "little")
    return wire.encode(message.slice(_LENGTH, size), message.slice(_LENGTH + size), descriptor=descriptor)


def _framed(data: wire.Data) -> pa.Buffer:
    """A message in memory of its own, its length in front, its body where Arrow wants it to begin."""
    if len(data.header) > _MOST_HEADER:
        raise Invalid("header_too_large", f"a message's header may have {_MOST_HEADER:,} bytes", limit=_MOST_HEADER)
    body = -(-(_LENGTH + len(data.header)) // _ALIGNED) * _ALIGNED
    whole = pa.allocate_buffer(body + len(data.body))
    head = b"\xff\xff\xff\xff" + (body - _LENGTH).to_bytes(4, "little") + bytes(data.header)
    room = np.frombuffer(whole, np.uint8)
    room[:body] = np.frombuffer(head.ljust(body, b"\0"), np.uint8)
    room[body:] = np.frombuffer(data.body, np.uint8)  # by numpy, which lets other threads go on meanwhile
    return whole


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    size, rows = int(batch.nbytes), int(batch.num_rows)
    if size <= PIECE_BYTES or rows == 1:
        yield batch
        return
    step = max(1, rows * PIECE_BYTES // size)
    for start in range(0, rows, step):
        piece = batch.slice(start, step)
        if piece.nbytes > PIECE_BYTES + PIECE_BYTES // 8:  # its rows are larger than others
            yield from _pieces(piece)
        else:
            yield piece


def _said(cause: BaseException) -> str:
    """What Arrow says, on one line that can be printed."""
    line = (str(cause).strip() or type(cause).__name__).splitlines()[0][:200]
    return "".join(each if each.isprintable() else "?" for each in line)
