"""Decoding and validation of DoPut streams."""

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from flight.raw_client import Raw, Refused, arrows, command, served, token
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb
from penstock.flight.context import FlightContext, FlightLimits
from penstock.flight.server import FlightServer

TABLE = pa.table(
    {"id": pa.arange(0, 1_000), "word": ["abc", None, "ä" * 50, ""] * 250, "list": [[1, 2], [], None, [3]] * 250}
)
WHAT = command(operation="insert").SerializeToString()


def framed(message: pa.Buffer, **parts: bytes) -> bytes:
    """A message of Arrow's, as a client sends it."""
    size = int.from_bytes(message[4:8].to_pybytes(), "little")
    return flight_data.encode(message[8 : 8 + size], message[8 + size :], **parts)


def packed(table: pa.Table, rows: int = 300, **options: object) -> list[bytes]:
    """The messages of a stream: schema, dictionaries, batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, rows)
    reader = pa.BufferReader(sink.getvalue())
    found = []
    while True:
        try:
            found.append(framed(pa.ipc.read_message(reader).serialize()))
        except EOFError:
            return found


def counted(raw: Raw, sent: list[bytes]) -> int:
    [answer] = raw.put(sent)
    return int(pb.PutResult.FromString(answer).app_metadata)


SCHEMA, *BATCHES = packed(TABLE)
ALONE = flight_data.encode(b"", descriptor=WHAT)
WITH = ipc_messages.encode_schema(TABLE.schema, WHAT)
NOTE = flight_data.encode(b"", metadata=b"for other readers")

WAYS: dict[str, list[bytes]] = {
    "the descriptor with the schema": [WITH, *BATCHES],
    "the descriptor alone first": [ALONE, SCHEMA, *BATCHES],
    "notes in between": [ALONE, NOTE, SCHEMA, NOTE, *BATCHES, NOTE],
    "packed with lz4": [ALONE, *packed(TABLE, compression="lz4")],
    "packed with zstd": [ALONE, *packed(TABLE, compression="zstd")],
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_put_stream_decodes_every_message_layout(raw: Raw, way: list[bytes]) -> None:
    assert counted(raw, way) == 1_000


@pytest.mark.parametrize("way", [[WITH], [ALONE], [ALONE, SCHEMA], [ALONE, NOTE]], ids=len)
def test_put_stream_without_rows_is_valid(raw: Raw, way: list[bytes]) -> None:
    assert counted(raw, way) == 0


@pytest.mark.parametrize("size", [10, 100_000])
def test_put_stream_accepts_pyarrow_client(server: FlightServer, size: int) -> None:
    table = pa.concat_tables([TABLE] * (size // 1_000 or 1)).combine_chunks()
    client, options = arrows(server, token())
    with client:
        writer, reader = client.do_put(fl.FlightDescriptor.for_command(b"{}"), table.schema, options)
        with writer:
            writer.write_table(table, size)
            writer.done_writing()
            assert int(reader.read().to_pybytes()) == table.num_rows


def wild() -> bytes:
    """Return a batch of strings with invalid offsets."""
    offsets = pa.array([0, 2**30, -5, 3], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
    return framed(pa.RecordBatch.from_arrays([column], ["word"]).serialize())


def bomb() -> list[bytes]:
    """Return a few bytes with a very large declared uncompressed size."""
    schema, batch = packed(pa.table({"id": [7] * 100}), compression="zstd")
    body = bytearray(flight_data.decode(batch).body)
    body[:8] = (1 << 40).to_bytes(8, "little")
    return [schema, flight_data.encode(flight_data.decode(batch).header, bytes(body))]


ONE_WORD = ipc_messages.encode_schema(pa.schema([("word", pa.string())]))
DICTIONARY = pa.table({"word": pa.array(["a", "b"]).dictionary_encode()})
FIRST, SECOND, *_ = map(flight_data.decode, BATCHES)
BODY = FIRST.body

BROKEN: dict[str, tuple[list[bytes], str, str]] = {
    "nothing": ([], "INVALID_ARGUMENT", "The first message of a DoPut stream must have a descriptor"),
    "no descriptor": ([SCHEMA, *BATCHES], "INVALID_ARGUMENT", "The first message of a DoPut stream must have a descriptor"),
    "no FlightData": ([b"\xff\xff\xff"], "INVALID_ARGUMENT", "The message is not a valid FlightData message"),
    "no descriptor that can be read": (
        [flight_data.encode(b"", descriptor=b"\xff")],
        "INVALID_ARGUMENT",
        "The message does not contain a valid FlightDescriptor",
    ),
    "a descriptor that comes late": (
        [WITH, BATCHES[0], flight_data.encode(SECOND.header, SECOND.body, descriptor=WHAT)],
        "INVALID_ARGUMENT",
        "Only the first message of a stream may have a descriptor",
    ),
    "rows before their schema": ([ALONE, *BATCHES], "INVALID_ARGUMENT", "The first message with data must be a schema, not a message of type 'record batch'"),
    "two schemas": ([WITH, SCHEMA], "INVALID_ARGUMENT", "Expected a record batch, got a message of type 'schema'. A stream has exactly one schema"),
    "a schema that is none": ([ALONE, flight_data.encode(b"\x10\0\0\0garbage")], "INVALID_ARGUMENT", "Cannot decode the Arrow schema: "),
    "a body without a header": ([WITH, flight_data.encode(b"", BODY)], "INVALID_ARGUMENT", "A FlightData message has a body but no header"),
    "garbage for rows": ([WITH, BATCHES[0], flight_data.encode(b"garbage!", b"x" * 99)], "INVALID_ARGUMENT", "The batch at row 300 is not valid Arrow data: "),
    "half of a body": ([WITH, flight_data.encode(FIRST.header, BODY[:100])], "INVALID_ARGUMENT", "The batch at row 0 is not valid Arrow data: "),
    "offsets that lead anywhere": ([ALONE, ONE_WORD, wild()], "INVALID_ARGUMENT", "The batch at row 0 is not valid Arrow data: "),
    "rows of another schema": ([ALONE, ONE_WORD, *BATCHES], "INVALID_ARGUMENT", "The batch at row 0 is not valid Arrow data: "),
    "dictionaries": ([ALONE, *packed(DICTIONARY)], "INVALID_ARGUMENT", "Dictionary batches are not supported. Send the values without dictionary encoding"),
    "a header beyond reason": ([ALONE, flight_data.encode(b"x" * (5 << 20))], "RESOURCE_EXHAUSTED", "The header of a message exceeds the limit of 4,194,304 bytes"),
    "a batch that would unpack to a terabyte": ([ALONE, *bomb()], "RESOURCE_EXHAUSTED", "The batch at row 0 decompresses to more than 67,108,864 bytes. Send smaller batches"),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "code", "sentence"), BROKEN.values(), ids=BROKEN)
def test_put_stream_with_broken_message_returns_message(raw: Raw, sent: list[bytes], code: str, sentence: str) -> None:
    with pytest.raises(Refused) as raised:
        counted(raw, sent)
    assert raised.value.code == code
    assert raised.value.sentence.startswith(sentence)


def test_put_stream_rejects_message_over_limit(edge: FlightContext) -> None:
    limited = FlightContext(edge.workspace, edge.tokens, limits=FlightLimits(message_bytes=50_000))
    with served(limited) as server, Raw(server, token()) as raw:
        assert counted(raw, [WITH, *BATCHES]) == 1_000
        whole = list(ipc_messages.encode_batch(pa.concat_tables([TABLE] * 5).combine_chunks().to_batches()[0], 1 << 30))
        with pytest.raises(Refused) as raised:
            counted(raw, [WITH, *whole])
        assert raised.value.code == "RESOURCE_EXHAUSTED"
        assert "50000" in raised.value.sentence
        zeros = pa.table({"n": pa.array([0] * 100_000)})
        with pytest.raises(Refused) as raised:
            counted(raw, [ALONE, *packed(zeros, 100_000, compression="zstd")])
        assert (
            raised.value.sentence == "The batch at row 0 decompresses to more than 50,000 bytes. Send smaller batches"
        )


def test_put_stream_counts_received_rows(edge: FlightContext) -> None:
    received: list[int] = []
    counting = FlightContext(edge.workspace, edge.tokens, on_call=lambda ended: received.append(ended.rows_in))
    with served(counting) as server, Raw(server, token()) as raw:
        counted(raw, [WITH, *BATCHES])
        with pytest.raises(Refused):
            counted(raw, [WITH, BATCHES[0], b"\xff"])
    assert received == [1_000, 300]
