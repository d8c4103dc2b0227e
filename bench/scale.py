"""Benchmark the catalog: bytes per file, commit and dataset, and the latency of its operations as it grows.

Files are listed but never written: the catalog does not read them, and the measured query can tell from their
statistics that it need not open any.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from statistics import median
from uuid import UUID, uuid4

from sqlalchemy import text

import penstock
from measure import Grid, Report, interleaved, ms, seconds
from penstock.catalog import commit as commits
from penstock.catalog import dataset_search as datasets
from penstock.catalog import retention, snapshots
from penstock.catalog.database import Database
from penstock.config import Settings
from penstock.core import odata
from penstock.core.dataset.changes import Change, Counts, NewDataset, NewFile
from penstock.core.dataset.column_stats import Bounds, ColumnStats
from penstock.core.names import DatasetName
from penstock.core.workspace_layout import dataset_folder
from penstock.errors import PenstockError
from penstock.lake import Lake
from penstock.storage import data_files
from rows import SCHEMA

ROWS = 100_000  # of a file
AT_ONCE = 10_000  # files per commit while a dataset grows
FILES, DATASETS, COMMITS = "a file", "a dataset", "a commit"
GROWING_TABLES = {  # tables that grow with each
    FILES: ("data_files", "file_ranges"),
    DATASETS: ("datasets", "dataset_schemas"),
    COMMITS: ("dataset_versions", "receipts", "audit"),
}


@dataclass(frozen=True)
class Numbers:
    files: tuple[int, ...]  # of one dataset
    datasets: int
    commits: int
    samples: int
    at_most: float  # seconds per measurement; slow ones get fewer samples


FULL = Numbers(files=(1_000, 10_000, 30_000, 100_000), datasets=1_000, commits=500, samples=20, at_most=3)
QUICK = Numbers(files=(100, 1_000), datasets=50, commits=50, samples=3, at_most=2)

Sizes = Mapping[tuple[str, str], int]  # a table and "rows" or "indexes" → bytes


@dataclass(frozen=True)
class Grower:
    """Makes a catalog grow without writing files."""

    lake: Lake
    lease: UUID

    @property
    def db(self) -> Database:
        return self.lake._workspace.db

    def dataset(self, name: str) -> UUID:
        dataset_id = uuid4()
        creation = NewDataset(DatasetName("bench", name))
        self._commit(Change(dataset_id, 0, "create", SCHEMA, create=creation))
        return dataset_id

    def add(self, dataset: UUID, files: int, start: int = 0) -> None:
        folder = dataset_folder(self.lake.caller, dataset)
        listed = tuple(_file(folder, self.lease, number) for number in range(start, start + files))
        self._commit(
            Change(dataset, 0, "append", SCHEMA, added=listed, counts=Counts(inserted=files * ROWS), rebase=True)
        )

    def _commit(self, change: Change) -> None:
        commits.commit(self.db, self.lake.caller, [change], lease=self.lease, key=f"bench:{uuid4()}")

    def files(self, dataset: UUID, bounds: Bounds | None = None, *, stats: bool = False) -> int:
        with self.db.read(self.lake.caller) as tx:
            return len(snapshots.files(tx, snapshots.newest(tx, dataset), bounds, stats=stats))

    def count_listed(self, paths: list[str]) -> int:
        with self.db.read(self.lake.caller) as tx:
            return len(retention.registered_paths(tx, paths))

    def page(self) -> int:
        with self.db.read(self.lake.caller) as tx:
            options = odata.options([], datasets.FIELDS, default_top=50, max_top=200)
            return len(datasets.search(tx, options).items)

    def everything(self) -> int:
        with self.db.read(self.lake.caller) as tx:
            return len(snapshots.list_newest(tx))


def _file(folder: str, lease: UUID, number: int) -> NewFile:
    """List a file as a writer of rows in the order of their ids would."""
    first, last = number * ROWS, number * ROWS + ROWS - 1
    began = 1_700_000_000_000_000
    stats = {
        "id": ColumnStats(first, last, 0),
        "device": ColumnStats(0, 999, 0),
        "reading": ColumnStats(0.000013, 0.999987, 0),
        "amount": ColumnStats(Decimal("-9999.98"), Decimal("9999.97"), 0),
        "city": ColumnStats("Accra", "Jaipur", 0),
        "label": ColumnStats("label-10000113", "label-999987342", 0),
        "taken": ColumnStats(began + first * 250_000, began + last * 250_000, 0),
        "valid": ColumnStats(0, 1, 0),
    }
    return NewFile(f"{folder}/{data_files.new_file_name(lease)}", ROWS, 5_000_000, f"sha256:{uuid4().hex * 2}", stats)


def main() -> None:
    options = _options()
    numbers = QUICK if options.quick else FULL
    report = Report("scale", "The catalog as it grows", ["sqlalchemy", "psycopg"], quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        catalogs = {"SQLite": Settings(workspace=Path(folder) / "sqlite")}
        if options.postgres:
            catalogs["PostgreSQL"] = Settings(workspace=Path(folder) / "postgres", database_url=options.postgres)
        for where, settings in catalogs.items():
            with _grower(settings) as grower:
                report.add(_stored_bytes(where, grower, numbers))
                report.add(_used(where, grower, numbers))
    print(f"\nalso in {report.save()}")


@contextmanager
def _grower(settings: Settings) -> Iterator[Grower]:
    patient = replace(settings, query_seconds=120)  # longer than the default, to measure slow queries
    with penstock.open(settings=patient, create=True) as lake:
        yield Grower(lake, lake._workspace.writers.lease(lake.caller))


def _stored_bytes(where: str, grower: Grower, numbers: Numbers) -> Grid:
    """Grow the catalog by each in turn, and measure the growth of its tables."""
    hot = grower.dataset("hot")
    grown: dict[str, tuple[int, Sizes]] = {}

    def grow(unit: str, count: int, acts: Sequence[Callable[[], object]]) -> None:
        before = _sizes(grower.db)
        for act in acts:
            act()
        after = _sizes(grower.db)
        grown[unit] = count, {table_part: after[table_part] - before[table_part] for table_part in after}

    grow(DATASETS, numbers.datasets, [partial(grower.dataset, f"d{n}") for n in range(numbers.datasets)])
    grow(COMMITS, numbers.commits, [partial(grower.add, hot, 1, n) for n in range(numbers.commits)])
    grow(FILES, sum(numbers.files), [partial(_grow, grower, files) for files in numbers.files])
    lines = []
    for unit, (count, sizes) in grown.items():
        for table in GROWING_TABLES[unit]:
            rows, indexes = (sizes[table, part] / count for part in ("rows", "indexes"))
            lines.append([f"{unit}: {table}", f"{rows:,.0f}", f"{indexes:,.0f}", f"{rows + indexes:,.0f}"])
    return Grid(f"{where}: stored bytes", ["", "rows", "indexes", "total"], lines)


def _grow(grower: Grower, files: int) -> None:
    dataset = grower.dataset(f"f{files}")
    for start in range(0, files, AT_ONCE):
        grower.add(dataset, min(AT_ONCE, files - start), start)


def _used(where: str, grower: Grower, numbers: Numbers) -> Grid:
    with grower.db.read(grower.lake.caller) as tx:
        grown_datasets = {n: snapshots.by_name(tx, DatasetName("bench", f"f{n}")) for n in numbers.files}
        paths = {n: [file.path for file in snapshots.files(tx, at)] for n, at in grown_datasets.items()}
    next_file = iter(range(max(numbers.files), 2**31))
    acts: dict[str, Callable[[int], object]] = {
        "commit of one file": lambda n: grower.add(grown_datasets[n].dataset, 1, next(next_file)),
        "files that may hold one id": lambda n: grower.files(grown_datasets[n].dataset, {"id": (n * ROWS // 2,) * 2}),
        "all files": lambda n: grower.files(grown_datasets[n].dataset),
        "all files, with statistics": lambda n: grower.files(grown_datasets[n].dataset, stats=True),
        "a query that opens no file": lambda n: _query(grower.lake, n),
        "which files of a folder the catalog knows": lambda n: grower.count_listed(paths[n]),
    }
    lines = []
    for name, act in acts.items():
        jobs = {n: partial(_timed, partial(act, n)) for n in numbers.files}
        measurements = interleaved(jobs, numbers.samples, at_most=numbers.at_most)
        lines.append([name, *(_format_times(measurements[n]) for n in numbers.files)])
    lists = interleaved(
        {name: partial(_timed, act) for name, act in (("page", grower.page), ("all", grower.everything))},
        numbers.samples,
        at_most=numbers.at_most,
    )
    count = numbers.datasets + len(numbers.files) + 1
    for name, taken in lists.items():
        row_label = f"{name} of {count:,} datasets" if name == "all" else f"the first page of {count:,} datasets"
        lines.append([row_label, *["–"] * (len(numbers.files) - 1), _format_times(taken)])
    header = ["", *(f"{n:,} files" for n in numbers.files)]
    return Grid(f"{where}: medians, in milliseconds", header, lines)


def _timed(act: Callable[[], object]) -> float:
    """Return the seconds of a call, or infinity if it was rejected."""
    try:
        return seconds(act)
    except PenstockError as error:
        print(f"refused: {error.reason}: {error.message}")
        return math.inf


def _format_times(taken: list[float]) -> str:
    return "refused" if max(taken) == math.inf else ms(median(taken))


def _query(lake: Lake, files: int) -> None:
    sql = f"SELECT count(*) AS n FROM bench.f{files} WHERE id < 0"
    table = lake._query_executor.preview(lake.caller, sql, {}).table
    assert table.to_pylist() == [{"n": 0}]


def _sizes(db: Database) -> Sizes:
    with db.connect_without_tenant() as connection:
        rows = connection.execute(_POSTGRESQL if connection.dialect.name == "postgresql" else _SQLITE)
        return {(row.table_, row.part): row.bytes for row in rows}


_SQLITE = text(
    "SELECT m.tbl_name AS table_, CASE m.type WHEN 'table' THEN 'rows' ELSE 'indexes' END AS part, "
    "sum(s.pgsize) AS bytes FROM dbstat s JOIN sqlite_master m ON m.name = s.name GROUP BY 1, 2 "
    "UNION ALL SELECT name, 'indexes', 0 FROM sqlite_master WHERE type = 'table' AND name NOT IN "
    "(SELECT tbl_name FROM sqlite_master WHERE type = 'index')"
)
_POSTGRESQL = text(
    "SELECT relname AS table_, part, CASE part WHEN 'rows' THEN pg_table_size(relid) ELSE pg_indexes_size(relid) END "
    "AS bytes FROM pg_stat_user_tables, (VALUES ('rows'), ('indexes')) AS parts (part)"
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, to check that it runs")
    parser.add_argument("--postgres", metavar="URL", help="also measure this catalog; the rows stay in it")
    parser.add_argument("--folder", help="folder of the temporary SQLite catalog")
    return parser.parse_args()


if __name__ == "__main__":
    main()
