"""Benchmark merges with Spark, compared with Spark reading and writing the same files without a merge.

All jobs run in one warm session and in turns. Every merge gets a copy of the target, and its counts are checked.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from measure import Grid, Report, interleaved, seconds
from penstock import merge_parquet_dataset_spark
from penstock.engines.spark.session import get_or_start_session, isolated_session
from rows import SCHEMA, table

KEY, ORDER, CODEC = "id", "taken", "snappy"
STRATEGIES = ("upsert", "update", "deduplicate", "full_merge", "insert")
FILES = 20
IDENTITY = "read and write the touched files"
GOAL = 1.6


@dataclass(frozen=True)
class Shape:
    """A target, and a source with half of its keys in some of the target's files."""

    label: str
    target: Path
    touched: tuple[str, ...]
    source: pa.Table
    doubled: pa.Table  # the same, with a tenth of its rows repeated with older values

    def expected(self, strategy: str) -> Mapping[str, int]:
        rows, half = sum(_rows(path) for path in self.target.iterdir()), self.source.num_rows // 2
        inserted = 0 if strategy == "update" else half
        deleted = rows - half if strategy == "full_merge" else 0
        updated = 0 if strategy == "insert" else half
        return {"inserted": inserted, "updated": updated, "deleted": deleted, "total": rows + inserted - deleted}


def main() -> None:
    options = _options()
    report = Report("merge-spark", "Merging with Spark", ["pyspark", "pyarrow"], quick=options.quick)
    spark = get_or_start_session()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        shapes = _shapes(Path(folder), options.rows, options.rows // 100)
        jobs: dict[tuple[str, str], Callable[[], float]] = {}
        for shape in shapes:
            jobs[shape.label, IDENTITY] = partial(_identity, spark, shape)
            for strategy in STRATEGIES:
                jobs[shape.label, strategy] = partial(_merge, spark, shape, strategy)
        interleaved(jobs, 1 if options.quick else 2)  # warm-up of the Java virtual machine
        measurements = interleaved(jobs, options.repeat)
    for shape in shapes:
        report.add(
            _grid(shape.label, {job: measurements[label, job] for label, job in measurements if label == shape.label})
        )
    print(f"\nalso in {report.save()}")


def _grid(label: str, measurements: Mapping[str, list[float]]) -> Grid:
    floor = median(measurements[IDENTITY])
    rows = [[job, f"{median(s):.2f}", f"{min(s):.2f}", f"{median(s) / floor:.2f} ×"] for job, s in measurements.items()]
    caption = f"Keys in {label}: seconds (median and best) and ratio to the first line (goal: at most {GOAL} ×)"
    return Grid(caption, ["job", "median s", "best s", "ratio"], rows)


def _identity(spark: Any, shape: Shape) -> float:
    """Read and write all rows with the same settings and codec."""
    out = shape.target.parent / "identity"
    frame = isolated_session(spark).read.parquet(*(str(shape.target / name) for name in shape.touched))
    spent = seconds(lambda: frame.write.option("compression", CODEC).parquet(str(out)))
    shutil.rmtree(out)
    return spent


def _merge(spark: Any, shape: Shape, strategy: str) -> float:
    directory, answer = shape.target.parent / "merged", {}
    directory.mkdir()
    for file in shape.target.iterdir():
        os.link(file, directory / file.name)  # existing files are replaced, never changed
    source, order = (shape.doubled, ORDER) if strategy == "deduplicate" else (shape.source, None)
    spent = seconds(
        lambda: answer.update(merge_parquet_dataset_spark(source, directory, KEY, strategy, order, spark=spark))
    )
    if answer != shape.expected(strategy):
        raise SystemExit(f"{strategy}: {answer} instead of {shape.expected(strategy)}")
    shutil.rmtree(directory)
    return spent


def _shapes(folder: Path, rows: int, source_rows: int) -> list[Shape]:
    target = folder / "target"
    target.mkdir()
    share = rows // FILES
    for n in range(FILES):
        pq.write_table(table(share, n * share), target / _file(n), compression=CODEC)
    return [
        _shape(f"2 of {FILES} files", target, (3, 11), share, rows, source_rows),
        _shape(f"all {FILES} files", target, tuple(range(FILES)), share, rows, source_rows),
    ]


def _shape(label: str, target: Path, numbers: tuple[int, ...], share: int, rows: int, source_rows: int) -> Shape:
    random = np.random.default_rng(len(numbers))
    target_keys = np.concatenate([np.arange(n * share, (n + 1) * share) for n in numbers])
    old = random.choice(target_keys, source_rows // 2, replace=False)
    ids = random.permutation(np.concatenate([old, np.arange(rows, rows + source_rows // 2)]))
    fresh = table(source_rows, 10 * rows)
    source = fresh.set_column(0, SCHEMA.field(0), pa.array(ids))
    again = source.slice(0, source_rows // 10).set_column(6, SCHEMA.field(6), table(source_rows // 10).column("taken"))
    return Shape(label, target, tuple(map(_file, numbers)), source, pa.concat_tables([source, again]))


def _file(number: int) -> str:
    return f"part-{number:02}.parquet"


def _rows(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few merges into a small target, to check that it runs")
    parser.add_argument("--folder", help="folder for temporary targets")
    parser.add_argument("--repeat", type=int, help="number of rounds")
    options = parser.parse_args()
    options.rows = 200_000 if options.quick else 5_000_000
    options.repeat = options.repeat or (1 if options.quick else 5)
    return options


if __name__ == "__main__":
    main()
