"""Merge engine on DuckDB: DuckDB matches keys and writes files; the source stays in Arrow memory.

Keys are matched once; the result is, for each file, the matched rows and the source row of each. A file is then
rewritten by a positional join with a table of the source values for its rows, so the cost of a rewrite does not depend
on the size of the source, and rows keep their order. Deletion vectors are applied to the matches, to NULL keys and in
the positional join: a file without one pays nothing.
"""

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core import merge
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.dataset.row_groups import MAX_GROUP_BYTES
from penstock.core.merge import (
    FileLayout,
    FileSink,
    MatchCounts,
    Matched,
    MergeOutput,
    MergePlan,
    OutputFile,
    Rest,
    RewritePlan,
    TargetFile,
)
from penstock.core.merge.engine import DEFAULT_GROUP_ROWS
from penstock.core.merge.key_ranges import KeyRanges
from penstock.engines.duckdb.connection import (
    READ_FILES_SQL,
    Connection,
    connect,
    escape_globs,
    execute,
    fetch_integer,
    fetch_table,
    open_cursor,
)
from penstock.engines.duckdb.parquet_output import write_parquet
from penstock.engines.duckdb.rewrite_sql import FileRewrite, UpdatedRows, updated_columns
from penstock.engines.duckdb.table_take import take_rows, without_nested_offsets, without_views
from penstock.engines.duckdb.types import describe_unsupported_column, quote_identifier, sql_type
from penstock.errors import Unavailable

_MEMORY_LIMIT = "50%"  # share of the machine's memory
# File statistics must not decide whether a column is nullable, and size estimates must not decide which side of a join
# is read in order.
_OPTIMIZERS_OFF = ("statistics_propagation", "join_order", "build_side_probe_side")
_HEARTBEAT_SECONDS = 1.0  # between progress reports while a job runs


class DuckDBEngine:
    name = "duckdb"

    def __init__(
        self, memory_limit: str | None = None, threads: int | None = None, temp_directory: str | None = None
    ) -> None:
        self._memory_limit, self._temp_directory = memory_limit or _MEMORY_LIMIT, temp_directory or ""
        self._threads = threads or os.cpu_count() or 1

    def open(self, plan: MergePlan, source: pa.Table) -> "DuckDBMergeSession":
        db = connect(self._memory_limit, self._temp_directory)
        try:
            return DuckDBMergeSession(plan, source, db, self._threads)
        except BaseException:
            db.close()
            raise

    def explain_unsupported(self, schema: pa.Schema) -> str | None:
        return describe_unsupported_column(schema)


@dataclass(frozen=True, slots=True)
class JobOutput:
    outputs: list[OutputFile]
    moved_rows: pa.Table | None = None  # rows whose partition changed

    @property
    def rows(self) -> int:
        return sum(output.rows for output in self.outputs)


_Job: TypeAlias = Callable[[Connection], JobOutput]


class DuckDBMergeSession:
    def __init__(self, plan: MergePlan, source: pa.Table, db: Connection, threads: int) -> None:
        self._plan, self._source, self._db, self._threads = plan, without_views(source), db, threads
        if nulls := {name: source[name].null_count for name in plan.keys if source[name].null_count}:
            raise merge.null_keys("source", nulls)
        disabled = list(_OPTIMIZERS_OFF)
        if any(pt.is_floating(plan.schema.field(name).type) for name in plan.keys):
            disabled.append("join_filter_pushdown")  # it relies on statistics, which exclude NaN
        execute(db, "SET disabled_optimizers = $names", names=",".join(disabled))
        execute(db, "SET threads = $threads", threads=threads)
        self._updated_columns = updated_columns(plan)
        self.key_ranges = KeyRanges.of(source.select(list(plan.keys)))
        self._load_keys()
        self._matches: dict[str, FileKeyMatches] = {}
        self._is_new = self._is_candidate.copy()  # candidates without a match in the last call of match

    def nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        with _name_damaged_file(self._db, files):
            return self._count_nulls(files)

    def _count_nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        file_columns = _columns_in(self._db, files)
        has_vectors = any(file.deleted for file in files)
        if has_vectors:
            self._db.register("deleted_rows", _deleted_rows(files))
        counts = {}
        for name in self._plan.keys:
            if name in self._plan.partitions:
                counts[name] = sum(file.live_rows for file in files if file.partition_values[name] is None)
            elif name in file_columns:
                nulls = (
                    f"SELECT file_index, file_row_number FROM {READ_FILES_SQL} WHERE {quote_identifier(name)} IS NULL"
                )
                live = "ANTI JOIN deleted_rows d ON n.file_index = d.file AND n.file_row_number = d.row"
                query = f"SELECT count(*) FROM ({nulls}) n {live if has_vectors else ''}"
                counts[name] = fetch_integer(self._db, query, files=_paths(files))
            else:
                counts[name] = sum(file.live_rows for file in files)
        return {name: count for name, count in counts.items() if count}

    def match(self, files: Sequence[TargetFile]) -> MatchCounts:
        stored_keys = set(self._plan.keys) - set(self._plan.partitions)
        with _name_damaged_file(self._db, files):
            self._matches = self._match_files(files) if files and stored_keys <= _columns_in(self._db, files) else {}
        self._is_new = self._is_candidate.copy()  # a retry may match fewer rows than the attempt before it
        for matches in self._matches.values():
            self._is_new[matches.source_rows] = False
        counts = {path: len(matches.source_rows) for path, matches in self._matches.items()}
        return MatchCounts(counts, int(self._is_new.sum()), fetch_integer(self._db, "SELECT count(*) FROM keys"))

    def write(self, rewrite_plan: RewritePlan, sink: FileSink) -> MergeOutput:
        outputs = self._write_files(rewrite_plan, sink)
        deleted = {f: DeletionVector.from_positions(self._matches[f.path].rows) for f in rewrite_plan.mark}
        return MergeOutput(tuple(outputs), deleted)

    def _write_files(self, rewrite_plan: RewritePlan, sink: FileSink) -> list[OutputFile]:
        is_new = self._is_new.copy() if rewrite_plan.insert else np.zeros_like(self._is_new)
        merged_files = [
            file
            for file in rewrite_plan.rewrite
            if file.layout.codec == sink.layout.codec and self._needs_no_file(file, is_new)
        ]
        jobs: list[_Job] = [
            partial(self._rewrite_file, file, sink) for file in rewrite_plan.rewrite if file not in merged_files
        ]
        if rewrite_plan.mark:
            jobs.append(partial(self._write_updated_rows, rewrite_plan.mark, sink))
        rows, row_indices = self._source, np.flatnonzero(is_new)
        if not self._plan.partitions:
            jobs.append(partial(self._write_new_files, rows, row_indices, {}, sink))
        outputs: list[OutputFile] = []
        moved_tables: list[pa.Table] = []
        with closing(self._run_jobs(jobs, sink)) as job_outputs:
            for job_output in job_outputs:
                outputs += job_output.outputs
                moved_tables += [job_output.moved_rows] if job_output.moved_rows else []
        if self._plan.partitions:
            rows = pa.concat_tables([rows, *moved_tables], promote_options="default")
            row_indices = np.concatenate([row_indices, np.arange(self._source.num_rows, rows.num_rows)])
            for partition_values, partition_indices in self._split_by_partition(rows, row_indices):
                outputs += self._write_new_files(rows, partition_indices, partition_values, sink, self._db).outputs
        return outputs

    def close(self) -> None:
        self._db.close()

    # Matching

    def _load_keys(self) -> None:
        """Create the table `keys`: source row number and key of every source row (of the best rows for deduplicate)."""
        plan = self._plan
        keys = [f"k{i}" for i in range(len(plan.keys))]
        order = [f"o{i}" for i in range(len(plan.order_by))]
        names = zip((*plan.keys, *plan.order_by), (*keys, *order), strict=True)
        columns = ", ".join(
            f"CAST({quote_identifier(name)} AS {self._type(name)}) AS {column}" for name, column in names
        )
        key = ", ".join(keys)
        dedup_order = "".join(f"{column} DESC NULLS LAST, " for column in order)
        keep_best_row = f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {dedup_order}source_row DESC) = 1"
        self._db.register("source", self._source.select(list(dict.fromkeys((*plan.keys, *plan.order_by)))))
        execute(
            self._db,
            f"CREATE TABLE keys AS SELECT source_row, {key} "
            f"FROM (SELECT row_number() OVER () - 1 AS source_row, {columns} FROM source) "
            f"{keep_best_row if plan.rules.deduplicates else ''}",
        )
        self._db.unregister("source")
        self._is_candidate = np.ones(
            self._source.num_rows, dtype=bool
        )  # False for source rows that deduplication removes
        if plan.rules.deduplicates:
            self._is_candidate[:] = False
            self._is_candidate[fetch_table(self._db, "SELECT source_row FROM keys")["source_row"].to_numpy()] = True
            return
        values = self.key_ranges.numbers.get(plan.keys[0]) if len(plan.keys) == 1 else None
        distinct = f"SELECT count(*) FROM (SELECT DISTINCT {key} FROM keys)"
        if repeated_rows := self._source.num_rows - (
            fetch_integer(self._db, distinct) if values is None else len(values)
        ):
            numbered = f"SELECT source_row, row_number() OVER (PARTITION BY {key} ORDER BY source_row) AS nth FROM keys"
            repeated_row = fetch_integer(self._db, f"SELECT min(source_row) FROM ({numbered}) WHERE nth = 2")
            raise merge.duplicate_keys(
                plan.keys, repeated_rows, [self._source[name][repeated_row].as_py() for name in plan.keys]
            )

    def _match_files(self, files: Sequence[TargetFile]) -> "dict[str, FileKeyMatches]":
        """Match keys and return the matched rows by file path."""
        plan = self._plan
        folder_keys = [name for name in plan.keys if name in plan.partitions]
        conditions = []
        for index, name in enumerate(plan.keys):
            stored = f"CAST(t.{quote_identifier(name)} AS {self._type(name)})"
            conditions.append(f"{f'p.p{index}' if name in folder_keys else stored} = k.k{index}")
        if folder_keys:
            columns = {f"p{plan.keys.index(name)}": self._partition_values(name, files) for name in folder_keys}
            self._db.register("parts", pa.table({"file": pa.arange(0, len(files)), **columns}))
        matches = fetch_table(
            self._db,
            f"SELECT t.file_index AS file, t.file_row_number AS row, k.source_row FROM {READ_FILES_SQL} t "
            f"{'JOIN parts p ON t.file_index = p.file' if folder_keys else ''} JOIN keys k ON {' AND '.join(conditions)}",
            files=_paths(files),
        )
        file, row, source_row = (matches[name].to_numpy() for name in ("file", "row", "source_row"))
        order = np.lexsort((source_row, file))
        ends = np.searchsorted(file[order], np.arange(len(files) + 1))
        file_matches = {}
        for number, target_file in enumerate(files):
            file_order = order[ends[number] : ends[number + 1]]
            if target_file.deleted:
                file_order = file_order[~np.isin(row[file_order], target_file.deleted.positions)]
            if len(file_order):
                file_matches[target_file.path] = FileKeyMatches(row[file_order], source_row[file_order])
        return file_matches

    def _partition_values(self, name: str, files: Iterable[TargetFile]) -> pa.Array:
        return pa.array([file.partition_values[name] for file in files], self._plan.schema.field(name).type)

    # Rewriting

    def _needs_no_file(self, file: TargetFile, is_new: Any) -> bool:
        """Return True if a full merge deletes most rows of the file and the source supplies all columns of the others.

        The remaining rows are then marked in `is_new` and written together with the new rows. A source row can be
        written only once: if it replaces several rows with one key, those stay in their files.
        """
        plan, matches = self._plan, self._matches.get(file.path)
        if (
            matches is None
            or plan.keeps_columns
            or plan.row_ids
            or plan.partitions
            or 2 * len(matches.source_rows) > file.live_rows
        ):
            return False
        if is_new[matches.source_rows].any() or not np.diff(matches.source_rows).all():
            return False
        is_new[matches.source_rows] = True
        return True

    def _rewrite_file(self, file: TargetFile, sink: FileSink, db: Connection) -> JobOutput:
        """Write the new version of a file."""
        with _name_damaged_file(db, [file]):
            return self._write_new_version(file, sink, db)

    def _write_new_version(self, file: TargetFile, sink: FileSink, db: Connection) -> JobOutput:
        plan = self._plan
        deletes = plan.rules.rest is Rest.DELETE
        matches = self._matches.get(file.path) if deletes or plan.rules.matched is Matched.UPDATE else None
        if matches is None and deletes:
            return JobOutput([])
        if matches is None and file.deleted:
            matches = FileKeyMatches(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
        file_rewrite = FileRewrite(plan, file, matches is not None, self._updated_columns, _columns_in(db, [file]))
        parameters = {"files": _paths([file])} if file_rewrite.reads_target else {}
        matched_values = None if matches is None else self._collect_matched_values(matches, file)
        moved_count = 0 if matched_values is None else matched_values.moved_rows
        row_count = (len(matches.source_rows) if matches is not None and deletes else file.live_rows) - moved_count
        job_output = JobOutput([])
        if row_count:
            path = sink.path()
            _register_matches(db, matched_values, file_rewrite, plan.batch_rows)
            row_count = write_parquet(
                db,
                file_rewrite.select_rows(file.layout.schema, remaining_only=moved_count > 0),
                path,
                self._bound_row_groups(file.layout),
                **parameters,
            )
            job_output.outputs.append(
                OutputFile(path, row_count, replaces=file, partition_values=file.partition_values)
            )
        if moved_count:
            _register_matches(db, matched_values, file_rewrite, plan.batch_rows)
            job_output = replace(job_output, moved_rows=self._read_moved_rows(file_rewrite, db, parameters))
        sink.add_rows(row_count)
        return job_output

    def _bound_row_groups(self, layout: FileLayout) -> FileLayout:
        """Limit row groups by their estimated bytes, because DuckDB holds a group in memory until it is written."""
        source = self._source
        row_bytes = source.nbytes / max(source.num_rows, 1) + 16 * (len(layout.schema) - source.num_columns)
        max_rows = max(int(MAX_GROUP_BYTES / max(row_bytes, 1)), DEFAULT_GROUP_ROWS)
        return replace(layout, group_rows=min(layout.group_rows, max_rows))

    def _collect_matched_values(self, matches: "FileKeyMatches", file: TargetFile) -> "MatchedValues":
        """Return the source values for the matched rows of a file."""
        rows = take_rows(self._source.select(self._updated_columns), matches.source_rows)
        is_moved = pa.repeat(pa.scalar(False), len(matches.source_rows))
        for name in self._plan.partitions:
            if name in self._updated_columns:
                file_value = pa.scalar(file.partition_values[name], self._plan.schema.field(name).type)
                is_same = (
                    pc.fill_null(pc.equal(rows[name], file_value), False)
                    if file_value.is_valid
                    else rows[name].is_null()
                )
                is_moved = pc.or_(is_moved, pc.invert(is_same))
        columns = {f"c{i}": rows[name] for i, name in enumerate(self._updated_columns)}
        return MatchedValues(matches.rows, pa.table({"moves": is_moved, **columns}).combine_chunks())

    def _read_moved_rows(self, file_rewrite: FileRewrite, db: Connection, parameters: Mapping[str, Any]) -> pa.Table:
        """Read the rows whose partition changed, with all columns in the plan's types."""
        schema = self._plan.schema
        folder_columns = [name for name in self._plan.partitions if name not in self._updated_columns]
        rows = fetch_table(
            db,
            file_rewrite.select_moved_rows(pa.schema([field for field in schema if field.name not in folder_columns])),
            **parameters,
        )
        for name in folder_columns:
            value = pa.scalar(file_rewrite.file.partition_values[name], schema.field(name).type)
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return without_views(rows.select(schema.names).cast(schema))

    # Marking

    def _write_updated_rows(self, files: Sequence[TargetFile], sink: FileSink, db: Connection) -> JobOutput:
        """Write the updated rows of marked files, with their row ids if the target has any.

        The rows of all files share new files of about `sink.file_bytes`; the first file measures the bytes per row.
        """
        matches = [self._matches[file.path] for file in files]
        file_numbers = np.repeat(np.arange(len(files)), [len(file_matches.rows) for file_matches in matches])
        positions = np.concatenate([file_matches.rows for file_matches in matches])
        source_rows = np.concatenate([file_matches.source_rows for file_matches in matches])
        order, layout = np.lexsort((positions, file_numbers)), self._bound_row_groups(files[0].layout)
        row_bytes, start = max(self._source.nbytes / max(self._source.num_rows, 1), 1), 0
        job_output = JobOutput([])
        while start < len(order):
            rows = order[start : start + max(1, int(sink.file_bytes / row_bytes))]
            numbers, file_indices = np.unique(file_numbers[rows], return_inverse=True)
            updated_rows = UpdatedRows(self._plan, [files[number] for number in numbers])
            path = sink.path()
            self._register_updated_rows(updated_rows, file_indices, positions[rows], source_rows[rows], db)
            with _name_damaged_file(db, updated_rows.files):
                missing = updated_rows.missing_columns
                file_columns = _columns_in(db, updated_rows.files) if missing else set()
                old_columns = [name for name in missing if name in file_columns]
                parameters = {"files": _paths(updated_rows.files)} if old_columns else {}
                query = updated_rows.select_rows(layout.schema, old_columns)
                row_count = write_parquet(db, query, path, layout, **parameters)
            job_output.outputs.append(OutputFile(path, row_count))
            sink.add_rows(row_count)
            row_bytes, start = os.path.getsize(path) / len(rows), start + len(rows)
        return job_output

    def _register_updated_rows(
        self, updated_rows: UpdatedRows, file_indices: Any, positions: Any, source_rows: Any, db: Connection
    ) -> None:
        """Register the table `m` for the query of `UpdatedRows`."""
        source_order = np.argsort(source_rows, kind="stable")
        values = take_rows(self._source, source_rows[source_order]).take(pa.array(np.argsort(source_order)))
        first_row_ids = pa.array([file.first_row_id for file in updated_rows.files], pa.int64())
        row_ids = pc.add(first_row_ids.take(pa.array(file_indices)), pa.array(positions))
        columns = {f"c{i}": values[name] for i, name in enumerate(self._plan.source_columns)}
        rows = pa.table({"file": file_indices, "row": positions, "row_id": row_ids, **columns})
        db.register("m", rows.combine_chunks())

    # New files

    def _split_by_partition(self, rows: pa.Table, row_indices: Any) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield partition values and row indices for each partition of the new rows."""
        names = [name for name in self._plan.partitions if name in rows.column_names]
        no_values = dict.fromkeys(self._plan.partitions)
        if not len(row_indices) or not names:
            yield no_values, row_indices
            return
        partition_rows = take_rows(rows.select(names), row_indices)
        columns = {f"p{i}": partition_rows[name] for i, name in enumerate(names)}
        self._db.register("fresh", pa.table({"source_row": row_indices, **columns}))
        by_folder = fetch_table(
            self._db,
            f"SELECT source_row, dense_rank() OVER (ORDER BY {', '.join(columns)}) AS folder FROM fresh ORDER BY folder, source_row",
        )
        start = 0
        for folder in pc.value_counts(by_folder["folder"]):
            partition_indices = by_folder["source_row"].slice(start, folder["counts"].as_py()).to_numpy()
            start += len(partition_indices)
            yield no_values | {name: rows[name][int(partition_indices[0])].as_py() for name in names}, partition_indices

    def _write_new_files(
        self, rows: pa.Table, row_indices: Any, partition_values: Mapping[str, Any], sink: FileSink, db: Connection
    ) -> JobOutput:
        """Write new files of about `sink.file_bytes`; the first file measures the bytes per row."""
        columns = ", ".join(
            f"CAST({quote_identifier(f.name) if f.name in rows.column_names else 'NULL'} AS {sql_type(f.type)}) AS {quote_identifier(f.name)}"
            for f in sink.layout.schema
        )
        takes_all_rows = len(row_indices) == rows.num_rows
        row_bytes, start = max(rows.nbytes / max(rows.num_rows, 1), 1), 0
        layout = replace(sink.layout, group_rows=max(1, min(sink.layout.group_rows, int(MAX_GROUP_BYTES / row_bytes))))
        job_output = JobOutput([])
        while start < len(row_indices):
            file_indices = row_indices[start : start + max(1, int(sink.file_bytes / row_bytes))]
            path = sink.path()
            file_rows = rows.slice(start, len(file_indices)) if takes_all_rows else take_rows(rows, file_indices)
            db.register("fresh", without_nested_offsets(file_rows))
            write_parquet(db, f"SELECT {columns} FROM fresh", path, layout)
            job_output.outputs.append(OutputFile(path, len(file_indices), partition_values=partition_values))
            sink.add_rows(len(file_indices))
            row_bytes, start = os.path.getsize(path) / len(file_indices), start + len(file_indices)
        return job_output

    # Threads

    def _run_jobs(self, jobs: Sequence[_Job], sink: FileSink) -> Generator[JobOutput, None, None]:
        """Run jobs on all threads and yield results in order. An error or Ctrl-C interrupts the other jobs."""
        workers = min(self._threads, len(jobs))
        if not workers:
            return
        thread_state = threading.local()
        connections: list[Connection] = []

        def open_connection() -> None:
            thread_state.db = open_cursor(self._db)
            connections.append(thread_state.db)

        with ThreadPoolExecutor(workers, initializer=open_connection) as pool:
            futures: list[Future[JobOutput]] = [pool.submit(lambda job: job(thread_state.db), job) for job in jobs]
            try:
                for future in futures:
                    while not wait([future], _HEARTBEAT_SECONDS).done:
                        sink.add_rows(0)
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in futures):
                    for db in connections:
                        db.interrupt()
                    wait(futures, 0.1)
                raise
            finally:
                for db in connections:
                    db.close()

    def _type(self, name: str) -> str:
        data_type = sql_type(self._plan.schema.field(name).type)
        assert data_type, "no session is opened for an unsupported schema"
        return data_type


@dataclass(frozen=True, slots=True)
class FileKeyMatches:
    """Matched rows of a file, and the source row of each (ascending)."""

    rows: Any
    source_rows: Any


@dataclass(frozen=True, slots=True)
class MatchedValues:
    """Source values for the matched rows of a file."""

    positions: Any
    rows: pa.Table

    @property
    def moved_rows(self) -> int:
        return pc.sum(self.rows["moves"]).as_py() or 0

    def sparse_table(self) -> pa.Table:
        """Return the matched rows only, in file order."""
        order = np.argsort(self.positions)
        return self._take(self.positions[order], pa.array(order))

    def full_reader(self, file: TargetFile, batch_rows: int) -> pa.RecordBatchReader:
        """Return a reader with one row for every row of the file, `batch_rows` at a time.

        If the file has a deletion vector, the column `deleted` marks its rows.
        """
        indices = np.full(file.rows, -1)
        indices[self.positions] = np.arange(len(self.positions))
        is_deleted = np.zeros(file.rows if file.deleted else 0, dtype=bool)
        if file.deleted:
            is_deleted[file.deleted.positions] = True

        def rows_between(start: int, end: int) -> pa.Table:
            batch_indices = indices[start:end]
            numbers = np.arange(start, start + len(batch_indices))
            rows = self._take(numbers, pa.array(batch_indices, mask=batch_indices < 0))
            return rows.append_column("deleted", pa.array(is_deleted[start:end])) if file.deleted else rows

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, file.rows, batch_rows):
                yield from rows_between(start, start + batch_rows).to_batches()

        return pa.RecordBatchReader.from_batches(rows_between(0, 0).schema, batches())

    def _take(self, positions: Any, indices: pa.Array) -> pa.Table:
        rows = self.rows.take(indices).combine_chunks()
        return rows.add_column(0, "row", pa.array(positions)).add_column(1, "hit", indices.is_valid())


def _register_matches(
    db: Connection, matched_values: MatchedValues | None, file_rewrite: FileRewrite, batch_rows: int
) -> None:
    """Register the table `m`. Its batches are produced while it is read, so it can be read once."""
    if matched_values is not None:
        db.register(
            "m",
            matched_values.full_reader(file_rewrite.file, batch_rows)
            if file_rewrite.reads_target
            else matched_values.sparse_table(),
        )


@contextmanager
def _name_damaged_file(db: Connection, files: Sequence[TargetFile]) -> Iterator[None]:
    """Name the file that DuckDB cannot read; its own message may not."""
    try:
        yield
    except Unavailable as error:
        if error.reason != "storage_failed":
            raise
        for file in files:
            try:
                execute(db, f"SELECT count(COLUMNS(*)) FROM {READ_FILES_SQL}", files=_paths([file]))
            except Unavailable as cause:
                message = {"cause": cause.message.rstrip(": ")}
                raise Unavailable("file_damaged", message, path=os.path.basename(file.path)) from None
        raise


def _columns_in(db: Connection, files: Sequence[TargetFile]) -> set[str]:
    """Return the columns that exist in at least one of the files."""
    if not files:
        return set()
    return {name for name, *_ in execute(db, f"DESCRIBE SELECT * FROM {READ_FILES_SQL}", files=_paths(files))}


def _deleted_rows(files: Sequence[TargetFile]) -> pa.Table:
    """Return the positions in the deletion vectors of the files: columns `file` (index in `files`) and `row`."""
    vectors = [(index, file.deleted.positions) for index, file in enumerate(files) if file.deleted]
    file_indices = np.repeat([index for index, _ in vectors], [len(positions) for _, positions in vectors])
    return pa.table({"file": file_indices, "row": np.concatenate([positions for _, positions in vectors])})


def _paths(files: Iterable[TargetFile]) -> list[str]:
    return escape_globs(file.path for file in files)
