"""Append with Spark: read the source files, filter, group, align and write, in one pass.

Rows that are appended without grouping never leave the task that reads them. The session comes from
`isolated_session`; its partition sizes are set so that files get the requested size.
"""

import shutil
from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.core.merge import FileSink, OutputFile
from penstock.core.pipeline.aggregates import Function
from penstock.core.pipeline.plan import AggregateColumn, ColumnSource, PlannedAppend, SourceFiles
from penstock.core.progress import ProgressCallback
from penstock.core.selector import Node
from penstock.core.selector import columns as columns_of
from penstock.engines.spark import jobs, parquet_input, parquet_output, value_checks
from penstock.engines.spark.aggregates import AggregateRequest, aggregate_groups
from penstock.engines.spark.parquet_input import FILE, PATH
from penstock.engines.spark.parquet_output import RowEstimate
from penstock.engines.spark.selector import to_spark_condition
from penstock.engines.spark.types import spark_type

_SHUFFLE_TASK_BYTES = 64 << 20  # Parquet bytes per task
_FILE_OPEN_COST_BYTES = 4 << 20  # cost of opening a file, as bytes that could be read instead
_MIN_FILES_TO_PACK = 8
_SMALL_FILE_DIVISOR = 16  # a file is small if it is below this fraction of the requested size


def select_rows(
    spark: SparkSession, source: SourceFiles, selector: Node | None, columns: Sequence[str], scratch: str
) -> DataFrame:
    """Return the rows that match the filter, with the given columns.

    Args:
        scratch: existing folder that all workers can access; the rows are read with files in it
    """
    return _select_numbered(spark, source, selector, columns, scratch).toDF(*columns)


def write_append(
    spark: SparkSession,
    append: PlannedAppend,
    source: SourceFiles,
    sink: FileSink,
    scratch: str,
    on_job: ProgressCallback | None = None,
) -> list[OutputFile]:
    """Write the rows of an append. Empty files are not written."""
    if not source.paths:
        return []
    copies_rows = not (append.group_by or append.selector)
    estimate = RowEstimate(sink, source.rows if copies_rows else 0, 1, on_job)
    folder, context = sink.folder(), spark.sparkContext
    jobs.run_job(
        context,
        "penstock append: write",
        lambda: _write_files(spark, append, source, sink, scratch, folder),
        estimate,
    )
    outputs = list(parquet_output.list_output_files(folder, {}))
    if (
        len(outputs) > _MIN_FILES_TO_PACK
        and parquet_input.total_bytes(output.path for output in outputs)
        < len(outputs) * sink.file_bytes / _SMALL_FILE_DIVISOR
    ):
        packed_folder = sink.folder()
        jobs.run_job(
            context, "penstock append: pack", lambda: _pack_files(spark, append, outputs, sink, packed_folder), estimate
        )
        shutil.rmtree(folder)
        outputs = list(parquet_output.list_output_files(packed_folder, {}))
    estimate.finish_job(sum(output.rows for output in outputs))
    return outputs


def count_append(
    spark: SparkSession,
    append: PlannedAppend,
    source: SourceFiles,
    scratch: str,
    on_job: ProgressCallback | None = None,
) -> int:
    """Count the rows of an append without checking values, so `write_append` may still reject some."""
    if not source.paths:
        return 0
    if not (append.group_by or append.selector):
        return source.rows

    def count_rows() -> int:
        selected = _select_numbered(spark, source, append.selector, append.group_by, scratch)
        return (selected.distinct() if append.group_by else selected).count()

    return jobs.run_job(spark.sparkContext, "penstock append: count", count_rows, on_job)


def _select_numbered(
    spark: SparkSession, source: SourceFiles, selector: Node | None, columns: Sequence[str], scratch: str
) -> DataFrame:
    """Return the rows that match the filter and are not deleted, with columns named `s0`, `s1`, …"""
    aliases = [f"s{i}" for i in range(len(columns))]
    if not source.paths:
        null_columns = [F.lit(None).cast(spark_type(source.schema.field(name).type)) for name in columns]
        return spark.range(0).select(*null_columns).toDF(*aliases)
    filter_columns = columns_of(selector) if selector else frozenset()
    names = [*columns, *sorted(filter_columns - set(columns))]
    all_aliases = [*aliases, *(f"j{i}" for i in range(len(names) - len(columns)))]
    fields = [st.StructField(name, spark_type(source.schema.field(name).type)) for name in names]
    condition = to_spark_condition(selector, source.schema) if selector else F.lit(True)
    frames = []
    if paths := [path for path in source.paths if path not in source.deleted]:
        frames.append(parquet_input.read_parquet(spark, fields, *paths).filter(condition).toDF(*all_aliases))
    if source.deleted:
        facts = pa.table({PATH: list(source.deleted), FILE: pa.arange(0, len(source.deleted))})
        rows = parquet_input.read_parquet(spark, fields, *source.deleted)
        rows = parquet_input.add_file_facts(rows.filter(condition), all_aliases, facts, rows.inputFiles())
        frames.append(parquet_input.exclude_deleted(rows, dict(enumerate(source.deleted.values())), scratch))
    return reduce(DataFrame.unionAll, [rows.select(*aliases) for rows in frames])


def _write_files(
    spark: SparkSession, append: PlannedAppend, source: SourceFiles, sink: FileSink, scratch: str, folder: str
) -> None:
    _set_partition_sizes(spark, source, sink)
    aggregates = list(dict.fromkeys(append.aggregates))
    inputs = [aggregate.input for aggregate in aggregates if aggregate.input is not None]
    copied = [feed.origin for feed in append.feeds if isinstance(feed.origin, str)]
    columns = list(dict.fromkeys([*(append.group_by or copied), *inputs]))
    aliases = {name: f"s{i}" for i, name in enumerate(columns)}
    rows = _select_numbered(spark, source, append.selector, columns, scratch)
    if append.group_by:
        column_indices = {feed.origin: index for index, feed in reversed(list(enumerate(append.feeds)))}
        requests = [
            AggregateRequest(
                aggregate.function,
                None if aggregate.input is None else aliases[aggregate.input],
                None if aggregate.input is None else source.schema.field(aggregate.input).type,
                aggregate.type,
                column_indices[aggregate],
            )
            for aggregate in aggregates
        ]
        rows = aggregate_groups(rows, [aliases[name] for name in append.group_by], requests)
    value_aliases: dict[str | AggregateColumn | None, str] = {
        **aliases,
        **{aggregate: f"a{i}" for i, aggregate in enumerate(aggregates)},
    }
    values = [_align_column(append, source, index, feed, value_aliases) for index, feed in enumerate(append.feeds)]
    rows = rows.select(*values).toDF(*append.working.names)
    # A task may read somewhat more than one file; 25 % tolerance avoids a second, tiny file.
    file_rows = 0 if append.group_by else int(1.25 * sink.file_bytes * source.stored_rows / max(source.bytes, 1)) + 1
    options = parquet_output.writer_options(sink.layout, parquet_output.spark_codec(sink.layout), file_rows)
    with value_checks.translate_check_errors(append.working.names):
        rows.write.options(**options).parquet(folder)


def _align_column(
    append: PlannedAppend,
    source: SourceFiles,
    column_index: int,
    feed: ColumnSource,
    value_aliases: dict[str | AggregateColumn | None, str],
) -> Column:
    match feed.origin:
        case None:
            return F.lit(None).cast(spark_type(feed.type))
        case str():
            input_type = source.schema.field(feed.origin).type
        case AggregateColumn():
            input_type = feed.origin.type
    value = value_checks.cast_checked(F.col(value_aliases[feed.origin]), input_type, feed.type, column_index)
    is_count = isinstance(feed.origin, AggregateColumn) and feed.origin.function is Function.COUNT
    if append.working.field(column_index).nullable or is_count:
        return value
    return value_checks.require_not_null(value, feed.type, column_index)


def _set_partition_sizes(spark: SparkSession, source: SourceFiles, sink: FileSink) -> None:
    """Set the partition sizes so that a task reads the rows of one file, or less if cores would be idle.

    Groups are shuffled to one task per core, or to more tasks if each would be too large. Spark coalesces small ones.
    """
    cores = spark.sparkContext.defaultParallelism
    small_file_bytes = max(sink.file_bytes // _SMALL_FILE_DIVISOR, 1)
    settings = {
        "spark.sql.files.maxPartitionBytes": sink.file_bytes,
        "spark.sql.files.openCostInBytes": min(_FILE_OPEN_COST_BYTES, small_file_bytes),
        "spark.sql.files.minPartitionNum": min(max(source.bytes // small_file_bytes, 1), cores),
        "spark.sql.shuffle.partitions": max(source.bytes // min(_SHUFFLE_TASK_BYTES, sink.file_bytes), cores),
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": max(sink.file_bytes // 8, 1),
    }
    for name, value in settings.items():
        spark.conf.set(name, str(value))


def _pack_files(
    spark: SparkSession, append: PlannedAppend, small_files: Sequence[OutputFile], sink: FileSink, folder: str
) -> None:
    """Combine many small files: each task reads as many as make one file."""
    spark.conf.set("spark.sql.files.minPartitionNum", "1")
    spark.conf.set("spark.sql.files.openCostInBytes", "0")
    fields = [st.StructField(field.name, spark_type(field.type)) for field in append.working]
    rows = parquet_input.read_parquet(spark, fields, *(file.path for file in small_files))
    rows.write.options(**parquet_output.writer_options(sink.layout, parquet_output.spark_codec(sink.layout))).parquet(
        folder
    )
