"""Compaction in steps: rows, row ids and earlier versions stay the same, also with other writers."""

import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SOAK
from penstock import failpoints
from penstock.catalog import snapshots
from penstock.core.dataset.changes import DataFile
from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.core.progress import Progress
from penstock.errors import Invalid, Unavailable
from penstock.lake import Dataset, Lake
from penstock.service.datasets import compact
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from penstock.storage.data_files import FileSizing
from support.process_scripts import SMALL_FILES
from support.workspaces import WorkspaceFixture

Rows = dict[int, tuple[Any, ...]]


@pytest.fixture
def small_files(lake: Lake) -> Lake:
    """Return a lake with a small target size, so that few rows need several steps."""
    lake._workspace.file_sizing = SMALL_FILES
    return lake


def table(*keys: int | None) -> pa.Table:
    return pa.table(
        {"k": pa.array(keys, pa.int64()), "word": pa.array([f"word {key} " * 5 for key in keys], pa.string())}
    )


def many_files(lake: Lake, count: int = 20, rows: int = 30, **options: Any) -> Dataset:
    """Create a dataset whose files all have keys of the whole range."""
    keys = np.random.default_rng(5).permutation(count * rows).tolist()
    ds = lake.create("demo.many", schema=table().schema, **options)
    for index in range(count):
        ds.append(table(*keys[index::count]))
    return ds


def rows_by_id(ds: Dataset, version: int | None = None) -> Rows:
    read = (ds.current() if version is None else ds.at(version)).to_arrow(row_ids=True)
    rows = {row.pop("rowid"): tuple(row.values()) for row in read.to_pylist()}
    assert len(rows) == read.num_rows == (ds.num_rows if version is None else ds.at(version).num_rows)
    return rows


def files_of(ds: Dataset) -> list[DataFile]:
    lake = ds._lake
    with lake._workspace.db.read(lake.caller) as tx:
        return snapshots.files(tx, ds.current().snapshot, stats=True)


def on_disk(ds: Dataset) -> set[str]:
    store = ds._lake._workspace.store
    return {path for path, _ in store.files(ds.current().snapshot.location)}


def listed(ds: Dataset) -> set[str]:
    return {file.path for version in range(1, ds.version + 1) for file in ds.at(version).files()}


def test_compact_works_in_steps_and_reports_them(small_files: Lake) -> None:
    ds = many_files(small_files)
    ds.delete([3, 4, 50])
    before, past = rows_by_id(ds), ds.version
    events: list[Progress] = []
    result = ds.compact(progress=events.append)
    assert rows_by_id(ds) == rows_by_id(ds, past) == before
    assert result.steps > 1
    assert (result.lost_steps, result.deleted_rows, result.rows) == (0, 3, len(before))
    assert (result.files_before, result.files_after) == (20, len(files_of(ds)))
    assert result.version == ds.version == past + result.steps
    assert [commit.operation for commit in result.written] == ["compact"] * result.steps
    assert {version.operation for version in ds.history(result.steps)} == {"compact"}
    assert result.bytes_after == ds.current().snapshot.version.bytes
    assert (ds.current().snapshot.version.deleted_rows, ds.current().snapshot.version.vector_files) == (0, 0)
    assert events[0] == Progress(done=0, total=len(before))
    assert events[-1] == Progress(done=len(before), total=len(before))
    repeated = ds.compact()
    assert (repeated.steps, repeated.version) == (0, result.version)
    assert on_disk(ds) == listed(ds)


def test_compact_dry_run_plans_the_steps_that_a_compaction_executes(small_files: Lake) -> None:
    ds = many_files(small_files)
    target, steps = compact.plan(*ds._target)
    assert (target.version.number, ds.version) == (21, 21)
    result = ds.compact()
    assert (result.steps, result.rows) == (len(steps), sum(step.rows for step in steps))


def test_compact_folds_the_vector_of_a_single_file(lake: Lake) -> None:
    ds = lake.create("demo.one", table(*range(10)))
    ds.delete([2])
    assert "1 deleted row in 1 file" in repr(ds)
    result = ds.compact()
    assert (result.steps, result.deleted_rows, result.files_before, result.files_after) == (1, 1, 1, 1)
    assert sorted(rows_by_id(ds)) == [1, *range(3, 11)]


def test_compact_without_row_ids_keeps_rows(small_files: Lake) -> None:
    ds = many_files(small_files, row_ids=False, cluster_by="k")
    before = sorted(ds.to_arrow()["k"].to_pylist())
    ds.compact()
    assert sorted(ds.to_arrow()["k"].to_pylist()) == before
    assert_clustered(ds, "k")


def assert_clustered(ds: Dataset, column: str) -> None:
    """Assert that the key ranges of files and row groups are disjoint and in order."""
    files = sorted(files_of(ds), key=lambda file: (file.stats[column].low is None, file.stats[column].low))
    for first, second in pairwise(files):
        assert second.stats[column].low is None or first.stats[column].high < second.stats[column].low
        assert not first.stats[column].nulls or second.stats[column].low is None, "NULL sorts last"
    for file in files:
        keys = pq.read_table(ds._lake._workspace.store.locate(file.path), columns=[column])[column].to_pylist()
        ranked = [(key is None, isinstance(key, float) and math.isnan(key), key) for key in keys]
        filled = [key for key in ranked if not key[0] and not key[1]]
        assert [key[:2] for key in ranked] == sorted(key[:2] for key in ranked)
        assert filled == sorted(filled)


def test_compact_with_cluster_key_makes_key_ranges_disjoint(small_files: Lake) -> None:
    ds = many_files(small_files, count=24, cluster_by=["k"])
    before, past = rows_by_id(ds), ds.version
    result = ds.compact()
    assert rows_by_id(ds) == rows_by_id(ds, past) == before
    assert len(files_of(ds)) > 4
    assert_clustered(ds, "k")
    assert result.rows > len(before), "several passes are needed"
    assert ds.compact().steps == 0
    group_rows = (
        pq.ParquetFile(small_files._workspace.store.locate(files_of(ds)[0].path)).metadata.row_group(0).num_rows
    )
    assert group_rows <= SMALL_FILES.group_rows


def test_compact_sorts_the_rows_of_a_single_large_file(small_files: Lake) -> None:
    keys = [*np.random.default_rng(2).permutation(70).tolist(), *[None] * 10]
    ds = small_files.create("demo.one", table(*keys[40:], *keys[:40]), cluster_by="k")
    assert len(files_of(ds)) == 1
    before = rows_by_id(ds)
    assert ds.compact().steps == 1
    assert rows_by_id(ds) == before
    assert_clustered(ds, "k")
    assert ds.compact().steps == 0


_EPOCH = datetime(1970, 1, 1)
KEYS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "bool": (pa.bool_(), lambda n: n % 2 == 0),
    "int8": (pa.int8(), lambda n: n - 100),
    "int64": (pa.int64(), lambda n: (n - 100) * 10**15),
    "float32": (pa.float32(), lambda n: (n - 100) / 8),
    "float64": (pa.float64(), lambda n: [math.nan, math.inf, -math.inf][n] if n < 3 else n / 3),
    "decimal": (pa.decimal128(38, 2), lambda n: Decimal(n - 100) * 10**30),
    "string": (pa.string(), lambda n: chr(40 + 113 * n) * (n % 4)),
    "binary": (pa.binary(), lambda n: bytes([n, 255 - n])),
    "date": (pa.date32(), lambda n: date(1950, 1, 1) + timedelta(days=n)),
    "timestamp": (pa.timestamp("us"), lambda n: _EPOCH + timedelta(seconds=n - 100)),
    "timestamp UTC": (pa.timestamp("us", "UTC"), lambda n: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(hours=n)),
}


@pytest.mark.parametrize("name", KEYS)
def test_compact_sorts_by_a_key_of_any_type(sqlite_workspace: WorkspaceFixture, name: str) -> None:
    data_type, make = KEYS[name]
    numbers = np.random.default_rng(3).permutation(200).tolist()
    keys = [None if n % 10 == 9 else make(n) for n in numbers]
    nested = pa.array([[{"x": n}] * (n % 3) for n in numbers], pa.list_(pa.struct([("x", pa.int64())])))
    rows = pa.table({"n": numbers, "key": pa.array(keys, data_type), "Nested": nested})
    with sqlite_workspace.open() as lake:
        lake._workspace.file_sizing = FileSizing(file_bytes=4_000, group_rows=20)
        ds = lake.create("demo.keys", schema=rows.schema, cluster_by="key")
        for start in range(0, 200, 20):
            ds.append(rows.slice(start, 20))
        before = repr(sorted(rows_by_id(ds).items()))
        ds.compact()
        assert repr(sorted(rows_by_id(ds).items())) == before
        if name != "bool":  # two values fit into at most two files
            assert len(files_of(ds)) > 1
            assert_clustered(ds, "key")


def test_compact_sort_raises_the_error_of_an_unreadable_file(small_files: Lake) -> None:
    ds = many_files(small_files, cluster_by="k")
    Path(small_files._workspace.store.locate(files_of(ds)[3].path)).write_bytes(b"broken")
    with pytest.raises(Unavailable) as raised:
        ds.compact()
    assert raised.value.reason == "file_unreadable"
    assert on_disk(ds) == listed(ds)


def _interferences() -> dict[str, Callable[[Dataset], object]]:
    return {
        "append": lambda ds: ds.append(table(1000)),
        "delete": lambda ds: ds.delete([1, 31, 599]),
        "update": lambda ds: ds.update([2, 580], table(2000, 2001)),
        "merge": lambda ds: ds.merge(table(5, 3000), "k", engine="pyarrow"),
        "overwrite": lambda ds: ds.overwrite(table(1, 2, 3)),
        "compact": lambda ds: ds.compact(),
        "alter": lambda ds: ds.alter(add={"more": "int64"}),
    }


@pytest.mark.parametrize("step", ["stage.begun", "stage.opened", "stage.written", "stage.synced"])
@pytest.mark.parametrize("name", _interferences())
def test_compact_overtaken_at_any_step_keeps_the_rows_of_the_other_writer(
    small_files: Lake, name: str, step: str
) -> None:
    ds = many_files(small_files, cluster_by="k" if step == "stage.opened" else ())
    after: list[Rows] = []

    def interfere() -> None:
        if not after:
            after.append({})
            _interferences()[name](ds)
            after[0] = rows_by_id(ds)

    with failpoints.armed(step, interfere):
        result = ds.compact()
    assert rows_by_id(ds) == after[0]
    assert (result.lost_steps > 0) == (name in ("overwrite", "compact"))
    assert on_disk(ds) == listed(ds)
    assert ds.compact().lost_steps == 0


def test_compact_gives_up_contended_files_after_some_steps_and_finishes_the_others(
    small_files: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "_MAX_STEP_REBASES", 1)  # as if another edit came before each attempt to commit
    ds = many_files(small_files)
    contended, deleted = files_of(ds)[0].path, iter(range(1, 31))  # the rows of the first file
    with failpoints.armed("stage.begun", once_per_step(lambda: ds.delete([next(deleted)]))):
        result = ds.compact()
    assert result.lost_steps >= 4
    assert result.steps >= 1
    assert contended in {file.path for file in files_of(ds)}, "given up"
    assert on_disk(ds) == listed(ds)


def once_per_step(action: Callable[[], object]) -> Callable[[], None]:
    """Return an action of a failpoint that runs once, although its own writes reach the same failpoint."""
    is_active: list[bool] = []

    def act_once() -> None:
        if not is_active:
            is_active.append(True)
            try:
                action()
            finally:
                is_active.pop()

    return act_once


@pytest.mark.parametrize("cluster_by", [(), ("k",)])
@pytest.mark.parametrize("stored_ids", [False, True])
def test_compact_deletes_rows_in_its_new_files_that_other_writers_have_deleted(
    lake: Lake, stored_ids: bool, cluster_by: tuple[str, ...]
) -> None:
    ds = many_files(lake, cluster_by=cluster_by)
    ds.delete([8, 100])
    if stored_ids:
        ds.compact()
        ds.update([7, *range(10, 20)], table(*range(-20, -9)))
        ds.append(table(1000))
    edits = iter(
        [
            lambda: ds.delete([1, 31, 599]),
            lambda: ds.update([2, 7], table(2000, 2001)),
            lambda: (ds.update([2], table(2002)), ds.delete([7, 30])),
        ]
    )
    before = ds.num_rows

    def edit() -> None:
        if action := next(edits, None):
            action()

    with failpoints.armed("stage.complete", once_per_step(edit)):
        result = ds.compact()
    assert result.lost_steps == 0
    assert next(edits, None) is None
    step = ds.at(result.written[0].version)
    version, files = step.snapshot.version, step.files()
    assert (version.operation, version.deleted_rows, version.vector_files) == ("compact", 6, 1)
    assert version.rows == ds.num_rows == before - 5
    assert version.rows + version.deleted_rows == sum(file.rows for file in files)
    rows = rows_by_id(ds)
    assert rows == rows_by_id(ds, version.number) == rows_by_id(ds, version.number - 1)
    assert {row_id: rows[row_id][0] for row_id in (1, 2, 7, 30, 31, 599) if row_id in rows} == {2: 2002}
    assert on_disk(ds) == listed(ds)
    ds.compact()
    assert rows_by_id(ds) == rows
    assert not ds.current().snapshot.version.vector_files


def test_compact_drops_nothing_if_a_row_of_a_small_file_moves_during_the_step(lake: Lake) -> None:
    """A row that is updated again and again is alone in its file, which each update ends."""
    ds = lake.create("demo.hot", table(*range(100)))
    for key in range(40):
        ds.update([key + 1], table(-key))
    values = iter(range(1000, 2000))
    with failpoints.armed("stage.complete", once_per_step(lambda: next(values) < 1010 and ds.update([5], table(5000)))):
        result = ds.compact()
    assert (result.steps, result.lost_steps) == (1, 0)
    assert rows_by_id(ds)[5][0] == 5000
    assert ds.num_rows == 100
    assert len(files_of(ds)) == 2


@pytest.mark.parametrize("cause", ["many rows", "without row ids", "edits rewrite"])
def test_compact_loses_a_step_whose_rows_cannot_be_marked(lake: Lake, cause: str) -> None:
    ds = many_files(lake, row_ids=cause != "without row ids")
    if cause == "edits rewrite":
        lake._workspace.edit_policy = EditPolicy(EditMode.REWRITE)
    actions = {
        "many rows": lambda: [ds.delete([30 * n + k for k in range(1, 7)]) for n in range(20)][-1] and ds.delete([7]),
        "without row ids": lambda: ds.merge(table(5), "k", engine="pyarrow"),
        "edits rewrite": lambda: ds.delete([7]),
    }
    pending = [actions[cause]]
    with failpoints.armed("stage.complete", once_per_step(lambda: pending.pop()() if pending else None)):
        result = ds.compact()
    assert (result.steps, result.lost_steps) == (1, 1)
    assert not ds.current().snapshot.version.vector_files
    assert on_disk(ds) == listed(ds)


def test_compact_stopped_by_its_progress_callback_keeps_committed_steps_and_continues(small_files: Lake) -> None:
    ds = many_files(small_files)
    before, past = rows_by_id(ds), ds.version

    def stop(_progress: Progress) -> None:
        if ds.version > past:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ds.compact(progress=stop, idempotency_key="k")
    assert ds.version == past + 1
    assert on_disk(ds) == listed(ds)
    result = ds.compact(idempotency_key="k")
    assert not result.replayed
    assert result.steps
    assert rows_by_id(ds) == before
    ds.append(table(7))
    ds.append(table(8))
    repeated = ds.compact(idempotency_key="k")
    assert (repeated.replayed, repeated.steps, repeated.version) == (True, 0, result.version)


@pytest.mark.parametrize("cluster_by", [(), ("k",)])
@pytest.mark.parametrize("step", ["stage.written", "commit.added", "commit.done"])
def test_compact_killed_in_a_later_step_keeps_rows_and_is_repeated(
    workspace: WorkspaceFixture, step: str, cluster_by: tuple[str, ...]
) -> None:
    with workspace.open() as lake:
        ds = many_files(lake, cluster_by=cluster_by)
        before, past = rows_by_id(ds), ds.version
    (Path(workspace.folder) / "go").touch()
    process = workspace.spawn("kill_compaction_at_step", "demo.many", step, 5 if step == "stage.written" else 2)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    with workspace.open() as lake:
        lake._workspace.file_sizing = SMALL_FILES
        ds = lake.dataset("demo.many")
        assert rows_by_id(ds) == before
        ds.compact()
        assert rows_by_id(ds) == rows_by_id(ds, past) == before
        lake._workspace.db.clock = lambda: datetime.now(UTC) + timedelta(hours=3)
        report = sweep(lake._workspace, lake.caller, RetentionPolicy(), execute=True)
        assert report.scratch == len(cluster_by)
        assert on_disk(ds) == listed(ds)


def test_alter_cluster_key_creates_a_version_and_changes_no_row(lake: Lake, three_rows: Dataset) -> None:
    assert three_rows.alter(cluster_by=["word", "id"]).version == 2
    assert three_rows.current().snapshot.cluster_by == ("word", "id")
    assert three_rows.alter(cluster_by=["word", "id"]).version == 2, "nothing changes"
    assert three_rows.alter(add={"more": "int64"}, cluster_by="more").version == 3
    assert three_rows.current().snapshot.as_dict()["cluster_by"] == ["more"]
    assert "clustered by more" in repr(three_rows)
    with pytest.raises(Invalid, match="Unknown column 'x' in the cluster key"):
        three_rows.alter(cluster_by="x")
    first = three_rows.alter(cluster_by=[], idempotency_key="none")
    assert three_rows.alter(cluster_by=[], idempotency_key="none") == first
    assert three_rows.current().snapshot.cluster_by == ()
    assert [version.operation for version in three_rows.history()] == ["alter", "alter", "alter", "create"]
    assert three_rows.to_arrow()["id"].to_pylist() == [1, 2, 3]


def test_create_with_cluster_key_stores_it_or_rejects_it(lake: Lake) -> None:
    assert lake.create("demo.a", {"id": [1]}, cluster_by="id").current().snapshot.cluster_by == ("id",)
    with pytest.raises(Invalid, match="A cluster key must consist of numbers"):
        lake.create("demo.b", {"id": [[1]]}, cluster_by="id")
    assert [dataset.name for dataset in lake.datasets()] == ["demo.a"]


keys = st.lists(st.integers(-20, 20) | st.none(), min_size=1, max_size=12)
picks = st.lists(st.integers(0, 60), min_size=1, max_size=6)
programs = st.lists(
    st.one_of(
        st.tuples(st.just("append"), keys),
        st.tuples(st.just("delete"), picks),
        st.tuples(st.just("update"), picks),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("cluster"), st.sampled_from([[], ["k"], ["word", "k"]])),
    ),
    max_size=14,
)


@settings(max_examples=300 if SOAK else 25, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_compact_in_a_random_history_keeps_rows_row_ids_and_versions(program: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder, WorkspaceFixture.make(Path(folder) / "w", None).open() as lake:
        lake._workspace.file_sizing = FileSizing(file_bytes=1_000, group_rows=4)
        ds = lake.create("demo.model", schema=table().schema)
        past: dict[int, Rows] = {1: {}}
        for operation, arguments in program:
            before = rows_by_id(ds)
            ids = [id for id in dict.fromkeys(arguments or ()) if operation in ("delete", "update") and id in before]
            match operation:
                case "append":
                    ds.append(table(*arguments))
                case "delete" if ids:
                    ds.delete(ids)
                case "update" if ids:
                    ds.update(ids, table(*range(len(ids))))
                case "cluster":
                    ds.alter(cluster_by=arguments)
                case "compact":
                    ds.compact()
                    assert rows_by_id(ds) == before
                    past |= dict.fromkeys(range(max(past) + 1, ds.version), before)
                    assert not ds.current().snapshot.version.vector_files
            past[ds.version] = rows_by_id(ds)
        for version, rows in past.items():
            assert rows_by_id(ds, version) == rows, f"version {version} has changed"
        assert on_disk(ds) == listed(ds)


_COMPACT = """
import json, pathlib, sys
import penstock
from penstock.storage.data_files import FileSizing

folder, = json.loads(sys.argv[1])
with penstock.open(folder) as lake:
    lake._workspace.file_sizing = FileSizing(file_bytes=16 << 20)  # a step has 64 MiB
    result = lake.dataset("demo.large").compact()
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
print(json.dumps({"steps": result.steps, "rows": result.rows, "files": result.files_before, "peak": peak}))
"""


def _large(lake: Lake, files: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(1)
    for _ in range(files):
        yield pa.table(
            {"k": random.integers(0, 1 << 60, 500_000), "word": random.integers(0, 1 << 60, 500_000).astype(str)}
        )


@pytest.mark.slow
@pytest.mark.parametrize("cluster_by", [(), ("k",)])
def test_compact_memory_does_not_depend_on_the_size_of_the_dataset(tmp_path: Path, cluster_by: tuple[str, ...]) -> None:
    peaks, steps = [], []
    for count in (16, 32):
        fixture = WorkspaceFixture.make(tmp_path / str(count), None)
        with fixture.open() as lake:
            ds = lake.create("demo.large", next(_large(lake, 1)), cluster_by=cluster_by)
            for rows in _large(lake, count - 1):
                ds.append(rows)
            size = ds.current().snapshot.version.bytes
        completed = subprocess.run(
            [sys.executable, "-c", _COMPACT, json.dumps([fixture.folder])], capture_output=True, text=True, timeout=1200
        )
        assert completed.returncode == 0, completed.stderr
        result = json.loads(completed.stdout)
        assert result["files"] >= count
        peaks.append(result["peak"])
        steps.append(result["steps"])
    assert size > 200 << 20
    assert steps[1] > steps[0] > 1
    assert peaks[1] < peaks[0] + (100 << 20), f"peaks of {peaks} bytes in {steps} steps"
