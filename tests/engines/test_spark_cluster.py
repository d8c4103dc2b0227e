"""Test merges on a Spark cluster: a master and two workers that share only the file system with the driver."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import penstock
from penstock.core.dataset.edit_policy import EditMode, EditPolicy
from penstock.lake import Dataset
from support import spark_sessions

TARGET_ROWS, SOURCE_ROWS = 4000, 600
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("weight", pa.float64()), ("region", pa.string())])


def test_merge_on_a_cluster_matches_local_result(spark_cluster: spark_sessions.Cluster, tmp_path: Path) -> None:
    before = [row(i, "old", region=f"r {i % 3}") for i in range(TARGET_ROWS)]
    source = [row(i, "new", region=f"r {i % 4}") for i in random.Random(7).sample(range(TARGET_ROWS * 2), SOURCE_ROWS)]
    targets_by_strategy = {
        strategy: tmp_path / f"target of {strategy} [1] 100%" for strategy in ("upsert", "full_merge")
    }
    for target in targets_by_strategy.values():
        write_partitions(target, before)
    pq.write_table(pa.Table.from_pylist(source, SCHEMA), tmp_path / "source.parquet")

    result = run_in_subprocess(
        spark_cluster, "directories", tmp_path / "source.parquet", map_values(str, targets_by_strategy)
    )

    old, new = ({target_row["id"]: target_row for target_row in rows} for rows in (before, source))
    updated = len(old.keys() & new.keys())
    assert result["executors"] == spark_sessions.WORKERS
    assert spark_cluster.alive() == spark_sessions.WORKERS
    for strategy, target in targets_by_strategy.items():
        expected = {**old, **new} if strategy == "upsert" else new
        assert result["stats"][strategy] == {
            "inserted": len(new) - updated,
            "updated": updated,
            "deleted": len(old) - updated if strategy == "full_merge" else 0,
            "total": len(expected),
        }
        parts = pads.partitioning(pa.schema([("region", pa.string())]), flavor="hive")
        stored_rows = pads.dataset(target, partitioning=parts).to_table().select(SCHEMA.names).to_pylist()
        assert sorted(stored_rows, key=lambda r: r["id"]) == [expected[i] for i in sorted(expected)]


def test_merge_on_a_cluster_reads_and_writes_deletion_vectors(
    spark_cluster: spark_sessions.Cluster, tmp_path: Path
) -> None:
    before = {i: row(i, "old", region="r") for i in range(TARGET_ROWS)}
    source = {i: row(i, "new", region="r") for i in random.Random(8).sample(range(TARGET_ROWS * 2), SOURCE_ROWS)}
    pq.write_table(pa.Table.from_pylist(list(source.values()), SCHEMA), tmp_path / "source.parquet")
    deleted = set(random.Random(9).sample(sorted(before), 500))
    with penstock.open(tmp_path / "lake", create=True) as lake:
        lake._workspace.edit_policy = EditPolicy(EditMode.MARK)
        for mode in (EditMode.MARK, EditMode.REWRITE):
            dataset = lake.create(f"cluster.{mode.value}", schema=SCHEMA)
            for number in range(4):
                ids = range(number * 1_000, number * 1_000 + 1_000)
                dataset.append(pa.Table.from_pylist([before[i] for i in ids], SCHEMA))
            stored = dataset.to_arrow(row_ids=True).to_pylist()
            dataset.delete([stored_row["rowid"] for stored_row in stored if stored_row["id"] in deleted])
            assert deleted_rows(dataset) == len(deleted)

    result = run_in_subprocess(spark_cluster, "datasets", tmp_path / "source.parquet", str(tmp_path / "lake"))

    expected = {i: before[i] for i in before.keys() - deleted} | source
    updated = len(source.keys() & (before.keys() - deleted))
    with penstock.open(tmp_path / "lake") as lake:
        for mode in (EditMode.MARK, EditMode.REWRITE):
            dataset = lake.dataset(f"cluster.{mode.value}")
            assert result["stats"][mode.value] == {
                "inserted": len(source) - updated,
                "updated": updated,
                "deleted": 0,
                "total": len(expected),
            }
            assert deleted_rows(dataset) == (len(deleted) + updated if mode is EditMode.MARK else 0)
            stored_rows = dataset.to_arrow().to_pylist()
            assert sorted(stored_rows, key=lambda r: r["id"]) == [expected[i] for i in sorted(expected)]


def deleted_rows(dataset: Dataset) -> int:
    return sum(len(file.deleted or ()) for file in dataset.current().files())


def write_partitions(target: Path, before: list[dict[str, Any]]) -> None:
    """Write rows partitioned by region, in four files per partition."""
    for region in range(3):
        folder = target / f"region=r%20{region}"
        folder.mkdir(parents=True)
        rows = pa.Table.from_pylist([r for r in before if r["region"] == f"r {region}"], SCHEMA).drop(["region"])
        for number in range(4):
            pq.write_table(rows.slice(number * 400, 400), folder / f"{number}.parquet")


def row(number: int, word: str, region: str) -> dict[str, Any]:
    return {"id": number, "word": f"{word} {number}", "weight": number / 7, "region": region}


def map_values(function: Callable[[Any], Any], values: dict[str, Any]) -> dict[str, Any]:
    return {key: function(value) for key, value in values.items()}


def run_in_subprocess(cluster: spark_sessions.Cluster, targets_type: str, source: Path, targets: Any) -> Any:
    """Merge in a subprocess, because this process already has a local Spark context."""
    here = Path(__file__)
    completed = subprocess.run(
        [sys.executable, here, cluster.master, json.dumps(cluster.conf()), targets_type, source, json.dumps(targets)],
        env={**os.environ, "PYTHONPATH": str(here.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""  # no output of Spark
    return json.loads(completed.stdout)


def main(master: str, conf: str, targets_type: str, source: str, targets: str) -> None:
    from penstock.engines.spark.session import get_or_start_session

    session = get_or_start_session(master, json.loads(conf))
    merge = merge_directories if targets_type == "directories" else merge_datasets
    stats = merge(session, source, json.loads(targets))
    executors = session.sparkContext.statusTracker().getExecutorInfos()
    session.stop()
    print(json.dumps({"stats": stats, "executors": len(executors) - 1}))  # one of them is the driver


def merge_directories(session: Any, source: str, targets_by_strategy: dict[str, str]) -> dict[str, Any]:
    return {
        strategy: penstock.merge_parquet_dataset_spark(source, target, "id", strategy, spark=session)
        for strategy, target in targets_by_strategy.items()
    }


def merge_datasets(session: Any, source: str, lake_folder: str) -> dict[str, Any]:
    """Merge in every edit mode, and match the keys in a Spark job even if there are few rows."""
    from penstock.engines.spark import merge

    merge._MAX_LOCAL_TARGET_ROWS = -1
    stats = {}
    with penstock.open(lake_folder) as lake:
        for mode in (EditMode.MARK, EditMode.REWRITE):
            lake._workspace.edit_policy = EditPolicy(mode)
            target = lake.dataset(f"cluster.{mode.value}")
            stats[mode.value] = target.merge(source, key_columns="id", engine="spark", spark=session).stats
    return stats


if __name__ == "__main__":
    main(*sys.argv[1:])
