"""All or nothing: whoever breaks off, whatever is broken, whenever the server dies, a write is whole or was never there."""

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

from edges.flight.breaking import Streams, Stuck, wait_to_be_killed
from edges.flight.clients import ByGrpc, stream
from edges.flight.service import PROCESSES, ROWS, Child, House, Shown, child, eventually, open_house
from edges.flight.stage import SECONDS, Raw, Refused, token
from penstock import failpoints as faults
from penstock.service.datasets.sweep import Keep, sweep
from workspaces import Place

SCHEMA = ROWS.schema
MANY = pa.table({"id": range(20_000), "word": ["new"] * 20_000}, SCHEMA)
BATCHES = MANY.to_batches(max_chunksize=4_000)  # the first are held in memory, the others are written at once
NEW = pa.table({"id": [8, 9], "word": ["eight", None]}, SCHEMA)
COMMITTED = ("commit.sent", "commit.done")  # the steps after which a write has happened
END = "right after the end"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(Place.make(tmp_path_factory.mktemp("atomicity") / "workspace", None)) as house:
        yield house


def points(asked: dict[str, Any]) -> dict[str, Stuck]:
    """The places of a stream at which one may break off."""
    sent = stream(asked, SCHEMA, BATCHES, alone=True)
    names = ["before the descriptor", "after the descriptor", "after the schema"]
    names += [f"after batch {n + 1}" for n in range(len(BATCHES))]
    assert len(sent) == len(names) - 1
    stops = {name: Stuck(sent[:n]) for n, name in enumerate(names)}
    return {**stops, END: Stuck(sent, ends=True)}


@dataclass
class Broken:
    """One stream that will be broken off: into a table of its own, perhaps in a transaction."""

    point: str
    stuck: Stuck
    table: Shown
    transaction: str | None


def plans(house: House, kind: str) -> list[Broken]:
    made = []
    for point in points({}):
        table = house.table(MANY.set_column(1, SCHEMA.field(1), pa.array(["old"] * 20_000)))
        asked = table.update(list(range(20_000, 0, -1))) if kind == "update" else table.insert()
        tx = house.begin() if kind == "in a transaction" else None
        made.append(Broken(point, points(asked)[point], table, tx))
    return made


def killed(house: House, broken: list[Broken]) -> None:
    ours, theirs = PROCESSES.Pipe()
    told = [(each.stuck.sent, each.stuck.ends, each.transaction) for each in broken]
    client = PROCESSES.Process(target=wait_to_be_killed, args=(house.address, told, theirs), daemon=True)
    client.start()
    theirs.close()
    assert ours.poll(SECONDS)
    assert ours.recv() == len(broken)
    client.kill()
    client.join(SECONDS)
    assert client.exitcode == -signal.SIGKILL


def cancelled(house: House, broken: list[Broken]) -> None:
    streams = Streams(house.address, [(each.stuck, each.transaction) for each in broken])
    streams.cancel()
    streams.close()


def timed_out(house: House, broken: list[Broken]) -> None:
    streams = Streams(house.address, [(each.stuck, each.transaction) for each in broken], timeout=1.0)
    house.calls.wait("DoPut", len(broken))
    streams.close()


BREAKS: dict[str, Callable[[House, list[Broken]], None]] = {
    "killed": killed,
    "cancelled": cancelled,
    "timed out": timed_out,
}


@pytest.mark.parametrize("kind", ["insert", "update", "in a transaction"])
@pytest.mark.parametrize("how", BREAKS)
def test_a_client_that_breaks_off_leaves_the_table_as_it_was(house: House, how: str, kind: str) -> None:
    broken = plans(house, kind)
    house.calls.forget()
    BREAKS[how](house, broken)
    ended = house.calls.wait("DoPut", len(broken))
    if how == "timed out":  # so there was time enough
        assert max(each.rows_in for each in ended) >= 4_000, "the server saw next to nothing of it"
    for each in broken:
        eventually(lambda each=each: house.strays(each.table) == set() or whole(each, kind))
        unchanged = each.table.version == 1 and set(each.table.words().values()) == {"old"}
        assert unchanged or (each.point == END and whole(each, kind)), each.point
        if each.transaction and each.point != END:
            assert house.status(each.transaction) == "aborted", each.point


def whole(broken: Broken, kind: str) -> bool:
    """All rows are there. One who ended the stream may be cut off before he hears so."""
    words = list(broken.table.words().values())
    match kind:
        case "insert":
            return broken.table.version == 2 and sorted(words) == ["new"] * 20_000 + ["old"] * 20_000
        case "update":
            return broken.table.version == 2 and words == ["new"] * 20_000
    assert broken.transaction
    return broken.table.version == 1


def test_a_stream_that_is_cancelled_before_its_end_never_counts_as_whole(house: House, soak: bool) -> None:
    """For a moment a stream that was broken off looks as if it had ended. All rows have come, and none may be there."""
    table = house.table()
    for times in range(500 if soak else 25):
        house.calls.forget()
        asked = [table.insert(), table.update([1, 2]), table.insert(), table.update([3, 4])]
        plan = [(Stuck(stream(each, SCHEMA, NEW.to_batches())), None) for each in asked]
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
def test_a_corrupt_message_undoes_all_that_came_before_it(house: House, how: str) -> None:
    table = house.table(MANY)
    for asked in (table.insert(), table.update(list(range(1, 20_001)))):
        sent = stream(asked, SCHEMA, BATCHES)
        for place in range(1, len(sent)):
            tx = house.begin()
            damaged = [*sent[:place], corrupt(sent[place], how), *sent[place + 1 :]]
            for headers in ({}, {"x_transaction_id": tx}):
                with pytest.raises(Refused) as refusal:
                    house.raw.put(damaged, **headers)
                assert refusal.value.code == "INVALID_ARGUMENT"
            assert house.status(tx) == "aborted"
    assert table.version == 1
    eventually(lambda: house.strays(table) == set())


def test_an_update_with_one_missing_row_among_ten_thousand_changes_nothing(house: House) -> None:
    table, raw = house.table(MANY), ByGrpc(house.raw)
    for place in (0, 5_000, 9_999):
        ids = list(range(1, 10_001))
        ids[place] = 20_001
        with pytest.raises(Refused) as refusal:
            raw.put(table.update(ids), MANY.slice(0, 10_000))
        assert (refusal.value.code, refusal.value.sentence) == ("NOT_FOUND", "row_id 20001 not found in table")
        assert refusal.value.facts == {"row_id": 20_001, "missing_rows": 1}
    assert (table.version, house.strays(table)) == (1, set())
    assert raw.put(table.update(list(range(1, 10_001))), MANY.slice(0, 10_000))["affected_rows"] == 10_000


@dataclass(frozen=True)
class Write:
    """A write in whose midst the server dies, and what it leaves when it is whole."""

    run: Callable[[ByGrpc, Shown, Shown], Any]
    leaves: tuple[dict[int, str | None], dict[int, str | None]]


BEFORE: dict[int, str | None] = {1: "one", 2: "two", 3: None, 4: "four"}
KEY = {"idempotency_key": "once"}


def transact(client: ByGrpc, one: Shown, other: Shown) -> Any:
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
    (kind, step) for kind in WRITES for step in faults.STEPS if kind != "large insert" or step.startswith("stage.")
]


@pytest.mark.parametrize(("kind", "step"), STEPS)
def test_a_server_that_dies_at_a_step_has_done_all_or_nothing(embedded: Place, kind: str, step: str) -> None:
    write = WRITES[kind]
    with open_house(embedded) as house:
        one, other = house.table(), house.table()
    with child(embedded) as served, Raw(served, token()) as raw:
        served.arm(step)
        with pytest.raises(Refused) as refusal:
            write.run(ByGrpc(raw), one, other)
        assert refusal.value.code == "UNAVAILABLE"
        served.died()
    happened = step in COMMITTED
    with open_house(embedded) as house:
        one, other = (Shown(each.name, house.lake.dataset(f"analytics.{each.name}")) for each in (one, other))
        assert (one.words(), other.words()) == (write.leaves if happened else (BEFORE, BEFORE))
        if kind != "two tables":  # sent again with its key, it happens once
            write.run(ByGrpc(house.raw), one, other)
            assert sorted(map(str, one.words().values())) == sorted(map(str, write.leaves[0].values()))
            assert one.version == 2
        house.lake.workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
        sweep(house.lake.workspace, house.lake.caller, Keep(), really=True)
        assert house.strays() == set()


def test_what_was_acknowledged_survives_a_kill_at_any_time(embedded: Place, soak: bool) -> None:
    """Eight clients insert pairs of rows n and -n; some in transactions, some large enough to be staged."""
    with open_house(embedded) as house:
        table = house.table(ROWS.slice(0, 0))
    numbers, told, enough = count(1), set(), threading.Event()

    def insert(served: Child, who: int) -> None:
        with Raw(served, token()) as raw, suppress(Refused):
            client = ByGrpc(raw)
            for n in numbers:
                pair = pa.table({"id": [n, -n], "word": ["x" * (600_000 if who == 0 else 1)] * 2}, SCHEMA)
                tx = client.act("create_transaction")["transaction_id"] if who == 1 else None
                client.put(table.insert(), pair.to_batches(max_chunksize=1), tx)
                if tx:
                    client.act("commit_transaction", {"transaction_id": tx})
                told.add(n)
                if len(told) >= (2_000 if soak else 150):
                    enough.set()

    with child(embedded) as served, ThreadPoolExecutor(8) as pool:
        inserters = [pool.submit(insert, served, who) for who in range(8)]
        assert enough.wait(10 * SECONDS)
        served.kill()
        for each in inserters:
            each.result()
    with open_house(embedded) as house:
        ids = house.lake.dataset(f"analytics.{table.name}").to_arrow(["id"])["id"].to_pylist()
        there = {n for n in ids if n > 0}
        assert {-n for n in ids if n < 0} == there, "an insert is there in half"
        assert len(ids) == 2 * len(there), "an insert is there twice"
        assert told <= there
