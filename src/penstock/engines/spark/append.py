"""Append with Spark: read the source's files, filter, group, align and write, in one pass.

Rows that are appended as they are never leave the task that reads them. The session is one of `for_merging`, and is
set to read and shuffle in portions that become files of the wanted size.
"""

import shutil
from collections.abc import Sequence

import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.core.pipeline.aggregates import Function
from penstock.core.merge import Output, Sink
from penstock.core.pipeline.operations import Computed, Feed, PlannedAppend, SourceFiles
from penstock.core.selector import Node
from penstock.core.selector import columns as columns_of
from penstock.engines.spark import parquet_input as files
from penstock.engines.spark import parquet_output as output
from penstock.engines.spark import value_checks as refusals
from penstock.engines.spark import jobs
from penstock.engines.spark.aggregates import Wanted, aggregated
from penstock.engines.spark.jobs import Watch
from penstock.engines.spark.parquet_output import Beat
from penstock.engines.spark.selector import condition
from penstock.engines.spark.types import spark_type

_SHUFFLED_BYTES = 64 << 20  # of Parquet, for one task
_OPEN_BYTES = 4 << 20  # what it costs to open a file, as bytes that could be read instead
_FEW_FILES = 8
_SMALL = 16  # a file is small that has less than such a part of the wanted size


def selected(spark: SparkSession, source: SourceFiles, selector: Node | None, columns: Sequence[str]) -> DataFrame:
    """Rows that the selector keeps, with these columns under their own names."""
    return _numbered(spark, source, selector, columns).toDF(*columns)


def write(
    spark: SparkSession, planned: PlannedAppend, source: SourceFiles, sink: Sink, watch: Watch | None = None
) -> list[Output]:
    """Write the rows that the append makes. A file has rows; where there are none, there is no file."""
    if not source.paths:
        return []
    as_they_are = not (planned.group_by or planned.selector)
    beat = Beat(sink, source.rows if as_they_are else 0, 1, watch)
    folder, context = sink.folder(), spark.sparkContext
    jobs.run(context, "penstock append: write", lambda: _put(spark, planned, source, sink, folder), beat)
    outputs = list(output.written(folder, {}))
    if (
        len(outputs) > _FEW_FILES
        and files.size(each.path for each in outputs) < len(outputs) * sink.file_bytes / _SMALL
    ):
        packed = sink.folder()
        jobs.run(context, "penstock append: pack", lambda: _pack(spark, planned, outputs, sink, packed), beat)
        shutil.rmtree(folder)
        outputs = list(output.written(packed, {}))
    beat.passed(sum(each.rows for each in outputs))
    return outputs


def count(spark: SparkSession, planned: PlannedAppend, source: SourceFiles, watch: Watch | None = None) -> int:
    """How many rows it would append. Their values are not looked at, so some may still be refused."""
    if not source.paths:
        return 0
    if not (planned.group_by or planned.selector):
        return source.rows

    def rows() -> int:
        kept = _numbered(spark, source, planned.selector, planned.group_by)
        return (kept.distinct() if planned.group_by else kept).count()

    return jobs.run(spark.sparkContext, "penstock append: count", rows, watch)


def _numbered(spark: SparkSession, source: SourceFiles, selector: Node | None, columns: Sequence[str]) -> DataFrame:
    """The same with numbers for names: `s0`, `s1`, …"""
    numbers = [f"s{i}" for i in range(len(columns))]
    if not source.paths:
        nothing = [F.lit(None).cast(spark_type(source.schema.field(name).type)) for name in columns]
        return spark.range(0).select(*nothing).toDF(*numbers)
    judged = columns_of(selector) if selector else frozenset()
    names = [*columns, *sorted(judged - set(columns))]
    kinds = [spark_type(source.schema.field(name).type) for name in names]
    rows = files.read(spark, list(map(st.StructField, names, kinds)), *source.paths)
    if selector:
        rows = rows.filter(condition(selector, source.schema))
    return rows.toDF(*numbers, *(f"j{i}" for i in range(len(names) - len(columns)))).select(*numbers)


def _put(spark: SparkSession, planned: PlannedAppend, source: SourceFiles, sink: Sink, folder: str) -> None:
    _portion(spark, source, sink)
    computed = list(dict.fromkeys(planned.aggregates))
    inputs = [each.input for each in computed if each.input is not None]
    copied = [feed.origin for feed in planned.feeds if isinstance(feed.origin, str)]
    columns = list(dict.fromkeys([*(planned.group_by or copied), *inputs]))
    numbers = {name: f"s{i}" for i, name in enumerate(columns)}
    rows = _numbered(spark, source, planned.selector, columns)
    if planned.group_by:
        places = {feed.origin: place for place, feed in reversed(list(enumerate(planned.feeds)))}
        wanted = [
            Wanted(
                each.function,
                None if each.input is None else numbers[each.input],
                None if each.input is None else source.schema.field(each.input).type,
                each.type,
                places[each],
            )
            for each in computed
        ]
        rows = aggregated(rows, [numbers[name] for name in planned.group_by], wanted)
    made: dict[str | Computed | None, str] = {**numbers, **{each: f"a{i}" for i, each in enumerate(computed)}}
    values = [_aligned(planned, source, place, feed, made) for place, feed in enumerate(planned.feeds)]
    rows = rows.select(*values).toDF(*planned.working.names)
    # A task may have somewhat more than a file's worth; that makes one file, and not a second that is tiny.
    file_rows = 0 if planned.group_by else int(1.25 * sink.file_bytes * source.rows / max(source.bytes, 1)) + 1
    options = output.options(sink.layout, output.codec(sink.layout), file_rows)
    with refusals.named(planned.working.names):
        rows.write.options(**options).parquet(folder)


def _aligned(
    planned: PlannedAppend, source: SourceFiles, place: int, feed: Feed, made: dict[str | Computed | None, str]
) -> Column:
    match feed.origin:
        case None:
            return F.lit(None).cast(spark_type(feed.type))
        case str():
            given = source.schema.field(feed.origin).type
        case Computed():
            given = feed.origin.type
    value = refusals.fitted(F.col(made[feed.origin]), given, feed.type, place)
    counted = isinstance(feed.origin, Computed) and feed.origin.function is Function.COUNT
    if planned.working.field(place).nullable or counted:
        return value
    return refusals.required(value, feed.type, place)


def _portion(spark: SparkSession, source: SourceFiles, sink: Sink) -> None:
    """Set the session so that a task reads what makes one file, or less where cores would be idle.

    Groups are shuffled to a task for each core, and to more where they would have too much to hold. Spark puts the
    small ones together.
    """
    cores = spark.sparkContext.defaultParallelism
    small = max(sink.file_bytes // _SMALL, 1)
    settings = {
        "spark.sql.files.maxPartitionBytes": sink.file_bytes,
        "spark.sql.files.openCostInBytes": min(_OPEN_BYTES, small),
        "spark.sql.files.minPartitionNum": min(max(source.bytes // small, 1), cores),
        "spark.sql.shuffle.partitions": max(source.bytes // min(_SHUFFLED_BYTES, sink.file_bytes), cores),
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": max(sink.file_bytes // 8, 1),
    }
    for name, value in settings.items():
        spark.conf.set(name, str(value))


def _pack(spark: SparkSession, planned: PlannedAppend, small: Sequence[Output], sink: Sink, folder: str) -> None:
    """Write many small files again as few: each task reads as many as make one."""
    spark.conf.set("spark.sql.files.minPartitionNum", "1")
    spark.conf.set("spark.sql.files.openCostInBytes", "0")
    fields = [st.StructField(field.name, spark_type(field.type)) for field in planned.working]
    rows = files.read(spark, fields, *(each.path for each in small))
    rows.write.options(**output.options(sink.layout, output.codec(sink.layout))).parquet(folder)
