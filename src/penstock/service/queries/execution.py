"""Execute queries in the sandbox on one set of dataset versions, and validate every row before any is returned."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock import cancellation
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.result_schemas import schema_store
from penstock.core import result_schema
from penstock.core.bounded_cache import BoundedCache
from penstock.core.caller import Caller, Role
from penstock.core.odata import Fields, QueryOptions
from penstock.core.registry.query import QueryDraft, RegisteredQuery, assert_runnable
from penstock.core.registry.query_parameters import parse_parameter_values
from penstock.core.registry.schema_entry import SchemaEntry
from penstock.core.result_schema import ResultField, ValidationReport, odata_fields
from penstock.engines.duckdb import odata_sql
from penstock.errors import NotFound, PenstockError, Unsupported
from penstock.service.queries import inspection
from penstock.service.queries.definitions import QueryInspection, load_query
from penstock.service.queries.executions import ExecutionRegistry
from penstock.service.queries.resolution import (
    DatasetResolver,
    check_pinned_versions,
    resolve_snapshot,
    versions_by_name,
)
from penstock.service.queries.result_buffer import ResultBuffer
from penstock.service.queries.result_page import ResultPage
from penstock.service.queries.sandbox import ParsedStatement, QueryProcess, Relation, ResultStream, Sandbox, TableRef
from penstock.service.workspace import Workspace

MAX_PREVIEW_ROWS = 1_000
DEFAULT_PAGE_BYTES = 16 << 20  # size of a page that is returned as text
_MAX_RECEIVED_BYTES = 64 << 20  # bytes received from the sandbox for such a page
_COLUMN_CACHE_BYTES = 4 << 20  # result columns of queries; parsed statements have a cache of the same size
_CHUNK_BYTES = 512  # memory of one chunk of a column, besides its values


@dataclass(frozen=True, slots=True)
class LoadedQuery:
    """A registered query with its result schema."""

    query: RegisteredQuery
    schema: SchemaEntry

    @property
    def fields(self) -> tuple[ResultField, ...]:
        return self.schema.draft.fields

    @property
    def odata_fields(self) -> Fields:
        """The fields that `$filter`, `$orderby` and `$select` may name."""
        return odata_fields.odata_fields(self.fields)


@dataclass(frozen=True, slots=True)
class QueryRequest:
    options: QueryOptions
    parameters: Mapping[str, Any]  # not parsed yet
    versions: Mapping[str, int]  # pinned versions by lower-case dataset name; other datasets are read at their newest
    all_rows: bool = False  # return all rows instead of a page, ordered only if the options say so
    max_bytes: int | None = None  # estimated size of the page as text; large rows reduce the number of rows


@dataclass(frozen=True)
class QueryRows:
    """Rows that match the result schema of their query."""

    table: pa.Table
    versions: Mapping[str, int]  # versions that were read, by dataset name
    has_more: bool = False  # the result has rows after these
    count: int | None = None  # number of all rows that match the filter, if requested


ValidationCallback = Callable[[bool, float], None]  # called after every validation: valid or not, seconds
ExecutionCallback = Callable[[float], None]  # called after every execution, successful or not: seconds


class QueryExecutor:
    """Execute queries in this process, with a sandbox and a cache of results."""

    def __init__(self, ws: Workspace, sandbox: Sandbox | None = None, cache_bytes: int = 64 << 20) -> None:
        self._ws, self._sandbox = ws, sandbox or Sandbox(ws.data, open_files=ws.store.open_local)
        self.executions = ExecutionRegistry()
        self._resolver = DatasetResolver(ws, self._sandbox)
        self._cache = BoundedCache[QueryRows](cache_bytes)
        self._columns = BoundedCache[pa.Schema](_COLUMN_CACHE_BYTES)
        self._parsed = BoundedCache[ParsedStatement](_COLUMN_CACHE_BYTES)
        self._buffer = ResultBuffer(ws.memory)
        self._on_validation: ValidationCallback = lambda _valid, _seconds: None
        self._on_query: ExecutionCallback = lambda _seconds: None

    def on_validation(self, callback: ValidationCallback) -> None:
        """Set the callback for validations."""
        self._on_validation = callback

    def on_query(self, callback: ExecutionCallback) -> None:
        """Set the callback for executions."""
        self._on_query = callback

    def close(self) -> None:
        self._sandbox.close()

    def load(self, caller: Caller, key: str) -> LoadedQuery:
        """Return a query by id or name, with its result schema.

        Raises:
            NotFound: the query does not exist
            Unsupported: the state of the query does not allow execution, or its result schema does not exist
        """
        caller.require(Role.VIEWER)
        with self._ws.db.read(caller) as tx:
            query = load_query(tx, key)
            assert_runnable(query)
            return LoadedQuery(query, _load_schema(tx, query))

    def run(self, caller: Caller, loaded: LoadedQuery, request: QueryRequest) -> QueryRows:
        """Return the requested rows of a query, from the cache if the versions that it reads have not changed.

        Raises:
            Invalid: a parameter or a version is invalid, or the statement fails or exceeds a limit
            NotFound: a dataset or version does not exist
            Unsupported: a row does not match the result schema (schema_mismatch)
            Unavailable: too many queries are running
        """
        query = loaded.query
        parameters = parse_parameter_values(query.draft.parameters, request.parameters)
        check_pinned_versions(query, request.versions)
        facts = {"query_id": query.id, "version": query.version}
        with self._audited(caller, "query.run", facts):
            with self._ws.db.read(caller) as tx:
                resolved = {ref: resolve_snapshot(tx, ref, request.versions) for ref in query.datasets}
                facts["datasets"] = versions_by_name(resolved)
                inputs = tuple((snapshot.dataset, snapshot.version.number) for snapshot in resolved.values())
                definition = (query.id, query.version, loaded.schema.id, loaded.schema.version)
                options = (
                    request.all_rows,
                    request.max_bytes,
                    repr(request.options),
                    repr(sorted(parameters.items())),
                )
                key = (caller.tenant, definition, options, inputs)
                cached = self._cache.get(key)
                relations = {} if cached else self._resolver.load_relations(tx, resolved)
            if cached:
                result, repeatable = cached, False
            else:
                result, repeatable = self._execute(caller, loaded, request, parameters, relations)
            result = replace(result, versions=versions_by_name(resolved))
            if repeatable:
                # A table of its own: the reservation of the request is released with the table that is returned.
                cached = replace(result, table=result.table.slice())
                self._cache.put(key, cached, _memory_size(result.table))
            facts["rows"] = result.table.num_rows
        return result

    def preview(
        self, caller: Caller, sql: str, parameters: Mapping[str, Any], max_bytes: int = DEFAULT_PAGE_BYTES
    ) -> QueryRows:
        """Return the first rows of a statement that is not registered. They are not validated: there is no schema."""
        caller.require(Role.VIEWER)
        facts = {"sql": _digest(sql)}
        with self._audited(caller, "query.preview", facts), self._resolver.bind(caller, sql, facts) as statement:
            inspection.check_parameters(statement.parsed, parameters)
            limit = f" AS q LIMIT {MAX_PREVIEW_ROWS + 1}"
            rows = statement.process.run(after=limit, parameters=parameters, max_bytes=_MAX_RECEIVED_BYTES)
            page = ResultPage(rows, MAX_PREVIEW_ROWS, max_bytes)
            table = self._buffer.collect(caller, rows.schema, page)
            facts["rows"] = table.num_rows
        return QueryRows(table, versions_by_name(statement.snapshots), page.has_more)

    def inspector(self, caller: Caller) -> Callable[[QueryDraft], QueryInspection]:
        """Return a function that inspects a draft without running it: its datasets and its certain mismatches."""

        def inspect(draft: QueryDraft) -> QueryInspection:
            with self._ws.db.read(caller) as tx:
                fields = schema_store.find(tx, draft.returns_schema_id).draft.fields
            with self._resolver.bind(caller, draft.sql, {}) as statement:
                process, parsed = statement.process, statement.parsed
                if parsed.parameters:
                    mismatches = inspection.find_certain_mismatches(fields, draft.parameters, process)
                else:
                    mismatches = inspection.find_mismatches(fields, process)
                return QueryInspection(tuple(statement.snapshots), parsed.parameters, mismatches)

        return inspect

    def infer_fields(
        self, caller: Caller, sql: str, parameters: Mapping[str, Any] | None = None
    ) -> tuple[ResultField, ...]:
        """Return the result fields of a statement. A parameter without a value is NULL."""
        caller.require(Role.DEVELOPER)
        facts = {"sql": _digest(sql)}
        with self._audited(caller, "query.infer", facts), self._resolver.bind(caller, sql, facts) as statement:
            inspection.check_parameters(statement.parsed, parameters or {})
            return result_schema.infer_fields(statement.process.describe(parameters))

    def _execute(
        self,
        caller: Caller,
        loaded: LoadedQuery,
        request: QueryRequest,
        parameters: Mapping[str, Any],
        relations: Mapping[TableRef, Relation],
    ) -> tuple[QueryRows, bool]:
        """Return the rows, and whether the same versions always give the same rows."""
        with self._sandbox.process(caller) as process:
            parsed = self._prepare(loaded.query, process, relations)
            columns = self._describe(loaded.query, parsed, process, parameters, relations)
            try:
                if request.all_rows:
                    wrapped = odata_sql.rows_query(request.options, loaded.fields, columns)
                else:
                    wrapped = odata_sql.page_query(request.options, loaded.fields, columns, ordered=parsed.ordered)
            except Unsupported:  # the options name a column whose type differs from the schema
                mismatches = result_schema.schema_mismatches(loaded.fields, columns)
                raise _schema_mismatch(loaded, ValidationReport(len(mismatches), tuple(mismatches))) from None
            count = None
            if request.options.count:  # counted first: a page may end its process before all rows are received
                count_query = odata_sql.count_query(request.options, loaded.fields, columns)
                count = _run(process, count_query, parameters).table().column(0)[0].as_py()
            max_bytes = None if request.max_bytes is None else _MAX_RECEIVED_BYTES
            rows = _run(process, wrapped, parameters, max_bytes)
            table, has_more = self._validate(caller, loaded, request, rows)
        return QueryRows(table, {}, has_more, count), parsed.repeatable

    def _prepare(
        self, query: RegisteredQuery, process: QueryProcess, relations: Mapping[TableRef, Relation]
    ) -> ParsedStatement:
        """Bind the statement in the process. A revision of a query is parsed once."""
        key = (query.id, query.version)
        cached = self._parsed.get(key)
        parsed = process.prepare(query.draft.sql, relations, cached)
        if cached is None:
            self._parsed.put(key, parsed, len(parsed.select))
        return parsed

    def _describe(
        self,
        query: RegisteredQuery,
        parsed: ParsedStatement,
        process: QueryProcess,
        parameters: Mapping[str, Any],
        relations: Mapping[TableRef, Relation],
    ) -> pa.Schema:
        """Return the result columns, cached by the inputs that they depend on."""
        typed_values = (
            ()
            if parsed.params_in_comparisons_only
            else tuple((name, type(value), repr(value)) for name, value in parameters.items())
        )
        tables = tuple((ref, relation.schema.serialize().to_pybytes()) for ref, relation in relations.items())
        key = (query.id, query.version, typed_values, tables)
        columns = self._columns.get(key)
        if columns is None:
            columns = process.describe(parameters)
            self._columns.put(key, columns, columns.serialize().size)
        return columns

    def _validate(
        self, caller: Caller, loaded: LoadedQuery, request: QueryRequest, rows: ResultStream
    ) -> tuple[pa.Table, bool]:
        """Return the rows, and whether there are more, after all of them have been validated."""
        fields = odata_fields.selected_fields(request.options, loaded.fields)
        has_no_columns = rows.schema.names == [odata_sql.PLACEHOLDER_COLUMN]
        schema = pa.schema([]) if has_no_columns else rows.schema
        checker, seconds = result_schema.ColumnChecker(fields, schema), 0.0
        page = ResultPage(rows, math.inf if request.all_rows else request.options.top, request.max_bytes)

        def validated() -> Iterator[pa.RecordBatch]:
            nonlocal seconds
            for received in page:
                batch = received.select([]) if has_no_columns else received
                start = time.perf_counter()
                checker.add(batch)
                seconds += time.perf_counter() - start
                yield batch

        table = self._buffer.collect(caller, schema, validated())
        self._on_validation(checker.report.valid, seconds)
        if not checker.report.valid:
            raise _schema_mismatch(loaded, checker.report)
        return table, page.has_more

    @contextmanager
    def _audited(self, caller: Caller, action: str, facts: dict[str, Any]) -> Iterator[None]:
        """Measure an execution and write it to the audit table, successful or not."""
        start = time.monotonic()
        try:
            yield
        except BaseException as error:
            facts["refusal"] = error.reason if isinstance(error, PenstockError) else "unexpected"
            raise
        finally:
            seconds = time.monotonic() - start
            self._on_query(seconds)
            with cancellation.active(None), self._ws.db.write(caller) as tx:  # a cancelled execution is recorded, too
                tx.audit(action, {**facts, "milliseconds": round(seconds * 1000)})


def _run(
    process: QueryProcess,
    query: odata_sql.WrappedQuery,
    parameters: Mapping[str, Any],
    max_bytes: int | None = None,
) -> ResultStream:
    values = {**parameters, **query.parameters}
    return process.run(query.before, query.after, values, max_bytes, query.filtered, query.tie_break)


def _load_schema(tx: CatalogTransaction, query: RegisteredQuery) -> SchemaEntry:
    schema_id = query.draft.returns_schema_id
    try:
        return schema_store.find(tx, schema_id)
    except NotFound:
        raise Unsupported("schema_unavailable", query_id=str(query.id), schema_id=str(schema_id)) from None


def _digest(sql: str) -> str:
    return hashlib.sha256(sql.encode("utf-8", "surrogatepass")).hexdigest()


def _memory_size(table: pa.Table) -> int:
    """Return the bytes that a table keeps allocated. A slice keeps its whole buffer."""
    chunks = sum(column.num_chunks + 1 for column in table.columns)
    return int(table.get_total_buffer_size() + chunks * _CHUNK_BYTES)


def _schema_mismatch(loaded: LoadedQuery, report: ValidationReport) -> Unsupported:
    return Unsupported(
        "schema_mismatch",
        {"name": loaded.query.draft.name, "first_error": report.errors[0]["message"]},
        query_id=str(loaded.query.id),
        schema_id=str(loaded.schema.id),
        schema_version=loaded.schema.version,
        error_count=report.count,
        errors=list(report.errors),
    )
