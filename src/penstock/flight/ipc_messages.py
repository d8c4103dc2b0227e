"""Convert schemas and record batches to and from the Arrow IPC messages in FlightData."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.errors import Invalid
from penstock.flight import flight_data
from penstock.service.datasets import ipc_batches

TARGET_MESSAGE_BYTES = 3 << 20  # many clients accept messages of at most 4 MiB by default
_MAX_HEADER_BYTES = 4 << 20
_ALIGNMENT_BYTES = 64
_PREFIX_BYTES = 8  # in front of an IPC header: the continuation marker and the length, four bytes each


def encode_schema(schema: pa.Schema, descriptor: bytes | None = None) -> bytes:
    """Return the first message of a stream; a client's first message also carries the descriptor."""
    return _encode(schema.serialize(), descriptor)


def encode_batch(batch: pa.RecordBatch, max_bytes: int) -> Iterator[bytes]:
    """Yield a batch as one or more messages of about TARGET_MESSAGE_BYTES.

    Raises:
        Invalid: a single row needs more than `max_bytes` (row_too_large)
    """
    for part in _split(batch):
        message = _encode(part.serialize())
        if len(message) > max_bytes:
            raise Invalid("row_too_large.message", {"limit": max_bytes})
        yield message


def decode_schema(data: flight_data.FlightData) -> pa.Schema:
    """Return the schema of the first message of a stream.

    Raises:
        Invalid: the message is another one (missing_schema), too large (schema_too_large) or broken (broken_schema)
    """
    return ipc_batches.decode_schema(_frame(data))


def decode_batch(data: flight_data.FlightData, schema: pa.Schema, max_bytes: int, first_row: int) -> pa.RecordBatch:
    """Return the record batch of a message, fully validated.

    Args:
        data: the message
        schema: schema of the stream
        max_bytes: limit for the decompressed size of the batch
        first_row: number of the batch's first row in the stream, for error messages

    Raises:
        Invalid: the message has no valid record batch, or exceeds a limit
    """
    return ipc_batches.decode_batch(_frame(data), schema, max_bytes, first_row)


def memory_size(data: flight_data.FlightData, max_bytes: int) -> int:
    """Return the memory that decoding a batch needs: a copy of the body, and the decompressed buffers.

    Sizes above `max_bytes` count as `max_bytes`: `decode_batch` rejects such a batch, and messages that are broken.
    """
    size = min(ipc_batches.uncompressed_size(bytes(data.header), data.body), max_bytes)
    return size if size == len(data.body) else size + len(data.body)


def _encode(message: pa.Buffer, descriptor: bytes | None = None) -> bytes:
    """Convert an encapsulated IPC message to FlightData, which has no length prefix."""
    header_bytes = int.from_bytes(message.slice(4, 4).to_pybytes(), "little")
    header, body = message.slice(_PREFIX_BYTES, header_bytes), message.slice(_PREFIX_BYTES + header_bytes)
    return flight_data.encode(header, body, descriptor=descriptor)


def _frame(data: flight_data.FlightData) -> pa.Buffer:
    """Copy a message into its own buffer as an encapsulated IPC message with an aligned body."""
    if len(data.header) > _MAX_HEADER_BYTES:
        raise Invalid("header_too_large", limit=_MAX_HEADER_BYTES)
    body_offset = -(-(_PREFIX_BYTES + len(data.header)) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    framed = pa.allocate_buffer(body_offset + len(data.body))
    head = b"\xff\xff\xff\xff" + (body_offset - _PREFIX_BYTES).to_bytes(4, "little") + bytes(data.header)
    target = np.frombuffer(framed, np.uint8)
    target[:body_offset] = np.frombuffer(head.ljust(body_offset, b"\0"), np.uint8)
    target[body_offset:] = np.frombuffer(data.body, np.uint8)  # numpy releases the interpreter lock while it copies
    return framed


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts of about TARGET_MESSAGE_BYTES."""
    size, rows = int(batch.nbytes), int(batch.num_rows)
    if size <= TARGET_MESSAGE_BYTES or rows == 1:
        yield batch
        return
    step = max(1, rows * TARGET_MESSAGE_BYTES // size)
    for start in range(0, rows, step):
        part = batch.slice(start, step)
        if part.nbytes > TARGET_MESSAGE_BYTES + TARGET_MESSAGE_BYTES // 8:  # its rows are larger than the average
            yield from _split(part)
        else:
            yield part
