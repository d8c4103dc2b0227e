"""Snapshot isolation of concurrent clients: no lost writes, conflicts are reported."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from flight.flight_server import ROWS, FlightServerFixture, TableFixture, run_flight_server, server_process
from flight.history_checker import Lists, TransactionResult, anomalies
from flight.paired_clients import GrpcClient, put_messages
from flight.raw_client import CallRejected, RawClient, token
from penstock.errors import Conflict
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb
from penstock.flight.client import FlightClient, TableClient, flight_client
from support.workspaces import WorkspaceFixture

SCHEMA = ROWS.schema
NEW_ROWS = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
ROW_8, ROW_9 = NEW_ROWS.slice(0, 1), NEW_ROWS.slice(1, 1)


@pytest.fixture(scope="module", params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def flight_server(tmp_path_factory: pytest.TempPathFactory, edit_mode: str) -> Iterator[FlightServerFixture]:
    folder = tmp_path_factory.mktemp("isolation") / "workspace"
    with run_flight_server(WorkspaceFixture.make(folder, None, edit_mode)) as flight_server:
        yield flight_server


@pytest.fixture
def client(flight_server: FlightServerFixture) -> Iterator[FlightClient]:
    with flight_client(flight_server.address, token()) as client:
        yield client


WRITES: dict[str, Callable[[GrpcClient, TableFixture, pa.Table, str | None], Any]] = {
    "update": lambda client, table, rows, tx: client.put(table.update([2]), rows, tx),
    "delete": lambda client, table, _, tx: client.do_action("delete", table.delete([2]), tx),
}


@pytest.mark.parametrize("first", WRITES)
@pytest.mark.parametrize("second", WRITES)
@pytest.mark.parametrize("outside_transaction", [False, True])
def test_concurrent_updates_of_one_row_first_committer_wins(
    flight_server: FlightServerFixture, edit_mode: str, first: str, second: str, outside_transaction: bool
) -> None:
    """`outside_transaction`: the first write is outside a transaction."""
    table, grpc_client = flight_server.create_table(), GrpcClient(flight_server.raw_client)
    winner, loser = (
        None if outside_transaction else flight_server.begin_transaction(),
        flight_server.begin_transaction(),
    )
    WRITES[second](grpc_client, table, ROW_9, loser)
    WRITES[first](grpc_client, table, ROW_8, winner)
    if winner:
        grpc_client.do_action("commit_transaction", {"transaction_id": winner})
    with pytest.raises(CallRejected) as raised:
        grpc_client.do_action("commit_transaction", {"transaction_id": loser})
    reason = "row_conflict" if edit_mode == "mark" else "stale_version"
    assert (raised.value.code, raised.value.reason) == ("ABORTED", reason)
    assert flight_server.transaction_status(loser) == "aborted"
    assert table.words_by_id() == {1: "one", 3: None, 4: "four"} | ({2: "eight"} if first == "update" else {})
    assert (table.version, flight_server.orphan_files(table)) == (2, set())


def test_conflict_on_one_table_leaves_other_table_unchanged(flight_server: FlightServerFixture) -> None:
    table, other_table, grpc_client = (
        flight_server.create_table(),
        flight_server.create_table(),
        GrpcClient(flight_server.raw_client),
    )
    tx = flight_server.begin_transaction()
    grpc_client.put(other_table.insert(), NEW_ROWS, tx)
    grpc_client.put(table.update([1]), ROW_8, tx)
    grpc_client.put(table.update([1]), ROW_9)
    with pytest.raises(CallRejected) as raised:
        grpc_client.do_action("commit_transaction", {"transaction_id": tx})
    assert raised.value.code == "ABORTED"
    assert (other_table.version, flight_server.orphan_files(other_table)) == (1, set())


def test_concurrent_append_does_not_conflict_with_a_transaction(flight_server: FlightServerFixture) -> None:
    table, grpc_client = flight_server.create_table(), GrpcClient(flight_server.raw_client)
    insert_tx, update_tx = flight_server.begin_transaction(), flight_server.begin_transaction()
    grpc_client.put(table.insert(), NEW_ROWS, insert_tx)
    grpc_client.put(table.update([2]), ROW_8, update_tx)
    grpc_client.put(table.insert(), NEW_ROWS)
    for tx in (insert_tx, update_tx):
        grpc_client.do_action("commit_transaction", {"transaction_id": tx})
    assert sorted(map(str, table.words_by_id().values())) == sorted(
        ["one", "eight", "None", "four", *["eight", "None"] * 2]
    )


def test_rollback_keeps_rows_of_other_writers(flight_server: FlightServerFixture) -> None:
    table, grpc_client = flight_server.create_table(), GrpcClient(flight_server.raw_client)
    tx = flight_server.begin_transaction()
    grpc_client.put(table.insert(), NEW_ROWS, tx)
    grpc_client.do_action("delete", table.delete([1, 2, 3, 4]), tx)
    response = grpc_client.put(table.insert(returning=True), ROW_8)
    grpc_client.put(table.update([2]), ROW_9)
    grpc_client.do_action("rollback_transaction", {"transaction_id": tx})
    (row_id,) = pa.ipc.open_stream(response["returning_data"]).read_all()["rowid"].to_pylist()
    assert table.words_by_id() == {1: "one", 2: None, 3: None, 4: "four", row_id: "eight"}
    assert flight_server.orphan_files(table) == set()


def retry_on_conflict(action: Callable[[], None]) -> int:
    """Repeat an action until it has no conflict. Return the number of conflicts."""
    for conflicts in count():
        try:
            action()
        except Conflict:
            continue
        return conflicts
    raise AssertionError


ACCOUNT_COUNT, INITIAL_BALANCE = 6, 100


def test_transfers_between_two_tables_keep_the_total(
    flight_server: FlightServerFixture, client: FlightClient, edit_mode: str, soak: bool
) -> None:
    schema = pa.schema([("owner", pa.int64()), ("money", pa.int64())])
    banks = [flight_server.create_table(pa.Table.from_pylist([], schema)) for _ in range(2)]
    for bank in banks:
        accounts = [{"owner": owner, "money": INITIAL_BALANCE} for owner in range(ACCOUNT_COUNT)]
        # Rewritten files conflict as a whole, so each account then gets its own file.
        for rows in [accounts] if edit_mode == "mark" else [[account] for account in accounts]:
            client.insert(bank.dataset.name, rows)
    names, done = [bank.dataset.name for bank in banks], threading.Event()

    def balances(tables: TableClient, name: str) -> dict[int, Any]:
        return {row["owner"]: row for row in tables.read(name, rowid=True).read_all().to_pylist()}

    def run_transfers(seed: int) -> int:
        rng, conflicts = random.Random(seed), 0

        def transfer() -> None:
            debited, credited = rng.sample(names, 2)
            owner, amount = rng.randrange(ACCOUNT_COUNT), rng.randrange(1, 20)
            with client.transaction() as tx:
                for name, change in ((debited, -amount), (credited, amount)):
                    row = balances(tx, name)[owner]
                    tx.update(name, [row["rowid"]], [{"owner": owner, "money": row["money"] + change}])

        for _ in range(200 if soak else 12):
            conflicts += retry_on_conflict(transfer)
        return conflicts

    def check_totals() -> int:
        checks = 0
        while not done.is_set():
            with client.transaction() as tx:
                balances_read = [row["money"] for name in names for row in balances(tx, name).values()]
            assert (len(balances_read), sum(balances_read)) == (2 * ACCOUNT_COUNT, 2 * ACCOUNT_COUNT * INITIAL_BALANCE)
            checks += 1
        return checks

    with ThreadPoolExecutor() as pool:
        readers, writers = (
            [pool.submit(check_totals) for _ in range(2)],
            [pool.submit(run_transfers, seed) for seed in range(3)],
        )
        try:
            for writer in writers:
                writer.result()
        finally:
            done.set()
        assert sum(reader.result() for reader in readers) > 5
    final_balances = [bank.dataset.to_arrow()["money"].to_pylist() for bank in banks]
    assert sum(map(sum, final_balances)) == 2 * ACCOUNT_COUNT * INITIAL_BALANCE
    assert final_balances != [[INITIAL_BALANCE] * ACCOUNT_COUNT] * 2, "no transfer was committed"


KEY_COUNT = 4


def test_list_append_history_is_serializable(
    flight_server: FlightServerFixture, client: FlightClient, soak: bool
) -> None:
    check_list_append_history(flight_server, client, 1_000 if soak else 100)


def check_list_append_history(flight_server: FlightServerFixture, client: FlightClient, transactions: int) -> None:
    """Run transactions of four clients that append to lists by updating rows, and check their history."""
    schema = pa.schema([("key", pa.string()), ("elements", pa.list_(pa.int64()))])
    tables = [flight_server.create_table(pa.Table.from_pylist([], schema)).dataset.name for _ in range(2)]
    locations: dict[str, tuple[str, int]] = {}  # key → table and row id
    for n in range(KEY_COUNT):
        row = pa.Table.from_pylist([{"key": f"k{n}", "elements": []}], schema)
        written = client.insert(tables[n % 2], row, returning=True)
        assert written.returned
        locations[f"k{n}"] = tables[n % 2], written.returned["rowid"][0].as_py()
    elements = count(1)

    def read(source: TableClient, keys: list[str]) -> Lists:
        lists: dict[str, tuple[int, ...]] = {}
        for table in sorted({locations[key][0] for key in keys}):
            lists |= {row["key"]: tuple(row["elements"]) for row in source.read(table).read_all().to_pylist()}
        return {key: lists[key] for key in keys}

    def run_transactions(seed: int) -> list[TransactionResult]:
        rng, history = random.Random(seed), []
        with flight_client(flight_server.address, token()) as client:
            for _ in range(transactions):
                keys = rng.sample(sorted(locations), rng.randint(1, 3))
                writes = keys[: rng.randint(0, 2)]
                tx = client.transaction()
                reads = read(tx, keys)
                appends = {key: next(elements) for key in writes}
                for key, element in appends.items():
                    table, row_id = locations[key]
                    tx.update(table, [row_id], [{"key": key, "elements": [*reads[key], element]}])
                    assert read(tx, [key])[key] == (*reads[key], element), "the transaction does not read its own write"
                outcome = rng.random()
                if outcome < 0.1:
                    tx.rollback()
                    history.append(TransactionResult(reads, appends, committed=False))
                    continue
                try:
                    tx.commit()
                except Conflict:
                    history.append(TransactionResult(reads, appends, committed=False))
                else:
                    history.append(TransactionResult(reads, appends))
        return history

    with ThreadPoolExecutor(4) as pool:
        history = [result for results in pool.map(run_transactions, range(4)) for result in results]
    final = read(client, sorted(locations))
    assert sum(result.committed and bool(result.appends) for result in history) > 10
    assert anomalies(history, final) == []


INCONSISTENT_HISTORIES: list[tuple[str, list[TransactionResult], Lists]] = [
    ("lost append", [TransactionResult({"a": ()}, {"a": 1}), TransactionResult({"a": ()}, {"a": 2})], {"a": (2,)}),
    ("lost update", [TransactionResult({"a": ()}, {"a": 1}), TransactionResult({"a": ()}, {"a": 2})], {"a": (1, 2)}),
    ("dirty read", [TransactionResult({"a": (1,)}), TransactionResult({}, {"a": 1}, committed=False)], {"a": ()}),
    ("rolled-back append is visible", [TransactionResult({}, {"a": 1}, committed=False)], {"a": (1,)}),
    ("duplicate append", [TransactionResult({}, {"a": 1})], {"a": (1, 1)}),
    ("unknown element", [], {"a": (1,)}),
    (
        "read is not a prefix",
        [TransactionResult({}, {"a": 1}), TransactionResult({"a": (1,)}, {"a": 2}), TransactionResult({"a": (2,)})],
        {"a": (1, 2)},
    ),
    (
        "partial read",
        [TransactionResult({}, {"a": 1, "b": 2}), TransactionResult({"a": (1,), "b": ()})],
        {"a": (1,), "b": (2,)},
    ),
]


@pytest.mark.parametrize(
    ("anomaly", "history", "final"), INCONSISTENT_HISTORIES, ids=[anomaly for anomaly, *_ in INCONSISTENT_HISTORIES]
)
def test_history_checker_rejects_inconsistent_history(
    anomaly: str, history: list[TransactionResult], final: Lists
) -> None:
    assert anomalies(history, final) != [], anomaly


def test_history_checker_accepts_consistent_history() -> None:
    history = [
        TransactionResult({"a": (), "b": ()}, {"a": 1, "b": 2}),
        TransactionResult({"a": (1,)}, {"a": 3}),
        TransactionResult({"a": (1,), "b": (2,)}, {"b": 4}, committed=False),
        TransactionResult({"a": (1, 3), "b": (2,)}),
        TransactionResult({"a": (), "b": ()}),
    ]
    assert anomalies(history, {"a": (1, 3), "b": (2,)}) == []


def test_32_concurrent_inserters_lose_no_rows(flight_server: FlightServerFixture, soak: bool) -> None:
    table, inserts_per_client, returned_ids = flight_server.create_table(ROWS.slice(0, 0)), 100 if soak else 5, []
    start = threading.Barrier(32)

    def insert(client_no: int) -> None:
        with flight_client(flight_server.address, token()) as client:
            start.wait()
            for n in range(inserts_per_client):
                rows = [{"id": 1_000 * client_no + 2 * n + k, "word": str(client_no)} for k in range(2)]
                result = client.insert(table.dataset.name, pa.Table.from_pylist(rows, SCHEMA), returning=True)
                assert result.returned
                returned_ids.extend((row["rowid"], row["id"]) for row in result.returned.to_pylist())

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(insert, range(32)))
    ids_by_row_id = {id: row["id"] for id, row in table.rows_by_id().items()}
    assert len(returned_ids) == len(ids_by_row_id) == 32 * inserts_per_client * 2
    assert dict(returned_ids) == ids_by_row_id, "a row has another id than the insert returned"
    assert sorted(ids_by_row_id.values()) == sorted(
        1_000 * client_no + k for client_no in range(32) for k in range(2 * inserts_per_client)
    )


def test_open_read_stream_keeps_snapshot_and_blocks_no_writer(flight_server: FlightServerFixture) -> None:
    rows = pa.table({"id": range(400_000), "word": ["a text of forty characters for each row."] * 400_000}, SCHEMA)
    table, grpc_client = flight_server.create_table(rows), GrpcClient(flight_server.raw_client)
    tx = flight_server.begin_transaction()
    grpc_client.do_action("delete", table.delete([400_000]), tx)
    request = pb.Ticket(ticket=json.dumps(table.reference).encode())
    streams = [
        flight_server.raw_client.open_stream("DoGet", request),
        flight_server.raw_client.open_stream("DoGet", request, x_transaction_id=tx),
    ]
    first_messages = [[next(stream), next(stream)] for stream in streams]
    grpc_client.put(table.insert(), NEW_ROWS)
    grpc_client.put(table.update([1, 399_999]), NEW_ROWS)
    grpc_client.do_action("delete", table.delete(list(range(2, 1_000))))
    table.dataset.compact()
    grpc_client.do_action("drop_table", table.reference)
    for remaining, received, expected in zip(streams, first_messages, (rows, rows.slice(0, 399_999)), strict=True):
        schema, *messages = (flight_data.decode(message) for message in (*received, *remaining))
        batches = [
            ipc_messages.decode_batch(stream, ipc_messages.decode_schema(schema), 1 << 30, 0) for stream in messages
        ]
        assert pa.Table.from_batches(batches).equals(expected)


@pytest.mark.parametrize("slow_server", [False, True])
def test_insert_memory_does_not_grow_with_length(
    sqlite_workspace: WorkspaceFixture, soak: bool, slow_server: bool
) -> None:
    few_rows, many_rows = 200_000, 2_000_000 if slow_server else 10_000_000 if soak else 1_000_000
    numbers = pa.array([random.random() for _ in range(50_000)])
    batch = pa.record_batch({f"n{k}": numbers for k in range(25)})  # 200 bytes a row
    with (
        server_process(sqlite_workspace, serve_allocators=True) as server,
        RawClient(server, token(), timeout_seconds=300) as raw_client,  # 2 GB on a busy machine
        flight_client(server.address, token()) as client,
    ):
        client.create("a.b", batch.schema)

        def insert(rows: int) -> None:
            first, *batch_messages = put_messages(
                {"operation": "insert", "schema_name": "a", "table_name": "b"}, batch.schema, [batch]
            )
            messages = (
                message for message in (first, *(part for _ in range(rows // 50_000) for part in batch_messages))
            )
            assert GrpcClient(raw_client).send(messages)["affected_rows"] == rows

        insert(few_rows)  # load all modules before the first measurement
        small = server.peak(lambda: insert(few_rows))
        with server.paused_repeatedly() if slow_server else nullcontext():
            large = server.peak(lambda: insert(many_rows))
        figures = (
            f"MiB at the peak with few rows: {small.figures}; with many: {large.figures}; after: {server.memory()}"
        )
        assert large.bytes - small.bytes < 80 << 20, figures
        # Memory in use, without the free blocks that the allocators keep.
        assert int(large.figures["pool_peak"]) - int(small.figures["pool_peak"]) < 40, figures
        (table,) = client.tables()
        assert table.rows == 2 * few_rows + many_rows
