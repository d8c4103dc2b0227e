"""Queries do not return rows that a deletion vector deletes, and return all other rows unchanged."""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import SOAK
from penstock.core.dataset.column_stats import ColumnStats, to_json
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.lake import Dataset, Lake
from penstock.service.datasets import row_edits
from penstock.service.queries.sandbox import Relation, RelationFile, Sandbox
from service.test_sandbox import _bounds, _literal, _table, close_after, error_of, run_query

FRESH_SEED = random.randrange(10**9)
SEEDS = [1, 2, 3, FRESH_SEED, FRESH_SEED + 1]
GROUP_ROWS = 10
ROWS = pa.table({"id": list(range(35)), "word": [None if n % 5 == 0 else f"word {n % 7}" for n in range(35)]})


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    yield from close_after(Sandbox(str(tmp_path_factory.getbasetemp())))


def write(path: Path, rows: pa.Table, deleted: Any = (), stats_json: str = "{}") -> RelationFile:
    pq.write_table(rows, path, row_group_size=GROUP_ROWS)
    vector = DeletionVector.from_positions(sorted(deleted)) if len(deleted) else None
    return RelationFile(str(path), rows.num_rows, stats_json, vector)


def remaining(rows: pa.Table, deleted: Any) -> pa.Table:
    return rows.filter(pa.array([position not in set(deleted) for position in range(len(rows))]))


VECTORS: dict[str, list[int]] = {
    "first row": [0],
    "last row": [34],
    "first and last row of a row group": [10, 19],
    "whole row group": list(range(10, 20)),
    "last row group": list(range(30, 35)),
    "every second row": list(range(0, 35, 2)),
    "all rows but one": [n for n in range(35) if n != 17],
    "all rows": list(range(35)),
}
STATEMENTS = [
    "FROM s.t",
    "SELECT count(*) AS n FROM s.t",
    "SELECT word FROM s.t",
    "SELECT word FROM s.t WHERE id >= 9 AND id <= 20",
    "SELECT id FROM s.t WHERE word = 'word 3'",
    "SELECT count(*) AS n FROM s.t WHERE word IS NULL",
    "SELECT count(*) AS n FROM s.t WHERE id IN (0, 10, 17, 34)",
    "SELECT word, count(*) AS n, max(id) AS high FROM s.t GROUP BY word",
    "SELECT a.id FROM s.t AS a JOIN s.t AS b ON a.id = b.id + 1 WHERE b.word <> 'word 1'",
    "SELECT id FROM s.t ORDER BY id DESC LIMIT 3",
    "SELECT id FROM s.t WHERE id = (SELECT max(id) FROM s.t)",
]


@pytest.mark.parametrize("deleted", VECTORS.values(), ids=VECTORS.keys())
def test_run_omits_deleted_rows(sandbox: Sandbox, tmp_path: Path, deleted: list[int]) -> None:
    extra = pa.table({"id": [100, 101], "word": ["word 3", None]})
    plain = write(tmp_path / "plain.parquet", extra)
    marked = Relation(ROWS.schema, [write(tmp_path / "marked.parquet", ROWS, deleted)])
    both = Relation(ROWS.schema, [plain, *marked.files])
    live = write(tmp_path / "live.parquet", remaining(ROWS, deleted))
    for number, sql in enumerate(STATEMENTS):
        if number % 2 == 0 or SOAK:
            assert_same_result(sandbox, sql, marked, Relation(ROWS.schema, [live]))
        assert_same_result(sandbox, sql, both, Relation(ROWS.schema, [plain, live]))


def assert_same_result(sandbox: Sandbox, sql: str, actual: Relation, expected: Relation) -> None:
    """Assert that a statement returns the same columns and the same rows, in any order."""
    result, expected_result = (run_query(sandbox, sql, {"s.t": relation}) for relation in (actual, expected))
    assert result.schema == expected_result.schema
    assert sorted(map(repr, result.to_pylist())) == sorted(map(repr, expected_result.to_pylist())), sql


WIDENED: dict[str, tuple[pa.DataType, pa.DataType, list[Any]]] = {
    "int8 to int64": (pa.int8(), pa.int64(), [-128, 127, None, 0]),
    "int32 to decimal": (pa.int32(), pa.decimal128(12, 2), [-5, 7, None, 0]),
    "float to double": (pa.float32(), pa.float64(), [0.1, float("nan"), None, -0.0]),
    "decimal with more digits": (pa.decimal128(5, 2), pa.decimal128(12, 4), [Decimal("1.25"), None, Decimal("-999.99"), Decimal(0)]),
    "list of wider numbers": (pa.list_(pa.int16()), pa.list_(pa.int64()), [[1, None], [], None, [3]]),
    "struct of wider numbers": (pa.struct([("a", pa.int32()), ("b", pa.string())]), pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": None, "b": None}, None, {"a": 3, "b": ""}]),
    "struct in a list of structs": (pa.list_(pa.struct([("s", pa.struct([("a", pa.int8())]))])), pa.list_(pa.struct([("s", pa.struct([("a", pa.int32())]))])), [[{"s": {"a": 1}}], [], None, [{"s": None}, None]]),
    "boolean": (pa.bool_(), pa.bool_(), [True, False, None, True]),
    "text": (pa.string(), pa.string(), ["", "🦆", None, "a'b"]),
    "bytes": (pa.binary(), pa.binary(), [b"", b"\x00\xff", None, b"x"]),
    "date": (pa.date32(), pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None, date(2026, 1, 1)]),
    "naive time": (pa.timestamp("us"), pa.timestamp("us"), [datetime(2026, 1, 1, 1, 2, 3, 4), datetime(1, 1, 1), None, datetime(9999, 1, 1)]),
    "UTC time": (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=UTC), None, None, datetime(1, 1, 1, tzinfo=UTC)]),
}  # fmt: skip


@pytest.mark.parametrize(("old_type", "new_type", "values"), WIDENED.values(), ids=WIDENED.keys())
def test_run_reads_widened_and_added_columns_of_marked_files(
    sandbox: Sandbox, tmp_path: Path, old_type: pa.DataType, new_type: pa.DataType, values: list[Any]
) -> None:
    """Assert the result of the same rows in a file without deletion vector."""
    schema = pa.schema([pa.field("added", new_type), pa.field("id", pa.int64(), nullable=False), ("c", new_type)])
    old_rows = pa.table({"c": pa.array(values, old_type), "id": pa.array(range(4), pa.int16())})
    new_rows = pa.table([pa.array(values, new_type), [10, 11, 12, 13], pa.array(values, new_type)], schema=schema)
    marked = [write(tmp_path / "a.parquet", old_rows, [1]), write(tmp_path / "b.parquet", new_rows, [0, 3])]
    live = [
        write(tmp_path / "c.parquet", remaining(old_rows, [1])),
        write(tmp_path / "d.parquet", remaining(new_rows, [0, 3])),
    ]
    for sql in (
        "FROM s.t",
        "SELECT count(*) AS n FROM s.t",
        "SELECT added FROM s.t",
        "SELECT c FROM s.t WHERE id > 0",
        "SELECT id FROM s.t WHERE c IS NOT NULL AND added IS NULL",
        "SELECT count(*) AS n FROM s.t WHERE added IS NULL",
    ):
        assert_same_result(sandbox, sql, Relation(schema, marked), Relation(schema, live))
    assert_same_result(sandbox, "FROM s.t", Relation(schema, [marked[0], live[1]]), Relation(schema, live))


def test_run_filters_columns_with_unusual_names(sandbox: Sandbox, tmp_path: Path) -> None:
    names = ["a.b", "a", 'x "y"', "filename", "file_row_number", "é🦆", "(id == 1)", "null", "_row"]
    rows = pa.table({name: pa.array(range(n, n + 6)) for n, name in enumerate(names)})
    rows = rows.append_column("s", pa.array([{"b": n, "a.b": n} for n in range(6)]))
    marked = Relation(rows.schema, [write(tmp_path / "marked.parquet", rows, [2])])
    live = Relation(rows.schema, [write(tmp_path / "live.parquet", remaining(rows, [2]))])
    for column in (*names, "s"):
        quoted = '"' + column.replace('"', '""') + '"'
        value = f"{quoted}.b" if column == "s" else quoted
        for other in names[: 3 if SOAK else 1]:
            selected = '"' + other.replace('"', '""') + '"'
            assert_same_result(sandbox, f"SELECT {selected} FROM s.t WHERE {value} > 3", marked, live)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: "fresh" if seed >= FRESH_SEED else str(seed))
def test_run_random_vectors_with_statistics_return_all_matching_rows(
    sandbox: Sandbox, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(30 if SOAK else 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        files, live = [], []
        for index in range(rng.randint(1, 4)):
            rows = _table([rng.choice([None, *range(-3, 4)]) for _ in range(rng.randint(1, 40))])
            deleted = rng.sample(range(len(rows)), rng.randint(0, len(rows)))
            files.append(write(folder / f"{index}.parquet", rows, deleted, to_json(_bounds(rows))))
            live.append(remaining(rows, deleted))
        expected = Relation(live[0].schema, [write(folder / "live.parquet", pa.concat_tables(live))])
        conditions = []
        for _ in range(2):
            column, sign = rng.choice("nfw"), rng.choice(["<", "<=", "=", "<>", ">=", ">", "IS DISTINCT FROM"])
            conditions.append(f"{column} {sign} {_literal(column, rng.randint(-3, 3))}")
        condition = rng.choice([" AND ", " OR "]).join(conditions)
        for columns in ("n, w", "f", "count(*) AS rows"):
            assert_same_result(
                sandbox, f"SELECT {columns} FROM s.t WHERE {condition}", Relation(live[0].schema, files), expected
            )


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: "fresh" if seed >= FRESH_SEED else str(seed))
def test_run_large_files_join_two_marked_datasets(sandbox: Sandbox, tmp_path: Path, seed: int) -> None:
    """Assert the result of several row groups and batches, which threads read at the same time."""
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    relations, tables = [], []
    for index in range(2):
        files, live = [], []
        for number in range(3):
            rows = pa.table({"id": rng.integers(0, 50_000, 80_000), "x": rng.integers(0, 100, 80_000)})
            path = tmp_path / f"{index}-{number}.parquet"
            pq.write_table(rows, path, row_group_size=7_000)
            deleted = rng.choice(len(rows), int(rng.integers(1, 20_000)), replace=False)
            files.append(RelationFile(str(path), len(rows), "{}", DeletionVector.from_positions(np.sort(deleted))))
            live.append(rows.filter(pa.array(~np.isin(np.arange(len(rows)), deleted))))
        relations.append(Relation(rows.schema, files))
        tables.append(pa.concat_tables(live))
    datasets = {"s.a": relations[0], "s.b": relations[1]}
    counts = [np.bincount(table["id"].to_numpy(), minlength=50_000) for table in tables]
    joined = run_query(sandbox, "SELECT count(*) AS n FROM s.a JOIN s.b USING (id)", datasets)
    assert joined.to_pydict() == {"n": [int((counts[0] * counts[1]).sum())]}
    totals = run_query(sandbox, "SELECT count(*) AS n, sum(x)::BIGINT AS x FROM s.a WHERE id < 40000", datasets)
    matching = tables[0].filter(pa.array(tables[0]["id"].to_numpy() < 40_000))
    assert totals.to_pydict() == {"n": [len(matching)], "x": [int(matching["x"].to_numpy().sum())]}


def test_run_skips_marked_files_by_statistics(sandbox: Sandbox, tmp_path: Path) -> None:
    stats_json = to_json({"c": ColumnStats(10, 20, 0)})
    absent = RelationFile(str(tmp_path / "gone.parquet"), 3, stats_json, DeletionVector.from_positions([1]))
    dataset = Relation(pa.schema([("c", pa.int32())]), [absent])
    assert run_query(sandbox, "SELECT count(*) AS n FROM s.t WHERE c < 5", {"s.t": dataset}).to_pydict() == {"n": [0]}
    raised = error_of(lambda: run_query(sandbox, "SELECT count(*) AS n FROM s.t WHERE c < 15", {"s.t": dataset}))
    assert (raised.kind, raised.reason) == ("Unavailable", "file_unreadable")
    assert str(tmp_path) not in raised.message


def test_run_damaged_marked_file_hides_its_path(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "damaged.parquet"
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    file = RelationFile(str(path), 3, "{}", DeletionVector.from_positions([1]))
    raised = error_of(lambda: run_query(sandbox, "FROM s.t", {"s.t": Relation(ROWS.schema, [file])}))
    assert str(tmp_path) not in raised.message
    assert "damaged" not in raised.message


def test_describe_reads_no_marked_file(sandbox: Sandbox, tmp_path: Path) -> None:
    absent = RelationFile(str(tmp_path / "gone.parquet"), 4, "{}", DeletionVector.from_positions([1]))
    with sandbox.process() as process:
        (ref,) = process.parse("SELECT word, id FROM s.t").tables
        process.bind({ref: Relation(ROWS.schema, [absent, replace(absent, deleted=None)])})
        assert process.describe() == pa.schema([("word", pa.string()), ("id", pa.int64())])


@pytest.fixture
def marking_lake(lake: Lake) -> Lake:
    lake._workspace.edit_policy = EditPolicy(mode=EditMode.MARK)
    return lake


def delete(dataset: Dataset, *row_ids: int) -> None:
    lake = dataset._lake
    row_edits.delete(lake._workspace, lake.caller, dataset.id, pa.array(row_ids, pa.int64()))


def test_sql_every_version_has_its_own_deleted_rows(marking_lake: Lake) -> None:
    dataset = marking_lake.create("finance.tx", {"id": [1, 2, 3], "word": ["one", "two", "three"]})
    delete(dataset, 2)
    dataset.merge({"id": [3, 4], "word": ["drei", "vier"]}, key_columns="id", engine="duckdb")
    delete(dataset, 1)

    def words(source: str) -> list[str]:
        return list(marking_lake.sql(f"SELECT word FROM {source} ORDER BY id").to_arrow()["word"].to_pylist())

    assert words("finance.tx AT (VERSION => 1)") == ["one", "two", "three"]
    assert words("finance.tx AT (VERSION => 2)") == ["one", "three"]
    assert words("finance.tx AT (VERSION => 3)") == ["one", "drei", "vier"]
    assert words("finance.tx") == ["drei", "vier"]
    joined = marking_lake.sql(
        "SELECT a.id, a.word AS before, b.word AS after FROM finance.tx AS a AT (VERSION => 2) "
        "FULL JOIN finance.tx AS b USING (id) ORDER BY ALL"
    )
    assert joined.to_arrow().to_pylist() == [
        {"id": 1, "before": "one", "after": None},
        {"id": 3, "before": "three", "after": "drei"},
        {"id": None, "before": None, "after": "vier"},
    ]
    counts = marking_lake.sql(
        "SELECT (SELECT count(*) FROM finance.tx) AS n, count(*) AS m FROM finance.tx AT (VERSION => 2)"
    )
    assert counts.to_arrow().to_pylist() == [{"n": 2, "m": 2}]
