"""Transactions of clients: snapshot reads, atomic commits, expiry, and crashes of processes."""

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
from sqlalchemy import Engine, event

from conftest import examples
from faults.failing_parts import Countdown, failing_sql
from penstock import failpoints
from penstock.catalog import client_transactions
from penstock.catalog.database import Database
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import Change, Counts, NewFile
from penstock.core.dataset.column_stats import truncate_bounds
from penstock.core.names import DatasetName
from penstock.errors import CommitStateUnknown, Conflict, Forbidden, Invalid, NotFound, Unavailable, Unsupported
from penstock.lake import Lake
from penstock.service import process_identity
from penstock.service.datasets.merge import DatasetMerge, MergeRequest
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_source import RowSource, open_reader
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from penstock.service.transactions.client import ClientTransactions, TransactionOperation, TransactionState
from penstock.service.transactions.write_set import WriteSet
from penstock.storage.scan import scan, scan_with_row_ids
from support.workspaces import WorkspaceFixture

WORDS, MORE = "demo.words", "demo.more"
TTL = timedelta(seconds=300)


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


class Client:
    """A client that uses transactions by dataset name."""

    def __init__(self, lake: Lake, caller: Caller | None = None, **options: Any) -> None:
        self.lake, self.caller = lake, caller or lake.caller
        self.served = ClientTransactions(lake._workspace, **options)

    def begin(self, auto_commit: bool | None = None) -> UUID:
        return self.served.create(self.caller, auto_commit)

    def operation(self, transaction: UUID) -> Any:
        return self.served.operation(self.caller, transaction)

    def append(self, transaction: UUID, rows: dict[int, str], name: str = WORDS) -> TransactionOperation:
        with self.operation(transaction) as operation:
            working = operation.overlay(DatasetName.parse(name))
            operation.apply(working, operation.stage.append(working, open_reader(table(rows))))
        return operation

    def overwrite(self, transaction: UUID, rows: dict[int, str], name: str = WORDS) -> None:
        with self.operation(transaction) as operation:
            working = operation.overlay(DatasetName.parse(name))
            operation.apply(working, operation.stage.overwrite(working, open_reader(table(rows))))

    def edit(self, transaction: UUID, key: int, word: str | None, name: str = WORDS) -> None:
        """Rewrite the files that contain a key, with another word or without the row."""
        with self.operation(transaction) as operation:
            working = operation.overlay(DatasetName.parse(name))
            operation.apply(working, self._edited(operation, working, key, word))

    def _edited(self, operation: TransactionOperation, working: DatasetOverlay, key: int, word: str | None) -> Change:
        added: list[NewFile] = []
        removed = []
        for file in working.files():
            rows = pa.Table.from_batches(scan_with_row_ids(self.lake._workspace.store, [file], working.schema))
            if key in (ids := rows["id"].to_pylist()):
                removed.append(file)
                words = [word if id == key else old for id, old in zip(ids, rows["word"].to_pylist(), strict=True)]
                remaining = rows.set_column(1, rows.schema.field(1), pa.array(words, pa.string()))
                remaining = remaining.filter(pa.array([not (id == key and word is None) for id in ids]))
                if remaining.num_rows:
                    added += operation.stage.write(working.location, remaining.schema, remaining.to_batches())
        base, gone = working.base, sum(file.rows for file in removed) - sum(file.rows for file in added)
        counts = Counts(updated=0 if gone else len(removed), deleted=gone)
        edited = "delete" if gone else "update"
        return Change(
            base.dataset, base.version.number, edited, working.schema,
            added=tuple(added), removed=tuple(removed), counts=counts, rebase=True,
        )  # fmt: skip

    def read(self, transaction: UUID, name: str = WORDS) -> dict[int, str]:
        """Return the words by key, and check that row ids are unique."""
        working = self.served.snapshot_for_read(self.caller, transaction, DatasetName.parse(name))
        rows = scan(self.lake._workspace.store, working.files(), working.schema, row_ids=True).read_all()
        assert len(set(rows["rowid"].to_pylist())) == rows.num_rows == working.rows
        return dict(zip(rows["id"].to_pylist(), rows["word"].to_pylist(), strict=True))

    def commit(self, transaction: UUID) -> Any:
        return self.served.commit(self.caller, transaction)

    def rollback(self, transaction: UUID) -> None:
        self.served.rollback(self.caller, transaction)

    def status(self, transaction: UUID) -> TransactionState:
        return self.served.status(self.caller, transaction)


def table(rows: dict[int, str]) -> pa.Table:
    return pa.table({"id": pa.array(rows.keys(), pa.int64()), "word": pa.array(rows.values(), pa.string())})


def committed_rows(lake: Lake, name: str = WORDS) -> dict[int, str]:
    """Return the words of the newest committed version by key."""
    rows = lake.dataset(name).to_arrow(row_ids=True)
    assert len(set(rows["rowid"].to_pylist())) == rows.num_rows
    return dict(zip(rows["id"].to_pylist(), rows["word"].to_pylist(), strict=True))


def count_stray_files(lake: Lake) -> int:
    """Count the files that belong to no version."""
    store = lake._workspace.store
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
def other(client: Client, workspace: WorkspaceFixture) -> Iterator[Client]:
    """The same client in another process, which shares only the catalog and the files."""
    with workspace.open() as lake:
        yield Client(lake)


@pytest.fixture
def clock(client: Client) -> Clock:
    clock = client.lake._workspace.db.clock = Clock()
    return clock


# -- visibility ------------------------------------------------------------------------------------------------------


def test_commit_makes_writes_of_all_datasets_visible_together(client: Client) -> None:
    lake, one = client.lake, client.begin()
    client.append(one, {3: "three"})
    client.edit(one, 1, "eins")
    client.append(one, {2: "dos"}, MORE)
    client.edit(one, 3, "drei")
    assert client.read(one) == {1: "eins", 2: "two", 3: "drei"}
    assert client.read(one, "Demo.More") == {1: "uno", 2: "dos"}
    assert (committed_rows(lake), committed_rows(lake, MORE)) == ({1: "one", 2: "two"}, {1: "uno"})
    assert client.status(one) is TransactionState.ACTIVE
    receipt = client.commit(one)
    assert client.status(one) is TransactionState.COMMITTED
    assert (committed_rows(lake), committed_rows(lake, MORE)) == (
        {1: "eins", 2: "two", 3: "drei"},
        {1: "uno", 2: "dos"},
    )
    result = {w.name: (w.version, w.operation, w.rows, w.inserted, w.updated) for w in receipt.written}
    assert result == {WORDS: (2, "append+update", 3, 1, 2), MORE: (2, "append", 2, 1, 0)}
    assert {lake.dataset(name).history()[0].commit_no for name in (WORDS, MORE)} == {receipt.commit_no}
    assert count_stray_files(lake) == 0


def test_read_uses_snapshot_of_transaction_start(client: Client) -> None:
    lake, one = client.lake, client.begin()
    lake.dataset(WORDS).append(table({3: "three"}))
    lake.create("demo.late", table({1: "x"}))
    lake.dataset(MORE).drop()
    assert client.read(one) == {1: "one", 2: "two"}
    assert client.read(one, MORE) == {1: "uno"}
    with pytest.raises(NotFound, match=r"demo\.late"):
        client.read(one, "demo.late")
    assert client.status(one) is TransactionState.ACTIVE, "a read that fails is no operation that failed"


def test_row_ids_assigned_in_transaction_survive_commit(client: Client, other: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})

    def ids(user: Client) -> list[int]:
        working = user.served.snapshot_for_read(user.caller, one, DatasetName.parse(WORDS))
        rows = scan(user.lake._workspace.store, working.files(), working.schema, row_ids=True).read_all()
        return list(rows.sort_by("id")["rowid"].to_pylist())

    before = ids(client)
    client.lake.dataset(WORDS).append(table({9: "nine"}))
    assert before == ids(other) == ids(client)
    client.edit(one, 3, "drei")
    client.commit(one)
    rows = client.lake.dataset(WORDS).to_arrow(where="id < 9", row_ids=True)
    assert rows.sort_by("id")["rowid"].to_pylist() == before


def test_open_reader_keeps_superseded_staged_files(client: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    working = client.served.snapshot_for_read(client.caller, one, DatasetName.parse(WORDS))
    stream = scan(client.lake._workspace.store, working.files(), working.schema)
    client.edit(one, 3, "drei")
    assert stream.read_all()["word"].to_pylist() == ["one", "two", "three"]
    assert client.read(one)[3] == "drei"
    client.commit(one)
    assert count_stray_files(client.lake) == 0


def test_merge_in_transaction_adds_columns(client: Client, other: Client) -> None:
    one = client.begin()
    rows = pa.table({"id": [2, 3], "word": ["zwei", "drei"], "more": [Decimal("1.50"), None]})
    with client.operation(one) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        with DatasetMerge(
            client.lake._workspace,
            client.caller,
            operation.stage,
            RowSource(rows.schema, lambda: iter(rows.to_batches())),
            MergeRequest("id", add_columns=True),
        ) as merging:
            operation.apply(working, merging.change(working))
    assert other.read(one) == {1: "one", 2: "zwei", 3: "drei"}
    other.commit(one)
    now = client.lake.dataset(WORDS).current()
    assert now.to_arrow().sort_by("id")["more"].to_pylist() == [None, Decimal("1.50"), None]


# -- end of a transaction ------------------------------------------------------------------------------------------------------


def test_repeated_commit_returns_same_receipt(client: Client, other: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    first = client.commit(one)
    for again in (client.commit(one), other.commit(one)):
        assert again == first
        assert again.replayed
    with pytest.raises(Unsupported, match="committed") as caught:
        client.rollback(one)
    assert caught.value.reason == "transaction_over"
    assert client.lake.dataset(WORDS).version == 2
    assert committed_rows(client.lake) == {1: "one", 2: "two", 3: "three"}


@pytest.mark.parametrize("rows", [{3: "three"}, {}], ids=["rows", "nothing"])
def test_concurrent_commits_return_same_receipt(client: Client, other: Client, rows: dict[int, str]) -> None:
    for _ in range(5):
        one, together = client.begin(), Barrier(4)
        client.append(one, rows)

        def commit(user: Client, one: UUID = one, together: Barrier = together) -> Any:
            together.wait(60)
            return user.commit(one)

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(commit, [client, other, client, other]))
        assert answers == [answers[0]] * 4
        assert (answers[0] is None) is (not rows)
    assert count_stray_files(client.lake) == 0
    assert client.lake.dataset(WORDS).version == (6 if rows else 1)


def test_rollback_removes_files_and_can_be_repeated(client: Client, other: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    client.edit(one, 3, "drei")
    assert count_stray_files(client.lake) == 2
    client.rollback(one)
    client.rollback(one)
    other.rollback(one)
    assert (client.status(one), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)
    assert client.lake.dataset(WORDS).version == 1


USES: dict[str, Callable[[Client, UUID], object]] = {
    "an operation": lambda client, one: client.append(one, {3: "x"}),
    "a read": lambda client, one: client.read(one),
    "a commit": lambda client, one: client.commit(one),
    "a rollback": lambda client, one: client.rollback(one),
    "a status": lambda client, one: client.status(one),
}


@pytest.mark.parametrize("use", ["an operation", "a read", "a commit"])
@pytest.mark.parametrize(
    "state",
    [TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.EXPIRED],
    ids=lambda state: state.value,
)
def test_use_of_ended_transaction_reports_its_state(
    client: Client, clock: Clock, state: TransactionState, use: str
) -> None:
    if (state, use) == (TransactionState.COMMITTED, "a commit"):
        return
    one = client.begin()
    match state:
        case TransactionState.COMMITTED:
            client.commit(one)
        case TransactionState.ABORTED:
            client.rollback(one)
        case TransactionState.EXPIRED:
            clock.now += TTL
    with pytest.raises(Unsupported, match=f"is {state.value}") as caught:
        USES[use](client, one)
    assert (caught.value.reason, caught.value.context["transaction_status"]) == ("transaction_over", state.value)
    assert client.status(one) is state


@pytest.mark.parametrize("use", USES)
def test_transaction_of_other_caller_is_not_found(client: Client, other_tenant: Lake, use: str) -> None:
    one = client.begin()
    colleague = Client(client.lake, replace(client.caller, user=uuid4()))
    answers = set()
    for user, which in ((colleague, one), (Client(other_tenant), one), (client, uuid4())):
        with pytest.raises(NotFound) as caught:
            USES[use](user, which)
        answers.add((caught.value.reason, caught.value.message))
    assert [reason for reason, _ in answers] == ["transaction_not_found"]
    assert client.status(one) is TransactionState.ACTIVE


def test_commit_without_changes_returns_no_receipt(client: Client) -> None:
    for write in (
        lambda one: client.read(one),
        lambda one: client.edit(one, 77, "not there"),
        lambda one: (client.append(one, {3: "x"}), client.edit(one, 3, None)),
    ):
        one = client.begin()
        write(one)
        assert client.commit(one) is client.commit(one) is None
        assert client.status(one) is TransactionState.COMMITTED
    assert (client.lake.dataset(WORDS).version, count_stray_files(client.lake)) == (1, 0)


@pytest.mark.parametrize(
    ("served", "requested", "commits"),
    [(False, None, False), (True, None, True), (True, False, False), (False, True, True)],
)
def test_auto_commit_commits_after_first_operation(
    client: Client, served: bool, requested: bool | None, commits: bool
) -> None:
    client = Client(client.lake, auto_commit=served)
    one = client.begin(requested)
    done = client.append(one, {3: "three"})
    assert (3 in committed_rows(client.lake)) is commits
    assert client.status(one) is (TransactionState.COMMITTED if commits else TransactionState.ACTIVE)
    assert (done.receipt is not None) is commits
    if commits:
        assert done.receipt == client.commit(one)


def fails_in_the_middle(client: Client, one: UUID) -> None:
    with client.operation(one) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({4: "x"}))))
        raise ZeroDivisionError


FAILURES: dict[str, tuple[type[Exception], Callable[[Client, UUID], object]]] = {
    "a dataset that is not there": (NotFound, lambda client, one: client.append(one, {3: "x"}, "demo.none")),
    "rows that do not fit": (Invalid, lambda client, one: client.append(one, {3: "x"}, "demo.narrow")),
    "a dataset that is read-only": (Unsupported, lambda client, one: client.append(one, {3: "x"}, "demo.fixed")),
    "anything": (ZeroDivisionError, fails_in_the_middle),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failed_operation_aborts_transaction(client: Client, failure: str) -> None:
    client.lake.create("demo.narrow", {"id": [1]})
    client.lake.create("demo.fixed", table({1: "x"}), read_only=True)
    one = client.begin()
    client.append(one, {3: "three"})
    kind, fail = FAILURES[failure]
    with pytest.raises(kind):
        fail(client, one)
    assert (client.status(one), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)


def test_viewer_can_read_but_not_write_in_transaction(client: Client) -> None:
    viewer = Client(client.lake, replace(client.caller, role=Role.VIEWER))
    one = viewer.begin()
    client.lake.dataset(WORDS).append(table({3: "three"}))
    assert viewer.read(one) == {1: "one", 2: "two"}
    assert viewer.commit(one) is None
    with pytest.raises(Forbidden):
        viewer.append(viewer.begin(), {3: "x"})


def test_viewer_cannot_commit_writes_of_developer(client: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    viewer = replace(client.caller, role=Role.VIEWER)
    with pytest.raises(Forbidden):
        client.served.commit(viewer, one)
    assert client.status(one) is TransactionState.ACTIVE
    assert client.commit(one) is not None
    assert client.served.commit(viewer, one) is not None  # a repeated commit writes nothing


def test_begin_above_limit_reads_no_transaction(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_transactions, "MAX_ACTIVE_TRANSACTIONS", 50)
    for _ in range(50):
        client.begin()
    statements: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", record)
    try:
        with pytest.raises(Invalid, match="The limit is 50"):
            client.begin()
    finally:
        event.remove(Engine, "before_cursor_execute", record)
    of_transactions = [text for text in statements if "transactions" in text]
    assert of_transactions
    assert all("count(" in text or "GROUP BY" in text for text in of_transactions), of_transactions


def test_begin_above_limit_of_active_transactions_is_rejected(
    client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transactions, "MAX_ACTIVE_TRANSACTIONS", 3)
    first, *_ = [client.begin() for _ in range(3)]
    for _ in range(2):
        with pytest.raises(Invalid, match="The limit is 3") as caught:
            client.begin()
        assert caught.value.reason == "too_many_transactions"
        client.rollback(first)
        first = client.begin()
    clock.now += TTL
    client.begin()  # the others have expired, and begin() ends them


# -- concurrency ------------------------------------------------------------------------------------------------------


def test_concurrent_appends_do_not_conflict(client: Client) -> None:
    one, two = client.begin(), client.begin()
    client.edit(one, 1, "eins")
    client.append(two, {3: "three"})
    client.lake.dataset(WORDS).append(table({4: "four"}))
    client.commit(two)
    client.commit(one)
    assert committed_rows(client.lake) == {1: "eins", 2: "two", 3: "three", 4: "four"}


def test_second_rewrite_of_same_file_conflicts(client: Client) -> None:
    client.lake.dataset(WORDS).append(table({3: "three"}))
    one, two, three = (client.begin() for _ in range(3))
    client.edit(one, 1, "eins")
    client.edit(two, 2, "zwei")  # another row of the same file
    client.append(two, {2: "dos"}, MORE)
    client.edit(three, 3, "drei")
    client.commit(one)
    with pytest.raises(Conflict, match="is no longer at version 2") as caught:
        client.commit(two)
    assert caught.value.reason == "stale_version"
    assert client.status(two) is TransactionState.ABORTED
    client.commit(three)
    assert (committed_rows(client.lake), committed_rows(client.lake, MORE)) == (
        {1: "eins", 2: "two", 3: "drei"},
        {1: "uno"},
    )
    assert count_stray_files(client.lake) == 0


def test_overwrite_in_transaction_conflicts_with_newer_version(client: Client, other: Client) -> None:
    one = client.begin()
    client.overwrite(one, {7: "seven"})
    other.append(one, {8: "eight"})
    client.lake.dataset(WORDS).append(table({3: "three"}))
    with pytest.raises(Conflict) as caught:
        other.commit(one)
    assert (caught.value.reason, client.status(one)) == ("stale_version", TransactionState.ABORTED)
    assert committed_rows(client.lake) == {1: "one", 2: "two", 3: "three"}


@pytest.mark.parametrize("process", ["the same", "another"])
def test_commit_to_dropped_dataset_aborts_transaction(client: Client, other: Client, process: str) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    client.append(one, {3: "tres"}, MORE)
    client.lake.dataset(MORE).drop()
    with pytest.raises(Conflict) as caught:
        (other if process == "another" else client).commit(one)
    assert caught.value.message == (
        f"Table {MORE!r} was dropped after this transaction changed it. Nothing was written. Begin a new transaction"
    )
    assert caught.value.context == {"dataset": MORE}
    assert (client.status(one), client.lake.dataset(WORDS).version) == (TransactionState.ABORTED, 1)


@pytest.mark.parametrize("user", ["the same process", "another"])
def test_concurrent_operation_is_rejected_as_busy(client: Client, other: Client, user: str) -> None:
    second = client if user == "the same process" else other
    one = client.begin()
    client.append(one, {3: "three"})
    with client.operation(one) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({4: "four"}))))
        for use in ("an operation", "a commit"):
            with pytest.raises(Conflict) as caught:
                USES[use](second, one)
            assert caught.value.reason == "transaction_busy"
        assert second.read(one) == {1: "one", 2: "two", 3: "three"}, "what is under way is not done"
        assert second.status(one) is TransactionState.ACTIVE
    assert second.read(one) == {1: "one", 2: "two", 3: "three", 4: "four"}
    second.append(one, {5: "five"})
    client.commit(one)
    assert committed_rows(client.lake) == {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


@pytest.mark.parametrize("user", ["the same process", "another"])
def test_rollback_during_operation_aborts_at_once(client: Client, other: Client, user: str) -> None:
    second = client if user == "the same process" else other
    one = client.begin()
    with pytest.raises(Unsupported, match="is aborted"), client.operation(one) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({4: "four"}))))
        second.rollback(one)
    assert (client.status(one), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_idle_transaction_expires_and_removes_files(client: Client, clock: Clock) -> None:
    one, two = client.begin(), client.begin()
    client.append(one, {3: "three"})
    clock.now += TTL - timedelta(seconds=1)
    client.append(two, {4: "four"})
    client.served.expire_idle()
    assert (client.status(one), client.status(two)) == (TransactionState.ACTIVE, TransactionState.ACTIVE)
    clock.now += timedelta(seconds=1)
    client.served.expire_idle()
    assert (client.status(one), client.status(two)) == (TransactionState.EXPIRED, TransactionState.ACTIVE)
    assert count_stray_files(client.lake) == 1
    client.rollback(one)
    assert client.status(one) is TransactionState.EXPIRED
    clock.now += TTL
    client.served.expire_idle()
    assert (client.status(two), count_stray_files(client.lake)) == (TransactionState.EXPIRED, 0)
    assert client.served._open == {}


@pytest.mark.parametrize("use", ["an operation", "a read"])
def test_use_of_transaction_postpones_expiry(client: Client, clock: Clock, use: str) -> None:
    one = client.begin()
    for _ in range(3):
        clock.now += TTL * 0.9
        USES[use](client, one)
    assert client.status(one) is TransactionState.ACTIVE
    clock.now += TTL
    assert client.status(one) is TransactionState.EXPIRED


def test_operation_longer_than_ttl_does_not_expire(client: Client, other: Client, clock: Clock) -> None:
    """The operation runs in a process that did not begin the transaction."""
    other.lake._workspace.db.clock = clock
    one = client.begin()
    with other.operation(one) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({3: "three"}))))
        for _ in range(5):
            clock.now += TTL * 0.9
            other.served.expire_idle()
            client.served.expire_idle()
            assert client.status(one) is other.status(one) is TransactionState.ACTIVE
        clock.now += TTL * 2  # the operating process never expires its own operation
        assert other.status(one) is TransactionState.ACTIVE
    assert client.read(one)[3] == "three"


def test_sweep_keeps_files_of_active_transaction(client: Client, clock: Clock) -> None:
    client = Client(client.lake, ttl=timedelta(days=1))
    one = client.begin()
    client.append(one, {3: "three"})
    for _ in range(6):
        clock.now += timedelta(minutes=40)
        client.served.expire_idle()
        assert sweep(client.lake._workspace, client.caller, RetentionPolicy(), execute=True).orphans == 0
    client.commit(one)
    assert committed_rows(client.lake) == {1: "one", 2: "two", 3: "three"}


@pytest.mark.parametrize("use", ["an operation", "a commit"])
def test_transaction_with_swept_files_is_aborted(client: Client, clock: Clock, use: str) -> None:
    """The owner was suspended for hours while other processes were active."""
    client = Client(client.lake, ttl=timedelta(days=1))
    one = client.begin()
    client.append(one, {3: "three"})
    clock.now += timedelta(hours=2)
    assert sweep(client.lake._workspace, client.caller, RetentionPolicy(), execute=True).orphans == 1
    with pytest.raises((Conflict, Unsupported)) as caught:
        USES[use](client, one)
    assert caught.value.reason in ("lease_ended", "transaction_over")
    assert (client.status(one), committed_rows(client.lake)) == (TransactionState.ABORTED, {1: "one", 2: "two"})


# -- several processes ------------------------------------------------------------------------------------------------


def test_any_process_continues_transaction_of_live_owner(client: Client, other: Client) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    other.edit(one, 3, "drei")
    client.append(one, {2: "dos"}, MORE)
    other.edit(one, 1, "eins")
    assert client.read(one) == other.read(one) == {1: "eins", 2: "two", 3: "drei"}
    other.served.close()
    other.lake._workspace.writers.close()
    client.commit(one)
    assert committed_rows(client.lake) == {1: "eins", 2: "two", 3: "drei"}
    assert count_stray_files(client.lake) == 0


def test_close_aborts_transactions_of_process(client: Client, other: Client) -> None:
    mine, theirs = client.begin(), other.begin()
    client.append(mine, {3: "three"})
    client.append(theirs, {3: "drei"})
    client.served.close()
    assert (other.status(mine), other.status(theirs)) == (TransactionState.ABORTED, TransactionState.ACTIVE)
    assert count_stray_files(client.lake) == 1


def test_invisible_owner_without_heartbeat_aborts_transaction(
    client: Client, other: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.lake._workspace.db.clock = clock
    one = client.begin()
    client.append(one, {3: "three"})
    monkeypatch.setattr(process_identity, "is_alive", lambda _: None)
    for _ in range(3):
        clock.now += timedelta(seconds=29)
        client.served.expire_idle()
        assert other.status(one) is TransactionState.ACTIVE
    clock.now += timedelta(seconds=30)
    assert other.status(one) is TransactionState.ABORTED
    assert count_stray_files(client.lake) == 0


@pytest.fixture
def killed(client: Client, workspace: WorkspaceFixture) -> Callable[[str], UUID]:
    """Return the transaction of a process that is killed at a step."""
    return lambda step: UUID(last_line_of_killed_process(workspace, "transact_killed", [WORDS, MORE], step))


def last_line_of_killed_process(fixture: WorkspaceFixture, script: str, *args: Any) -> str:
    """Return the last output line of a process that kills itself."""
    (Path(fixture.folder) / "go").touch()
    child = fixture.spawn(script, *args)
    out, err = child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL, err
    return out.splitlines()[-1]


def test_crash_of_owner_aborts_transaction(client: Client, killed: Callable[[str], UUID]) -> None:
    one = killed("")
    assert count_stray_files(client.lake) == 2
    with pytest.raises(Unsupported, match="is aborted"):
        client.append(one, {3: "x"})
    assert (client.status(one), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)
    assert (committed_rows(client.lake), committed_rows(client.lake, MORE)) == ({1: "one", 2: "two"}, {1: "uno"})


def test_crash_during_operation_aborts_transaction(client: Client, workspace: WorkspaceFixture) -> None:
    """The killed process is not the owner."""
    one = client.begin()
    client.append(one, {3: "three"})
    last_line_of_killed_process(workspace, "operate_killed", str(one), WORDS)
    assert client.status(one) is TransactionState.ABORTED
    client.rollback(one)
    with pytest.raises(Unsupported):
        client.commit(one)


def test_sweep_removes_files_of_crashed_owner(client: Client, clock: Clock, killed: Callable[[str], UUID]) -> None:
    one = killed("")
    assert sweep(client.lake._workspace, client.caller, RetentionPolicy(), execute=True).orphans == 0
    clock.now += timedelta(hours=3)
    assert sweep(client.lake._workspace, client.caller, RetentionPolicy(), execute=True).orphans == 2
    assert (client.status(one), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)


def test_expire_idle_ends_transactions_of_dead_owners(client: Client, killed: Callable[[str], UUID]) -> None:
    one = killed("")
    client.begin()
    client.served.expire_idle()
    assert count_stray_files(client.lake) == 0
    with client.lake._workspace.db.read(client.caller) as tx:
        assert client_transactions.load_state(tx, one) is TransactionState.ABORTED


@pytest.mark.parametrize(("step", "happened"), [("commit.ready", False), ("commit.sent", True)])
def test_kill_during_commit_is_atomic(client: Client, killed: Callable[[str], UUID], step: str, happened: bool) -> None:
    one = killed(step)
    assert client.status(one) is (TransactionState.COMMITTED if happened else TransactionState.ABORTED)
    assert (99 in committed_rows(client.lake), 99 in committed_rows(client.lake, MORE)) == (happened, happened)
    if happened:
        assert {w.name for w in client.commit(one).written} == {WORDS, MORE}
    assert count_stray_files(client.lake) == 0


def test_process_identity_detects_reused_pid() -> None:
    """A killed process that was not waited for (a zombie) is not alive."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        name = process_identity._process_name(child.pid)
        reused = name.rsplit(" ", 1)[0] + " 1"
        elsewhere = name.replace("/pid:", "/other:")
        assert (process_identity.is_alive(process_identity.current_process()), process_identity.is_alive(name)) == (
            True,
            True,
        )
        assert (process_identity.is_alive(reused), process_identity.is_alive(elsewhere)) == (False, None)
    finally:
        child.kill()
    assert child.stdin is not None
    child.stdin.close()
    deadline = time.monotonic() + 60
    while process_identity.is_alive(name):
        assert time.monotonic() < deadline
    child.wait()
    assert process_identity.is_alive(name) is False


# -- failures ---------------------------------------------------------------------------------------------------------

COMMIT_STEPS = [step for step in failpoints.STEPS if step.startswith("commit.")]


@pytest.mark.parametrize("step", COMMIT_STEPS)
def test_failure_at_commit_step_leaves_consistent_state(client: Client, other: Client, step: str) -> None:
    one = client.begin()
    client.append(one, {3: "three"})
    client.edit(one, 1, "eins")
    client.append(one, {2: "dos"}, MORE)
    happened = step in ("commit.sent", "commit.done")

    def fail() -> None:
        raise OSError("injected")

    with failpoints.armed(step, fail), suppress(OSError):
        client.commit(one)
    assert (
        client.status(one) is other.status(one) is (TransactionState.COMMITTED if happened else TransactionState.ACTIVE)
    )
    assert (3 in committed_rows(client.lake), 2 in committed_rows(client.lake, MORE)) == (happened, happened)
    receipt = other.commit(one)
    assert (client.commit(one), receipt.replayed) == (receipt, happened)
    assert (committed_rows(client.lake), committed_rows(client.lake, MORE)) == (
        {1: "eins", 2: "two", 3: "three"},
        {1: "uno", 2: "dos"},
    )
    assert [client.lake.dataset(name).version for name in (WORDS, MORE)] == [2, 2]


@contextmanager
def losing_answers(db: Database, countdown: Countdown) -> Iterator[None]:
    """Lose the response of the N-th COMMIT, after the database has executed it."""
    write = db.write

    @contextmanager
    def lossy(*args: Any) -> Iterator[Any]:
        with write(*args) as tx:
            yield tx
        if countdown.step():
            raise CommitStateUnknown("commit_unanswered", "injected")

    db.write = lossy  # type: ignore[method-assign]
    try:
        yield
    finally:
        db.write = write  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("failing", "min_calls"), [(failing_sql, 30), (losing_answers, 10)], ids=["statement", "answer"]
)
def test_failure_of_nth_database_call_leaves_consistent_state(
    client: Client, clock: Clock, failing: Any, min_calls: int
) -> None:
    """The catalog, the status and the client agree, and no files are left."""
    lake, n = client.lake, 0
    while True:
        n += 1
        countdown, one, result = Countdown(n), None, None
        before = lake.dataset(WORDS).version, lake.dataset(MORE).version
        try:
            with failing(lake._workspace.db, countdown):
                one = client.begin()
                client.append(one, {n: "new"})
                client.append(one, {n: "new"}, MORE)
                client.edit(one, n, "newer")
                result = client.commit(one)
        except (Unavailable, CommitStateUnknown, Conflict):
            pass
        after = lake.dataset(WORDS).version, lake.dataset(MORE).version
        assert after in (before, (before[0] + 1, before[1] + 1))
        happened = after != before
        if result is not None:
            assert happened
        if one is not None:
            state = client.status(one)
            assert (state is TransactionState.COMMITTED) is happened
            if state is TransactionState.ACTIVE:  # no operation is in progress, so the commit can be repeated
                client.commit(one)
        if not countdown.fired:
            break
    assert n > min_calls, "too few database calls failed"
    clock.now += TTL  # expires a transaction whose creation was not acknowledged
    client.begin()
    client.served.expire_idle()
    with lake._workspace.db.read(client.caller) as tx:
        assert len(client_transactions.list_active(tx)) == 1
    clock.now += timedelta(hours=3)
    sweep(lake._workspace, client.caller, RetentionPolicy(), execute=True)
    assert count_stray_files(lake) == 0


def test_failed_operation_without_catalog_aborts_later(client: Client) -> None:
    """The catalog is unavailable during an operation and available again afterwards."""
    one = client.begin()
    client.append(one, {3: "three"})
    with pytest.raises(ZeroDivisionError), client.operation(one) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({4: "four"}))))
        lost = failing_sql(client.lake._workspace.db, Countdown(1))
        lost.__enter__()
        raise ZeroDivisionError
    lost.__exit__(None, None, None)
    with pytest.raises(Unsupported, match="is aborted"):
        client.commit(one)
    assert committed_rows(client.lake) == {1: "one", 2: "two"}


def test_write_set_json_round_trip_is_equal(client: Client) -> None:
    all_types = pa.table(
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
    lake.create("demo.kinds", all_types)
    one = client.begin()
    with client.operation(one) as operation:
        working = operation.overlay(DatasetName.parse("demo.kinds"))
        operation.apply(working, operation.stage.append(working, open_reader(all_types)))
        operation.apply(working, operation.stage.overwrite(working, open_reader(all_types)))
        work = operation._write_set
        (result,) = WriteSet.from_json(lake._workspace, client.caller, 3, work.to_json()).changes()
        (meant,) = work.changes()
        assert [replace(f, stats={c: truncate_bounds(s) for c, s in f.stats.items()}) for f in meant.added] == list(
            result.added
        )
        facts = [[(f.number, f.path, f.rows, f.bytes) for f in change.removed] for change in (meant, result)]
        assert facts[0] == facts[1]
        assert replace(result, added=(), removed=()) == replace(meant, added=(), removed=())
    client.commit(one)
    assert lake.dataset("demo.kinds").to_arrow().equals(all_types.cast(lake.dataset("demo.kinds").current().schema))


# -- random programs --------------------------------------------------------------------------------------------------


class Model:
    """Snapshot isolation by file: if two transactions replace a file, the first commit wins."""

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


class ModelTransaction:
    """One transaction of the model."""

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
    max_examples=examples(12, soak=200),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs)
def test_random_transactions_match_snapshot_isolation_model(
    lake: Lake, workspace: WorkspaceFixture, program: list[Any]
) -> None:
    """Up to four concurrent transactions, with steps in two processes."""
    caller = replace(lake.caller, tenant=uuid4())
    mine = Lake(lake._workspace, caller, lake._folder)
    with workspace.open() as elsewhere:
        clients = [Client(mine), Client(elsewhere, caller)]
        model, key = Model(), 0
        for name in (WORDS, MORE):
            mine.create(name, schema=table({}).schema)
            for _ in range(2):
                mine.dataset(name).append(table({key: "a", key + 1: "b"}))
                model.add(model.files[name], {key: "a", key + 1: "b"})
                key += 2
        under_way: dict[int, tuple[UUID, ModelTransaction]] = {}
        for which, where, (step, name, number) in program:
            client = clients[where]
            if which not in under_way:
                under_way[which] = client.begin(), ModelTransaction(model)
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
                        with pytest.raises(Conflict) as caught:
                            client.commit(one)
                        assert caught.value.reason == "stale_version"
                        assert clients[1 - where].status(one) is TransactionState.ABORTED
                case "rollback":
                    del under_way[which]
                    client.rollback(one)
            for each, its in under_way.values():
                if name:
                    assert client.read(each, name) == its.rows(name)
        for each, _ in under_way.values():
            clients[0].rollback(each)
        assert {name: committed_rows(mine, name) for name in model.files} == {
            name: model.rows(name) for name in model.files
        }
        assert count_stray_files(mine) == 0
