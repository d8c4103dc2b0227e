"""Parquet files as Spark reads and names them, and the columns in them.

Inside the engine columns have numbers for names (`s0` of the source, `t0` of the target), so that no name of a user's
column meets one of ours, or needs quoting.
"""

import os
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # everybody calls them so

from penstock.core.merge import Plan, TargetFile
from penstock.core.names import CARRIED
from penstock.engines.spark.types import spark_type


class Columns:
    """The columns of a plan, by number."""

    def __init__(self, plan: Plan) -> None:
        self.names = plan.schema.names
        self.kinds = [spark_type(field.type) for field in plan.schema]
        self._place = {name: i for i, name in enumerate(self.names)}

    def kind(self, name: str) -> st.DataType:
        return self.kinds[self._place[name]]

    def of(self, side: str, name: str) -> str:
        return f"{side}{self._place[name]}"

    def source(self, name: str) -> Column:
        return F.col(self.of("s", name))

    def target(self, name: str) -> Column:
        return F.col(self.of("t", name))


def read(spark: SparkSession, fields: Sequence[st.StructField], *paths: str) -> DataFrame:
    """Files, or folders of files, with a known schema. A path is taken as it is: nothing in it stands for anything."""
    reader = spark.read.schema(st.StructType(list(fields))).option("__globPaths__", False)
    return reader.option("recursiveFileLookup", True).parquet(*paths)


def target(
    spark: SparkSession, plan: Plan, files: Sequence[TargetFile], names: Sequence[str], *, ids: bool = False
) -> DataFrame:
    """The rows of the files: the columns `names` in the plan's types, `file`, and with `ids` the row's id.

    Old files may lack columns or hold narrower types: Spark reads them as what they have become.
    """
    columns = Columns(plan)
    stored = [name for name in names if name not in plan.partitions]
    fields = [st.StructField(name, columns.kind(name)) for name in stored]
    rows = read(spark, [*fields, *([st.StructField(CARRIED, st.LongType())] if ids else [])], *(f.path for f in files))
    wanted = [F.col(_quoted(name)).alias(columns.of("t", name)) for name in stored]
    wanted.append(F.col("_metadata.file_path").alias("file"))
    if ids:
        wanted += [F.col(CARRIED), F.col("_metadata.row_index").alias("row")]
    parted = [name for name in names if name in plan.partitions]
    known = _known(plan, files, rows, parted) if parted or ids else None
    rows = rows.select(*wanted)
    if known is not None:
        rows = rows.join(F.broadcast(spark.createDataFrame(known)), "file")
    if ids:
        number = F.coalesce(F.col("first") + F.col("row"), F.col(CARRIED), F.lit(-1))  # the −1 is for Spark: no NULL
        rows = rows.withColumn(CARRIED, number)
    return rows


def path_of(uri: str) -> str:
    return "/" + unquote(uri.removeprefix("file:")).lstrip("/")


def size(paths: Iterable[str]) -> int:
    return sum(os.path.getsize(path) for path in paths)


def _known(plan: Plan, files: Sequence[TargetFile], rows: DataFrame, parted: Sequence[str]) -> pa.Table:
    """What is known of each file beside its rows, by the URI that a row's metadata give for it."""
    by_path = {path_of(uri): uri.removeprefix("file:").lstrip("/") for uri in rows.inputFiles()}
    # Spark writes file:/a or file:///a, depending on who asks.
    spelled = [(f"file:{slashes}{by_path[file.path]}", file) for file in files for slashes in ("/", "///")]
    known = {
        "file": pa.array([uri for uri, _ in spelled], pa.string()),
        "first": pa.array([file.first_row_id for _, file in spelled], pa.int64()),
    }
    for name in parted:
        values = [file.parts[name] for _, file in spelled]
        known[Columns(plan).of("t", name)] = pa.array(values, plan.schema.field(name).type)
    return pa.table(known)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
