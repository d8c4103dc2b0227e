"""Snapshots: versions, times, and pruned file listings."""

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from sqlalchemy import text

from penstock.catalog import range_index, snapshots
from penstock.core import selector
from penstock.engines.arrow.selector import to_arrow_filter
from penstock.errors import Invalid, NotFound
from penstock.lake import Dataset, Lake


def test_at_version_returns_the_rows_of_that_version(three_rows: Dataset) -> None:
    three_rows.append({"id": [4], "word": ["four"]})
    three_rows.overwrite({"id": [9], "word": ["nine"]})
    three_rows.alter(add={"extra": "double"})
    read = [three_rows.at(version).to_arrow().to_pydict() for version in (1, 2, 3, 4)]
    assert [rows["id"] for rows in read] == [[1, 2, 3], [1, 2, 3, 4], [9], [9]]
    assert read[3]["extra"] == [None]
    assert "extra" not in read[2]


@pytest.mark.parametrize("version", [0, -1, 2, 10**12, 2**63, 2**70])
def test_unknown_version_raises_not_found_with_the_newest_version(three_rows: Dataset, version: int) -> None:
    with pytest.raises(NotFound) as raised:
        three_rows.at(version)
    assert raised.value.reason == "version_not_found"
    assert (raised.value.context["requested_version"], raised.value.context["actual_version"]) == (version, 1)


def test_as_of_returns_the_newest_version_at_a_commit_or_time(lake: Lake) -> None:
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    now = times[0]
    lake._workspace.db.clock = lambda: now
    ds = lake.create("demo.days", {"id": [1]})
    for now in times[1:]:
        ds.append({"id": [now.day]})
    assert ds.at(time=times[0]).num_rows == 1
    assert ds.at(time=times[1] + timedelta(hours=5)).num_rows == 2
    assert ds.at(time=times[2]).num_rows == 3
    with pytest.raises(NotFound):
        ds.at(time=times[0] - timedelta(seconds=1))
    with pytest.raises(Invalid, match="zone"):
        ds.at(time=datetime(2026, 1, 1))
    with pytest.raises(Invalid):
        ds.at(1, commit_no=1)
    with pytest.raises(Invalid):
        ds.at()


def test_versions_return_author_and_operation_in_pages(three_rows: Dataset) -> None:
    for i in range(5):
        three_rows.append({"id": [i], "word": ["x"]})
    newest = three_rows.history(limit=2)
    assert [v.number for v in newest] == [6, 5]
    assert [v.number for v in three_rows.history(limit=2, before=5)] == [4, 3]
    assert three_rows.history(before=1) == []
    first = three_rows.history()[-1]
    assert (first.operation, first.counts.inserted, first.rows, first.files) == ("create", 3, 3, 1)
    assert first.author.endswith("(local)")
    assert abs(first.committed_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_out_of_range_versions_raise_not_found(lake: Lake, three_rows: Dataset) -> None:
    assert [v.number for v in three_rows.history(before=2**70)] == [1]
    for limit in (0, -1, 2**70):
        with pytest.raises(Invalid):
            three_rows.history(limit)
    for commit_no in (2, -1, 2**70):
        with pytest.raises(NotFound) as raised:
            lake.snapshot(commit_no)
        assert raised.value.reason == "commit_not_found"
        with pytest.raises(NotFound):
            three_rows.at(commit_no=commit_no)


def test_lake_snapshot_contains_a_dataset_that_was_dropped_later(lake: Lake, three_rows: Dataset) -> None:
    before = lake.snapshot()
    three_rows.drop()
    lake.create("demo.numbers", {"id": [7]})
    assert before.dataset("demo.numbers").to_arrow().num_rows == 3
    assert lake.snapshot(2).commit_no == 2
    with pytest.raises(NotFound):
        lake.snapshot(2).dataset("demo.numbers")
    assert lake.snapshot().dataset("demo.numbers").to_arrow().num_rows == 1


def test_pruned_files_contain_every_matching_row_at_any_version(lake: Lake) -> None:
    """Compare with a filter over all rows, for every column type, before and after files were replaced."""
    rng = random.Random(7)
    words = ["", "a", "aa", "z" * 60, "é", "\U0010ffff" * 50, "b" * 39 + "\ud7ff" + "c" * 20]

    def rows(n: int, low: int) -> pa.Table:
        return pa.table(
            {
                "i": pa.array([rng.choice([None, low + rng.randrange(50)]) for _ in range(n)], pa.int64()),
                "f": pa.array([rng.choice([None, float("nan"), low + 0.5, -0.0, 0.0]) for _ in range(n)], pa.float64()),
                "s": pa.array([rng.choice([None, *words]) for _ in range(n)], pa.string()),
                "d": pa.array([rng.choice([None, low + rng.randrange(9)]) for _ in range(n)], pa.int64()).cast(
                    pa.decimal128(25, 3)
                ),
                "t": pa.array([low % 1000 * 10**13 + rng.randrange(10**9) for _ in range(n)], pa.timestamp("us")),
                "b": pa.array([rng.choice([None, True, False]) for _ in range(n)], pa.bool_()),
            }
        )

    ds = lake.create("demo.mixed", rows(5, 0))
    for low in (-100, 100, 10_000, 0, 50, 2**53, -(2**60)):
        ds.append(rows(4, low))
    ds.compact()
    ds.append(rows(4, 70))
    ds.overwrite(rows(6, 30))
    ds.append(rows(3, 90))
    conditions = [
        "i = 120", "i > 100 AND i < 10020", "i < -50", "i IS NULL", "f > 99.5", "f = 0", "f != 5", "s = 'aa'", "s >= 'z'",
        f"s = '{words[5]}'", f"s > '{words[6]}'", "s LIKE 'zz%'", "d = 104", "d < 0", "t >= TIMESTAMP '2001-01-01 00:00:00'",
        "b", "NOT b", "i = 1 OR d = 2", "i > 9007199254740000", "i = 120 AND s = 'a'", "i BETWEEN -100 AND 0", "i IN (1, 130)",
    ]  # fmt: skip
    for version in range(1, ds.version + 1):
        snapshot = ds.at(version)
        all_rows = snapshot.to_arrow()
        for condition in conditions:
            pruned = snapshot.to_arrow(where=condition)
            expected = all_rows.filter(to_arrow_filter(selector.parse(condition), snapshot.schema))
            assert pruned.to_pylist().__repr__() == expected.to_pylist().__repr__(), (version, condition)
            assert len(snapshot.files(condition)) <= len(snapshot.files())
    assert any(len(ds.at(8).files(condition)) < len(ds.at(8).files()) for condition in conditions)


def test_pruned_plan_reads_few_index_entries(lake: Lake) -> None:
    """With 60 files that do not overlap, one key selects one file through the index without a scan of all files."""
    ds = lake.create("demo.many", {"id": list(range(10))})
    for n in range(1, 60):
        ds.append({"id": list(range(10 * n, 10 * n + 10))})
    assert [len(ds.current().files(f"id = {key}")) for key in (0, 255, 599, 600)] == [1, 1, 1, 0]
    assert len(ds.current().files("id >= 300 AND id < 320")) == 3  # bounds are inclusive
    with lake._workspace.db.read(lake.caller) as tx:
        candidates = snapshots._files_in_bounds(tx, ds.current().snapshot, {"id": (255, 255)})
    assert candidates is not None
    assert len(candidates) < 30


@pytest.mark.parametrize("statement", ["RANGES_BETWEEN", "RANGES_AT", "_NUMBERED_FILES"])
def test_pruned_plan_statements_use_every_condition_in_the_index(lake: Lake, statement: str) -> None:
    """Check in the query plan that the index evaluates every condition."""
    chosen = getattr(snapshots if statement == "_NUMBERED_FILES" else range_index, statement)
    chosen = chosen[True] if isinstance(chosen, dict) else chosen
    engine = lake._workspace.db.engine
    values = {"tenant": lake.caller.tenant, "dataset": lake.caller.tenant, "column": 1, "first": 1, "last": 2}
    used = {name: value for name, value in values.items() if name in chosen.compile().params}
    parameters = {name: [1, 2, 3] for name in ("coordinates", "numbers") if name in chosen.compile().params}
    compiled = chosen.params(**used, **parameters).compile(
        engine, compile_kwargs={"literal_binds": True, "render_postcompile": True}
    )
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            plan = " ".join(str(row) for row in connection.execute(text(f"EXPLAIN QUERY PLAN {compiled}")))
            assert "SCAN" not in plan
            assert "file_no=?" in plan if statement == "_NUMBERED_FILES" else "AND coordinate" in plan
        else:
            # The plan must not depend on rows of other tests. The transaction is rolled back.
            connection.execute(text("DELETE FROM file_ranges"))
            connection.execute(text("DELETE FROM data_files"))
            connection.execute(
                text(
                    "INSERT INTO file_ranges SELECT :t, :t, c, p * 1003, p "
                    "FROM generate_series(0, 7) c, generate_series(1, 3000) p"
                ),
                {"t": lake.caller.tenant},
            )
            connection.execute(text("INSERT INTO tenants VALUES (:t, 1, now(), now())"), {"t": lake.caller.tenant})
            connection.execute(
                text(
                    "INSERT INTO datasets VALUES (:t, :t, 's', 't', 's.t', '', false, true, 1, 1, now(), :t, now(), :t)"
                ),
                {"t": lake.caller.tenant},
            )
            connection.execute(
                text(
                    "INSERT INTO data_files SELECT :t, :t, p, 'p' || p, 1, 1, '', 1, 1, 1, '', 1, NULL "
                    "FROM generate_series(1, 3000) p"
                ),
                {"t": lake.caller.tenant},
            )
            connection.execute(text("ANALYZE file_ranges, data_files"))
            plan = " ".join(row[0] for row in connection.execute(text(f"EXPLAIN {compiled}")))
            index = plan.split("Index Cond:")[1].split("Filter:")[0]
            assert "file_no = ANY" in index if statement == "_NUMBERED_FILES" else "coordinate" in index
