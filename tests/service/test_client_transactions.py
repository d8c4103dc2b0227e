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


class FakeClock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


class TransactionClient:
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
        base, deleted_rows = working.base, sum(file.rows for file in removed) - sum(file.rows for file in added)
        counts = Counts(updated=0 if deleted_rows else len(removed), deleted=deleted_rows)
        edited = "delete" if deleted_rows else "update"
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
    version_files = {
        file.path
        for dataset in lake.datasets()
        for version in range(1, dataset.version + 1)
        for file in lake.dataset(dataset.id).at(version).files()
    }
    assert version_files <= on_disk, "a version has lost a file"
    return len(on_disk - version_files)


@pytest.fixture
def client(lake: Lake) -> TransactionClient:
    lake.create(WORDS, table({1: "one", 2: "two"}))
    lake.create(MORE, table({1: "uno"}))
    return TransactionClient(lake)


@pytest.fixture
def other(client: TransactionClient, workspace: WorkspaceFixture) -> Iterator[TransactionClient]:
    """Return the same client in another process, which shares only the catalog and the files."""
    with workspace.open() as lake:
        yield TransactionClient(lake)


@pytest.fixture
def clock(client: TransactionClient) -> FakeClock:
    clock = client.lake._workspace.db.clock = FakeClock()
    return clock


# -- visibility ------------------------------------------------------------------------------------------------------


def test_commit_makes_writes_of_all_datasets_visible_together(client: TransactionClient) -> None:
    lake, transaction = client.lake, client.begin()
    client.append(transaction, {3: "three"})
    client.edit(transaction, 1, "eins")
    client.append(transaction, {2: "dos"}, MORE)
    client.edit(transaction, 3, "drei")
    assert client.read(transaction) == {1: "eins", 2: "two", 3: "drei"}
    assert client.read(transaction, "Demo.More") == {1: "uno", 2: "dos"}
    assert (committed_rows(lake), committed_rows(lake, MORE)) == ({1: "one", 2: "two"}, {1: "uno"})
    assert client.status(transaction) is TransactionState.ACTIVE
    receipt = client.commit(transaction)
    assert client.status(transaction) is TransactionState.COMMITTED
    assert (committed_rows(lake), committed_rows(lake, MORE)) == (
        {1: "eins", 2: "two", 3: "drei"},
        {1: "uno", 2: "dos"},
    )
    result = {w.name: (w.version, w.operation, w.rows, w.inserted, w.updated) for w in receipt.written}
    assert result == {WORDS: (2, "append+update", 3, 1, 2), MORE: (2, "append", 2, 1, 0)}
    assert {lake.dataset(name).history()[0].commit_no for name in (WORDS, MORE)} == {receipt.commit_no}
    assert count_stray_files(lake) == 0


def test_read_uses_snapshot_of_transaction_start(client: TransactionClient) -> None:
    lake, transaction = client.lake, client.begin()
    lake.dataset(WORDS).append(table({3: "three"}))
    lake.create("demo.late", table({1: "x"}))
    lake.dataset(MORE).drop()
    assert client.read(transaction) == {1: "one", 2: "two"}
    assert client.read(transaction, MORE) == {1: "uno"}
    with pytest.raises(NotFound, match=r"demo\.late"):
        client.read(transaction, "demo.late")
    assert client.status(transaction) is TransactionState.ACTIVE, "a failed read does not end a transaction"


def test_row_ids_assigned_in_transaction_survive_commit(client: TransactionClient, other: TransactionClient) -> None:
    transaction = client.begin()
    client.append(transaction, {3: "three"})

    def ids(user: TransactionClient) -> list[int]:
        working = user.served.snapshot_for_read(user.caller, transaction, DatasetName.parse(WORDS))
        rows = scan(user.lake._workspace.store, working.files(), working.schema, row_ids=True).read_all()
        return list(rows.sort_by("id")["rowid"].to_pylist())

    before = ids(client)
    client.lake.dataset(WORDS).append(table({9: "nine"}))
    assert before == ids(other) == ids(client)
    client.edit(transaction, 3, "drei")
    client.commit(transaction)
    rows = client.lake.dataset(WORDS).to_arrow(where="id < 9", row_ids=True)
    assert rows.sort_by("id")["rowid"].to_pylist() == before


def test_open_reader_keeps_superseded_staged_files(client: TransactionClient) -> None:
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    working = client.served.snapshot_for_read(client.caller, transaction, DatasetName.parse(WORDS))
    stream = scan(client.lake._workspace.store, working.files(), working.schema)
    client.edit(transaction, 3, "drei")
    assert stream.read_all()["word"].to_pylist() == ["one", "two", "three"]
    assert client.read(transaction)[3] == "drei"
    client.commit(transaction)
    assert count_stray_files(client.lake) == 0


def test_merge_in_transaction_adds_columns(client: TransactionClient, other: TransactionClient) -> None:
    transaction = client.begin()
    rows = pa.table({"id": [2, 3], "word": ["zwei", "drei"], "more": [Decimal("1.50"), None]})
    with client.operation(transaction) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        with DatasetMerge(
            client.lake._workspace,
            client.caller,
            operation.stage,
            RowSource(rows.schema, lambda: iter(rows.to_batches())),
            MergeRequest("id", add_columns=True),
        ) as result:
            operation.apply(working, result.change(working))
    assert other.read(transaction) == {1: "one", 2: "zwei", 3: "drei"}
    other.commit(transaction)
    snapshot = client.lake.dataset(WORDS).current()
    assert snapshot.to_arrow().sort_by("id")["more"].to_pylist() == [None, Decimal("1.50"), None]


# -- end of a transaction ------------------------------------------------------------------------------------------------------


def test_repeated_commit_returns_same_receipt(client: TransactionClient, other: TransactionClient) -> None:
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    first = client.commit(transaction)
    for repeated in (client.commit(transaction), other.commit(transaction)):
        assert repeated == first
        assert repeated.replayed
    with pytest.raises(Unsupported, match="committed") as raised:
        client.rollback(transaction)
    assert raised.value.reason == "transaction_over"
    assert client.lake.dataset(WORDS).version == 2
    assert committed_rows(client.lake) == {1: "one", 2: "two", 3: "three"}


@pytest.mark.parametrize("rows", [{3: "three"}, {}], ids=["rows", "nothing"])
def test_concurrent_commits_return_same_receipt(
    client: TransactionClient, other: TransactionClient, rows: dict[int, str]
) -> None:
    for _ in range(5):
        transaction, barrier = client.begin(), Barrier(4)
        client.append(transaction, rows)

        def commit(user: TransactionClient, transaction: UUID = transaction, barrier: Barrier = barrier) -> Any:
            barrier.wait(60)
            return user.commit(transaction)

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(commit, [client, other, client, other]))
        assert results == [results[0]] * 4
        assert (results[0] is None) is (not rows)
    assert count_stray_files(client.lake) == 0
    assert client.lake.dataset(WORDS).version == (6 if rows else 1)


def test_rollback_removes_files_and_can_be_repeated(client: TransactionClient, other: TransactionClient) -> None:
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    client.edit(transaction, 3, "drei")
    assert count_stray_files(client.lake) == 2
    client.rollback(transaction)
    client.rollback(transaction)
    other.rollback(transaction)
    assert (client.status(transaction), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)
    assert client.lake.dataset(WORDS).version == 1


USES: dict[str, Callable[[TransactionClient, UUID], object]] = {
    "an operation": lambda client, transaction: client.append(transaction, {3: "x"}),
    "a read": lambda client, transaction: client.read(transaction),
    "a commit": lambda client, transaction: client.commit(transaction),
    "a rollback": lambda client, transaction: client.rollback(transaction),
    "a status": lambda client, transaction: client.status(transaction),
}


@pytest.mark.parametrize("use", ["an operation", "a read", "a commit"])
@pytest.mark.parametrize(
    "state",
    [TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.EXPIRED],
    ids=lambda state: state.value,
)
def test_use_of_ended_transaction_reports_its_state(
    client: TransactionClient, clock: FakeClock, state: TransactionState, use: str
) -> None:
    if (state, use) == (TransactionState.COMMITTED, "a commit"):
        return
    transaction = client.begin()
    match state:
        case TransactionState.COMMITTED:
            client.commit(transaction)
        case TransactionState.ABORTED:
            client.rollback(transaction)
        case TransactionState.EXPIRED:
            clock.now += TTL
    with pytest.raises(Unsupported, match=f"is {state.value}") as raised:
        USES[use](client, transaction)
    assert (raised.value.reason, raised.value.context["transaction_status"]) == ("transaction_over", state.value)
    assert client.status(transaction) is state


@pytest.mark.parametrize("use", USES)
def test_transaction_of_other_caller_is_not_found(client: TransactionClient, other_tenant: Lake, use: str) -> None:
    transaction = client.begin()
    colleague = TransactionClient(client.lake, replace(client.caller, user=uuid4()))
    results = set()
    for user, transaction_id in (
        (colleague, transaction),
        (TransactionClient(other_tenant), transaction),
        (client, uuid4()),
    ):
        with pytest.raises(NotFound) as raised:
            USES[use](user, transaction_id)
        results.add((raised.value.reason, raised.value.message))
    assert [reason for reason, _ in results] == ["transaction_not_found"]
    assert client.status(transaction) is TransactionState.ACTIVE


def test_commit_without_changes_returns_no_receipt(client: TransactionClient) -> None:
    for write in (
        lambda transaction: client.read(transaction),
        lambda transaction: client.edit(transaction, 77, "not there"),
        lambda transaction: (client.append(transaction, {3: "x"}), client.edit(transaction, 3, None)),
    ):
        transaction = client.begin()
        write(transaction)
        assert client.commit(transaction) is client.commit(transaction) is None
        assert client.status(transaction) is TransactionState.COMMITTED
    assert (client.lake.dataset(WORDS).version, count_stray_files(client.lake)) == (1, 0)


@pytest.mark.parametrize(
    ("is_default", "requested", "commits"),
    [(False, None, False), (True, None, True), (True, False, False), (False, True, True)],
)
def test_auto_commit_commits_after_first_operation(
    client: TransactionClient, is_default: bool, requested: bool | None, commits: bool
) -> None:
    client = TransactionClient(client.lake, auto_commit=is_default)
    transaction = client.begin(requested)
    result = client.append(transaction, {3: "three"})
    assert (3 in committed_rows(client.lake)) is commits
    assert client.status(transaction) is (TransactionState.COMMITTED if commits else TransactionState.ACTIVE)
    assert (result.receipt is not None) is commits
    if commits:
        assert result.receipt == client.commit(transaction)


def fail_after_first_batch(client: TransactionClient, transaction: UUID) -> None:
    with client.operation(transaction) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({4: "x"}))))
        raise ZeroDivisionError


FAILURES: dict[str, tuple[type[Exception], Callable[[TransactionClient, UUID], object]]] = {
    "an unknown dataset": (NotFound, lambda client, transaction: client.append(transaction, {3: "x"}, "demo.none")),
    "rows that do not fit": (Invalid, lambda client, transaction: client.append(transaction, {3: "x"}, "demo.narrow")),
    "a dataset that is read-only": (
        Unsupported,
        lambda client, transaction: client.append(transaction, {3: "x"}, "demo.fixed"),
    ),
    "an unexpected error": (ZeroDivisionError, fail_after_first_batch),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failed_operation_aborts_transaction(client: TransactionClient, failure: str) -> None:
    client.lake.create("demo.narrow", {"id": [1]})
    client.lake.create("demo.fixed", table({1: "x"}), read_only=True)
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    error_class, fail = FAILURES[failure]
    with pytest.raises(error_class):
        fail(client, transaction)
    assert (client.status(transaction), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)


def test_viewer_can_read_but_not_write_in_transaction(client: TransactionClient) -> None:
    viewer = TransactionClient(client.lake, replace(client.caller, role=Role.VIEWER))
    transaction = viewer.begin()
    client.lake.dataset(WORDS).append(table({3: "three"}))
    assert viewer.read(transaction) == {1: "one", 2: "two"}
    assert viewer.commit(transaction) is None
    with pytest.raises(Forbidden):
        viewer.append(viewer.begin(), {3: "x"})


def test_viewer_cannot_commit_writes_of_developer(client: TransactionClient) -> None:
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    viewer = replace(client.caller, role=Role.VIEWER)
    with pytest.raises(Forbidden):
        client.served.commit(viewer, transaction)
    assert client.status(transaction) is TransactionState.ACTIVE
    assert client.commit(transaction) is not None
    assert client.served.commit(viewer, transaction) is not None  # a repeated commit writes nothing


def test_begin_above_limit_reads_no_transaction(client: TransactionClient, monkeypatch: pytest.MonkeyPatch) -> None:
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
    client: TransactionClient, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transactions, "MAX_ACTIVE_TRANSACTIONS", 3)
    first, *_ = [client.begin() for _ in range(3)]
    for _ in range(2):
        with pytest.raises(Invalid, match="The limit is 3") as raised:
            client.begin()
        assert raised.value.reason == "too_many_transactions"
        client.rollback(first)
        first = client.begin()
    clock.now += TTL
    client.begin()  # the other transactions have expired, and begin() ends them


# -- concurrency ------------------------------------------------------------------------------------------------------


def test_concurrent_appends_do_not_conflict(client: TransactionClient) -> None:
    transaction, transaction_2 = client.begin(), client.begin()
    client.edit(transaction, 1, "eins")
    client.append(transaction_2, {3: "three"})
    client.lake.dataset(WORDS).append(table({4: "four"}))
    client.commit(transaction_2)
    client.commit(transaction)
    assert committed_rows(client.lake) == {1: "eins", 2: "two", 3: "three", 4: "four"}


def test_second_rewrite_of_same_file_conflicts(client: TransactionClient) -> None:
    client.lake.dataset(WORDS).append(table({3: "three"}))
    transaction, transaction_2, transaction_3 = (client.begin() for _ in range(3))
    client.edit(transaction, 1, "eins")
    client.edit(transaction_2, 2, "zwei")  # another row of the same file
    client.append(transaction_2, {2: "dos"}, MORE)
    client.edit(transaction_3, 3, "drei")
    client.commit(transaction)
    with pytest.raises(Conflict, match="is no longer at version 2") as raised:
        client.commit(transaction_2)
    assert raised.value.reason == "stale_version"
    assert client.status(transaction_2) is TransactionState.ABORTED
    client.commit(transaction_3)
    assert (committed_rows(client.lake), committed_rows(client.lake, MORE)) == (
        {1: "eins", 2: "two", 3: "drei"},
        {1: "uno"},
    )
    assert count_stray_files(client.lake) == 0


def test_overwrite_in_transaction_conflicts_with_newer_version(
    client: TransactionClient, other: TransactionClient
) -> None:
    transaction = client.begin()
    client.overwrite(transaction, {7: "seven"})
    other.append(transaction, {8: "eight"})
    client.lake.dataset(WORDS).append(table({3: "three"}))
    with pytest.raises(Conflict) as raised:
        other.commit(transaction)
    assert (raised.value.reason, client.status(transaction)) == ("stale_version", TransactionState.ABORTED)
    assert committed_rows(client.lake) == {1: "one", 2: "two", 3: "three"}


@pytest.mark.parametrize("process", ["the same", "another"])
def test_commit_to_dropped_dataset_aborts_transaction(
    client: TransactionClient, other: TransactionClient, process: str
) -> None:
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    client.append(transaction, {3: "tres"}, MORE)
    client.lake.dataset(MORE).drop()
    with pytest.raises(Conflict) as raised:
        (other if process == "another" else client).commit(transaction)
    assert raised.value.message == (
        f"Table {MORE!r} was dropped after this transaction changed it. Nothing was written. Begin a new transaction"
    )
    assert raised.value.context == {"dataset": MORE}
    assert (client.status(transaction), client.lake.dataset(WORDS).version) == (TransactionState.ABORTED, 1)


@pytest.mark.parametrize("user", ["the same process", "another"])
def test_concurrent_operation_is_rejected_as_busy(
    client: TransactionClient, other: TransactionClient, user: str
) -> None:
    second = client if user == "the same process" else other
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    with client.operation(transaction) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({4: "four"}))))
        for use in ("an operation", "a commit"):
            with pytest.raises(Conflict) as raised:
                USES[use](second, transaction)
            assert raised.value.reason == "transaction_busy"
        assert second.read(transaction) == {1: "one", 2: "two", 3: "three"}, (
            "a read does not contain an operation in progress"
        )
        assert second.status(transaction) is TransactionState.ACTIVE
    assert second.read(transaction) == {1: "one", 2: "two", 3: "three", 4: "four"}
    second.append(transaction, {5: "five"})
    client.commit(transaction)
    assert committed_rows(client.lake) == {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


@pytest.mark.parametrize("user", ["the same process", "another"])
def test_rollback_during_operation_aborts_at_once(
    client: TransactionClient, other: TransactionClient, user: str
) -> None:
    second = client if user == "the same process" else other
    transaction = client.begin()
    with pytest.raises(Unsupported, match="is aborted"), client.operation(transaction) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({4: "four"}))))
        second.rollback(transaction)
    assert (client.status(transaction), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_idle_transaction_expires_and_removes_files(client: TransactionClient, clock: FakeClock) -> None:
    transaction, transaction_2 = client.begin(), client.begin()
    client.append(transaction, {3: "three"})
    clock.now += TTL - timedelta(seconds=1)
    client.append(transaction_2, {4: "four"})
    client.served.expire_idle()
    assert (client.status(transaction), client.status(transaction_2)) == (
        TransactionState.ACTIVE,
        TransactionState.ACTIVE,
    )
    clock.now += timedelta(seconds=1)
    client.served.expire_idle()
    assert (client.status(transaction), client.status(transaction_2)) == (
        TransactionState.EXPIRED,
        TransactionState.ACTIVE,
    )
    assert count_stray_files(client.lake) == 1
    client.rollback(transaction)
    assert client.status(transaction) is TransactionState.EXPIRED
    clock.now += TTL
    client.served.expire_idle()
    assert (client.status(transaction_2), count_stray_files(client.lake)) == (TransactionState.EXPIRED, 0)
    assert client.served._open == {}


@pytest.mark.parametrize("use", ["an operation", "a read"])
def test_use_of_transaction_postpones_expiry(client: TransactionClient, clock: FakeClock, use: str) -> None:
    transaction = client.begin()
    for _ in range(3):
        clock.now += TTL * 0.9
        USES[use](client, transaction)
    assert client.status(transaction) is TransactionState.ACTIVE
    clock.now += TTL
    assert client.status(transaction) is TransactionState.EXPIRED


def test_operation_longer_than_ttl_does_not_expire(
    client: TransactionClient, other: TransactionClient, clock: FakeClock
) -> None:
    """The operation runs in a process that did not begin the transaction."""
    other.lake._workspace.db.clock = clock
    transaction = client.begin()
    with other.operation(transaction) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({3: "three"}))))
        for _ in range(5):
            clock.now += TTL * 0.9
            other.served.expire_idle()
            client.served.expire_idle()
            assert client.status(transaction) is other.status(transaction) is TransactionState.ACTIVE
        clock.now += TTL * 2  # the operating process never expires its own operation
        assert other.status(transaction) is TransactionState.ACTIVE
    assert client.read(transaction)[3] == "three"


def test_sweep_keeps_files_of_active_transaction(client: TransactionClient, clock: FakeClock) -> None:
    client = TransactionClient(client.lake, ttl=timedelta(days=1))
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    for _ in range(6):
        clock.now += timedelta(minutes=40)
        client.served.expire_idle()
        assert sweep(client.lake._workspace, client.caller, RetentionPolicy(), execute=True).orphans == 0
    client.commit(transaction)
    assert committed_rows(client.lake) == {1: "one", 2: "two", 3: "three"}


@pytest.mark.parametrize("use", ["an operation", "a commit"])
def test_transaction_with_swept_files_is_aborted(client: TransactionClient, clock: FakeClock, use: str) -> None:
    """The owner was suspended for hours while other processes were active."""
    client = TransactionClient(client.lake, ttl=timedelta(days=1))
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    clock.now += timedelta(hours=2)
    assert sweep(client.lake._workspace, client.caller, RetentionPolicy(), execute=True).orphans == 1
    with pytest.raises((Conflict, Unsupported)) as raised:
        USES[use](client, transaction)
    assert raised.value.reason in ("lease_ended", "transaction_over")
    assert (client.status(transaction), committed_rows(client.lake)) == (TransactionState.ABORTED, {1: "one", 2: "two"})


# -- several processes ------------------------------------------------------------------------------------------------


def test_any_process_continues_transaction_of_live_owner(client: TransactionClient, other: TransactionClient) -> None:
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    other.edit(transaction, 3, "drei")
    client.append(transaction, {2: "dos"}, MORE)
    other.edit(transaction, 1, "eins")
    assert client.read(transaction) == other.read(transaction) == {1: "eins", 2: "two", 3: "drei"}
    other.served.close()
    other.lake._workspace.writers.close()
    client.commit(transaction)
    assert committed_rows(client.lake) == {1: "eins", 2: "two", 3: "drei"}
    assert count_stray_files(client.lake) == 0


def test_close_aborts_transactions_of_process(client: TransactionClient, other: TransactionClient) -> None:
    own_transaction, other_transaction = client.begin(), other.begin()
    client.append(own_transaction, {3: "three"})
    client.append(other_transaction, {3: "drei"})
    client.served.close()
    assert (other.status(own_transaction), other.status(other_transaction)) == (
        TransactionState.ABORTED,
        TransactionState.ACTIVE,
    )
    assert count_stray_files(client.lake) == 1


def test_invisible_owner_without_heartbeat_aborts_transaction(
    client: TransactionClient, other: TransactionClient, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.lake._workspace.db.clock = clock
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    monkeypatch.setattr(process_identity, "is_alive", lambda _: None)
    for _ in range(3):
        clock.now += timedelta(seconds=29)
        client.served.expire_idle()
        assert other.status(transaction) is TransactionState.ACTIVE
    clock.now += timedelta(seconds=30)
    assert other.status(transaction) is TransactionState.ABORTED
    assert count_stray_files(client.lake) == 0


@pytest.fixture
def crash_owner(client: TransactionClient, workspace: WorkspaceFixture) -> Callable[[str], UUID]:
    """Return the transaction of a process that is killed at a step."""
    return lambda step: UUID(last_line_of_killed_process(workspace, "kill_transaction_at_step", [WORDS, MORE], step))


def last_line_of_killed_process(fixture: WorkspaceFixture, script: str, *args: Any) -> str:
    """Return the last output line of a process that kills itself."""
    (Path(fixture.folder) / "go").touch()
    child = fixture.spawn(script, *args)
    out, err = child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL, err
    return out.splitlines()[-1]


def test_crash_of_owner_aborts_transaction(client: TransactionClient, crash_owner: Callable[[str], UUID]) -> None:
    transaction = crash_owner("")
    assert count_stray_files(client.lake) == 2
    with pytest.raises(Unsupported, match="is aborted"):
        client.append(transaction, {3: "x"})
    assert (client.status(transaction), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)
    assert (committed_rows(client.lake), committed_rows(client.lake, MORE)) == ({1: "one", 2: "two"}, {1: "uno"})


def test_crash_during_operation_aborts_transaction(client: TransactionClient, workspace: WorkspaceFixture) -> None:
    """The killed process is not the owner."""
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    last_line_of_killed_process(workspace, "kill_operation", str(transaction), WORDS)
    assert client.status(transaction) is TransactionState.ABORTED
    client.rollback(transaction)
    with pytest.raises(Unsupported):
        client.commit(transaction)


def test_sweep_removes_files_of_crashed_owner(
    client: TransactionClient, clock: FakeClock, crash_owner: Callable[[str], UUID]
) -> None:
    transaction = crash_owner("")
    assert sweep(client.lake._workspace, client.caller, RetentionPolicy(), execute=True).orphans == 0
    clock.now += timedelta(hours=3)
    assert sweep(client.lake._workspace, client.caller, RetentionPolicy(), execute=True).orphans == 2
    assert (client.status(transaction), count_stray_files(client.lake)) == (TransactionState.ABORTED, 0)


def test_expire_idle_ends_transactions_of_dead_owners(
    client: TransactionClient, crash_owner: Callable[[str], UUID]
) -> None:
    transaction = crash_owner("")
    client.begin()
    client.served.expire_idle()
    assert count_stray_files(client.lake) == 0
    with client.lake._workspace.db.read(client.caller) as tx:
        assert client_transactions.load_state(tx, transaction) is TransactionState.ABORTED


@pytest.mark.parametrize(("step", "is_committed"), [("commit.ready", False), ("commit.sent", True)])
def test_kill_during_commit_is_atomic(
    client: TransactionClient, crash_owner: Callable[[str], UUID], step: str, is_committed: bool
) -> None:
    transaction = crash_owner(step)
    assert client.status(transaction) is (TransactionState.COMMITTED if is_committed else TransactionState.ABORTED)
    assert (99 in committed_rows(client.lake), 99 in committed_rows(client.lake, MORE)) == (is_committed, is_committed)
    if is_committed:
        assert {w.name for w in client.commit(transaction).written} == {WORDS, MORE}
    assert count_stray_files(client.lake) == 0


def test_process_identity_detects_reused_pid() -> None:
    """A killed process that was not waited for (a zombie) is not alive."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        name = process_identity._process_name(child.pid)
        reused = name.rsplit(" ", 1)[0] + " 1"
        other_host = name.replace("/pid:", "/other:")
        assert (process_identity.is_alive(process_identity.current_process()), process_identity.is_alive(name)) == (
            True,
            True,
        )
        assert (process_identity.is_alive(reused), process_identity.is_alive(other_host)) == (False, None)
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
def test_failure_at_commit_step_leaves_consistent_state(
    client: TransactionClient, other: TransactionClient, step: str
) -> None:
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    client.edit(transaction, 1, "eins")
    client.append(transaction, {2: "dos"}, MORE)
    is_committed = step in ("commit.sent", "commit.done")

    def fail() -> None:
        raise OSError("injected")

    with failpoints.armed(step, fail), suppress(OSError):
        client.commit(transaction)
    assert (
        client.status(transaction)
        is other.status(transaction)
        is (TransactionState.COMMITTED if is_committed else TransactionState.ACTIVE)
    )
    assert (3 in committed_rows(client.lake), 2 in committed_rows(client.lake, MORE)) == (is_committed, is_committed)
    receipt = other.commit(transaction)
    assert (client.commit(transaction), receipt.replayed) == (receipt, is_committed)
    assert (committed_rows(client.lake), committed_rows(client.lake, MORE)) == (
        {1: "eins", 2: "two", 3: "three"},
        {1: "uno", 2: "dos"},
    )
    assert [client.lake.dataset(name).version for name in (WORDS, MORE)] == [2, 2]


@contextmanager
def lose_commit_response(db: Database, countdown: Countdown) -> Iterator[None]:
    """Lose the response of the N-th COMMIT, after the database has executed it."""
    write = db.write

    @contextmanager
    def fail_after_commit(*args: Any) -> Iterator[Any]:
        with write(*args) as tx:
            yield tx
        if countdown.step():
            raise CommitStateUnknown("commit_unanswered", "injected")

    db.write = fail_after_commit  # type: ignore[method-assign]
    try:
        yield
    finally:
        db.write = write  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("failing", "min_calls"), [(failing_sql, 30), (lose_commit_response, 10)], ids=["statement", "answer"]
)
def test_failure_of_nth_database_call_leaves_consistent_state(
    client: TransactionClient, clock: FakeClock, failing: Any, min_calls: int
) -> None:
    """The catalog, the status and the client agree, and no files are left."""
    lake, n = client.lake, 0
    while True:
        n += 1
        countdown, transaction, result = Countdown(n), None, None
        before = lake.dataset(WORDS).version, lake.dataset(MORE).version
        try:
            with failing(lake._workspace.db, countdown):
                transaction = client.begin()
                client.append(transaction, {n: "new"})
                client.append(transaction, {n: "new"}, MORE)
                client.edit(transaction, n, "newer")
                result = client.commit(transaction)
        except (Unavailable, CommitStateUnknown, Conflict):
            pass
        after = lake.dataset(WORDS).version, lake.dataset(MORE).version
        assert after in (before, (before[0] + 1, before[1] + 1))
        is_committed = after != before
        if result is not None:
            assert is_committed
        if transaction is not None:
            state = client.status(transaction)
            assert (state is TransactionState.COMMITTED) is is_committed
            if state is TransactionState.ACTIVE:  # no operation is in progress, so the commit can be repeated
                client.commit(transaction)
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


def test_failed_operation_without_catalog_aborts_later(client: TransactionClient) -> None:
    """The catalog is unavailable during an operation and available again afterwards."""
    transaction = client.begin()
    client.append(transaction, {3: "three"})
    with pytest.raises(ZeroDivisionError), client.operation(transaction) as operation:
        working = operation.overlay(DatasetName.parse(WORDS))
        operation.apply(working, operation.stage.append(working, open_reader(table({4: "four"}))))
        failure = failing_sql(client.lake._workspace.db, Countdown(1))
        failure.__enter__()
        raise ZeroDivisionError
    failure.__exit__(None, None, None)
    with pytest.raises(Unsupported, match="is aborted"):
        client.commit(transaction)
    assert committed_rows(client.lake) == {1: "one", 2: "two"}


def test_write_set_json_round_trip_is_equal(client: TransactionClient) -> None:
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
    transaction = client.begin()
    with client.operation(transaction) as operation:
        working = operation.overlay(DatasetName.parse("demo.kinds"))
        operation.apply(working, operation.stage.append(working, open_reader(all_types)))
        operation.apply(working, operation.stage.overwrite(working, open_reader(all_types)))
        work = operation._write_set
        (result,) = WriteSet.from_json(lake._workspace, client.caller, 3, work.to_json()).changes()
        (expected,) = work.changes()
        assert [replace(f, stats={c: truncate_bounds(s) for c, s in f.stats.items()}) for f in expected.added] == list(
            result.added
        )
        facts = [[(f.number, f.path, f.rows, f.bytes) for f in change.removed] for change in (expected, result)]
        assert facts[0] == facts[1]
        assert replace(result, added=(), removed=()) == replace(expected, added=(), removed=())
    client.commit(transaction)
    assert lake.dataset("demo.kinds").to_arrow().equals(all_types.cast(lake.dataset("demo.kinds").current().schema))


# -- random programs --------------------------------------------------------------------------------------------------


class SnapshotModel:
    """Snapshot isolation by file: if two transactions replace a file, the first commit wins."""

    def __init__(self) -> None:
        self.files: dict[str, dict[int, dict[int, str]]] = {WORDS: {}, MORE: {}}  # dataset → file → rows
        self.versions = {WORDS: 0, MORE: 0}
        self._next = 0

    def add(self, files: dict[int, dict[int, str]], rows: dict[int, str]) -> None:
        if rows:
            self._next += 1
            files[self._next] = rows

    def rows(self, name: str) -> dict[int, str]:
        return {key: word for rows in self.files[name].values() for key, word in rows.items()}


class ModelTransaction:
    """A transaction of the model."""

    def __init__(self, model: SnapshotModel) -> None:
        self._model, self._versions = model, dict(model.versions)
        self._base = {name: dict(files) for name, files in model.files.items()}
        self._rows = {name: dict(files) for name, files in model.files.items()}
        self._exact: set[str] = set()

    def rows(self, name: str) -> dict[int, str]:
        return {key: word for rows in self._rows[name].values() for key, word in rows.items()}

    def append(self, name: str, rows: dict[int, str]) -> None:
        self._model.add(self._rows[name], rows)

    def overwrite(self, name: str, rows: dict[int, str]) -> None:
        self._rows[name].clear()
        self._model.add(self._rows[name], rows)
        self._exact.add(name)

    def edit(self, name: str, key: int, word: str | None) -> None:
        for file, rows in list(self._rows[name].items()):
            if key in rows:
                del self._rows[name][file]
                changed = {k: (word if k == key else w) for k, w in rows.items()}
                self._model.add(self._rows[name], {k: w for k, w in changed.items() if w is not None})

    def commit(self) -> bool:
        model, changed = (
            self._model,
            [name for name in self._rows if self._rows[name].keys() != self._base[name].keys()],
        )
        for name in changed:
            deleted = self._base[name].keys() - self._rows[name].keys()
            if not deleted <= model.files[name].keys():
                return False
            if name in self._exact and self._versions[name] != model.versions[name]:
                return False
        for name in changed:
            for file in self._base[name].keys() - self._rows[name].keys():
                del model.files[name][file]
            for file in self._rows[name].keys() - self._base[name].keys():
                model.files[name][file] = self._rows[name][file]
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
    """Run up to four concurrent transactions, with steps in two processes."""
    caller = replace(lake.caller, tenant=uuid4())
    own_lake = Lake(lake._workspace, caller, lake._folder)
    with workspace.open() as other_lake:
        clients = [TransactionClient(own_lake), TransactionClient(other_lake, caller)]
        model, key = SnapshotModel(), 0
        for name in (WORDS, MORE):
            own_lake.create(name, schema=table({}).schema)
            for _ in range(2):
                own_lake.dataset(name).append(table({key: "a", key + 1: "b"}))
                model.add(model.files[name], {key: "a", key + 1: "b"})
                key += 2
        active: dict[int, tuple[UUID, ModelTransaction]] = {}
        for transaction_id, in_other_process, (step, name, number) in program:
            client = clients[in_other_process]
            if transaction_id not in active:
                active[transaction_id] = client.begin(), ModelTransaction(model)
            transaction, model_transaction = active[transaction_id]
            match step:
                case "append" | "overwrite":
                    rows = {key + i: step for i in range(number)}
                    key += number
                    getattr(client, step)(transaction, rows, name)
                    getattr(model_transaction, step)(name, rows)
                case "edit" | "delete":
                    keys = sorted(model_transaction.rows(name)) or [0]
                    chosen, word = keys[number % len(keys)], f"{transaction_id}.{key}" if step == "edit" else None
                    client.edit(transaction, chosen, word, name)
                    model_transaction.edit(name, chosen, word)
                case "commit":
                    del active[transaction_id]
                    if model_transaction.commit():
                        client.commit(transaction)
                    else:
                        with pytest.raises(Conflict) as raised:
                            client.commit(transaction)
                        assert raised.value.reason == "stale_version"
                        assert clients[1 - in_other_process].status(transaction) is TransactionState.ABORTED
                case "rollback":
                    del active[transaction_id]
                    client.rollback(transaction)
            for other_id, other_model in active.values():
                if name:
                    assert client.read(other_id, name) == other_model.rows(name)
        for other_id, _ in active.values():
            clients[0].rollback(other_id)
        assert {name: committed_rows(own_lake, name) for name in model.files} == {
            name: model.rows(name) for name in model.files
        }
        assert count_stray_files(own_lake) == 0
