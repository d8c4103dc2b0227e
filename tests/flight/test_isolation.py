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

from flight.flight_server import ROWS, House, TableFixture, child, open_house
from flight.history_checker import Done, Lists, anomalies
from flight.paired_clients import ByGrpc, stream
from flight.raw_client import Raw, Refused, token
from penstock.errors import Conflict
from penstock.flight import flight_data, ipc_messages
from penstock.flight import flight_pb2 as pb
from penstock.flight.client import FlightClient, TableClient, flight_client
from support.workspaces import WorkspaceFixture

SCHEMA = ROWS.schema
NEW = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
ONE, OTHER = NEW.slice(0, 1), NEW.slice(1, 1)


@pytest.fixture(scope="module", params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, edit_mode: str) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("isolation") / "workspace"
    with open_house(WorkspaceFixture.make(folder, None, edit_mode)) as house:
        yield house


@pytest.fixture
def client(house: House) -> Iterator[FlightClient]:
    with flight_client(house.address, token()) as client:
        yield client


TOUCHES: dict[str, Callable[[ByGrpc, TableFixture, pa.Table, str | None], Any]] = {
    "update": lambda client, table, rows, tx: client.put(table.update([2]), rows, tx),
    "delete": lambda client, table, _, tx: client.act("delete", table.delete([2]), tx),
}


@pytest.mark.parametrize("first", TOUCHES)
@pytest.mark.parametrize("second", TOUCHES)
@pytest.mark.parametrize("at_large", [False, True])
def test_concurrent_updates_of_one_row_first_committer_wins(
    house: House, edit_mode: str, first: str, second: str, at_large: bool
) -> None:
    """`at_large`: the first is no transaction at all."""
    table, raw = house.table(), ByGrpc(house.raw)
    winner, loser = None if at_large else house.begin(), house.begin()
    TOUCHES[second](raw, table, OTHER, loser)
    TOUCHES[first](raw, table, ONE, winner)
    if winner:
        raw.act("commit_transaction", {"transaction_id": winner})
    with pytest.raises(Refused) as raised:
        raw.act("commit_transaction", {"transaction_id": loser})
    reason = "row_conflict" if edit_mode == "mark" else "stale_version"
    assert (raised.value.code, raised.value.reason) == ("ABORTED", reason)
    assert house.status(loser) == "aborted"
    assert table.words() == {1: "one", 3: None, 4: "four"} | ({2: "eight"} if first == "update" else {})
    assert (table.version, house.strays(table)) == (2, set())


def test_conflict_on_one_table_leaves_other_table_unchanged(house: House) -> None:
    table, other, raw = house.table(), house.table(), ByGrpc(house.raw)
    tx = house.begin()
    raw.put(other.insert(), NEW, tx)
    raw.put(table.update([1]), ONE, tx)
    raw.put(table.update([1]), OTHER)
    with pytest.raises(Refused) as raised:
        raw.act("commit_transaction", {"transaction_id": tx})
    assert raised.value.code == "ABORTED"
    assert (other.version, house.strays(other)) == (1, set())


def test_concurrent_append_does_not_conflict_with_a_transaction(house: House) -> None:
    table, raw = house.table(), ByGrpc(house.raw)
    one, other = house.begin(), house.begin()
    raw.put(table.insert(), NEW, one)
    raw.put(table.update([2]), ONE, other)
    raw.put(table.insert(), NEW)
    for tx in (one, other):
        raw.act("commit_transaction", {"transaction_id": tx})
    assert sorted(map(str, table.words().values())) == sorted(["one", "eight", "None", "four", *["eight", "None"] * 2])


def test_rollback_keeps_rows_of_other_writers(house: House) -> None:
    table, raw = house.table(), ByGrpc(house.raw)
    tx = house.begin()
    raw.put(table.insert(), NEW, tx)
    raw.act("delete", table.delete([1, 2, 3, 4]), tx)
    response = raw.put(table.insert(returning=True), ONE)
    raw.put(table.update([2]), OTHER)
    raw.act("rollback_transaction", {"transaction_id": tx})
    (stored,) = pa.ipc.open_stream(response["returning_data"]).read_all()["rowid"].to_pylist()
    assert table.words() == {1: "one", 2: None, 3: None, 4: "four", stored: "eight"}
    assert house.strays(table) == set()


def again(act: Callable[[], None]) -> int:
    """Repeat an action until it has no conflict. Return the number of conflicts."""
    for conflicts in count():
        try:
            act()
        except Conflict:
            continue
        return conflicts
    raise AssertionError


ACCOUNTS, MONEY = 6, 100


def test_transfers_between_two_tables_keep_the_total(
    house: House, client: FlightClient, edit_mode: str, soak: bool
) -> None:
    schema = pa.schema([("owner", pa.int64()), ("money", pa.int64())])
    banks = [house.table(pa.Table.from_pylist([], schema)) for _ in range(2)]
    for bank in banks:
        accounts = [{"owner": owner, "money": MONEY} for owner in range(ACCOUNTS)]
        # Rewritten files conflict as a whole, so that each account then has a file of its own.
        for rows in [accounts] if edit_mode == "mark" else [[account] for account in accounts]:
            client.insert(bank.dataset.name, rows)
    names, over = [bank.dataset.name for bank in banks], threading.Event()

    def balances(tables: TableClient, name: str) -> dict[int, Any]:
        return {row["owner"]: row for row in tables.read(name, rowid=True).read_all().to_pylist()}

    def move(seed: int) -> int:
        dice, conflicts = random.Random(seed), 0

        def transfer() -> None:
            giver, taker = dice.sample(names, 2)
            owner, amount = dice.randrange(ACCOUNTS), dice.randrange(1, 20)
            with client.transaction() as tx:
                for name, change in ((giver, -amount), (taker, amount)):
                    row = balances(tx, name)[owner]
                    tx.update(name, [row["rowid"]], [{"owner": owner, "money": row["money"] + change}])

        for _ in range(200 if soak else 12):
            conflicts += again(transfer)
        return conflicts

    def look() -> int:
        looks = 0
        while not over.is_set():
            with client.transaction() as tx:
                seen = [row["money"] for name in names for row in balances(tx, name).values()]
            assert (len(seen), sum(seen)) == (2 * ACCOUNTS, 2 * ACCOUNTS * MONEY)
            looks += 1
        return looks

    with ThreadPoolExecutor() as pool:
        lookers, movers = [pool.submit(look) for _ in range(2)], [pool.submit(move, seed) for seed in range(3)]
        try:
            for mover in movers:
                mover.result()
        finally:
            over.set()
        assert sum(looker.result() for looker in lookers) > 5
    moved = [bank.dataset.to_arrow()["money"].to_pylist() for bank in banks]
    assert sum(map(sum, moved)) == 2 * ACCOUNTS * MONEY
    assert moved != [[MONEY] * ACCOUNTS] * 2, "nothing has moved"


KEYS = 4


def test_list_append_history_is_serializable(house: House, client: FlightClient, soak: bool) -> None:
    check_list_append_history(house, client, 1_000 if soak else 100)


def check_list_append_history(house: House, client: FlightClient, transactions: int) -> None:
    """Run transactions of four clients that append to lists by updating rows, and check their history."""
    schema = pa.schema([("key", pa.string()), ("elements", pa.list_(pa.int64()))])
    tables = [house.table(pa.Table.from_pylist([], schema)).dataset.name for _ in range(2)]
    admission: dict[str, tuple[str, int]] = {}  # key → table and row id
    for n in range(KEYS):
        row = pa.Table.from_pylist([{"key": f"k{n}", "elements": []}], schema)
        written = client.insert(tables[n % 2], row, returning=True)
        assert written.returned
        admission[f"k{n}"] = tables[n % 2], written.returned["rowid"][0].as_py()
    elements = count(1)

    def read(source: TableClient, keys: list[str]) -> Lists:
        found: dict[str, tuple[int, ...]] = {}
        for table in sorted({admission[key][0] for key in keys}):
            found |= {row["key"]: tuple(row["elements"]) for row in source.read(table).read_all().to_pylist()}
        return {key: found[key] for key in keys}

    def work(seed: int) -> list[Done]:
        dice, history = random.Random(seed), []
        with flight_client(house.address, token()) as client:
            for _ in range(transactions):
                keys = dice.sample(sorted(admission), dice.randint(1, 3))
                writes = keys[: dice.randint(0, 2)]
                tx = client.transaction()
                reads = read(tx, keys)
                appends = {key: next(elements) for key in writes}
                for key, element in appends.items():
                    table, row_id = admission[key]
                    tx.update(table, [row_id], [{"key": key, "elements": [*reads[key], element]}])
                    assert read(tx, [key])[key] == (*reads[key], element), "it does not see its own write"
                fate = dice.random()
                if fate < 0.1:
                    tx.rollback()
                    history.append(Done(reads, appends, committed=False))
                    continue
                try:
                    tx.commit()
                except Conflict:
                    history.append(Done(reads, appends, committed=False))
                else:
                    history.append(Done(reads, appends))
        return history

    with ThreadPoolExecutor(4) as pool:
        history = [done for item in pool.map(work, range(4)) for done in item]
    end = read(client, sorted(admission))
    assert sum(done.committed and bool(done.appends) for done in history) > 10
    assert anomalies(history, end) == []


STORIES: list[tuple[str, list[Done], Lists]] = [
    ("is gone", [Done({"a": ()}, {"a": 1}), Done({"a": ()}, {"a": 2})], {"a": (2,)}),
    ("lost update", [Done({"a": ()}, {"a": 1}), Done({"a": ()}, {"a": 2})], {"a": (1, 2)}),
    ("dirty read", [Done({"a": (1,)}), Done({}, {"a": 1}, committed=False)], {"a": ()}),
    ("what was rolled back is there", [Done({}, {"a": 1}, committed=False)], {"a": (1,)}),
    ("twice", [Done({}, {"a": 1})], {"a": (1, 1)}),
    ("from nowhere", [], {"a": (1,)}),
    ("no beginning", [Done({}, {"a": 1}), Done({"a": (1,)}, {"a": 2}), Done({"a": (2,)})], {"a": (1, 2)}),
    ("torn", [Done({}, {"a": 1, "b": 2}), Done({"a": (1,), "b": ()})], {"a": (1,), "b": (2,)}),
]


@pytest.mark.parametrize(("what", "history", "end"), STORIES, ids=[what for what, *_ in STORIES])
def test_history_checker_rejects_inconsistent_history(what: str, history: list[Done], end: Lists) -> None:
    assert anomalies(history, end) != [], what


def test_history_checker_accepts_consistent_history() -> None:
    history = [
        Done({"a": (), "b": ()}, {"a": 1, "b": 2}),
        Done({"a": (1,)}, {"a": 3}),
        Done({"a": (1,), "b": (2,)}, {"b": 4}, committed=False),
        Done({"a": (1, 3), "b": (2,)}),
        Done({"a": (), "b": ()}),
    ]
    assert anomalies(history, {"a": (1, 3), "b": (2,)}) == []


def test_32_concurrent_inserters_lose_no_rows(house: House, soak: bool) -> None:
    table, item, response = house.table(ROWS.slice(0, 0)), 100 if soak else 5, []
    start = threading.Barrier(32)

    def insert(who: int) -> None:
        with flight_client(house.address, token()) as client:
            start.wait()
            for n in range(item):
                rows = [{"id": 1_000 * who + 2 * n + k, "word": str(who)} for k in range(2)]
                written = client.insert(table.dataset.name, pa.Table.from_pylist(rows, SCHEMA), returning=True)
                assert written.returned
                response.extend((row["rowid"], row["id"]) for row in written.returned.to_pylist())

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(insert, range(32)))
    there = {id: row["id"] for id, row in table.there().items()}
    assert len(response) == len(there) == 32 * item * 2
    assert dict(response) == there, "a row has another id than the insert returned"
    assert sorted(there.values()) == sorted(1_000 * who + k for who in range(32) for k in range(2 * item))


def test_open_read_stream_keeps_snapshot_and_blocks_no_writer(house: House) -> None:
    rows = pa.table({"id": range(400_000), "word": ["so long that no window holds all of them"] * 400_000}, SCHEMA)
    table, raw = house.table(rows), ByGrpc(house.raw)
    tx = house.begin()
    raw.act("delete", table.delete([400_000]), tx)
    request = pb.Ticket(ticket=json.dumps(table.at).encode())
    held = [house.raw.stream("DoGet", request), house.raw.stream("DoGet", request, x_transaction_id=tx)]
    begun = [[next(item), next(item)] for item in held]
    raw.put(table.insert(), NEW)
    raw.put(table.update([1, 399_999]), NEW)
    raw.act("delete", table.delete(list(range(2, 1_000))))
    table.dataset.compact()
    raw.act("drop_table", table.at)
    for rest, first, expected in zip(held, begun, (rows, rows.slice(0, 399_999)), strict=True):
        schema, *response = (flight_data.decode(message) for message in (*first, *rest))
        batches = [ipc_messages.decode_batch(item, ipc_messages.decode_schema(schema), 1 << 30, 0) for item in response]
        assert pa.Table.from_batches(batches).equals(expected)


@pytest.mark.parametrize("hampered", [False, True])
def test_insert_memory_does_not_grow_with_length(
    sqlite_workspace: WorkspaceFixture, soak: bool, hampered: bool
) -> None:
    few, many = 200_000, 2_000_000 if hampered else 10_000_000 if soak else 1_000_000
    numbers = pa.array([random.random() for _ in range(50_000)])
    batch = pa.record_batch({f"n{k}": numbers for k in range(25)})  # 200 bytes a row
    with (
        child(sqlite_workspace, measured=True) as served,
        Raw(served, token(), seconds=300) as raw,  # 2 GB on a busy machine
        flight_client(served.address, token()) as client,
    ):
        client.create("a.b", batch.schema)

        def insert(rows: int) -> None:
            first, *one = stream({"operation": "insert", "schema_name": "a", "table_name": "b"}, batch.schema, [batch])
            sent = (message for message in (first, *(item for _ in range(rows // 50_000) for item in one)))
            assert ByGrpc(raw).send(sent)["affected_rows"] == rows

        insert(few)  # everything is loaded by then
        small = served.peak(lambda: insert(few))
        with served.hampered() if hampered else nullcontext():
            large = served.peak(lambda: insert(many))
        figures = (
            f"MiB at the peak with few rows: {small.figures}; with many: {large.figures}; after: {served.memory()}"
        )
        assert large.bytes - small.bytes < 80 << 20, figures
        # Memory in use, without the free blocks that the allocators keep.
        assert int(large.figures["pool_peak"]) - int(small.figures["pool_peak"]) < 40, figures
        (there,) = client.tables()
        assert there.rows == 2 * few + many
