"""Test merges into files with deletion vectors, which mark the changed rows or rewrite the files."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import SOAK
from engines.merge_cases import CASES, MergeCase
from engines.parquet_directories import assert_same_rows
from engines.test_merge import assert_row_ids, corrupt_columns, raises_expected_error, without_ids
from engines.test_merge_random import Program, examples, programs, run_dataset, table
from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.core.schema.canonical import canonical_schema
from penstock.lake import Dataset
from penstock.service.datasets import row_edits

MODES = (EditMode.MARK, EditMode.REWRITE)
FRESH_SEED = random.randrange(10**9)
SEEDS = [1, 2, FRESH_SEED, FRESH_SEED + 1]
in_both_modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)


@contextmanager
def edit_policy(dataset: Dataset, mode: EditMode) -> Iterator[None]:
    workspace = dataset._lake._workspace
    policy = workspace.edit_policy
    workspace.edit_policy = EditPolicy(mode=mode)
    try:
        yield
    finally:
        workspace.edit_policy = policy


def append_with_deleted_rows(dataset: Dataset, rows: pa.Table, others: pa.Table, rng: random.Random) -> None:
    """Append rows in one file between copies and `others`, and mark these as deleted."""
    extra = [rows, *(pool.take([rng.randrange(len(pool))]) for pool in (rows, others) for _ in range(2) if len(pool))]
    stored = pa.concat_tables(extra)
    order = list(range(len(stored)))
    rng.shuffle(order)
    dataset.append(stored.take(order))
    first = max((file.first_row_id or 0 for file in dataset.current().files()), default=0)
    deleted = [first + position for position, index in enumerate(order) if index >= len(rows)]
    with edit_policy(dataset, EditMode.MARK):
        delete(dataset, deleted)


def delete(dataset: Dataset, row_ids: list[int]) -> None:
    lake = dataset._lake
    row_edits.delete(lake._workspace, lake.caller, dataset.id, pa.array(row_ids, pa.int64()))


def stored_paths(dataset: Dataset) -> list[str]:
    return [dataset._lake._workspace.store.locate(file.path) for file in dataset.current().files()]


def deleted_rows(dataset: Dataset) -> int:
    """Return the number of rows in the deletion vectors of the newest version."""
    return sum(len(file.deleted or ()) for file in dataset.current().files())


def decoy_rows(source: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows that would change the result of a merge: rows with source keys, and a row of NULL."""
    columns = {field.name: pa.nulls(1, field.type) for field in schema if field.nullable}
    try:
        for name in set(source.column_names) & set(schema.names):
            values = pa.chunked_array([source[name].combine_chunks().cast(schema.field(name).type)])
            columns[name] = pa.concat_arrays([*values.chunks, pa.nulls(1, schema.field(name).type)])
    except pa.ArrowException:
        return schema.empty_table()
    rows = max(map(len, columns.values()), default=0)
    arrays = [columns.get(f.name, pa.nulls(0)) for f in schema]
    arrays = [pa.nulls(rows, f.type) if len(a) < rows else a for a, f in zip(arrays, schema, strict=True)]
    usable = rows if all(field.nullable for field in schema) else 0
    return pa.table(arrays, schema=schema).slice(0, usable)


CASES_BY_ENGINE = [
    (case, engine)
    for case in CASES
    for engine in ("duckdb", *(["pyarrow"] if SOAK else []))
    if not case.plain_only and any(len(rows) for rows in (case.target or {}).values())
]


@in_both_modes
@pytest.mark.parametrize(("case", "engine"), CASES_BY_ENGINE, ids=str)
def test_merge_each_case_into_files_with_deletion_vectors(
    case: MergeCase, engine: str, mode: EditMode, create_dataset: Callable[..., Dataset]
) -> None:
    rng = random.Random(str(case))
    tables = list((case.target or {}).values())
    dataset = create_dataset(schema=tables[0].schema)
    for rows in tables:
        append_with_deleted_rows(dataset, rows, decoy_rows(case.source, rows.schema), rng)
    before, vectors = dataset.to_arrow(row_ids=True), deleted_rows(dataset)
    assert vectors

    def run() -> Any:
        return dataset.merge(case.source, key_columns=case.keys, strategy=case.strategy, engine=engine, **case.options)

    with edit_policy(dataset, mode):
        if raises_expected_error(case, run):
            return
        merged = run()
    assert isinstance(case.expect, pa.Table)
    assert merged.stats == case.stats
    after = dataset.to_arrow(row_ids=True)
    assert assert_same_rows(without_ids(after), case.expect.to_pylist())
    assert dataset.num_rows == case.expect.num_rows
    assert dataset.schema.types == canonical_schema(case.expect.schema).types
    assert_row_ids(case, before.to_pylist(), after.to_pylist())
    updates = case.counts[1] and case.strategy != "full_merge"
    assert bool(merged.marked) == bool(updates and mode is EditMode.MARK)


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
@examples(30, 1000)
@given(program=programs(plain=False), mode=st.sampled_from([*MODES, EditMode.AUTO]), seed=st.integers(0, 10**6))
def test_merge_random_datasets_with_deletion_vectors_match_the_oracle(
    engine: str, program: Program, mode: EditMode, seed: int, create_dataset: Callable[..., Dataset]
) -> None:
    rng = random.Random(seed)
    schema = table([], program.columns).schema
    dataset = create_dataset(schema=schema)
    for rows in program.files or []:
        others = decoy_rows(program.steps[0].source, schema)
        append_with_deleted_rows(dataset, table(rows, program.columns), others, rng)
    with edit_policy(dataset, mode):
        run_dataset(program, engine, dataset, has_rows=True)


@in_both_modes
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: "fresh" if seed >= FRESH_SEED else str(seed))
def test_merge_into_many_row_groups_returns_the_same_rows_in_every_engine(
    seed: int, mode: EditMode, create_dataset: Callable[..., Dataset]
) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    datasets = [create_dataset(schema=random_rows(rng, 0).schema) for _ in range(2)]
    workspace = datasets[0]._lake._workspace
    sizing, workspace.file_sizing = (
        workspace.file_sizing,
        replace(workspace.file_sizing, group_rows=512, file_bytes=20_000),
    )
    try:
        for _ in range(3):
            rows = random_rows(rng, 3_000)
            for dataset in datasets:
                dataset.append(rows)
        for step in range(4):
            deleted = rng.choice(datasets[0].to_arrow(row_ids=True)["rowid"].to_numpy(), 200, replace=False).tolist()
            source = random_rows(rng, 400).select([*["id", "word", "size", "parts"][: 1 + step], "n"])
            source = source.take(sorted(np.unique(source["id"].to_numpy(), return_index=True)[1]))
            strategy = ["upsert", "update", "upsert", "deduplicate"][step]
            stats = []
            for engine, dataset in zip(("pyarrow", "duckdb"), datasets, strict=True):
                with edit_policy(dataset, EditMode.MARK):
                    delete(dataset, deleted)
                with edit_policy(dataset, mode):
                    merged = dataset.merge(source, key_columns="id", strategy=strategy, engine=engine)
                stats.append(merged.stats)
                assert bool(merged.marked) == (mode is EditMode.MARK)
            assert stats[0] == stats[1]
            assert stats[0]["updated"]
            expected, actual = (dataset.to_arrow(row_ids=True).to_pylist() for dataset in datasets)
            assert by_row_id(actual) == by_row_id(expected)
            assert assert_same_rows(*([row | {"rowid": 0} for row in rows] for rows in (actual, expected)))
    finally:
        workspace.file_sizing = sizing


def random_rows(rng: np.random.Generator, rows: int) -> pa.Table:
    numbers = rng.integers(0, 1_000, rows)
    struct_type = pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])
    return pa.table(
        {
            "id": pa.array(rng.integers(0, 20_000, rows)),
            "word": pa.array([f"word {n}" if n % 10 else None for n in numbers], pa.string()),
            "size": pa.array(np.where(numbers % 7, rng.random(rows), np.nan)),
            "parts": pa.array(
                [[{"a": n, "b": {"c": str(n)}}] * (n % 3) for n in numbers.tolist()], pa.list_(struct_type)
            ),
            "n": pa.array(rng.integers(0, 100, rows), pa.int16()),
        }
    )


def by_row_id(rows: list[dict[str, Any]]) -> dict[int, str]:
    """Return the appended rows by row id. Two engines may assign the ids of merged new rows in different order."""
    return {row["rowid"]: repr(row) for row in rows if row["rowid"] <= 9_000}


def test_merge_complete_source_rows_do_not_read_marked_files(create_dataset: Callable[..., Dataset]) -> None:
    dataset = create_dataset(pa.table({"id": [1, 2, 3], "word": ["one", "two", "three"], "n": [1, 2, 3]}))
    (path,) = dataset.current().paths()
    values = pq.read_table(path)
    assert values.column_names == ["id", "word", "n"], "a fresh file stores no row ids"
    corrupt_columns(Path(path), "word", "n")
    with edit_policy(dataset, EditMode.MARK):
        merged = dataset.merge({"id": [2], "word": ["zwei"], "n": [20]}, key_columns="id", engine="duckdb")
    assert merged.stats == {"inserted": 0, "updated": 1, "deleted": 0, "total": 3}
    new_path = next(name for name in stored_paths(dataset) if name != path)
    assert pq.read_table(new_path).to_pylist() == [{"id": 2, "word": "zwei", "n": 20, "_rowid": 2}]


def test_merge_into_marked_file_reads_only_missing_columns(create_dataset: Callable[..., Dataset]) -> None:
    dataset = create_dataset(pa.table({"id": [1, 2, 3], "word": ["one", "two", "three"], "n": [1, 2, 3]}))
    (path,) = dataset.current().paths()
    corrupt_columns(Path(path), "word")
    with edit_policy(dataset, EditMode.MARK):
        dataset.merge({"id": [3], "word": ["drei"]}, key_columns="id", engine="duckdb")
    new_path = next(name for name in stored_paths(dataset) if name != path)
    assert pq.read_table(new_path).to_pylist() == [{"id": 3, "word": "drei", "n": 3, "_rowid": 3}]
