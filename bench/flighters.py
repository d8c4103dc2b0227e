"""Who speaks Flight in the measurements: pyarrow's client, a bare server, and processes that write one row at a time.

Penstock and deltalake are imported where they are used: a process that inserts over Flight is not to hold them.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.flight as fl
import pyarrow.parquet as pq

from rows import table

CODEC, GROUP_ROWS = "zstd", 128 << 10  # as Penstock's
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]  # else the channels of a process share one
_PATIENCE = 300.0  # seconds


# A client: pyarrow's own, for everybody.


def connect(address: str) -> fl.FlightClient:
    return fl.connect(address, generic_options=_OWN_CONNECTION)


def put(client: fl.FlightClient, name: str, batches: Sequence[pa.RecordBatch]) -> None:
    """One insert of all batches; it is over when the server has answered."""
    rows = sum(batch.num_rows for batch in batches)
    _put(client, {**_named(name), "operation": "insert", "expected_rows": rows}, batches)


def update(client: fl.FlightClient, name: str, ids: Sequence[int], rows: pa.Table) -> None:
    _put(client, {**_named(name), "operation": "update", "row_ids": list(ids)}, rows.to_batches())


def _put(client: fl.FlightClient, command: dict[str, Any], batches: Sequence[pa.RecordBatch]) -> None:
    writer, answers = client.do_put(fl.FlightDescriptor.for_command(json.dumps(command)), batches[0].schema)
    with writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        assert answers.read() is not None


def get(client: fl.FlightClient, name: str, **asked: Any) -> Iterator[pa.RecordBatch]:
    ticket = fl.Ticket(json.dumps({**_named(name), **asked}))
    return (chunk.data for chunk in client.do_get(ticket))


def _named(name: str) -> dict[str, str]:
    schema, _, table_name = name.partition(".")
    return {"schema_name": schema, "table_name": table_name}


# A bare server: it knows two files' places, and keeps no promise.


class Bare(fl.FlightServerBase):
    """Rows that come in become a Parquet file like Penstock's; those that go out are read from Penstock's files."""

    def __init__(self, place: str, like: Sequence[str]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._place, self._like = place, list(like)

    def do_put(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        options = {"compression": CODEC, "use_dictionary": dictionaries(self._like[0]) or False}
        with pq.ParquetWriter(self._place, reader.schema, **options) as file:
            for group in _groups(chunk.data for chunk in reader):
                file.write_table(group, row_group_size=GROUP_ROWS)
        writer.write(b"done")

    def do_get(self, _context: Any, _ticket: Any) -> Any:
        return fl.RecordBatchStream(pads.dataset(self._like).scanner().to_reader())


def serve_bare(place: str, like: Sequence[str], told: Pipe) -> None:
    """Tell the port, and serve until somebody ends the process."""
    with Bare(place, like) as server:
        told.send(server.port)
        server.serve()


def dictionaries(path: str) -> list[str]:
    """The columns of a file that are coded by a dictionary."""
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return [column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings]


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


# Processes that write one row, again and again.

Writing = Callable[[int], None]  # the number of the row; it is there when the call is over


def over_flight(address: str, name: str) -> Writing:
    client = connect(address)
    return lambda number: put(client, name, table(1, number).to_batches())


def by_deltalake(place: str) -> Writing:
    from deltalake import write_deltalake
    from deltalake.exceptions import CommitFailedError

    def write(number: int) -> None:
        rows = table(1, number)
        while True:
            with suppress(CommitFailedError):  # others came first, more often than it tries by itself
                write_deltalake(place, rows, mode="append")
                return

    return write


@dataclass
class Wrote:
    seconds: float
    took: list[float] = field(default_factory=list)  # by each row that was acknowledged in time

    @property
    def rate(self) -> float:
        return len(self.took) / self.seconds


def side_by_side(opened: Callable[..., Writing], args: Sequence[str], processes: int, seconds: float) -> Wrote:
    """So many processes that write as fast as they can, all from the same moment on."""
    context = get_context("spawn")
    ready = context.Barrier(processes + 1)
    pipes = [context.Pipe(duplex=False) for _ in range(processes)]
    running = [
        context.Process(target=_write, args=(opened, args, number, ready, seconds, told))
        for number, (_, told) in enumerate(pipes)
    ]
    for process in running:
        process.start()
    ready.wait(_PATIENCE)
    found = Wrote(seconds)
    for heard, _ in pipes:
        assert heard.poll(seconds + _PATIENCE), "a writer does not end"
        found.took += heard.recv()
    for process in running:
        process.join()
    return found


def _write(
    opened: Callable[..., Writing], args: Sequence[str], number: int, ready: Any, seconds: float, told: Pipe
) -> None:
    write = opened(*args)
    row = number * 1_000_000
    write(row)  # everything is loaded and connected by now
    ready.wait(_PATIENCE)
    end = time.perf_counter() + seconds
    took = []
    while True:
        row += 1
        begun = time.perf_counter()
        write(row)
        now = time.perf_counter()
        if now > end:
            break
        took.append(now - begun)
    told.send(took)
