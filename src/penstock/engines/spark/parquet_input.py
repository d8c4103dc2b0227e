"""Read Parquet files with Spark.

Inside the engine columns are named by number (`s0` of the source, `t0` of the target, `c0` of the result), so that no
user-defined name collides with an internal one or becomes part of an expression.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from urllib.parse import unquote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias

from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.merge import MergePlan, TargetFile
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.engines.spark.types import spark_type

# Columns with facts of a row
FILE = "file"  # number of its file
ROW = "row"  # position in its file
PATH = "path"  # of its file; only in tables of file facts
_URI, _DELETED = "uri", "deleted"
_MAX_FILE_ROWS = 1 << 40  # makes one number of a file and a position, because Spark joins single numbers faster


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


class TargetReader:
    """Read target files of a merge without the rows that their deletion vectors delete."""

    def __init__(self, spark: SparkSession, plan: MergePlan, scratch: str) -> None:
        """Configure the reader.

        Args:
            scratch: existing folder that all workers can access, for the positions of deleted rows
        """
        self._spark, self._plan, self._columns, self._scratch = spark, plan, ParquetColumns(plan), scratch

    def read(self, files: Sequence[TargetFile], names: Sequence[str], *extras: str) -> DataFrame:
        """Read the columns `names` in the plan's types, named `t0`, `t1`, …, and the columns in `extras`.

        Old files may lack columns or have narrower types; Spark reads them in the current types.

        Args:
            files: the files, at least one
            extras: `file` (index in `files`), `row` (position in the file) and `_rowid`
        """
        groups = (
            [(index, file) for index, file in enumerate(files) if bool(file.deleted) is has_vector]
            for has_vector in (False, True)
        )
        return reduce(DataFrame.unionAll, [self._read(group, names, extras) for group in groups if group])

    def _read(
        self, numbered_files: Sequence[tuple[int, TargetFile]], names: Sequence[str], extras: Sequence[str]
    ) -> DataFrame:
        """Read files that all have a deletion vector, or all have none."""
        files = [file for _, file in numbered_files]
        stored = [name for name in names if name not in self._plan.partitions]
        row_id_columns = [STORED_ROW_ID_COLUMN] if STORED_ROW_ID_COLUMN in extras else []
        types = [*map(self._columns.type_of, stored), *(st.LongType() for _ in row_id_columns)]
        fields = list(map(st.StructField, [*stored, *row_id_columns], types))
        rows = read_parquet(self._spark, fields, *(file.path for file in files))
        aliases = [*self._columns.aliases("t", stored), *row_id_columns]
        if not (extras or files[0].deleted or len(stored) < len(names)):
            return rows.toDF(*aliases)
        rows = add_file_facts(rows, aliases, self._file_facts(numbered_files, names), rows.inputFiles())
        if files[0].deleted:
            rows = exclude_deleted(rows, {n: file.deleted for n, file in numbered_files if file.deleted}, self._scratch)
        if row_id_columns:
            row_id = F.expr(f"coalesce(first + {ROW}, {STORED_ROW_ID_COLUMN}, -1)")  # never NULL
            rows = rows.withColumn(STORED_ROW_ID_COLUMN, row_id)
        return rows.select(*self._columns.aliases("t", names), *extras)

    def _file_facts(self, numbered_files: Sequence[tuple[int, TargetFile]], names: Sequence[str]) -> pa.Table:
        facts = {
            PATH: pa.array([file.path for _, file in numbered_files], pa.string()),
            FILE: pa.array([index for index, _ in numbered_files], pa.int64()),
            "first": pa.array([file.first_row_id for _, file in numbered_files], pa.int64()),
        }
        for name in names:
            if name in self._plan.partitions:
                values = [file.partition_values[name] for _, file in numbered_files]
                facts[self._columns.aliases("t", [name])[0]] = pa.array(values, self._plan.schema.field(name).type)
        return pa.table(facts)


def add_file_facts(rows: DataFrame, aliases: Sequence[str], facts: pa.Table, uris: Iterable[str]) -> DataFrame:
    """Rename the columns of rows, and add the position of each row in its file and the facts of the file.

    Args:
        rows: rows of `read_parquet`, which may be filtered
        aliases: new names of the columns
        facts: a row for each file: its `path`, and columns to add
        uris: of the files, from `inputFiles` of the unfiltered rows
    """
    uris_by_path = {_uri_to_path(uri): uri for uri in uris}
    # Spark writes file:/a or file:///a, depending on the function.
    names = [uris_by_path[path].removeprefix("file:").lstrip("/") for path in facts[PATH].to_pylist()]
    tables = [
        facts.drop_columns([PATH]).append_column(
            _URI, pa.array([f"file:{slashes}{name}" for name in names], pa.string())
        )
        for slashes in ("/", "///")
    ]
    row_index = rows.metadataColumn("_metadata").getField("row_index")
    # _metadata.file_path has the same value as input_file_name, but creates a struct of seven members per row.
    numbered = rows.select("*", F.input_file_name(), row_index).toDF(*aliases, _URI, ROW)
    facts_by_uri = rows.sparkSession.createDataFrame(pa.concat_tables(tables))
    return numbered.join(F.broadcast(facts_by_uri), _URI).drop(_URI)


def exclude_deleted(rows: DataFrame, vectors: Mapping[int, DeletionVector], scratch: str) -> DataFrame:
    """Return the rows that deletion vectors leave.

    Spark chooses between a broadcast and a shuffle by the number of deleted rows.

    Args:
        rows: rows with the columns `file` and `row`
        vectors: the deletion vectors by the value of `file`
        scratch: existing folder that all workers can access
    """
    path = f"{scratch}/{uuid4().hex}.parquet"
    positions = np.concatenate([vector.positions + file * _MAX_FILE_ROWS for file, vector in vectors.items()])
    # Spark estimates the memory of a broadcast from the size of the file, so the positions are not compressed.
    pq.write_table(pa.table({_DELETED: positions}), path, use_dictionary=False, compression="none")
    deleted = read_parquet(rows.sparkSession, [st.StructField(_DELETED, st.LongType())], path)
    return rows.join(deleted, F.expr(f"{FILE} * {_MAX_FILE_ROWS} + {ROW} = {_DELETED}"), "left_anti")


def total_bytes(paths: Iterable[str]) -> int:
    return sum(os.path.getsize(path) for path in paths)


def _uri_to_path(uri: str) -> str:
    return "/" + unquote(uri.removeprefix("file:")).lstrip("/")
