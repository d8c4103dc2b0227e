"""Test dataset merges with concurrent writers: no duplicate keys, no lost rows, no starvation."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from penstock import failpoints
from penstock.catalog import dataset_locks
from penstock.core.caller import Role
from penstock.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Unsupported
from penstock.lake import Dataset, Lake
from penstock.service.datasets import commit_retry
from support.workspaces import WorkspaceFixture


def rows_by_id(ds: Dataset) -> dict[int, str]:
    """Return the words by id; check that ids and row ids are unique."""
    read = ds.to_arrow(row_ids=True)
    assert len(set(read["rowid"].to_pylist())) == read.num_rows == ds.num_rows
    ids = read["id"].to_pylist()
    assert [n for n, count in Counter(ids).items() if count > 1] == []
    return dict(zip(ids, read["word"].to_pylist(), strict=True))


@pytest.mark.parametrize("engines", [["pyarrow"] * 6, ["pyarrow", "duckdb"] * 3], ids=["pyarrow", "mixed"])
def test_merge_concurrent_writers_insert_each_new_key_once(workspace: WorkspaceFixture, engines: list[str]) -> None:
    keys = list(range(100, 150))
    with workspace.open() as lake:
        lake.create("demo.numbers", {"id": [1, 2], "word": ["one", "two"]})
    outcomes = workspace.race(
        "merge_keys", [["demo.numbers", keys, writer, engine] for writer, engine in enumerate(engines)]
    )
    assert "merged" in outcomes
    assert set(outcomes) <= {"merged", "stale_version", "dataset_locked"}
    with workspace.open() as lake:
        rows = rows_by_id(lake.dataset("demo.numbers"))
        assert set(rows) == {1, 2, *keys}
        last = lake.dataset("demo.numbers").history()[0]
        winners = {rows[key] for key in keys}
        assert len(winners) == 1, "the rows of one key set are those of one writer"
        assert last.operation == "merge"


def before_commit(action: Callable[[], object]) -> AbstractContextManager[None]:
    """Run an action once, right before the next commit."""
    pending = [action]
    return failpoints.armed("stage.synced", lambda: pending and pending.pop()())


def test_merge_is_rebased_over_rows_with_other_keys(three_rows: Dataset) -> None:
    with before_commit(lambda: three_rows.append({"id": [50], "word": ["fifty"]})):
        merged = three_rows.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id")
    assert merged.stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 5}
    assert rows_by_id(three_rows) == {1: "one", 2: "zwei", 3: "three", 9: "neun", 50: "fifty"}
    assert [v.operation for v in three_rows.history()] == ["merge", "append", "create"]


def test_merge_is_repeated_over_rows_with_the_same_keys(three_rows: Dataset) -> None:
    with before_commit(lambda: three_rows.append({"id": [9], "word": ["first"]})):
        merged = three_rows.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id")
    assert merged.stats == {"inserted": 0, "updated": 2, "deleted": 0, "total": 4}
    assert rows_by_id(three_rows) == {1: "one", 2: "zwei", 3: "three", 9: "neun"}


def test_merge_insert_is_repeated_when_a_matched_row_is_deleted(three_rows: Dataset) -> None:
    others = {"id": [1, 3], "word": ["one", "three"]}
    with before_commit(lambda: three_rows.merge(others, "id", "full_merge")):
        merged = three_rows.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id", "insert")
    assert merged.stats == {"inserted": 2, "updated": 0, "deleted": 0, "total": 4}
    assert rows_by_id(three_rows) == {1: "one", 2: "zwei", 3: "three", 9: "neun"}


def test_full_merge_deletes_rows_committed_meanwhile(three_rows: Dataset) -> None:
    with before_commit(lambda: three_rows.append({"id": [50], "word": ["fifty"]})):
        merged = three_rows.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id", "full_merge")
    assert merged.stats == {"inserted": 1, "updated": 1, "deleted": 3, "total": 2}
    assert rows_by_id(three_rows) == {2: "zwei", 9: "neun"}


def test_merge_is_repeated_after_a_schema_change(three_rows: Dataset) -> None:
    with before_commit(lambda: three_rows.alter(add={"more": "int64"})):
        three_rows.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id")
    assert three_rows.schema.names == ["id", "word", "more"]
    assert rows_by_id(three_rows) == {1: "one", 2: "zwei", 3: "three", 9: "neun"}


def test_merge_last_attempt_locks_out_frequent_writers(three_rows: Dataset) -> None:
    """Another writer commits a key of the source before every attempt; the last attempt locks the dataset."""
    late_threads: list[threading.Thread] = []
    attempts = 0

    def overtake() -> None:
        nonlocal attempts
        if threading.current_thread() is not threading.main_thread():
            return  # the other writer's own commit
        attempts += 1
        other = threading.Thread(target=three_rows.append, args=({"id": [1000 + attempts], "word": ["steady"]},))
        other.start()
        if attempts < commit_retry.MAX_ATTEMPTS:
            other.join()
        else:
            late_threads.append(other)  # it cannot commit while the dataset is locked

    source = {"id": [2, *range(1000, 1010)], "word": ["zwei"] + ["merged"] * 10}
    with failpoints.armed("stage.synced", overtake):
        merged = three_rows.merge(source, "id")
        (last,) = late_threads
        last.join()
    assert attempts == commit_retry.MAX_ATTEMPTS
    assert merged.stats["updated"] == 1 + commit_retry.MAX_ATTEMPTS - 1
    assert [v.operation for v in three_rows.history()][:2] == ["append", "merge"]


def test_dataset_lock_expires_without_renewal(three_rows: Dataset) -> None:
    lake = three_rows._lake
    lock_arguments = lake._workspace.db, lake.caller, three_rows.id
    assert dataset_locks.lock_dataset(*lock_arguments, uuid4(), timedelta(milliseconds=300))
    assert not dataset_locks.lock_dataset(*lock_arguments, uuid4(), timedelta(seconds=1)), "one holder at a time"
    three_rows.append({"id": [4], "word": ["four"]})  # waits for it
    assert three_rows.num_rows == 4


def test_merge_same_idempotency_key_returns_the_first_receipt(three_rows: Dataset) -> None:
    rows = {"id": [3, 4], "word": ["drei", "vier"]}
    first = three_rows.merge(rows, "id", idempotency_key="k")
    repeated = three_rows.merge(rows, "id", idempotency_key="k")
    assert first.receipt is not None
    assert repeated.receipt is not None
    assert repeated.receipt.replayed
    assert repeated.stats == first.stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 4}
    assert three_rows.version == 2
    with pytest.raises(AlreadyExists, match="another request"):
        three_rows.merge(rows, "id", "insert", idempotency_key="k")
    with pytest.raises(AlreadyExists, match="another request"):
        three_rows.merge({"id": [3, 4], "word": ["drei", "x"]}, "id", idempotency_key="k")


def test_merge_without_effect_creates_no_version(three_rows: Dataset) -> None:
    for strategy, rows in (("insert", {"id": [1], "word": ["x"]}), ("update", {"id": [77], "word": ["x"]})):
        assert three_rows.merge(rows, "id", strategy).stats["total"] == 3
    assert three_rows.version == 1


def test_merge_dry_run_returns_result_and_writes_nothing(three_rows: Dataset, lake: Lake) -> None:
    three_rows.append({"id": [100], "word": ["far"]})
    listed = sorted(lake._workspace.store.files(three_rows.current().snapshot.location))
    result = three_rows.merge({"id": [2, 9], "word": ["zwei", "neun"]}, "id", dry_run=True)
    assert result.stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 5}
    assert (len(result.rewritten), result.dropped, result.unchanged_files, result.receipt) == (1, (), 1, None)
    assert result.rewritten[0] == three_rows.current().files()[0].path
    assert sorted(lake._workspace.store.files(three_rows.current().snapshot.location)) == listed
    assert three_rows.version == 2


def test_merge_files_without_a_match_are_not_opened(three_rows: Dataset, lake: Lake) -> None:
    three_rows.append({"id": [100], "word": ["far"]})
    other_file = three_rows.current().files()[1]
    path = Path(lake._workspace.store.locate(other_file.path))
    content = path.read_bytes()
    path.write_bytes(b"not a Parquet file")
    three_rows.merge({"id": [2], "word": ["zwei"]}, "id", engine="pyarrow")
    three_rows.merge({"id": [3], "word": ["drei"]}, "id", engine="duckdb")
    path.write_bytes(content)
    assert rows_by_id(three_rows) == {1: "one", 2: "zwei", 3: "drei", 100: "far"}
    assert other_file.path in [file.path for file in three_rows.current().files()]


def test_merge_requires_write_permission(three_rows: Dataset, lake: Lake, other_tenant: Lake) -> None:
    rows = {"id": [1], "word": ["x"]}
    with pytest.raises(NotFound):
        Dataset(other_tenant, three_rows.id).merge(rows, "id")
    viewer = Lake(lake._workspace, replace(lake.caller, role=Role.VIEWER), lake._folder)
    with pytest.raises(Forbidden):
        Dataset(viewer, three_rows.id).merge(rows, "id")
    with pytest.raises(Forbidden):
        Dataset(viewer, three_rows.id).merge(rows, "id", dry_run=True)
    sealed = lake.create("demo.sealed", rows, read_only=True)
    with pytest.raises(Unsupported, match="read-only"):
        sealed.merge(rows, "id")


def test_merge_unsupported_type_or_engine_is_invalid(three_rows: Dataset) -> None:
    with pytest.raises(Invalid, match="cast"):
        three_rows.merge(pa.table({"id": [1], "word": pa.array([1], pa.time32("s"))}), "id")
    with pytest.raises(Invalid, match="Unknown engine 'nonsense'"):
        three_rows.merge({"id": [1], "word": ["x"]}, "id", engine="nonsense")


def test_merge_failure_leaves_no_files(three_rows: Dataset, lake: Lake) -> None:
    with pytest.raises(Invalid):
        three_rows.merge({"id": [1, 1], "word": ["x", "y"]}, "id")

    def stop() -> None:
        raise Conflict("stopped", "injected")

    with failpoints.armed("stage.synced", stop), pytest.raises(Conflict):
        three_rows.merge({"id": [1, 9], "word": ["x", "y"]}, "id")
    live_paths = {file.path for file in three_rows.current().files()}
    assert {path for path, _ in lake._workspace.store.files(three_rows.current().snapshot.location)} == live_paths
    assert not list(lake._workspace.store.folders(f"scratch/{lake.caller.tenant}"))


def test_merge_in_a_transaction_is_committed_atomically(three_rows: Dataset, lake: Lake) -> None:
    log = lake.create("demo.log", {"text": ["begun"]})
    with lake.transaction() as tx:
        result = tx.merge(three_rows, {"id": [3, 4], "word": ["drei", "vier"]}, "id")
        tx.append(log, {"text": ["merged"]})
        assert three_rows.version == 1
    assert result.stats == {"inserted": 1, "updated": 1, "deleted": 0, "total": 4}
    assert rows_by_id(three_rows) == {1: "one", 2: "two", 3: "drei", 4: "vier"}
    assert (three_rows.version, log.version) == (2, 2)
    with pytest.raises(Conflict), lake.transaction() as tx:
        tx.merge(three_rows, {"id": [7], "word": ["seven"]}, "id")
        tx.append(log, {"text": ["lost"]})
        three_rows.append({"id": [8], "word": ["eight"]})
    assert (three_rows.version, log.version) == (3, 2)


def test_full_merge_of_a_dataset_emptied_meanwhile_succeeds(three_rows: Dataset) -> None:
    empty = pa.table({"id": pa.array([], pa.int64()), "word": pa.array([], pa.string())})
    with before_commit(lambda: three_rows.overwrite(empty)):
        merged = three_rows.merge({"id": [9], "word": ["nine"]}, "id", "full_merge")
    assert merged.stats == {"inserted": 1, "updated": 0, "deleted": 0, "total": 1}


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
def test_merge_key_column_may_be_not_null(lake: Lake, engine: str, strategy: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
    ds = lake.create("demo.required", pa.table({"id": [1, 2], "word": ["one", "two"]}, schema=schema))
    merged = ds.merge({"id": [2, 3], "word": ["zwei", "drei"]}, "id", strategy, engine=engine)
    assert merged.stats["total"] == ds.num_rows == len(rows_by_id(ds))
    assert not ds.schema.field("id").nullable


def test_merge_equivalent_arguments_match_the_idempotency_key(three_rows: Dataset) -> None:
    rows = {"id": [3, 4], "word": ["drei", "vier"]}
    three_rows.merge(rows, "id", idempotency_key="k", engine="pyarrow")
    repeated = three_rows.merge(rows, [" id"], idempotency_key="k", engine="duckdb", batch_rows=7)
    assert repeated.receipt is not None
    assert repeated.receipt.replayed


def test_writes_of_spark_frame_with_instants_store_utc(sqlite_workspace: WorkspaceFixture, spark: Any) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") != "UTC"
    frame = spark.sql(
        "SELECT 1 AS id, TIMESTAMP '2026-02-22 10:00:00Z' AS at, named_struct('at', TIMESTAMP '1582-10-10 00:00:00Z') AS s"
        " UNION ALL SELECT 2, NULL, named_struct('at', CAST(NULL AS TIMESTAMP))"
    )
    rows = [
        {"id": 1, "at": datetime(2026, 2, 22, 10, tzinfo=UTC), "s": {"at": datetime(1582, 10, 10, tzinfo=UTC)}},
        {"id": 2, "at": None, "s": {"at": None}},
    ]
    with sqlite_workspace.open() as lake:
        dataset = lake.create("demo.instants", frame)
        assert dataset.schema.field("at").type == pa.timestamp("us", "UTC")
        assert dataset.to_arrow().sort_by("id").to_pylist() == rows
        dataset.append(frame)
        assert dataset.num_rows == 4
        dataset.overwrite(frame)
        assert dataset.to_arrow().sort_by("id").to_pylist() == rows
        with pytest.raises(Invalid, match="no luck"):
            dataset.append(frame.selectExpr("coalesce(CAST(raise_error('no luck') AS INT), 1) AS id", "at", "s"))
