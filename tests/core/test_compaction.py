"""Plans of compactions: groups of files to rewrite, and unchanged files."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dataset.changes import DataFile
from penstock.core.dataset.cluster_key import check_cluster_key
from penstock.core.dataset.column_stats import ColumnStats
from penstock.core.dataset.compaction import CompactionPolicy, CompactionStep, live_bytes, max_passes, plan_compaction
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.dataset.file_cuts import FileCutter
from penstock.errors import Invalid

TARGET = 100
ON_REQUEST = CompactionPolicy()
BY_POLICY = CompactionPolicy(min_small_files=4, max_deleted_percent=10, max_size_ratio=4.0, min_overlap=3)


def file(
    number: int, size: int, *, rows: int = 100, deleted: int = 0, **ranges: tuple[Any, Any] | tuple[Any, Any, int]
) -> DataFile:
    """Return a file; a range is the lowest and the highest value of a column, and the number of NULLs."""
    stats = {name: ColumnStats(low, high, *(nulls or (0,))) for name, (low, high, *nulls) in ranges.items()}
    vector = DeletionVector.from_positions(range(deleted)) if deleted else None
    return DataFile(f"f{number}", rows, size, "", stats, number=number, deleted=vector)


def plan(files: list[DataFile], *cluster_by: str, policy: CompactionPolicy = ON_REQUEST) -> list[list[int]]:
    return [[file.number for file in step.files] for step in plan_compaction(files, cluster_by, TARGET, policy)]


def test_plan_combines_small_files_and_leaves_large_ones() -> None:
    assert plan([file(1, 74), file(2, 75), file(3, 10), file(4, 200)]) == [[1, 3]]
    assert plan([file(1, 74), file(2, 75)]) == []
    assert plan([]) == []


def test_plan_bounds_the_bytes_of_a_step() -> None:
    assert plan([file(n, 70) for n in range(12)]) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert plan([file(n, 70) for n in range(6)]) == [[0, 1, 2, 3, 4, 5]], "the last step takes a small rest"


def test_plan_on_request_rewrites_every_file_with_deleted_rows() -> None:
    assert plan([file(1, 200, deleted=1), file(2, 200)]) == [[1]]
    assert plan([file(1, 20, deleted=1)]) == [[1]]
    assert plan([file(1, 900, deleted=1), file(2, 900, deleted=1)]) == [[1], [2]]


def test_plan_counts_a_file_without_its_deleted_rows() -> None:
    assert live_bytes(file(1, 100, deleted=30)) == 70
    assert plan([file(1, 100, deleted=30), file(2, 50)], policy=CompactionPolicy(max_deleted_percent=50)) == [[1, 2]]


def test_plan_by_policy_waits_for_enough_small_files_and_deleted_rows() -> None:
    assert plan([file(n, 10) for n in range(3)], policy=BY_POLICY) == []
    assert plan([file(n, 10) for n in range(4)], policy=BY_POLICY) == [[0, 1, 2, 3]]
    assert plan([file(1, 200, deleted=10)], policy=BY_POLICY) == []
    assert plan([file(1, 200, deleted=11)], policy=BY_POLICY) == [[1]]


def test_plan_by_policy_rewrites_a_file_with_a_large_vector_and_few_deleted_rows() -> None:
    """The size counts, too: a file of many rows reaches the maximum size of a vector with few percent of its rows."""
    policy = replace(BY_POLICY, max_vector_bytes=2_000)
    marked = [file(n, 200, rows=1_000_000, deleted=deleted) for n, deleted in ((1, 900), (2, 1_000))]
    assert plan(marked, policy=BY_POLICY) == []
    assert plan(marked, policy=policy) == [[2]]


def test_plan_combines_small_files_apart_from_large_files_with_deleted_rows() -> None:
    files = [file(1, 200, deleted=20), *[file(n, 1) for n in range(2, 8)], file(9, 200, deleted=20)]
    assert plan(files, policy=BY_POLICY) == [[2, 3, 4, 5, 6, 7], [1, 9]]


def test_plan_by_policy_leaves_a_file_that_is_large_beside_the_new_ones() -> None:
    files = [file(0, 70), *[file(n, 4) for n in range(1, 5)]]
    assert plan(files, policy=BY_POLICY) == [[1, 2, 3, 4]]
    assert plan(files) == [[0, 1, 2, 3, 4]]
    assert plan([file(0, 60), *[file(n, 4) for n in range(1, 5)]], policy=BY_POLICY) == [[0, 1, 2, 3, 4]]


def test_plan_with_cluster_key_groups_small_files_by_key() -> None:
    files = [file(n, 70, k=(100 - n, 100 - n)) for n in range(10)]
    assert plan(files, "k") == [[9, 8, 7, 6, 5], [4, 3, 2, 1, 0]]


def test_plan_with_cluster_key_sorts_large_files_that_overlap() -> None:
    disjoint = [file(n, 100, k=(n * 10, n * 10 + 9)) for n in range(6)]
    assert plan(disjoint, "k") == []
    assert plan([*disjoint, file(9, 100, k=(25, 31))], "k") == [[2, 9, 3]]
    assert plan([file(n, 100, k=(0, 99)) for n in range(8)], "k") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert plan([file(n, 100, k=(0, 99)) for n in range(2)], "k", policy=BY_POLICY) == []
    assert plan([file(n, 100, k=(0, 99)) for n in range(3)], "k", policy=BY_POLICY) == [[0, 1, 2]]


def test_plan_with_cluster_key_leaves_ranges_that_only_touch() -> None:
    assert plan([file(1, 100, k=(1, 5)), file(2, 100, k=(5, 9)), file(3, 100, k=(5, 5))], "k") == []
    assert plan([file(1, 100, k=(1, 5, 3)), file(2, 100, k=(None, None, 100))], "k") == [], "NULL sorts last"
    assert plan([file(1, 100, k=(1, 5, 3)), file(2, 100, k=(6, 9))], "k") == [[1, 2]], "NULL sorts last"
    assert plan([file(1, 100), file(2, 100, k=(6, 9))], "k") == [], "a column that was added later is NULL"
    long = "x" * 39
    assert plan([file(1, 100, k=("a", long + "b")), file(2, 100, k=(long + "a", "z"))], "k") == [], "truncated"


def test_plan_with_cluster_key_leaves_large_files_without_statistics() -> None:
    assert plan([file(1, 100, k=(None, None)), file(2, 100, k=(None, None)), file(3, 100, k=(1, 9))], "k") == []


def test_plan_with_cluster_key_sorts_a_large_unsorted_file() -> None:
    files = [file(1, 100, k=(1, 5)), file(2, 100, k=(6, 9))]
    steps = plan_compaction(files, ["k"], TARGET, ON_REQUEST, {2})
    assert [[file.number for file in step.files] for step in steps] == [[2]]


def test_plan_with_cluster_key_of_two_columns_uses_the_second_within_one_value_of_the_first() -> None:
    equal = [file(n, 100, a=(7, 7), b=(n * 10, n * 10 + 9)) for n in range(3)]
    assert plan(equal, "a", "b") == []
    assert plan([*equal, file(5, 100, a=(7, 7), b=(5, 15))], "a", "b") == [[0, 5, 1]]
    assert plan([file(1, 100, a=(1, 7), b=(0, 9)), file(2, 100, a=(7, 9), b=(0, 9))], "a", "b") == []


sizes = st.lists(
    st.tuples(st.integers(1, 150), st.integers(0, 99), st.integers(0, 50), st.integers(0, 50)), max_size=30
)


@given(sizes, st.booleans(), st.sampled_from([ON_REQUEST, BY_POLICY]))
def test_plan_steps_are_disjoint_bounded_and_worthwhile(
    shapes: list[tuple[int, int, int, int]], clustered: bool, policy: CompactionPolicy
) -> None:
    files = [file(n, size, deleted=deleted, k=(min(a, b), max(a, b))) for n, (size, deleted, a, b) in enumerate(shapes)]
    steps = plan_compaction(files, ["k"] if clustered else [], TARGET, policy)
    numbers = [file.number for step in steps for file in step.files]
    assert len(numbers) == len(set(numbers))
    for step in steps:
        assert len(step.files) > 1 or step.files[0].deleted
        assert len(step.files) == 1 or sum(map(live_bytes, step.files)) <= 4.75 * TARGET


def test_step_file_rows_divides_rows_into_files_near_the_target_size() -> None:
    step = CompactionStep(tuple(file(n, 70, rows=10) for n in range(5)))
    assert (step.rows, step.bytes, step.file_rows(TARGET)) == (50, 350, 13)
    assert CompactionStep((file(1, 10), file(2, 20))).file_rows(TARGET) == 200


@pytest.mark.parametrize(("files", "expected"), [(0, 2), (1, 2), (4, 3), (64, 5)])
def test_max_passes_grows_with_the_logarithm_of_the_files(files: int, expected: int) -> None:
    assert max_passes(files) == expected


def cut_values(batches: list[list[Any]], rows: int, *key: str) -> list[list[Any]]:
    cutter, files = FileCutter(rows, key), [[]]
    for values in batches:
        for batch, begins_file in cutter.cut(pa.RecordBatch.from_pydict({"k": pa.array(values, pa.int64())})):
            files += [[]] if begins_file else []
            files[-1] += batch["k"].to_pylist()
    return files


def test_file_cutter_divides_rows_evenly() -> None:
    assert cut_values([[1, 2, 3], [4, 5, 6, 7]], 3) == [[1, 2, 3], [4, 5, 6], [7]]
    assert cut_values([[1, 1, 1, 1]], 2) == [[1, 1], [1, 1]]
    assert cut_values([[1, 2]], 2) == [[1, 2]]


def test_file_cutter_keeps_equal_keys_in_one_file() -> None:
    assert cut_values([[1, 2, 3, 4], [4, 5]], 4, "k") == [[1, 2, 3, 4, 4], [5]]
    assert cut_values([[1, 2, 3, None], [None]], 4, "k") == [[1, 2, 3, None, None]]
    assert cut_values([[4, 4, 4, 4, 4, 4]], 4, "k") == [[4] * 5, [4]], "at most a quarter more"


SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int64()))])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["x"], "Unknown column 'x' in the cluster key. Columns of the dataset: a, b, c"),
        (["c"], "Column 'c' has type list<item: int64>. A cluster key must consist of"),
        (["a", "a"], "Column 'a' occurs twice in the cluster key"),
        (list("abcde"), "The cluster key has 5 columns. At most 4 are allowed"),
    ],
)
def test_check_cluster_key_invalid_columns_are_rejected(columns: list[str], message: str) -> None:
    with pytest.raises(Invalid) as raised:
        check_cluster_key(columns, SCHEMA)
    assert message in raised.value.message
    assert raised.value.reason == "bad_cluster_key"


def test_check_cluster_key_returns_the_columns() -> None:
    assert check_cluster_key("b", SCHEMA) == ("b",)
    assert check_cluster_key(["b", "a"], SCHEMA) == ("b", "a")
    assert check_cluster_key([], SCHEMA) == ()
