"""Isolation of transactions that edit rows of one data file, while it is compacted, on each kind of database."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from flight.flight_server import FlightServerFixture, run_flight_server
from flight.raw_client import token
from flight.test_isolation import check_list_append_history, retry_on_conflict
from penstock.flight.client import FlightClient, flight_client
from support.workspaces import WorkspaceFixture

ACCOUNT_COUNT, INITIAL_BALANCE = 50, 100


@pytest.fixture(params=["mark", "auto"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def flight_server(workspace: WorkspaceFixture) -> Iterator[FlightServerFixture]:
    with run_flight_server(workspace) as flight_server:
        yield flight_server


@pytest.fixture
def client(flight_server: FlightServerFixture) -> Iterator[FlightClient]:
    with flight_client(flight_server.address, token()) as client:
        yield client


def test_transfers_between_rows_of_one_file_keep_the_total_during_compactions(
    flight_server: FlightServerFixture, client: FlightClient, soak: bool
) -> None:
    schema = pa.schema([("owner", pa.int64()), ("money", pa.int64())])
    bank = flight_server.create_table(
        pa.table({"owner": range(ACCOUNT_COUNT), "money": [INITIAL_BALANCE] * ACCOUNT_COUNT}, schema)
    ).dataset
    is_done = threading.Event()

    def move(seed: int) -> int:
        rng, conflicts = random.Random(seed), 0

        def transfer() -> None:
            payer, payee = rng.sample(range(ACCOUNT_COUNT), 2)
            amount = rng.randrange(1, 20)
            with client.transaction() as tx:
                rows = {row["owner"]: row for row in tx.read(bank.name, rowid=True).read_all().to_pylist()}
                for owner, change in ((payer, -amount), (payee, amount)):
                    row = {"owner": owner, "money": rows[owner]["money"] + change}
                    tx.update(bank.name, [rows[owner]["rowid"]], [row])

        for _ in range(200 if soak else 20):
            conflicts += retry_on_conflict(transfer)
        return conflicts

    def compact() -> int:
        steps = 0
        while not is_done.wait(0.05):
            steps += bank.compact().steps
        return steps

    def read() -> int:
        reads = 0
        while not is_done.is_set():
            money = client.read(bank.name).read_all()["money"].to_pylist()
            assert (len(money), sum(money)) == (ACCOUNT_COUNT, ACCOUNT_COUNT * INITIAL_BALANCE)
            reads += 1
        return reads

    with ThreadPoolExecutor() as pool:
        compaction, reader = pool.submit(compact), pool.submit(read)
        movers = [pool.submit(move, seed) for seed in range(3)]
        try:
            for mover in movers:
                mover.result()
        finally:
            is_done.set()
        assert compaction.result() > 0
        assert reader.result() > 0
    money = bank.to_arrow()["money"].to_pylist()
    assert (len(money), sum(money)) == (ACCOUNT_COUNT, ACCOUNT_COUNT * INITIAL_BALANCE)
    assert money != [INITIAL_BALANCE] * ACCOUNT_COUNT, "nothing has moved"


def test_list_append_history_with_edits_is_serializable(
    flight_server: FlightServerFixture, client: FlightClient, soak: bool
) -> None:
    check_list_append_history(flight_server, client, 300 if soak else 30)
