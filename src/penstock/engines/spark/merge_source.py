"""Stage and check the source of a Spark merge: Parquet files that all workers can read."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pyspark.sql.types as st
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.core import merge
from penstock.core.merge import MergePlan
from penstock.core.merge.key_index import KeyIndex, best_per_key, comparable, first_repeat
from penstock.core.merge.key_ranges import KeyRanges
from penstock.engines.spark import parquet_input
from penstock.engines.spark.parquet_input import ParquetColumns
from penstock.engines.spark.session import detect_loss, error_message
from penstock.errors import Invalid

SOURCE_ROW = "at"  # column with the position of a row in the source
MAX_LOCAL_KEYS = 2_000_000  # up to this many keys are checked in this process, more by Spark

_OVERFLOW_CONDITIONS = ("NUMERIC_VALUE_OUT_OF_RANGE", "CAST_OVERFLOW", "ARITHMETIC_OVERFLOW")


class SparkMergeSource:
    """Source rows with unique keys: `frame` has the plan's source columns and the source row number."""

    def __init__(self, spark: SparkSession, plan: MergePlan, source: "pa.Table | DataFrame", folder: str) -> None:
        self._spark, self._plan, self._columns = spark, plan, ParquetColumns(plan)
        self._column_aliases, self._key_aliases = (
            self._columns.aliases("s", plan.source_columns),
            self._columns.aliases("s", plan.keys),
        )
        staged = f"{folder}/source"
        if isinstance(source, pa.Table):
            if plan.rules.deduplicates and source.num_rows <= MAX_LOCAL_KEYS:
                source = _deduplicate(source, plan)
            self._stage_table(source, staged)
            self.frame = self._read_staged(staged)
        else:
            self._stage_frame(source, staged)
            self.frame = self._read_staged(staged)
            self._check_required()
        source_rows = _open_dataset(staged).count_rows()
        local_rows = (
            _open_dataset(staged).to_table([*self._key_aliases, SOURCE_ROW]) if source_rows <= MAX_LOCAL_KEYS else None
        )
        keys = None if local_rows is None else local_rows.select(self._key_aliases).rename_columns(list(plan.keys))
        nulls, self.rows = self._count_keys() if keys is None else _count_keys(keys)
        if nulls:
            raise merge.null_keys("source", nulls)
        if self.rows < source_rows:
            if not plan.rules.deduplicates:
                raise merge.duplicate_keys(plan.keys, source_rows - self.rows, self._first_repeat())
            staged = f"{folder}/kept"
            self._best_rows().write.parquet(staged)
            self.frame = self._read_staged(staged)
        self.bytes = parquet_input.total_bytes(entry.path for entry in os.scandir(staged))
        self.key_ranges = KeyRanges({}, source_rows) if keys is None else KeyRanges.of(keys)
        self.local_keys = (
            local_rows if self.rows == source_rows else None
        )  # all keys with their source rows, if there are few

    def _stage_table(self, table: pa.Table, staged: str) -> None:
        os.mkdir(staged)
        numbered = table.rename_columns(self._column_aliases).append_column(SOURCE_ROW, pa.arange(0, table.num_rows))
        pq.write_table(numbered, f"{staged}/0.parquet", use_dictionary=False, compression="lz4")

    def _stage_frame(self, frame: DataFrame, staged: str) -> None:
        """Write the DataFrame's rows in the plan's types, numbered in order. The DataFrame is evaluated once."""
        # A union runs in the session of its first frame: with our settings, not with those of the caller.
        empty = [F.lit(None).cast(field.dataType).alias(f"f{i}") for i, field in enumerate(frame.schema)]
        isolated = self._spark.range(1).filter(F.lit(False)).select(*empty).unionAll(frame)
        casts = [
            F.col(f"f{frame.columns.index(name)}").cast(self._columns.type_of(name))
            for name in self._plan.source_columns
        ]
        numbered = isolated.select(*casts, F.monotonically_increasing_id()).toDF(*self._column_aliases, SOURCE_ROW)
        try:
            with detect_loss(self._spark.sparkContext):
                numbered.write.parquet(staged)
        except PySparkException as cause:
            if (cause.getCondition() or "").startswith(_OVERFLOW_CONDITIONS):
                raise Invalid("value_does_not_fit.frame", {"cause": error_message(cause)}) from None
            raise Invalid("source_failed", {"cause": error_message(cause)}) from cause

    def _read_staged(self, path: str) -> DataFrame:
        types = [*map(self._columns.type_of, self._plan.source_columns), st.LongType()]
        return parquet_input.read_parquet(
            self._spark, list(map(st.StructField, [*self._column_aliases, SOURCE_ROW], types)), path
        )

    def _check_required(self) -> None:
        plan = self._plan
        required = [n for n in plan.source_columns if n not in plan.keys and not plan.schema.field(n).nullable]
        for name, count in self._count_nulls(required).items():
            raise Invalid(
                "null_in_required_column.frame",
                {"name": name, "count": count},
                column=name,
            )

    def _count_nulls(self, names: Sequence[str]) -> Mapping[str, int]:
        counts = self.frame.select(*map(count_nulls, self._columns.aliases("s", names))).first() if names else None
        return {name: count for name, count in zip(names, counts or (), strict=True) if count}

    def _count_keys(self) -> tuple[Mapping[str, int], int]:
        nulls = self._count_nulls(self._plan.keys)
        return nulls, 0 if nulls else self.frame.select(*self._key_aliases).distinct().count()

    def _first_repeat(self) -> list[Any]:
        """Return the key of the first row that repeats an earlier key."""
        occurrence = F.row_number().over(Window.partitionBy(*self._key_aliases).orderBy(SOURCE_ROW))
        repeats = (
            self.frame.select(*self._key_aliases, SOURCE_ROW, occurrence.alias("nth"))
            .filter("nth = 2")
            .orderBy(SOURCE_ROW)
            .limit(1)
        )
        return list(repeats.select(*self._key_aliases).toArrow().to_pylist()[0].values())

    def _best_rows(self) -> DataFrame:
        """Return the highest row of each key by the dedup order: NULL lowest, NaN highest, the last row wins ties."""
        order = [F.desc_nulls_last(name) for name in self._columns.aliases("s", self._plan.order_by)]
        rank = F.row_number().over(Window.partitionBy(*self._key_aliases).orderBy(*order, F.desc(SOURCE_ROW)))
        return self.frame.withColumn("nth", rank).filter("nth = 1").drop("nth")


def count_nulls(column: str) -> Column:
    return F.expr(f"count_if({column} IS NULL)")


def _count_keys(keys: pa.Table) -> tuple[Mapping[str, int], int]:
    """Return the NULL count of each key column with NULL, and the number of distinct keys."""
    nulls = {name: keys[name].null_count for name in keys.schema.names if keys[name].null_count}
    repeat = None if nulls else first_repeat(KeyIndex([comparable(column) for column in keys.columns]).numbers)
    return nulls, keys.num_rows - (repeat[0] if repeat else 0)


def _deduplicate(rows: pa.Table, plan: MergePlan) -> pa.Table:
    keys = [comparable(rows[name]) for name in plan.keys]
    if any(key.null_count for key in keys):
        return rows  # the NULL check rejects it with the full count
    best_rows = best_per_key(KeyIndex(keys).numbers, [rows[name] for name in plan.order_by])
    return rows if len(best_rows) == rows.num_rows else rows.take(best_rows)


def _open_dataset(folder: str) -> Any:
    return pads.dataset(folder, format="parquet")
