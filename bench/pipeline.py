"""Benchmark appends of pipelines, compared with a plain PySpark job that reads, filters, groups and writes the same rows.

All jobs share one warm session with the same settings and run in turns. Each append writes to a new dataset, and its
rows are counted. Further measurements: appends of 1,000 rows to a small and a large dataset, and cold starts.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from measure import Grid, Report, interleaved, seconds
from penstock.config import Settings
from penstock.lake import Dataset, Lake
from rows import SCHEMA, stream

# Spark is imported where it is used, so that a cold start includes the import.

SOURCE, LITTLE = "bench.source", "bench.little"
CODEC = "zstd"  # as Penstock's
GOAL = 1.15
SPREAD = 0.2  # allowed relative difference between appends to a small and a large dataset
APPENDED = 1000
BARE, OURS, FLUSHED = "bare", "Penstock, not durable", "Penstock"
_RATIOS = ("ratio of best", "of medians", "goal", "reached")
NARROW = pa.schema([("id", pa.int64()), ("amount", pa.int32())])


@dataclass(frozen=True)
class Numbers:
    rows: int
    sizes: tuple[int, int]  # rows of the datasets for small appends
    rounds: int
    appends: int
    starts: int


FULL = Numbers(rows=20_000_000, sizes=(50_000, 50_000_000), rounds=5, appends=15, starts=3)
QUICK = Numbers(rows=400_000, sizes=(5_000, 1_000_000), rounds=1, appends=3, starts=1)


@dataclass(frozen=True)
class Job:
    """An append, and the equivalent PySpark job."""

    parameters: Mapping[str, Any]  # besides the source
    working: pa.Schema
    bare: Callable[[Any], Any]  # a frame of the source's rows → the frame to write


@dataclass(frozen=True)
class AppendResult:
    seconds: float
    rows: int
    files: int


@dataclass(frozen=True)
class Start:
    """Seconds of the consecutive steps of a cold start."""

    opened: float  # until a new process has opened the workspace
    session: float
    first: float
    second: float


def main() -> None:
    options = _options()
    numbers = QUICK if options.quick else FULL
    packages = ["pyspark", "pyarrow", "sqlalchemy"]
    report = Report("pipeline", "Pipelines on Spark", packages, quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        lake_path = Path(folder) / "lake"
        with penstock.open(settings=_settings(lake_path), create=True) as quick, penstock.open(lake_path) as durable:
            quick.create(SOURCE, stream(numbers.rows))
            quick.create(LITTLE, _narrow(APPENDED))
            for grid in _beside(quick, durable, Path(folder), numbers):
                report.add(grid)
            report.add(_sizes(quick, numbers))
        report.add(_starts(lake_path, numbers))
    print(f"\nalso in {report.save()}")


# -- comparison with the plain job ----------------------------------------------------------------------------------------------


def _beside(quick: Lake, durable: Lake, folder: Path, numbers: Numbers) -> Iterator[Grid]:
    results: dict[tuple[str, str], AppendResult] = {}
    jobs: dict[tuple[str, str], Callable[[], float]] = {}
    source = quick.dataset(SOURCE).current()

    def noting(key: tuple[str, str], act: Callable[[], AppendResult]) -> float:
        results[key] = act()
        return results[key].seconds

    for name, job in _jobs().items():
        ways: dict[str, Callable[[], AppendResult]] = {
            BARE: partial(_bare, source.paths(), job, folder / "bare"),
            OURS: partial(_append, quick, job),
            FLUSHED: partial(_append, durable, job),
        }
        jobs |= {(name, way): partial(noting, (name, way), act) for way, act in ways.items()}
    interleaved(jobs, 1)  # warm-up of the Java virtual machine
    measurements = interleaved(jobs, numbers.rounds)
    for name in _jobs():
        counted = {way: results[name, way].rows for way in (BARE, OURS, FLUSHED)}
        if len(set(counted.values())) > 1:
            raise SystemExit(f"{name}: rows differ: {counted}")
    size = sum(file.bytes for file in source.files())
    source_size = f"{source.num_rows:,} rows ({len(source.paths())} files, {size / 1e6:,.0f} MB)"
    yield Grid(
        f"Seconds to append from {source_size}, nothing flushed; {numbers.rounds} rounds. Ratios: Penstock ÷ bare PySpark",
        ["", "rows", "bare: files", "best", "median", "Penstock: files", "best", "median", *_RATIOS],
        [_ratios(name, results, measurements) for name in _jobs()],
    )
    yield Grid(
        "The same when every file and the catalog are flushed to disk before the run is over",
        ["", "best", "median", "longer by, of medians"],
        [
            [
                name,
                *_best_and_median(measurements[name, FLUSHED]),
                f"{_longer(measurements[name, FLUSHED], measurements[name, OURS]):.2f}",
            ]
            for name in _jobs()
        ],
    )


def _ratios(
    name: str, results: Mapping[tuple[str, str], AppendResult], measurements: Mapping[tuple[str, str], Sequence[float]]
) -> list[str]:
    bare, ours = measurements[name, BARE], measurements[name, OURS]
    best, usual = min(ours) / min(bare), median(ours) / median(bare)
    return [
        name,
        f"{results[name, BARE].rows:,}",
        f"{results[name, BARE].files}",
        *_best_and_median(bare),
        f"{results[name, OURS].files}",
        *_best_and_median(ours),
        f"{best:.2f}",
        f"{usual:.2f}",
        f"up to {GOAL}",
        "yes" if best <= GOAL else "no",
    ]


def _longer(these: Sequence[float], those: Sequence[float]) -> float:
    return median(these) - median(those)


def _jobs() -> dict[str, Job]:
    from pyspark.sql import functions as F  # noqa: N812

    return {
        "simple": Job({}, SCHEMA, lambda rows: rows),
        "filtered": Job(
            {"source_selector": "city IN ('Accra', 'Bergen') AND amount > 0"},
            SCHEMA,
            lambda rows: rows.filter(F.col("city").isin("Accra", "Bergen") & (F.col("amount") > 0)),
        ),
        "aggregated": Job(
            {
                "aggregation": {
                    "group_by": ["device", "city"],
                    "aggregations": [
                        {"column": "total", "expression": "SUM(amount)"},
                        {"column": "lines", "expression": "COUNT(*)"},
                        {"column": "usual", "expression": "AVG(reading)"},
                        {"column": "last", "expression": "MAX_AGG(taken)"},
                    ],
                }
            },
            pa.schema(
                [
                    SCHEMA.field("device"),
                    SCHEMA.field("city"),
                    ("total", pa.decimal128(22, 2)),
                    ("lines", pa.int64()),
                    ("usual", pa.float64()),
                    ("last", SCHEMA.field("taken").type),
                ]
            ),
            lambda rows: rows.groupBy("device", "city").agg(
                F.sum("amount").alias("total"),
                F.count("*").alias("lines"),
                F.avg("reading").alias("usual"),
                F.max("taken").alias("last"),
            ),
        ),
    }


def _bare(paths: Sequence[str], job: Job, out: Path) -> AppendResult:
    from penstock.engines.spark.session import get_or_start_session, isolated_session

    spark = isolated_session(get_or_start_session())
    spent = seconds(lambda: job.bare(spark.read.parquet(*paths)).write.option("compression", CODEC).parquet(str(out)))
    rows = [pq.read_metadata(path).num_rows for path in out.glob("*.parquet")]
    shutil.rmtree(out)
    return AppendResult(spent, sum(rows), len(rows))


def _append(lake: Lake, job: Job) -> AppendResult:
    working = lake.create(f"bench.w{uuid4().hex}", schema=job.working)
    spent = seconds(lambda: _pipeline(lake, working, SOURCE, job.parameters).run())
    now = working.current()
    results = AppendResult(spent, now.num_rows, len(now.paths()))
    for path in now.paths():  # several gigabytes, which only a sweep would remove
        Path(path).unlink()
    working.drop()
    return results


def _pipeline(lake: Lake, working: Dataset, source: str, parameters: Mapping[str, Any]) -> Any:
    all_parameters = {"source": {"dataset_id": str(lake.dataset(source).id)}, **parameters}
    operation = {"type": "append", "parameters": all_parameters}
    return lake.pipeline({"name": "bench", "working": {"dataset_id": str(working.id)}, "operations": [operation]})


# -- a small and a large dataset --------------------------------------------------------------------------------------


def _sizes(lake: Lake, numbers: Numbers) -> Grid:
    working = {size: lake.create(f"bench.of_{size}", _narrow(size)) for size in numbers.sizes}
    jobs = {size: partial(_few, lake, dataset) for size, dataset in working.items()}
    interleaved(jobs, min(numbers.appends, 5))
    before = {size: len(dataset.current().paths()) for size, dataset in working.items()}
    measurements = interleaved(jobs, numbers.appends)
    small, large = (measurements[size] for size in numbers.sizes)
    ratios = [min(large) / min(small), median(large) / median(small)]
    holds = "yes" if 1 - SPREAD <= ratios[0] <= 1 + SPREAD else "no"
    lines = [
        [f"{size:,} rows", f"{before[size]}", *_best_and_median(measurements[size]), "", ""] for size in numbers.sizes
    ]
    goal_cells = [f"{1 - SPREAD:.1f} to {1 + SPREAD:.1f}", holds]
    return Grid(
        f"Seconds to append {APPENDED:,} rows to a small and a large dataset, not durable; {numbers.appends} rounds",
        ["to a dataset of", "files", "best", "median", "goal", "reached"],
        [*lines, ["large ÷ small", "", *(f"{ratio:.2f}" for ratio in ratios), *goal_cells]],
    )


def _few(lake: Lake, working: Dataset) -> float:
    return seconds(_pipeline(lake, working, LITTLE, {}).run)


def _narrow(count: int, step: int = 1_000_000) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        random = np.random.default_rng(count)
        for start in range(0, count, step):
            ids = np.arange(start, min(start + step, count))
            yield pa.record_batch(
                [pa.array(ids), pa.array(random.integers(0, 10_000, len(ids), np.int32))], schema=NARROW
            )

    return pa.RecordBatchReader.from_batches(NARROW, batches())


# -- cold start -----------------------------------------------------------------------------------------------------


def _starts(lake_path: Path, numbers: Numbers) -> Grid:
    starts = []
    for _ in range(numbers.starts):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            starts.append(process.submit(start, str(lake_path), numbers.sizes[0], time.time()).result())
    steps = {
        "process starts and opens the workspace": [start_times.opened for start_times in starts],
        "Spark session starts": [start_times.session for start_times in starts],
        "the first run": [start_times.first for start_times in starts],
        "cold start until the end of the first run": [
            start_times.opened + start_times.session + start_times.first for start_times in starts
        ],
        "the second run": [start_times.second for start_times in starts],
    }
    return Grid(
        f"Seconds to append {APPENDED:,} rows in a new process; {numbers.starts} processes",
        ["", "best", "median"],
        [[name, *_best_and_median(times)] for name, times in steps.items()],
    )


def start(lake_path: str, size: int, begun: float) -> Start:
    with penstock.open(settings=_settings(Path(lake_path))) as lake:
        working = lake.dataset(f"bench.of_{size}")
        opened = time.time() - begun
        session = seconds(_session)
        first, second = _few(lake, working), _few(lake, working)
    _stop()
    return Start(opened, session, first, second)


def _session() -> None:
    from penstock.engines.spark.session import get_or_start_session

    get_or_start_session()


def _stop() -> None:
    from penstock.engines.spark.session import stop_session

    stop_session()


# -- shared functions --------------------------------------------------------------------------------------------------


def _settings(lake_path: Path) -> Settings:
    return Settings(workspace=lake_path, durable=False)


def _best_and_median(times: Sequence[float]) -> list[str]:
    return [f"{min(times):.2f}", f"{median(times):.2f}"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few runs with small datasets, to check that it runs")
    parser.add_argument("--folder", help="folder for temporary datasets")
    return parser.parse_args()


if __name__ == "__main__":
    main()
