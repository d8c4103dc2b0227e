"""Merge with Spark: three jobs over files, one to stage the source, one to match, one to write."""

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

from penstock.core.merge.key_index import Keys, comparable
from penstock.core.merge import Match, Matched, Output, Plan, Rest, Sink, TargetFile, Work
from penstock.core.names import CARRIED
from penstock.core.merge.key_ranges import Reach
from penstock.engines.spark import parquet_input as files
from penstock.engines.spark import parquet_output as output
from penstock.engines.spark import jobs
from penstock.engines.spark.parquet_input import Columns
from penstock.engines.spark.jobs import Watch
from penstock.engines.spark.parquet_output import Beat
from penstock.engines.spark.session import for_merging, session
from penstock.engines.spark.merge_source import AT, HELD_ROWS, Source, count_null
from penstock.engines.spark.types import is_frame, refusal, schema_of

__all__ = ["Spark", "SparkMerge", "is_frame", "schema_of"]

_HIT = [st.StructField("file", st.StringType()), st.StructField(AT, st.LongType())]
_HERE_ROWS = 10_000_000  # of the target: in so many, keys are looked up sooner than a job of Spark's has begun
_SHUFFLED_BYTES = 64 << 20  # of Parquet, for one task


class Spark:
    name = "spark"

    def __init__(
        self,
        scratch: str,
        spark: SparkSession | None = None,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`scratch`: a folder that exists, where every worker sees it. `spark`: the caller's session, if there is one."""
        self._scratch, self._spark, self._master, self._conf = scratch, spark, master, conf
        self._watch = watch

    def open(self, plan: Plan, source: "pa.Table | DataFrame") -> "SparkMerge":
        spark = source.sparkSession if is_frame(source) else self._spark or session(self._master, self._conf)
        return SparkMerge(for_merging(spark), plan, source, f"{self._scratch}/{uuid4().hex}", self._watch)

    def refuses(self, schema: pa.Schema) -> str | None:
        return refusal(schema)


class SparkMerge:
    reach: Reach

    def __init__(
        self, spark: SparkSession, plan: Plan, source: "pa.Table | DataFrame", folder: str, watch: Watch | None
    ) -> None:
        self._spark, self._plan, self._columns, self._folder = spark, plan, Columns(plan), folder
        self._watch = watch
        self._hits: str | None = None  # where the last match is: a file, and the source's row that it holds
        self._new, self._once = 0, False  # how many source rows hit nothing; and does none hit two rows?
        os.mkdir(folder)
        try:
            self._source: Source = self._run("read the source", lambda: Source(spark, plan, source, folder))
        except BaseException:
            self.close()
            raise
        self.reach = self._source.reach

    def nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        counts = dict.fromkeys(self._plan.keys, 0)
        for file in files:
            for name in counts.keys() & file.parts.keys():
                counts[name] += file.rows if file.parts[name] is None else 0
        stored = [name for name in self._plan.keys if name not in self._plan.partitions]
        if files and stored:
            columns = self._columns.of("t", stored)
            told = self._run(
                "look for NULL in keys", lambda: self._target(files, stored).select(*map(count_null, columns)).first()
            )
            counts.update(zip(stored, told, strict=True))
        return {name: number for name, number in counts.items() if number}

    def match(self, files: Sequence[TargetFile]) -> Match:
        rows, place = self._source.rows, f"{self._folder}/{uuid4().hex}"
        self._hits, self._new, self._once = None, rows, False
        if not (files and rows):
            return Match({}, rows, rows)
        if self._source.held is not None and sum(file.rows for file in files) <= _HERE_ROWS:
            found, known = self._looked_up(files, self._source.held, place)
        else:
            self._spread(files)
            self._run("match keys", lambda: self._meeting(files).write.parquet(place))
            found, known = self._counted(place)
        self._hits, self._new, self._once = place, rows - known, sum(found.values()) == known
        return Match(found, rows - known, rows)

    def write(self, work: Work, sink: Sink) -> list[Output]:
        """Rows of several files may come to lie in one. Where rows have ids, new rows have files of their own."""
        self._spread(work.rewrite)
        codec, codecs = output.codec(sink.layout), _by_codec(work.rewrite)
        apart = self._plan.row_ids or bool(self._plan.partitions)
        trades = self._trades and codecs.keys() <= {codec}
        alike: dict[tuple[str, bool], list[Callable[[], DataFrame]]] = defaultdict(list)  # what one job can write
        for each, some in codecs.items():
            if not trades:
                alike[each, False].append(partial(self._rewritten, some))
            elif self._plan.write.rest is Rest.KEEP:
                alike[each, False].append(partial(self._missed, some))
        if trades:
            alike[codec, apart].append(partial(self._brought, "" if work.insert or not self._new else "left_semi"))
        elif work.insert:
            alike[codec, apart].append(partial(self._brought, "left_anti"))
        parts = self._part_values(work.rewrite)
        rows = sum(file.rows for file in work.rewrite) + work.counts.inserted
        beat = Beat(sink, rows, len(alike), self._watch)
        outputs: list[Output] = []
        for (codec, new), frames in alike.items():
            folder = sink.folder()
            options = output.options(sink.layout, codec, max(int(sink.file_bytes / self._row_bytes(work.rewrite)), 1))
            job = partial(self._put, frames, parts, folder, options, spread=new or self._moves)
            jobs.run(self._spark.sparkContext, "penstock merge: write", job, beat)
            outputs += output.written(folder, parts)
            beat.passed(sum(each.rows for each in outputs))
        return outputs

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, purpose: str, act: Callable[[], Any]) -> Any:
        return jobs.run(self._spark.sparkContext, f"penstock merge: {purpose}", act, self._watch)

    def _spread(self, some: Iterable[TargetFile]) -> None:
        """A shuffle has a task for each core, and more where they would have too much to hold."""
        tasks = max(files.size(file.path for file in some), self._source.bytes) // _SHUFFLED_BYTES
        cores = self._spark.sparkContext.defaultParallelism
        self._spark.conf.set("spark.sql.shuffle.partitions", str(max(tasks, cores)))

    def _target(self, some: Sequence[TargetFile], names: Sequence[str], *extras: str) -> DataFrame:
        return files.target(self._spark, self._plan, some, names, *extras)

    def _same_key(self) -> Column:
        return F.expr(" AND ".join(f"t{i} = s{i}" for i in map(self._columns.place, self._plan.keys)))

    # Matching

    def _meeting(self, some: Sequence[TargetFile]) -> DataFrame:
        keys = self._source.frame.select(*self._columns.of("s", self._plan.keys), AT)
        return self._target(some, self._plan.keys, "file").join(keys, self._same_key()).select("file", AT)

    def _looked_up(self, some: Sequence[TargetFile], held: pa.Table, place: str) -> tuple[dict[str, int], int]:
        """The same without a job: how many rows of each file are hits, and how many source rows hit something."""
        lookup = Keys([comparable(held[name]) for name in self._columns.of("s", self._plan.keys)])
        with ThreadPoolExecutor() as pool:
            places = list(pool.map(lambda file: _met(self._plan, file, lookup), some))
        hit = np.unique(np.concatenate(places))
        os.mkdir(place)
        pq.write_table(pa.table({AT: held[AT].take(pa.array(hit))}), f"{place}/0.parquet")
        return {file.path: len(each) for file, each in zip(some, places, strict=True) if len(each)}, len(hit)

    def _counted(self, place: str) -> tuple[dict[str, int], int]:
        """How many rows of each file are hits, and how many source rows hit something."""
        held = pads.dataset(place, format="parquet", schema=pa.schema([("file", pa.string()), (AT, pa.int64())]))
        if held.count_rows() <= HELD_ROWS:
            table = held.to_table()
            told = [(each["values"], each["counts"]) for each in pc.value_counts(table["file"]).to_pylist()]
            known = pc.count_distinct(table[AT]).as_py()
        else:
            hits = files.read(self._spark, _HIT, place)
            told = self._run("count matches", lambda: [tuple(row) for row in hits.groupBy("file").count().collect()])
            known = self._run("count matches", lambda: hits.select(AT).distinct().count())
        return {files.path_of(uri): number for uri, number in told}, known

    # Writing

    def _rewritten(self, some: Sequence[TargetFile]) -> DataFrame:
        write, carried = self._plan.write, [CARRIED] if self._plan.row_ids else []
        rows, value = self._target(some, self._columns.names, *carried), "t{0}"
        if write.rest is Rest.DELETE:
            rows = rows.join(self._source.frame, self._same_key())
            value = "s{0}"
        elif write.matched is Matched.UPDATE:
            rows = rows.join(self._source.frame, self._same_key(), "left")
            value = f"CASE WHEN {AT} IS NULL THEN t{{0}} ELSE s{{0}} END"
        values = [value if name in self._plan.given else "t{0}" for name in self._columns.names]
        return rows.selectExpr(*(each.format(i) for i, each in enumerate(values)), *carried)

    def _missed(self, some: Sequence[TargetFile]) -> DataFrame:
        """The rows of the target whose key the source has not."""
        keys = self._source.frame.select(*self._columns.of("s", self._plan.keys))
        rows = self._target(some, self._columns.names).join(keys, self._same_key(), "left_anti")
        return rows.select(*self._columns.of("t", self._columns.names))

    def _brought(self, how: str) -> DataFrame:
        """The rows of the source: all, those that hit something (left_semi), or the others (left_anti)."""
        rows = self._source.frame
        if self._hits and how:
            rows = rows.join(files.read(self._spark, _HIT, self._hits), AT, how)
        named = enumerate(zip(self._columns.names, self._columns.kinds, strict=True))
        values = [F.col(f"s{i}") if name in self._plan.given else F.lit(None).cast(kind) for i, (name, kind) in named]
        return rows.select(*values)

    def _part_values(self, some: Sequence[TargetFile]) -> dict[str, pa.Array]:
        """Every value that a partition column may get: those of the files and of the source, and NULL."""
        given = [name for name in self._plan.partitions if name in self._plan.given]
        columns = self._columns.of("s", given)
        brought = None
        if given:
            brought = self._run("find partitions", lambda: self._source.frame.select(*columns).distinct().toArrow())
        values = {}
        for name in self._plan.partitions:
            kind = self._plan.schema.field(name).type
            chunks = [pa.array([None, *(file.parts[name] for file in some)], kind)]
            if brought is not None and name in given:
                chunks += brought.column(given.index(name)).cast(kind).chunks
            values[name] = pc.unique(pa.chunked_array(chunks))
        return values

    @property
    def _trades(self) -> bool:
        """Can rows of the source take the place of those that they hit, whole, so that no row is made of two?"""
        plan = self._plan
        whole = set(plan.given) == set(plan.schema.names) and not plan.row_ids
        return plan.write.matched is Matched.UPDATE and whole and self._once

    @property
    def _moves(self) -> bool:
        """Can a row of the target come into another partition?"""
        plan = self._plan
        return plan.write.matched is Matched.UPDATE and bool(set(plan.partitions) & set(plan.given) - set(plan.keys))

    def _put(
        self,
        frames: Sequence[Callable[[], DataFrame]],
        parts: Mapping[str, pa.Array],
        folder: str,
        options: Mapping[str, Any],
        *,
        spread: bool,
    ) -> None:
        """Write rows under their columns' names. A partition's folder is a number, so that no value is spelled out."""
        carried = [CARRIED] if CARRIED in (first := frames[0]()).columns else []
        rows = reduce(DataFrame.unionAll, (frame() for frame in frames[1:]), first)
        rows = rows.toDF(*self._columns.of("c", self._columns.names), *carried)
        for column, values in zip(self._columns.of("c", parts), parts.values(), strict=True):
            known = self._spark.createDataFrame(pa.table({"value": values, f"in_{column}": pa.arange(0, len(values))}))
            rows = rows.join(F.broadcast(known), F.expr(f"{column} <=> value")).drop("value", column)
        names = [name for name in self._columns.names if name not in parts]
        mark = next(m for n in count() if not any(name.startswith(m := f"part{'_' * n}") for name in names))
        folders = [f"{mark}{i}" for i in range(len(parts))]
        rows = rows.select(*self._columns.of("c", names), *carried, *self._columns.of("in_c", parts))
        rows = rows.toDF(*names, *carried, *folders)
        if folders and spread:
            rows = rows.hint("rebalance", *folders)  # else every task would have a file in every folder
        rows.write.options(**options).partitionBy(*folders).parquet(folder)

    def _row_bytes(self, some: Sequence[TargetFile]) -> float:
        rows = sum(file.rows for file in some)
        if not rows:
            return max(self._source.bytes / max(self._source.rows, 1), 1)
        return max(files.size(file.path for file in some) / rows, 1)


def _met(plan: Plan, file: TargetFile, lookup: Keys) -> Any:
    """The places of the keys that the file's rows have."""
    kinds = {name: plan.schema.field(name).type for name in plan.keys}
    stored = pa.schema([(name, kind) for name, kind in kinds.items() if name not in file.parts])
    rows = pads.dataset(file.path, schema=stored, format="parquet").scanner(
        batch_size=plan.batch_rows, use_threads=False
    )
    places = [np.zeros(0, dtype=np.int64)]
    for batch in rows.to_batches():
        keys = [
            pa.repeat(pa.scalar(file.parts[name], kind), len(batch)) if name in file.parts else batch.column(name)
            for name, kind in kinds.items()
        ]
        places.append(lookup.meet([comparable(key) for key in keys])[1])
    return np.concatenate(places)


def _by_codec(some: Iterable[TargetFile]) -> dict[str, list[TargetFile]]:
    found: dict[str, list[TargetFile]] = defaultdict(list)
    for file in some:
        found[output.codec(file.layout)].append(file)
    return found
