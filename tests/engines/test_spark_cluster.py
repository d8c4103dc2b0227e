"""Test a merge on a Spark cluster: a master and two workers that share only the file system with the driver."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

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

    result = merge_in_subprocess(spark_cluster, tmp_path / "source.parquet", targets_by_strategy)

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
        found = pads.dataset(target, partitioning=parts).to_table().select(SCHEMA.names).to_pylist()
        assert sorted(found, key=lambda r: r["id"]) == [expected[i] for i in sorted(expected)]


def write_partitions(target: Path, before: list[dict[str, Any]]) -> None:
    """Write rows partitioned by region, in four files per partition."""
    for region in range(3):
        folder = target / f"region=r%20{region}"
        folder.mkdir(parents=True)
        rows = pa.Table.from_pylist([r for r in before if r["region"] == f"r {region}"], SCHEMA).drop(["region"])
        for part in range(4):
            pq.write_table(rows.slice(part * 400, 400), folder / f"{part}.parquet")


def row(number: int, word: str, region: str) -> dict[str, Any]:
    return {"id": number, "word": f"{word} {number}", "weight": number / 7, "region": region}


def merge_in_subprocess(cluster: spark_sessions.Cluster, source: Path, targets_by_strategy: dict[str, Path]) -> Any:
    """Merge in a subprocess, because this process already has a local Spark context."""
    here = Path(__file__)
    targets = json.dumps({strategy: str(target) for strategy, target in targets_by_strategy.items()})
    done = subprocess.run(
        [sys.executable, here, cluster.master, json.dumps(cluster.conf()), source, targets],
        env={**os.environ, "PYTHONPATH": str(here.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no output of Spark
    return json.loads(done.stdout)


def main(master: str, conf: str, source: str, targets: str) -> None:
    from penstock import merge_parquet_dataset_spark
    from penstock.engines.spark.session import get_or_start_session

    session = get_or_start_session(master, json.loads(conf))
    stats = {
        strategy: merge_parquet_dataset_spark(source, target, "id", strategy, spark=session)
        for strategy, target in json.loads(targets).items()
    }
    executors = session.sparkContext.statusTracker().getExecutorInfos()
    session.stop()
    print(json.dumps({"stats": stats, "executors": len(executors) - 1}))  # one of them is the driver


if __name__ == "__main__":
    main(*sys.argv[1:])
