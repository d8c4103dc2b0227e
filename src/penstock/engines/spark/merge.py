"""Merge engine on Spark, in three jobs: stage the source, match keys, write files."""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from itertools import count
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.core.dataset.deletion_vector import DeletionVector
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
from penstock.core.merge.key_index import KeyIndex, comparable
from penstock.core.merge.key_ranges import KeyRanges
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.core.progress import ProgressCallback
from penstock.engines.spark import jobs, parquet_output
from penstock.engines.spark import parquet_input as files
from penstock.engines.spark.merge_source import MAX_LOCAL_KEYS, SOURCE_ROW, SparkMergeSource, count_nulls
from penstock.engines.spark.parquet_input import FILE, ROW, ParquetColumns, TargetReader
from penstock.engines.spark.parquet_output import RowEstimate
from penstock.engines.spark.required_columns import declare_required
from penstock.engines.spark.session import detect_loss, get_or_start_session, isolated_session
from penstock.engines.spark.types import arrow_schema, describe_unsupported_column, is_dataframe

__all__ = ["SparkEngine", "SparkMergeSession", "arrow_schema", "is_dataframe"]

_MATCH_COLUMNS = (FILE, ROW, SOURCE_ROW)  # a matched row: index of its file, position in the file, source row
_MATCH_FIELDS = [st.StructField(name, st.LongType()) for name in _MATCH_COLUMNS]
_MATCH_SCHEMA = pa.schema([(name, pa.int64()) for name in _MATCH_COLUMNS])
_MAX_LOCAL_TARGET_ROWS = 10_000_000  # up to this many target rows, a lookup in this process is faster than a Spark job
_SHUFFLE_TASK_BYTES = 64 << 20  # Parquet bytes per task


class SparkEngine:
    name = "spark"

    def __init__(
        self,
        scratch: str,
        spark: SparkSession | None = None,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        on_job: ProgressCallback | None = None,
    ) -> None:
        """Configure the engine.

        Args:
            scratch: existing folder that all workers can access
            spark: the caller's session; without one, the active session is used or one is started
            master: Spark master of a new session
            conf: Spark settings of a new session
            on_job: receives the stages and tasks of Spark jobs; may raise to cancel them
        """
        self._scratch, self._spark, self._master, self._conf = scratch, spark, master, conf
        self._on_job = on_job

    def open(self, plan: MergePlan, source: "pa.Table | DataFrame") -> "SparkMergeSession":
        spark = (
            source.sparkSession
            if is_dataframe(source)
            else self._spark or get_or_start_session(self._master, self._conf)
        )
        return SparkMergeSession(isolated_session(spark), plan, source, f"{self._scratch}/{uuid4().hex}", self._on_job)

    def explain_unsupported(self, schema: pa.Schema) -> str | None:
        return describe_unsupported_column(schema)


class SparkMergeSession:
    key_ranges: KeyRanges

    def __init__(
        self,
        spark: SparkSession,
        plan: MergePlan,
        source: "pa.Table | DataFrame",
        folder: str,
        on_job: ProgressCallback | None,
    ) -> None:
        self._spark, self._plan, self._columns, self._folder = spark, plan, ParquetColumns(plan), folder
        self._on_job = on_job
        self._target = TargetReader(spark, plan, folder)
        self._matches_path: str | None = None  # Parquet folder with the matched rows of the last match
        self._matched_files: dict[str, int] = {}  # path of a file of the last match → its index there
        self._new_rows, self._matches_once = (
            0,
            False,
        )  # source rows without a match; True if no source row matches two rows
        os.mkdir(folder)
        try:
            self._source: SparkMergeSource = self._run(
                "read the source", lambda: SparkMergeSource(spark, plan, source, folder)
            )
        except BaseException:
            self.close()
            raise
        self.key_ranges = self._source.key_ranges

    def nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        counts = dict.fromkeys(self._plan.keys, 0)
        for file in files:
            for name in counts.keys() & file.partition_values.keys():
                counts[name] += file.live_rows if file.partition_values[name] is None else 0
        stored = [name for name in self._plan.keys if name not in self._plan.partitions]
        if files and stored:
            columns = self._columns.aliases("t", stored)
            null_counts = self._run(
                "look for NULL in keys",
                lambda: self._target.read(files, stored).select(*map(count_nulls, columns)).first(),
            )
            counts.update(zip(stored, null_counts, strict=True))
        return {name: number for name, number in counts.items() if number}

    def match(self, files: Sequence[TargetFile]) -> MatchCounts:
        rows, matches_path = self._source.rows, f"{self._folder}/{uuid4().hex}"
        self._matches_path, self._new_rows, self._matches_once = None, rows, False
        self._matched_files = {file.path: index for index, file in enumerate(files)}
        if not (files and rows):
            return MatchCounts({}, rows, rows)
        if self._source.local_keys is not None and sum(file.rows for file in files) <= _MAX_LOCAL_TARGET_ROWS:
            index_counts, matched_rows = self._match_locally(files, self._source.local_keys, matches_path)
        else:
            self._set_shuffle_partitions(files)
            self._run("match keys", lambda: self._match_keys(files).write.parquet(matches_path))
            index_counts, matched_rows = self._count_matches(matches_path)
        file_counts = {files[index].path: number for index, number in index_counts.items()}
        self._matches_path, self._new_rows, self._matches_once = (
            matches_path,
            rows - matched_rows,
            sum(file_counts.values()) == matched_rows,
        )
        return MatchCounts(file_counts, rows - matched_rows, rows)

    def write(self, rewrite_plan: RewritePlan, sink: FileSink) -> MergeOutput:
        """Write the result. Rows of several files may end up in one; with row ids, new rows get separate files."""
        changed_files = (*rewrite_plan.rewrite, *rewrite_plan.mark)
        self._set_shuffle_partitions(changed_files)
        partition_values = self._partition_values(changed_files)
        frames_by_job = self._frames_by_job(rewrite_plan, sink)
        estimate = RowEstimate(sink, rewrite_plan.written_rows, len(frames_by_job), self._on_job)
        outputs: list[OutputFile] = []
        for (codec, is_spread), frames in frames_by_job.items():
            folder = sink.folder()
            options = parquet_output.writer_options(
                sink.layout, codec, max(int(sink.file_bytes / self._row_bytes(changed_files)), 1)
            )
            job = partial(
                self._write_frames,
                frames,
                sink.layout,
                partition_values,
                folder,
                options,
                spread=is_spread or self._moves_rows,
            )
            jobs.run_job(self._spark.sparkContext, "penstock merge: write", job, estimate)
            outputs += parquet_output.list_output_files(folder, partition_values)
            estimate.finish_job(sum(output.rows for output in outputs))
        return MergeOutput(tuple(outputs), self._matched_positions(rewrite_plan.mark))

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, purpose: str, action: Callable[[], Any]) -> Any:
        return jobs.run_job(self._spark.sparkContext, f"penstock merge: {purpose}", action, self._on_job)

    def _set_shuffle_partitions(self, target_files: Iterable[TargetFile]) -> None:
        """Set one shuffle task per core, or more if each would be too large."""
        tasks = max(files.total_bytes(file.path for file in target_files), self._source.bytes) // _SHUFFLE_TASK_BYTES
        with detect_loss(self._spark.sparkContext):
            cores = self._spark.sparkContext.defaultParallelism
            self._spark.conf.set("spark.sql.shuffle.partitions", str(max(tasks, cores)))

    def _same_key(self) -> Column:
        return F.expr(" AND ".join(f"t{i} = s{i}" for i in map(self._columns.index, self._plan.keys)))

    # Matching

    def _match_keys(self, target_files: Sequence[TargetFile]) -> DataFrame:
        keys = self._source.frame.select(*self._columns.aliases("s", self._plan.keys), SOURCE_ROW)
        rows = self._target.read(target_files, self._plan.keys, FILE, ROW)
        return rows.join(keys, self._same_key()).select(*_MATCH_COLUMNS)

    def _match_locally(
        self, target_files: Sequence[TargetFile], local_keys: pa.Table, matches_path: str
    ) -> tuple[dict[int, int], int]:
        """Match keys in this process instead of a Spark job; return like `_count_matches`."""
        lookup = KeyIndex([comparable(local_keys[name]) for name in self._columns.aliases("s", self._plan.keys)])
        with ThreadPoolExecutor() as pool:
            file_matches = list(pool.map(lambda file: _match_file(self._plan, file, lookup), target_files))
        counts = [len(positions) for positions, _ in file_matches]
        source_rows = np.concatenate([key_rows for _, key_rows in file_matches])
        columns = [
            pa.array(np.repeat(np.arange(len(counts)), counts)),
            pa.array(np.concatenate([positions for positions, _ in file_matches])),
            local_keys[SOURCE_ROW].take(pa.array(source_rows)),
        ]
        os.mkdir(matches_path)
        pq.write_table(pa.table(columns, schema=_MATCH_SCHEMA), f"{matches_path}/0.parquet")
        return {index: number for index, number in enumerate(counts) if number}, len(np.unique(source_rows))

    def _count_matches(self, matches_path: str) -> tuple[dict[int, int], int]:
        """Return the number of matched rows by the index of their file, and the number of matched source rows."""
        matches = _open_matches(matches_path)
        if matches.count_rows() <= MAX_LOCAL_KEYS:
            table = matches.to_table([FILE, SOURCE_ROW])
            file_counts = [(count["values"], count["counts"]) for count in pc.value_counts(table[FILE]).to_pylist()]
            matched_rows = pc.count_distinct(table[SOURCE_ROW]).as_py()
        else:
            with detect_loss(self._spark.sparkContext):
                match_frame = files.read_parquet(self._spark, _MATCH_FIELDS, matches_path)
            file_counts = self._run(
                "count matches", lambda: [tuple(row) for row in match_frame.groupBy(FILE).count().collect()]
            )
            matched_rows = self._run("count matches", lambda: match_frame.select(SOURCE_ROW).distinct().count())
        return dict(file_counts), matched_rows

    def _matched_positions(self, marked_files: Sequence[TargetFile]) -> dict[TargetFile, DeletionVector]:
        """Return the positions of the matched rows of each file."""
        if not marked_files:
            return {}
        assert self._matches_path is not None
        files_by_index = {self._matched_files[file.path]: file for file in marked_files}
        is_marked = pc.field(FILE).isin(pa.array(files_by_index, pa.int64()))
        matches = _open_matches(self._matches_path).to_table([FILE, ROW], filter=is_marked)
        indices, positions = matches[FILE].to_numpy(), matches[ROW].to_numpy()
        order = np.argsort(indices, kind="stable")
        firsts = np.flatnonzero(np.diff(indices[order], prepend=-1))
        return {
            files_by_index[indices[part[0]]]: DeletionVector.from_positions(positions[part])
            for part in np.split(order, firsts[1:])
        }

    # Writing

    def _frames_by_job(
        self, rewrite_plan: RewritePlan, sink: FileSink
    ) -> dict[tuple[str, bool], list[Callable[[], DataFrame]]]:
        """Return the frames of each job, by codec and by whether the rows may spread over all partitions."""
        plan, codec = self._plan, parquet_output.spark_codec(sink.layout)
        codecs, marked_codecs = _group_by_codec(rewrite_plan.rewrite), _group_by_codec(rewrite_plan.mark)
        separate_new_rows = plan.row_ids or bool(plan.partitions)
        replaces_rows = self._replaces_whole_rows and codecs.keys() <= {codec}
        frames_by_job: dict[tuple[str, bool], list[Callable[[], DataFrame]]] = defaultdict(list)
        for file_codec, codec_files in codecs.items():
            if not replaces_rows:
                frames_by_job[file_codec, False].append(partial(self._rewritten_rows, codec_files))
            elif plan.rules.rest is Rest.KEEP:
                frames_by_job[file_codec, False].append(partial(self._unmatched_target_rows, codec_files))
        if replaces_rows:
            # The matched source rows are the new rows of rewritten and of marked files.
            frames_by_job[codec, separate_new_rows].append(
                partial(self._source_rows, "" if rewrite_plan.insert or not self._new_rows else "left_semi")
            )
            return frames_by_job
        for file_codec, codec_files in marked_codecs.items():
            unread = [file for file in codec_files if self._needs_no_read(file)]
            read = [file for file in codec_files if not self._needs_no_read(file)]
            if unread:
                frames_by_job[file_codec, False].append(partial(self._matched_source_rows, unread))
            if read:
                frames_by_job[file_codec, False].append(partial(self._updated_rows, read))
        if rewrite_plan.insert:
            frames_by_job[codec, separate_new_rows].append(partial(self._source_rows, "left_anti"))
        return frames_by_job

    def _needs_no_read(self, file: TargetFile) -> bool:
        """Return True if the updated rows of a marked file follow from the source and the positions of the matches."""
        stores_row_ids = self._plan.row_ids and file.first_row_id is None
        return set(self._columns.names) == set(self._plan.source_columns) and not stores_row_ids

    def _matched_source_rows(self, marked_files: Sequence[TargetFile]) -> DataFrame:
        """Return the updated rows of marked files without reading the files."""
        assert self._matches_path is not None
        facts = {
            FILE: pa.array([self._matched_files[file.path] for file in marked_files], pa.int64()),
            "first": pa.array([file.first_row_id for file in marked_files], pa.int64()),
        }
        matches = files.read_parquet(self._spark, _MATCH_FIELDS, self._matches_path)
        rows = matches.join(F.broadcast(self._spark.createDataFrame(pa.table(facts))), FILE)
        rows = rows.join(self._source.frame, SOURCE_ROW)
        row_ids = [f"coalesce(first + {ROW}, -1) AS {STORED_ROW_ID_COLUMN}"] if self._plan.row_ids else []
        return rows.selectExpr(*self._columns.aliases("s", self._columns.names), *row_ids)

    def _updated_rows(self, marked_files: Sequence[TargetFile]) -> DataFrame:
        """Return the matched rows of marked files with their new values."""
        names, source_columns = self._columns.names, self._plan.source_columns
        read_columns = [name for name in names if name in self._plan.keys or name not in source_columns]
        row_id_columns = [STORED_ROW_ID_COLUMN] if self._plan.row_ids else []
        rows = self._target.read(marked_files, read_columns, *row_id_columns)
        values = [f"{'s' if name in source_columns else 't'}{i}" for i, name in enumerate(names)]
        return rows.join(self._source.frame, self._same_key()).select(*values, *row_id_columns)

    def _rewritten_rows(self, target_files: Sequence[TargetFile]) -> DataFrame:
        rules, row_id_columns = self._plan.rules, [STORED_ROW_ID_COLUMN] if self._plan.row_ids else []
        rows, value = self._target.read(target_files, self._columns.names, *row_id_columns), "t{0}"
        if rules.rest is Rest.DELETE:
            rows = rows.join(self._source.frame, self._same_key())
            value = "s{0}"
        elif rules.matched is Matched.UPDATE:
            rows = rows.join(self._source.frame, self._same_key(), "left")
            value = f"CASE WHEN {SOURCE_ROW} IS NULL THEN t{{0}} ELSE s{{0}} END"
        values = [value if name in self._plan.source_columns else "t{0}" for name in self._columns.names]
        return rows.selectExpr(*(expression.format(i) for i, expression in enumerate(values)), *row_id_columns)

    def _unmatched_target_rows(self, target_files: Sequence[TargetFile]) -> DataFrame:
        """Return the target rows without a match in the source."""
        keys = self._source.frame.select(*self._columns.aliases("s", self._plan.keys))
        rows = self._target.read(target_files, self._columns.names).join(keys, self._same_key(), "left_anti")
        return rows.select(*self._columns.aliases("t", self._columns.names))

    def _source_rows(self, join_type: str) -> DataFrame:
        """Return source rows: all (""), matched ones (left_semi), or unmatched ones (left_anti)."""
        rows = self._source.frame
        if self._matches_path and join_type:
            rows = rows.join(files.read_parquet(self._spark, _MATCH_FIELDS, self._matches_path), SOURCE_ROW, join_type)
        columns = enumerate(zip(self._columns.names, self._columns.types, strict=True))
        values = [
            F.col(f"s{i}") if name in self._plan.source_columns else F.lit(None).cast(data_type)
            for i, (name, data_type) in columns
        ]
        return rows.select(*values)

    def _partition_values(self, target_files: Sequence[TargetFile]) -> dict[str, pa.Array]:
        """Return all possible values of each partition column: of the files, of the source, and NULL."""
        source_partitions = [name for name in self._plan.partitions if name in self._plan.source_columns]
        columns = self._columns.aliases("s", source_partitions)
        source_values = None
        if source_partitions:
            source_values = self._run(
                "find partitions", lambda: self._source.frame.select(*columns).distinct().toArrow()
            )
        values = {}
        for name in self._plan.partitions:
            data_type = self._plan.schema.field(name).type
            chunks = [pa.array([None, *(file.partition_values[name] for file in target_files)], data_type)]
            if source_values is not None and name in source_partitions:
                chunks += source_values.column(source_partitions.index(name)).cast(data_type).chunks
            values[name] = pc.unique(pa.chunked_array(chunks))
        return values

    @property
    def _replaces_whole_rows(self) -> bool:
        """Return True if source rows replace matched rows completely, so that no join of values is needed."""
        plan = self._plan
        whole = set(plan.source_columns) == set(plan.schema.names) and not plan.row_ids
        return plan.rules.matched is Matched.UPDATE and whole and self._matches_once

    @property
    def _moves_rows(self) -> bool:
        """Return True if the merge can move a target row to another partition."""
        plan = self._plan
        return plan.rules.matched is Matched.UPDATE and bool(
            set(plan.partitions) & set(plan.source_columns) - set(plan.keys)
        )

    def _write_frames(
        self,
        frames: Sequence[Callable[[], DataFrame]],
        layout: FileLayout,
        partition_values: Mapping[str, pa.Array],
        folder: str,
        options: Mapping[str, Any],
        *,
        spread: bool,
    ) -> None:
        """Write the columns of the layout. Partition folders are numbers, so that no value needs to be escaped."""
        row_id_columns = [STORED_ROW_ID_COLUMN] if STORED_ROW_ID_COLUMN in (first := frames[0]()).columns else []
        rows = reduce(DataFrame.unionAll, (frame() for frame in frames[1:]), first)
        rows = rows.toDF(*self._columns.aliases("c", self._columns.names), *row_id_columns)
        for column, values in zip(self._columns.aliases("c", partition_values), partition_values.values(), strict=True):
            numbered_values = self._spark.createDataFrame(
                pa.table({"value": values, f"in_{column}": pa.arange(0, len(values))})
            )
            rows = rows.join(F.broadcast(numbered_values), F.expr(f"{column} <=> value")).drop("value")
        fields = [field for field in layout.schema if field.name in self._columns.names]
        names = [field.name for field in fields]
        prefix = next(
            candidate
            for underscores in count()
            if not any(name.startswith(candidate := f"part{'_' * underscores}") for name in names)
        )
        folders = [f"{prefix}{i}" for i in range(len(partition_values))]
        values = [F.col(column) for column in self._columns.aliases("c", names)]
        if layout.stores_required:
            values = list(map(declare_required, values, fields))
        rows = rows.select(*values, *row_id_columns, *self._columns.aliases("in_c", partition_values))
        rows = rows.toDF(*names, *row_id_columns, *folders)
        if folders and spread:
            rows = rows.hint("rebalance", *folders)  # otherwise every task would write a file in every folder
        rows.write.options(**options).partitionBy(*folders).parquet(folder)

    def _row_bytes(self, target_files: Sequence[TargetFile]) -> float:
        rows = sum(file.rows for file in target_files)
        if not rows:
            return max(self._source.bytes / max(self._source.rows, 1), 1)
        return max(files.total_bytes(file.path for file in target_files) / rows, 1)


def _match_file(plan: MergePlan, file: TargetFile, lookup: KeyIndex) -> tuple[Any, Any]:
    """Return the positions of the rows whose keys are in the index, and the position of each in the index."""
    types = {name: plan.schema.field(name).type for name in plan.keys}
    stored_keys = pa.schema(
        [(name, data_type) for name, data_type in types.items() if name not in file.partition_values]
    )
    rows = pads.dataset(file.path, schema=stored_keys, format="parquet").scanner(
        batch_size=plan.batch_rows, use_threads=False
    )
    positions, key_rows, first = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], 0
    for batch in rows.to_batches():
        keys = [
            pa.repeat(pa.scalar(file.partition_values[name], data_type), len(batch))
            if name in file.partition_values
            else batch.column(name)
            for name, data_type in types.items()
        ]
        hits, hit_keys = lookup.lookup([comparable(key) for key in keys])
        positions.append(hits + first)
        key_rows.append(hit_keys)
        first += len(batch)
    matched, matched_keys = np.concatenate(positions), np.concatenate(key_rows)
    if not file.deleted:
        return matched, matched_keys
    remains = ~file.deleted.contains(matched)
    return matched[remains], matched_keys[remains]


def _open_matches(path: str) -> Any:
    return pads.dataset(path, format="parquet", schema=_MATCH_SCHEMA)


def _group_by_codec(target_files: Iterable[TargetFile]) -> dict[str, list[TargetFile]]:
    files_by_codec: dict[str, list[TargetFile]] = defaultdict(list)
    for file in target_files:
        files_by_codec[parquet_output.spark_codec(file.layout)].append(file)
    return files_by_codec
