"""Run queries: on one set of versions, in the sandbox, and with every row checked before anyone sees it."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from penstock.catalog import snapshots as history
from penstock.catalog import result_schemas as schemas
from penstock.catalog.database import Tx
from penstock.core import result_schema as contract
from penstock.core.caller import Caller, Role
from penstock.core.result_schema import Field, FieldType, Verdict
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.core.odata import Options
from penstock.core.registry.query_parameters import Parameter, values
from penstock.core.registry.query import Draft, Query, Reference, assert_runnable
from penstock.core.registry.schema_entry import Entry
from penstock.engines.duckdb import odata_sql as odata
from penstock.errors import Invalid, NotFound, PenstockError, Unsupported
from penstock.service.queries.result_cache import Cache
from penstock.service.queries.result_buffer import Room
from penstock.service.queries.result_page import Page
from penstock.service.queries.definitions import Inspection, found
from penstock.service.queries.sandbox import Cell, File, Parsed, Ref, Relation, Rows, Sandbox
from penstock.service.workspace import Workspace

PREVIEWED = 1_000  # rows
PAGE_BYTES = 16 << 20  # of rows that are to be written as text
_HEARD_BYTES = 64 << 20  # of an answer of which such a page is wanted
_COLUMNS_BYTES = 4 << 20  # of the names and types of results that are remembered; of statements as many
_RELATIONS_BYTES = 32 << 20  # of the files of versions that are remembered
_FILE = 250  # bytes that a file takes besides its texts
_CHUNK = 512  # bytes that a piece of a column takes besides its values
_SAMPLES: Mapping[FieldType, Any] = {
    FieldType.STRING: "a",
    FieldType.NUMBER: 1,
    FieldType.BOOLEAN: True,
    FieldType.DATE: date(2026, 1, 31),
    FieldType.DATETIME: datetime(2026, 1, 31, 10, tzinfo=UTC),
}


@dataclass(frozen=True, slots=True)
class Opened:
    """A query as it is to be run: what it is, and what it promises."""

    query: Query
    schema: Entry

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.schema.draft.fields


@dataclass(frozen=True, slots=True)
class Asked:
    options: Options
    parameters: Mapping[str, Any]  # as they were sent
    versions: Mapping[str, int]  # of datasets by name in lower case, where others than the newest are meant
    whole: bool = False  # all rows, in no order unless one is asked for
    most_bytes: int | None = None  # of a page that is to be written as text; it has fewer rows, if they are large


@dataclass(frozen=True)
class Result:
    """Rows that keep the promise."""

    table: pa.Table
    versions: Mapping[str, int]  # that were read, by the datasets' names
    more: bool = False  # are there rows after these?
    count: int | None = None  # of all rows that the filter keeps, where asked for


Heard = Callable[[bool, float], None]  # hears of every check: did the rows keep the promise, and how long did it take?
Ran = Callable[[float], None]  # hears of every run, however it ended: how many seconds did it take?


class Results:
    """What queries answer, in this process: the sandbox that they run in, and the answers that are still true."""

    def __init__(self, ws: Workspace, sandbox: Sandbox | None = None, cache_bytes: int = 64 << 20) -> None:
        self._ws, self._sandbox = ws, sandbox or Sandbox(ws.data)
        self._cache = Cache[Result](cache_bytes)
        self._columns = Cache[pa.Schema](_COLUMNS_BYTES)
        self._parsed = Cache[Parsed](_COLUMNS_BYTES)
        self._relations = Cache[Relation](_RELATIONS_BYTES)
        self._room = Room()
        self._heard: Heard = lambda _valid, _seconds: None
        self._ran: Ran = lambda _seconds: None

    def hear_checks(self, heard: Heard) -> None:
        self._heard = heard

    def hear_runs(self, ran: Ran) -> None:
        self._ran = ran

    def close(self) -> None:
        self._sandbox.close()

    def opened(self, caller: Caller, key: str) -> Opened:
        """A query by its id or name, with its schema."""
        caller.require(Role.VIEWER)
        with self._ws.db.read(caller) as tx:
            query = found(tx, key)
            assert_runnable(query)
            return Opened(query, _schema(tx, query))

    def run(self, caller: Caller, opened: Opened, asked: Asked) -> Result:
        """The rows that are asked for, if they keep the promise."""
        query = opened.query
        given = values(query.draft.parameters, asked.parameters)
        _assert_read(query, asked.versions)
        facts = {"query_id": query.id, "version": query.version}
        with self._recorded(caller, "query.run", facts):
            with self._ws.db.read(caller) as tx:
                there = {ref: _resolved(tx, ref, asked.versions) for ref in query.datasets}
                facts["datasets"] = _read(there)
                read = tuple((at.dataset, at.version.number) for at in there.values())
                what = (query.id, query.version, opened.schema.id, opened.schema.version)
                which = (asked.whole, asked.most_bytes, repr(asked.options), repr(sorted(given.items())))
                key = (caller.tenant, what, which, read)
                known = self._cache.get(key)
                relations = {} if known else {_ref(ref): self._relation(tx, at) for ref, at in there.items()}
            result, repeatable = (known, False) if known else self._fresh(caller, opened, asked, given, relations)
            result = replace(result, versions=_read(there))
            if repeatable:
                self._cache.put(key, result, _weight(result.table))
            facts["rows"] = result.table.num_rows
        return result

    def preview(self, caller: Caller, sql: str, parameters: Mapping[str, Any], most_bytes: int = PAGE_BYTES) -> Result:
        """The first rows of a statement that nobody has registered. There is nothing that they promise."""
        caller.require(Role.VIEWER)
        facts = {"sql": _digest(sql)}
        with self._recorded(caller, "query.preview", facts), self._bound(caller, sql, facts) as (cell, parsed, there):
            _assert_used(parsed, parameters)
            rows = cell.run(after=f" AS q LIMIT {PREVIEWED + 1}", parameters=parameters, most_bytes=_HEARD_BYTES)
            page = Page(rows, PREVIEWED, most_bytes)
            table = self._room.hold(rows.schema, page)
            facts["rows"] = table.num_rows
        return Result(table, _read(_referred(there)), page.more)

    def inspected(self, caller: Caller) -> Callable[[Draft], Inspection]:
        """A look at a draft without running it: the datasets it reads, and what its result can never keep."""

        def look(draft: Draft) -> Inspection:
            with self._ws.db.read(caller) as tx:
                fields = schemas.find(tx, draft.returns_schema_id).draft.fields
            with self._bound(caller, draft.sql, {}) as (cell, parsed, there):
                problems = _certain(fields, draft.parameters, cell) if parsed.parameters else _problems(fields, cell)
                return Inspection(tuple(_referred(there)), parsed.parameters, problems)

        return look

    def inferred(self, caller: Caller, sql: str, parameters: Mapping[str, Any] | None = None) -> tuple[Field, ...]:
        """The fields that the rows of a statement can promise. A parameter without a value is NULL."""
        caller.require(Role.DEVELOPER)
        facts = {"sql": _digest(sql)}
        with self._recorded(caller, "query.infer", facts), self._bound(caller, sql, facts) as (cell, parsed, _):
            _assert_used(parsed, parameters or {})
            return contract.inferred(cell.describe(parameters))

    def _fresh(
        self,
        caller: Caller,
        opened: Opened,
        asked: Asked,
        given: Mapping[str, Any],
        relations: Mapping[Ref, Relation],
    ) -> tuple[Result, bool]:
        """The rows; and would they be the same the next time?"""
        with self._sandbox.cell(caller.tenant) as cell:
            parsed = self._prepared(opened.query, cell, relations)
            have = self._columns_of(opened.query, parsed, cell, given, relations)
            lower = odata.rows if asked.whole else odata.page
            try:
                page = lower(asked.options, opened.fields, have)
            except Unsupported:  # what is asked of a column that is not what the schema says makes no sense
                wrong = contract.certain_mismatches(opened.fields, have)
                raise _broken(opened, Verdict(len(wrong), tuple(wrong))) from None
            count = None
            if asked.options.count:  # first: a page may end before all rows have come, and its process with it
                counted = odata.count(asked.options, opened.fields, have)
                told = _run(cell, counted, given).table()
                count = told.column(0)[0].as_py()
            heard = None if asked.most_bytes is None else _HEARD_BYTES
            rows = _run(cell, page, given, heard)
            table, more = self._checked(opened, asked, rows)
        return Result(table, {}, more, count), parsed.repeatable

    def _prepared(self, query: Query, cell: Cell, relations: Mapping[Ref, Relation]) -> Parsed:
        """The statement in the cell's hands. What it says is the same each time, so it is parsed once."""
        key = (query.id, query.version)
        known = self._parsed.get(key)
        parsed = cell.prepare(query.draft.sql, relations, known)
        if known is None:
            self._parsed.put(key, parsed, len(parsed.select))
        return parsed

    def _columns_of(
        self, query: Query, parsed: Parsed, cell: Cell, given: Mapping[str, Any], relations: Mapping[Ref, Relation]
    ) -> pa.Schema:
        """The columns of the rows. They depend on what goes in, and DuckDB is asked once for each."""
        used = () if parsed.only_compared else tuple((name, type(value), repr(value)) for name, value in given.items())
        tables = tuple((ref, each.schema.serialize().to_pybytes()) for ref, each in relations.items())
        key = (query.id, query.version, used, tables)
        have = self._columns.get(key)
        if have is None:
            have = cell.describe(given)
            self._columns.put(key, have, have.serialize().size)
        return have

    def _checked(self, opened: Opened, asked: Asked, rows: Rows) -> tuple[pa.Table, bool]:
        """The rows asked for, if all of them keep the promise; and are there more? They are held back until the last."""
        fields = odata.selected(asked.options, opened.fields)
        nothing = rows.schema.names == [odata.NOTHING]
        schema = pa.schema([]) if nothing else rows.schema
        checker, seconds = contract.Checker(fields, schema), 0.0
        page = Page(rows, math.inf if asked.whole else asked.options.top, asked.most_bytes)

        def seen() -> Iterator[pa.RecordBatch]:
            nonlocal seconds
            for came in page:
                batch = came.select([]) if nothing else came
                begun = time.perf_counter()
                checker.add(batch)
                seconds += time.perf_counter() - begun
                yield batch

        table = self._room.hold(schema, seen())
        self._heard(checker.verdict.valid, seconds)
        if not checker.verdict.valid:
            raise _broken(opened, checker.verdict)
        return table, page.more

    @contextmanager
    def _bound(
        self, caller: Caller, sql: str, facts: dict[str, Any]
    ) -> Iterator[tuple[Cell, Parsed, dict[Ref, Snapshot]]]:
        """A statement that can be run: its datasets are found, and given to it at one set of versions."""
        with self._sandbox.cell(caller.tenant) as cell:
            parsed = cell.parse(sql)
            with self._ws.db.read(caller) as tx:
                there = {ref: _resolved(tx, Reference(ref.schema, ref.table, ref.version), {}) for ref in parsed.tables}
                facts["datasets"] = _read(_referred(there))
                relations = {ref: self._relation(tx, at) for ref, at in there.items()}
            cell.bind(relations)
            yield cell, parsed, there

    def _relation(self, tx: Tx, at: Snapshot) -> Relation:
        """The files of a version never change, and there may be many: they are remembered."""
        key = (at.dataset, at.version.number)
        relation = self._relations.get(key)
        if relation is None:
            files = [File(self._ws.store.locate(path), rows, known) for path, rows, known in history.listed(tx, at)]
            relation = Relation(at.schema, files)
            self._relations.put(key, relation, sum(_FILE + len(each.path) + len(each.known) for each in files))
        return relation

    @contextmanager
    def _recorded(self, caller: Caller, action: str, facts: dict[str, Any]) -> Iterator[None]:
        """Count the run and put it into the audit, however it ends."""
        begun = time.monotonic()
        try:
            yield
        except BaseException as cause:
            facts["refusal"] = cause.reason if isinstance(cause, PenstockError) else "unexpected"
            raise
        finally:
            seconds = time.monotonic() - begun
            self._ran(seconds)
            with self._ws.db.write(caller) as tx:
                tx.audit(action, {**facts, "milliseconds": round(seconds * 1000)})


def _run(cell: Cell, asked: odata.Wrapped, given: Mapping[str, Any], most_bytes: int | None = None) -> Rows:
    return cell.run(asked.before, asked.after, {**given, **asked.parameters}, most_bytes, asked.filtered)


def _schema(tx: Tx, query: Query) -> Entry:
    try:
        return schemas.find(tx, query.draft.returns_schema_id)
    except NotFound:
        raise Unsupported(
            "schema_unavailable",
            "the schema that the result promises to fit cannot be found, so the result cannot be checked",
            query_id=str(query.id),
            schema_id=str(query.draft.returns_schema_id),
        ) from None


def _resolved(tx: Tx, ref: Reference, pinned: Mapping[str, int]) -> Snapshot:
    newest = history.named(tx, DatasetName(ref.schema, ref.table))
    version = ref.version if ref.version is not None else pinned.get(newest.name.key)
    return newest if version is None else history.at_version(tx, newest.dataset, version)


def _read(there: Mapping[Reference, Snapshot]) -> dict[str, int]:
    """The versions by name. Where the SQL reads a dataset twice, the one that it does not fix is told: it may move."""
    fixed_first = sorted(there.items(), key=lambda item: item[0].version is None)
    return {str(at.name): at.version.number for _, at in fixed_first}


def _assert_read(query: Query, pinned: Mapping[str, int]) -> None:
    """Refuse versions that the query would not read: of another dataset, or where its SQL has fixed one."""
    read = dict[str, set[int | None]]()
    for ref in query.datasets:
        read.setdefault(DatasetName(ref.schema, ref.table).key, set()).add(ref.version)
    for name, version in pinned.items():
        if name not in read:
            known = ", ".join(sorted(read)) or "none"
            told = f"the query does not read {name}, so no version of it can be chosen; it reads {known}"
            raise Invalid("unread_dataset", told, dataset=name)
        if not read[name] & {None, version}:
            told = f"the query itself fixes the version of {name}, so version {version} cannot be chosen"
            raise Invalid("version_is_fixed", told, dataset=name, version=version)


def _assert_used(parsed: Parsed, parameters: Mapping[str, Any]) -> None:
    """Refuse a value for nothing, and two for one: DuckDB does not mind the case of a parameter's name."""
    used, given = {name.lower() for name in parsed.parameters}, set[str]()
    for name in parameters:
        shown = f"${ascii(name[:128])[1:-1]}"
        if name.lower() not in used:
            named = ", ".join(f"${name}" for name in parsed.parameters) or "none"
            raise Invalid("unknown_parameter", f"the statement does not use {shown}; its parameters: {named}")
        if name.lower() in given:
            raise Invalid("doubled_parameter", f"{shown} is there twice, in this case and another")
        given.add(name.lower())


def _certain(fields: Sequence[Field], parameters: Sequence[Parameter], cell: Cell) -> list[dict[str, Any]]:
    """What is wrong in whichever way the statement is described: with a value for each parameter, and with none."""
    samples = {parameter.name: _sample(parameter) for parameter in parameters}
    try:
        problems = _problems(fields, cell, samples)
    except Invalid as refusal:
        if refusal.reason != "query_failed":
            raise
        try:
            unsure = _problems(fields, cell)
        except Invalid:
            raise refusal from None
        return [problem for problem in unsure if problem["actual"] != "null"]  # it may be anything in a run
    if problems:
        try:
            also = {problem["field"] for problem in _problems(fields, cell)}
        except Invalid:
            return problems
        problems = [problem for problem in problems if problem["field"] in also]
    return problems


def _problems(fields: Sequence[Field], cell: Cell, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    have = cell.describe(parameters)
    alike = {name.lower(): name for name in have.names}
    found = contract.certain_mismatches(fields, have)
    for problem in found:
        name = alike.get(problem["field"].lower())
        if name is not None and problem["field"] not in have.names:
            problem["hint"] = f"the result has {name}; names are told apart by their case"
    return found


def _sample(parameter: Parameter) -> Any:
    """Its default, or any value of its type."""
    value = values([replace(parameter, required=False)], {})[parameter.name]
    return _SAMPLES[parameter.type] if value is None else value


def _digest(sql: str) -> str:
    return hashlib.sha256(sql.encode("utf-8", "surrogatepass")).hexdigest()


def _weight(table: pa.Table) -> int:
    """What a table takes to keep. A part of a buffer keeps all of it."""
    chunks = sum(column.num_chunks + 1 for column in table.columns)
    return int(table.get_total_buffer_size() + chunks * _CHUNK)


def _referred(there: Mapping[Ref, Snapshot]) -> dict[Reference, Snapshot]:
    return {Reference(ref.schema, ref.table, ref.version): at for ref, at in there.items()}


def _ref(ref: Reference) -> Ref:
    return Ref(ref.schema, ref.table, ref.version)


def _broken(opened: Opened, verdict: Verdict) -> Unsupported:
    query = opened.query
    return Unsupported(
        "schema_mismatch",
        f"the result of {query.draft.name!r} does not fit its schema: {verdict.count:,} "
        f"{'error' if verdict.count == 1 else 'errors'}, the first is: {verdict.errors[0]['message']}",
        query_id=str(query.id),
        schema_id=str(opened.schema.id),
        schema_version=opened.schema.version,
        error_count=verdict.count,
        errors=list(verdict.errors),
    )
