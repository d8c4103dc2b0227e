"""The source of a merge, staged once as Parquet where every worker sees it, and checked."""

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
from penstock.core.merge.key_index import Keys, comparable, first_repeat, highest
from penstock.core.merge import Plan
from penstock.core.merge.key_ranges import Reach
from penstock.engines.spark import parquet_input as files
from penstock.engines.spark.parquet_input import Columns
from penstock.engines.spark.session import told
from penstock.errors import Invalid

AT = "at"  # the place of a row in the source's order
HELD_ROWS = 2_000_000  # so many keys are looked at in this process; more are counted by Spark

_TOO_LARGE = ("NUMERIC_VALUE_OUT_OF_RANGE", "CAST_OVERFLOW", "ARITHMETIC_OVERFLOW")


class Source:
    """Rows with one key each: `frame` has the columns that the plan says are given, and `at`."""

    def __init__(self, spark: SparkSession, plan: Plan, given: "pa.Table | DataFrame", folder: str) -> None:
        self._spark, self._plan, self._columns = spark, plan, Columns(plan)
        self._given, self._keys = self._columns.of("s", plan.given), self._columns.of("s", plan.keys)
        staged = f"{folder}/source"
        if isinstance(given, pa.Table):
            if plan.write.deduplicates and given.num_rows <= HELD_ROWS:
                given = _highest_of(given, plan)
            self._stage_table(given, staged)
            self.frame = self._staged(staged)
        else:
            self._stage_frame(given, staged)
            self.frame = self._staged(staged)
            self._check_required()
        came = _parquet(staged).count_rows()
        held = _parquet(staged).to_table([*self._keys, AT]) if came <= HELD_ROWS else None
        keys = None if held is None else held.select(self._keys).rename_columns(list(plan.keys))
        nulls, self.rows = self._census() if keys is None else _census(keys)
        if nulls:
            raise merge.null_keys("source", nulls)
        if self.rows < came:
            if not plan.write.deduplicates:
                raise merge.duplicate_keys(plan.keys, came - self.rows, self._first_repeat())
            staged = f"{folder}/kept"
            self._highest().write.parquet(staged)
            self.frame = self._staged(staged)
        self.bytes = files.size(entry.path for entry in os.scandir(staged))
        self.reach = Reach({}, came) if keys is None else Reach.of(keys)
        self.held = held if self.rows == came else None  # every key and its place, where they are few

    def _stage_table(self, table: pa.Table, staged: str) -> None:
        os.mkdir(staged)
        numbered = table.rename_columns(self._given).append_column(AT, pa.arange(0, table.num_rows))
        pq.write_table(numbered, f"{staged}/0.parquet", use_dictionary=False, compression="lz4")

    def _stage_frame(self, frame: DataFrame, staged: str) -> None:
        """The frame's rows in the plan's types, numbered as they come. The frame is asked once."""
        # A union is run in the session of its first frame, so with our settings and not with those of the caller.
        empty = [F.lit(None).cast(field.dataType).alias(f"f{i}") for i, field in enumerate(frame.schema)]
        ours = self._spark.range(1).filter(F.lit(False)).select(*empty).unionAll(frame)
        cast = [F.col(f"f{frame.columns.index(name)}").cast(self._columns.kind(name)) for name in self._plan.given]
        numbered = ours.select(*cast, F.monotonically_increasing_id()).toDF(*self._given, AT)
        try:
            numbered.write.parquet(staged)
        except PySparkException as cause:
            if (cause.getCondition() or "").startswith(_TOO_LARGE):
                raise Invalid("value_does_not_fit", f"a value of the source does not fit: {told(cause)}") from None
            raise Invalid("source_failed", f"the frame could not be read: {told(cause)}") from cause

    def _staged(self, place: str) -> DataFrame:
        kinds = [*map(self._columns.kind, self._plan.given), st.LongType()]
        return files.read(self._spark, list(map(st.StructField, [*self._given, AT], kinds)), place)

    def _check_required(self) -> None:
        plan = self._plan
        required = [n for n in plan.given if n not in plan.keys and not plan.schema.field(n).nullable]
        for name, number in self._nulls(required).items():
            raise Invalid(
                "null_in_required_column",
                f"column {name!r} is required, and {number:,} rows of the source have no value",
                column=name,
            )

    def _nulls(self, names: Sequence[str]) -> Mapping[str, int]:
        counts = self.frame.select(*map(count_null, self._columns.of("s", names))).first() if names else None
        return {name: number for name, number in zip(names, counts or (), strict=True) if number}

    def _census(self) -> tuple[Mapping[str, int], int]:
        nulls = self._nulls(self._plan.keys)
        return nulls, 0 if nulls else self.frame.select(*self._keys).distinct().count()

    def _first_repeat(self) -> list[Any]:
        """The key of the first row whose key stood there before."""
        nth = F.row_number().over(Window.partitionBy(*self._keys).orderBy(AT))
        again = self.frame.select(*self._keys, AT, nth.alias("nth")).filter("nth = 2").orderBy(AT).limit(1)
        return list(again.select(*self._keys).toArrow().to_pylist()[0].values())

    def _highest(self) -> DataFrame:
        """Of each key the row that is highest in the order asked for: NULL is lowest, NaN highest, and the last wins."""
        order = [F.desc_nulls_last(name) for name in self._columns.of("s", self._plan.order_by)]
        nth = F.row_number().over(Window.partitionBy(*self._keys).orderBy(*order, F.desc(AT)))
        return self.frame.withColumn("nth", nth).filter("nth = 1").drop("nth")


def count_null(column: str) -> Column:
    return F.expr(f"count_if({column} IS NULL)")


def _census(keys: pa.Table) -> tuple[Mapping[str, int], int]:
    """Where NULL stands in a key, and how many keys there are."""
    nulls = {name: keys[name].null_count for name in keys.schema.names if keys[name].null_count}
    repeat = None if nulls else first_repeat(Keys([comparable(column) for column in keys.columns]).numbers)
    return nulls, keys.num_rows - (repeat[0] if repeat else 0)


def _highest_of(rows: pa.Table, plan: Plan) -> pa.Table:
    keys = [comparable(rows[name]) for name in plan.keys]
    if any(key.null_count for key in keys):
        return rows  # it is refused for that, and counted whole
    kept = highest(Keys(keys).numbers, [rows[name] for name in plan.order_by])
    return rows if len(kept) == rows.num_rows else rows.take(kept)


def _parquet(folder: str) -> Any:
    return pads.dataset(folder, format="parquet")
