"""Rows that come in are proven sound, whatever way they come, or refused in a sentence."""

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from edges.flight.stage import Raw, Refused, arrows, command, served, token
from penstock.flight import flight_pb2 as pb
from penstock.flight import ipc_messages as messages
from penstock.flight import flight_data as wire
from penstock.flight.context import Edge, FlightLimits
from penstock.flight.server import FlightServer

TABLE = pa.table(
    {"id": pa.arange(0, 1_000), "word": ["abc", None, "ä" * 50, ""] * 250, "list": [[1, 2], [], None, [3]] * 250}
)
WHAT = command(operation="insert").SerializeToString()


def framed(message: pa.Buffer, **parts: bytes) -> bytes:
    """A message of Arrow's, as a client sends it."""
    size = int.from_bytes(message[4:8].to_pybytes(), "little")
    return wire.encode(message[8 : 8 + size], message[8 + size :], **parts)


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
ALONE = wire.encode(b"", descriptor=WHAT)
WITH = messages.of_schema(TABLE.schema, WHAT)
NOTE = wire.encode(b"", metadata=b"for somebody else")

WAYS: dict[str, list[bytes]] = {
    "the descriptor with the schema": [WITH, *BATCHES],
    "the descriptor alone first": [ALONE, SCHEMA, *BATCHES],
    "notes in between": [ALONE, NOTE, SCHEMA, NOTE, *BATCHES, NOTE],
    "packed with lz4": [ALONE, *packed(TABLE, compression="lz4")],
    "packed with zstd": [ALONE, *packed(TABLE, compression="zstd")],
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_rows_come_in_many_ways(raw: Raw, way: list[bytes]) -> None:
    assert counted(raw, way) == 1_000


@pytest.mark.parametrize("way", [[WITH], [ALONE], [ALONE, SCHEMA], [ALONE, NOTE]], ids=len)
def test_a_stream_without_rows_is_a_stream(raw: Raw, way: list[bytes]) -> None:
    assert counted(raw, way) == 0


@pytest.mark.parametrize("size", [10, 100_000])
def test_pyarrow_sends_rows(server: FlightServer, size: int) -> None:
    table = pa.concat_tables([TABLE] * (size // 1_000 or 1)).combine_chunks()
    client, options = arrows(server, token())
    with client:
        writer, reader = client.do_put(fl.FlightDescriptor.for_command(b"{}"), table.schema, options)
        with writer:
            writer.write_table(table, size)
            writer.done_writing()
            assert int(reader.read().to_pybytes()) == table.num_rows


def wild() -> bytes:
    """A batch of strings whose offsets lead anywhere."""
    offsets = pa.array([0, 2**30, -5, 3], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
    return framed(pa.RecordBatch.from_arrays([column], ["word"]).serialize())


def bomb() -> list[bytes]:
    """A few bytes that say of themselves that they unpack to very many."""
    schema, batch = packed(pa.table({"id": [7] * 100}), compression="zstd")
    body = bytearray(wire.decode(batch).body)
    body[:8] = (1 << 40).to_bytes(8, "little")
    return [schema, wire.encode(wire.decode(batch).header, bytes(body))]


ONE_WORD = messages.of_schema(pa.schema([("word", pa.string())]))
DICTIONARY = pa.table({"word": pa.array(["a", "b"]).dictionary_encode()})
FIRST, SECOND, *_ = map(wire.decode, BATCHES)
BODY = FIRST.body

BROKEN: dict[str, tuple[list[bytes], str, str]] = {
    "nothing": ([], "INVALID_ARGUMENT", "the first message must say what the rows are for: a descriptor"),
    "no descriptor": ([SCHEMA, *BATCHES], "INVALID_ARGUMENT", "the first message must say what the rows are for"),
    "no FlightData": ([b"\xff\xff\xff"], "INVALID_ARGUMENT", "this is no FlightData message that can be read"),
    "no descriptor that can be read": (
        [wire.encode(b"", descriptor=b"\xff")],
        "INVALID_ARGUMENT",
        "this is no FlightDescriptor message that can be read",
    ),
    "a descriptor that comes late": (
        [WITH, BATCHES[0], wire.encode(SECOND.header, SECOND.body, descriptor=WHAT)],
        "INVALID_ARGUMENT",
        "only the first message of a stream has a descriptor",
    ),
    "rows before their schema": ([ALONE, *BATCHES], "INVALID_ARGUMENT", "the rows begin with a record batch; a schema must"),
    "two schemas": ([WITH, SCHEMA], "INVALID_ARGUMENT", "a schema comes where rows should; a stream has one schema"),
    "a schema that is none": ([ALONE, wire.encode(b"\x10\0\0\0garbage")], "INVALID_ARGUMENT", "the schema cannot be read: "),
    "a body without a header": ([WITH, wire.encode(b"", BODY)], "INVALID_ARGUMENT", "a message has a body and no header"),
    "garbage for rows": ([WITH, BATCHES[0], wire.encode(b"garbage!", b"x" * 99)], "INVALID_ARGUMENT", "the rows from 300 on are broken: "),
    "half of a body": ([WITH, wire.encode(FIRST.header, BODY[:100])], "INVALID_ARGUMENT", "the rows from 0 on are broken: "),
    "offsets that lead anywhere": ([ALONE, ONE_WORD, wild()], "INVALID_ARGUMENT", "the rows from 0 on are broken: "),
    "rows of another schema": ([ALONE, ONE_WORD, *BATCHES], "INVALID_ARGUMENT", "the rows from 0 on are broken: "),
    "dictionaries": ([ALONE, *packed(DICTIONARY)], "INVALID_ARGUMENT", "dictionaries are not taken; send the values themselves"),
    "a header beyond reason": ([ALONE, wire.encode(b"x" * (5 << 20))], "RESOURCE_EXHAUSTED", "a message's header may have 4,194,304 bytes"),
    "a batch that would unpack to a terabyte": ([ALONE, *bomb()], "RESOURCE_EXHAUSTED", "the batch at row 0 unpacks to more than 268,435,456 bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "code", "sentence"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_refused_in_words(raw: Raw, sent: list[bytes], code: str, sentence: str) -> None:
    with pytest.raises(Refused) as refusal:
        counted(raw, sent)
    assert refusal.value.code == code
    assert refusal.value.sentence.startswith(sentence)


def test_no_message_is_longer_than_allowed(edge: Edge) -> None:
    limited = Edge(edge.workspace, edge.tokens, limits=FlightLimits(message_bytes=50_000))
    with served(limited) as server, Raw(server, token()) as raw:
        assert counted(raw, [WITH, *BATCHES]) == 1_000
        whole = list(messages.of_batch(pa.concat_tables([TABLE] * 5).combine_chunks().to_batches()[0], 1 << 30))
        with pytest.raises(Refused) as refusal:
            counted(raw, [WITH, *whole])
        assert refusal.value.code == "RESOURCE_EXHAUSTED"
        assert "50000" in refusal.value.sentence
        zeros = pa.table({"n": pa.array([0] * 100_000)})
        with pytest.raises(Refused) as refusal:
            counted(raw, [ALONE, *packed(zeros, 100_000, compression="zstd")])
        assert refusal.value.sentence == "the batch at row 0 unpacks to more than 50,000 bytes"


def test_rows_that_came_in_are_counted(edge: Edge) -> None:
    heard: list[int] = []
    counting = Edge(edge.workspace, edge.tokens, heard=lambda ended: heard.append(ended.rows_in))
    with served(counting) as server, Raw(server, token()) as raw:
        counted(raw, [WITH, *BATCHES])
        with pytest.raises(Refused):
            counted(raw, [WITH, BATCHES[0], b"\xff"])
    assert heard == [1_000, 300]
