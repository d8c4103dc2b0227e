"""Several writes to one dataset in one transaction: each sees the earlier ones, and readers see none of them."""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import examples
from penstock.errors import Conflict, Invalid
from penstock.lake import Dataset, Lake
from support.workspaces import WorkspaceFixture


def table(rows: dict[int, str]) -> pa.Table:
    return pa.table({"id": pa.array(rows.keys(), pa.int64()), "word": pa.array(rows.values(), pa.string())})


def rows_with_ids(ds: Dataset) -> list[tuple[int, int, str]]:
    """Return row id, key and word of each row, sorted by key."""
    read = ds.to_arrow(row_ids=True)
    columns = (read[name].to_pylist() for name in ("rowid", "id", "word"))
    return sorted(zip(*columns, strict=True), key=lambda row: row[1:])


def stored(lake: Lake, ds: Dataset) -> set[str]:
    return {path for path, _ in lake._workspace.store.files(ds.current().snapshot.location)}


def test_merge_in_transaction_matches_appended_rows(lake: Lake) -> None:
    ds = lake.create("demo.words", table({1: "one", 2: "two"}))
    with lake.transaction() as tx:
        tx.append(ds, table({3: "three", 4: "four"}))
        merged = tx.merge(ds, table({2: "zwei", 3: "drei", 5: "fünf"}), "id")
        tx.append(ds, table({6: "six"}))
    assert merged.stats == {"inserted": 1, "updated": 2, "deleted": 0, "total": 5}
    assert {key: word for _, key, word in rows_with_ids(ds)} == {
        1: "one",
        2: "zwei",
        3: "drei",
        4: "four",
        5: "fünf",
        6: "six",
    }
    assert len({row[0] for row in rows_with_ids(ds)}) == 6
    assert ds.version == 2
    last = ds.history()[0]
    assert (last.operation, last.counts.inserted, last.counts.updated, last.rows) == ("append+merge", 4, 2, 6)
    assert stored(lake, ds) == {file.path for version in (1, 2) for file in ds.at(version).files()}


def test_row_ids_survive_all_writes_of_transaction(lake: Lake) -> None:
    ds = lake.create("demo.words", table({1: "one"}))
    with lake.transaction() as tx:
        tx.append(ds, table({2: "two"}))
        tx.merge(ds, table({1: "a", 2: "b"}), "id")
        tx.merge(ds, table({1: "A", 2: "B"}), "id")
    assert [row[1:] for row in rows_with_ids(ds)] == [(1, "A"), (2, "B")]
    assert rows_with_ids(ds)[0][0] == 1
    ds.append(table({3: "three"}))
    assert len({row[0] for row in rows_with_ids(ds)}) == 3


def test_overwrite_replaces_earlier_writes_of_transaction(lake: Lake) -> None:
    ds = lake.create("demo.words", table({1: "one"}))
    with lake.transaction() as tx:
        tx.append(ds, table({2: "two"}))
        tx.overwrite(ds, table({3: "three"}))
        tx.merge(ds, table({3: "drei"}), "id", "update")
    assert [row[1:] for row in rows_with_ids(ds)] == [(3, "drei")]
    assert stored(lake, ds) == {file.path for version in (1, 2) for file in ds.at(version).files()}


def test_error_in_transaction_discards_all_writes(lake: Lake) -> None:
    ds = lake.create("demo.words", table({1: "one"}))
    before = stored(lake, ds)
    with pytest.raises(Invalid), lake.transaction() as tx:
        tx.append(ds, table({2: "two"}))
        tx.merge(ds, table({2: "zwei"}), "id")
        tx.merge(ds, {"id": [5, 5], "word": ["x", "y"]}, "id")
    assert (ds.version, stored(lake, ds)) == (1, before)


def test_transaction_with_merge_conflicts_with_concurrent_append(lake: Lake) -> None:
    ds = lake.create("demo.words", table({1: "one"}))
    with pytest.raises(Conflict, match="no longer at version 1"), lake.transaction() as tx:
        tx.append(ds, table({2: "two"}))
        tx.merge(ds, table({1: "eins"}), "id")
        ds.append(table({2: "zwei"}))
    assert [row[1:] for row in rows_with_ids(ds)] == [(1, "one"), (2, "zwei")]


words = st.dictionaries(st.integers(0, 6), st.text("xyz", max_size=2), max_size=4)
writes = st.lists(
    st.one_of(
        st.tuples(st.just("append"), words),
        st.tuples(st.just("overwrite"), words),
        *(st.tuples(st.just(strategy), words) for strategy in ("upsert", "insert", "update", "full_merge")),
    ),
    min_size=1,
    max_size=6,
)


def expected_rows(current: list[tuple[int, str]], write: str, new_rows: dict[int, str]) -> list[tuple[int, str]]:
    """Return the rows after a write."""
    existing = {key for key, _ in current}
    new = [(key, word) for key, word in new_rows.items() if key not in existing]
    updated = [(key, new_rows.get(key, word)) for key, word in current]
    match write:
        case "append":
            return current + list(new_rows.items())
        case "overwrite":
            return list(new_rows.items())
        case "upsert":
            return updated + new
        case "insert":
            return current + new
        case "update":
            return updated
        case "full_merge":
            return [row for row in updated if row[0] in new_rows] + new
    raise AssertionError(write)


@settings(max_examples=examples(40, soak=300), suppress_health_check=[HealthCheck.too_slow])
@given(words, writes, st.sampled_from(["pyarrow", "duckdb"]))
def test_random_transactions_match_sequential_model(
    first: dict[int, str], program: list[tuple[str, dict[int, str]]], engine: str
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        WorkspaceFixture.make(Path(folder) / "workspace", None).open() as lake,
    ):
        ds = lake.create("demo.words", table(first))
        current = list(first.items())
        ids: dict[Any, int] = {key: rowid for rowid, key, _ in rows_with_ids(ds)}
        with lake.transaction() as tx:
            for write, new_rows in program:
                current = expected_rows(current, write, new_rows)
                if write in ("append", "overwrite"):
                    getattr(tx, write)(ds, table(new_rows))
                else:
                    tx.merge(ds, table(new_rows), "id", write, engine=engine)
        read = rows_with_ids(ds)
        assert [row[1:] for row in read] == sorted(current)
        assert len({row[0] for row in read}) == len(current)
        if all(write in ("append", "upsert", "insert", "update") for write, _ in program):
            assert all((ids[key], key) in {row[:2] for row in read} for key in ids), "a row lost its id"
        versions = range(1, ds.version + 1)
        assert stored(lake, ds) == {file.path for version in versions for file in ds.at(version).files()}
