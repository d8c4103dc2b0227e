"""Commits on both databases, with many concurrent processes."""

import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pytest

from faults.failing_parts import Countdown, failing_sql
from penstock import failpoints
from penstock.catalog import snapshots, writer_leases
from penstock.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unsupported
from penstock.lake import Dataset, Lake
from penstock.storage.data_files import FileSizing
from support.workspaces import WorkspaceFixture


def ids(ds: Dataset, version: int | None = None) -> list[int]:
    snapshot = ds.current() if version is None else ds.at(version)
    return sorted(snapshot.to_arrow(["id"])["id"].to_pylist())


def test_concurrent_commits_from_one_base_succeed_exactly_once(
    workspace: WorkspaceFixture, three_rows: Dataset
) -> None:
    results = workspace.race("overwrite_at", [(three_rows.name, 1, writer) for writer in range(8)])
    assert sorted(results) == ["stale_version"] * 7 + ["won"]
    assert three_rows.version == 2
    assert ids(three_rows) == [results.index("won")]


def test_concurrent_read_modify_writes_of_four_processes_lose_no_update(
    workspace: WorkspaceFixture, lake: Lake, soak: bool
) -> None:
    counter = lake.create("demo.counter", {"id": [0], "word": ["start"]})
    times = 400 if soak else 25
    conflicts = workspace.race("add_one", [(counter.name, times)] * 4)
    assert ids(counter) == [4 * times]
    assert counter.version == 1 + 4 * times
    assert sum(conflicts) > 0, "the processes did not meet, so nothing was shown"


def test_concurrent_appends_are_all_committed_and_every_version_stays_readable(
    workspace: WorkspaceFixture, three_rows: Dataset, soak: bool
) -> None:
    times = 200 if soak else 25
    results = workspace.race("append_rows", [(three_rows.name, 1000 * (writer + 1), times) for writer in range(4)])
    acknowledged = sorted(version for versions in results for version in versions)
    assert acknowledged == list(range(2, 2 + 4 * times))
    expected_ids = [1, 2, 3] + [1000 * (writer + 1) + i for writer in range(4) for i in range(times)]
    assert ids(three_rows) == sorted(expected_ids)
    for version in [1, 2, 2 * times, 4 * times, 4 * times + 1]:
        assert len(ids(three_rows, version)) == three_rows.at(version).num_rows == 2 + version
    row_ids = three_rows.to_arrow(row_ids=True)["rowid"].to_pylist()
    assert len(set(row_ids)) == len(row_ids) == 3 + 4 * times


def test_concurrent_appends_of_threads_are_all_committed(three_rows: Dataset) -> None:
    def work(writer: int) -> list[int]:
        return [three_rows.append({"id": [100 * writer + i], "word": ["t"]}).version for i in range(10)]

    with ThreadPoolExecutor(6) as pool:
        versions = [version for results in pool.map(work, range(1, 7)) for version in results]
    assert sorted(versions) == list(range(2, 62))
    assert ids(three_rows) == sorted([1, 2, 3] + [100 * writer + i for writer in range(1, 7) for i in range(10)])


def test_commit_of_two_datasets_is_atomic_in_every_lake_snapshot(workspace: WorkspaceFixture, lake: Lake) -> None:
    first = lake.create("demo.one", {"id": [0], "word": [""]})
    other = lake.create("demo.other", {"id": [0], "word": [""]})
    assert workspace.race("move_money", [("demo.one", "demo.other", 15)] * 3) == [0, 0, 0]
    assert first.num_rows == other.num_rows == 46
    for commit_no in range(2, lake.snapshot().commit_no + 1):
        snapshot = lake.snapshot(commit_no)
        money = [sum(snapshot.dataset(name).to_arrow(["id"])["id"].to_pylist()) for name in ("demo.one", "demo.other")]
        assert sum(money) == 0, f"commit {commit_no} was seen in half"


def test_commit_with_one_stale_base_changes_nothing(lake: Lake, three_rows: Dataset) -> None:
    other = lake.create("demo.other", {"id": [1], "word": ["a"]})
    other.append({"id": [2], "word": ["b"]})
    before = lake.snapshot().commit_no
    with pytest.raises(Conflict) as raised, lake.transaction() as tx:
        tx.append(three_rows, {"id": [4], "word": ["four"]})
        tx.overwrite(other, {"id": [9], "word": ["stale"]}, expect=1)
    assert raised.value.context["dataset"] == "demo.other"
    assert (raised.value.context["base"], raised.value.context["newest"]) == (1, 2)
    assert raised.value.context["author"] in raised.value.message
    assert (ids(three_rows), ids(other), lake.snapshot().commit_no) == ([1, 2, 3], [1, 2], before)
    assert_no_orphans(lake)


def test_error_inside_a_transaction_rolls_back_all_of_it(lake: Lake, three_rows: Dataset) -> None:
    with pytest.raises(ZeroDivisionError), lake.transaction() as tx:
        tx.append(three_rows, {"id": [4], "word": ["four"]})
        _ = 1 / 0
    assert three_rows.version == 1
    assert_no_orphans(lake)


def test_transaction_cannot_be_used_after_its_end(lake: Lake, three_rows: Dataset) -> None:
    tx = lake.transaction()
    with pytest.raises(ZeroDivisionError), tx:
        tx.append(three_rows, {"id": [4], "word": ["four"]})
        _ = 1 / 0
    for use in (tx.__enter__, lambda: tx.append(three_rows, {"id": [4], "word": ["four"]})):
        with pytest.raises(Unsupported) as raised:
            use()
        assert raised.value.reason == "transaction_over"
    assert ids(three_rows) == [1, 2, 3]


def test_overwrite_in_a_transaction_removes_its_own_staged_files(lake: Lake, three_rows: Dataset) -> None:
    with lake.transaction() as tx:
        tx.append(three_rows, {"id": [4], "word": ["four"]})
        tx.overwrite(three_rows, {"id": [5], "word": ["five"]})
        tx.overwrite(three_rows, {"id": [6], "word": ["six"]})
    assert ids(three_rows) == [6]
    assert three_rows.version == 2
    assert_no_orphans(lake)


def test_appends_of_one_transaction_around_an_alter_are_all_found(lake: Lake, three_rows: Dataset) -> None:
    with lake.transaction() as tx:
        tx.append(three_rows, {"id": [4], "word": ["four"]})
        three_rows.alter(add={"extra": "int64"})
        with pytest.raises(Invalid, match="extra"):  # a transaction continues from the version that it read first
            tx.append(three_rows, {"id": [5], "word": ["five"], "extra": [55]})
        tx.append(three_rows, {"id": [5], "word": ["five"]})
    assert three_rows.to_arrow(["id"], "extra IS NULL AND id > 3")["id"].to_pylist() == [4, 5]
    assert ids(three_rows) == [1, 2, 3, 4, 5]


def test_stale_version_conflict_names_the_author_of_the_newest_version(lake: Lake, three_rows: Dataset) -> None:
    three_rows.append({"id": [4], "word": ["four"]})
    pending = [lambda: three_rows.overwrite({"id": [9], "word": ["nine"]})]
    with (
        failpoints.armed("stage.begun", lambda: pending.pop()() if pending else None),
        pytest.raises(Conflict) as raised,
    ):
        three_rows.overwrite({"id": [8], "word": ["eight"]})
    assert raised.value.context["newest"] == three_rows.version == 3
    assert "(overwrite)" in raised.value.message


def test_commit_times_never_decrease(lake: Lake, three_rows: Dataset) -> None:
    now = datetime.now(UTC)
    for hours in (5, -5, 3, 0):  # a clock that jumps back
        lake._workspace.db.clock = lambda hours=hours: now + timedelta(hours=hours)  # type: ignore[misc]
        three_rows.append({"id": [4], "word": ["four"]})
    times = [version.committed_at for version in three_rows.history()]
    assert times == sorted(times, reverse=True)


def test_rejected_commit_keeps_the_lease_of_another_writer(lake: Lake, three_rows: Dataset) -> None:
    writers, caller = lake._workspace.writers, lake.caller
    first = writers.lease(caller)
    with lake._workspace.db.write(caller) as tx:
        writer_leases.end(tx, first)
    with pytest.raises(Conflict) as raised:
        three_rows.append({"id": [4], "word": ["four"]})
    second = writers.lease(caller)
    writers.forget(caller, first, raised.value)
    assert writers.lease(caller) == second != first
    assert three_rows.append({"id": [4], "word": ["four"]}).version == 2


def test_forked_child_process_uses_its_own_connections_and_lease(lake: Lake, three_rows: Dataset) -> None:
    """Fork while another thread holds the lock of the leases of the parent process."""
    three_rows.append({"id": [4], "word": ["four"]})
    parent = lake._workspace.writers.lease(lake.caller)
    with lake._workspace.writers._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the test forks a process with threads
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            lease = lake._workspace.writers.lease(lake.caller)
            with lake._workspace.db.read(lake.caller) as tx:
                os._exit(0 if lease != parent and snapshots.commit_no(tx) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert three_rows.append({"id": [5], "word": ["five"]}).version == 3


def test_close_without_a_database_keeps_the_original_error(sqlite_workspace: WorkspaceFixture) -> None:
    with ExitStack() as stack, pytest.raises(ZeroDivisionError), sqlite_workspace.open() as lake:
        lake.create("demo.x", {"id": [1]})
        stack.enter_context(failing_sql(lake._workspace.db, Countdown(1)))
        _ = 1 / 0


def test_repeated_idempotency_key_returns_the_first_receipt(lake: Lake, three_rows: Dataset) -> None:
    first = three_rows.append({"id": [4], "word": ["four"]}, idempotency_key="order-17")
    repeated = three_rows.append({"id": [4], "word": ["four"]}, idempotency_key="order-17")
    assert repeated == first
    assert repeated.replayed
    assert not first.replayed
    assert ids(three_rows) == [1, 2, 3, 4]
    assert_no_orphans(lake)


def test_idempotency_key_of_another_request_is_rejected(lake: Lake, three_rows: Dataset) -> None:
    three_rows.append({"id": [4], "word": ["four"]}, idempotency_key="order-17")
    with pytest.raises(AlreadyExists) as raised:
        three_rows.append({"id": [5], "word": ["five"]}, idempotency_key="order-17")
    assert raised.value.reason == "key_reused"
    assert ids(three_rows) == [1, 2, 3, 4]
    assert_no_orphans(lake)


@pytest.mark.parametrize("key", ["", "x" * 201, "line\nbreak"])
def test_invalid_idempotency_keys_are_rejected(three_rows: Dataset, key: str) -> None:
    with pytest.raises(Invalid) as raised:
        three_rows.append({"id": [4], "word": ["four"]}, idempotency_key=key)
    assert raised.value.reason == "bad_idempotency_key"
    assert three_rows.version == 1


def test_repeated_key_returns_the_receipt_after_later_commits(lake: Lake, three_rows: Dataset) -> None:
    rows = pa.table({"id": [4, 5], "word": ["four", None]})
    first = three_rows.append(rows, idempotency_key="k")
    three_rows.alter(add={"extra": "int64"})
    lake._workspace.file_sizing = FileSizing(group_rows=1)
    cut_otherwise = pa.Table.from_batches([batch.slice(i, 1) for batch in rows.to_batches() for i in (0, 1)])
    packed = cut_otherwise.set_column(1, "word", cut_otherwise["word"].dictionary_encode())
    for repeated in (rows, cut_otherwise, packed):
        assert three_rows.append(repeated, idempotency_key="k") == first
    for other in ({"id": [4, 5], "word": ["four", ""]}, {"id": [4, 5]}, {"id": [5, 4], "word": [None, "four"]}):
        with pytest.raises(AlreadyExists):
            three_rows.append(other, idempotency_key="k")
    assert ids(three_rows) == [1, 2, 3, 4, 5]
    assert_no_orphans(lake)


def test_repeated_create_is_compared_by_all_its_arguments(lake: Lake) -> None:
    first = lake.create("demo.made", {"id": [1]}, idempotency_key="k")
    assert lake.create("demo.made", {"id": [1]}, idempotency_key="k").id == first.id
    with pytest.raises(AlreadyExists) as raised:
        lake.create("demo.made", {"id": [1]}, row_ids=False, idempotency_key="k")
    assert raised.value.reason == "key_reused"
    assert_no_orphans(lake)


def test_repeated_alter_and_overwrite_return_the_receipt_after_other_commits(lake: Lake, three_rows: Dataset) -> None:
    receipt = three_rows.alter(add={"extra": "int64"}, idempotency_key="a")
    written = three_rows.overwrite({"id": [9]}, expect=2, idempotency_key="o")
    three_rows.append({"id": [10]})
    assert three_rows.alter(add={"extra": "int64"}, idempotency_key="a") == receipt
    assert three_rows.overwrite({"id": [9]}, expect=2, idempotency_key="o") == written
    with pytest.raises(AlreadyExists):
        three_rows.overwrite({"id": [9]}, expect=4, idempotency_key="o")
    assert ids(three_rows) == [9, 10]


def test_idempotency_keys_are_separate_for_each_tenant(lake: Lake, other_tenant: Lake, three_rows: Dataset) -> None:
    three_rows.append({"id": [4], "word": ["four"]}, idempotency_key="shared")
    other_dataset = other_tenant.create("demo.numbers", {"id": [7], "word": ["seven"]}, idempotency_key="shared")
    assert ids(other_dataset) == [7]


def test_append_of_no_rows_creates_no_version(lake: Lake, three_rows: Dataset) -> None:
    commit_no = lake.snapshot().commit_no
    receipt = three_rows.append({"id": pa.array([], pa.int64()), "word": pa.array([], pa.string())})
    assert receipt.version == three_rows.version == 1
    assert lake.snapshot().commit_no == commit_no
    assert receipt.written[0].rows == 3


def test_commit_numbers_grow_by_one_over_all_datasets(lake: Lake, three_rows: Dataset) -> None:
    other = lake.create("demo.other", {"id": [1], "word": ["a"]})
    taken = [ds.append({"id": [5], "word": ["x"]}).commit_no for ds in (three_rows, other, three_rows)]
    assert [b - a for a, b in pairwise(taken)] == [1, 1]
    with lake.transaction() as tx:
        tx.append(three_rows, {"id": [6], "word": ["x"]})
        tx.append(other, {"id": [6], "word": ["x"]})
    assert tx.receipt is not None
    assert tx.receipt.commit_no == taken[-1] + 1
    assert {w.name for w in tx.receipt.written} == {"demo.numbers", "demo.other"}


def test_row_ids_are_never_reused(three_rows: Dataset) -> None:
    three_rows.overwrite({"id": [1, 2], "word": ["a", "b"]})
    three_rows.append({"id": [3], "word": ["c"]})
    three_rows.compact()
    assert three_rows.to_arrow(row_ids=True)["rowid"].to_pylist() == [4, 5, 6]
    assert three_rows.at(1).to_arrow(row_ids=True)["rowid"].to_pylist() == [1, 2, 3]


def test_compaction_keeps_rows_ids_and_older_versions(lake: Lake, three_rows: Dataset) -> None:
    for i in range(4, 10):
        three_rows.append({"id": [i], "word": [str(i)]})
    before = three_rows.to_arrow(row_ids=True)
    old = three_rows.current()
    receipt = three_rows.compact()
    assert receipt.version == 8
    assert (receipt.written[0].inserted, receipt.written[0].rows) == (0, 9)
    assert len(three_rows.current().files()) == 1
    assert three_rows.to_arrow(row_ids=True).equals(before)
    assert old.to_arrow(row_ids=True).equals(before)
    three_rows.append({"id": [10], "word": ["ten"]})
    three_rows.compact()
    assert three_rows.to_arrow(row_ids=True)["rowid"].to_pylist() == list(range(1, 11))
    assert three_rows.compact().version == three_rows.version == 10, "one file is not worth compacting"


def test_read_only_dataset_rejects_writes(lake: Lake) -> None:
    fixed = lake.create("demo.fixed", {"id": [1]}, read_only=True)
    for write in (
        lambda: fixed.append({"id": [2]}),
        lambda: fixed.overwrite({"id": [2]}),
        lambda: fixed.alter(add={"x": "int64"}),
        fixed.compact,
    ):
        with pytest.raises(Unsupported) as raised:
            write()
        assert raised.value.reason == "read_only"
    assert fixed.version == 1


def test_names_are_unique_ignoring_case_and_free_again_after_a_drop(lake: Lake, three_rows: Dataset) -> None:
    with pytest.raises(AlreadyExists):
        lake.create("Demo.Numbers", {"id": [1]})
    assert lake.dataset("DEMO.numbers").id == three_rows.id
    three_rows.drop()
    for use in (lambda: lake.dataset("demo.numbers"), lambda: three_rows.append({"id": [1]}), three_rows.to_arrow):
        with pytest.raises(NotFound):
            use()
    fresh = lake.create("demo.numbers", {"id": [1]})
    assert fresh.id != three_rows.id
    assert_no_orphans(lake, dropped=1)


def test_writes_require_the_developer_role(lake: Lake, three_rows: Dataset) -> None:
    from dataclasses import replace

    from penstock.core.caller import Role

    viewer = Lake(lake._workspace, replace(lake.caller, role=Role.VIEWER), lake._folder).dataset(three_rows.id)
    developer = Lake(lake._workspace, replace(lake.caller, role=Role.DEVELOPER), lake._folder).dataset(three_rows.id)
    assert viewer.num_rows == 3
    for write in (lambda: viewer.append({"id": [4], "word": [""]}), viewer.compact, viewer.drop, developer.drop):
        with pytest.raises(Forbidden) as raised:
            write()
        assert raised.value.context["required_role"] in ("analytics.developer", "analytics.admin")
    assert developer.append({"id": [4], "word": ["four"]}).version == 2


def assert_no_orphans(lake: Lake, *, dropped: int = 0) -> None:
    """Assert that every file belongs to a version and that the files of every version exist."""
    store = lake._workspace.store
    on_disk = {path for tenant in store.folders("data") for ds in store.folders(tenant) for path, _ in store.files(ds)}
    listed = {file.path for ds in lake.datasets() for v in range(1, ds.version + 1)
              for file in lake.dataset(ds.id).at(v).files()}  # fmt: skip
    assert len(on_disk - listed) == dropped
    assert not listed - on_disk
