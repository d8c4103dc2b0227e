"""Run queries: on one set of versions, in the sandbox, and with every row checked before anyone sees it."""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from penstock.catalog import history, schemas
from penstock.catalog.access import Tx
from penstock.core import contract
from penstock.core.caller import Caller, Role
from penstock.core.contract import Field, Verdict
from penstock.core.dataset import Snapshot
from penstock.core.names import DatasetName
from penstock.core.odata import Options
from penstock.core.parameters import values
from penstock.core.query import Draft, Query, Reference, assert_runnable
from penstock.core.registry import Entry
from penstock.engines.duckdb import odata
from penstock.errors import Invalid, NotFound, PenstockError, Unsupported
from penstock.service.cache import Cache
from penstock.service.queries import Inspection, found
from penstock.service.sandbox import Cell, File, Parsed, Ref, Relation, Rows, Sandbox
from penstock.service.workspace import Workspace
from penstock.storage.spool import spool

PREVIEWED = 1_000  # rows
_COLUMNS_BYTES = 4 << 20  # of the names and types of results that are remembered


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
        self._ws, self._sandbox = ws, sandbox or Sandbox()
        self._cache = Cache[Result](cache_bytes)
        self._columns = Cache[pa.Schema](_COLUMNS_BYTES)
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
        query, begun = opened.query, time.monotonic()
        given = values(query.draft.parameters, asked.parameters)
        _assert_read(query, asked.versions)
        with self._ws.db.read(caller) as tx:
            there = {ref: _resolved(tx, ref, asked.versions) for ref in query.datasets}
            read = tuple((at.dataset, at.version.number) for at in there.values())
            what = (query.id, query.version, opened.schema.id, opened.schema.version)
            key = (caller.tenant, what, asked.whole, repr(asked.options), repr(sorted(given.items())), read)
            known = self._cache.get(key)
            relations = {} if known else {_ref(ref): self._relation(tx, at) for ref, at in there.items()}
        try:
            result = known or self._fresh(opened, asked, given, relations)
            result = replace(result, versions=_read(there))
        except PenstockError as refusal:
            self._audit(caller, query, there, begun, refusal=refusal.reason)
            raise
        if known is None:
            self._cache.put(key, result, result.table.nbytes)
        self._audit(caller, query, there, begun, rows=result.table.num_rows)
        return result

    def preview(self, caller: Caller, sql: str, parameters: Mapping[str, Any]) -> Result:
        """The first rows of a statement that nobody has registered. There is nothing that they promise."""
        caller.require(Role.VIEWER)
        with self._bound(caller, sql) as (cell, parsed, there):
            used = {name.lower() for name in parsed.parameters}
            if unused := [name for name in parameters if name.lower() not in used]:
                named = ", ".join(f"${name}" for name in parsed.parameters) or "none"
                told = f"the statement does not use ${ascii(unused[0][:128])[1:-1]}; its parameters: {named}"
                raise Invalid("unknown_parameter", told)
            rows = cell.run(after=f" AS q LIMIT {PREVIEWED + 1}", parameters=parameters).table()
        versions = _read({Reference(ref.schema, ref.table, ref.version): at for ref, at in there.items()})
        return Result(rows.slice(0, PREVIEWED), versions, more=rows.num_rows > PREVIEWED)

    def inspected(self, caller: Caller) -> Callable[[Draft], Inspection]:
        """A look at a draft without running it: the datasets it reads, and what its result can never keep."""

        def look(draft: Draft) -> Inspection:
            with self._ws.db.read(caller) as tx:
                fields = schemas.find(tx, draft.returns_schema_id).draft.fields
            with self._bound(caller, draft.sql) as (cell, parsed, there):
                problems = contract.certain_mismatches(fields, cell.describe())
                if parsed.parameters:  # they are NULL here: a column that is nothing else may be anything in a run
                    problems = [problem for problem in problems if problem["actual"] != "null"]
                references = tuple(Reference(ref.schema, ref.table, ref.version) for ref in there)
                return Inspection(references, parsed.parameters, problems)

        return look

    def inferred(self, caller: Caller, sql: str) -> tuple[Field, ...]:
        """The fields that the rows of a statement can promise."""
        caller.require(Role.DEVELOPER)
        with self._bound(caller, sql) as (cell, _, _):
            return contract.inferred(cell.describe())

    def _fresh(
        self, opened: Opened, asked: Asked, given: Mapping[str, Any], relations: Mapping[Ref, Relation]
    ) -> Result:
        with self._sandbox.cell() as cell:
            cell.parse(opened.query.draft.sql)
            cell.bind(relations)
            have = self._columns_of(opened.query, cell, given, relations)
            lower = odata.rows if asked.whole else odata.page
            try:
                page = lower(asked.options, opened.fields, have)
            except Unsupported:  # what is asked of a column that is not what the schema says makes no sense
                wrong = contract.certain_mismatches(opened.fields, have)
                raise _broken(opened, Verdict(len(wrong), tuple(wrong))) from None
            rows = cell.run(page.before, page.after, {**given, **page.parameters})
            table, more = self._checked(opened, asked, rows)
            count = None
            if asked.options.count:
                counted = odata.count(asked.options, opened.fields, have)
                told = cell.run(counted.before, counted.after, {**given, **counted.parameters}).table()
                count = told.column(0)[0].as_py()
        return Result(table, {}, more, count)

    def _columns_of(
        self, query: Query, cell: Cell, given: Mapping[str, Any], relations: Mapping[Ref, Relation]
    ) -> pa.Schema:
        """The columns of the rows. They depend on nothing but the types of what goes in, so DuckDB is asked once."""
        kinds = tuple((name, type(value), _digits(value)) for name, value in given.items())
        key = (query.id, query.version, kinds, tuple((ref, each.schema.to_string()) for ref, each in relations.items()))
        have = self._columns.get(key)
        if have is None:
            have = cell.describe(given)
            self._columns.put(key, have, len(have.to_string()))
        return have

    def _checked(self, opened: Opened, asked: Asked, rows: Rows) -> tuple[pa.Table, bool]:
        """The rows asked for, if all of them keep the promise; and are there more? They are held back until the last."""
        fields = odata.selected(asked.options, opened.fields)
        checker, seconds, more = contract.Checker(fields, rows.schema), 0.0, False
        room = math.inf if asked.whole else asked.options.top

        def seen() -> Iterator[pa.RecordBatch]:
            nonlocal seconds, more, room
            for came in rows:
                batch = came if came.num_rows <= room else came.slice(0, int(room))
                more = more or batch.num_rows < came.num_rows
                room -= batch.num_rows
                begun = time.perf_counter()
                checker.add(batch)
                seconds += time.perf_counter() - begun
                yield batch

        with tempfile.TemporaryDirectory(prefix="penstock-result-") as folder:
            # A file that is mapped stays readable when its name is gone.
            table = spool(rows.schema, seen(), lambda: str(Path(folder) / uuid4().hex))
        self._heard(checker.verdict.valid, seconds)
        if not checker.verdict.valid:
            raise _broken(opened, checker.verdict)
        return table, more

    @contextmanager
    def _bound(self, caller: Caller, sql: str) -> Iterator[tuple[Cell, Parsed, dict[Ref, Snapshot]]]:
        """A statement that can be run: its datasets are found, and given to it at one set of versions."""
        with self._sandbox.cell() as cell:
            parsed = cell.parse(sql)
            with self._ws.db.read(caller) as tx:
                there = {ref: _resolved(tx, Reference(ref.schema, ref.table, ref.version), {}) for ref in parsed.tables}
                relations = {ref: self._relation(tx, at) for ref, at in there.items()}
            cell.bind(relations)
            yield cell, parsed, there

    def _relation(self, tx: Tx, at: Snapshot) -> Relation:
        files = history.files(tx, at, stats=True)
        return Relation(at.schema, [File(self._ws.store.locate(each.path), each.rows, each.stats) for each in files])

    def _audit(
        self, caller: Caller, query: Query, there: Mapping[Reference, Snapshot], begun: float, **came: Any
    ) -> None:
        seconds = time.monotonic() - begun
        self._ran(seconds)
        facts = {
            "query_id": query.id,
            "version": query.version,
            "datasets": _read(there),
            "milliseconds": round(seconds * 1000),
            **came,
        }
        with self._ws.db.write(caller) as tx:
            tx.audit("query.run", facts)


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


def _digits(value: Any) -> Any:
    """What the type of a number depends on: a decimal's digits, and how large a whole number is."""
    return (
        value.as_tuple()[1:] if isinstance(value, Decimal) else value.bit_length() // 32 if type(value) is int else None
    )


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
