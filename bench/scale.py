"""What the catalog keeps for each file, commit and dataset, and which of its uses take longer the more there are.

The files are listed and never written: the catalog does not look at them, and the query that is measured can tell from
their statistics that it has to open none.
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
from penstock.catalog import snapshots as history
from penstock.catalog import retention
from penstock.catalog.database import Database
from penstock.config import Settings
from penstock.core import odata
from penstock.core.dataset.changes import Change, Counts, Creation, NewFile
from penstock.core.names import DatasetName
from penstock.core.dataset.column_stats import Bounds, Stats
from penstock.errors import PenstockError
from penstock.lake import Lake
from penstock.storage import data_files as datafiles
from rows import SCHEMA

ROWS = 100_000  # of a file
AT_ONCE = 10_000  # files in a commit that only grows a dataset
FILES, DATASETS, COMMITS = "a file", "a dataset", "a commit"
KEPT = {  # the tables that grow with each
    FILES: ("data_files", "file_bins"),
    DATASETS: ("datasets", "dataset_schemas"),
    COMMITS: ("dataset_versions", "receipts", "audit"),
}


@dataclass(frozen=True)
class Numbers:
    files: tuple[int, ...]  # of one dataset
    datasets: int
    commits: int
    samples: int
    at_most: float  # seconds for one measurement; the slowest get fewer samples


FULL = Numbers(files=(1_000, 10_000, 30_000, 100_000), datasets=1_000, commits=500, samples=20, at_most=3)
QUICK = Numbers(files=(100, 1_000), datasets=50, commits=50, samples=3, at_most=2)

Sizes = Mapping[tuple[str, str], int]  # a table and "rows" or "indexes" → bytes


@dataclass(frozen=True)
class Grower:
    """Makes a catalog grow without a file."""

    lake: Lake
    lease: UUID

    @property
    def db(self) -> Database:
        return self.lake.workspace.db

    def dataset(self, name: str) -> UUID:
        made = uuid4()
        creation = Creation(DatasetName("bench", name))
        self._commit(Change(made, 0, "create", SCHEMA, create=creation))
        return made

    def add(self, dataset: UUID, files: int, start: int = 0) -> None:
        folder = commits.location(self.lake.caller, dataset)
        listed = tuple(_file(folder, self.lease, number) for number in range(start, start + files))
        self._commit(
            Change(dataset, 0, "append", SCHEMA, added=listed, counts=Counts(inserted=files * ROWS), rebase=True)
        )

    def _commit(self, change: Change) -> None:
        commits.commit(self.db, self.lake.caller, [change], lease=self.lease, key=f"bench:{uuid4()}")

    def files(self, dataset: UUID, bounds: Bounds | None = None, *, stats: bool = False) -> int:
        with self.db.read(self.lake.caller) as tx:
            return len(history.files(tx, history.newest(tx, dataset), bounds, stats=stats))

    def known(self, paths: list[str]) -> int:
        with self.db.read(self.lake.caller) as tx:
            return len(retention.known(tx, paths))

    def page(self) -> int:
        with self.db.read(self.lake.caller) as tx:
            options = odata.options([], datasets.FIELDS, default_top=50, max_top=200)
            return len(datasets.search(tx, options).items)

    def everything(self) -> int:
        with self.db.read(self.lake.caller) as tx:
            return len(history.datasets_now(tx))


def _file(folder: str, lease: UUID, number: int) -> NewFile:
    """As a writer of rows in the order of their ids would list it."""
    first, last = number * ROWS, number * ROWS + ROWS - 1
    began = 1_700_000_000_000_000
    stats = {
        "id": Stats(first, last, 0),
        "device": Stats(0, 999, 0),
        "reading": Stats(0.000013, 0.999987, 0),
        "amount": Stats(Decimal("-9999.98"), Decimal("9999.97"), 0),
        "city": Stats("Accra", "Jaipur", 0),
        "label": Stats("label-10000113", "label-999987342", 0),
        "taken": Stats(began + first * 250_000, began + last * 250_000, 0),
        "valid": Stats(0, 1, 0),
    }
    return NewFile(f"{folder}/{datafiles.name(lease)}", ROWS, 5_000_000, f"sha256:{uuid4().hex * 2}", stats)


def main() -> None:
    options = _options()
    numbers = QUICK if options.quick else FULL
    report = Report("scale", "The catalog as it grows", ["sqlalchemy", "psycopg"], quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as folder:
        places = {"SQLite": Settings(workspace=Path(folder) / "sqlite")}
        if options.postgres:
            places["PostgreSQL"] = Settings(workspace=Path(folder) / "postgres", database_url=options.postgres)
        for where, settings in places.items():
            with _grower(settings) as grower:
                report.add(_kept(where, grower, numbers))
                report.add(_used(where, grower, numbers))
    print(f"\nalso in {report.save()}")


@contextmanager
def _grower(settings: Settings) -> Iterator[Grower]:
    patient = replace(settings, query_seconds=120)  # to see how long it takes, beyond what is allowed by default
    with penstock.open(settings=patient, create=True) as lake:
        yield Grower(lake, lake.workspace.writers.lease(lake.caller))


def _kept(where: str, grower: Grower, numbers: Numbers) -> Grid:
    """Let the catalog grow by each in turn, and see which tables became how much larger."""
    hot = grower.dataset("hot")
    grown: dict[str, tuple[int, Sizes]] = {}

    def grow(what: str, count: int, acts: Sequence[Callable[[], object]]) -> None:
        before = _sizes(grower.db)
        for act in acts:
            act()
        after = _sizes(grower.db)
        grown[what] = count, {place: after[place] - before[place] for place in after}

    grow(DATASETS, numbers.datasets, [partial(grower.dataset, f"d{n}") for n in range(numbers.datasets)])
    grow(COMMITS, numbers.commits, [partial(grower.add, hot, 1, n) for n in range(numbers.commits)])
    grow(FILES, sum(numbers.files), [partial(_grow, grower, files) for files in numbers.files])
    lines = []
    for what, (count, sizes) in grown.items():
        for table in KEPT[what]:
            rows, indexes = (sizes[table, part] / count for part in ("rows", "indexes"))
            lines.append([f"{what}: {table}", f"{rows:,.0f}", f"{indexes:,.0f}", f"{rows + indexes:,.0f}"])
    return Grid(f"{where}: what is kept, in bytes", ["", "rows", "indexes", "together"], lines)


def _grow(grower: Grower, files: int) -> None:
    dataset = grower.dataset(f"f{files}")
    for start in range(0, files, AT_ONCE):
        grower.add(dataset, min(AT_ONCE, files - start), start)


def _used(where: str, grower: Grower, numbers: Numbers) -> Grid:
    with grower.db.read(grower.lake.caller) as tx:
        there = {n: history.named(tx, DatasetName("bench", f"f{n}")) for n in numbers.files}
        paths = {n: [file.path for file in history.files(tx, at)] for n, at in there.items()}
    next_file = iter(range(max(numbers.files), 2**31))
    acts: dict[str, Callable[[int], object]] = {
        "commit of one file": lambda n: grower.add(there[n].dataset, 1, next(next_file)),
        "files that may hold one id": lambda n: grower.files(there[n].dataset, {"id": (n * ROWS // 2,) * 2}),
        "all files": lambda n: grower.files(there[n].dataset),
        "all files, with statistics": lambda n: grower.files(there[n].dataset, stats=True),
        "a query that opens no file": lambda n: _query(grower.lake, n),
        "which files of a folder are known": lambda n: grower.known(paths[n]),
    }
    lines = []
    for name, act in acts.items():
        jobs = {n: partial(_timed, partial(act, n)) for n in numbers.files}
        found = interleaved(jobs, numbers.samples, at_most=numbers.at_most)
        lines.append([name, *(_told(found[n]) for n in numbers.files)])
    lists = interleaved(
        {name: partial(_timed, act) for name, act in (("page", grower.page), ("all", grower.everything))},
        numbers.samples,
        at_most=numbers.at_most,
    )
    count = numbers.datasets + len(numbers.files) + 1
    for name, taken in lists.items():
        shown = f"{name} of {count:,} datasets" if name == "all" else f"the first page of {count:,} datasets"
        lines.append([shown, *["–"] * (len(numbers.files) - 1), _told(taken)])
    header = ["", *(f"{n:,} files" for n in numbers.files)]
    return Grid(f"{where}: medians, in milliseconds", header, lines)


def _timed(act: Callable[[], object]) -> float:
    """Seconds; without end, if it was refused."""
    try:
        return seconds(act)
    except PenstockError as refusal:
        print(f"refused: {refusal.reason}: {refusal.message}")
        return math.inf


def _told(taken: list[float]) -> str:
    return "refused" if max(taken) == math.inf else ms(median(taken))


def _query(lake: Lake, files: int) -> None:
    sql = f"SELECT count(*) AS n FROM bench.f{files} WHERE id < 0"
    table = lake.results.preview(lake.caller, sql, {}).table
    assert table.to_pylist() == [{"n": 0}]


def _sizes(db: Database) -> Sizes:
    with db.raw() as connection:
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
    parser.add_argument("--quick", action="store_true", help="few and small, to see that it runs")
    parser.add_argument("--postgres", metavar="URL", help="measure this catalog besides; it keeps the rows")
    parser.add_argument("--folder", help="where the SQLite catalog is made for a while")
    return parser.parse_args()


if __name__ == "__main__":
    main()
