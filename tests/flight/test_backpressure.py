"""Slow clients block no other client and use bounded memory, and the server can stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight.broken_clients import InterruptedStream, InterruptedStreams
from flight.flight_server import run_flight_server, server_process
from flight.paired_clients import put_messages
from flight.raw_client import SECRET, token
from flight.test_serve import read_addresses
from penstock.flight.client import FlightClient, flight_client
from rest.test_serve import ServeProcess, served
from support.workspaces import WorkspaceFixture

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
ROW_COUNT = 2_000_000
LONG_ROWS = pa.table(
    [pa.arange(0, ROW_COUNT), pa.repeat("a text of forty characters for each row.", ROW_COUNT)], schema=SCHEMA
)
MAX_STREAM_BYTES = 12 << 20  # the buffered rows of a whole stream are ten times larger
TABLE_REFERENCE = {"schema_name": "a", "table_name": "long"}


def stalled_readers(client: FlightClient, table: str, count: int) -> list[Any]:
    """Open readers that take the first rows and then stall."""
    readers = [client.read(table) for _ in range(count)]
    for reader in readers:
        reader.read_next_batch()
    return readers


def stalled_writers(address: str, ids: list[int], count: int) -> InterruptedStreams:
    """Open writers that stall after none, some or all of their messages."""
    batches = LONG_ROWS.slice(0, len(ids)).to_batches(max_chunksize=10_000)
    inserts, updates = (
        put_messages({**TABLE_REFERENCE, "operation": "insert"}, SCHEMA, batches, separate_descriptor=True),
        put_messages(
            {**TABLE_REFERENCE, "operation": "update", "row_ids": ids}, SCHEMA, batches, separate_descriptor=True
        ),
    )
    plans = [(InterruptedStream((inserts, updates)[n % 2][: n % (len(inserts) + 1)]), None) for n in range(count)]
    return InterruptedStreams(address, plans)


def test_64_slow_clients_do_not_block_others_and_use_bounded_memory(sqlite_workspace: WorkspaceFixture) -> None:
    with server_process(sqlite_workspace, puts=64) as server, flight_client(server.address, token()) as client:
        for name in ("a.long", "a.short"):
            client.create(name, SCHEMA)
        client.insert("a.long", LONG_ROWS)
        client.insert("a.short", LONG_ROWS.slice(0, 1_000))
        for item in client.read("a.long"):  # load all modules before the first measurement
            del item
        stalled: list[Any] = []

        def serve_others() -> None:
            stalled.extend(
                (stalled_readers(client, "a.long", 32), stalled_writers(server.address, list(range(1, 30_001)), 32))
            )
            for n in range(10):
                client.insert("a.short", LONG_ROWS.slice(n, 1))
                client.update("a.short", [n + 1], LONG_ROWS.slice(n + 10, 1))
                with client.transaction() as tx:
                    tx.delete("a.short", [500 + n])
            assert client.read("a.short", where="id < 20").read_all().num_rows == 30

        base = server.peak(lambda: None).bytes
        peak = server.peak(serve_others).bytes
        assert peak - base < 64 * MAX_STREAM_BYTES, (base >> 20, peak >> 20)
        readers, writers = stalled
        first = len(readers[0].read_next_batch())
        assert readers[0].read_all().num_rows + first < ROW_COUNT, "the stream has begun again"
        writers.cancel()
        writers.close()
        assert {item.name: item.rows for item in client.tables()} == {"a.long": ROW_COUNT, "a.short": 1_000}


@contextmanager
def running_serve_command(workspace: WorkspaceFixture, drain_seconds: int) -> Iterator[tuple[ServeProcess, str]]:
    """Run `penstock serve` and yield it with its Flight address."""
    arguments = ("--workspace", workspace.folder, "--http-port", "0", "--flight-port", "0")
    settings = {"PENSTOCK_JWT_SECRET": SECRET, "PENSTOCK_HTTP_DRAIN_SECONDS": str(drain_seconds)}
    with served(Path(workspace.folder), *arguments, **settings) as server:
        yield server, read_addresses(server)[1]


def test_stop_with_open_streams_ends_within_drain_time(sqlite_workspace: WorkspaceFixture, soak: bool) -> None:
    """Active calls may finish within the drain time. Then the server aborts them, and they change nothing."""
    drain_seconds = 10 if soak else 1
    with (
        running_serve_command(sqlite_workspace, drain_seconds) as (server, address),
        flight_client(address, token()) as client,
    ):
        client.create("a.long", SCHEMA)
        client.insert("a.long", LONG_ROWS)
        readers = stalled_readers(client, "a.long", 16)
        writers = stalled_writers(address, list(range(1, 30_001)), 16)
        client.transaction().insert("a.long", LONG_ROWS.slice(0, 20_000))
        server.process.send_signal(signal.SIGTERM)
        _, log = server.process.communicate(timeout=drain_seconds + 20)
        assert server.process.returncode == 0, log
        for text in ("Unexpected error", "Internal error", "a bug in Penstock", "Traceback"):
            assert text not in log, log
        writers.close()
        del readers
    with run_flight_server(sqlite_workspace) as flight_server:
        (table,) = flight_server.lake.datasets()
        assert (table.num_rows, table.version, flight_server.orphan_files()) == (ROW_COUNT, 2, set())
