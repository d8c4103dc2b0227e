"""Writes that another writer overtakes: the result equals a serial order, or the write is rejected without effect."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from engines import merge_oracle
from penstock import failpoints
from penstock.core.progress import Progress
from penstock.errors import Conflict, NotFound
from penstock.lake import Dataset, Lake
from support.workspaces import WorkspaceFixture

_BEFORE: list[merge_oracle.Row] = [{"id": n, "word": f"old {n}"} for n in range(1, 7)]
_SOURCE: list[merge_oracle.Row] = [{"id": n, "word": f"new {n}"} for n in (2, 5, 9)]


def _delete_matched(rows: list[merge_oracle.Row]) -> list[merge_oracle.Row]:
    return [row for row in rows if row["id"] != 2]


def _delete_unmatched(rows: list[merge_oracle.Row]) -> list[merge_oracle.Row]:
    return [row for row in rows if row["id"] != 3]


def _update_matched(rows: list[merge_oracle.Row]) -> list[merge_oracle.Row]:
    return [{**row, "word": "other"} if row["id"] == 5 else row for row in rows]


def _insert_same_key(rows: list[merge_oracle.Row]) -> list[merge_oracle.Row]:
    return [*rows, {"id": 9, "word": "other"}]


def _insert_other_key(rows: list[merge_oracle.Row]) -> list[merge_oracle.Row]:
    return [*rows, {"id": 50, "word": "other"}]


def _replace_all(_rows: list[merge_oracle.Row]) -> list[merge_oracle.Row]:
    return [{"id": 5, "word": "other"}]


_INTERFERENCES = (
    _delete_matched,
    _delete_unmatched,
    _update_matched,
    _insert_same_key,
    _insert_other_key,
    _replace_all,
)
_FAILPOINTS = tuple(step for step in failpoints.STEPS if step.startswith("stage."))
_PROGRESS_PHASES = ("read", "match", "write")


def _interfere(ds: Dataset, interference: Callable[[list[merge_oracle.Row]], list[merge_oracle.Row]]) -> None:
    """Commit a change as another writer: by row id, by append, or by overwrite."""
    stored = ds.to_arrow(row_ids=True).to_pylist()
    ids = {row["id"]: row["rowid"] for row in stored}
    before = {row["id"]: row["word"] for row in stored}
    after = {row["id"]: row["word"] for row in interference([{"id": n, "word": w} for n, w in before.items()])}
    if interference is _replace_all:
        ds.overwrite({"id": list(after), "word": list(after.values())})
    elif deleted_ids := [ids[key] for key in before if key not in after]:
        ds.delete(deleted_ids)
    elif fresh := [key for key in after if key not in before]:
        ds.append({"id": fresh, "word": [after[key] for key in fresh]})
    else:
        changed = [key for key in after if after[key] != before[key]]
        ds.update([ids[key] for key in changed], {"id": changed, "word": [after[key] for key in changed]})


@pytest.fixture(params=["mark", "rewrite"])
def edit_mode(request: pytest.FixtureRequest) -> str:
    """Return the edit mode: the files here are so small that the mode `auto` never marks rows."""
    return str(request.param)


@pytest.fixture
def sqlite_lake(sqlite_workspace: WorkspaceFixture) -> Iterator[Lake]:
    with sqlite_workspace.open() as lake:
        yield lake


def _merge_with_interference(
    lake: Lake, name: str, engine: str, strategy: str, interference: Callable[..., Any], step: str
) -> None:
    ds = lake.create(name, pa.Table.from_pylist(_BEFORE[:3]))
    ds.append(pa.Table.from_pylist(_BEFORE[3:]))
    pending = [interference]

    def interfere_once() -> None:
        if pending:
            _interfere(ds, pending.pop())

    def on_progress(progress: Progress) -> None:
        if progress.phase == step and (progress.done or step != "write"):
            interfere_once()

    source = pa.Table.from_pylist(_SOURCE)
    if step in _PROGRESS_PHASES:
        merged = ds.merge(source, "id", strategy, engine=engine, progress=on_progress)
    else:
        with failpoints.armed(step, interfere_once):
            merged = ds.merge(source, "id", strategy, engine=engine)
    if pending:
        pytest.fail(f"the merge never reached the step {step!r}")
    rows, stats = merge_oracle.merge(interference(_BEFORE), _SOURCE, ("id", "word"), ("id",), strategy)
    stored = sorted(ds.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert stored == sorted(rows, key=lambda row: row["id"]), f"interference at {step}"
    assert merged.stats == stats, f"interference at {step}"


@pytest.mark.parametrize("interference", _INTERFERENCES, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
def test_merge_overtaken_at_any_step_equals_serial_order(
    sqlite_lake: Lake, engine: str, strategy: str, interference: Callable[..., Any]
) -> None:
    for number, step in enumerate((*_FAILPOINTS, *_PROGRESS_PHASES)):
        if engine == "duckdb" and step == "stage.opened":
            continue  # DuckDB opens its files itself, so Penstock has no step for it
        _merge_with_interference(sqlite_lake, f"demo.t{number}", engine, strategy, interference, step)


@pytest.mark.parametrize("interference", _INTERFERENCES, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
def test_merge_on_spark_overtaken_equals_serial_order(
    sqlite_lake: Lake, spark: Any, strategy: str, interference: Callable[..., Any]
) -> None:
    _merge_with_interference(sqlite_lake, "demo.t", "spark", strategy, interference, "stage.synced")


# Other writes. `expect` returns the expected rows, or None if the named rows are deleted.

Rows = list[merge_oracle.Row]
_FRESH: Rows = [{"id": 70, "word": "new 70"}, {"id": 71, "word": "new 71"}]


class AppendWrite:
    can_conflict = False  # whether the write is rejected if another write has changed the files that it replaces

    def __init__(self, _lake: Lake, ds: Dataset) -> None:
        self._ds = ds

    def run(self) -> None:
        self._ds.append(pa.Table.from_pylist(_FRESH))

    def expect(self, rows: Rows, _replaced: bool) -> Rows | None:
        return [*rows, *_FRESH]


class OverwriteWrite(AppendWrite):
    can_conflict = True

    def run(self) -> None:
        self._ds.overwrite(pa.Table.from_pylist(_FRESH))

    def expect(self, _rows: Rows, _replaced: bool) -> Rows | None:
        return _FRESH


class CompactWrite(AppendWrite):
    def run(self) -> None:
        self._ds.compact()

    def expect(self, rows: Rows, _replaced: bool) -> Rows | None:
        return rows


class DeleteWrite(AppendWrite):
    """Delete the rows with the keys 2 and 6 by their row ids. Unknown ids are ignored."""

    def __init__(self, lake: Lake, ds: Dataset) -> None:
        super().__init__(lake, ds)
        ids = {row["id"]: row["rowid"] for row in ds.to_arrow(row_ids=True).to_pylist()}
        self._row_ids = [ids[2], ids[6]]

    def run(self) -> None:
        self._ds.delete(self._row_ids)

    def expect(self, rows: Rows, replaced: bool) -> Rows | None:
        return rows if replaced else [row for row in rows if row["id"] not in (2, 6)]


class UpdateWrite(DeleteWrite):
    """Update the rows with the keys 2 and 6 by their row ids. Unknown ids are an error."""

    def run(self) -> None:
        self._ds.update(self._row_ids, {"id": [2, 6], "word": ["mine", "mine"]})

    def expect(self, rows: Rows, replaced: bool) -> Rows | None:
        if replaced or not {2, 6} <= {row["id"] for row in rows}:
            return None
        return [{**row, "word": "mine"} if row["id"] in (2, 6) else row for row in rows]


_WRITES = (AppendWrite, OverwriteWrite, CompactWrite, DeleteWrite, UpdateWrite)


def _create(lake: Lake, name: str) -> Dataset:
    ds = lake.create(name, pa.Table.from_pylist(_BEFORE[:3]))
    ds.append(pa.Table.from_pylist(_BEFORE[3:]))
    return ds


def _sorted(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["id"], row["word"]))


def _run_overtaken(ds: Dataset, interference: Callable[..., Any], step: str, run: Callable[[], object]) -> bool:
    """Run a write that is overtaken at a step; return False if it never reaches the step."""
    pending = [interference]

    def interfere_once() -> None:
        if pending:
            _interfere(ds, pending.pop())

    with failpoints.armed(step, interfere_once):
        run()
    return not pending


@pytest.mark.parametrize("interference", _INTERFERENCES, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("write_type", _WRITES)
def test_write_overtaken_at_any_step_equals_serial_order(
    sqlite_lake: Lake, write_type: type[AppendWrite], interference: Callable[..., Any]
) -> None:
    reached = set()
    for number, step in enumerate(_FAILPOINTS):
        ds = _create(sqlite_lake, f"demo.t{number}")
        write = write_type(sqlite_lake, ds)
        after_other = interference(_BEFORE)
        expected = write.expect(after_other, interference is _replace_all)
        interfered, is_rejected = True, False
        try:
            interfered = _run_overtaken(ds, interference, step, write.run)
        except (Conflict, NotFound):
            is_rejected = True
        if is_rejected:
            assert write.can_conflict or expected is None, f"rejected at {step}"
            expected = after_other
        if interfered:
            reached.add(step)
        else:
            expected = write.expect(_BEFORE, False)
        assert expected is not None, f"a deleted row was written at {step}"
        assert _sorted(ds.to_arrow().to_pylist()) == _sorted(expected), f"interference at {step}"
    assert {"stage.begun"} <= reached


@pytest.mark.parametrize("interference", _INTERFERENCES, ids=lambda change: change.__name__.strip("_"))
def test_overwrite_of_an_expected_version_overtaken_is_a_conflict(
    sqlite_lake: Lake, interference: Callable[..., Any]
) -> None:
    for number, step in enumerate(_FAILPOINTS):
        ds = _create(sqlite_lake, f"demo.t{number}")
        fresh = pa.Table.from_pylist(_FRESH)
        version = ds.version
        with pytest.raises(Conflict):
            _run_overtaken(ds, interference, step, lambda: ds.overwrite(fresh, expect=version))  # noqa: B023
        assert _sorted(ds.to_arrow().to_pylist()) == _sorted(interference(_BEFORE)), f"interference at {step}"


@pytest.mark.parametrize("interference", _INTERFERENCES, ids=lambda change: change.__name__.strip("_"))
def test_transaction_overtaken_is_committed_to_all_datasets_or_to_none(
    sqlite_lake: Lake, interference: Callable[..., Any]
) -> None:
    for number, step in enumerate(_FAILPOINTS):
        ds, other = _create(sqlite_lake, f"demo.t{number}"), _create(sqlite_lake, f"demo.u{number}")
        delete = DeleteWrite(sqlite_lake, ds)

        def run(ds: Dataset = ds, other: Dataset = other, delete: DeleteWrite = delete) -> None:
            with sqlite_lake.transaction() as transaction:
                transaction.append(other, pa.Table.from_pylist(_FRESH))
                transaction.delete(ds, delete._row_ids)
                transaction.append(ds, pa.Table.from_pylist(_FRESH))

        after_other = interference(_BEFORE)
        try:
            interfered = _run_overtaken(ds, interference, step, run)
            remaining = delete.expect(after_other if interfered else _BEFORE, interference is _replace_all)
            expected, expected_other = [*(remaining or []), *_FRESH], [*_BEFORE, *_FRESH]
        except Conflict:
            expected, expected_other = after_other, _BEFORE
        assert _sorted(ds.to_arrow().to_pylist()) == _sorted(expected), f"interference at {step}"
        assert _sorted(other.to_arrow().to_pylist()) == _sorted(expected_other), f"interference at {step}"


@pytest.mark.parametrize("operation", ["append", "merge"])
@pytest.mark.parametrize("step", ["stage.begun", "stage.synced"])
@pytest.mark.parametrize(
    "interference", [_delete_matched, _insert_same_key], ids=lambda change: change.__name__.strip("_")
)
@pytest.mark.usefixtures("spark")
def test_pipeline_overtaken_equals_serial_order(
    sqlite_lake: Lake, operation: str, step: str, interference: Callable[..., Any]
) -> None:
    ds = _create(sqlite_lake, "demo.t")
    source = sqlite_lake.create("demo.s", pa.Table.from_pylist(_SOURCE))
    parameters: dict[str, Any] = {"source": {"dataset_id": str(source.id)}}
    if operation == "merge":
        parameters |= {"key_columns": "id", "strategy": "upsert"}
    definition = {
        "name": "test",
        "working": {"dataset_id": str(ds.id)},
        "operations": [{"type": operation, "parameters": parameters}],
    }
    after_other = interference(_BEFORE)
    expected = [*after_other, *_SOURCE]
    if operation == "merge":
        expected, _ = merge_oracle.merge(after_other, _SOURCE, ("id", "word"), ("id",), "upsert")
    try:
        assert _run_overtaken(ds, interference, step, sqlite_lake.pipeline(definition).run)
    except Conflict:
        expected = after_other
    assert _sorted(ds.to_arrow().to_pylist()) == _sorted(expected)
