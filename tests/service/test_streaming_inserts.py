"""Each insert is atomic and durable and gets its own result, also in a group commit."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from faults.failing_parts import Countdown, failing_sql
from faults.group_commit_writes import batch, commit_as_group, start_insert
from penstock import failpoints
from penstock.catalog import dataset_locks
from penstock.core.caller import Role
from penstock.errors import (
    AlreadyExists,
    CommitStateUnknown,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
    Unsupported,
)
from penstock.lake import Dataset, Lake
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.streaming_inserts import InsertResult, InsertService, InsertStream
from penstock.service.workspace import Workspace
from penstock.storage.data_files import FileSizing
from support.workspaces import WorkspaceFixture

LARGE = {"small_rows": 0}


@pytest.fixture
def inserts(opened_workspace: Workspace) -> Iterator[InsertService]:
    with closing(InsertService(opened_workspace)) as inserts:
        yield inserts


def by_row_id(ds: Dataset) -> dict[int, int]:
    read = ds.to_arrow(row_ids=True)
    return dict(zip(read["rowid"].to_pylist(), read["id"].to_pylist(), strict=True))


def stored(lake: Lake, ds: Dataset) -> int:
    return len(list(lake._workspace.store.files(ds.current().snapshot.location)))


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
def test_insert_creates_one_version_and_returns_row_ids(
    opened_workspace: Workspace, three_rows: Dataset, sizes: dict[str, int]
) -> None:
    with closing(InsertService(opened_workspace, **sizes)) as inserts:
        result = start_insert(inserts, three_rows, batch(10, 11), batch(), batch(12)).commit().result()
    assert (result.rows, result.first_row_id) == (3, 4)
    assert result.receipt is not None
    assert (result.receipt.version, result.receipt.written[0].inserted, result.receipt.written[0].rows) == (2, 3, 6)
    assert [by_row_id(three_rows)[result.first_row_id + i] for i in range(3)] == [10, 11, 12]


def test_insert_without_rows_creates_no_version(inserts: InsertService, three_rows: Dataset) -> None:
    result = start_insert(inserts, three_rows, batch(), batch()).commit().result()
    assert (result.rows, result.first_row_id, three_rows.version) == (0, None, 1)


def test_insert_into_dataset_without_row_ids_returns_none(inserts: InsertService, lake: Lake) -> None:
    ds = lake.create("demo.plain", pa.table({"id": [1], "word": ["one"]}), row_ids=False)
    assert start_insert(inserts, ds, batch(2, 3)).commit().result().first_row_id is None
    assert ds.num_rows == 3


def test_concurrent_inserts_return_correct_results(inserts: InsertService, three_rows: Dataset, soak: bool) -> None:
    times = 200 if soak else 8

    def work(worker: int) -> list[tuple[list[int], InsertResult]]:
        inserted = []
        for i in range(times):
            ids = [10_000 * (worker + 1) + 3 * i + n for n in range(1 + (worker + i) % 3)]
            result = start_insert(inserts, three_rows, *(batch(id) for id in ids)).commit().result()
            assert result.receipt is not None
            assert (
                inserts.latest_snapshot(three_rows._lake.caller, three_rows.id).version.number >= result.receipt.version
            )
            inserted.append((ids, result))
        return inserted

    with ThreadPoolExecutor(32) as pool:
        inserted = [future for inserted in pool.map(work, range(32)) for future in inserted]
    values = by_row_id(three_rows)
    for ids, result in inserted:
        assert result.rows == len(ids)
        assert result.first_row_id is not None
        assert [values.pop(result.first_row_id + i) for i in range(result.rows)] == ids
    assert sorted(values.values()) == [1, 2, 3], "a row was inserted twice"
    versions = three_rows.history(limit=100_000)
    assert sum(version.counts.inserted for version in versions) == three_rows.num_rows
    assert len(versions) - 1 < len(inserted), "no inserts shared a commit"


def test_queued_inserts_share_version_and_get_own_receipts(
    inserts: InsertService, lake: Lake, three_rows: Dataset
) -> None:
    rows = {"a": [10], "b": [20, 21], "c": [], "d": [30, 31, 32]}
    waiting = [start_insert(inserts, three_rows, batch(*ids), key=key) for key, ids in rows.items()]
    result = [future.result() for future in commit_as_group(start_insert(inserts, three_rows), *waiting)]
    assert (three_rows.version, stored(lake, three_rows)) == (2, 2)
    newest = three_rows.history()[0]
    assert (newest.counts.inserted, newest.rows) == (6, 9)
    assert [(insert.rows, insert.first_row_id) for insert in result] == [
        (1, 4),
        (2, 5),
        (0, None),
        (3, 7),
    ]
    assert [by_row_id(three_rows)[n] for n in range(4, 10)] == [10, 20, 21, 30, 31, 32]
    assert [insert.receipt and insert.receipt.key for insert in result] == list(rows)

    # each insert can be repeated through any entry point
    for first, (key, ids) in zip(result, rows.items(), strict=True):
        repeated = start_insert(inserts, three_rows, batch(*ids), key=key).commit().result()
        assert repeated == first
        assert repeated.receipt is not None
        assert repeated.receipt.replayed
        assert three_rows.append(pa.table(batch(*ids)), idempotency_key=key) == first.receipt
    assert (three_rows.version, stored(lake, three_rows)) == (2, 2)


def test_group_commit_respects_max_group_size(opened_workspace: Workspace, three_rows: Dataset) -> None:
    with closing(InsertService(opened_workspace, max_group_size=3)) as inserts:
        waiting = [start_insert(inserts, three_rows, batch(n)) for n in range(10, 17)]
        versions = [
            future.result().receipt.version  # type: ignore[union-attr]
            for future in commit_as_group(start_insert(inserts, three_rows), *waiting)
        ]
    assert versions == [2, 2, 2, 3, 3, 3, 4]


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
def test_used_key_in_group_affects_only_its_insert(
    opened_workspace: Workspace, lake: Lake, three_rows: Dataset, sizes: dict[str, int]
) -> None:
    with closing(InsertService(opened_workspace, **sizes)) as inserts:
        first = start_insert(inserts, three_rows, batch(10, 11), key="k").commit().result()
        files = stored(lake, three_rows)
        new, replayed, reused, other = commit_as_group(
            start_insert(inserts, three_rows),
            start_insert(inserts, three_rows, batch(20)),
            start_insert(inserts, three_rows, batch(10), batch(11), key="k"),  # other batches with the same rows
            start_insert(inserts, three_rows, batch(12), key="k"),
            start_insert(inserts, three_rows, batch(30), key="other"),
        )
        repeated = replayed.result()
        assert repeated == first
        assert repeated.receipt is not None
        assert repeated.receipt.replayed
        with pytest.raises(AlreadyExists) as raised:
            reused.result()
        assert raised.value.reason == "key_reused"
        for result, ids in ((new.result(), [20]), (other.result(), [30])):
            assert result.first_row_id is not None
            assert [by_row_id(three_rows)[result.first_row_id]] == ids
    assert sorted(by_row_id(three_rows).values()) == [1, 2, 3, 10, 11, 20, 30]
    assert stored(lake, three_rows) == files + (2 if sizes else 1)


def test_duplicate_key_in_queue_commits_once(inserts: InsertService, three_rows: Dataset) -> None:
    waiting = [start_insert(inserts, three_rows, batch(n), key=key) for n, key in ((10, "k"), (20, "other"), (10, "k"))]
    first, _, repeated = [future.result() for future in commit_as_group(start_insert(inserts, three_rows), *waiting)]
    assert first == repeated
    assert first.receipt is not None
    assert repeated.receipt is not None
    assert (first.receipt.replayed, repeated.receipt.replayed) == (False, True)
    assert sorted(by_row_id(three_rows).values()) == [1, 2, 3, 10, 20]


def test_failing_insert_of_group_does_not_affect_others(inserts: InsertService, three_rows: Dataset) -> None:
    waiting = [start_insert(inserts, three_rows, batch(n)) for n in (10, 20, 30)]
    failing = [True, False, True, False]  # the group, then its second insert

    def choke() -> None:
        if failing.pop(0):
            raise ZeroDivisionError("injected")

    with failpoints.armed("stage.opened", choke):
        futures = commit_as_group(start_insert(inserts, three_rows), *waiting)
        errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [type(None), ZeroDivisionError, type(None)]
    assert sorted(by_row_id(three_rows).values()) == [1, 2, 3, 10, 30]


BAD: dict[str, tuple[pa.RecordBatch, str]] = {
    "a missing value": (batch(7, None), "null_in_required_column"),
    "a wild offset": (
        pa.RecordBatch.from_arrays(
            [
                pa.array([1, 2], pa.int64()),
                pa.StringArray.from_buffers(2, pa.array([0, 65_535, 1], pa.int32()).buffers()[1], pa.py_buffer(b"x")),
            ],
            ["id", "word"],
        ),
        "broken_batch",
    ),
}


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("bad", BAD)
def test_invalid_batch_discards_insert(
    opened_workspace: Workspace, lake: Lake, bad: str, sizes: dict[str, int]
) -> None:
    ds = lake.create("demo.strict", schema=pa.schema([pa.field("id", pa.int64(), False), ("word", pa.string())]))
    opened_workspace.file_sizing = FileSizing(group_rows=2)
    rows, reason = BAD[bad]
    with closing(InsertService(opened_workspace, **sizes)) as inserts:
        insert = start_insert(inserts, ds, batch(1, 2, 3))
        with pytest.raises(Invalid) as raised:
            insert.add(rows)
        assert raised.value.reason == reason
        with pytest.raises(AssertionError):
            insert.commit()
    assert (ds.version, stored(lake, ds)) == (1, 0)


def test_begin_of_invalid_insert_is_rejected(inserts: InsertService, lake: Lake, three_rows: Dataset) -> None:
    caller, schema = lake.caller, batch().schema
    with pytest.raises(Forbidden):
        inserts.begin(replace(caller, role=Role.VIEWER), three_rows.id, schema)
    with pytest.raises(NotFound):
        inserts.begin(replace(caller, tenant=uuid4()), three_rows.id, schema)
    with pytest.raises(Unsupported, match="read-only"):
        fixed = lake.create("demo.fixed", pa.table(batch(1)), read_only=True)
        inserts.begin(caller, fixed.id, schema)
    with pytest.raises(Invalid, match="word"):
        inserts.begin(caller, three_rows.id, pa.schema([("id", pa.int64()), ("word", pa.date32())]))
    with pytest.raises(Invalid, match="idempotency key"):
        inserts.begin(caller, three_rows.id, schema, key="")


def test_queued_inserts_with_different_schemas_all_commit(inserts: InsertService, three_rows: Dataset) -> None:
    before = [start_insert(inserts, three_rows, batch(n)) for n in (10, 20)]
    three_rows.alter(add={"more": "int64"})
    after = start_insert(inserts, three_rows, batch(30).append_column("more", pa.array([5])))
    result = [
        future.result() for future in commit_as_group(start_insert(inserts, three_rows), before[0], after, before[1])
    ]
    assert [future.receipt and future.receipt.version for future in result] == [3, 4, 3]
    rows = three_rows.to_arrow(["id", "more"], "id >= 10").to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 10, "more": None},
        {"id": 20, "more": None},
        {"id": 30, "more": 5},
    ]


def test_queued_inserts_into_dropped_dataset_each_fail(inserts: InsertService, lake: Lake, three_rows: Dataset) -> None:
    waiting = [start_insert(inserts, three_rows, batch(n)) for n in (10, 20)]
    first = start_insert(inserts, three_rows)
    location = three_rows.current().snapshot.location
    three_rows.drop()
    futures = [insert.commit() for insert in (first, *waiting)]
    errors = [insert.exception() for insert in futures]
    assert [type(insert) for insert in errors] == [NotFound] * 3
    assert len({id(error) for error in errors}) == 3, "one error must not be raised in several threads"
    assert len(list(lake._workspace.store.files(location))) == 1


def test_insert_waits_for_dataset_lock(inserts: InsertService, lake: Lake, three_rows: Dataset) -> None:
    db, holder = lake._workspace.db, uuid4()
    assert dataset_locks.lock_dataset(db, lake.caller, three_rows.id, holder, timedelta(minutes=1))
    future = start_insert(inserts, three_rows, batch(10)).commit()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.3)
    dataset_locks.unlock_dataset(db, lake.caller, three_rows.id, holder)
    assert future.result().first_row_id == 4


def test_inserts_of_different_authors_create_separate_versions(
    inserts: InsertService, lake: Lake, three_rows: Dataset
) -> None:
    bob = replace(lake.caller, user=uuid4(), name="bob")
    other_insert = inserts.begin(bob, three_rows.id, batch().schema)
    other_insert.add(batch(20))
    result = [
        future.result()
        for future in commit_as_group(
            start_insert(inserts, three_rows), start_insert(inserts, three_rows, batch(10)), other_insert
        )
    ]
    authors = {future.number: future.author for future in three_rows.history()}
    assert [authors[future.receipt.version] for future in result if future.receipt] == [
        lake.caller.name,
        "bob",
    ]


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("ending", ["discard", "cancel"])
def test_discarded_or_cancelled_insert_leaves_no_files(
    opened_workspace: Workspace, lake: Lake, three_rows: Dataset, sizes: dict[str, int], ending: str
) -> None:
    opened_workspace.file_sizing = FileSizing(group_rows=2)
    with closing(InsertService(opened_workspace, **sizes)) as inserts:
        insert = start_insert(inserts, three_rows, batch(10, 11, 12))
        other = start_insert(inserts, three_rows, batch(20))
        if ending == "discard":
            insert.discard()
            insert.discard()
            assert other.commit().result().rows == 1
        else:  # the client disconnects while its insert waits

            def later(_: object) -> None:
                future = insert.commit()
                assert future.cancel() or sizes

            first = other.commit()
            first.add_done_callback(later)
            assert first.result().rows == 1
    if not (ending == "cancel" and sizes):  # a large insert is not queued, so it may have begun
        assert sorted(by_row_id(three_rows).values()) == [1, 2, 3, 20]
    assert stored(lake, three_rows) == three_rows.version


def test_discard_after_commit_has_no_effect(inserts: InsertService, three_rows: Dataset) -> None:
    insert = start_insert(inserts, three_rows, batch(10))
    future = insert.commit()
    insert.discard()
    assert future.result().rows == 1
    insert.discard()
    assert sorted(by_row_id(three_rows).values()) == [1, 2, 3, 10]


@pytest.mark.parametrize("rows_in_a_batch", [1, 7, 100])
def test_long_stream_keeps_order_over_many_files(
    opened_workspace: Workspace, lake: Lake, three_rows: Dataset, rows_in_a_batch: int
) -> None:
    opened_workspace.file_sizing = FileSizing(file_bytes=1, group_rows=600)
    total = 2_100
    with closing(InsertService(opened_workspace, small_rows=50)) as inserts:
        insert = start_insert(inserts, three_rows)
        for start in range(0, total, rows_in_a_batch):
            insert.add(batch(*range(1000 + start, 1000 + start + rows_in_a_batch)))
        assert insert.rows == total
        result = insert.commit().result()
    values = by_row_id(three_rows)
    assert result.first_row_id is not None
    assert [values[result.first_row_id + i] for i in range(total)] == list(range(1000, 1000 + total))
    assert stored(lake, three_rows) == len(three_rows.current().files()) > 3


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("row_ids", [True, False])
def test_insert_in_transaction_assigns_row_ids_before_commit(
    opened_workspace: Workspace, lake: Lake, sizes: dict[str, int], row_ids: bool
) -> None:
    ds = lake.create("demo.either", pa.table(batch(1, 2, 3)), row_ids=row_ids)
    opened_workspace.file_sizing = FileSizing(file_bytes=1, group_rows=2)
    with (
        closing(InsertService(opened_workspace, **sizes)) as inserts,
        StagingArea(opened_workspace, lake.caller) as stage,
    ):
        working = DatasetOverlay(opened_workspace, lake.caller, ds.current().snapshot)
        result = []
        for ids in ([10, 11, 12], [20]):
            insert = inserts.begin(lake.caller, ds.id, batch().schema, transaction=(stage, working))
            insert.add(batch(*ids))
            change, inserted = insert.change()
            working.apply(change)
            insert.discard()
            result.append(inserted)
        dropped = inserts.begin(lake.caller, ds.id, batch().schema, transaction=(stage, working))
        dropped.add(batch(40, 41, 42))
        dropped.discard()
        outside = ds.append(pa.table(batch(30)))
        stage.commit([working.change()])
    assert [insert.receipt for insert in result] == [None, None]
    assert sorted(id for id in ds.to_arrow()["id"].to_pylist()) == [1, 2, 3, 10, 11, 12, 20, 30]
    assert stored(lake, ds) == len(ds.current().files())
    if row_ids:
        firsts = (result[0].first_row_id, result[1].first_row_id, outside.written[0].first_row_id)
        assert [by_row_id(ds)[first] for first in firsts if first] == [10, 20, 30]
    else:
        assert [insert.first_row_id for insert in result] == [None, None]


@pytest.mark.parametrize("sizes", [{}, LARGE], ids=["small", "large"])
def test_close_waits_for_submitted_inserts_and_rejects_new_ones(
    opened_workspace: Workspace, lake: Lake, three_rows: Dataset, sizes: dict[str, int]
) -> None:
    inserts = InsertService(opened_workspace, **sizes)
    late = start_insert(inserts, three_rows, batch(40))
    futures = [start_insert(inserts, three_rows, batch(n)).commit() for n in (10, 20, 30)]
    inserts.close()
    assert all(future.done() for future in futures)
    assert sorted(by_row_id(three_rows).values()) == [1, 2, 3, 10, 20, 30]
    with pytest.raises(Unavailable) as raised:
        late.commit().result()
    assert raised.value.reason == "shutting_down"
    assert stored(lake, three_rows) == three_rows.version


COMMITTED = ("commit.sent", "commit.done")


@pytest.mark.parametrize("step", failpoints.STEPS)
def test_failure_at_any_step_of_group_commit_is_atomic(
    inserts: InsertService, lake: Lake, three_rows: Dataset, step: str
) -> None:
    """The failure affects the group and then each insert; rejected inserts can be repeated."""

    def send() -> list[InsertStream]:
        return [start_insert(inserts, three_rows, batch(n, n + 1), key=f"k{n}") for n in (10, 20, 30)]

    with ExitStack() as stack:
        futures = commit_as_group(
            start_insert(inserts, three_rows),
            *send(),
            before_group=lambda: stack.enter_context(failpoints.armed(step, fail)),
        )
        outcomes = [future.exception() for future in futures]
    values = set(by_row_id(three_rows).values())
    assert values in ({1, 2, 3}, {1, 2, 3, 10, 11, 20, 21, 30, 31})
    assert (len(values) > 3) == (step in COMMITTED)
    if step == "commit.sent":  # the response to COMMIT was lost; the receipts show the outcome
        assert outcomes == [None] * 3
    for future, n in zip(commit_as_group(start_insert(inserts, three_rows), *send()), (10, 20, 30), strict=True):
        first = future.result().first_row_id
        assert first is not None
        assert [by_row_id(three_rows)[first + i] for i in (0, 1)] == [n, n + 1]
    assert three_rows.num_rows == 9
    if step.startswith("stage."):  # after a later step the outcome is unknown, and the files are left to a sweep
        assert stored(lake, three_rows) == len(three_rows.current().files())


def fail() -> None:
    raise OSError("injected")


def test_failure_of_nth_statement_of_group_commit_is_atomic(
    inserts: InsertService, lake: Lake, three_rows: Dataset
) -> None:
    n = 0
    while three_rows.num_rows == 3:
        n += 1
        countdown = Countdown(n)
        with ExitStack() as stack:
            waiting = [start_insert(inserts, three_rows, batch(number), key=f"k{number}") for number in (10, 20)]
            sql = failing_sql(lake._workspace.db, countdown)
            futures = commit_as_group(
                start_insert(inserts, three_rows),
                *waiting,
                before_group=lambda sql=sql, stack=stack: stack.enter_context(sql),
            )  # type: ignore[misc]
            outcomes = [future.exception() for future in futures]
        assert outcomes == [None] * 2 or all(
            isinstance(e, Unavailable | Conflict | CommitStateUnknown) for e in outcomes
        )
        assert (outcomes == [None] * 2) == (three_rows.num_rows == 5)
    assert n > 8, "too few statements were seen"
    assert stored(lake, three_rows) == 2


def test_unknown_outcome_of_group_reports_each_key(inserts: InsertService, lake: Lake, three_rows: Dataset) -> None:
    def disconnect_database() -> None:
        database_failure.enter_context(failing_sql(lake._workspace.db, Countdown(1)))
        raise OSError("injected")

    with ExitStack() as database_failure, ExitStack() as stack:
        waiting = [start_insert(inserts, three_rows, batch(10), key="k"), start_insert(inserts, three_rows, batch(20))]
        futures = commit_as_group(
            start_insert(inserts, three_rows),
            *waiting,
            before_group=lambda: stack.enter_context(failpoints.armed("commit.sent", disconnect_database)),
        )
        errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [CommitStateUnknown] * 2
    keys = [error.context["idempotency_key"] for error in errors if isinstance(error, CommitStateUnknown)]
    assert keys[0] == "k"
    for key, n in zip(keys, (10, 20), strict=True):
        repeated = start_insert(inserts, three_rows, batch(n), key=key).commit().result()
        assert repeated.receipt is not None
        assert repeated.receipt.replayed
        assert by_row_id(three_rows)[repeated.first_row_id or 0] == n
    assert three_rows.num_rows == 5


_STREAM = """
import json, pathlib, sys
from contextlib import closing
import numpy as np, pyarrow as pa
from penstock.service.datasets.streaming_inserts import InsertService
from support.workspaces import WorkspaceFixture

fixture, rows = json.loads(sys.argv[1])
words = pa.array([f"word {n % 1000} and quite some text behind it" for n in range(16_000)])
with WorkspaceFixture(**fixture).open() as lake, closing(InsertService(lake._workspace)) as inserts:
    schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("amount", pa.float64())])
    ds = lake.create("demo.long", schema=schema)
    insert = inserts.begin(lake.caller, ds.id, schema)
    for start in range(0, rows, 16_000):
        ids = np.arange(start, start + 16_000)
        insert.add(pa.record_batch({"id": ids, "word": words, "amount": ids * 0.5}))
    result = insert.commit().result()
    assert (result.rows, ds.num_rows, result.first_row_id) == (rows, rows, 1)
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
figures = {name: int(status[name].split()[0]) * 1024 for name in ("VmHWM", "RssAnon", "RssFile")}
pool = pa.default_memory_pool()
figures |= {"pool": pool.bytes_allocated(), "pool_peak": pool.max_memory(), "arrow": pa.total_allocated_bytes()}
print(json.dumps(figures))
"""


def test_insert_memory_does_not_grow_with_stream(tmp_path: Path, soak: bool) -> None:
    """10 million rows with the full numbers."""
    figures = []
    tests = str(Path(__file__).parents[1])
    for rows in (1_600_000, 10_000_000) if soak else (400_000, 2_000_000):
        fixture = WorkspaceFixture.make(tmp_path / str(rows), None)
        completed = subprocess.run(
            [sys.executable, "-c", _STREAM, json.dumps([asdict(fixture), rows])],
            env={**os.environ, "PYTHONPATH": tests},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert completed.returncode == 0, completed.stderr
        figures.append(json.loads(completed.stdout))
    few, many = figures
    assert many["VmHWM"] < few["VmHWM"] + (100 << 20), f"{few}, then {many}"
