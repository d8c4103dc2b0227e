"""Read Parquet files with Spark.

Inside the engine columns are named by number (`s0` of the source, `t0` of the target, `c0` of the result), so that no
user-defined name collides with an internal one or becomes part of an expression.
"""

import os
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias

from penstock.core.merge import MergePlan, TargetFile
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.engines.spark.types import spark_type


class ParquetColumns:
    """Columns of a merge plan by number."""

    def __init__(self, plan: MergePlan) -> None:
        self.names = plan.schema.names
        self.types = [spark_type(field.type) for field in plan.schema]
        self._indices = {name: i for i, name in enumerate(self.names)}

    def index(self, name: str) -> int:
        return self._indices[name]

    def type_of(self, name: str) -> st.DataType:
        return self.types[self._indices[name]]

    def aliases(self, side: str, names: Iterable[str]) -> list[str]:
        return [f"{side}{self._indices[name]}" for name in names]


def read_parquet(spark: SparkSession, fields: Sequence[st.StructField], *paths: str) -> DataFrame:
    """Read files or folders of files with a known schema. Paths are literal: glob characters have no meaning."""
    reader = spark.read.schema(st.StructType(list(fields))).option("__globPaths__", False)
    return reader.option("recursiveFileLookup", True).parquet(*paths)


def read_target(
    spark: SparkSession, plan: MergePlan, files: Sequence[TargetFile], names: Sequence[str], *extras: str
) -> DataFrame:
    """Read target files: the columns `names` in the plan's types, and `file` and `_rowid` if listed in `extras`.

    Old files may lack columns or have narrower types; Spark reads them in the current types.
    """
    columns = ParquetColumns(plan)
    stored = [name for name in names if name not in plan.partitions]
    folder_columns = [name for name in names if name in plan.partitions]
    row_id_columns = [STORED_ROW_ID_COLUMN] if STORED_ROW_ID_COLUMN in extras else []
    types = [*map(columns.type_of, stored), *(st.LongType() for _ in row_id_columns)]
    rows = read_parquet(
        spark, list(map(st.StructField, [*stored, *row_id_columns], types)), *(file.path for file in files)
    )
    file_facts = _collect_file_facts(plan, files, rows, folder_columns) if folder_columns or row_id_columns else None
    column_names = [*columns.aliases("t", stored), *row_id_columns]
    if file_facts is not None or "file" in extras:
        # _metadata.file_path has the same value, but creates a struct of seven members per row.
        rows, column_names = rows.select("*", F.input_file_name()), [*column_names, "file"]
    if row_id_columns:
        rows, column_names = rows.select("*", "_metadata.row_index"), [*column_names, "row"]
    rows = rows.toDF(*column_names)
    if file_facts is not None:
        rows = rows.join(F.broadcast(spark.createDataFrame(file_facts)), "file")
    if row_id_columns:
        rows = rows.withColumn(
            STORED_ROW_ID_COLUMN, F.expr(f"coalesce(first + row, {STORED_ROW_ID_COLUMN}, -1)")
        )  # never NULL
    return rows


def uri_to_path(uri: str) -> str:
    return "/" + unquote(uri.removeprefix("file:")).lstrip("/")


def total_bytes(paths: Iterable[str]) -> int:
    return sum(os.path.getsize(path) for path in paths)


def _collect_file_facts(
    plan: MergePlan, files: Sequence[TargetFile], rows: DataFrame, folder_columns: Sequence[str]
) -> pa.Table:
    """Return a table of file facts (first row id, partition values) by file URI."""
    by_path = {uri_to_path(uri): uri.removeprefix("file:").lstrip("/") for uri in rows.inputFiles()}
    # Spark writes file:/a or file:///a, depending on the function.
    uris = [(f"file:{slashes}{by_path[file.path]}", file) for file in files for slashes in ("/", "///")]
    facts = {
        "file": pa.array([uri for uri, _ in uris], pa.string()),
        "first": pa.array([file.first_row_id for _, file in uris], pa.int64()),
    }
    for name, column in zip(folder_columns, ParquetColumns(plan).aliases("t", folder_columns), strict=True):
        facts[column] = pa.array([file.partition_values[name] for _, file in uris], plan.schema.field(name).type)
    return pa.table(facts)
