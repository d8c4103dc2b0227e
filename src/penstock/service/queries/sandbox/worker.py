"""Main loop of a sandbox process: receive one statement and its datasets, return the rows, and end.

The process is confined and limited before it receives any input of a user. It reads data files with Arrow; DuckDB has no
access to the file system.
"""

import json
import os
import socket
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from penstock.engines.duckdb.types import quote_identifier
from penstock.errors import PenstockError
from penstock.service.queries.sandbox import protocol, sql_analysis
from penstock.service.queries.sandbox.error_messages import describe_error
from penstock.service.queries.sandbox.limits import QueryLimits, confine, limit_resources
from penstock.service.queries.sandbox.protocol import Channel, ChannelClosed, MessageType
from penstock.service.queries.sandbox.sql_analysis import SqlAnalysis, TableRef
from penstock.service.queries.sandbox.table_source import RegisteredTable, read_warm_up_rows

_BATCH_ROWS = 64 << 10
_SMALL_BATCH_ROWS = 2_048  # for results of which the reader may need only the first rows
_SMALL_BATCH_BYTES = 2 << 20
_RECURSION_LIMIT = 20_000  # DuckDB allows expressions of 1,000 levels, each of which is several levels of JSON
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
_LOCK_STATEMENTS = (
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET TimeZone = 'UTC'",
    "SET enable_progress_bar = false",
    "SET lock_configuration = true",
)


# The warm-up query uses the features of most queries: all column types, and an ordered page.
_WARM_UP_ROWS = {
    "a": [1, 2, 3],
    "b": [0.5, None, 1.5],
    "c": ["x", "y", None],
    "d": [True, False, None],
    "e": [date(2000, 1, 1)] * 3,
    "f": [datetime(2000, 1, 1, tzinfo=UTC)] * 3,
    "g": [Decimal("1.25")] * 3,
}
_WARM_UP_SQL = (
    'SELECT "0", "1", CAST("2" AS VARCHAR) AS c, "3", "4", CAST("5" AS TIMESTAMP WITH TIME ZONE) AS f, '
    'CAST("6" AS DECIMAL(12, 2)) AS g FROM (SELECT * FROM "a.b".rows WHERE a > $minimum) AS q("0", "1", "2", "3", "4", "5", "6") '
    "ORDER BY 1 ASC NULLS FIRST, 2 DESC NULLS LAST, 3 ASC NULLS FIRST LIMIT 101 OFFSET 0"
)


def main(sock: socket.socket, limits: QueryLimits, data_folder: str, parent: int) -> None:
    """Run a sandbox process. It ends when the service closes the channel."""
    confine(limits, data_folder, parent)
    worker = QueryWorker(Channel(sock, protocol.MAX_REQUEST_BYTES), _connect(limits))
    worker.warm_up()
    limit_resources(limits)
    while True:
        worker.handle_message()


def _connect(limits: QueryLimits) -> duckdb.DuckDBPyConnection:
    sys.setrecursionlimit(_RECURSION_LIMIT)
    pa.set_cpu_count(limits.threads)
    pa.set_io_thread_count(limits.threads)
    working_directory = os.open(".", os.O_PATH)
    os.chdir("/")  # DuckDB needs a working directory only when it starts
    config = {**_SETTINGS, "threads": limits.threads, "memory_limit": f"{limits.duckdb_memory_bytes}B"}
    db = duckdb.connect(":memory:", config=config)
    os.fchdir(working_directory)
    os.close(working_directory)
    for sql in _LOCK_STATEMENTS:
        db.execute(sql)
    return db


@dataclass(slots=True)
class QueryWorker:
    """Handle the messages of the service with an in-memory DuckDB."""

    channel: Channel
    db: duckdb.DuckDBPyConnection
    select: str = ""  # the user's statement as serialized by DuckDB
    analysis: SqlAnalysis = field(default_factory=SqlAnalysis)  # of the statement without the SQL around it
    tables: dict[TableRef, RegisteredTable] = field(default_factory=dict)
    registered: dict[TableRef, frozenset[str]] = field(default_factory=dict)  # columns with bounds by table
    sending: threading.Lock = field(default_factory=threading.Lock)

    def warm_up(self) -> None:
        """Run one query, so that the first real one does not wait for libraries that are loaded on first use."""
        self._deparse(self._parse_tree(_WARM_UP_SQL))
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(_WARM_UP_ROWS), sink, compression="zstd")
        self.db.register("warm_up", read_warm_up_rows(sink.getvalue(), pa.table(_WARM_UP_ROWS).schema))
        self.db.execute('CREATE SCHEMA "a.b"; CREATE OR REPLACE VIEW "a.b".rows AS FROM temp.main.warm_up')
        list(_encode_result(self._bind(_WARM_UP_SQL, {"minimum": 1}), small_batches=True))
        self.db.execute('DROP SCHEMA "a.b" CASCADE')
        self.db.unregister("warm_up")

    def handle_message(self) -> None:
        """Receive one request and send its response."""
        _, content = self.channel.receive(0)
        request = json.loads(content.to_pybytes())
        try:
            match request:
                case {"parse": sql}:
                    self.channel.send_message(MessageType.JSON, self._parse(sql))
                case {"select": sql}:  # another process has parsed it before; it is analyzed again
                    self.select, self.analysis = sql, sql_analysis.analyze(self._parse_tree(sql))
                case {"bind": tables}:
                    self.tables = {
                        TableRef(*ref): RegisteredTable.decode(encoded, self._request_files) for ref, encoded in tables
                    }
                    self.channel.send_message(MessageType.JSON)
                case {
                    "before": before,
                    "after": after,
                    "filtered": names,
                    "parameters": values,
                    "small_batches": small_batches,
                    "tie_break": tie_break,
                }:
                    self._register_tables(self.analysis.columns.union(names))
                    select = self._order_ties(tie_break) if tie_break else self.select
                    self._run(f"{before}({select}){after}", protocol.decode_params(values), small_batches=small_batches)
        except ChannelClosed:
            raise
        except PenstockError as error:
            self.channel.send_message(MessageType.ERROR, error.as_dict())
        except Exception as cause:
            self.channel.send_message(MessageType.ERROR, describe_error(cause))

    def _parse(self, sql: str) -> dict[str, Any]:
        tree = self._parse_tree(sql)
        self.analysis = sql_analysis.analyze(tree)
        self.select = self._deparse(tree)
        parsed = self.analysis.parsed
        tables = [[ref.schema, ref.table, ref.version] for ref in parsed.tables]
        return {
            "tables": tables,
            "parameters": parsed.parameters,
            "only_compared": parsed.params_in_comparisons_only,
            "repeatable": parsed.repeatable,
            "ordered": parsed.ordered,
            "select": self.select,
        }

    def _order_ties(self, column_numbers: Sequence[int]) -> str:
        """Return the statement with an ORDER BY that continues with result columns, so that it is total."""
        tree = self._parse_tree(self.select)
        columns = ", ".join(f"{int(number)} ASC NULLS FIRST" for number in column_numbers)
        sql_analysis.add_order(tree, sql_analysis.own_order(self._parse_tree(f"SELECT 1 ORDER BY {columns}")))
        return self._deparse(tree)

    def _run(self, sql: str, values: Mapping[str, Any], *, small_batches: bool) -> None:
        try:
            relation = self._bind(sql, dict(values))
        except duckdb.Error as cause:
            self.channel.send_message(MessageType.ERROR, describe_error(cause, before_execution=True))
            return
        for message in _encode_result(relation, small_batches=small_batches):
            with self.sending:
                self.channel.send(MessageType.ARROW, message)
        self.channel.send_message(MessageType.DONE)

    def _request_files(self, numbers: Sequence[int]) -> None:
        """Wait until the service has fetched files. A thread of DuckDB may call this while another one sends rows."""
        if numbers:
            with self.sending:
                self.channel.send_message(MessageType.FILES, numbers)
                self.channel.receive(0)

    def _bind(self, sql: str, values: dict[str, Any]) -> duckdb.DuckDBPyRelation:
        """Bind a statement: its columns and types are resolved, and no row has been read."""
        return self.db.sql(sql, params=values)

    def _register_tables(self, names: Collection[str]) -> None:
        for ref, table in self.tables.items():
            columns = table.prunable_columns(names)
            if self.registered.get(ref) == columns:
                continue
            scans = []
            for index, source in enumerate(table.sources(columns)):
                name = f"{ref.duckdb_schema}.{ref.table}@{index}"  # no statement can name it: it is not in a schema
                self.db.register(name, source)
                scans.append(f"FROM temp.main.{quote_identifier(name)}")
            self.db.execute(
                f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(ref.duckdb_schema)}; "
                f"CREATE OR REPLACE VIEW {quote_identifier(ref.duckdb_schema)}.{quote_identifier(ref.table)} AS {' UNION ALL '.join(scans)}"
            )
            self.registered[ref] = columns

    def _parse_tree(self, sql: str) -> sql_analysis.Tree:
        (serialized,) = self.db.execute("SELECT json_serialize_sql($sql)", {"sql": sql}).fetchall()[0]
        return sql_analysis.single_select(json.loads(serialized))

    def _deparse(self, tree: sql_analysis.Tree) -> str:
        serialized = json.dumps({"error": False, "statements": [tree]})
        ((sql,),) = self.db.execute("SELECT json_deserialize_sql($serialized)", {"serialized": serialized}).fetchall()
        return str(sql)


def _encode_result(relation: duckdb.DuckDBPyRelation, *, small_batches: bool) -> Iterator[pa.Buffer]:
    """Yield the schema and the batches as Arrow IPC messages; small ones if the reader may stop early."""
    with closing(relation.to_arrow_reader(_SMALL_BATCH_ROWS if small_batches else _BATCH_ROWS)) as reader:
        schema = pa.schema([pa.field(f.name, _portable_type(f.type), f.nullable) for f in reader.schema])
        yield schema.serialize()
        for batch in reader:
            cast = batch if batch.schema.equals(schema) else batch.cast(schema)
            rows = max(1, cast.num_rows)
            if small_batches:
                rows = max(1, _SMALL_BATCH_BYTES * cast.num_rows // max(cast.nbytes, 1))
            for start in range(0, cast.num_rows, rows):
                yield cast.slice(start, rows).serialize()


def _portable_type(data_type: pa.DataType) -> pa.DataType:
    """Return a type without dictionaries, which need extra messages, and without extensions, which readers may not know."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _portable_type(data_type.storage_type)
    if pt.is_dictionary(data_type):
        return data_type.value_type
    if pt.is_list(data_type):
        return pa.list_(data_type.value_field.with_type(_portable_type(data_type.value_type)))
    if pt.is_fixed_size_list(data_type):
        return pa.list_(data_type.value_field.with_type(_portable_type(data_type.value_type)), data_type.list_size)
    if pt.is_struct(data_type):
        return pa.struct([inner.with_type(_portable_type(inner.type)) for inner in data_type])
    return data_type
