"""Transactions of clients: one snapshot, writes that are seen together or never, whatever becomes of the processes."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SOAK
from faults.failing import Countdown, failing_sql
from penstock import failpoints as faults
from penstock.catalog import client_transactions as records
from penstock.catalog.database import Database
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import Change, Counts, NewFile
from penstock.core.names import DatasetName
from penstock.core.dataset.column_stats import cut
from penstock.errors import Conflict, Forbidden, Invalid, NotFound, Unavailable, Undecided, Unsupported
from penstock.lake import Lake
from penstock.service import process_identity as process
from penstock.service.datasets.merge import Asked, Merging
from penstock.service.datasets.row_source import Rows, reader
from penstock.service.datasets.sweep import Keep, sweep
from penstock.service.transactions.client import Operation, State, Transactions
from penstock.service.transactions.write_set import Work
from penstock.service.datasets.overlay import Working
from penstock.storage.scan import carried, scan
from workspaces import Place

WORDS, MORE = "demo.words", "demo.more"
TTL = timedelta(seconds=300)


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


class Client:
    """Somebody who uses transactions, by the words that they would use."""

    def __init__(self, lake: Lake, caller: Caller | None = None, **options: Any) -> None:
        self.lake, self.caller = lake, caller or lake.caller
        self.served = Transactions(lake.workspace, **options)

    def begin(self, auto_commit: bool | None = None) -> UUID:
        return self.served.create(self.caller, auto_commit)

    def operation(self, transaction: UUID) -> Any:
        return self.served.operation(self.caller, transaction)

    def append(self, transaction: UUID, rows: dict[int, str], name: str = WORDS) -> Operation:
        with self.operation(transaction) as operation:
            working = operation.working(DatasetName.parse(name))
            operation.apply(working, operation.stage.append(working, reader(table(rows))))
        return operation

    def overwrite(self, transaction: UUID, rows: dict[int, str], name: str = WORDS) -> None:
        with self.operation(transaction) as operation:
            working = operation.working(DatasetName.parse(name))
            operation.apply(working, operation.stage.overwrite(working, reader(table(rows))))

    def edit(self, transaction: UUID, key: int, word: str | None, name: str = WORDS) -> None:
        """Write the files anew that hold a key, with another word, or without the row."""
        with self.operation(transaction) as operation:
            working = operation.working(DatasetName.parse(name))
            operation.apply(working, self._edited(operation, working, key, word))

    def _edited(self, operation: Operation, working: Working, key: int, word: str | None) -> Change:
        added: list[NewFile] = []
        removed = []
        for file in working.files():
            rows = pa.Table.from_batches(carried(self.lake.workspace.store, file, working.schema))
            if key in (ids := rows["id"].to_pylist()):
                removed.append(file)
                words = [word if id == key else old for id, old in zip(ids, rows["word"].to_pylist(), strict=True)]
                kept = rows.set_column(1, rows.schema.field(1), pa.array(words, pa.string()))
                kept = kept.filter(pa.array([not (id == key and word is None) for id in ids]))
                if kept.num_rows:
                    added += operation.stage.write(working.location, kept.schema, kept.to_batches())
        base, gone = working.base, sum(file.rows for file in removed) - sum(file.rows for file in added)
        counts = Counts(updated=0 if gone else len(removed), deleted=gone)
        edited = "delete" if gone else "update"
        return Change(
            base.dataset, base.version.number, edited, working.schema,
            added=tuple(added), removed=tuple(removed), counts=counts, rebase=True,
        )  # fmt: skip

    def read(self, transaction: UUID, name: str = WORDS) -> dict[int, str]:
        """The rows, by key; and no row id twice."""
        working = self.served.reading(self.caller, transaction, DatasetName.parse(name))
        rows = scan(self.lake.workspace.store, working.files(), working.schema, row_ids=True).read_all()
        assert len(set(rows["rowid"].to_pylist())) == rows.num_rows == working.rows
        return dict(zip(rows["id"].to_pylist(), rows["word"].to_pylist(), strict=True))

    def commit(self, transaction: UUID) -> Any:
        return self.served.commit(self.caller, transaction)

    def rollback(self, transaction: UUID) -> None:
        self.served.rollback(self.caller, transaction)

    def status(self, transaction: UUID) -> State:
        return self.served.status(self.caller, transaction)


def table(rows: dict[int, str]) -> pa.Table:
    return pa.table({"id": pa.array(rows.keys(), pa.int64()), "word": pa.array(rows.values(), pa.string())})


def seen(lake: Lake, name: str = WORDS) -> dict[int, str]:
    """What everybody sees."""
    rows = lake.dataset(name).to_arrow(row_ids=True)
    assert len(set(rows["rowid"].to_pylist())) == rows.num_rows
    return dict(zip(rows["id"].to_pylist(), rows["word"].to_pylist(), strict=True))


def strays(lake: Lake) -> int:
    """Files that no version holds."""
    store = lake.workspace.store
    on_disk = {path for folder in store.folders(f"data/{lake.caller.tenant}") for path, _ in store.files(folder)}
    held = {
        file.path
        for at in lake.datasets()
        for version in range(1, at.version + 1)
        for file in lake.dataset(at.id).at(version).files()
    }
    assert held <= on_disk, "a version has lost a file"
    return len(on_disk - held)


@pytest.fixture
def client(lake: Lake) -> Client:
    lake.create(WORDS, table({1: "one", 2: "two"}))
    lake.create(MORE, table({1: "uno"}))
    return Client(lake)


@pytest.fixture
def other(client: Client, place: Place) -> Iterator[Client]:
    """The same client at another process: it shares the catalog and the files, and nothing else."""
    with place.open() as lake:
        yield Client(lake)


@pytest.fixture
def clock(client: Client) -> Clock:
    clock = client.lake.workspace.db.clock = Clock()
    return clock


# -- what is seen -----------------------------------------------------------------------------------------------------


def test_its_writes_are_seen_in_it_at_once_and_by_others_together(client: Client) -> None:
    lake, one = client.lake, client.begin()
    client.append(one, {3: "three"})
    client.edit(one, 1, "eins")
    client.append(one, {2: "dos"}, MORE)
    client.edit(one, 3, "drei")
    assert client.read(one) == {1: "eins", 2: "two", 3: "drei"}
    assert client.read(one, "Demo.More") == {1: "uno", 2: "dos"}
    assert (seen(lake), seen(lake, MORE)) == ({1: "one", 2: "two"}, {1: "uno"})
    assert client.status(one) is State.ACTIVE
    receipt = client.commit(one)
    assert client.status(one) is State.COMMITTED
    assert (seen(lake), seen(lake, MORE)) == ({1: "eins", 2: "two", 3: "drei"}, {1: "uno", 2: "dos"})
    told = {w.name: (w.version, w.operation, w.rows, w.inserted, w.updated) for w in receipt.written}
    assert told == {WORDS: (2, "append+update", 3, 1, 2), MORE: (2, "append", 2, 1, 0)}
    assert {lake.dataset(name).history()[0].commit_no for name in (WORDS, MORE)} == {receipt.commit_no}
    assert strays(lake) == 0


def test_it_reads_the_moment_of_its_start(client: Client) -> None:
    lake, one = client.lake, client.begin()
    lake.dataset(WORDS).append(table({3: "three"}))
    lake.create("demo.late", table({1: "x"}))
    lake.dataset(MORE).drop()
    assert client.read(one) == {1: "one", 2: "two"}
    assert client.read(one, MORE) == {1: "uno"}
    with pytest.raises(NotFound, match=r"demo\.late"):
        client.read(one, "demo.late")
    assert client.status(one) is State.ACTIVE, "a read that fails is no operation that failed"


def test_row_ids_are_known_at_once_and_stay(client: Client, other: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})

    def ids(who: Client) -> list[int]:
        working = who.served.reading(who.caller, one, DatasetName.parse(WORDS))
        rows = scan(who.lake.workspace.store, working.files(), working.schema, row_ids=True).read_all()
        return list(rows.sort_by("id")["rowid"].to_pylist())

    before = ids(client)
    client.lake.dataset(WORDS).append(table({9: "nine"}))
    assert before == ids(other) == ids(client)
    client.edit(one, 3, "drei")
    client.commit(one)
    rows = client.lake.dataset(WORDS).to_arrow(where="id < 9", row_ids=True)
    assert rows.sort_by("id")["rowid"].to_pylist() == before


def test_a_reader_keeps_the_files_that_its_transaction_has_replaced_since(client: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    working = client.served.reading(client.caller, one, DatasetName.parse(WORDS))
    stream = scan(client.lake.workspace.store, working.files(), working.schema)
    client.edit(one, 3, "drei")
    assert stream.read_all()["word"].to_pylist() == ["one", "two", "three"]
    assert client.read(one)[3] == "drei"
    client.commit(one)
    assert strays(client.lake) == 0


def test_a_merge_may_add_columns_in_it(client: Client, other: Client) -> None:
    one = client.begin()
    rows = pa.table({"id": [2, 3], "word": ["zwei", "drei"], "more": [Decimal("1.50"), None]})
    with client.operation(one) as operation:
        working = operation.working(DatasetName.parse(WORDS))
        with Merging(
            client.lake.workspace,
            client.caller,
            operation.stage,
            Rows(rows.schema, lambda: iter(rows.to_batches())),
            Asked("id", add_columns=True),
        ) as merging:
            operation.apply(working, merging.change(working))
    assert other.read(one) == {1: "one", 2: "zwei", 3: "drei"}
    other.commit(one)
    now = client.lake.dataset(WORDS).now()
    assert now.to_arrow().sort_by("id")["more"].to_pylist() == [None, Decimal("1.50"), None]


# -- how it ends ------------------------------------------------------------------------------------------------------


def test_a_commit_that_is_sent_again_has_the_same_answer(client: Client, other: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    first = client.commit(one)
    for again in (client.commit(one), other.commit(one)):
        assert again == first
        assert again.replayed
    with pytest.raises(Unsupported, match="committed") as refusal:
        client.rollback(one)
    assert refusal.value.reason == "transaction_over"
    assert client.lake.dataset(WORDS).version == 2
    assert seen(client.lake) == {1: "one", 2: "two", 3: "three"}


@pytest.mark.parametrize("rows", [{3: "three"}, {}], ids=["rows", "nothing"])
def test_commits_that_are_sent_at_once_have_the_same_answer(
    client: Client, other: Client, rows: dict[int, str]
) -> None:
    for _ in range(5):
        one, together = client.begin(), Barrier(4)
        client.append(one, rows)

        def commit(who: Client, one: UUID = one, together: Barrier = together) -> Any:
            together.wait(60)
            return who.commit(one)

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(commit, [client, other, client, other]))
        assert answers == [answers[0]] * 4
        assert (answers[0] is None) is (not rows)
    assert strays(client.lake) == 0
    assert client.lake.dataset(WORDS).version == (6 if rows else 1)


def test_a_rollback_leaves_nothing_and_may_be_sent_again(client: Client, other: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    client.edit(one, 3, "drei")
    assert strays(client.lake) == 2
    client.rollback(one)
    client.rollback(one)
    other.rollback(one)
    assert (client.status(one), strays(client.lake)) == (State.ABORTED, 0)
    assert client.lake.dataset(WORDS).version == 1


USES: dict[str, Callable[[Client, UUID], object]] = {
    "an operation": lambda client, one: client.append(one, {3: "x"}),
    "a read": lambda client, one: client.read(one),
    "a commit": lambda client, one: client.commit(one),
    "a rollback": lambda client, one: client.rollback(one),
    "a status": lambda client, one: client.status(one),
}


@pytest.mark.parametrize("use", ["an operation", "a read", "a commit"])
@pytest.mark.parametrize("state", [State.COMMITTED, State.ABORTED, State.EXPIRED], ids=lambda state: state.value)
def test_one_that_is_over_says_how_it_ended(client: Client, clock: Clock, state: State, use: str) -> None:
    if (state, use) == (State.COMMITTED, "a commit"):
        return
    one = client.begin()
    match state:
        case State.COMMITTED:
            client.commit(one)
        case State.ABORTED:
            client.rollback(one)
        case State.EXPIRED:
            clock.now += TTL
    with pytest.raises(Unsupported, match=f"is {state.value}") as refusal:
        USES[use](client, one)
    assert (refusal.value.reason, refusal.value.context["transaction_status"]) == ("transaction_over", state.value)
    assert client.status(one) is state


@pytest.mark.parametrize("use", USES)
def test_nobody_else_knows_of_it(client: Client, stranger: Lake, use: str) -> None:
    one = client.begin()
    colleague = Client(client.lake, replace(client.caller, user=uuid4()))
    answers = set()
    for who, which in ((colleague, one), (Client(stranger), one), (client, uuid4())):
        with pytest.raises(NotFound) as refusal:
            USES[use](who, which)
        answers.add((refusal.value.reason, refusal.value.message))
    assert [reason for reason, _ in answers] == ["transaction_not_found"]
    assert client.status(one) is State.ACTIVE


def test_one_that_wrote_nothing_commits_to_nothing(client: Client) -> None:
    for write in (
        lambda one: client.read(one),
        lambda one: client.edit(one, 77, "not there"),
        lambda one: (client.append(one, {3: "x"}), client.edit(one, 3, None)),
    ):
        one = client.begin()
        write(one)
        assert client.commit(one) is client.commit(one) is None
        assert client.status(one) is State.COMMITTED
    assert (client.lake.dataset(WORDS).version, strays(client.lake)) == (1, 0)


@pytest.mark.parametrize(
    ("served", "asked", "commits"),
    [(False, None, False), (True, None, True), (True, False, False), (False, True, True)],
)
def test_with_auto_commit_the_first_operation_commits_it(
    client: Client, served: bool, asked: bool | None, commits: bool
) -> None:
    client = Client(client.lake, auto_commit=served)
    one = client.begin(asked)
    done = client.append(one, {3: "three"})
    assert (3 in seen(client.lake)) is commits
    assert client.status(one) is (State.COMMITTED if commits else State.ACTIVE)
    assert (done.receipt is not None) is commits
    if commits:
        assert done.receipt == client.commit(one)


def fails_in_the_middle(client: Client, one: UUID) -> None:
    with client.operation(one) as operation:
        working = operation.working(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, reader(table({4: "x"}))))
        raise ZeroDivisionError


FAILURES: dict[str, tuple[type[Exception], Callable[[Client, UUID], object]]] = {
    "a dataset that is not there": (NotFound, lambda client, one: client.append(one, {3: "x"}, "demo.none")),
    "rows that do not fit": (Invalid, lambda client, one: client.append(one, {3: "x"}, "demo.narrow")),
    "a dataset that is read-only": (Unsupported, lambda client, one: client.append(one, {3: "x"}, "demo.fixed")),
    "anything": (ZeroDivisionError, fails_in_the_middle),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_an_operation_that_fails_ends_it(client: Client, failure: str) -> None:
    client.lake.create("demo.narrow", {"id": [1]})
    client.lake.create("demo.fixed", table({1: "x"}), read_only=True)
    one = client.begin()
    client.append(one, {3: "three"})
    kind, fail = FAILURES[failure]
    with pytest.raises(kind):
        fail(client, one)
    assert (client.status(one), strays(client.lake)) == (State.ABORTED, 0)


def test_a_viewer_reads_in_one_and_writes_nothing(client: Client) -> None:
    viewer = Client(client.lake, replace(client.caller, role=Role.VIEWER))
    one = viewer.begin()
    client.lake.dataset(WORDS).append(table({3: "three"}))
    assert viewer.read(one) == {1: "one", 2: "two"}
    assert viewer.commit(one) is None
    with pytest.raises(Forbidden):
        viewer.append(viewer.begin(), {3: "x"})


def test_a_tenant_has_only_so_many(client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_ACTIVE", 3)
    first, *_ = [client.begin() for _ in range(3)]
    for _ in range(2):
        with pytest.raises(Invalid, match="there may be 3") as refusal:
            client.begin()
        assert refusal.value.reason == "too_many_transactions"
        client.rollback(first)
        first = client.begin()
    clock.now += TTL
    client.begin()  # the others have expired by now, and nobody had noticed yet


# -- beside others ----------------------------------------------------------------------------------------------------


def test_who_appends_meanwhile_disturbs_nobody(client: Client) -> None:
    one, two = client.begin(), client.begin()
    client.edit(one, 1, "eins")
    client.append(two, {3: "three"})
    client.lake.dataset(WORDS).append(table({4: "four"}))
    client.commit(two)
    client.commit(one)
    assert seen(client.lake) == {1: "eins", 2: "two", 3: "three", 4: "four"}


def test_of_two_that_rewrite_a_file_the_first_to_commit_wins(client: Client) -> None:
    client.lake.dataset(WORDS).append(table({3: "three"}))
    one, two, three = (client.begin() for _ in range(3))
    client.edit(one, 1, "eins")
    client.edit(two, 2, "zwei")  # another row of the same file
    client.append(two, {2: "dos"}, MORE)
    client.edit(three, 3, "drei")
    client.commit(one)
    with pytest.raises(Conflict, match="has moved past version 2") as refusal:
        client.commit(two)
    assert refusal.value.reason == "stale_version"
    assert client.status(two) is State.ABORTED
    client.commit(three)
    assert (seen(client.lake), seen(client.lake, MORE)) == ({1: "eins", 2: "two", 3: "drei"}, {1: "uno"})
    assert strays(client.lake) == 0


def test_an_overwrite_in_it_must_have_met_all_rows(client: Client, other: Client) -> None:
    one = client.begin()
    client.overwrite(one, {7: "seven"})
    other.append(one, {8: "eight"})
    client.lake.dataset(WORDS).append(table({3: "three"}))
    with pytest.raises(Conflict) as refusal:
        other.commit(one)
    assert (refusal.value.reason, client.status(one)) == ("stale_version", State.ABORTED)
    assert seen(client.lake) == {1: "one", 2: "two", 3: "three"}


def test_a_dataset_that_is_gone_by_its_commit_ends_it(client: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    client.append(one, {3: "tres"}, MORE)
    client.lake.dataset(MORE).drop()
    with pytest.raises(NotFound):
        client.commit(one)
    assert (client.status(one), client.lake.dataset(WORDS).version) == (State.ABORTED, 1)


@pytest.mark.parametrize("who", ["the same process", "another"])
def test_a_second_operation_at_once_is_refused_and_the_first_goes_on(client: Client, other: Client, who: str) -> None:
    second = client if who == "the same process" else other
    one = client.begin()
    client.append(one, {3: "three"})
    with client.operation(one) as operation:
        working = operation.working(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, reader(table({4: "four"}))))
        for use in ("an operation", "a commit"):
            with pytest.raises(Conflict) as refusal:
                USES[use](second, one)
            assert refusal.value.reason == "transaction_busy"
        assert second.read(one) == {1: "one", 2: "two", 3: "three"}, "what is under way is not done"
        assert second.status(one) is State.ACTIVE
    assert second.read(one) == {1: "one", 2: "two", 3: "three", 4: "four"}
    second.append(one, {5: "five"})
    client.commit(one)
    assert seen(client.lake) == {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


@pytest.mark.parametrize("who", ["the same process", "another"])
def test_a_rollback_does_not_wait_for_an_operation(client: Client, other: Client, who: str) -> None:
    second = client if who == "the same process" else other
    one = client.begin()
    with pytest.raises(Unsupported, match="is aborted"), client.operation(one) as operation:
        working = operation.working(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, reader(table({4: "four"}))))
        second.rollback(one)
    assert (client.status(one), strays(client.lake)) == (State.ABORTED, 0)


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_an_idle_one_expires_and_frees_everything(client: Client, clock: Clock) -> None:
    one, two = client.begin(), client.begin()
    client.append(one, {3: "three"})
    clock.now += TTL - timedelta(seconds=1)
    client.append(two, {4: "four"})
    client.served.expire()
    assert (client.status(one), client.status(two)) == (State.ACTIVE, State.ACTIVE)
    clock.now += timedelta(seconds=1)
    client.served.expire()
    assert (client.status(one), client.status(two)) == (State.EXPIRED, State.ACTIVE)
    assert strays(client.lake) == 1
    client.rollback(one)
    assert client.status(one) is State.EXPIRED
    clock.now += TTL
    client.served.expire()
    assert (client.status(two), strays(client.lake)) == (State.EXPIRED, 0)
    assert client.served._known == {}


@pytest.mark.parametrize("use", ["an operation", "a read"])
def test_whatever_is_done_in_it_puts_off_its_end(client: Client, clock: Clock, use: str) -> None:
    one = client.begin()
    for _ in range(3):
        clock.now += TTL * 0.9
        USES[use](client, one)
    assert client.status(one) is State.ACTIVE
    clock.now += TTL
    assert client.status(one) is State.EXPIRED


def test_an_operation_may_take_longer_than_an_idle_one_lives(client: Client, other: Client, clock: Clock) -> None:
    """It is under way in a process that did not begin the transaction."""
    other.lake.workspace.db.clock = clock
    one = client.begin()
    with other.operation(one) as operation:
        working = operation.working(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, reader(table({3: "three"}))))
        for _ in range(5):
            clock.now += TTL * 0.9
            other.served.expire()
            client.served.expire()
            assert client.status(one) is other.status(one) is State.ACTIVE
        clock.now += TTL * 2  # however late the next sign of life is, who works on it knows better
        assert other.status(one) is State.ACTIVE
    assert client.read(one)[3] == "three"


def test_its_files_are_never_swept_while_it_is_alive(client: Client, clock: Clock) -> None:
    client = Client(client.lake, ttl=timedelta(days=1))
    one = client.begin()
    client.append(one, {3: "three"})
    for _ in range(6):
        clock.now += timedelta(minutes=40)
        client.served.expire()
        assert sweep(client.lake.workspace, client.caller, Keep(), really=True).orphans == 0
    client.commit(one)
    assert seen(client.lake) == {1: "one", 2: "two", 3: "three"}


@pytest.mark.parametrize("use", ["an operation", "a commit"])
def test_one_whose_files_may_have_been_swept_is_over(client: Client, clock: Clock, use: str) -> None:
    """Its process slept for hours, and so did nobody else."""
    client = Client(client.lake, ttl=timedelta(days=1))
    one = client.begin()
    client.append(one, {3: "three"})
    clock.now += timedelta(hours=2)
    assert sweep(client.lake.workspace, client.caller, Keep(), really=True).orphans == 1
    with pytest.raises((Conflict, Unsupported)) as refusal:
        USES[use](client, one)
    assert refusal.value.reason in ("lease_ended", "transaction_over")
    assert (client.status(one), seen(client.lake)) == (State.ABORTED, {1: "one", 2: "two"})


# -- several processes ------------------------------------------------------------------------------------------------


def test_any_process_goes_on_with_it_while_its_owner_lives(client: Client, other: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    other.edit(one, 3, "drei")
    client.append(one, {2: "dos"}, MORE)
    other.edit(one, 1, "eins")
    assert client.read(one) == other.read(one) == {1: "eins", 2: "two", 3: "drei"}
    other.served.close()
    other.lake.workspace.writers.close()
    client.commit(one)
    assert seen(client.lake) == {1: "eins", 2: "two", 3: "drei"}
    assert strays(client.lake) == 0


def test_those_of_a_process_that_is_shut_down_are_aborted(client: Client, other: Client) -> None:
    mine, theirs = client.begin(), other.begin()
    client.append(mine, {3: "three"})
    client.append(theirs, {3: "drei"})
    client.served.close()
    assert (other.status(mine), other.status(theirs)) == (State.ABORTED, State.ACTIVE)
    assert strays(client.lake) == 1


def test_an_owner_that_cannot_be_seen_is_given_up_when_it_falls_silent(
    client: Client, other: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.lake.workspace.db.clock = clock
    one = client.begin()
    client.append(one, {3: "three"})
    monkeypatch.setattr(process, "lives", lambda _: None)
    for _ in range(3):
        clock.now += timedelta(seconds=29)
        client.served.expire()
        assert other.status(one) is State.ACTIVE
    clock.now += timedelta(seconds=30)
    assert other.status(one) is State.ABORTED
    assert strays(client.lake) == 0


@pytest.fixture
def killed(client: Client, place: Place) -> Callable[[str], UUID]:
    """A transaction of a process that was killed at a step."""
    return lambda step: UUID(dying(place, "transact_killed", [WORDS, MORE], step))


def dying(place: Place, script: str, *args: Any) -> str:
    """The last words of another process."""
    (Path(place.folder) / "go").touch()
    child = place.spawn(script, *args)
    out, err = child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL, err
    return out.splitlines()[-1]


def test_after_the_crash_of_its_owner_it_is_aborted(client: Client, killed: Callable[[str], UUID]) -> None:
    one = killed("")
    assert strays(client.lake) == 2
    with pytest.raises(Unsupported, match="is aborted"):
        client.append(one, {3: "x"})
    assert (client.status(one), strays(client.lake)) == (State.ABORTED, 0)
    assert (seen(client.lake), seen(client.lake, MORE)) == ({1: "one", 2: "two"}, {1: "uno"})


def test_after_the_crash_of_an_operation_it_is_aborted(client: Client, place: Place) -> None:
    """The process was another one than the owner."""
    one = client.begin()
    client.append(one, {3: "three"})
    dying(place, "operate_killed", str(one), WORDS)
    assert client.status(one) is State.ABORTED
    client.rollback(one)
    with pytest.raises(Unsupported):
        client.commit(one)


def test_what_a_crash_left_is_swept_if_nobody_asks(client: Client, clock: Clock, killed: Callable[[str], UUID]) -> None:
    one = killed("")
    assert sweep(client.lake.workspace, client.caller, Keep(), really=True).orphans == 0
    clock.now += timedelta(hours=3)
    assert sweep(client.lake.workspace, client.caller, Keep(), really=True).orphans == 2
    assert (client.status(one), strays(client.lake)) == (State.ABORTED, 0)


def test_the_dead_are_buried_by_whoever_serves_the_tenant(client: Client, killed: Callable[[str], UUID]) -> None:
    one = killed("")
    client.begin()
    client.served.expire()
    assert strays(client.lake) == 0
    with client.lake.workspace.db.read(client.caller) as tx:
        assert records.state(tx, one) is State.ABORTED


@pytest.mark.parametrize(("step", "happened"), [("commit.ready", False), ("commit.sent", True)])
def test_a_kill_during_the_commit_leaves_all_of_it_or_nothing(
    client: Client, killed: Callable[[str], UUID], step: str, happened: bool
) -> None:
    one = killed(step)
    assert client.status(one) is (State.COMMITTED if happened else State.ABORTED)
    assert (99 in seen(client.lake), 99 in seen(client.lake, MORE)) == (happened, happened)
    if happened:
        assert {w.name for w in client.commit(one).written} == {WORDS, MORE}
    assert strays(client.lake) == 0


def test_a_process_is_known_by_more_than_its_number() -> None:
    """One that was killed and not yet buried has ended, too."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        name = process._name(child.pid)
        reused = name.rsplit(" ", 1)[0] + " 1"
        elsewhere = name.replace("/pid:", "/other:")
        assert (process.lives(process.name()), process.lives(name)) == (True, True)
        assert (process.lives(reused), process.lives(elsewhere)) == (False, None)
    finally:
        child.kill()
    assert child.stdin is not None
    child.stdin.close()
    deadline = time.monotonic() + 60
    while process.lives(name):
        assert time.monotonic() < deadline
    child.wait()
    assert process.lives(name) is False


# -- failures ---------------------------------------------------------------------------------------------------------

COMMIT_STEPS = [step for step in faults.STEPS if step.startswith("commit.")]


@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_a_failure_at_any_step_of_the_commit_leaves_the_truth(client: Client, other: Client, step: str) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    client.edit(one, 1, "eins")
    client.append(one, {2: "dos"}, MORE)
    happened = step in ("commit.sent", "commit.done")

    def fail() -> None:
        raise OSError("injected")

    with faults.armed(step, fail), suppress(OSError):
        client.commit(one)
    assert client.status(one) is other.status(one) is (State.COMMITTED if happened else State.ACTIVE)
    assert (3 in seen(client.lake), 2 in seen(client.lake, MORE)) == (happened, happened)
    receipt = other.commit(one)
    assert (client.commit(one), receipt.replayed) == (receipt, happened)
    assert (seen(client.lake), seen(client.lake, MORE)) == ({1: "eins", 2: "two", 3: "three"}, {1: "uno", 2: "dos"})
    assert [client.lake.dataset(name).version for name in (WORDS, MORE)] == [2, 2]


@contextmanager
def losing_answers(db: Database, countdown: Countdown) -> Iterator[None]:
    """A database whose answer to the N-th COMMIT is lost, after it was carried out."""
    write = db.write

    @contextmanager
    def lossy(*args: Any) -> Iterator[Any]:
        with write(*args) as tx:
            yield tx
        if countdown.step():
            raise Undecided("commit_unanswered", "injected")

    db.write = lossy  # type: ignore[method-assign]
    try:
        yield
    finally:
        db.write = write  # type: ignore[method-assign]


@pytest.mark.parametrize(("failing", "least"), [(failing_sql, 30), (losing_answers, 10)], ids=["statement", "answer"])
def test_the_nth_word_with_the_database_may_fail(client: Client, clock: Clock, failing: Any, least: int) -> None:
    """The catalog, the status and the client agree in the end; nothing is left behind."""
    lake, n = client.lake, 0
    while True:
        n += 1
        countdown, one, told = Countdown(n), None, None
        before = lake.dataset(WORDS).version, lake.dataset(MORE).version
        try:
            with failing(lake.workspace.db, countdown):
                one = client.begin()
                client.append(one, {n: "new"})
                client.append(one, {n: "new"}, MORE)
                client.edit(one, n, "newer")
                told = client.commit(one)
        except (Unavailable, Undecided, Conflict):
            pass
        after = lake.dataset(WORDS).version, lake.dataset(MORE).version
        assert after in (before, (before[0] + 1, before[1] + 1))
        happened = after != before
        if told is not None:
            assert happened
        if one is not None:
            state = client.status(one)
            assert (state is State.COMMITTED) is happened
            if state is State.ACTIVE:  # nothing is under way, so the commit can be sent again
                client.commit(one)
        if not countdown.fired:
            break
    assert n > least, "too little was heard of the database"
    clock.now += TTL  # one whose beginning was not heard of
    client.begin()
    client.served.expire()
    with lake.workspace.db.read(client.caller) as tx:
        assert len(records.active(tx)) == 1
    clock.now += timedelta(hours=3)
    sweep(lake.workspace, client.caller, Keep(), really=True)
    assert strays(lake) == 0


def test_a_failure_that_cannot_be_told_is_told_later(client: Client) -> None:
    """The catalog is gone in the middle of an operation, and comes back."""
    one = client.begin()
    client.append(one, {3: "three"})
    with pytest.raises(ZeroDivisionError), client.operation(one) as operation:
        working = operation.working(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, reader(table({4: "four"}))))
        lost = failing_sql(client.lake.workspace.db, Countdown(1))
        lost.__enter__()
        raise ZeroDivisionError
    lost.__exit__(None, None, None)
    with pytest.raises(Unsupported, match="is aborted"):
        client.commit(one)
    assert seen(client.lake) == {1: "one", 2: "two"}


def test_what_it_has_written_is_the_same_after_a_trip_through_the_catalog(client: Client) -> None:
    kinds = pa.table(
        {
            "number": pa.array([-(2**63), 2**63 - 1, None]),
            "real": pa.array([0.1 + 0.2, float("-inf"), None]),
            "exact": pa.array([Decimal("123456789012345678901234567890.12"), Decimal("-0.10"), None]),
            "text": pa.array(['"\x00ü\\', "🦆" * 100, None]),
            "bytes": pa.array([b"\x00\xff", b"\xff" * 100, None]),
            "flag": pa.array([True, False, None]),
            "time": pa.array([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC), None]),
            "void": pa.array([None, None, None], pa.string()),
            "list": pa.array([[1], [], None]),
        }
    )
    lake = client.lake
    lake.create("demo.kinds", kinds)
    one = client.begin()
    with client.operation(one) as operation:
        working = operation.working(DatasetName.parse("demo.kinds"))
        operation.apply(working, operation.stage.append(working, reader(kinds)))
        operation.apply(working, operation.stage.overwrite(working, reader(kinds)))
        work = operation._work
        (told,) = Work.from_json(lake.workspace, client.caller, 3, work.to_json()).changes()
        (meant,) = work.changes()
        assert [replace(f, stats={c: cut(s) for c, s in f.stats.items()}) for f in meant.added] == list(told.added)
        facts = [[(f.number, f.path, f.rows, f.bytes) for f in change.removed] for change in (meant, told)]
        assert facts[0] == facts[1]
        assert replace(told, added=(), removed=()) == replace(meant, added=(), removed=())
    client.commit(one)
    assert lake.dataset("demo.kinds").to_arrow().equals(kinds.cast(lake.dataset("demo.kinds").now().schema))


# -- random programs --------------------------------------------------------------------------------------------------


class Model:
    """Snapshot isolation, file by file: of two that replace a file, the first to commit wins."""

    def __init__(self) -> None:
        self.files: dict[str, dict[int, dict[int, str]]] = {WORDS: {}, MORE: {}}  # dataset → file → rows
        self.versions = {WORDS: 0, MORE: 0}
        self._next = 0

    def add(self, where: dict[int, dict[int, str]], rows: dict[int, str]) -> None:
        if rows:
            self._next += 1
            where[self._next] = rows

    def rows(self, name: str) -> dict[int, str]:
        return {key: word for rows in self.files[name].values() for key, word in rows.items()}


class Modelled:
    """One transaction."""

    def __init__(self, model: Model) -> None:
        self._model, self._versions = model, dict(model.versions)
        self._base = {name: dict(files) for name, files in model.files.items()}
        self._now = {name: dict(files) for name, files in model.files.items()}
        self._exact: set[str] = set()

    def rows(self, name: str) -> dict[int, str]:
        return {key: word for rows in self._now[name].values() for key, word in rows.items()}

    def append(self, name: str, rows: dict[int, str]) -> None:
        self._model.add(self._now[name], rows)

    def overwrite(self, name: str, rows: dict[int, str]) -> None:
        self._now[name].clear()
        self._model.add(self._now[name], rows)
        self._exact.add(name)

    def edit(self, name: str, key: int, word: str | None) -> None:
        for file, rows in list(self._now[name].items()):
            if key in rows:
                del self._now[name][file]
                changed = {k: (word if k == key else w) for k, w in rows.items()}
                self._model.add(self._now[name], {k: w for k, w in changed.items() if w is not None})

    def commit(self) -> bool:
        model, changed = self._model, [name for name in self._now if self._now[name].keys() != self._base[name].keys()]
        for name in changed:
            gone = self._base[name].keys() - self._now[name].keys()
            if not gone <= model.files[name].keys():
                return False
            if name in self._exact and self._versions[name] != model.versions[name]:
                return False
        for name in changed:
            for file in self._base[name].keys() - self._now[name].keys():
                del model.files[name][file]
            for file in self._now[name].keys() - self._base[name].keys():
                model.files[name][file] = self._now[name][file]
            model.versions[name] += 1
        return True


names = st.sampled_from([WORDS, MORE])
steps = st.one_of(
    st.tuples(st.just("append"), names, st.integers(1, 3)),
    st.tuples(st.just("edit"), names, st.integers(0, 9)),
    st.tuples(st.just("edit"), names, st.integers(0, 9)),
    st.tuples(st.just("delete"), names, st.integers(0, 9)),
    st.tuples(st.just("overwrite"), names, st.integers(1, 2)),
    st.tuples(st.just("commit"), st.none(), st.none()),
    st.tuples(st.just("commit"), st.none(), st.none()),
    st.tuples(st.just("rollback"), st.none(), st.none()),
)
programs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), steps), min_size=6, max_size=24)


@settings(
    max_examples=200 if SOAK else 12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs)
def test_random_transactions_are_isolated(lake: Lake, place: Place, program: list[Any]) -> None:
    """Up to four at once, each step in one process or another."""
    caller = replace(lake.caller, tenant=uuid4())
    mine = Lake(lake.workspace, caller, lake.home)
    with place.open() as elsewhere:
        clients = [Client(mine), Client(elsewhere, caller)]
        model, key = Model(), 0
        for name in (WORDS, MORE):
            mine.create(name, schema=table({}).schema)
            for _ in range(2):
                mine.dataset(name).append(table({key: "a", key + 1: "b"}))
                model.add(model.files[name], {key: "a", key + 1: "b"})
                key += 2
        under_way: dict[int, tuple[UUID, Modelled]] = {}
        for which, where, (step, name, number) in program:
            client = clients[where]
            if which not in under_way:
                under_way[which] = client.begin(), Modelled(model)
            one, modelled = under_way[which]
            match step:
                case "append" | "overwrite":
                    rows = {key + i: step for i in range(number)}
                    key += number
                    getattr(client, step)(one, rows, name)
                    getattr(modelled, step)(name, rows)
                case "edit" | "delete":
                    there = sorted(modelled.rows(name)) or [0]
                    chosen, word = there[number % len(there)], f"{which}.{key}" if step == "edit" else None
                    client.edit(one, chosen, word, name)
                    modelled.edit(name, chosen, word)
                case "commit":
                    del under_way[which]
                    if modelled.commit():
                        client.commit(one)
                    else:
                        with pytest.raises(Conflict) as refusal:
                            client.commit(one)
                        assert refusal.value.reason == "stale_version"
                        assert clients[1 - where].status(one) is State.ABORTED
                case "rollback":
                    del under_way[which]
                    client.rollback(one)
            for each, its in under_way.values():
                if name:
                    assert client.read(each, name) == its.rows(name)
        for each, _ in under_way.values():
            clients[0].rollback(each)
        assert {name: seen(mine, name) for name in model.files} == {name: model.rows(name) for name in model.files}
        assert strays(mine) == 0
