"""Benchmark commits, and the time to open a table and find the files of one key.

Penstock is compared with deltalake and pyiceberg at few and at many versions in one run. Every version appended one
row and so one file. The tables are measured in turns, call by call.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue, EqualTo

import penstock
from measure import Grid, Report, interleaved, median_and_p99, ms, seconds
from penstock.config import Settings
from rows import SCHEMA, table

NAME = "bench.rows"


@dataclass(frozen=True)
class Numbers:
    alone: tuple[int, ...]  # versions at which only Penstock is measured
    beside: tuple[int, ...]  # versions at which all are measured
    samples: int
    full_plans: int
    at_most: float  # seconds per measurement and table; slow ones get fewer samples


FULL = Numbers(alone=(1_000, 20_000), beside=(10, 500), samples=300, full_plans=40, at_most=25)
QUICK = Numbers(alone=(200,), beside=(10,), samples=20, full_plans=5, at_most=5)


class System(Protocol):
    """A table format. `append` uses an open writer; a plan opens the table again."""

    def append(self, rows: pa.Table) -> None: ...
    def open_and_plan(self, key: int | None) -> int:
        """Return the number of files that must be read for one id, or for all."""
        ...

    def close(self) -> None: ...


class Penstock:
    def __init__(self, folder: Path, settings: Settings) -> None:
        self._settings = replace(settings, workspace=folder)
        # Growing needs no flush. Measured appends use the given settings.
        with penstock.open(settings=replace(self._settings, durable=False), create=True) as lake:
            lake.create(NAME, schema=SCHEMA)
        self._lake = penstock.open(settings=self._settings)
        self._rows = self._lake.dataset(NAME)

    def grow(self, versions: int) -> None:
        with penstock.open(settings=replace(self._settings, durable=False)) as lake:
            rows = lake.dataset(NAME)
            for number in range(versions):
                rows.append(table(1, number))

    def append(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def open_and_plan(self, key: int | None) -> int:
        with penstock.open(settings=self._settings) as lake:
            return len(lake.dataset(NAME).current().files(None if key is None else f"id = {key}"))

    def close(self) -> None:
        self._lake.close()


class Delta:
    def __init__(self, folder: Path) -> None:
        self._path = str(folder)
        DeltaTable.create(self._path, SCHEMA)

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self._path, rows, mode="append")

    def open_and_plan(self, key: int | None) -> int:
        # The fastest variant: get_add_actions with a filter is close, to_pyarrow_dataset().get_fragments is much slower.
        return len(DeltaTable(self._path).file_uris(file_pruning_predicate=None if key is None else f"id = {key}"))

    def close(self) -> None:
        pass


class Iceberg:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._location = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        self._catalog = SqlCatalog("bench", **self._location)
        self._catalog.create_namespace("bench")
        self._table = self._catalog.create_table(NAME, SCHEMA)

    def append(self, rows: pa.Table) -> None:
        self._table.append(rows)

    def open_and_plan(self, key: int | None) -> int:
        catalog = SqlCatalog("bench", **self._location)
        try:
            row_filter = AlwaysTrue() if key is None else EqualTo("id", key)
            return len(list(catalog.load_table(NAME).scan(row_filter).plan_files()))
        finally:
            catalog.close()

    def close(self) -> None:
        self._catalog.close()


class PlainParquet:
    """A Parquet file in a folder without a table format: the lower bound."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        folder.mkdir()
        self._folder, self._durable, self._number = folder, durable, 0

    def append(self, rows: pa.Table) -> None:
        self._number += 1
        with open(self._folder / f"{self._number}.parquet", "xb") as file:
            pq.write_table(rows, file, compression="zstd")
            if self._durable:
                file.flush()
                os.fsync(file.fileno())
        if self._durable:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(folder)
            os.close(folder)


class GrownTable:
    """A table with a number of versions. It is created again when measured appends have tripled its versions."""

    def __init__(self, path: Path, make: Callable[[Path], System], versions: int) -> None:
        self._location, self._make, self.versions = path, make, versions
        self._built = self._plans_done = 0
        self._build()

    def append(self, count: int) -> float:
        if self._added >= 2 * self.versions:
            self.system.close()
            self._build()
        if not self._added:
            self._append(1)  # not measured: the first append of a writer also acquires its lease
        return self._append(count)

    def find_one(self) -> float:
        self._plans_done += 1
        return self._plan(self._plans_done * 7919 % self.versions, files=1)

    def list_all(self) -> float:
        return self._plan(None, files=self.versions)

    def _plan(self, key: int | None, *, files: int) -> float:
        planned_files: list[int] = []
        taken = seconds(lambda: planned_files.append(self.system.open_and_plan(key)))
        assert planned_files == [files], f"{planned_files} files were planned where {files} hold the rows"
        return taken

    def _append(self, count: int) -> float:
        rows = table(count, self._next)
        self._next += count
        self._added += 1
        return seconds(lambda: self.system.append(rows))

    def _build(self) -> None:
        folder = self._location / str(self._built)
        if self._built:
            shutil.rmtree(self._location / str(self._built - 1))
        self._location.mkdir(exist_ok=True)
        self._built += 1
        self.system = self._make(folder)
        if isinstance(self.system, Penstock):
            self.system.grow(self.versions)
        else:
            for number in range(self.versions):
                self.system.append(table(1, number))
        self._next, self._added = self.versions, 0


def main() -> None:
    options = _options()
    numbers = QUICK if options.quick else FULL
    report = Report(
        "commit",
        "Commits and plans",
        ["pyarrow", "sqlalchemy", "deltalake", "pyiceberg"],
        quick=options.quick,
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        measure(report, numbers, Path(folder), options.postgres)
    print(f"\nalso in {report.save()}")


Case = tuple[str, int]  # name of the system and number of versions
Times = dict[Case, list[float]]


@dataclass(frozen=True)
class Measurements:
    single: Times  # appends of one row
    thousand: Times  # appends of 1,000 rows
    one: Times  # opening, and planning for one key
    whole: Times  # opening, and listing every file


def measure(report: Report, numbers: Numbers, folder: Path, postgres: str | None) -> None:
    ours: dict[str, Callable[[Path], System]] = {
        "Penstock": lambda path: Penstock(path, Settings()),
        "Penstock, not durable": lambda path: Penstock(path, Settings(durable=False)),
    }
    if postgres:
        ours["Penstock on PostgreSQL"] = lambda path: Penstock(path, Settings(database_url=postgres))
    peers: dict[str, Callable[[Path], System]] = {"deltalake": Delta, "pyiceberg": Iceberg}
    sizes = sorted((*numbers.alone, *numbers.beside))
    table_specs = [(system, make, n) for system, make in ours.items() for n in sizes]
    table_specs += [(system, make, n) for system, make in peers.items() for n in numbers.beside]
    tables = {(system, n): GrownTable(folder / str(i), make, n) for i, (system, make, n) in enumerate(table_specs)}
    floors = {
        ("a bare Parquet file, flushed", 0): PlainParquet(folder / "flushed", durable=True),
        ("a bare Parquet file", 0): PlainParquet(folder / "bare", durable=False),
    }
    measurements = _measured(tables, floors, numbers)
    report.add(_appends(measurements, [*tables, *floors]))
    report.add(_plans(measurements, list(tables)))
    report.add(_ratios(measurements, list(ours), list(peers), numbers))


def _measured(tables: dict[Case, GrownTable], floors: dict[Case, PlainParquet], numbers: Numbers) -> Measurements:
    def turns(
        act: Callable[[GrownTable], float], times: int, besides: dict[Case, Callable[[], float]] | None = None
    ) -> Times:
        jobs = {case: partial(act, grown) for case, grown in tables.items()}
        return interleaved({**jobs, **(besides or {})}, times, at_most=numbers.at_most)

    def appends(count: int) -> Times:
        rows = table(count)
        bare = {case: partial(seconds, partial(floor.append, rows)) for case, floor in floors.items()}
        return turns(lambda grown: grown.append(count), numbers.samples, bare)

    # Plans first: they need tables with the exact number of versions.
    one, whole = turns(GrownTable.find_one, numbers.samples), turns(GrownTable.list_all, numbers.full_plans)
    measurements = Measurements(appends(1), appends(1000), one, whole)
    for grown in tables.values():
        grown.system.close()
    return measurements


def _appends(measurements: Measurements, cases: list[Case]) -> Grid:
    header = ["", "versions", "1 row, median", "p99", "1,000 rows, median", "p99", "samples"]
    lines = []
    for case in cases:
        single, thousand = measurements.single[case], measurements.thousand[case]
        samples = f"{len(single)} + {len(thousand)}"
        lines.append([*_case(case), *median_and_p99(single), *median_and_p99(thousand), samples])
    return Grid("Append, in milliseconds", header, lines)


def _plans(measurements: Measurements, cases: list[Case]) -> Grid:
    header = ["", "versions = files", "one key, median", "p99", "all files, median", "µs a file", "samples"]
    lines = []
    for case in cases:
        one, whole = measurements.one[case], median(measurements.whole[case])
        samples = f"{len(one)} + {len(measurements.whole[case])}"
        lines.append([*_case(case), *median_and_p99(one), ms(whole), f"{whole * 1e6 / case[1]:,.1f}", samples])
    return Grid("Open and plan, in milliseconds", header, lines)


def _ratios(measurements: Measurements, ours: list[str], peers: list[str], numbers: Numbers) -> Grid:
    def ratio(above: Case, below: Case) -> list[str]:
        times = (measurements.single, measurements.thousand, measurements.one, measurements.whole)
        return [f"{median(times_of_cases[above]) / median(times_of_cases[below]):.2f}" for times_of_cases in times]

    few, many = min(numbers.beside), max(numbers.alone)
    lines = [[f"{system}: {many:,} versions ÷ {few}", *ratio((system, many), (system, few))] for system in ours]
    for peer, system, n in product(peers, ours, numbers.beside):
        lines.append([f"{peer} ÷ {system}, {n} versions", *ratio((peer, n), (system, n))])
    return Grid("Ratios of the medians", ["", "1 row", "1,000 rows", "one key", "all files"], lines)


def _case(case: Case) -> tuple[str, str]:
    system, versions = case
    return system, f"{versions:,}" if versions else "–"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few samples of small tables, to check that it runs")
    parser.add_argument("--postgres", metavar="URL", help="also measure with this catalog; the rows stay in it")
    parser.add_argument("--folder", help="folder for temporary tables (on a disk, not in memory)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
