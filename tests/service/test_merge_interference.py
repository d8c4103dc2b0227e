"""Merges that another writer overtakes: the result is that of the other write first, then the merge."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock import failpoints as faults
from penstock.lake import Dataset, Lake
from workspaces import Place
from semantics import oracle

_BEFORE: list[oracle.Row] = [{"id": n, "word": f"old {n}"} for n in range(1, 7)]
_SOURCE: list[oracle.Row] = [{"id": n, "word": f"new {n}"} for n in (2, 5, 9)]


def _delete_matched(rows: list[oracle.Row]) -> list[oracle.Row]:
    return [row for row in rows if row["id"] != 2]


def _delete_unmatched(rows: list[oracle.Row]) -> list[oracle.Row]:
    return [row for row in rows if row["id"] != 3]


def _update_matched(rows: list[oracle.Row]) -> list[oracle.Row]:
    return [{**row, "word": "other"} if row["id"] == 5 else row for row in rows]


def _insert_same_key(rows: list[oracle.Row]) -> list[oracle.Row]:
    return [*rows, {"id": 9, "word": "other"}]


def _insert_other_key(rows: list[oracle.Row]) -> list[oracle.Row]:
    return [*rows, {"id": 50, "word": "other"}]


def _replace_all(_rows: list[oracle.Row]) -> list[oracle.Row]:
    return [{"id": 5, "word": "other"}]


_INTERFERENCES = (
    _delete_matched,
    _delete_unmatched,
    _update_matched,
    _insert_same_key,
    _insert_other_key,
    _replace_all,
)
_STEPS = tuple(step for step in faults.STEPS if step.startswith("stage."))
_PROGRESS_PHASES = ("read", "match", "write")


def _interfere(ds: Dataset, interference: Callable[[list[oracle.Row]], list[oracle.Row]]) -> None:
    """Commit the change to the dataset as another writer does: by row id, by append, or as a whole."""
    stored = ds.to_arrow(row_ids=True).to_pylist()
    ids = {row["id"]: row["rowid"] for row in stored}
    before = {row["id"]: row["word"] for row in stored}
    after = {row["id"]: row["word"] for row in interference([{"id": n, "word": w} for n, w in before.items()])}
    if interference is _replace_all:
        ds.overwrite({"id": list(after), "word": list(after.values())})
    elif gone := [ids[key] for key in before if key not in after]:
        ds.delete(gone)
    elif fresh := [key for key in after if key not in before]:
        ds.append({"id": fresh, "word": [after[key] for key in fresh]})
    else:
        changed = [key for key in after if after[key] != before[key]]
        ds.update([ids[key] for key in changed], {"id": changed, "word": [after[key] for key in changed]})


@pytest.fixture
def sqlite_lake(embedded: Place) -> Iterator[Lake]:
    with embedded.open() as lake:
        yield lake


def _merge_with_interference(
    lake: Lake, name: str, engine: str, strategy: str, interference: Callable[..., Any], step: str
) -> None:
    ds = lake.create(name, pa.Table.from_pylist(_BEFORE[:3]))
    ds.append(pa.Table.from_pylist(_BEFORE[3:]))
    pending = [interference]

    def act() -> None:
        if pending:
            _interfere(ds, pending.pop())

    def on_progress(phase: str, done: int, _total: int) -> None:
        if phase == step and (done or step != "write"):
            act()

    source = pa.Table.from_pylist(_SOURCE)
    if step in _PROGRESS_PHASES:
        merged = ds.merge(source, "id", strategy, engine=engine, progress=on_progress)
    else:
        with faults.armed(step, act):
            merged = ds.merge(source, "id", strategy, engine=engine)
    if pending:
        pytest.fail(f"the merge never reached the step {step!r}")
    rows, stats = oracle.merge(interference(_BEFORE), _SOURCE, ("id", "word"), ("id",), strategy)
    stored = sorted(ds.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert stored == sorted(rows, key=lambda row: row["id"]), f"interference at {step}"
    assert merged.stats == stats, f"interference at {step}"


@pytest.mark.parametrize("interference", _INTERFERENCES, ids=lambda act: act.__name__.strip("_"))
@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
def test_merge_overtaken_at_any_step_equals_serial_order(
    sqlite_lake: Lake, engine: str, strategy: str, interference: Callable[..., Any]
) -> None:
    for number, step in enumerate((*_STEPS, *_PROGRESS_PHASES)):
        if engine == "duckdb" and step == "stage.opened":
            continue  # DuckDB opens its files itself, so Penstock has no step there
        _merge_with_interference(sqlite_lake, f"demo.t{number}", engine, strategy, interference, step)


@pytest.mark.parametrize("interference", _INTERFERENCES, ids=lambda act: act.__name__.strip("_"))
@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
def test_merge_on_spark_overtaken_equals_serial_order(
    sqlite_lake: Lake, spark: Any, strategy: str, interference: Callable[..., Any]
) -> None:
    _merge_with_interference(sqlite_lake, "demo.t", "spark", strategy, interference, "stage.synced")
