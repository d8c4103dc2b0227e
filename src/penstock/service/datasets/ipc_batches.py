"""Decode and validate schemas and record batches from untrusted Arrow IPC messages."""

import pyarrow as pa

from penstock.errors import Invalid
from penstock.service.datasets import row_source
from penstock.storage import arrow_ipc

DECODE_ERRORS = (pa.ArrowException, ValueError, OSError, MemoryError, KeyError)  # raised by Arrow for broken messages


def decode_schema(framed: pa.Buffer) -> pa.Schema:
    """Return the schema of an encapsulated IPC message. Its size is checked before Arrow reads it.

    Raises:
        Invalid: the message is not a schema (missing_schema), is too large (schema_too_large) or broken (broken_schema)
    """
    try:
        arrow_ipc.check_schema(arrow_ipc.read_header(pa.BufferReader(framed)))
        message = pa.ipc.read_message(framed)
        if message.type != "schema":
            raise Invalid("missing_schema.stream", {"message_type": message.type})
        return pa.ipc.read_schema(message)
    except Invalid:
        raise
    except (*DECODE_ERRORS, EOFError) as cause:
        raise Invalid("broken_schema", {"cause": first_line(cause)}) from None


def decode_batch(framed: pa.Buffer, schema: pa.Schema, max_bytes: int, first_row: int) -> pa.RecordBatch:
    """Return the record batch of an encapsulated IPC message, fully validated.

    Args:
        framed: the message with its length prefix
        schema: schema of the stream
        max_bytes: limit for the decompressed size of the batch
        first_row: number of the batch's first row in the stream, for error messages

    Raises:
        Invalid: the message is not a record batch (unexpected_message, dictionary_sent), is too large
            (batch_too_large) or broken (broken_batch)
    """
    try:
        message = pa.ipc.read_message(framed)
        match message.type:
            case "record batch":
                pass
            case "dictionary":
                raise Invalid("dictionary_sent", row=first_row)
            case other:
                raise Invalid("unexpected_message", {"message_type": other}, row=first_row)
        size = arrow_ipc.uncompressed_size(message.metadata.to_pybytes(), pa.BufferReader(message.body or b""))
        if size > max_bytes:
            raise Invalid("batch_too_large.decompressed", row=first_row, limit=max_bytes)
        batch = pa.ipc.read_record_batch(message, schema)
        row_source.validate_batch(batch)
    except Invalid:
        raise
    except DECODE_ERRORS as cause:
        raise Invalid("broken_batch", {"cause": first_line(cause)}, row=first_row) from None
    return batch


def uncompressed_size(header: bytes, body: memoryview) -> int:
    """Return the size in memory of a message; 0 for a broken one, which `decode_batch` rejects."""
    try:
        return arrow_ipc.uncompressed_size(header, pa.BufferReader(body))
    except ValueError:
        return 0


def first_line(cause: BaseException) -> str:
    """Return the first line of an Arrow error, without unprintable characters."""
    line = (str(cause).strip() or type(cause).__name__).splitlines()[0][:200]
    return "".join(character if character.isprintable() else "?" for character in line)
