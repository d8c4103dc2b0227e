"""Merge with DuckDB: it finds the matches and writes the files; the source stays where it is, in Arrow.

Keys are matched once, and what is kept of it is the table `met`: which row of which file has the key of the row at
which place of the source. A file is then rewritten by joining it with its own part of that table, on the number of the
row, so what a rewrite costs does not depend on how large the source is.
"""

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core import merge
from penstock.core.groups import GROUP_BYTES
from penstock.core.merge import Match, Matched, Output, Plan, Rest, Sink, TargetFile, Work
from penstock.core.reach import Reach
from penstock.engines.duckdb.rows import takable, taken
from penstock.engines.duckdb.sql import FILES, Connection, connect, copy, cursor, literal, one, run, table
from penstock.engines.duckdb.successor import Successor, brought
from penstock.engines.duckdb.types import quoted, refusal, sql_type

_SHARE = "50%"  # of the machine's memory
# What is known of a file's values must not decide whether a column may be NULL, nor what is guessed of sizes which side
# of a join is read in order.
_OPTIMIZERS_OFF = ("statistics_propagation", "join_order", "build_side_probe_side")
_PULSE = 1.0  # seconds between signs of life
_NEW = "SELECT place FROM keys ANTI JOIN met USING (place)"

_T = TypeVar("_T")
_S = TypeVar("_S")


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
class _Rewrite:
    file: TargetFile
    path: str  # of the successor


class DuckDBSession:
    def __init__(self, plan: Plan, source: pa.Table, db: Connection, threads: int) -> None:
        self._plan, self._source, self._db, self._threads = plan, takable(source), db, threads
        if nulls := {name: source[name].null_count for name in plan.keys if source[name].null_count}:
            raise merge.null_keys("source", nulls)
        off = list(_OPTIMIZERS_OFF)
        if any(pt.is_floating(plan.schema.field(name).type) for name in plan.keys):
            off.append("join_filter_pushdown")  # it trusts in statistics, which say nothing of NaN
        run(db, "SET disabled_optimizers = $names", names=",".join(off))
        self._use(threads)
        self._room = one(db, "SELECT parse_formatted_bytes(current_setting('memory_limit'))") // (4 * threads)
        self._brought = brought(plan)
        self._take_keys()
        self.reach = Reach.of(source.select(list(plan.keys)))
        self._numbers: dict[str, int] = {}  # path of a file → its number in `met`
        run(db, "CREATE TABLE met (file BIGINT, row BIGINT, place BIGINT)")

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
        self._use(self._threads)
        self._numbers = {file.path: number for number, file in enumerate(files)}
        run(self._db, "DELETE FROM met")
        stored = set(self._plan.keys) - set(self._plan.partitions)
        if files and stored <= set(_held(self._db, files)):
            self._meet(files)
        counts = dict(run(self._db, "SELECT file, count(*) FROM met GROUP BY file"))
        return Match(
            found={path: counts[number] for path, number in self._numbers.items() if number in counts},
            new=one(self._db, f"SELECT count(*) FROM ({_NEW})"),
            rows=one(self._db, "SELECT count(*) FROM keys"),
        )

    def write(self, work: Work, sink: Sink) -> list[Output]:
        outputs: list[Output] = []
        rows, moved = self._source, []
        rewrites = [_Rewrite(file, sink.path()) for file in work.rewrite]
        with closing(self._all(self._rewrite, rewrites, sink)) as written:
            for each, (count, leaving) in zip(rewrites, written, strict=True):
                if count:
                    outputs.append(Output(each.path, count, replaces=each.file, parts=each.file.parts))
                moved += [leaving] if leaving else []
                sink.beat(count)
        self._use(self._threads)
        places = table(self._db, f"{_NEW} ORDER BY place")["place"] if work.insert else pa.chunked_array([], pa.int64())
        if moved:
            rows = pa.concat_tables([rows, *moved], promote_options="default")
            places = pa.chunked_array([*places.chunks, pa.arange(self._source.num_rows, rows.num_rows)])
        for parts, some in self._parted(rows, places):
            outputs += self._fresh(rows, some, parts, sink)
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
        if plan.write.deduplicates:
            return
        distinct = f"SELECT count(*) FROM (SELECT DISTINCT {key} FROM keys)"
        if repeated := self._source.num_rows - one(self._db, distinct):
            nth = f"SELECT place, row_number() OVER (PARTITION BY {key} ORDER BY place) AS nth FROM keys"
            first = one(self._db, f"SELECT min(place) FROM ({nth}) WHERE nth = 2")
            raise merge.duplicate_keys(plan.keys, repeated, [self._source[name][first].as_py() for name in plan.keys])

    def _meet(self, files: Sequence[TargetFile]) -> None:
        """Fill the table `met`."""
        plan = self._plan
        told = [name for name in plan.keys if name in plan.partitions]
        same = []
        for at, name in enumerate(plan.keys):
            stored = f"CAST(t.{quoted(name)} AS {self._type(name)})"
            same.append(f"{f'p.p{at}' if name in told else stored} = k.k{at}")
        if told:
            columns = {f"p{plan.keys.index(name)}": self._values(name, files) for name in told}
            self._db.register("parts", pa.table({"file": pa.arange(0, len(files)), **columns}))
        run(
            self._db,
            f"INSERT INTO met SELECT t.file_index, t.file_row_number, k.place FROM {FILES} t "
            f"{'JOIN parts p ON t.file_index = p.file' if told else ''} "
            f"JOIN keys k ON {' AND '.join(same)} ORDER BY 1, 2",
            files=_paths(files),
        )

    def _values(self, name: str, files: Iterable[TargetFile]) -> pa.Array:
        return pa.array([file.parts[name] for file in files], self._plan.schema.field(name).type)

    # Rewriting

    def _rewrite(self, each: _Rewrite, db: Connection) -> tuple[int, pa.Table | None]:
        """Write a file's successor. Says how many rows it has, and which rows belong into another folder now."""
        plan, file = self._plan, each.file
        deletes = plan.write.rest is Rest.DELETE
        met = self._met(file, db) if deletes or plan.write.matched is Matched.UPDATE else None
        if met is None and deletes:
            return 0, None
        after = Successor(plan, file, met is not None, self._brought, _held(db, [file]))
        values = {"files": _paths([file])} if after.reads_target else {}
        count, leaving, large = file.rows, 0, False
        if met is not None:
            db.register("m", met)
            leaving = pc.sum(met["moves"]).as_py()
            count = (met.num_rows if deletes else file.rows) - leaving
            large = met.nbytes > self._room  # a join that does not fit into memory loses the order
        if count:
            rows = after.rows(file.layout.schema, staying=leaving > 0, sort=large)
            count = copy(db, rows, each.path, file.layout, **values)
        return count, self._leaving(after, db, values) if leaving else None

    def _met(self, file: TargetFile, db: Connection) -> pa.Table | None:
        """The file's matched rows: their numbers, whether they leave the file's folder, and what the source brings."""
        number = self._numbers.get(file.path)
        met = table(db, "SELECT row, place FROM met WHERE file = $number ORDER BY place", number=number)
        if not met.num_rows:
            return None
        rows = taken(self._source.select(self._brought), met["place"])
        moves = pa.repeat(pa.scalar(False), met.num_rows)
        for name in self._plan.partitions:
            if name in self._brought:
                here = pa.scalar(file.parts[name], self._plan.schema.field(name).type)
                stays = pc.fill_null(pc.equal(rows[name], here), False) if here.is_valid else rows[name].is_null()
                moves = pc.or_(moves, pc.invert(stays))
        columns = {f"c{i}": rows[name] for i, name in enumerate(self._brought)}
        return pa.table({"row": met["row"], "moves": moves, **columns})

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

    def _parted(self, rows: pa.Table, places: pa.ChunkedArray) -> Iterator[tuple[dict[str, Any], pa.ChunkedArray]]:
        """The places of rows for new files, by folder."""
        names = [name for name in self._plan.partitions if name in rows.column_names]
        if not len(places):
            return
        nowhere = dict.fromkeys(self._plan.partitions)
        if not names:
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
            some = by_folder["place"].slice(start, folder["counts"].as_py())
            start += len(some)
            yield nowhere | {name: rows[name][some[0].as_py()].as_py() for name in names}, some

    def _fresh(self, rows: pa.Table, places: pa.ChunkedArray, parts: Mapping[str, Any], sink: Sink) -> Iterator[Output]:
        """New files of about the size that is asked for: the first tells how many bytes a row takes."""
        columns = ", ".join(
            f"CAST({quoted(f.name) if f.name in rows.column_names else 'NULL'} AS {sql_type(f.type)}) AS {quoted(f.name)}"
            for f in sink.layout.schema
        )
        everything = len(places) == rows.num_rows
        width, start = max(rows.nbytes / rows.num_rows, 1), 0
        layout = replace(sink.layout, group_rows=max(1, min(sink.layout.group_rows, int(GROUP_BYTES / width))))
        while start < len(places):
            some = places.slice(start, max(1, int(sink.file_bytes / width)))
            path = sink.path()
            self._db.register("fresh", rows.slice(start, len(some)) if everything else taken(rows, some))
            copy(self._db, f"SELECT {columns} FROM fresh", path, layout)
            yield Output(path, len(some), parts=parts)
            sink.beat(len(some))
            width, start = os.path.getsize(path) / len(some), start + len(some)

    # The machine

    def _all(self, do: Callable[[_S, Connection], _T], things: Sequence[_S], sink: Sink) -> Generator[_T, None, None]:
        """As many things at a time as there are threads, answered in order. An error, or Ctrl-C, stops the others."""
        workers = min(self._threads, len(things))
        if not workers:
            return
        self._use(self._threads - workers + 1)
        mine = threading.local()
        open_ones: list[Connection] = []

        def begin() -> None:
            mine.db = cursor(self._db)
            open_ones.append(mine.db)

        with ThreadPoolExecutor(workers, initializer=begin) as pool:
            answers: list[Future[_T]] = [pool.submit(lambda thing: do(thing, mine.db), thing) for thing in things]
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

    def _use(self, threads: int) -> None:
        run(self._db, "SET threads = $threads", threads=threads)

    def _type(self, name: str) -> str:
        kind = sql_type(self._plan.schema.field(name).type)
        assert kind, "a schema that is refused gets no session"
        return kind


def _held(db: Connection, files: Sequence[TargetFile]) -> dict[str, int]:
    """The columns that at least one of the files has, and their places."""
    if not files:
        return {}
    described = run(db, f"DESCRIBE SELECT * FROM {FILES}", files=_paths(files))
    return {name: place for place, (name, *_) in enumerate(described)}


def _paths(files: Iterable[TargetFile]) -> list[str]:
    return literal(file.path for file in files)
