"""Benchmark updates, deletes and upserts of few rows in a large dataset, in one run.

Penstock is measured with deletion vectors and with rewriting of files, beside deltalake and a DuckDB database file. The
rows lie in one data file, or are spread over all of them. Every sample edits other rows. Further tables: deletes against
the size of the dataset, a full scan with deleted rows, and single-row updates of many Flight clients.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Protocol

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import flighters
import penstock
from flight import serving
from measure import Grid, Report, interleaved, ms, seconds
from penstock.config import Settings
from penstock.core.dataset.edit_policy import EditMode
from rows import SCHEMA, stream, table

NAME = "bench.edits"
OPERATIONS = ("delete", "update", "upsert")
PLACEMENTS = ("in one file", "in all files")


@dataclass(frozen=True)
class Numbers:
    rows: int
    file_bytes: int
    counts: tuple[int, ...]  # rows of one edit
    samples: int
    at_most: float  # seconds for each measurement of each system
    sizes: tuple[int, ...]  # rows of the datasets of the second table
    clients: int
    writing: float  # seconds


FULL = Numbers(10_000_000, 128 << 20, (1, 100, 10_000), 9, 8, (1_000_000, 10_000_000, 100_000_000), 32, 10)
QUICK = Numbers(200_000, 1 << 20, (1, 100), 2, 3, (50_000, 200_000), 4, 2)


class System(Protocol):
    """A table with rows that have the ids 0, 1, 2, …"""

    def delete(self, ids: np.ndarray) -> None: ...
    def update(self, ids: np.ndarray) -> None: ...
    def upsert(self, ids: np.ndarray) -> None: ...
    def close(self) -> None: ...


class Penstock:
    def __init__(self, settings: Settings, folder: Path, mode: EditMode) -> None:
        self._lake = penstock.open(settings=replace(settings, workspace=folder, edit_mode=mode))
        self._rows = self._lake.dataset(NAME)

    def delete(self, ids: np.ndarray) -> None:
        assert self._rows.delete(ids + 1).affected == len(ids)  # row ids begin at 1

    def update(self, ids: np.ndarray) -> None:
        self._rows.update(ids + 1, _new_rows(ids))

    def upsert(self, ids: np.ndarray) -> None:
        assert self._rows.merge(_new_rows(ids), "id", engine="pyarrow").stats["updated"] == len(ids)

    def append(self, row: int) -> None:
        self._rows.append(table(1, row))

    def close(self) -> None:
        self._lake.close()


class Delta:
    def __init__(self, folder: Path) -> None:
        self._table = DeltaTable(str(folder))

    def delete(self, ids: np.ndarray) -> None:
        if len(ids) <= 100:
            self._table.delete(f"id IN ({', '.join(map(str, ids))})")
        else:
            self._merge(ids).when_matched_delete().execute()

    def update(self, ids: np.ndarray) -> None:
        self._merge(ids).when_matched_update_all().execute()

    def upsert(self, ids: np.ndarray) -> None:
        self._merge(ids).when_matched_update_all().when_not_matched_insert_all().execute()

    def _merge(self, ids: np.ndarray):  # type: ignore[no-untyped-def]
        low, high = ids.min(), ids.max()  # lets deltalake prune files
        predicate = f"t.id = s.id AND t.id >= {low} AND t.id <= {high}"
        return self._table.merge(_new_rows(ids), predicate, source_alias="s", target_alias="t")

    def close(self) -> None:
        pass


class DuckDB:
    def __init__(self, path: Path) -> None:
        self._db = duckdb.connect(str(path))

    def delete(self, ids: np.ndarray) -> None:
        self._db.register("keys", pa.table({"id": ids}))
        self._db.execute("DELETE FROM edits WHERE id IN (SELECT id FROM keys)")

    def update(self, ids: np.ndarray) -> None:
        self._db.register("fresh", _new_rows(ids))
        columns = ", ".join(f"{name} = fresh.{name}" for name in SCHEMA.names if name != "id")
        self._db.execute(f"UPDATE edits SET {columns} FROM fresh WHERE edits.id = fresh.id")

    def upsert(self, ids: np.ndarray) -> None:
        self._db.register("fresh", _new_rows(ids))
        self._db.execute(
            "MERGE INTO edits USING fresh ON edits.id = fresh.id WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT"
        )

    def close(self) -> None:
        self._db.close()


def _new_rows(ids: np.ndarray) -> pa.Table:
    rows = table(len(ids), int(ids[0]))
    return rows.set_column(0, SCHEMA.field("id"), pa.array(ids))


def build(folder: Path, settings: Settings, numbers: Numbers) -> tuple[dict[str, System], list[int]]:
    """Create the same rows in every system, and return the systems with the first id of each data file."""
    settings = replace(settings, file_bytes=numbers.file_bytes, durable=False)
    for mode in (EditMode.AUTO, EditMode.REWRITE):
        with penstock.open(settings=replace(settings, workspace=folder / mode.value), create=True) as lake:
            lake.create(NAME, stream(numbers.rows))
    with penstock.open(settings=replace(settings, workspace=folder / "auto")) as lake:
        starts = [(file.first_row_id or 1) - 1 for file in lake.dataset(NAME).current().files()]
        paths = lake.dataset(NAME).current().paths()
    for path in paths:
        write_deltalake(str(folder / "delta"), pa.parquet.ParquetFile(path).read(), mode="append", schema_mode="merge")
    with duckdb.connect(str(folder / "edits.duckdb")) as db:
        db.execute("CREATE TABLE edits AS SELECT * FROM read_parquet($paths)", {"paths": paths})
    durable = replace(settings, durable=True)
    return {
        "Penstock": Penstock(durable, folder / "auto", EditMode.AUTO),
        "Penstock, rewriting": Penstock(durable, folder / "rewrite", EditMode.REWRITE),
        "deltalake": Delta(folder / "delta"),
        "DuckDB file": DuckDB(folder / "edits.duckdb"),
    }, starts


class Ids:
    """Hand out ids that were not used before: adjacent ones of the first file, or ids spread over all files."""

    def __init__(self, rows: int) -> None:
        self._is_used = np.zeros(rows, dtype=bool)

    def take(self, count: int, placement: str) -> np.ndarray:
        adjacent = placement == "in one file"
        first = 0 if adjacent else len(self._is_used) // 32  # the ids before are for adjacent ones
        step = 1 if adjacent else (len(self._is_used) - first) // (count + 1)
        ids = first + np.arange(count) * step
        while self._is_used[ids].any():
            ids = ids + (count if adjacent else 1)
        self._is_used[ids] = True
        return ids


def edits(report: Report, systems: dict[str, System], starts: Sequence[int], numbers: Numbers) -> None:
    append = Penstock.append
    ours = systems["Penstock"]
    assert isinstance(ours, Penstock)
    ids = {name: Ids(numbers.rows) for name in systems}
    cases = [
        (operation, count, placement)
        for operation, count, placement in product(OPERATIONS, numbers.counts, PLACEMENTS)
        if not (count < len(starts) and placement == "in all files")
    ]
    appended = interleaved(
        {"append": lambda: seconds(lambda: append(ours, numbers.rows))}, max(numbers.samples, 5), at_most=10
    )["append"]
    base = median(appended)
    rows = []
    for operation, count, placement in cases:

        def run(name: str, operation: str = operation, count: int = count, placement: str = placement) -> float:
            chosen = ids[name].take(count, placement)
            return seconds(partial(getattr(systems[name], operation), chosen))

        took = interleaved({n: partial(run, n) for n in systems}, numbers.samples, at_most=numbers.at_most)
        medians = {name: median(sample) for name, sample in took.items()}
        rows.append(
            [
                f"{operation} of {count:,} {placement}",
                *(ms(medians[name]) for name in systems),
                f"{medians['Penstock'] / base:.1f}",
                f"{medians['Penstock, rewriting'] / medians['Penstock']:.1f}",
            ]
        )
        print(rows[-1], flush=True)
    caption = (
        f"Milliseconds of an edit, {numbers.rows:,} rows in {len(starts)} files; an append of one row takes {ms(base)}"
    )
    header = ["edit", *systems, "÷ append of 1 row", "rewriting ÷ marking"]
    report.add(Grid(caption, header, rows))


def sizes(report: Report, folder: Path, settings: Settings, numbers: Numbers) -> None:
    """Measure deletes of one row against the number of stored rows."""
    rows = []
    for size in numbers.sizes:
        chosen = replace(settings, workspace=folder / f"size-{size}")
        with penstock.open(settings=replace(chosen, durable=False), create=True) as lake:
            ds = lake.create(NAME, schema=pa.schema([("n", pa.int64())]))
            step = min(size, 10_000_000)
            for start in range(0, size, step):
                ds.append(pa.table({"n": pa.array(np.arange(start, start + step))}))
        with penstock.open(settings=chosen) as lake:
            ds = lake.dataset(NAME)
            row_ids = iter(np.random.default_rng(1).permutation(size)[:2000] + 1)
            jobs: dict[str, Callable[[], float]] = {
                "append": lambda ds=ds: seconds(lambda: ds.append({"n": [1]})),  # type: ignore[misc]
                "delete": lambda ds=ds, row_ids=row_ids: seconds(lambda: ds.delete([int(next(row_ids))])),  # type: ignore[misc]
            }
            took = interleaved(jobs, max(numbers.samples * 5, 5), at_most=10)
        append, delete = median(took["append"]), median(took["delete"])
        rows.append([f"{size:,}", ms(append), ms(delete), f"{delete / append:.2f}"])
    header = ["stored rows", "append of 1 row", "delete of 1 row", "ratio"]
    report.add(Grid("Milliseconds by the size of the dataset", header, rows))


def scans(report: Report, folder: Path, settings: Settings, numbers: Numbers) -> None:
    """Measure a full scan without deleted rows, and with 1 % of the rows deleted everywhere."""
    chosen = replace(settings, workspace=folder / "scan", file_bytes=numbers.file_bytes, durable=False)
    with penstock.open(settings=chosen, create=True) as lake:
        ds = lake.create(NAME, stream(min(numbers.rows, 5_000_000)))
        version = ds.version
        ds.delete(np.random.default_rng(2).permutation(ds.num_rows)[: ds.num_rows // 100] + 1)
        assert ds.current().snapshot.version.vector_files, "rows were rewritten"

        def read(number: int) -> float:
            return seconds(lambda: sum(batch.num_rows for batch in ds.at(number).scan()))

        took = interleaved({"without": lambda: read(version), "with": lambda: read(version + 1)}, numbers.samples)
    without, marked = (median(took[name]) for name in ("without", "with"))
    caption = f"Seconds of a full scan of {min(numbers.rows, 5_000_000):,} rows"
    row = [f"{without:.2f}", f"{marked:.2f}", f"{marked / without:.2f}"]
    report.add(Grid(caption, ["no deleted row", "1 % deleted", "ratio"], [row]))


def by_updates(address: str, name: str) -> flighters.Writing:
    """Return a writer that updates one row of its own at a time, for `flighters.side_by_side`."""
    client = flighters.connect(address)

    def write(number: int) -> None:
        worker, turn = divmod(number, 1_000_000)
        row_id = worker * 1000 + turn % 1000 + 1
        flighters.update(client, name, [row_id], table(1, row_id))

    return write


def flight_updates(report: Report, folder: Path, numbers: Numbers) -> None:
    """Measure single-row updates of many clients of one table."""
    workspace = folder / "flight"
    settings = Settings(workspace=workspace)
    with penstock.open(settings=settings, create=True) as lake:
        lake.create(NAME, table(1_000_000))
    with serving(workspace, folder / "serve.log") as address:
        rows = []
        for clients in (1, numbers.clients):
            wrote = flighters.side_by_side(by_updates, [address, NAME], clients, numbers.writing)
            rows.append([str(clients), f"{wrote.rate:.0f}", ms(median(wrote.took))])
    caption = "Durable single-row updates of one table over Flight; clients are processes on the same machine"
    report.add(Grid(caption, ["clients", "updates per second", "median ms"], rows))


def main() -> None:
    options = _options()
    numbers = QUICK if options.quick else FULL
    report = Report("edits", "Edits of few rows", ["penstock", "pyarrow", "deltalake", "duckdb"], options.quick)
    settings = Settings()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as name:
        folder = Path(name)
        if "edits" in options.only:
            systems, starts = build(folder, settings, numbers)
            edits(report, systems, starts, numbers)
            for system in systems.values():
                system.close()
        if "sizes" in options.only:
            sizes(report, folder, settings, numbers)
        if "scans" in options.only:
            scans(report, folder, settings, numbers)
        if "flight" in options.only:
            flight_updates(report, folder, numbers)
    print(f"\n{report.save()}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything runs")
    parser.add_argument("--folder", help="folder for the data; a temporary one unless given")
    parser.add_argument("--only", nargs="+", default=["edits", "sizes", "scans", "flight"], help="tables to measure")
    return parser.parse_args()


if __name__ == "__main__":
    main()
