"""Atomicity of writes: disconnected clients, corrupt messages and killed servers leave all rows or none."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from flight.broken_clients import Streams, Stuck, wait_to_be_killed
from flight.flight_server import PROCESSES, ROWS, Child, House, TableFixture, child, eventually, open_house
from flight.paired_clients import ByGrpc, stream
from flight.raw_client import SECONDS, Raw, Refused, token
from penstock import failpoints
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from support.workspaces import WorkspaceFixture

SCHEMA = ROWS.schema
MANY = pa.table({"id": range(20_000), "word": ["new"] * 20_000}, SCHEMA)
BATCHES = MANY.to_batches(max_chunksize=4_000)  # the first are held in memory, the others are written at once
NEW = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
COMMITTED = ("commit.sent", "commit.done")  # the steps after which a write has happened
END = "right after the end"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(WorkspaceFixture.make(tmp_path_factory.mktemp("atomicity") / "workspace", None)) as house:
        yield house


def points(request: dict[str, Any]) -> dict[str, Stuck]:
    """Return the positions of a stream at which a client may disconnect."""
    sent = stream(request, SCHEMA, BATCHES, alone=True)
    names = ["before the descriptor", "after the descriptor", "after the schema"]
    names += [f"after batch {n + 1}" for n in range(len(BATCHES))]
    assert len(sent) == len(names) - 1
    stops = {name: Stuck(sent[:n]) for n, name in enumerate(names)}
    return {**stops, END: Stuck(sent, ends=True)}


@dataclass
class Broken:
    """A stream that will be interrupted: into its own table, optionally in a transaction."""

    point: str
    stuck: Stuck
    table: TableFixture
    transaction: str | None


def plans(house: House, kind: str) -> list[Broken]:
    made = []
    for point in points({}):
        table = house.table(MANY.set_column(1, SCHEMA.field(1), pa.array(["old"] * 20_000)))
        request = table.update(list(range(20_000, 0, -1))) if kind == "update" else table.insert()
        tx = house.begin() if kind == "in a transaction" else None
        made.append(Broken(point, points(request)[point], table, tx))
    return made


def killed(house: House, broken: list[Broken]) -> None:
    ours, theirs = PROCESSES.Pipe()
    response = [(item.stuck.sent, item.stuck.ends, item.transaction) for item in broken]
    client = PROCESSES.Process(target=wait_to_be_killed, args=(house.address, response, theirs), daemon=True)
    client.start()
    theirs.close()
    assert ours.poll(SECONDS)
    assert ours.recv() == len(broken)
    client.kill()
    client.join(SECONDS)
    assert client.exitcode == -signal.SIGKILL


def cancelled(house: House, broken: list[Broken]) -> None:
    streams = Streams(house.address, [(item.stuck, item.transaction) for item in broken])
    streams.cancel()
    streams.close()


def timed_out(house: House, broken: list[Broken]) -> None:
    streams = Streams(house.address, [(item.stuck, item.transaction) for item in broken], timeout=1.0)
    house.calls.wait("DoPut", len(broken))
    streams.close()


BREAKS: dict[str, Callable[[House, list[Broken]], None]] = {
    "killed": killed,
    "cancelled": cancelled,
    "timed out": timed_out,
}


@pytest.mark.parametrize("kind", ["insert", "update", "in a transaction"])
@pytest.mark.parametrize("how", BREAKS)
def test_put_from_disconnected_client_changes_nothing(house: House, how: str, kind: str) -> None:
    broken = plans(house, kind)
    house.calls.forget()
    BREAKS[how](house, broken)
    ended = house.calls.wait("DoPut", len(broken))
    if how == "timed out":  # so there was time enough
        assert max(item.rows_in for item in ended) >= 4_000, "the server saw next to nothing of it"
    for item in broken:
        eventually(lambda item=item: house.strays(item.table) == set() or whole(item, kind))
        unchanged = item.table.version == 1 and set(item.table.words().values()) == {"old"}
        assert unchanged or (item.point == END and whole(item, kind)), item.point
        if item.transaction and item.point != END:
            assert house.status(item.transaction) == "aborted", item.point


def whole(broken: Broken, kind: str) -> bool:
    """Return whether all rows are stored. A client that ended its stream may be cut off before it gets the response."""
    words = list(broken.table.words().values())
    match kind:
        case "insert":
            return broken.table.version == 2 and sorted(words) == ["new"] * 20_000 + ["old"] * 20_000
        case "update":
            return broken.table.version == 2 and words == ["new"] * 20_000
    assert broken.transaction
    return broken.table.version == 1


def test_put_cancelled_before_its_end_is_never_committed(house: House, soak: bool) -> None:
    """A cancelled stream may briefly look complete: all rows have arrived, and none may be committed."""
    table = house.table()
    for times in range(500 if soak else 25):
        house.calls.forget()
        request = [table.insert(), table.update([1, 2]), table.insert(), table.update([3, 4])]
        plan = [(Stuck(stream(item, SCHEMA, NEW.to_batches())), None) for item in request]
        streams = Streams(house.address, plan)
        streams.cancel()
        streams.close()
        house.calls.wait("DoPut", len(plan))
        assert table.version == 1, times


def corrupt(message: bytes, how: str) -> bytes:
    match how:
        case "cut off":
            return message[: len(message) // 2]
        case "wild offsets":
            return message[:-40_000] + b"\xff" * 40_000
        case "no header":
            return b"\x12\x04abcd" + message[:0]
    return b"\x00\xff garbage"


@pytest.mark.parametrize("how", ["cut off", "wild offsets", "no header", "garbage"])
def test_put_with_corrupt_message_discards_earlier_batches(house: House, how: str) -> None:
    table = house.table(MANY)
    for request in (table.insert(), table.update(list(range(1, 20_001)))):
        sent = stream(request, SCHEMA, BATCHES)
        for workspace in range(1, len(sent)):
            tx = house.begin()
            damaged = [*sent[:workspace], corrupt(sent[workspace], how), *sent[workspace + 1 :]]
            for headers in ({}, {"x_transaction_id": tx}):
                with pytest.raises(Refused) as raised:
                    house.raw.put(damaged, **headers)
                assert raised.value.code == "INVALID_ARGUMENT"
            assert house.status(tx) == "aborted"
    assert table.version == 1
    eventually(lambda: house.strays(table) == set())


def test_update_with_one_missing_row_id_changes_nothing(house: House) -> None:
    table, raw = house.table(MANY), ByGrpc(house.raw)
    for workspace in (0, 5_000, 9_999):
        ids = list(range(1, 10_001))
        ids[workspace] = 20_001
        with pytest.raises(Refused) as raised:
            raw.put(table.update(ids), MANY.slice(0, 10_000))
        assert (raised.value.code, raised.value.sentence) == ("NOT_FOUND", "row_id 20001 not found in table")
        assert raised.value.facts == {"row_id": 20_001, "missing_rows": 1}
    assert (table.version, house.strays(table)) == (1, set())
    assert raw.put(table.update(list(range(1, 10_001))), MANY.slice(0, 10_000))["affected_rows"] == 10_000


@dataclass(frozen=True)
class Write:
    """A write during which the server is killed, and its rows if it is committed."""

    run: Callable[[ByGrpc, TableFixture, TableFixture], Any]
    leaves: tuple[dict[int, str | None], dict[int, str | None]]


BEFORE: dict[int, str | None] = {1: "one", 2: "two", 3: None, 4: "four"}
KEY = {"idempotency_key": "once"}


def transact(client: ByGrpc, one: TableFixture, other: TableFixture) -> Any:
    tx = client.act("create_transaction")["transaction_id"]
    client.put(one.insert(), NEW, tx)
    client.put(other.update([4, 1]), NEW, tx)
    client.act("delete", other.delete([2]), tx)
    return client.act("commit_transaction", {"transaction_id": tx})


WRITES = {
    "insert": Write(
        lambda client, one, _: client.put(one.insert(**KEY), NEW), ({**BEFORE, 5: "eight", 6: None}, BEFORE)
    ),
    "large insert": Write(
        lambda client, one, _: client.put(one.insert(**KEY), MANY),
        (BEFORE | {n + 5: "new" for n in range(20_000)}, BEFORE),
    ),
    "update": Write(
        lambda client, one, _: client.put(one.update([4, 1], **KEY), NEW), ({**BEFORE, 1: None, 4: "eight"}, BEFORE)
    ),
    "delete": Write(
        lambda client, one, _: client.act("delete", one.delete([1, 3], **KEY)), ({2: "two", 4: "four"}, BEFORE)
    ),
    "two tables": Write(transact, ({**BEFORE, 5: "eight", 6: None}, {1: None, 3: None, 4: "eight"})),
}


STEPS = [  # a large insert differs in how its files are written
    (kind, step) for kind in WRITES for step in failpoints.STEPS if kind != "large insert" or step.startswith("stage.")
]


@pytest.mark.parametrize(("kind", "step"), STEPS)
def test_server_killed_at_failpoint_commits_all_or_nothing(
    sqlite_workspace: WorkspaceFixture, kind: str, step: str
) -> None:
    write = WRITES[kind]
    with open_house(sqlite_workspace) as house:
        one, other = house.table(), house.table()
    with child(sqlite_workspace) as served, Raw(served, token()) as raw:
        served.arm(step)
        with pytest.raises(Refused) as raised:
            write.run(ByGrpc(raw), one, other)
        assert raised.value.code == "UNAVAILABLE"
        served.died()
    happened = step in COMMITTED
    with open_house(sqlite_workspace) as house:
        one, other = (TableFixture(item.name, house.lake.dataset(f"analytics.{item.name}")) for item in (one, other))
        assert (one.words(), other.words()) == (write.leaves if happened else (BEFORE, BEFORE))
        if kind != "two tables":  # sent again with its key, it happens once
            write.run(ByGrpc(house.raw), one, other)
            assert sorted(map(str, one.words().values())) == sorted(map(str, write.leaves[0].values()))
            assert one.version == 2
        house.lake._workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
        sweep(house.lake._workspace, house.lake.caller, RetentionPolicy(), execute=True)
        assert house.strays() == set()


def test_acknowledged_writes_survive_server_kill(sqlite_workspace: WorkspaceFixture, soak: bool) -> None:
    """Eight clients insert pairs of rows n and -n; some in transactions, some large enough to be staged."""
    with open_house(sqlite_workspace) as house:
        table = house.table(ROWS.slice(0, 0))
    numbers, response, enough = count(1), set(), threading.Event()

    def insert(served: Child, who: int) -> None:
        with Raw(served, token()) as raw, suppress(Refused):
            client = ByGrpc(raw)
            for n in numbers:
                pair = pa.table({"id": [n, -n], "word": ["x" * (600_000 if who == 0 else 1)] * 2}, SCHEMA)
                tx = client.act("create_transaction")["transaction_id"] if who == 1 else None
                client.put(table.insert(), pair.to_batches(max_chunksize=1), tx)
                if tx:
                    client.act("commit_transaction", {"transaction_id": tx})
                response.add(n)
                if len(response) >= (2_000 if soak else 150):
                    enough.set()

    with child(sqlite_workspace) as served, ThreadPoolExecutor(8) as pool:
        inserters = [pool.submit(insert, served, who) for who in range(8)]
        assert enough.wait(10 * SECONDS)
        served.kill()
        for item in inserters:
            item.result()
    with open_house(sqlite_workspace) as house:
        ids = house.lake.dataset(f"analytics.{table.name}").to_arrow(["id"])["id"].to_pylist()
        there = {n for n in ids if n > 0}
        assert {-n for n in ids if n < 0} == there, "an insert is there in half"
        assert len(ids) == 2 * len(there), "an insert is there twice"
        assert response <= there
