"""Slow clients block no other client and use bounded memory, and the server can stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight.broken_clients import Streams, Stuck
from flight.flight_server import child, open_house
from flight.paired_clients import stream
from flight.raw_client import SECRET, token
from flight.test_serve import addresses
from penstock.flight.client import FlightClient, flight_client
from rest.test_serve import Served, served
from support.workspaces import WorkspaceFixture

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
COUNT = 2_000_000
LONG = pa.table([pa.arange(0, COUNT), pa.repeat("so long that no window holds all of them", COUNT)], schema=SCHEMA)
MOST = 12 << 20  # bytes for one stream; a reader that had all its rows waiting would have ten times as much
AT = {"schema_name": "a", "table_name": "long"}


def unread(client: FlightClient, table: str, count: int) -> list[Any]:
    """Readers that take the first rows, and no more."""
    readers = [client.read(table) for _ in range(count)]
    for item in readers:
        item.read_next_batch()
    return readers


def unfinished(address: str, ids: list[int], count: int) -> Streams:
    """Writers that have sent rows, or less, and do not go on."""
    batches = LONG.slice(0, len(ids)).to_batches(max_chunksize=10_000)
    inserts, updates = (
        stream({**AT, "operation": "insert"}, SCHEMA, batches, alone=True),
        stream({**AT, "operation": "update", "row_ids": ids}, SCHEMA, batches, alone=True),
    )
    plans = [(Stuck((inserts, updates)[n % 2][: n % (len(inserts) + 1)]), None) for n in range(count)]
    return Streams(address, plans)


def test_64_slow_clients_do_not_block_others_and_use_bounded_memory(sqlite_workspace: WorkspaceFixture) -> None:
    with child(sqlite_workspace, puts=64) as served, flight_client(served.address, token()) as client:
        for name in ("a.long", "a.short"):
            client.create(name, SCHEMA)
        client.insert("a.long", LONG)
        client.insert("a.short", LONG.slice(0, 1_000))
        for item in client.read("a.long"):  # everything is loaded by then
            del item
        slow: list[Any] = []

        def serve_others() -> None:
            slow.extend((unread(client, "a.long", 32), unfinished(served.address, list(range(1, 30_001)), 32)))
            for n in range(10):
                client.insert("a.short", LONG.slice(n, 1))
                client.update("a.short", [n + 1], LONG.slice(n + 10, 1))
                with client.transaction() as tx:
                    tx.delete("a.short", [500 + n])
            assert client.read("a.short", where="id < 20").read_all().num_rows == 30

        base = served.peak(lambda: None).bytes
        peak = served.peak(serve_others).bytes
        assert peak - base < 64 * MOST, (base >> 20, peak >> 20)
        readers, writers = slow
        first = len(readers[0].read_next_batch())
        assert readers[0].read_all().num_rows + first < COUNT, "it goes on with what it began"
        writers.cancel()
        writers.close()
        assert {item.name: item.rows for item in client.tables()} == {"a.long": COUNT, "a.short": 1_000}


@contextmanager
def command(workspace: WorkspaceFixture, drain: int) -> Iterator[tuple[Served, str]]:
    """`penstock serve`, and where it listens for Flight."""
    args = ("--workspace", workspace.folder, "--http-port", "0", "--flight-port", "0")
    settings = {"PENSTOCK_JWT_SECRET": SECRET, "PENSTOCK_HTTP_DRAIN_SECONDS": str(drain)}
    with served(Path(workspace.folder), *args, **settings) as server:
        yield server, addresses(server)[1]


def test_stop_with_open_streams_ends_within_drain_time(sqlite_workspace: WorkspaceFixture, soak: bool) -> None:
    """Active calls may finish within the drain time. Then the server cuts them off, and they change nothing."""
    drain = 10 if soak else 1
    with command(sqlite_workspace, drain) as (server, address), flight_client(address, token()) as client:
        client.create("a.long", SCHEMA)
        client.insert("a.long", LONG)
        readers = unread(client, "a.long", 16)
        writers = unfinished(address, list(range(1, 30_001)), 16)
        client.transaction().insert("a.long", LONG.slice(0, 20_000))
        server.process.send_signal(signal.SIGTERM)
        _, log = server.process.communicate(timeout=drain + 20)
        assert server.process.returncode == 0, log
        for text in ("Unexpected error", "Internal error", "a bug in Penstock", "Traceback"):
            assert text not in log, log
        writers.close()
        del readers
    with open_house(sqlite_workspace) as house:
        (there,) = house.lake.datasets()
        assert (there.num_rows, there.version, house.strays()) == (COUNT, 2, set())
