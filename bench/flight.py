"""Benchmark Arrow Flight: large streams, single-row inserts of many clients, and updates by row id.

Penstock is a real `penstock serve --dev`, used through pyarrow's client. Streams are compared with a plain pyarrow Flight
server in its own process, which writes and reads the same Parquet without a catalog or a flush. Single-row inserts come
from processes with one connection each, and are compared with as many processes that append with deltalake. Updates are
compared with deltalake's merge on the same files. All run in turns, and their results are checked.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.flight as fl

import flighters
from flighters import connect, get, put, update
from measure import Grid, Report, interleaved, median_and_p99, seconds
from rows import SCHEMA, table, wide

# Penstock and deltalake are imported where they are used, because processes that only insert import this file, too.

OURS, BARE, DELTA = "Penstock", "bare", "deltalake"
NOT_STREAMED = "deltalake, source not streamed"
WRITTEN, READ = "bench.written", "bench.read"
INSERT, GET = "INSERT", "DoGet"
BATCH_ROWS = 64 << 10
FILES, IDS = 20, 100
TWO, ALL = f"in 2 of {FILES} files", f"in all {FILES} files"
THROUGHPUT, MANY_CLIENTS = 0.8, 5.0  # goals: share of the plain server's throughput, multiple of deltalake's appends
FASTER = {TWO: 2.0, ALL: 1.0}


@dataclass(frozen=True)
class Numbers:
    streamed: int  # rows of a stream
    rounds: int
    clients: tuple[int, ...]
    writing: float  # seconds of a round of inserts
    turns: int  # rounds of inserts per number of clients
    rows: int  # rows of the updated table
    updates: int


FULL = Numbers(2_000_000, rounds=7, clients=(1, 8, 32), writing=10, turns=3, rows=5_000_000, updates=5)
QUICK = Numbers(300_000, rounds=2, clients=(1, 4), writing=2, turns=1, rows=200_000, updates=1)


# Servers.


@contextmanager
def serving(workspace: Path, log: Path) -> Iterator[str]:
    words = ["serve", "--dev", "--http-port", "0", "--flight-port", "0", "--json", "--workspace", str(workspace)]
    command = [sys.executable, "-c", "from penstock.cli import main; main()", *words]
    with log.open("w") as log_file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log_file) as process:
        try:
            assert process.stdout
            lines = iter(process.stdout.readline, b"}\n")
            yield json.loads(b"".join(lines) + b"}")["flight"]
        finally:
            process.terminate()


@contextmanager
def serving_bare(target_path: Path, like: Sequence[str]) -> Iterator[str]:
    context = get_context("spawn")
    receiver, log_file = context.Pipe(duplex=False)
    process = context.Process(target=flighters.serve_bare, args=(str(target_path), like, log_file))
    process.start()
    try:
        yield f"grpc://127.0.0.1:{receiver.recv()}"
    finally:
        process.terminate()
        process.join()


@dataclass
class Ground:
    folder: Path
    lake: Any  # the served workspace, opened in this process without flushes
    client: fl.FlightClient
    address: str

    def make(self, name: str, pieces: Sequence[pa.Table | str]) -> list[str]:
        """Create a dataset with a file for each piece, and return the paths of the files."""
        dataset = self.lake.create(name, pieces[0])
        for piece in pieces[1:]:
            dataset.append(piece)
        paths = dataset.current().paths()
        assert len(paths) == len(pieces)
        return list(paths)


# Large streams.


def streams(ground: Ground, bare: fl.FlightClient, rows: pa.Table, numbers: Numbers) -> dict[tuple[str, str], Any]:
    batches = rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
    flight_clients = {OURS: ground.client, BARE: bare}

    def inserted(client: fl.FlightClient) -> float:
        os.sync()  # pending writes of other jobs must not count
        return seconds(lambda: put(client, WRITTEN, batches))

    def read(client: fl.FlightClient) -> float:
        row_counts: list[int] = []
        taken = seconds(lambda: row_counts.extend(batch.num_rows for batch in get(client, READ)))
        assert sum(row_counts) == rows.num_rows
        return taken

    for client in flight_clients.values():
        inserted(client)
        read(client)
    _assert_alike(ground, rows)
    jobs = {(INSERT, system): partial(inserted, client) for system, client in flight_clients.items()}
    jobs |= {(GET, system): partial(read, client) for system, client in flight_clients.items()}
    return interleaved(jobs, numbers.rounds)


def _assert_alike(ground: Ground, rows: pa.Table) -> None:
    """Check that both servers have written all rows with the same encodings."""
    ours, bare = ground.lake.dataset(WRITTEN).current().paths()[-1], str(ground.folder / "bare.parquet")
    assert pads.dataset([bare]).to_table().equals(rows.cast(pads.dataset([bare]).schema))
    assert ground.lake.dataset(WRITTEN).to_arrow()["id"].equals(rows["id"])
    assert flighters.dictionaries(ours) == flighters.dictionaries(bare)


def _streams_table(took: dict[tuple[str, str], list[float]], rows: pa.Table, numbers: Numbers) -> Grid:
    size = rows.nbytes / 1e6
    lines = []
    for (operation, system), times in took.items():
        floor = took[operation, BARE]
        ratios = [min(floor) / min(times), median(floor) / median(times)]
        judged = [*(f"{r:.2f}" for r in ratios), f"from {THROUGHPUT}", _yes(ratios[1] >= THROUGHPUT)]
        rate = f"{size / median(times):,.0f}"
        lines.append(
            [
                f"{operation}, {system}",
                f"{min(times):.2f}",
                f"{median(times):.2f}",
                rate,
                *(judged if system == OURS else [""] * 4),
            ]
        )
    return Grid(
        f"Seconds for {rows.num_rows:,} rows of {rows.num_columns} columns ({size:,.0f} MB) in one stream of batches of "
        f"{BATCH_ROWS:,} rows; {numbers.rounds} rounds",
        ["", "best", "median", "MB/s", "throughput by best", "by median", "goal", "reached"],
        lines,
    )


# Single-row inserts.


def small(ground: Ground, numbers: Numbers) -> dict[tuple[int, str], list[flighters.Wrote]]:
    from deltalake import DeltaTable

    measurements: dict[tuple[int, str], list[flighters.Wrote]] = {}
    number = count()

    def run(clients: int, system: str) -> float:
        name = f"small_{next(number)}"
        if system == OURS:
            ground.lake.create(f"bench.{name}", SCHEMA.empty_table())
            wrote = flighters.side_by_side(
                flighters.over_flight, (ground.address, f"bench.{name}"), clients, numbers.writing
            )
            row_count = ground.lake.dataset(f"bench.{name}").current().num_rows
        else:
            target_path = str(ground.folder / name)
            DeltaTable.create(target_path, SCHEMA)
            wrote = flighters.side_by_side(flighters.by_deltalake, (target_path,), clients, numbers.writing)
            row_count = DeltaTable(target_path).count()
        assert row_count == len(wrote.took) + 2 * clients, (
            "acknowledged rows are missing"
        )  # the first and the last insert of each client
        measurements.setdefault((clients, system), []).append(wrote)
        return numbers.writing

    interleaved(
        {(clients, system): partial(run, clients, system) for clients in numbers.clients for system in (OURS, DELTA)},
        numbers.turns,
    )
    return measurements


def _small_table(measurements: dict[tuple[int, str], list[flighters.Wrote]], numbers: Numbers) -> Grid:
    lines = []
    for clients in numbers.clients:
        rates = {system: median(wrote.rate for wrote in measurements[clients, system]) for system in (OURS, DELTA)}
        cells = []
        for system, rate in rates.items():
            took = [call_seconds for wrote in measurements[clients, system] for call_seconds in wrote.took]
            cells += [f"{rate:,.1f}", *median_and_p99(took)]
        ratio = rates[OURS] / rates[DELTA]
        judged = (
            [f"from {MANY_CLIENTS:.0f}", _yes(ratio >= MANY_CLIENTS)] if clients == max(numbers.clients) else ["", ""]
        )
        lines.append([str(clients), *cells, f"{ratio:.1f}", *judged])
    ours = [f"{OURS}: {word}" for word in ("inserts/s", "p50", "p99")]
    delta_columns = [f"{DELTA}: {word}" for word in ("appends/s", "p50", "p99")]
    return Grid(
        f"Durable single-row inserts per second, and milliseconds of each; clients are processes; "
        f"{numbers.turns} × {numbers.writing:.0f} s",
        ["clients", *ours, *delta_columns, "ratio", "goal", "reached"],
        lines,
    )


# Updates by row id.


def updates(ground: Ground, numbers: Numbers) -> dict[tuple[str, str], list[float]]:
    rows_per_file = numbers.rows // FILES
    paths = ground.make("bench.first", [table(rows_per_file, number * rows_per_file) for number in range(FILES)])
    delta = _as_delta(ground.folder / "delta", paths)
    [first] = [batch["rowid"][0].as_py() for batch in get(ground.client, "bench.first", filter="id = 0", rowid=True)]
    number = count()

    def ours(source: pa.Table) -> float:
        name = f"bench.updated_{next(number)}"
        ground.make(name, paths)
        ids = [first + key for key in source["id"].to_pylist()]
        os.sync()
        taken = seconds(lambda: update(ground.client, name, ids, source))
        _assert_updated(pads.dataset(ground.lake.dataset(name).to_arrow()), source, numbers.rows)
        return taken

    def merge_with_delta(streamed: bool, source: pa.Table) -> float:
        target_path = ground.folder / f"delta_{next(number)}"
        shutil.copytree(delta, target_path, copy_function=os.link)  # no writer changes existing files
        os.sync()
        taken = seconds(lambda: _merge(str(target_path), source, streamed))
        written = pads.dataset(_live(target_path), schema=SCHEMA)  # deltalake writes string views
        _assert_updated(written, source, numbers.rows)
        shutil.rmtree(target_path)
        return taken

    jobs: dict[tuple[str, str], Callable[[], float]] = {}
    for shape, files in ((TWO, [FILES // 4, FILES * 2 // 3]), (ALL, range(FILES))):
        keys = np.concatenate([file * rows_per_file + _spread(IDS // len(files), rows_per_file) for file in files])
        source = table(IDS, numbers.rows * 2).set_column(0, SCHEMA.field("id"), pa.array(keys))
        jobs[shape, OURS] = partial(ours, source)
        jobs[shape, DELTA] = partial(merge_with_delta, True, source)
        jobs[shape, NOT_STREAMED] = partial(merge_with_delta, False, source)
    return interleaved(jobs, numbers.updates)


def _as_delta(target_path: Path, paths: Sequence[str]) -> Path:
    """Create a Delta log for the same files."""
    from deltalake import convert_to_deltalake

    target_path.mkdir()
    for path in paths:
        os.link(path, target_path / Path(path).name)
    convert_to_deltalake(str(target_path))
    return target_path


def _merge(target_path: str, source: pa.Table, streamed: bool) -> None:
    from deltalake import DeltaTable, WriterProperties

    log_file = (
        DeltaTable(target_path)
        .merge(
            source,
            "target.id = source.id",
            "source",
            "target",
            streamed_exec=streamed,
            writer_properties=WriterProperties(compression=flighters.CODEC.upper()),
        )
        .when_matched_update_all()
        .execute()
    )
    assert log_file["num_target_rows_updated"] == source.num_rows


def _live(target_path: Path) -> list[str]:
    from deltalake import DeltaTable

    return DeltaTable(target_path).file_uris()


def _assert_updated(dataset: pads.Dataset, source: pa.Table, rows: int) -> None:
    updated_rows = dataset.to_table(SCHEMA.names, filter=pc.field("id").isin(source["id"].combine_chunks()))
    assert dataset.count_rows() == rows
    assert updated_rows.sort_by("id").equals(source.sort_by("id"))


def _spread(amount: int, within: int) -> np.ndarray:
    return np.arange(amount, dtype=np.int64) * within // amount


def _updates_table(took: dict[tuple[str, str], list[float]], numbers: Numbers) -> Grid:
    lines = []
    for (shape, system), times in took.items():
        judged = [""] * 4
        if system == OURS:
            peers = [took[shape, DELTA], took[shape, NOT_STREAMED]]
            ratios = [min(map(of, peers)) / of(times) for of in (min, median)]
            judged = [*(f"{r:.2f}" for r in ratios), f"from {FASTER[shape]:.0f}", _yes(ratios[1] >= FASTER[shape])]
        lines.append([f"{shape}: {system}", f"{min(times):.3f}", f"{median(times):.3f}", *judged])
    return Grid(
        f"Seconds to update {IDS} rows of {numbers.rows:,}; {numbers.updates} rounds. Ratios: the faster deltalake ÷ Penstock",
        ["location of the rows", "best", "median", "ratio by best", "by median", "goal", "reached"],
        lines,
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def measure(report: Report, numbers: Numbers, folder: Path, only: Sequence[str]) -> None:
    import penstock
    from penstock.config import Settings

    settings = Settings(workspace=folder / "lake", durable=False)
    with (
        penstock.open(create=True, settings=settings) as lake,
        serving(settings.workspace, folder / "log") as address,
        connect(address) as client,
    ):
        ground = Ground(folder, lake, client, address)
        if "streams" in only:
            rows = wide(numbers.streamed)
            paths = ground.make(READ, [rows])
            lake.create(WRITTEN, rows.schema.empty_table())
            with serving_bare(folder / "bare.parquet", paths) as target_path, connect(target_path) as bare:
                report.add(_streams_table(streams(ground, bare, rows, numbers), rows, numbers))
        if "small" in only:
            report.add(_small_table(small(ground, numbers), numbers))
        if "updates" in only:
            report.add(_updates_table(updates(ground, numbers), numbers))


def main() -> None:
    options = _options()
    packages = ["pyarrow", "grpcio", "deltalake", "sqlalchemy"]
    report = Report("flight", "Rows over Arrow Flight", packages, quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        measure(report, QUICK if options.quick else FULL, Path(folder), options.only)
    print(f"\nalso in {report.save()}")


def _options() -> argparse.Namespace:
    parts = ("streams", "small", "updates")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few clients and fewer rows, to check that it runs")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="run only these parts")
    parser.add_argument("--folder", help="folder for temporary tables (on a disk, not in memory)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
