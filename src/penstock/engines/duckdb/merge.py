"""Merge with DuckDB: it finds the matches and writes the files; the source stays where it is, in Arrow.

Keys are matched once, and what is kept of it is which row of which file has the key of the row at which place of the
source. A file is then rewritten beside a table that has what the source brings to each of its rows, so what a rewrite
costs does not depend on how large the source is, and rows stay in their order.
"""

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core import merge
from penstock.core.dataset.row_groups import GROUP_BYTES
from penstock.core.merge import Match, Matched, Output, Plan, Rest, Sink, TargetFile, Work
from penstock.core.merge.key_ranges import Reach
from penstock.engines.duckdb.table_take import takable, taken
from penstock.engines.duckdb.connection import FILES, Connection, connect, copy, cursor, literal, one, run, table
from penstock.engines.duckdb.rewrite_sql import Successor, brought
from penstock.engines.duckdb.types import quoted, refusal, sql_type

_SHARE = "50%"  # of the machine's memory
# What is known of a file's values must not decide whether a column may be NULL, nor what is guessed of sizes which side
# of a join is read in order.
_OPTIMIZERS_OFF = ("statistics_propagation", "join_order", "build_side_probe_side")
_PULSE = 1.0  # seconds between signs of life


class DuckDB:
    name = "duckdb"

    def __init__(
        self, memory_limit: str | None = None, threads: int | None = None, temp_directory: str | None = None
    ) -> None:
        self._memory_limit, self._temp_directory = memory_limit or _SHARE, temp_directory or ""
        self._threads = threads or os.cpu_count() or 1

    def open(self, plan: Plan, source: pa.Table) -> "DuckDBSession":
        db = connect(self._memory_limit, self._temp_directory)
        try:
            return DuckDBSession(plan, source, db, self._threads)
        except BaseException:
            db.close()
            raise

    def refuses(self, schema: pa.Schema) -> str | None:
        return refusal(schema)


@dataclass(frozen=True, slots=True)
class _Written:
    outputs: list[Output]
    leaving: pa.Table | None = None  # rows that belong into another folder now

    @property
    def rows(self) -> int:
        return sum(output.rows for output in self.outputs)


_Job: TypeAlias = Callable[[Connection], _Written]


class DuckDBSession:
    def __init__(self, plan: Plan, source: pa.Table, db: Connection, threads: int) -> None:
        self._plan, self._source, self._db, self._threads = plan, takable(source), db, threads
        if nulls := {name: source[name].null_count for name in plan.keys if source[name].null_count}:
            raise merge.null_keys("source", nulls)
        off = list(_OPTIMIZERS_OFF)
        if any(pt.is_floating(plan.schema.field(name).type) for name in plan.keys):
            off.append("join_filter_pushdown")  # it trusts in statistics, which say nothing of NaN
        run(db, "SET disabled_optimizers = $names", names=",".join(off))
        run(db, "SET threads = $threads", threads=threads)
        self._brought = brought(plan)
        self.reach = Reach.of(source.select(list(plan.keys)))
        self._take_keys()
        self._new = self._candidates.copy()  # candidates without a match in the last call of match
        self._met: dict[str, _Met] = {}

    def nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        held = _held(self._db, files)
        counts = {}
        for name in self._plan.keys:
            if name in self._plan.partitions:
                counts[name] = sum(file.rows for file in files if file.parts[name] is None)
            elif name in held:
                missing = f"SELECT count(*) FROM {FILES} WHERE {quoted(name)} IS NULL"
                counts[name] = one(self._db, missing, files=_paths(files))
            else:
                counts[name] = sum(file.rows for file in files)
        return {name: count for name, count in counts.items() if count}

    def match(self, files: Sequence[TargetFile]) -> Match:
        stored = set(self._plan.keys) - set(self._plan.partitions)
        self._met = self._meet(files) if files and stored <= _held(self._db, files) else {}
        self._new = self._candidates.copy()  # a retry may match fewer rows than the attempt before it
        for met in self._met.values():
            self._new[met.places] = False
        counts = {path: len(met.places) for path, met in self._met.items()}
        return Match(counts, int(self._new.sum()), one(self._db, "SELECT count(*) FROM keys"))

    def write(self, work: Work, sink: Sink) -> list[Output]:
        new = self._new.copy() if work.insert else np.zeros_like(self._new)
        few = [file for file in work.rewrite if file.layout.codec == sink.layout.codec and self._leaves_few(file, new)]
        jobs: list[_Job] = [partial(self._rewrite, file, sink) for file in work.rewrite if file not in few]
        rows, places = self._source, np.flatnonzero(new)
        if not self._plan.partitions:
            jobs.append(partial(self._fresh, rows, places, {}, sink))
        outputs: list[Output] = []
        moved: list[pa.Table] = []
        with closing(self._all(jobs, sink)) as done:
            for written in done:
                outputs += written.outputs
                moved += [written.leaving] if written.leaving else []
        if self._plan.partitions:
            rows = pa.concat_tables([rows, *moved], promote_options="default")
            places = np.concatenate([places, np.arange(self._source.num_rows, rows.num_rows)])
            for parts, some in self._parted(rows, places):
                outputs += self._fresh(rows, some, parts, sink, self._db).outputs
        return outputs

    def close(self) -> None:
        self._db.close()

    # Matching

    def _take_keys(self) -> None:
        """Make the table `keys`: the place of every source row that counts, and its key."""
        plan = self._plan
        keys = [f"k{i}" for i in range(len(plan.keys))]
        order = [f"o{i}" for i in range(len(plan.order_by))]
        names = zip((*plan.keys, *plan.order_by), (*keys, *order), strict=True)
        columns = ", ".join(f"CAST({quoted(name)} AS {self._type(name)}) AS {column}" for name, column in names)
        key = ", ".join(keys)
        highest = "".join(f"{column} DESC NULLS LAST, " for column in order)
        only = f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {highest}place DESC) = 1"
        self._db.register("source", self._source)
        run(
            self._db,
            f"CREATE TABLE keys AS SELECT place, {key} "
            f"FROM (SELECT row_number() OVER () - 1 AS place, {columns} FROM source) "
            f"{only if plan.write.deduplicates else ''}",
        )
        self._db.unregister("source")
        self._candidates = np.ones(self._source.num_rows, dtype=bool)  # source rows that take part in the merge
        if plan.write.deduplicates:
            self._candidates[:] = False
            self._candidates[table(self._db, "SELECT place FROM keys")["place"].to_numpy()] = True
            return
        values = self.reach.numbers.get(plan.keys[0]) if len(plan.keys) == 1 else None
        distinct = f"SELECT count(*) FROM (SELECT DISTINCT {key} FROM keys)"
        if repeated := self._source.num_rows - (one(self._db, distinct) if values is None else len(values)):
            nth = f"SELECT place, row_number() OVER (PARTITION BY {key} ORDER BY place) AS nth FROM keys"
            first = one(self._db, f"SELECT min(place) FROM ({nth}) WHERE nth = 2")
            raise merge.duplicate_keys(plan.keys, repeated, [self._source[name][first].as_py() for name in plan.keys])

    def _meet(self, files: Sequence[TargetFile]) -> "dict[str, _Met]":
        """Which rows have a key of the source, by file."""
        plan = self._plan
        told = [name for name in plan.keys if name in plan.partitions]
        same = []
        for at, name in enumerate(plan.keys):
            stored = f"CAST(t.{quoted(name)} AS {self._type(name)})"
            same.append(f"{f'p.p{at}' if name in told else stored} = k.k{at}")
        if told:
            columns = {f"p{plan.keys.index(name)}": self._values(name, files) for name in told}
            self._db.register("parts", pa.table({"file": pa.arange(0, len(files)), **columns}))
        met = table(
            self._db,
            f"SELECT t.file_index AS file, t.file_row_number AS row, k.place FROM {FILES} t "
            f"{'JOIN parts p ON t.file_index = p.file' if told else ''} JOIN keys k ON {' AND '.join(same)}",
            files=_paths(files),
        )
        file, row, place = (met[name].to_numpy() for name in ("file", "row", "place"))
        order = np.lexsort((place, file))
        ends = np.searchsorted(file[order], np.arange(len(files) + 1))
        parts = ((each.path, order[ends[n] : ends[n + 1]]) for n, each in enumerate(files))
        return {path: _Met(row[some], place[some]) for path, some in parts if len(some)}

    def _values(self, name: str, files: Iterable[TargetFile]) -> pa.Array:
        return pa.array([file.parts[name] for file in files], self._plan.schema.field(name).type)

    # Rewriting

    def _leaves_few(self, file: TargetFile, new: Any) -> bool:
        """Are most of its rows deleted, and the others the source's own? Those need no file for themselves: they are `new`.

        A row of the source is new once. Where it takes the place of several, with one key, they stay in their files.
        """
        plan, met = self._plan, self._met.get(file.path)
        if met is None or plan.keeps_columns or plan.row_ids or plan.partitions or 2 * len(met.places) > file.rows:
            return False
        if new[met.places].any() or not np.diff(met.places).all():
            return False
        new[met.places] = True
        return True

    def _rewrite(self, file: TargetFile, sink: Sink, db: Connection) -> _Written:
        """Write a file's successor."""
        plan = self._plan
        deletes = plan.write.rest is Rest.DELETE
        met = self._met.get(file.path) if deletes or plan.write.matched is Matched.UPDATE else None
        if met is None and deletes:
            return _Written([])
        after = Successor(plan, file, met is not None, self._brought, _held(db, [file]))
        values = {"files": _paths([file])} if after.reads_target else {}
        brought = None if met is None else self._brings(met, file)
        leaving = 0 if brought is None else brought.leaving
        count = (len(met.places) if met is not None and deletes else file.rows) - leaving
        written = _Written([])
        if count:
            path = sink.path()
            _register(db, brought, after, plan.batch_rows)
            count = copy(db, after.rows(file.layout.schema, staying=leaving > 0), path, file.layout, **values)
            written.outputs.append(Output(path, count, replaces=file, parts=file.parts))
        if leaving:
            _register(db, brought, after, plan.batch_rows)
            written = replace(written, leaving=self._leaving(after, db, values))
        sink.beat(count)
        return written

    def _brings(self, met: "_Met", file: TargetFile) -> "_Brought":
        """What the source brings to the file's matched rows."""
        rows = taken(self._source.select(self._brought), met.places)
        moves = pa.repeat(pa.scalar(False), len(met.places))
        for name in self._plan.partitions:
            if name in self._brought:
                here = pa.scalar(file.parts[name], self._plan.schema.field(name).type)
                stays = pc.fill_null(pc.equal(rows[name], here), False) if here.is_valid else rows[name].is_null()
                moves = pc.or_(moves, pc.invert(stays))
        columns = {f"c{i}": rows[name] for i, name in enumerate(self._brought)}
        return _Brought(met.rows, pa.table({"moves": moves, **columns}).combine_chunks())

    def _leaving(self, after: Successor, db: Connection, values: Mapping[str, Any]) -> pa.Table:
        """Whole rows that leave their file's folder, in the plan's types."""
        schema = self._plan.schema
        told = [name for name in self._plan.partitions if name not in self._brought]
        rows = table(db, after.leaving(pa.schema([field for field in schema if field.name not in told])), **values)
        for name in told:
            value = pa.scalar(after.file.parts[name], schema.field(name).type)
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
        return takable(rows.select(schema.names).cast(schema))

    # New files

    def _parted(self, rows: pa.Table, places: Any) -> Iterator[tuple[dict[str, Any], Any]]:
        """The places of rows for new files, by folder."""
        names = [name for name in self._plan.partitions if name in rows.column_names]
        nowhere = dict.fromkeys(self._plan.partitions)
        if not len(places) or not names:
            yield nowhere, places
            return
        here = taken(rows.select(names), places)
        columns = {f"p{i}": here[name] for i, name in enumerate(names)}
        self._db.register("fresh", pa.table({"place": places, **columns}))
        by_folder = table(
            self._db,
            f"SELECT place, dense_rank() OVER (ORDER BY {', '.join(columns)}) AS folder FROM fresh ORDER BY folder, place",
        )
        start = 0
        for folder in pc.value_counts(by_folder["folder"]):
            some = by_folder["place"].slice(start, folder["counts"].as_py()).to_numpy()
            start += len(some)
            yield nowhere | {name: rows[name][int(some[0])].as_py() for name in names}, some

    def _fresh(self, rows: pa.Table, places: Any, parts: Mapping[str, Any], sink: Sink, db: Connection) -> _Written:
        """New files of about the size that is asked for: the first tells how many bytes a row takes."""
        columns = ", ".join(
            f"CAST({quoted(f.name) if f.name in rows.column_names else 'NULL'} AS {sql_type(f.type)}) AS {quoted(f.name)}"
            for f in sink.layout.schema
        )
        everything = len(places) == rows.num_rows
        width, start = max(rows.nbytes / max(rows.num_rows, 1), 1), 0
        layout = replace(sink.layout, group_rows=max(1, min(sink.layout.group_rows, int(GROUP_BYTES / width))))
        written = _Written([])
        while start < len(places):
            some = places[start : start + max(1, int(sink.file_bytes / width))]
            path = sink.path()
            db.register("fresh", rows.slice(start, len(some)) if everything else taken(rows, some))
            copy(db, f"SELECT {columns} FROM fresh", path, layout)
            written.outputs.append(Output(path, len(some), parts=parts))
            sink.beat(len(some))
            width, start = os.path.getsize(path) / len(some), start + len(some)
        return written

    # The machine

    def _all(self, jobs: Sequence[_Job], sink: Sink) -> Generator[_Written, None, None]:
        """As many jobs at a time as there are threads, answered in order. An error, or Ctrl-C, stops the others."""
        workers = min(self._threads, len(jobs))
        if not workers:
            return
        mine = threading.local()
        open_ones: list[Connection] = []

        def begin() -> None:
            mine.db = cursor(self._db)
            open_ones.append(mine.db)

        with ThreadPoolExecutor(workers, initializer=begin) as pool:
            answers: list[Future[_Written]] = [pool.submit(lambda job: job(mine.db), job) for job in jobs]
            try:
                for answer in answers:
                    while not wait([answer], _PULSE).done:
                        sink.beat(0)
                    yield answer.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(answer.done() for answer in answers):
                    for db in open_ones:
                        db.interrupt()
                    wait(answers, 0.1)
                raise
            finally:
                for db in open_ones:
                    db.close()

    def _type(self, name: str) -> str:
        kind = sql_type(self._plan.schema.field(name).type)
        assert kind, "a schema that is refused gets no session"
        return kind


@dataclass(frozen=True, slots=True)
class _Met:
    """Rows of a file that have a key of the source, and the places of those keys, which ascend."""

    rows: Any
    places: Any


@dataclass(frozen=True, slots=True)
class _Brought:
    """What is brought to some rows of a file."""

    positions: Any
    rows: pa.Table

    @property
    def leaving(self) -> int:
        return pc.sum(self.rows["moves"]).as_py() or 0

    def alone(self) -> pa.Table:
        """Those rows, in the file's order."""
        order = np.argsort(self.positions)
        return self._at(self.positions[order], pa.array(order))

    def beside(self, rows: int, step: int) -> pa.RecordBatchReader:
        """A row for each of the file's, `step` at a time."""
        places = np.full(rows, -1)
        places[self.positions] = np.arange(len(self.positions))

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, rows, step):
                some = places[start : start + step]
                numbers = np.arange(start, start + len(some))
                yield from self._at(numbers, pa.array(some, mask=some < 0)).to_batches()

        return pa.RecordBatchReader.from_batches(
            self._at(self.positions[:0], pa.array([], pa.int64())).schema, batches()
        )

    def _at(self, numbers: Any, places: pa.Array) -> pa.Table:
        found = self.rows.take(places).combine_chunks()
        return found.add_column(0, "row", pa.array(numbers)).add_column(1, "hit", places.is_valid())


def _register(db: Connection, brought: _Brought | None, after: Successor, step: int) -> None:
    """The table `m`. It is made as it is read, so it is good for one reading."""
    if brought is not None:
        db.register("m", brought.beside(after.file.rows, step) if after.reads_target else brought.alone())


def _held(db: Connection, files: Sequence[TargetFile]) -> set[str]:
    """The columns that at least one of the files has."""
    if not files:
        return set()
    return {name for name, *_ in run(db, f"DESCRIBE SELECT * FROM {FILES}", files=_paths(files))}


def _paths(files: Iterable[TargetFile]) -> list[str]:
    return literal(file.path for file in files)
