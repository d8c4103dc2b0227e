"""Compaction by policy: which datasets are due, one worker for a tenant, and the end of a pass."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from penstock import failpoints
from penstock.core.dataset.compaction import CompactionResult
from penstock.core.dataset.edit_policy import EditPolicy
from penstock.errors import Unavailable
from penstock.lake import Dataset, Lake
from penstock.service.datasets import compact, maintenance
from penstock.service.datasets.maintenance import MaintenancePolicy, MaintenanceWorker
from service.test_compact import listed, many_files, on_disk, once_per_step, rows_by_id, table
from support.process_scripts import SMALL_FILES

POLICY = MaintenancePolicy(small_files=4, deleted_percent=10, pause_seconds=0.05)


def with_files(lake: Lake, name: str, count: int, **options: Any) -> Dataset:
    ds = lake.create(name, table(0), **options)
    for key in range(1, count):
        ds.append(table(key))
    return ds


def set_clock(lake: Lake, **later: int) -> None:
    lake._workspace.db.clock = lambda: datetime.now(UTC) + timedelta(**later)


def test_pass_compacts_datasets_with_enough_small_files(lake: Lake) -> None:
    due, other = with_files(lake, "demo.due", 4), with_files(lake, "demo.other", 3)
    before = rows_by_id(due)
    worker, results = MaintenanceWorker(lake._workspace, POLICY), list[CompactionResult]()
    worker.on_step(lambda result, _seconds: results.append(result))
    assert worker.run_pass()
    assert rows_by_id(due) == before
    (newest,) = due.history(1)
    assert (newest.operation, newest.author, newest.files) == ("compact", "maintenance", 1)
    assert other.version == 3
    assert [(result.steps, result.files_before) for result in results] == [(1, 4)]
    assert worker.run_pass()
    assert (due.version, other.version) == (5, 3)


def test_pass_rewrites_files_with_enough_deleted_rows(lake: Lake) -> None:
    ds = lake.create("demo.rows", table(*range(20)))
    worker = MaintenanceWorker(lake._workspace, POLICY)
    ds.delete([1, 2])
    assert worker.run_pass()
    assert ds.current().snapshot.version.deleted_rows == 2
    ds.delete([3])
    assert worker.run_pass()
    assert (ds.current().snapshot.version.deleted_rows, ds.num_rows) == (0, 17)


def test_pass_rewrites_a_file_before_its_vector_makes_an_edit_rewrite_it(lake: Lake) -> None:
    lake._workspace.edit_policy = EditPolicy(max_vector_bytes=200)  # about 100 positions
    ds = lake.create("demo.rows", table(*range(2000)))
    worker = MaintenanceWorker(lake._workspace, POLICY)
    ds.delete(list(range(1, 41)))
    assert worker.run_pass()
    assert ds.current().snapshot.version.deleted_rows == 40
    ds.delete(list(range(41, 61)))
    assert worker.run_pass()
    assert (ds.current().snapshot.version.deleted_rows, ds.num_rows) == (0, 1940)


def test_pass_compacts_an_idle_dataset_completely(lake: Lake) -> None:
    ds, deleted = with_files(lake, "demo.idle", 2), lake.create("demo.deleted", table(*range(20)))
    deleted.delete([1])
    fixed = with_files(lake, "demo.fixed", 1, read_only=True)
    worker = MaintenanceWorker(lake._workspace, POLICY)
    set_clock(lake, hours=23)
    assert worker.run_pass()
    assert (ds.version, deleted.version) == (2, 2)
    set_clock(lake, hours=25)
    assert worker.run_pass()
    assert (ds.version, deleted.version, fixed.version) == (3, 3, 1)
    assert not deleted.current().snapshot.version.vector_files


def test_pass_continues_an_idle_dataset_after_its_own_steps(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = many_files(lake)
    lake._workspace.file_sizing = SMALL_FILES
    worker = MaintenanceWorker(lake._workspace, MaintenancePolicy(small_files=1000))
    monkeypatch.setattr(maintenance, "_MAX_STEPS", 1)
    set_clock(lake, hours=25)
    for expected in (22, 23, 23):
        assert worker.run_pass()
        assert ds.version == expected, "one step in a pass"


def test_pass_finishes_other_steps_while_one_file_is_contended(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "_MAX_STEP_REBASES", 1)  # as if another edit came before each attempt to commit
    lake._workspace.file_sizing = SMALL_FILES
    ds = many_files(lake)
    contended, row_ids = ds.current().files()[0].path, iter(range(1, 31))  # the rows of the first file
    worker, results = MaintenanceWorker(lake._workspace, POLICY), list[CompactionResult]()
    worker.on_step(lambda result, _seconds: results.append(result))
    with failpoints.armed("stage.complete", once_per_step(lambda: ds.delete([next(row_ids)]))):
        assert worker.run_pass()
        lost = [result.lost_steps for result in results]
        assert lost[0] == 1
        assert 0 in lost, "the other steps were done"
        assert sum(lost) <= 4
        assert contended in {file.path for file in ds.current().files()}, "given up"
        first_pass = len(results)
        assert worker.run_pass()
        assert [result.lost_steps for result in results[first_pass:]] == [1], "tried once more in each pass"
    assert worker.run_pass()
    assert results[-1].lost_steps == 0


@pytest.mark.parametrize("cluster_by", [(), ("k",)])
def test_passes_during_edits_lose_no_edit(lake: Lake, cluster_by: tuple[str, ...]) -> None:
    ds = many_files(lake, cluster_by=cluster_by)
    lake._workspace.file_sizing = SMALL_FILES
    worker, results = MaintenanceWorker(lake._workspace, POLICY), list[CompactionResult]()
    worker.on_step(lambda result, _seconds: results.append(result))
    expected, errors = {row_id: row[0] for row_id, row in rows_by_id(ds).items()}, list[BaseException]()
    is_done = threading.Event()

    def edit(first: int) -> None:
        """Edit the rows `first`, `first + 3`, …: each thread has rows of its own in every file."""
        random = Random(first)
        try:
            row_ids = list(range(first, 601, 3))
            for value in range(60):
                row_id = random.choice(row_ids)
                if random.random() < 0.3:
                    ds.delete([row_id])
                    row_ids.remove(row_id)
                    del expected[row_id]
                else:
                    ds.update([row_id], table(1000 * first + value))
                    expected[row_id] = 1000 * first + value
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=edit, args=(first,)) for first in (1, 2, 3)]
    passes = threading.Thread(target=lambda: [worker.run_pass() for _ in iter(is_done.is_set, True)])
    for thread in (*threads, passes):
        thread.start()
    for thread in threads:
        thread.join()
    is_done.set()
    passes.join()
    assert not errors
    assert {row_id: row[0] for row_id, row in rows_by_id(ds).items()} == expected
    assert sum(result.steps for result in results) > 0
    assert on_disk(ds) == listed(ds)


def test_pass_visits_every_tenant(lake: Lake, other_tenant: Lake) -> None:
    both = [with_files(tenant_lake, "demo.due", 4) for tenant_lake in (lake, other_tenant)]
    assert MaintenanceWorker(lake._workspace, POLICY).run_pass()
    assert [ds.history(1)[0].operation for ds in both] == ["compact", "compact"]


def test_pass_error_of_one_dataset_does_not_stop_the_others(lake: Lake) -> None:
    broken, due = with_files(lake, "demo.a", 4), with_files(lake, "demo.b", 4)
    lake._workspace.store.remove([broken.current().files()[0].path])
    for _ in range(2):
        assert MaintenanceWorker(lake._workspace, POLICY).run_pass()
        assert (broken.version, due.version) == (4, 5)
    with pytest.raises(Unavailable):
        broken.to_arrow()


def test_pass_leaves_a_tenant_that_another_worker_maintains(lake: Lake) -> None:
    ds = with_files(lake, "demo.due", 4)
    second: list[bool] = []

    def interfere() -> None:
        if not second:
            second.append(MaintenanceWorker(lake._workspace, POLICY).run_pass())
            assert ds.version == 4

    with failpoints.armed("stage.synced", interfere):
        MaintenanceWorker(lake._workspace, POLICY).run_pass()
    assert (second, ds.version) == ([True], 5)


def test_worker_that_lost_its_claim_cannot_commit(lake: Lake) -> None:
    ds = with_files(lake, "demo.due", 4)
    before = rows_by_id(ds)
    second: list[bool] = []

    def interfere() -> None:
        if not second:
            second.append(True)
            set_clock(lake, minutes=6)
            MaintenanceWorker(lake._workspace, POLICY).run_pass()
            assert ds.version == 5

    with failpoints.armed("stage.synced", interfere):
        MaintenanceWorker(lake._workspace, POLICY).run_pass()
    assert (ds.version, rows_by_id(ds)) == (5, before)
    assert on_disk(ds) == listed(ds)


def test_pass_executes_short_steps_only_while_runs_wait(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_MAX_BUSY_STEP_BYTES", 40_000)
    large = lake.create("demo.a_large", table(*range(40_000)))
    large.delete(list(range(1, 5001)))
    small = with_files(lake, "demo.small", 4)
    waiting = [True]
    worker = MaintenanceWorker(lake._workspace, POLICY, is_busy=lambda: bool(waiting))
    assert not worker.run_pass()
    assert (large.version, small.version) == (2, 5)
    waiting.clear()
    assert worker.run_pass()
    assert (large.version, small.version) == (3, 5)


def test_pass_ends_before_the_next_step_while_runs_wait(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_MAX_BUSY_STEP_BYTES", 1000)
    lake._workspace.file_sizing = SMALL_FILES
    ds = many_files(lake)
    worker = MaintenanceWorker(lake._workspace, POLICY, is_busy=lambda: ds.version > 21)
    assert not worker.run_pass()
    assert ds.version == 22
    assert not worker.run_pass()
    assert ds.version == 22


@pytest.mark.parametrize("cluster_by", [(), ("k",)])
def test_close_stops_a_step_at_once_and_leaves_nothing(lake: Lake, cluster_by: tuple[str, ...]) -> None:
    ds = many_files(lake, cluster_by=cluster_by)
    lake._workspace.file_sizing = SMALL_FILES
    worker, has_begun, is_closing = MaintenanceWorker(lake._workspace, POLICY), threading.Event(), threading.Event()

    def hold() -> None:
        has_begun.set()
        assert is_closing.wait(60)

    with failpoints.armed("stage.begun", hold):
        worker.start()
        assert has_begun.wait(60)
        closing = threading.Thread(target=_then(is_closing.set, worker))
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
    assert ds.version == 21
    assert on_disk(ds) == listed(ds)
    assert worker.passes == 0


def _then(release: Callable[[], object], worker: MaintenanceWorker) -> Callable[[], None]:
    def close() -> None:
        worker._stop.set()
        release()
        worker.close()

    return close


def test_urgent_pass_visits_datasets_with_many_new_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_URGENT_FACTOR", 2)  # of 4 files
    edited, other = lake.create("demo.edited", table(*range(100))), with_files(lake, "demo.other", 3)
    worker = MaintenanceWorker(lake._workspace, POLICY)
    assert worker.run_pass()
    other.append(table(4))
    for _ in range(2):
        for row_id in range(1, 8):
            edited.update([row_id], table(row_id))
        assert worker.run_pass(urgent=True)
        assert edited.history(1)[0].operation == "update"
        edited.append(table(200))
        assert worker.run_pass(urgent=True)
        assert edited.history(1)[0].operation == "compact"
    assert other.version == 4, "left to a complete pass"
    assert worker.run_pass()
    assert other.version == 5


def test_thread_repeats_passes_until_closed(lake: Lake) -> None:
    ds = with_files(lake, "demo.due", 4)
    worker, has_compacted = MaintenanceWorker(lake._workspace, POLICY), threading.Event()
    worker.on_step(lambda _result, _seconds: has_compacted.set())
    worker.start()
    try:
        assert has_compacted.wait(60)
    finally:
        worker.close()
    assert ds.version == 5
