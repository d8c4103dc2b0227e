"""Test merges into datasets whose files have deletion vectors, with marked and with rewritten files."""

import random
from collections.abc import Callable
from secrets import randbits
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import SOAK
from engines import merge_oracle
from engines.merge_cases import CASES, WORDS, MergeCase, rows
from engines.merge_oracle import Row
from engines.parquet_directories import assert_same_rows
from engines.test_merge import assert_row_ids, raises_expected_error, without_ids
from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.lake import Dataset, Lake

ENGINES = ("pyarrow", "duckdb", "spark")
SEEDS = [1, 2, *(f"fresh {number}" for number in range(10 if SOAK else 1))]
STRATEGIES = ("upsert", "insert", "update", "full_merge", "deduplicate")
SetEditMode = Callable[[EditMode], None]
all_engines = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture
def set_edit_mode(shared: Lake, monkeypatch: pytest.MonkeyPatch) -> SetEditMode:
    """Return a function that makes edits of the shared workspace mark rows or rewrite files."""
    return lambda mode: monkeypatch.setattr(shared._workspace, "edit_policy", EditPolicy(mode=mode))


@pytest.fixture(params=["local", "job"])
def matching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Match keys on Spark in the process of the driver, or in a Spark job."""
    if request.param == "job":
        monkeypatch.setattr("penstock.engines.spark.merge._MAX_LOCAL_TARGET_ROWS", -1)
    return str(request.param)


def case_parameters() -> list[Any]:
    """Combine cases, engines and edit modes; fewer for Spark, which takes about a second for each."""
    return [
        pytest.param(case, engine, mode, id=f"{case}-{engine}-{mode.value}")
        for case in CASES
        if not case.plain_only
        for engine in ENGINES
        if engine != "duckdb"  # test_merge_deletion_vectors.py has its cases
        if SOAK or (case.ids if engine == "spark" else not case.twin)
        for mode in (EditMode.MARK, EditMode.REWRITE)
    ]


@pytest.mark.parametrize(("case", "engine", "mode"), case_parameters())
def test_merge_each_case_with_deleted_rows_in_every_file(
    case: MergeCase,
    engine: str,
    mode: EditMode,
    merge_into: Callable[..., Any],
    create_dataset: Callable[..., Dataset],
    set_edit_mode: SetEditMode,
) -> None:
    set_edit_mode(EditMode.MARK)
    dataset = create_target_with_deleted_rows(create_dataset, case)
    before, version, files = dataset.to_arrow(row_ids=True), dataset.version, file_vectors(dataset)
    set_edit_mode(mode)

    def run() -> Any:
        return merge_into(dataset, case.source, key_columns=case.keys, strategy=case.strategy, **case.options)

    if raises_expected_error(case, run):
        assert dataset.version == version
        return
    merged = run()
    assert isinstance(case.expect, pa.Table)
    assert merged.stats == case.stats
    after = dataset.to_arrow(row_ids=True)
    assert assert_same_rows(without_ids(after), case.expect.to_pylist())
    assert dataset.num_rows == case.expect.num_rows
    assert assert_same_rows(dataset.at(version).to_arrow(row_ids=True).to_pylist(), before.to_pylist())
    assert_row_ids(case, before.to_pylist(), after.to_pylist())
    if mode is EditMode.MARK and case.strategy != "full_merge":
        assert merged.rewritten == merged.dropped == ()
        live_files = file_vectors(dataset)
        assert all(files[path] <= live_files.get(path, 0) for path in files if path in live_files)
        marked_rows = sum(live_files[path] - files[path] for path in live_files if path in files)
        assert marked_rows + lost_rows(dataset, version) == case.counts[1]
    else:
        assert merged.marked == ()


def create_target_with_deleted_rows(create_dataset: Callable[..., Dataset], case: MergeCase) -> Dataset:
    """Create a dataset with the target of a case. Each file also has a deleted copy of every row, in front of it."""
    tables = list((case.target or {}).values())
    empty = case.expect if isinstance(case.expect, pa.Table) else case.source
    dataset = create_dataset(schema=(tables or [empty])[0].schema)
    for table in tables:
        first = dataset.to_arrow(row_ids=True)["rowid"].to_pylist()
        dataset.append(table.take(pa.array([index // 2 for index in range(2 * table.num_rows)], pa.int64())))
        added = sorted(set(dataset.to_arrow(row_ids=True)["rowid"].to_pylist()) - set(first))
        if added:
            assert dataset.delete(added[::2]).affected == table.num_rows
    assert all(file.deleted for file in dataset.current().files())
    return dataset


def file_vectors(dataset: Dataset) -> dict[str, int]:
    """Return the number of deleted rows of each file by path."""
    return {file.path: len(file.deleted or ()) for file in dataset.current().files()}


def lost_rows(dataset: Dataset, version: int) -> int:
    """Return the rows of the files of a version that are not in the newest version, because no row of them is left."""
    paths = {file.path for file in dataset.current().files()}
    return sum(file.live_rows for file in dataset.at(version).files() if file.path not in paths)


@all_engines
def test_merge_null_key_of_a_deleted_row_is_ignored(
    engine: str,
    merge_into: Callable[..., Any],
    create_dataset: Callable[..., Dataset],
    set_edit_mode: SetEditMode,
) -> None:
    set_edit_mode(EditMode.MARK)
    dataset = create_dataset(rows(WORDS, (1, "one"), (None, "null"), (2, "two"), (None, "null")))
    ids = dataset.to_arrow(row_ids=True)["rowid"].to_pylist()
    dataset.delete([ids[1]])
    source = rows(WORDS, (1, "eins"))
    with pytest.raises(ValueError, match=r"target.*1"):
        merge_into(dataset, source, key_columns="id")
    dataset.delete([ids[3]])
    assert merge_into(dataset, source, key_columns="id").stats["updated"] == 1
    assert assert_same_rows(dataset.to_arrow().to_pylist(), rows(WORDS, (1, "eins"), (2, "two")).to_pylist())


def test_spark_merge_new_rows_do_not_share_files_with_stored_row_ids(
    spark: Any, create_dataset: Callable[..., Dataset], set_edit_mode: SetEditMode, shared: Lake, matching: str
) -> None:
    """The second merge marks rows of files that store row ids and of files that do not."""
    set_edit_mode(EditMode.MARK)
    dataset = create_dataset(rows(WORDS, *((n, "old") for n in range(10))))
    ids = dict(zip(range(10), dataset.to_arrow(row_ids=True)["rowid"].to_pylist(), strict=True))
    for word, keys in (("first", (1, 2, 20)), ("second", (2, 3, 20, 30))):
        dataset.merge(rows(WORDS, *((n, word) for n in keys)), key_columns="id", engine="spark", spark=spark)
    words = dict.fromkeys(range(10), "old") | {1: "first"} | dict.fromkeys((2, 3, 20, 30), "second")
    after = dataset.to_arrow(row_ids=True).to_pylist()
    assert {row["id"]: row["word"] for row in after} == words
    assert {row["id"]: row["rowid"] for row in after if row["id"] in ids} == ids
    assert len({row["rowid"] for row in after}) == len(after) == 12
    for file in dataset.current().files():
        stored = pq.read_table(shared._workspace.store.locate(file.path))
        assert (STORED_ROW_ID_COLUMN in stored.column_names) == (file.first_row_id is None)


def test_spark_merge_without_row_ids_marks_rows(
    spark: Any, create_dataset: Callable[..., Dataset], set_edit_mode: SetEditMode, matching: str
) -> None:
    """Source rows replace whole rows, update some columns, or replace several rows with the same key."""
    set_edit_mode(EditMode.MARK)
    columns = "id:int64 word:string n:int64"
    dataset = create_dataset(rows(columns, *((i, "old", i) for i in range(6))), row_ids=False)
    sources = [
        (rows(columns, (0, "a", 10), (1, "a", 11), (9, "a", 19)), "upsert", (1, 2, 0)),
        (rows(columns, (1, "b", 21), (8, "b", 28)), "update", (0, 1, 0)),
        (rows(WORDS, (1, "c"), (2, "c"), (7, "c")), "upsert", (1, 2, 0)),
    ]
    expected = dataset.to_arrow().to_pylist()
    for source, strategy, counts in sources:
        options = {"key_columns": "id", "strategy": strategy, "engine": "spark", "spark": spark}
        merged = dataset.merge(source, **options)
        expected, stats = merge_oracle.merge(expected, source.to_pylist(), ["id", "word", "n"], ["id"], strategy)
        assert tuple(stats.values())[:3] == counts
        assert merged.stats == stats
        assert merged.rewritten == ()
        assert merged.marked != ()
        assert assert_same_rows(dataset.to_arrow().to_pylist(), expected)
    double = rows(columns, (3, "twin", 3))
    dataset.append(double)
    twice = dataset.merge(rows(columns, (3, "d", 33)), key_columns="id", engine="spark", spark=spark)
    assert twice.stats["updated"] == 2
    assert sorted(row["word"] for row in dataset.to_arrow().to_pylist() if row["id"] == 3) == ["d", "d"]


def test_spark_merge_many_deleted_rows_are_excluded_by_a_shuffle_join(
    spark: Any, create_dataset: Callable[..., Dataset], set_edit_mode: SetEditMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # lower the limit of positions for a broadcast
    monkeypatch.setitem(_session_settings(), "spark.sql.autoBroadcastJoinThreshold", "-1")
    monkeypatch.setattr("penstock.engines.spark.merge._MAX_LOCAL_TARGET_ROWS", -1)
    count = 50_000
    set_edit_mode(EditMode.MARK)
    dataset = create_dataset(pa.table({"id": pa.arange(0, count), "word": pa.repeat("old", count)}))
    dataset.append(pa.table({"id": pa.arange(count, 2 * count), "word": pa.repeat("old", count)}))
    before = dataset.to_arrow(row_ids=True).to_pylist()
    dataset.delete([row["rowid"] for row in before if row["id"] % 5 == 0 and row["id"] < count])
    remaining = [row for row in before if row["id"] % 5 or row["id"] >= count]
    for mode, step in ((EditMode.REWRITE, 10), (EditMode.MARK, 15)):
        set_edit_mode(mode)
        keys = list(range(0, 2 * count, step))
        source = pa.table({"id": keys, "word": pa.repeat(mode.value, len(keys))})
        stats = dataset.merge(source, key_columns="id", strategy="update", engine="spark", spark=spark).stats
        updated = {row["rowid"] for row in remaining if row["id"] % step == 0}
        assert stats == {"inserted": 0, "updated": len(updated), "deleted": 0, "total": len(remaining)}
        remaining = [row | {"word": mode.value} if row["rowid"] in updated else row for row in remaining]
        assert assert_same_rows(dataset.to_arrow(row_ids=True).to_pylist(), remaining)


def _session_settings() -> dict[str, str]:
    from penstock.engines.spark import session

    return session._SESSION_SETTINGS


@all_engines
@pytest.mark.parametrize("seed", SEEDS)
def test_merge_random_edits_match_the_oracle(
    seed: int | str,
    engine: str,
    merge_into: Callable[..., Any],
    create_dataset: Callable[..., Dataset],
    set_edit_mode: SetEditMode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = seed if isinstance(seed, int) else randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    row_ids = seed % 2 == 1
    columns = {"a": pa.int64(), "b": pa.string(), "c": pa.float64(), "n": pa.int32()}
    dataset = create_dataset(schema=pa.schema(list(columns.items())), row_ids=row_ids)

    def random_rows(count: int, names: list[str]) -> list[Row]:
        values: dict[str, list[Any]] = {
            "a": list(range(12)),
            "b": ["x", "y"],
            "c": [0.5, -0.0, None],
            "n": [1, 2, None],
        }
        return [{name: draw.choice(values[name]) for name in names} for _ in range(count)]

    def table(content: list[Row], names: list[str]) -> pa.Table:
        return pa.table({name: pa.array([row[name] for row in content], columns[name]) for name in names})

    keys = draw.choice([["a"], ["a", "b"]])
    expected: list[Row] = []
    for _ in range(8 if SOAK or engine != "spark" else 5):
        monkeypatch.setattr(
            "penstock.engines.spark.merge._MAX_LOCAL_TARGET_ROWS", draw.choice([-1, 10_000_000])
        )  # match in a job, or in this process
        set_edit_mode(draw.choice(list(EditMode)))
        added = random_rows(draw.randrange(8), list(columns))
        dataset.append(table(added, list(columns)))
        expected += added
        if row_ids:
            set_edit_mode(draw.choice([EditMode.MARK, EditMode.MARK, EditMode.REWRITE]))
            current = dataset.to_arrow(row_ids=True).to_pylist()
            deleted_sample = draw.sample(current, len(current) // 4)
            if deleted_sample:
                dataset.delete([row["rowid"] for row in deleted_sample])
            remaining = {row["rowid"] for row in current} - {row["rowid"] for row in deleted_sample}
            expected = [{name: row[name] for name in columns} for row in current if row["rowid"] in remaining]
            set_edit_mode(draw.choice([EditMode.MARK, EditMode.MARK, EditMode.REWRITE, EditMode.AUTO]))
        strategy = draw.choice(STRATEGIES)
        names = [name for name in columns if name in keys or draw.random() < 0.7]
        source = merge_oracle.deduplicate(random_rows(draw.randrange(1, 9), names), keys, [])
        before = dataset.to_arrow(row_ids=row_ids).to_pylist()
        expected, counts = merge_oracle.merge(expected, source, list(columns), keys, strategy)
        merged = merge_into(dataset, table(source, names), key_columns=keys, strategy=strategy)
        assert merged.stats == counts, f"seed {seed}"
        after = dataset.to_arrow(row_ids=row_ids).to_pylist()
        assert dataset.num_rows == len(after)
        assert assert_same_rows([{name: row[name] for name in columns} for row in after], expected)
        if row_ids:
            _assert_same_ids(before, after, {merge_oracle.key(row, keys) for row in source}, keys, strategy)


def _assert_same_ids(
    before: list[Row], after: list[Row], source_keys: set[merge_oracle.Key], keys: list[str], strategy: str
) -> None:
    remaining = {
        row["rowid"]: merge_oracle.key(row, keys)
        for row in before
        if strategy != "full_merge" or merge_oracle.key(row, keys) in source_keys
    }
    actual = {row["rowid"]: merge_oracle.key(row, keys) for row in after}
    assert len(actual) == len(after), "every row has an id of its own"
    assert {row_id: key for row_id, key in actual.items() if row_id in remaining} == remaining
    max_id = max((row["rowid"] for row in before), default=-1)
    assert all(row_id > max_id for row_id in actual.keys() - remaining.keys())
