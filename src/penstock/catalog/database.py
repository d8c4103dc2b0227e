"""Open transactions that belong to one caller and see one tenant.

`tenant_filter(table)` is the tenant condition. It is part of every statement: a statement without it is stopped
before it is sent (`tenant_guard`). On PostgreSQL, row-level security enforces the same condition again: each
transaction switches to a role that owns nothing and sets its tenant, both until the transaction ends. Only the run
queue can be read over all tenants (`Database.read_run_queue`); it contains ids, numbers and times only.
"""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from sqlalchemy import (
    Connection,
    Delete,
    Engine,
    Executable,
    Insert,
    Row,
    Table,
    Update,
    bindparam,
    create_engine,
    event,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from penstock import cancellation
from penstock.cancellation import CancelToken
from penstock.catalog import tables, tenant_guard
from penstock.catalog.tenant_guard import insert_for_tenant
from penstock.core.caller import Caller, Role
from penstock.errors import CommitStateUnknown, Conflict, Invalid, Unavailable, Unsupported

APP_ROLE = "penstock_app"
TENANT_SETTING = "penstock.tenant"
RUN_QUEUE_SETTING = "penstock.run_queue"  # "all" while a worker reads the queue over all tenants

_LOCK_TIMEOUT_SECONDS = 60  # SQLite has a single write lock; PostgreSQL uses it as lock_timeout
STATEMENT_SECONDS = 30.0  # of one statement of a read-only transaction
_POOL = {"pool_size": 16, "max_overflow": 48, "pool_timeout": _LOCK_TIMEOUT_SECONDS}
_RETRYABLE_STATES = ("40001", "40P01")  # serialization failure, deadlock
_LOCK_TIMEOUT_STATE = "55P03"
_CANCELLED_STATE = "57014"  # statement_timeout, or a cancelled request
_SQLITE_CHECK_INSTRUCTIONS = (
    50_000  # of SQLite's virtual machine, between two checks of the time limit: about a millisecond
)
_MISSING_ROLE_STATES = ("42501", "22023", "42704")  # insufficient privilege, invalid or unknown role

_SYSTEM_CALLER = Caller(UUID(int=0), UUID(int=0), "system", Role.VIEWER)
_CHUNK_SIZE = 500

T = TypeVar("T")
Params = Mapping[str, Any]


def in_chunks(values: Sequence[T]) -> Iterator[list[T]]:
    """Split values into lists that are small enough for one IN (…)."""
    return (list(values[i : i + _CHUNK_SIZE]) for i in range(0, len(values), _CHUNK_SIZE))


class CatalogTransaction:
    """A database transaction of one caller."""

    def __init__(self, connection: Connection, caller: Caller, clock: Callable[[], datetime]) -> None:
        self._connection = connection
        self._tenant = {"tenant": caller.tenant}
        self.caller, self.clock = caller, clock
        self.now = clock()

    def all(self, statement: Executable, **params: Any) -> Sequence[Row[Any]]:
        """Run a query and return all rows."""
        return self._connection.execute(statement, params | self._tenant).all()

    def first(self, statement: Executable, **params: Any) -> Row[Any] | None:
        """Run a query and return its first row, or None."""
        return self._connection.execute(statement, params | self._tenant).first()

    def execute(self, statement: Insert | Update | Delete, **params: Any) -> int:
        """Run a statement that changes rows. Returns the number of rows."""
        return self._connection.execute(statement, params | self._tenant).rowcount

    def insert_many(self, statement: Insert, rows: Sequence[Params]) -> None:
        """Insert rows; an empty list is allowed."""
        self.execute_many(statement, rows)

    def execute_many(self, statement: Insert | Update | Delete, params: Sequence[Params]) -> None:
        """Run a statement that changes rows once for each set of parameters, in one request to the database."""
        if params:
            self._connection.execute(statement, [{**values, **self._tenant} for values in params])

    def insert_if_absent(self, table: Table, **values: Any) -> bool:
        """Insert a row unless its key exists. Of concurrent writers exactly one gets True."""
        return self.execute(_insert_if_absent(table, self._connection.dialect.name), **values) == 1

    def audit(self, action: str, detail: Any, *, commit_no: int | None = None) -> None:
        """Insert a row into the audit table."""
        self.execute(
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
def _insert_if_absent(table: Table, dialect: str) -> Insert:
    statement = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    return (
        statement.values(tenant_id=bindparam("tenant"))
        .on_conflict_do_nothing()
        .execution_options(preserve_rowcount=True)
    )


_AUDIT = insert_for_tenant(tables.audit)


class Database:
    """A catalog database: SQLite or PostgreSQL."""

    def __init__(
        self,
        target: str | Path,
        *,
        durable: bool = True,
        clock: Callable[[], datetime] | None = None,
        statement_seconds: float = STATEMENT_SECONDS,
    ) -> None:
        """Connect to a database URL, or to the path of an SQLite file.

        Args:
            target: the URL or the path
            durable: flush commits to disk (SQLite)
            clock: the current time; None is the system's
            statement_seconds: limit of each statement of a read-only transaction
        """
        self.url = URL.create("sqlite", database=str(target)) if isinstance(target, Path) else parse_url(target)
        self.engine = _create_engine(self.url, durable=durable)
        self.clock = clock or (lambda: datetime.now(UTC))
        self._statement_seconds = statement_seconds
        self._process = os.getpid()

    @contextmanager
    def read(self, caller: Caller) -> Iterator[CatalogTransaction]:
        """Open a read-only transaction that sees one state of the catalog."""
        with self._begin(caller, write=False) as connection:
            yield CatalogTransaction(connection, caller, self.clock)

    @contextmanager
    def write(self, caller: Caller, on_step: Callable[[str], None] = lambda _: None) -> Iterator[CatalogTransaction]:
        """Open a transaction that is committed at the end of the block, or rolled back on an error.

        Args:
            on_step: called with "commit.ready" before COMMIT and with "commit.sent" after it

        Raises:
            CommitStateUnknown: the database did not respond to COMMIT
        """
        with self._begin(caller, write=True) as connection:
            yield CatalogTransaction(connection, caller, self.clock)
            on_step("commit.ready")
            try:
                connection.commit()
                on_step("commit.sent")
            except (DBAPIError, OSError) as cause:
                connection.invalidate()  # its state is unknown; closing it lets the database decide
                raise CommitStateUnknown("commit_unanswered", {"cause": _driver_message(cause)}) from None

    @contextmanager
    def read_run_queue(self) -> Iterator[CatalogTransaction]:
        """Read `run_queue` over all tenants, and no other table."""
        with self._begin(_SYSTEM_CALLER, write=False, run_queue=True) as connection:
            yield CatalogTransaction(connection, _SYSTEM_CALLER, self.clock)

    @contextmanager
    def connect_without_tenant(self, *, write: bool = True) -> Iterator[Connection]:
        """Open a connection without a tenant, for migrations and the doctor."""
        self._reset_after_fork()
        with _translate_errors(), self.engine.connect() as connection:
            yield connection.execution_options(penstock_read_only=not write)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _begin(self, caller: Caller, *, write: bool, run_queue: bool = False) -> Iterator[Connection]:
        self._reset_after_fork()
        with _translate_errors():
            cancellation.raise_if_cancelled()
            connection = self._open(caller, write=write, run_queue=run_queue)
            try:
                if write:
                    yield connection
                else:
                    with _limit_statements(connection, self._statement_seconds):
                        yield connection
            finally:
                connection.close()  # rolls back unless committed

    def _reset_after_fork(self) -> None:
        if self._process != os.getpid():  # a child process must not use its parent's connections
            self.engine.dispose(close=False)
            self._process = os.getpid()

    def _open(self, caller: Caller, *, write: bool, run_queue: bool) -> Connection:
        for is_last_attempt in (False, True):
            connection = self.engine.connect().execution_options(penstock_write=write, penstock_run_queue=run_queue)
            try:
                if connection.dialect.name == "postgresql":
                    if not write:  # a reader sees one state; a writer sees the newest one, under its locks
                        connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                    queue_scope = "all" if run_queue else ""
                    connection.execute(
                        _BEGIN_POSTGRESQL,
                        {
                            "role": APP_ROLE,
                            "tenant": str(caller.tenant),
                            "turns": queue_scope,
                            "statement": 0 if write else math.ceil(self._statement_seconds * 1000),
                        },
                    )
                else:
                    connection.begin()
                break
            except DBAPIError as cause:
                connection.close()
                if is_last_attempt or not cause.connection_invalidated:
                    raise
                # The pooled connection was closed by the server (a restart). No statement was run on it yet.
        return connection


# These settings end with the transaction. The timeouts prevent a stuck writer from blocking all others.
_BEGIN_POSTGRESQL = text(
    f"SELECT set_config('role', :role, true), set_config('{TENANT_SETTING}', :tenant, true), "
    f"set_config('{RUN_QUEUE_SETTING}', :turns, true), "
    f"set_config('lock_timeout', '{_LOCK_TIMEOUT_SECONDS}s', true), "
    "set_config('statement_timeout', CAST(:statement AS text), true), "
    f"set_config('idle_in_transaction_session_timeout', '{2 * _LOCK_TIMEOUT_SECONDS}s', true)"
)


def parse_url(url_text: str) -> URL:
    """Parse a database URL and set its driver."""
    try:
        url = make_url(url_text)
    except ArgumentError:
        raise Invalid("bad_database_url.syntax") from None
    match url.drivername.split("+")[0]:
        case "sqlite" if url.database:
            return url.set(drivername="sqlite")
        case "postgresql" | "postgres":
            return url.set(drivername="postgresql+psycopg")
    raise Invalid(
        "bad_database_url.driver",
        {"driver": url.drivername},
    )


def _create_engine(url: URL, *, durable: bool) -> Engine:
    engine = (
        _create_sqlite_engine(url, durable=durable) if url.drivername == "sqlite" else _create_postgresql_engine(url)
    )

    @event.listens_for(engine, "before_cursor_execute")
    def _check_statement(connection: Connection, _cursor: Any, statement: str, *_other: Any) -> None:
        options = connection.get_execution_options()
        if limit := connection.info.get(_SQLITE_LIMIT):
            limit.begin_statement()
        if "penstock_write" in options:
            tenant_guard.check_statement(statement, run_queue=bool(options.get("penstock_run_queue")))

    return engine


def _create_postgresql_engine(url: URL) -> Engine:
    try:
        return create_engine(url, connect_args={"connect_timeout": 10, "application_name": "penstock"}, **_POOL)
    except ImportError:
        raise Invalid("missing_postgres_driver") from None


def _create_sqlite_engine(url: URL, *, durable: bool) -> Engine:
    # isolation_level None disables the transaction handling of sqlite3. timeout: how long BEGIN IMMEDIATE waits.
    engine = create_engine(url, connect_args={"isolation_level": None, "timeout": _LOCK_TIMEOUT_SECONDS}, **_POOL)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        connection.execute("PRAGMA foreign_keys = ON")
        limit = record.info[_SQLITE_LIMIT] = _SqliteLimit()
        connection.set_progress_handler(limit.is_exceeded, _SQLITE_CHECK_INSTRUCTIONS)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A deferred BEGIN fails at its first write if another writer committed in between. Writers wait here instead.
        options = connection.get_execution_options()
        write = options.get("penstock_write", not options.get("penstock_read_only", False))
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


_SQLITE_LIMIT = "penstock_limit"


class _SqliteLimit:
    """Interrupt the statements of a connection: SQLite calls `is_exceeded` while a statement runs."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # of one statement
        self.deadline = math.inf
        self.token: CancelToken | None = None

    def begin_statement(self) -> None:
        if self.seconds is not None:
            self.deadline = time.monotonic() + self.seconds

    def is_exceeded(self) -> bool:
        return bool(self.token and self.token.is_cancelled) or time.monotonic() > self.deadline


@contextmanager
def _limit_statements(connection: Connection, seconds: float) -> Iterator[None]:
    """Interrupt statements that take too long (on PostgreSQL a setting does it) or whose request is cancelled."""
    if connection.dialect.name == "postgresql":
        with _cancel_on_postgresql(connection):
            yield
        return
    limit: _SqliteLimit = connection.info[_SQLITE_LIMIT]
    limit.seconds, limit.token = seconds, cancellation.current()
    try:
        yield
    finally:
        limit.seconds, limit.token, limit.deadline = None, None, math.inf


@contextmanager
def _cancel_on_postgresql(connection: Connection) -> Iterator[None]:
    driver_connection = connection.connection.dbapi_connection
    assert driver_connection is not None
    lock, is_open = threading.Lock(), True

    def cancel() -> None:
        with lock:
            if is_open:
                driver_connection.cancel()

    try:  # the request to cancel takes a connection of its own, so a thread sends it
        with cancellation.on_cancel(lambda: threading.Thread(target=cancel, daemon=True).start()):
            yield
    finally:
        with lock:
            is_open = False
        if (token := cancellation.current()) and token.is_cancelled:
            connection.invalidate()  # the server may process the cancellation later, in the next transaction


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise the errors of the database as Penstock errors. An unknown error is a bug and is raised as it is."""
    try:
        yield
    except PoolTimeout:
        raise Unavailable("database_busy.pool") from None
    except DBAPIError as cause:
        sqlstate = getattr(cause.orig, "sqlstate", None)
        if sqlstate == _LOCK_TIMEOUT_STATE or "database is locked" in str(cause.orig):
            raise Unavailable("database_busy.lock") from None
        if sqlstate == _CANCELLED_STATE or str(cause.orig) == "interrupted":
            cancellation.raise_if_cancelled()
            raise Unavailable("statement_timed_out") from None
        if sqlstate in _RETRYABLE_STATES:
            raise Conflict("overtaken") from None
        if sqlstate in _MISSING_ROLE_STATES:
            raise Unsupported(
                "missing_app_role",
                {"app_role": APP_ROLE},
            ) from None
        if not isinstance(cause, OperationalError | InterfaceError):
            raise
        raise Unavailable("database_unavailable", {"cause": _driver_message(cause)}) from None


def _driver_message(cause: Exception) -> str:
    """Return the first line of the driver's message, without the statement and its parameters."""
    return str(getattr(cause, "orig", None) or cause).strip().partition("\n")[0][:200]
