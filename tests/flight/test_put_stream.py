"""Decoding and validation of DoPut streams."""

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from flight.raw_client import CallRejected, RawClient, command_descriptor, connect_pyarrow, running_server, token
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightContext, FlightLimits
from penstock.flight.server import FlightServer

TABLE = pa.table(
    {"id": pa.arange(0, 1_000), "word": ["abc", None, "ä" * 50, ""] * 250, "list": [[1, 2], [], None, [3]] * 250}
)
INSERT_COMMAND = command_descriptor(operation="insert").SerializeToString()


def to_flight_data(message: pa.Buffer, **parts: bytes) -> bytes:
    """Return an Arrow message as the FlightData message that a client sends."""
    size = int.from_bytes(message[4:8].to_pybytes(), "little")
    return flight_data.encode(message[8 : 8 + size], message[8 + size :], **parts)


def encode_stream(table: pa.Table, rows: int = 300, **options: object) -> list[bytes]:
    """Return the messages of a stream: schema, dictionaries, batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, rows)
    reader = pa.BufferReader(sink.getvalue())
    messages = []
    while True:
        try:
            messages.append(to_flight_data(pa.ipc.read_message(reader).serialize()))
        except EOFError:
            return messages


def put_and_count(raw_client: RawClient, messages: list[bytes]) -> int:
    [result] = raw_client.put(messages)
    return int(pb.PutResult.FromString(result).app_metadata)


SCHEMA, *BATCHES = encode_stream(TABLE)
DESCRIPTOR_MESSAGE = flight_data.encode(b"", descriptor=INSERT_COMMAND)
SCHEMA_WITH_DESCRIPTOR = ipc_messages.encode_schema(TABLE.schema, INSERT_COMMAND)
METADATA_MESSAGE = flight_data.encode(b"", metadata=b"for other readers")

LAYOUTS: dict[str, list[bytes]] = {
    "the descriptor with the schema": [SCHEMA_WITH_DESCRIPTOR, *BATCHES],
    "the descriptor alone first": [DESCRIPTOR_MESSAGE, SCHEMA, *BATCHES],
    "metadata messages in between": [
        DESCRIPTOR_MESSAGE,
        METADATA_MESSAGE,
        SCHEMA,
        METADATA_MESSAGE,
        *BATCHES,
        METADATA_MESSAGE,
    ],
    "compressed with lz4": [DESCRIPTOR_MESSAGE, *encode_stream(TABLE, compression="lz4")],
    "compressed with zstd": [DESCRIPTOR_MESSAGE, *encode_stream(TABLE, compression="zstd")],
}


@pytest.mark.parametrize("messages", LAYOUTS.values(), ids=LAYOUTS)
def test_put_stream_decodes_every_message_layout(raw_client: RawClient, messages: list[bytes]) -> None:
    assert put_and_count(raw_client, messages) == 1_000


@pytest.mark.parametrize(
    "messages",
    [
        [SCHEMA_WITH_DESCRIPTOR],
        [DESCRIPTOR_MESSAGE],
        [DESCRIPTOR_MESSAGE, SCHEMA],
        [DESCRIPTOR_MESSAGE, METADATA_MESSAGE],
    ],
    ids=len,
)
def test_put_stream_without_rows_is_valid(raw_client: RawClient, messages: list[bytes]) -> None:
    assert put_and_count(raw_client, messages) == 0


@pytest.mark.parametrize("size", [10, 100_000])
def test_put_stream_accepts_pyarrow_client(server: FlightServer, size: int) -> None:
    table = pa.concat_tables([TABLE] * (size // 1_000 or 1)).combine_chunks()
    client, options = connect_pyarrow(server, token())
    with client:
        writer, reader = client.do_put(fl.FlightDescriptor.for_command(b"{}"), table.schema, options)
        with writer:
            writer.write_table(table, size)
            writer.done_writing()
            assert int(reader.read().to_pybytes()) == table.num_rows


def batch_with_invalid_offsets() -> bytes:
    """Return a batch of strings with invalid offsets."""
    offsets = pa.array([0, 2**30, -5, 3], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
    return to_flight_data(pa.RecordBatch.from_arrays([column], ["word"]).serialize())


def decompression_bomb() -> list[bytes]:
    """Return a few bytes with a very large declared uncompressed size."""
    schema, batch = encode_stream(pa.table({"id": [7] * 100}), compression="zstd")
    body = bytearray(flight_data.decode(batch).body)
    body[:8] = (1 << 40).to_bytes(8, "little")
    return [schema, flight_data.encode(flight_data.decode(batch).header, bytes(body))]


WORD_SCHEMA = ipc_messages.encode_schema(pa.schema([("word", pa.string())]))
DICTIONARY = pa.table({"word": pa.array(["a", "b"]).dictionary_encode()})
FIRST_BATCH, SECOND_BATCH, *_ = map(flight_data.decode, BATCHES)
FIRST_BODY = FIRST_BATCH.body

BROKEN_STREAMS: dict[str, tuple[list[bytes], str, str]] = {
    "no messages": ([], "INVALID_ARGUMENT", "The first message of a DoPut stream must have a descriptor"),
    "no descriptor": ([SCHEMA, *BATCHES], "INVALID_ARGUMENT", "The first message of a DoPut stream must have a descriptor"),
    "no FlightData": ([b"\xff\xff\xff"], "INVALID_ARGUMENT", "The message is not a valid FlightData message"),
    "an unreadable descriptor": (
        [flight_data.encode(b"", descriptor=b"\xff")],
        "INVALID_ARGUMENT",
        "The message does not contain a valid FlightDescriptor",
    ),
    "a late descriptor": (
        [SCHEMA_WITH_DESCRIPTOR, BATCHES[0], flight_data.encode(SECOND_BATCH.header, SECOND_BATCH.body, descriptor=INSERT_COMMAND)],
        "INVALID_ARGUMENT",
        "Only the first message of a stream may have a descriptor",
    ),
    "rows before their schema": ([DESCRIPTOR_MESSAGE, *BATCHES], "INVALID_ARGUMENT", "The first message with data must be a schema, not a message of type 'record batch'"),
    "two schemas": ([SCHEMA_WITH_DESCRIPTOR, SCHEMA], "INVALID_ARGUMENT", "Expected a record batch, got a message of type 'schema'. A stream has exactly one schema"),
    "an invalid schema": ([DESCRIPTOR_MESSAGE, flight_data.encode(b"\x10\0\0\0garbage")], "INVALID_ARGUMENT", "Cannot decode the Arrow schema: "),
    "a body without a header": ([SCHEMA_WITH_DESCRIPTOR, flight_data.encode(b"", FIRST_BODY)], "INVALID_ARGUMENT", "A FlightData message has a body but no header"),
    "garbage instead of rows": ([SCHEMA_WITH_DESCRIPTOR, BATCHES[0], flight_data.encode(b"garbage!", b"x" * 99)], "INVALID_ARGUMENT", "The batch at row 300 is not valid Arrow data: "),
    "half of a body": ([SCHEMA_WITH_DESCRIPTOR, flight_data.encode(FIRST_BATCH.header, FIRST_BODY[:100])], "INVALID_ARGUMENT", "The batch at row 0 is not valid Arrow data: "),
    "invalid offsets": ([DESCRIPTOR_MESSAGE, WORD_SCHEMA, batch_with_invalid_offsets()], "INVALID_ARGUMENT", "The batch at row 0 is not valid Arrow data: "),
    "rows of another schema": ([DESCRIPTOR_MESSAGE, WORD_SCHEMA, *BATCHES], "INVALID_ARGUMENT", "The batch at row 0 is not valid Arrow data: "),
    "dictionaries": ([DESCRIPTOR_MESSAGE, *encode_stream(DICTIONARY)], "INVALID_ARGUMENT", "Dictionary batches are not supported. Send the values without dictionary encoding"),
    "a header over the limit": ([DESCRIPTOR_MESSAGE, flight_data.encode(b"x" * (5 << 20))], "RESOURCE_EXHAUSTED", "The header of a message exceeds the limit of 4,194,304 bytes"),
    "a batch that declares a terabyte": ([DESCRIPTOR_MESSAGE, *decompression_bomb()], "RESOURCE_EXHAUSTED", "The batch at row 0 decompresses to more than 67,108,864 bytes. Send smaller batches"),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "code", "message"), BROKEN_STREAMS.values(), ids=BROKEN_STREAMS)
def test_put_stream_with_broken_message_returns_message(
    raw_client: RawClient, messages: list[bytes], code: str, message: str
) -> None:
    with pytest.raises(CallRejected) as raised:
        put_and_count(raw_client, messages)
    assert raised.value.code == code
    assert raised.value.message.startswith(message)


def test_put_stream_rejects_message_over_limit(flight_context: FlightContext) -> None:
    limited = FlightContext(flight_context.workspace, flight_context.tokens, limits=FlightLimits(message_bytes=50_000))
    with running_server(limited) as server, RawClient(server, token()) as raw_client:
        assert put_and_count(raw_client, [SCHEMA_WITH_DESCRIPTOR, *BATCHES]) == 1_000
        large_batch = list(
            ipc_messages.encode_batch(pa.concat_tables([TABLE] * 5).combine_chunks().to_batches()[0], 1 << 30)
        )
        with pytest.raises(CallRejected) as raised:
            put_and_count(raw_client, [SCHEMA_WITH_DESCRIPTOR, *large_batch])
        assert raised.value.code == "RESOURCE_EXHAUSTED"
        assert "50000" in raised.value.message
        zeros = pa.table({"n": pa.array([0] * 100_000)})
        with pytest.raises(CallRejected) as raised:
            put_and_count(raw_client, [DESCRIPTOR_MESSAGE, *encode_stream(zeros, 100_000, compression="zstd")])
        assert raised.value.message == "The batch at row 0 decompresses to more than 50,000 bytes. Send smaller batches"


def test_put_stream_counts_received_rows(flight_context: FlightContext) -> None:
    received: list[int] = []
    context = FlightContext(
        flight_context.workspace, flight_context.tokens, on_call=lambda call: received.append(call.rows_in)
    )
    with running_server(context) as server, RawClient(server, token()) as raw_client:
        put_and_count(raw_client, [SCHEMA_WITH_DESCRIPTOR, *BATCHES])
        with pytest.raises(CallRejected):
            put_and_count(raw_client, [SCHEMA_WITH_DESCRIPTOR, BATCHES[0], b"\xff"])
    assert received == [1_000, 300]
