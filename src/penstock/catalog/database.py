"""The only way to the database: a transaction that belongs to one caller and sees one tenant.

`mine(table)` is the tenant condition; it is part of every statement, and a statement without it is
stopped before it leaves the process. On PostgreSQL row-level security holds the same line again: each
transaction takes on a role that owns nothing and names its tenant, both until it ends and no longer.
The one look over all tenants is at whose run has the next turn (`turns`), and shows nothing but ids.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Engine,
    Executable,
    FromClause,
    Insert,
    Row,
    Table,
    Update,
    bindparam,
    create_engine,
    event,
    insert,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from penstock.catalog import tables
from penstock.core.caller import Caller, Role
from penstock.errors import Conflict, Invalid, Unavailable, Undecided, Unsupported

APP_ROLE = "penstock_app"
TENANT_SETTING = "penstock.tenant"
TURNS_SETTING = "penstock.turns"  # "all" while somebody looks whose turn it is

_BUSY_TIMEOUT = 60  # seconds that a writer waits for SQLite's one write lock
_POOL = {"pool_size": 16, "max_overflow": 48, "pool_timeout": _BUSY_TIMEOUT}
_OVERTAKEN = ("40001", "40P01")  # serialization failure, deadlock
_LOCKED = "55P03"
_NO_ROLE = ("42501", "22023", "42704")  # not allowed, or there is no such role

_NOBODY = Caller(UUID(int=0), UUID(int=0), "nobody", Role.VIEWER)
_CHUNK = 500
_SHORT = 8_000  # characters of a statement whose judgement is worth keeping

T = TypeVar("T")
Params = Mapping[str, Any]


def mine(table: FromClause) -> ColumnElement[bool]:
    """The tenant condition."""
    return table.c.tenant_id == bindparam("tenant")


def add(table: Table) -> Insert:
    """An insert into the caller's tenant, to be run with a value for every other column."""
    return insert(table).values(tenant_id=bindparam("tenant"))


def in_chunks(values: Sequence[T]) -> Iterator[list[T]]:
    """Pieces small enough for one IN (…)."""
    return (list(values[i : i + _CHUNK]) for i in range(0, len(values), _CHUNK))


class Tx:
    """One transaction of one caller."""

    def __init__(self, connection: Connection, caller: Caller, clock: Callable[[], datetime]) -> None:
        self._connection = connection
        self._tenant = {"tenant": caller.tenant}
        self.caller, self.clock = caller, clock
        self.now = clock()

    def all(self, statement: Executable, **params: Any) -> Sequence[Row[Any]]:
        return self._connection.execute(statement, params | self._tenant).all()

    def first(self, statement: Executable, **params: Any) -> Row[Any] | None:
        return self._connection.execute(statement, params | self._tenant).first()

    def run(self, statement: Insert | Update | Delete, **params: Any) -> int:
        """Change rows; the answer is how many."""
        return self._connection.execute(statement, params | self._tenant).rowcount

    def each(self, statement: Insert, rows: Sequence[Params]) -> None:
        if rows:
            self._connection.execute(statement, [{**row, **self._tenant} for row in rows])

    def add_if_free(self, table: Table, **values: Any) -> bool:
        """Insert a row unless its key is taken: of several writers one hears True."""
        return self.run(_add_if_free(table, self._connection.dialect.name), **values) == 1

    def audit(self, action: str, detail: Any, *, commit_no: int | None = None) -> None:
        self.run(
            _AUDIT,
            audit_id=uuid4(),
            at=self.now,
            user_id=self.caller.user,
            author=self.caller.name,
            action=action,
            commit_no=commit_no,
            detail=json.dumps(detail, default=str),
        )


@cache
def _add_if_free(table: Table, dialect: str) -> Insert:
    place = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    return (
        place.values(tenant_id=bindparam("tenant")).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
    )


_AUDIT = add(tables.audit)


class Database:
    def __init__(self, where: str | Path, *, durable: bool = True, clock: Callable[[], datetime] | None = None) -> None:
        """A URL, or the path of an SQLite file."""
        self.url = URL.create("sqlite", database=str(where)) if isinstance(where, Path) else parse_url(where)
        self.engine = _engine(self.url, durable=durable)
        self.clock = clock or (lambda: datetime.now(UTC))
        self._process = os.getpid()

    @contextmanager
    def read(self, caller: Caller) -> Iterator[Tx]:
        """Statements that see one state of the catalog."""
        with self._begin(caller, write=False) as connection:
            yield Tx(connection, caller, self.clock)

    @contextmanager
    def write(self, caller: Caller, at: Callable[[str], None] = lambda _: None) -> Iterator[Tx]:
        """Statements that happen together or not at all. Raises `Undecided` where the database did not say which.

        `at` hears when all that is left is COMMIT ("commit.ready"), and when it was carried out ("commit.sent").
        """
        with self._begin(caller, write=True) as connection:
            yield Tx(connection, caller, self.clock)
            at("commit.ready")
            try:
                connection.commit()
                at("commit.sent")
            except (DBAPIError, OSError) as cause:
                connection.invalidate()  # who knows what state it is in; closing it lets the database decide
                raise Undecided("commit_unanswered", f"the database did not answer COMMIT: {_said(cause)}") from None

    @contextmanager
    def turns(self) -> Iterator[Tx]:
        """A look at `run_turns` over all tenants, and at nothing else."""
        with self._begin(_NOBODY, write=False, turns=True) as connection:
            yield Tx(connection, _NOBODY, self.clock)

    @contextmanager
    def raw(self, *, write: bool = True) -> Iterator[Connection]:
        """A connection of no tenant, for migrations and the doctor."""
        self._after_fork()
        with _translated(), self.engine.connect() as connection:
            yield connection.execution_options(penstock_looks=not write)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _begin(self, caller: Caller, *, write: bool, turns: bool = False) -> Iterator[Connection]:
        self._after_fork()
        with _translated():
            connection = self._open(caller, write=write, turns=turns)
            try:
                yield connection
            finally:
                connection.close()  # rolls back what was not committed

    def _after_fork(self) -> None:
        if self._process != os.getpid():  # a child must not speak on its parent's connections
            self.engine.dispose(close=False)
            self._process = os.getpid()

    def _open(self, caller: Caller, *, write: bool, turns: bool) -> Connection:
        for last in (False, True):
            connection = self.engine.connect().execution_options(penstock_write=write, penstock_turns=turns)
            try:
                if connection.dialect.name == "postgresql":
                    if not write:  # all statements of a read see one state; a writer sees the newest, under its locks
                        connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                    seen = "all" if turns else ""
                    connection.execute(_ENTER, {"role": APP_ROLE, "tenant": str(caller.tenant), "turns": seen})
                else:
                    connection.begin()
                break
            except DBAPIError as cause:
                connection.close()
                if last or not cause.connection_invalidated:
                    raise
                # The pooled connection had died unseen (a restarted server); nothing was done on it yet.
        return connection


# All of it ends with the transaction. The time limits keep a writer that got stuck from holding up all others.
_ENTER = text(
    f"SELECT set_config('role', :role, true), set_config('{TENANT_SETTING}', :tenant, true), "
    f"set_config('{TURNS_SETTING}', :turns, true), "
    f"set_config('lock_timeout', '{_BUSY_TIMEOUT}s', true), "
    f"set_config('idle_in_transaction_session_timeout', '{2 * _BUSY_TIMEOUT}s', true)"
)


def parse_url(text_: str) -> URL:
    try:
        url = make_url(text_)
    except ArgumentError:
        raise Invalid(
            "bad_database_url", "the database URL cannot be read; write postgresql://user@host/name"
        ) from None
    match url.drivername.split("+")[0]:
        case "sqlite" if url.database:
            return url.set(drivername="sqlite")
        case "postgresql" | "postgres":
            return url.set(drivername="postgresql+psycopg")
    raise Invalid(
        "bad_database_url",
        f"{url.drivername!r} is no database that Penstock knows; use postgresql://… or sqlite:///file",
    )


def _engine(url: URL, *, durable: bool) -> Engine:
    engine = _sqlite(url, durable=durable) if url.drivername == "sqlite" else _postgresql(url)

    @event.listens_for(engine, "before_cursor_execute")
    def _guard(connection: Connection, _cursor: Any, statement: str, *_rest: Any) -> None:
        judge = keeps_to_the_tenant if len(statement) < _SHORT else keeps_to_the_tenant.__wrapped__
        options = connection.get_execution_options()
        if options.get("penstock_turns"):
            judge = looks_at_turns
        if "penstock_write" in options and not judge(statement):
            raise RuntimeError(f"a statement without the tenant condition: {statement}")

    return engine


@lru_cache(1_000)
def keeps_to_the_tenant(statement: str) -> bool:
    """Is every table that the statement names tied to the tenant? Judged by the SQL that is sent."""
    named = _named(statement)
    if statement.startswith("INSERT"):
        return "(tenant_id, " in statement and len(named) == 1
    return len(_CONDITION.findall(statement)) >= len(named)


def looks_at_turns(statement: str) -> bool:
    """Does the statement read turns, and no other table?"""
    named = set(_named(statement))
    return not named or (statement.startswith("SELECT") and named == {tables.run_turns.name})


def _named(statement: str) -> list[str]:
    return [name for name in _NAMED.findall(statement) if name in tables.metadata.tables]


_NAMED = re.compile(r"\b(?:FROM|JOIN|UPDATE|INTO|,)\s+(\w+)\b(?!\.)")
_CONDITION = re.compile(r"tenant_id = (?:\?|%\(tenant)")


def _postgresql(url: URL) -> Engine:
    try:
        return create_engine(url, connect_args={"connect_timeout": 10, "application_name": "penstock"}, **_POOL)
    except ImportError:
        raise Invalid(
            "no_postgres_driver", "PostgreSQL needs a driver that is not installed: pip install 'penstock[postgres]'"
        ) from None


def _sqlite(url: URL, *, durable: bool) -> Engine:
    # isolation_level None: sqlite3 leaves transactions to us. timeout: how long BEGIN IMMEDIATE waits.
    engine = create_engine(url, connect_args={"isolation_level": None, "timeout": _BUSY_TIMEOUT}, **_POOL)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A deferred BEGIN that later wants to write fails when somebody wrote in between: writers queue here instead.
        options = connection.get_execution_options()
        write = options.get("penstock_write", not options.get("penstock_looks", False))
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


@contextmanager
def _translated() -> Iterator[None]:
    """The database's errors as ours. What is not known here is a bug, and stays one."""
    try:
        yield
    except PoolTimeout:
        raise Unavailable("database_busy", "too many uses of the catalog at once in this process; try again") from None
    except DBAPIError as cause:
        state = getattr(cause.orig, "sqlstate", None)
        if state == _LOCKED or "database is locked" in str(cause.orig):
            raise Unavailable("database_busy", "another process holds the catalog's write lock; try again") from None
        if state in _OVERTAKEN:
            raise Conflict("overtaken", "another transaction came first; try again") from None
        if state in _NO_ROLE:
            raise Unsupported(
                "no_app_role",
                f"this login may not act as {APP_ROLE}; let the owner run `penstock migrate`, and "
                f"GRANT {APP_ROLE} TO the login",
            ) from None
        if not isinstance(cause, OperationalError | InterfaceError):
            raise
        raise Unavailable("database_unavailable", f"the database cannot be used: {_said(cause)}") from None


def _said(cause: Exception) -> str:
    """The driver's first line, without the statement and its parameters."""
    return str(getattr(cause, "orig", None) or cause).strip().partition("\n")[0][:200]
