"""Parquet files as Spark reads and names them, and the columns in them.

Inside the engine columns have numbers for names (`s0` of the source, `t0` of the target, `c0` of the result), so that
no name of a user's column meets one of ours, or is ever part of an expression.
"""

import os
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # everybody calls them so

from penstock.core.merge import Plan, TargetFile
from penstock.core.names import CARRIED
from penstock.engines.spark.types import spark_type


class Columns:
    """The columns of a plan, by number."""

    def __init__(self, plan: Plan) -> None:
        self.names = plan.schema.names
        self.kinds = [spark_type(field.type) for field in plan.schema]
        self._places = {name: i for i, name in enumerate(self.names)}

    def place(self, name: str) -> int:
        return self._places[name]

    def kind(self, name: str) -> st.DataType:
        return self.kinds[self._places[name]]

    def of(self, side: str, names: Iterable[str]) -> list[str]:
        return [f"{side}{self._places[name]}" for name in names]


def read(spark: SparkSession, fields: Sequence[st.StructField], *paths: str) -> DataFrame:
    """Files, or folders of files, with a known schema. A path is taken as it is: nothing in it stands for anything."""
    reader = spark.read.schema(st.StructType(list(fields))).option("__globPaths__", False)
    return reader.option("recursiveFileLookup", True).parquet(*paths)


def target(
    spark: SparkSession, plan: Plan, files: Sequence[TargetFile], names: Sequence[str], *extras: str
) -> DataFrame:
    """The rows of the files: the columns `names` in the plan's types, and `file` and `_rowid` where asked for.

    Old files may lack columns or hold narrower types: Spark reads them as what they have become.
    """
    columns = Columns(plan)
    stored = [name for name in names if name not in plan.partitions]
    parted = [name for name in names if name in plan.partitions]
    carried = [CARRIED] if CARRIED in extras else []
    kinds = [*map(columns.kind, stored), *(st.LongType() for _ in carried)]
    rows = read(spark, list(map(st.StructField, [*stored, *carried], kinds)), *(file.path for file in files))
    known = _known(plan, files, rows, parted) if parted or carried else None
    wanted = [*columns.of("t", stored), *carried]
    if known is not None or "file" in extras:
        # _metadata.file_path says the same, but makes a struct of seven members for every row.
        rows, wanted = rows.select("*", F.input_file_name()), [*wanted, "file"]
    if carried:
        rows, wanted = rows.select("*", "_metadata.row_index"), [*wanted, "row"]
    rows = rows.toDF(*wanted)
    if known is not None:
        rows = rows.join(F.broadcast(spark.createDataFrame(known)), "file")
    if carried:
        rows = rows.withColumn(CARRIED, F.expr(f"coalesce(first + row, {CARRIED}, -1)"))  # so that it is never NULL
    return rows


def path_of(uri: str) -> str:
    return "/" + unquote(uri.removeprefix("file:")).lstrip("/")


def size(paths: Iterable[str]) -> int:
    return sum(os.path.getsize(path) for path in paths)


def _known(plan: Plan, files: Sequence[TargetFile], rows: DataFrame, parted: Sequence[str]) -> pa.Table:
    """What is known of each file beside its rows, by the URI that its rows know it by."""
    by_path = {path_of(uri): uri.removeprefix("file:").lstrip("/") for uri in rows.inputFiles()}
    # Spark writes file:/a or file:///a, depending on who asks.
    spelled = [(f"file:{slashes}{by_path[file.path]}", file) for file in files for slashes in ("/", "///")]
    known = {
        "file": pa.array([uri for uri, _ in spelled], pa.string()),
        "first": pa.array([file.first_row_id for _, file in spelled], pa.int64()),
    }
    for name, column in zip(parted, Columns(plan).of("t", parted), strict=True):
        known[column] = pa.array([file.parts[name] for _, file in spelled], plan.schema.field(name).type)
    return pa.table(known)
