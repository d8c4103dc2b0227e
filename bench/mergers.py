"""Merge implementations: Penstock, other libraries, and plain rewrites as lower bounds.

Each function runs in a new process and imports its libraries itself, so that the memory of one measurement does not
include the libraries of another.
"""

import os
import queue
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

KEY, ORDER = "id", "taken"
CODEC, GROUP_ROWS = "snappy", 128 << 10
CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Task:
    directory: str  # Parquet files, with a Delta log for deltalake
    source: str
    strategy: str
    touched: tuple[str, ...]  # the files that hold keys of the source


@dataclass(frozen=True)
class MergeCounts:
    """Counts that a merge reports. Not all implementations report counts."""

    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    total: int | None = None
    engine: str = ""


Merger = Callable[[Task, pa.Table], MergeCounts]


def penstock_pyarrow(task: Task, source: pa.Table) -> MergeCounts:
    from penstock import merge_parquet_dataset_pyarrow

    return _counted(merge_parquet_dataset_pyarrow(source, task.directory, KEY, task.strategy, _order(task)))


def penstock_duckdb(task: Task, source: pa.Table) -> MergeCounts:
    from penstock import merge_parquet_dataset_duckdb

    return _counted(merge_parquet_dataset_duckdb(source, task.directory, KEY, task.strategy, _order(task)))


def penstock_auto(task: Task, source: pa.Table) -> MergeCounts:
    from penstock.service.directory_merge import merge

    merged = merge(source, task.directory, KEY, task.strategy, _order(task), engine="auto")
    return _counted(merged.stats, merged.engine)


def fsspeckit_pyarrow(task: Task, source: pa.Table) -> MergeCounts:
    from fsspeckit.datasets.pyarrow import PyarrowDatasetIO

    return _fsspeckit(PyarrowDatasetIO(), task, source)


def fsspeckit_duckdb(task: Task, source: pa.Table) -> MergeCounts:
    from fsspeckit.datasets.duckdb.connection import create_duckdb_connection
    from fsspeckit.datasets.duckdb.dataset import DuckDBDatasetIO

    return _fsspeckit(DuckDBDatasetIO(create_duckdb_connection()), task, source)


def deltalake(task: Task, source: pa.Table) -> MergeCounts:
    return _deltalake(task, source, streamed=True)


def deltalake_at_once(task: Task, source: pa.Table) -> MergeCounts:
    """Merge without streaming the source, so that deltalake knows its bounds and can skip files."""
    return _deltalake(task, source, streamed=False)


def duckdb_script(task: Task, source: pa.Table) -> MergeCounts:
    """Merge as a manual script would: write the result to a new directory and replace the old one."""
    import duckdb

    target = f"read_parquet('{task.directory}/*.parquet')"
    unmatched = f"FROM {target} ANTI JOIN source USING ({KEY})"
    new = f"FROM source ANTI JOIN {target} USING ({KEY})"
    last = f"FROM source QUALIFY row_number() OVER (PARTITION BY {KEY} ORDER BY {ORDER} DESC) = 1"
    rows = {
        "upsert": f"{unmatched} UNION ALL FROM source",
        "insert": new,
        "update": f"{unmatched} UNION ALL FROM source SEMI JOIN {target} USING ({KEY})",
        "full_merge": "FROM source",
        "deduplicate": f"{unmatched} UNION ALL {last}",
    }[task.strategy]
    fresh = f"{task.directory}-new"
    with duckdb.connect() as db:
        db.register("source", source)
        if task.strategy == "insert":
            db.execute(f"COPY ({rows}) TO '{task.directory}/new.parquet' (COMPRESSION {CODEC})")
            return MergeCounts()
        db.execute(f"COPY ({rows}) TO '{fresh}' (FORMAT parquet, COMPRESSION {CODEC}, PER_THREAD_OUTPUT)")
    shutil.rmtree(task.directory)
    os.rename(fresh, task.directory)
    return MergeCounts()


def pyarrow_rewrite(task: Task, _source: pa.Table) -> MergeCounts:
    """Rewrite each touched file in one thread."""

    def rewrite(path: Path, fresh: Path) -> None:
        old = pq.ParquetFile(path, memory_map=True)
        with old, pq.ParquetWriter(fresh, old.schema_arrow, compression=CODEC) as new:
            for group in range(old.num_row_groups):
                new.write_table(old.read_row_group(group, use_threads=False), row_group_size=GROUP_ROWS)

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(lambda name: _replaced(task, name, rewrite), task.touched))
    _flush(task.directory)
    return MergeCounts()


def duckdb_rewrite(task: Task, _source: pa.Table) -> MergeCounts:
    """Rewrite the touched files one after the other, each with all threads."""
    import duckdb

    with duckdb.connect() as db:
        for name in task.touched:
            _replaced(task, name, _copy(db))
    _flush(task.directory)
    return MergeCounts()


def duckdb_rewrite_by_core(task: Task, _source: pa.Table) -> MergeCounts:
    """Rewrite as many touched files at a time as there are cores, each in its own DuckDB instance."""
    import duckdb

    instances: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(CORES):
        instances.put(duckdb.connect(config={"threads": 1}))

    def replace(name: str) -> None:
        db = instances.get()
        _replaced(task, name, _copy(db))
        instances.put(db)

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(replace, task.touched))
    while not instances.empty():
        instances.get().close()
    _flush(task.directory)
    return MergeCounts()


def pyarrow_keys(task: Task, source: pa.Table) -> MergeCounts:
    """Read the keys of all files and write the source."""
    return _pyarrow_keys(task, source, sorted(map(str, Path(task.directory).glob("*.parquet"))))


def pyarrow_touched_keys(task: Task, source: pa.Table) -> MergeCounts:
    return _pyarrow_keys(task, source, [f"{task.directory}/{name}" for name in task.touched])


def duckdb_keys(task: Task, source: pa.Table) -> MergeCounts:
    import duckdb

    with duckdb.connect() as db:
        db.execute(f"SELECT bit_xor({KEY}) FROM read_parquet('{task.directory}/*.parquet')").fetchall()
        db.register("added", source)
        fresh = f"{task.directory}/new.parquet"
        db.execute(f"COPY added TO '{fresh}' (COMPRESSION {CODEC}, ROW_GROUP_SIZE {GROUP_ROWS})")
    _flush(fresh)
    _flush(task.directory)
    return MergeCounts()


def deduplicated(source: pa.Table) -> pa.Table:
    """Return the row with the highest `ORDER` for each key."""
    ordered = source.sort_by([(KEY, "ascending"), (ORDER, "ascending")])
    keys = ordered[KEY].to_numpy()
    return ordered.filter(pa.array(np.append(keys[1:] != keys[:-1], True)))


def _counted(metrics: dict[str, int], engine: str = "") -> MergeCounts:
    return MergeCounts(metrics["inserted"], metrics["updated"], metrics["deleted"], metrics["total"], engine)


def _order(task: Task) -> str | None:
    return ORDER if task.strategy == "deduplicate" else None


def _fsspeckit(handler: Any, task: Task, source: pa.Table) -> MergeCounts:
    from loguru import logger

    logger.remove()
    strategy = task.strategy
    if strategy == "deduplicate":  # of several rows with one key it takes the last
        strategy, source = "upsert", source.sort_by(ORDER)
    metrics = handler.merge(source, task.directory, strategy, KEY, compression=CODEC, row_group_size=GROUP_ROWS)
    return MergeCounts(metrics.inserted, metrics.updated, metrics.deleted, metrics.target_count_after)


def _deltalake(task: Task, source: pa.Table, *, streamed: bool) -> MergeCounts:
    from deltalake import DeltaTable, WriterProperties

    if task.strategy == "deduplicate":
        source = deduplicated(source)
    merge = DeltaTable(task.directory).merge(
        source,
        f"target.{KEY} = source.{KEY}",
        "source",
        "target",
        streamed_exec=streamed,
        writer_properties=WriterProperties(compression=CODEC.upper()),
    )
    if task.strategy != "insert":
        merge = merge.when_matched_update_all()
    if task.strategy != "update":
        merge = merge.when_not_matched_insert_all()
    if task.strategy == "full_merge":
        merge = merge.when_not_matched_by_source_delete()
    metrics = merge.execute()
    return MergeCounts(*(metrics[f"num_target_rows_{word}"] for word in ("inserted", "updated", "deleted")))


def _pyarrow_keys(task: Task, source: pa.Table, paths: Iterable[str]) -> MergeCounts:
    for _batch in pads.dataset(list(paths), format="parquet").to_batches(columns=[KEY]):
        pass
    fresh = f"{task.directory}/new.parquet"
    pq.write_table(source, fresh, compression=CODEC, row_group_size=GROUP_ROWS)
    _flush(fresh)
    _flush(task.directory)
    return MergeCounts()


def _copy(db: Any) -> Callable[[Path, Path], None]:
    def copy(path: Path, fresh: Path) -> None:
        options = f"FORMAT parquet, COMPRESSION {CODEC}, ROW_GROUP_SIZE {GROUP_ROWS}"
        db.execute(f"COPY (FROM read_parquet('{path}')) TO '{fresh}' ({options})")

    return copy


def _replaced(task: Task, name: str, rewrite: Callable[[Path, Path], None]) -> None:
    path, fresh = Path(task.directory, name), Path(task.directory, f".{name}")
    rewrite(path, fresh)
    _flush(fresh)
    os.replace(fresh, path)


def _flush(path: str | Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
