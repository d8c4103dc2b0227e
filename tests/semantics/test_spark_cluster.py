"""A merge on a real cluster: a master and two workers that share nothing with the driver but the file system."""

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

import spark_sessions as spark

ROWS, BROUGHT = 4000, 600
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("weight", pa.float64()), ("region", pa.string())])


def test_two_workers_do_what_one_process_does(spark_cluster: spark.Cluster, tmp_path: Path) -> None:
    before = [row(i, "old", region=f"r {i % 3}") for i in range(ROWS)]
    source = [row(i, "new", region=f"r {i % 4}") for i in random.Random(7).sample(range(ROWS * 2), BROUGHT)]
    places = {strategy: tmp_path / f"target of {strategy} [1] 100%" for strategy in ("upsert", "full_merge")}
    for place in places.values():
        lay(place, before)
    pq.write_table(pa.Table.from_pylist(source, SCHEMA), tmp_path / "source.parquet")

    told = merged_elsewhere(spark_cluster, tmp_path / "source.parquet", places)

    old, new = ({each["id"]: each for each in rows} for rows in (before, source))
    updated = len(old.keys() & new.keys())
    assert told["executors"] == spark.WORKERS
    assert spark_cluster.alive() == spark.WORKERS
    for strategy, place in places.items():
        expected = {**old, **new} if strategy == "upsert" else new
        assert told["stats"][strategy] == {
            "inserted": len(new) - updated,
            "updated": updated,
            "deleted": len(old) - updated if strategy == "full_merge" else 0,
            "total": len(expected),
        }
        parts = pads.partitioning(pa.schema([("region", pa.string())]), flavor="hive")
        found = pads.dataset(place, partitioning=parts).to_table().select(SCHEMA.names).to_pylist()
        assert sorted(found, key=lambda r: r["id"]) == [expected[i] for i in sorted(expected)]


def lay(place: Path, before: list[dict[str, Any]]) -> None:
    """Rows in folders of their regions, each in files of several."""
    for region in range(3):
        folder = place / f"region=r%20{region}"
        folder.mkdir(parents=True)
        rows = pa.Table.from_pylist([r for r in before if r["region"] == f"r {region}"], SCHEMA).drop(["region"])
        for part in range(4):
            pq.write_table(rows.slice(part * 400, 400), folder / f"{part}.parquet")


def row(number: int, word: str, region: str) -> dict[str, Any]:
    return {"id": number, "word": f"{word} {number}", "weight": number / 7, "region": region}


def merged_elsewhere(cluster: spark.Cluster, source: Path, places: dict[str, Path]) -> Any:
    """A process has one context of Spark's, and that of this one is local: the driver is a process of its own."""
    here = Path(__file__)
    targets = json.dumps({strategy: str(place) for strategy, place in places.items()})
    done = subprocess.run(
        [sys.executable, here, cluster.master, json.dumps(cluster.conf()), source, targets],
        env={**os.environ, "PYTHONPATH": str(here.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # Spark keeps quiet
    return json.loads(done.stdout)


def main(master: str, conf: str, source: str, targets: str) -> None:
    from penstock import merge_parquet_dataset_spark
    from penstock.engines.spark.session import session

    there = session(master, json.loads(conf))
    stats = {
        strategy: merge_parquet_dataset_spark(source, place, "id", strategy, spark=there)
        for strategy, place in json.loads(targets).items()
    }
    known = there.sparkContext.statusTracker().getExecutorInfos()
    there.stop()
    print(json.dumps({"stats": stats, "executors": len(known) - 1}))  # one of them is the driver


if __name__ == "__main__":
    main(*sys.argv[1:])
