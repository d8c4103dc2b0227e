"""Flight clients and a plain Flight server for the benchmarks, and processes that write single rows.

Penstock and deltalake are imported where they are used, so that processes that insert over Flight do not hold them.
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

CODEC, GROUP_ROWS = "zstd", 128 << 10  # as in Penstock
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]  # otherwise the channels of a process share a connection
_TIMEOUT_SECONDS = 300.0


# Client of pyarrow.


def connect(address: str) -> fl.FlightClient:
    return fl.connect(address, generic_options=_OWN_CONNECTION)


def put(client: fl.FlightClient, name: str, batches: Sequence[pa.RecordBatch]) -> None:
    """Insert all batches, and wait for the response."""
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


def get(client: fl.FlightClient, name: str, **command_members: Any) -> Iterator[pa.RecordBatch]:
    ticket = fl.Ticket(json.dumps({**_named(name), **command_members}))
    return (chunk.data for chunk in client.do_get(ticket))


def _named(name: str) -> dict[str, str]:
    schema, _, table_name = name.partition(".")
    return {"schema_name": schema, "table_name": table_name}


# Plain server without a catalog.


class PlainFlightServer(fl.FlightServerBase):
    """Writes received rows to a Parquet file like Penstock's, and returns rows of Penstock's files."""

    def __init__(self, location: str, like: Sequence[str]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._path, self._like = location, list(like)

    def do_put(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        options = {"compression": CODEC, "use_dictionary": dictionaries(self._like[0]) or False}
        with pq.ParquetWriter(self._path, reader.schema, **options) as file:
            for group in _groups(chunk.data for chunk in reader):
                file.write_table(group, row_group_size=GROUP_ROWS)
        writer.write(b"done")

    def do_get(self, _context: Any, _ticket: Any) -> Any:
        return fl.RecordBatchStream(pads.dataset(self._like).scanner().to_reader())


def serve_bare(location: str, like: Sequence[str], sender: Pipe) -> None:
    """Report the port, and serve until the process is terminated."""
    with PlainFlightServer(location, like) as server:
        sender.send(server.port)
        server.serve()


def dictionaries(path: str) -> list[str]:
    """Return the columns of a file with dictionary encoding."""
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return [column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings]


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(batch.num_rows for batch in pending) >= GROUP_ROWS:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


# Processes that write single rows.

Writing = Callable[[int], None]  # called with the number of the row; returns after the commit


def over_flight(address: str, name: str) -> Writing:
    client = connect(address)
    return lambda number: put(client, name, table(1, number).to_batches())


def by_deltalake(location: str) -> Writing:
    from deltalake import write_deltalake
    from deltalake.exceptions import CommitFailedError

    def write(number: int) -> None:
        rows = table(1, number)
        while True:
            with suppress(CommitFailedError):  # more conflicts than deltalake retries by itself
                write_deltalake(location, rows, mode="append")
                return

    return write


@dataclass
class Wrote:
    seconds: float
    took: list[float] = field(default_factory=list)  # seconds of each acknowledged row

    @property
    def rate(self) -> float:
        return len(self.took) / self.seconds


def side_by_side(opened: Callable[..., Writing], args: Sequence[str], processes: int, seconds: float) -> Wrote:
    """Run processes that write as fast as they can, all starting at the same moment."""
    context = get_context("spawn")
    ready = context.Barrier(processes + 1)
    pipes = [context.Pipe(duplex=False) for _ in range(processes)]
    running = [
        context.Process(target=_write, args=(opened, args, number, ready, seconds, sender))
        for number, (_, sender) in enumerate(pipes)
    ]
    for process in running:
        process.start()
    ready.wait(_TIMEOUT_SECONDS)
    result = Wrote(seconds)
    for receiver, _ in pipes:
        assert receiver.poll(seconds + _TIMEOUT_SECONDS), "a writer did not end in time"
        result.took += receiver.recv()
    for process in running:
        process.join()
    return result


def _write(
    opened: Callable[..., Writing], args: Sequence[str], number: int, ready: Any, seconds: float, sender: Pipe
) -> None:
    write = opened(*args)
    row = number * 1_000_000
    write(row)  # warm-up: everything is loaded and connected
    ready.wait(_TIMEOUT_SECONDS)
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
    sender.send(took)
