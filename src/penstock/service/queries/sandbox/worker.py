"""What a child does: it reads one statement, is given the datasets that it names, answers, and ends.

It is ready, locked and rationed before it hears a word of the user's. It reads data files through Arrow; DuckDB itself has
no file system.
"""

import json
import os
import socket
import sys
from base64 import b64decode
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyarrow import fs

from penstock.core.dataset.column_stats import Stats, from_json
from penstock.engines.duckdb.types import quoted
from penstock.errors import PenstockError
from penstock.service.queries.sandbox import sql_analysis as statement
from penstock.service.queries.sandbox import protocol as wire
from penstock.service.queries.sandbox.limits import Limits, confine, ration
from penstock.service.queries.sandbox.error_messages import told
from penstock.service.queries.sandbox.sql_analysis import Reading, Ref
from penstock.service.queries.sandbox.protocol import Hung, Kind, Line

_BATCH_ROWS = 64 << 10
_FEW_BATCH_ROWS = 2_048  # where only the first rows may be wanted
_PIECE = 2 << 20  # bytes, of such an answer
_DEPTH = 20_000  # DuckDB allows expressions of 1,000 levels, each of which is several in JSON
_FILES = fs.LocalFileSystem()
# Not read ahead: local files are fast, and a file's first rows need not wait for all of it.
_PARQUET = pads.ParquetFileFormat(default_fragment_scan_options=pads.ParquetFragmentScanOptions(pre_buffer=False))
_READ_AHEAD: dict[str, int] = {"batch_readahead": 2, "fragment_readahead": 2}
_FEW_ROWS = 100_000  # read by one thread sooner than by several
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "async_threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "python_enable_replacements": False,
    "temp_directory": "",
}
_LOCKED = (
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET TimeZone = 'UTC'",
    "SET enable_progress_bar = false",
    "SET lock_configuration = true",
)


# What most questions need: the kinds of columns, and a page of them in order.
_ROWS = {
    "a": [1, 2, 3],
    "b": [0.5, None, 1.5],
    "c": ["x", "y", None],
    "d": [True, False, None],
    "e": [date(2000, 1, 1)] * 3,
    "f": [datetime(2000, 1, 1, tzinfo=UTC)] * 3,
    "g": [Decimal("1.25")] * 3,
}
_REHEARSED = (
    'SELECT "0", "1", CAST("2" AS VARCHAR) AS c, "3", "4", CAST("5" AS TIMESTAMP WITH TIME ZONE) AS f, '
    'CAST("6" AS DECIMAL(12, 2)) AS g FROM (SELECT * FROM "a.b".rows WHERE a > $least) AS q("0", "1", "2", "3", "4", "5", "6") '
    "ORDER BY 1 ASC NULLS FIRST, 2 DESC NULLS LAST, 3 ASC NULLS FIRST LIMIT 101 OFFSET 0"
)


def live(sock: socket.socket, limits: Limits, data: str, parent: int) -> None:
    """The whole life of a child. It ends when it is told nothing more."""
    confine(limits, data, parent)
    cell = _Cell(Line(sock, wire.MAX_SAID), _connected(limits))
    cell.rehearse()
    ration(limits)
    while True:
        cell.hear()


def _connected(limits: Limits) -> duckdb.DuckDBPyConnection:
    sys.setrecursionlimit(_DEPTH)
    pa.set_cpu_count(limits.threads)
    pa.set_io_thread_count(limits.threads)
    nowhere = os.open(".", os.O_PATH)
    os.chdir("/")  # DuckDB wants a working directory when it starts, and never again
    config = {**_SETTINGS, "threads": limits.threads, "memory_limit": f"{limits.duckdb_memory}B"}
    db = duckdb.connect(":memory:", config=config)
    os.fchdir(nowhere)
    os.close(nowhere)
    for sql in _LOCKED:
        db.execute(sql)
    return db


@dataclass(frozen=True, slots=True)
class _Table:
    schema: pa.Schema
    files: Sequence[tuple[str, int, str]]  # path, rows, what is known of its columns (`core.stats`)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "_Table":
        exact = pa.ipc.read_schema(pa.py_buffer(b64decode(given["schema"])))
        # "Required" is the catalog's promise; an old file without the column could not keep it for the scanner.
        schema = pa.schema([column.with_nullable(True) for column in exact])
        return cls(schema, [(path, rows, known) for path, rows, known in given["files"] if rows])

    def telling(self, names: Collection[str]) -> frozenset[str]:
        """The columns whose bounds may spare a file: those that are spoken of."""
        return frozenset(f.name for f in self.schema if _judged(f.type) and f.name.lower() in names)

    def source(self, columns: frozenset[str]) -> pads.Dataset:
        """The files, and what is known of these columns: a file that cannot hold what is asked for is not opened."""
        judged = {name: pc.field(name) for name in columns}
        known = from_json(pa.schema([self.schema.field(name) for name in columns]))
        promises = (self._promise(judged, rows, known(told)) if judged else None for _, rows, told in self.files)
        fragments = [
            _PARQUET.make_fragment(path, _FILES, partition_expression=promise)
            for (path, _, _), promise in zip(self.files, promises, strict=True)
        ]
        few = sum(rows for _, rows, _ in self.files) <= _FEW_ROWS
        return (_Small if few else _Source)(fragments, self.schema, _PARQUET, _FILES)

    def _promise(self, judged: Mapping[str, pc.Expression], rows: int, known: Mapping[str, Stats]) -> Any:
        promise = None
        for name, column in judged.items():
            stats = known.get(name)
            if stats is None or stats.nulls == rows:
                continue
            for end, holds in ((stats.low, column.__ge__), (stats.high, column.__le__)):
                if end is not None:
                    kind = self.schema.field(name).type
                    one = holds(pa.scalar(bool(end) if pt.is_boolean(kind) else end, kind))
                    one = one | column.is_null() if stats.nulls else one
                    promise = one if promise is None else promise & one
        return promise


class _Source(pads.FileSystemDataset):  # type: ignore[misc]
    """Files, with less read ahead than Arrow would by itself: rows come sooner, and fewer are held."""

    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None) -> pads.Scanner:
        return super().scanner(columns=columns, filter=filter, **_READ_AHEAD)


class _Small(pads.FileSystemDataset):  # type: ignore[misc]
    def scanner(self, columns: list[str] | None = None, filter: pc.Expression | None = None) -> pads.Scanner:
        return super().scanner(columns=columns, filter=filter, use_threads=False)


def _judged(kind: pa.DataType) -> bool:
    """Statistics say nothing of NaN, which DuckDB sorts above all numbers."""
    return not pt.is_floating(kind) and not pt.is_nested(kind)


@dataclass(slots=True)
class _Cell:
    line: Line
    db: duckdb.DuckDBPyConnection
    select: str = ""  # the user's statement, as DuckDB writes it
    reading: Reading = field(
        default_factory=Reading
    )  # what it names; what the service puts around it names nothing else
    tables: dict[Ref, _Table] = field(default_factory=dict)
    shown: dict[Ref, frozenset[str]] = field(default_factory=dict)  # the columns that a table was made known with

    def rehearse(self) -> None:
        """Everything once, so that the first real question does not wait for what is loaded on first use."""
        self._text(self._tree(_REHEARSED))
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(_ROWS), sink, compression="zstd")
        fragment = _PARQUET.make_fragment(pa.BufferReader(sink.getvalue()))
        self.db.register("rehearsal", _Small([fragment], pa.table(_ROWS).schema, _PARQUET))
        self.db.execute('CREATE SCHEMA "a.b"; CREATE OR REPLACE VIEW "a.b".rows AS FROM temp.main.rehearsal')
        list(_answer(self._bound(_REHEARSED, {"least": 1}), pieces=True))
        self.db.execute('DROP SCHEMA "a.b" CASCADE')
        self.db.unregister("rehearsal")

    def hear(self) -> None:
        _, content = self.line.receive(0)
        asked = json.loads(content.to_pybytes())
        try:
            match asked:
                case {"parse": sql}:
                    self.line.say(Kind.SAID, self._parse(sql))
                case {"select": sql}:  # it was parsed before, by another child, and is read once more
                    self.select, self.reading = sql, statement.reading(self._tree(sql))
                case {"bind": tables}:
                    self.tables = {Ref(*ref): _Table.of(given) for ref, given in tables}
                    self.line.say(Kind.SAID)
                case {"before": before, "after": after, "filtered": names, "parameters": values, "pieces": pieces}:
                    self._show(self.reading.columns.union(names))
                    self._run(f"{before}({self.select}){after}", wire.read(values), pieces=pieces)
        except Hung:
            raise
        except PenstockError as refusal:
            self.line.say(Kind.REFUSED, refusal.facts())
        except Exception as cause:
            self.line.say(Kind.REFUSED, told(cause))

    def _parse(self, sql: str) -> dict[str, Any]:
        tree = self._tree(sql)
        self.reading = statement.reading(tree)
        self.select = self._text(tree)
        parsed = self.reading.parsed
        tables = [[ref.schema, ref.table, ref.version] for ref in parsed.tables]
        return {
            "tables": tables,
            "parameters": parsed.parameters,
            "only_compared": parsed.only_compared,
            "repeatable": parsed.repeatable,
            "select": self.select,
        }

    def _run(self, sql: str, values: Mapping[str, Any], *, pieces: bool) -> None:
        try:
            bound = self._bound(sql, dict(values))
        except duckdb.Error as cause:
            self.line.say(Kind.REFUSED, told(cause, of_statement=True))
            return
        for message in _answer(bound, pieces=pieces):
            self.line.send(Kind.ARROW, message)
        self.line.say(Kind.DONE)

    def _bound(self, sql: str, values: dict[str, Any]) -> duckdb.DuckDBPyRelation:
        """The statement with its columns found and its types known. No row has been read."""
        return self.db.sql(sql, params=values)

    def _show(self, spoken: Collection[str]) -> None:
        for ref, table in self.tables.items():
            columns = table.telling(spoken)
            if self.shown.get(ref) == columns:
                continue
            source = f"{ref.home}.{ref.table}"
            self.db.register(source, table.source(columns))
            self.db.execute(
                f"CREATE SCHEMA IF NOT EXISTS {quoted(ref.home)}; "
                f"CREATE OR REPLACE VIEW {quoted(ref.home)}.{quoted(ref.table)} AS FROM temp.main.{quoted(source)}"
            )
            self.shown[ref] = columns

    def _tree(self, sql: str) -> statement.Tree:
        (told,) = self.db.execute("SELECT json_serialize_sql($sql)", {"sql": sql}).fetchall()[0]
        return statement.only(json.loads(told))

    def _text(self, tree: statement.Tree) -> str:
        told = json.dumps({"error": False, "statements": [tree]})
        ((sql,),) = self.db.execute("SELECT json_deserialize_sql($told)", {"told": told}).fetchall()
        return str(sql)


def _answer(bound: duckdb.DuckDBPyRelation, *, pieces: bool) -> Iterator[pa.Buffer]:
    """The schema and the batches, as messages of Arrow's; small ones, if whoever reads them may stop at any time."""
    with closing(bound.to_arrow_reader(_FEW_BATCH_ROWS if pieces else _BATCH_ROWS)) as reader:
        schema = pa.schema([pa.field(f.name, _plain(f.type), f.nullable) for f in reader.schema])
        yield schema.serialize()
        for batch in reader:
            same = batch if batch.schema.equals(schema) else batch.cast(schema)
            rows = max(1, _PIECE * same.num_rows // max(same.nbytes, 1)) if pieces else max(1, same.num_rows)
            for start in range(0, same.num_rows, rows):
                yield same.slice(start, rows).serialize()


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without what needs more than the batch itself: dictionaries, and extensions that others do not know."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pt.is_dictionary(kind):
        return kind.value_type
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pt.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)), kind.list_size)
    if pt.is_struct(kind):
        return pa.struct([inner.with_type(_plain(inner.type)) for inner in kind])
    return kind
