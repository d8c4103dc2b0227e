"""All readers return the same rows of files with deletion vectors: scans, profiles, samples, snapshots and engines."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.config import Settings
from penstock.core.dataset.edit_policy import EditMode
from penstock.lake import Dataset, Lake
from penstock.service.datasets import read
from penstock.service.datasets.profile import profile
from penstock.service.queries.execution import QueryExecutor
from penstock.service.queries.sandbox import Sandbox
from penstock.storage.scan import SampleLimits

GROUP_ROWS, FILE_ROWS = 10, 35
ROWS = pa.table(
    {
        "n": pa.array(range(2 * FILE_ROWS), pa.int64()),
        "word": pa.array([None if n % 5 == 0 else f"w{n % 7}" for n in range(2 * FILE_ROWS)]),
    }
)
VECTORS = {  # positions of deleted rows of the first file
    "first_row": [0],
    "last_row": [34],
    "first_and_last_row_of_a_row_group": [10, 19],
    "whole_row_group": list(range(10, 20)),
    "last_row_group": list(range(30, 35)),
    "all_rows_but_one": [n for n in range(FILE_ROWS) if n != 17],
    "all_rows": list(range(FILE_ROWS)),
    "random": sorted(random.Random(1).sample(range(FILE_ROWS), 12)),
}
FILTERS = ["n >= 9 and n < 21", "word = 'w3'", "word is null", "n = 34 or n = 0", "n < 0"]
by_vector = pytest.mark.parametrize("deleted", VECTORS.values(), ids=VECTORS.keys())


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder: Path = tmp_path_factory.mktemp("marked") / "lake"
    settings = Settings(workspace=folder, durable=False, group_rows=GROUP_ROWS, edit_mode=EditMode.MARK)
    with penstock.open(create=True, settings=settings) as lake:
        yield lake


@pytest.fixture(scope="module")
def queries(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryExecutor]:
    queries = QueryExecutor(lake._workspace, Sandbox(str(tmp_path_factory.getbasetemp())))
    yield queries
    queries.close()


@pytest.fixture
def marked(lake: Lake, deleted: list[int]) -> Iterator[Dataset]:
    """Two files: rows of the first are deleted in two steps, and the second row of the second file."""
    ds = lake.create("demo.marked", ROWS.slice(0, FILE_ROWS))
    ds.append(ROWS.slice(FILE_ROWS))
    ds.delete([position + 1 for position in deleted[::2]])
    ds.delete([*(position + 1 for position in deleted[1::2]), FILE_ROWS + 2])
    yield ds
    ds.drop()


def live_rows(deleted: list[int]) -> list[dict[str, Any]]:
    return [row for row in ROWS.to_pylist() if row["n"] not in {*deleted, FILE_ROWS + 1}]


def matching(rows: list[dict[str, Any]], where: str) -> list[int]:
    """Return the numbers of the rows that match a filter, as Python computes it."""
    python = where.replace(" is null", " is None").replace(" = ", " == ")
    return [row["n"] for row in rows if eval(python, {}, row)]  # the filters are constants


@by_vector
def test_file_without_remaining_rows_is_dropped_not_marked(marked: Dataset, deleted: list[int]) -> None:
    version = marked.current().snapshot.version
    is_dropped = len(deleted) == FILE_ROWS
    assert (version.files, version.vector_files) == ((1, 1) if is_dropped else (2, 2))
    assert version.deleted_rows == (1 if is_dropped else len(deleted) + 1)
    assert version.rows == len(live_rows(deleted))


@by_vector
def test_scan_of_marked_files_returns_live_rows_in_every_read_mode(marked: Dataset, deleted: list[int]) -> None:
    at, ws, caller = marked.current().snapshot, marked._lake._workspace, marked._lake.caller
    expected = live_rows(deleted)
    assert read.scan_rows(ws, caller, at).read_all().to_pylist() == expected
    for where in FILTERS:
        numbers = matching(expected, where)
        for options in ({}, {"read_ahead": False, "batch_rows": 7}, {"row_ids": True, "batch_rows": 7}):
            rows = read.scan_rows(ws, caller, at, where=where, **options).read_all()
            assert rows["n"].to_pylist() == numbers, (where, options)
            if "row_ids" in options:
                assert rows["rowid"].to_pylist() == [number + 1 for number in numbers]


@by_vector
def test_profile_and_sample_of_marked_files_count_live_rows_only(marked: Dataset, deleted: list[int]) -> None:
    lake, at, expected = marked._lake, marked.current().snapshot, live_rows(deleted)
    found = profile(lake._workspace, lake.caller, at, "word")
    exact = next(column for column in found.columns if column.field.name == "word")
    words = [row["word"] for row in expected if row["word"] is not None]
    assert (exact.nulls, exact.low.as_py(), exact.high.as_py()) == (len(expected) - len(words), min(words), max(words))  # type: ignore[union-attr]
    assert found.histogram is not None
    assert (found.histogram.rows, found.histogram.sampled) == (len(expected), False)
    numbers = {row["n"] for row in expected}
    for column in profile(lake._workspace, lake.caller, at).columns:
        if column.field.name == "n":  # from the statistics: exact or unknown
            assert column.low is None or column.low.as_py() == min(numbers)
            assert column.high is None or column.high.as_py() == max(numbers)
    sampled = profile(lake._workspace, lake.caller, at, "n", limits=SampleLimits(rows=20, groups=4)).histogram
    assert sampled is not None
    assert sampled.sampled
    assert 0 < sampled.rows <= 20


@by_vector
def test_lake_snapshot_by_commit_number_returns_the_rows_of_that_commit(marked: Dataset, deleted: list[int]) -> None:
    lake = marked._lake
    first_half = set(deleted[::2])
    expected = {
        1: ROWS.to_pylist()[:FILE_ROWS],
        2: ROWS.to_pylist(),
        3: [row for row in ROWS.to_pylist() if row["n"] not in first_half],
        4: live_rows(deleted),
    }
    for version in marked.history():
        snapshot = lake.snapshot(version.commit_no).dataset("demo.marked")
        assert snapshot.version == version.number
        assert snapshot.to_arrow().to_pylist() == expected[version.number]
        assert snapshot.num_rows == len(expected[version.number])


@by_vector
def test_query_in_the_sandbox_returns_live_rows(marked: Dataset, deleted: list[int], queries: QueryExecutor) -> None:
    expected = live_rows(deleted)
    for where in ("1 = 1", *FILTERS):
        sql = f"SELECT n FROM demo.marked WHERE {where} ORDER BY n"
        rows = queries.preview(marked._lake.caller, sql, {}).table
        assert rows["n"].to_pylist() == (
            [row["n"] for row in expected] if where == "1 = 1" else matching(expected, where)
        )


@by_vector
@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
def test_merge_engine_reads_live_rows(marked: Dataset, deleted: list[int], engine: str) -> None:
    check_engine(marked, deleted, engine)


@by_vector
@pytest.mark.usefixtures("spark")
def test_merge_on_spark_reads_live_rows(marked: Dataset, deleted: list[int]) -> None:
    check_engine(marked, deleted, "spark")


def check_engine(marked: Dataset, deleted: list[int], engine: str) -> None:
    """Assert that an engine matches the keys of live rows only, and that it keeps them when it rewrites every file."""
    expected = live_rows(deleted)
    numbers = [row["n"] for row in expected]
    keys = pa.table({"n": ROWS["n"], "word": pa.array(["new"] * len(ROWS))})
    matched = marked.merge(keys, "n", "upsert", engine=engine, dry_run=True).stats
    assert (matched["updated"], matched["inserted"]) == (len(numbers), len(ROWS) - len(numbers))
    ids = dict.fromkeys(marked.to_arrow(row_ids=True)["rowid"].to_pylist())
    source = pa.table({"n": [1_000], "word": ["added"], "extra": [1]})
    marked.merge(source, "n", "upsert", engine=engine, add_columns=True)
    rows = sorted(marked.to_arrow(row_ids=True).to_pylist(), key=lambda row: int(row["n"]))
    assert [(row["n"], row["word"], row["extra"]) for row in rows] == [
        *((row["n"], row["word"], None) for row in expected),
        (1_000, "added", 1),
    ]
    assert [row["rowid"] for row in rows[:-1]] == list(ids)
