"""Benchmark scans: throughput and memory of reading all rows of a dataset.

The reference is `pyarrow.dataset` with its defaults on the same files. Every read runs in its own process, so that its
peak memory is its own. Both run in turns.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from measure import Grid, Report
from rows import SCHEMA, stream

# Penstock is imported where it is used, so that other processes do not hold it in memory.

NAME = "bench.rows"
FILE_BYTES = 8 << 20  # two row groups per file


@dataclass(frozen=True)
class Numbers:
    rows: tuple[int, int, int]  # speed is measured with the middle one, memory with all
    rounds: int


FULL = Numbers(rows=(1_000_000, 5_000_000, 10_000_000), rounds=9)
QUICK = Numbers(rows=(300_000, 600_000, 1_200_000), rounds=2)


@dataclass(frozen=True)
class Read:
    """A read for both libraries. Only Penstock returns row ids; pyarrow reads the same rows without them."""

    columns: Sequence[str] | None = None
    where: str | None = None
    filter: pc.Expression | None = None
    row_ids: bool = False


_DEVICE = {"where": "device = 7 AND reading > 0.5", "filter": (pc.field("device") == 7) & (pc.field("reading") > 0.5)}
_IDS = {"where": "id BETWEEN 100000 AND 100999", "filter": (pc.field("id") >= 100_000) & (pc.field("id") <= 100_999)}
_TWO = ("id", "amount")

READS = {
    "everything": Read(),
    "2 of 8 columns": Read(_TWO),
    "1 row in 2,000, 2 columns": Read(_TWO, **_DEVICE),
    "1,000 ids in a row": Read(**_IDS),
    "everything, with row ids": Read(row_ids=True),
    "1 row in 2,000, 2 columns, with row ids": Read(_TWO, **_DEVICE, row_ids=True),
}


@dataclass(frozen=True)
class ReadResult:
    rows: int
    first: float  # seconds of the first read in a new process
    seconds: float  # of the second
    peak: int  # bytes


def main() -> None:
    options = _options()
    numbers = QUICK if options.quick else FULL
    report = Report("scan", "Reading rows back", ["pyarrow", "sqlalchemy"], quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        workspaces = {rows: f"{folder}/{rows}" for rows in numbers.rows}
        written = {rows: _fresh(write, folder_path, rows) for rows, folder_path in workspaces.items()}
        paths = {rows: _fresh(locate, folder_path) for rows, folder_path in workspaces.items()}
        report.add(_speed(workspaces, paths, numbers))
        report.add(_memory(workspaces, paths, written, numbers))
    print(f"\nalso in {report.save()}")


def write(folder_path: str, rows: int) -> int:
    """Write a dataset, and return the peak memory."""
    import penstock

    with penstock.open(settings=_settings(folder_path), create=True) as lake:
        lake.create(NAME, stream(rows))
    return _peak()


def locate(folder_path: str) -> list[str]:
    import penstock

    with penstock.open(settings=_settings(folder_path)) as lake:
        return lake.dataset(NAME).current().paths()


def through_penstock(folder_path: str, _paths: list[str], name: str) -> ReadResult:
    import penstock

    read = READS[name]
    with penstock.open(settings=_settings(folder_path)) as lake:
        dataset = lake.dataset(NAME)
        return _timed_reads(lambda: dataset.scan(read.columns, read.where, row_ids=read.row_ids))


def through_pyarrow(_workspace: str, paths: list[str], name: str) -> ReadResult:
    read = READS[name]
    columns = None if read.columns is None else list(read.columns)
    return _timed_reads(lambda: pads.dataset(paths, format="parquet").to_batches(columns=columns, filter=read.filter))


def idle() -> int:
    import penstock  # noqa: F401

    return _peak()


def _timed_reads(begin: Callable[[], Iterable[pa.RecordBatch]]) -> ReadResult:
    rows, times = 0, []
    for _ in range(2):
        begun = time.perf_counter()
        rows = sum(batch.num_rows for batch in begin())
        times.append(time.perf_counter() - begun)
    return ReadResult(rows, *times, _peak())


def _settings(folder_path: str) -> Any:
    from penstock.config import Settings

    return Settings(workspace=Path(folder_path), file_bytes=FILE_BYTES, durable=False)


def _speed(workspaces: dict[int, str], paths: dict[int, list[str]], numbers: Numbers) -> Grid:
    rows = numbers.rows[1]
    lines = []
    for name in READS:
        ours, plain_results = [], []
        for _ in range(numbers.rounds):
            ours.append(_fresh(through_penstock, workspaces[rows], paths[rows], name))
            plain_results.append(_fresh(through_pyarrow, workspaces[rows], paths[rows], name))
        assert {read_results.rows for read_results in ours} == {read_results.rows for read_results in plain_results}, (
            f"{name}: the results differ"
        )
        (best, usual, first), (its_best, its_usual, its_first) = _times(ours), _times(plain_results)
        figures = (best, usual, first, its_best, its_usual, its_first)
        ratios = (its_best / best, its_usual / usual)
        lines.append([name, f"{ours[0].rows:,}", *(f"{s:.3f}" for s in figures), *(f"{r:.2f}" for r in ratios)])
    size = sum(Path(path).stat().st_size for path in paths[rows])
    source_size = f"{rows:,} rows, {len(SCHEMA)} columns, {len(paths[rows])} files, {size / 1e6:,.0f} MB"
    header = ["", "rows", "Penstock: best", "median", "first", "pyarrow: best", "median", "first"]
    return Grid(
        f"Seconds to read {source_size}; {numbers.rounds} rounds. Speed: Penstock's throughput as a part of pyarrow's",
        [*header, "speed by best", "by median"],
        lines,
    )


def _memory(workspaces: dict[int, str], paths: dict[int, list[str]], written: dict[int, int], numbers: Numbers) -> Grid:
    def peaks(act: Callable[..., ReadResult], name: str) -> list[str]:
        return [_mb(max(_fresh(act, workspaces[n], paths[n], name).peak for _ in range(3))) for n in numbers.rows]

    lines = [
        ["files", *(f"{len(paths[n])}" for n in numbers.rows)],
        ["Penstock writes everything", *(_mb(written[n]) for n in numbers.rows)],
        ["Penstock reads everything", *peaks(through_penstock, "everything")],
        ["Penstock reads everything, with row ids", *peaks(through_penstock, "everything, with row ids")],
        ["pyarrow reads everything", *peaks(through_pyarrow, "everything")],
        ["baseline: Python and the libraries, no read", *(_mb(_fresh(idle)) for _ in numbers.rows)],
    ]
    caption = "Peak memory of a process in MB, the highest of three reads"
    return Grid(caption, ["", *(f"{n:,} rows" for n in numbers.rows)], lines)


def _times(read_results: list[ReadResult]) -> tuple[float, float, float]:
    """Return best and median of the second reads, and the median of the first reads."""
    second = [result.seconds for result in read_results]
    return min(second), median(second), median(result.first for result in read_results)


def _fresh(act: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(act, *arguments).result()


def _peak() -> int:
    """Return the peak memory of this process in bytes."""
    try:
        # Not ru_maxrss: it includes the process that started this one.
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except OSError:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used << 10


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few reads of small datasets, to check that it runs")
    parser.add_argument("--folder", help="folder for temporary datasets")
    return parser.parse_args()


if __name__ == "__main__":
    main()
