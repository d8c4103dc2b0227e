"""Query executions that run or wait: list them and cancel one by its id."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, Self
from uuid import UUID, uuid4

from penstock.cancellation import CancelToken
from penstock.core.caller import Caller, Role
from penstock.core.names import parse_uuid
from penstock.errors import AlreadyExists, Invalid, NotFound, Unavailable, Unsupported
from penstock.service.workspace import Workspace

PREVIEW = "preview"  # stands for the query name in executions of unregistered SQL
MAX_EXECUTIONS = 1_000  # of one process, and of one list
_CANCELLED = "query_cancelled"
_MAX_QUERY_LENGTH = 200  # characters of a query name or id


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """An execution at the time of a request for it."""

    id: UUID
    query: str  # name of the query, its id until it is loaded, or PREVIEW
    user: str
    started_at: datetime
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "query": self.query,
            "user": self.user,
            "started_at": self.started_at.isoformat(),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, members: dict[str, Any]) -> Self:
        """Return the record of another process of this service."""
        started_at = datetime.fromisoformat(members["started_at"])
        return cls(UUID(members["id"]), members["query"], members["user"], started_at, members["seconds"])


class ExecutionSource(Protocol):
    """The executions of one or more processes."""

    def list(self, caller: Caller) -> Sequence[ExecutionRecord]:
        """Return the executions that a caller may see: their own, or all of the tenant for an admin."""
        ...

    def cancel(self, caller: Caller, id: UUID) -> ExecutionRecord | None:
        """Cancel an execution that the caller may see, and return it; None if there is none with this id."""
        ...


@dataclass(slots=True, eq=False)
class QueryExecution:
    """A registered execution of this process."""

    id: UUID
    caller: Caller
    query: str  # replaced by the name when the query is loaded
    token: CancelToken
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    is_cancelled: bool = False  # by a person
    _start: float = field(default_factory=time.monotonic)

    def record(self) -> ExecutionRecord:
        seconds = round(time.monotonic() - self._start, 3)
        query = self.query[:_MAX_QUERY_LENGTH]
        return ExecutionRecord(self.id, query, self.caller.name, self.started_at, seconds)

    def is_visible_to(self, caller: Caller) -> bool:
        is_own = self.caller.user == caller.user
        return self.caller.tenant == caller.tenant and (is_own or caller.role >= Role.ADMIN)


class ExecutionRegistry:
    """The executions of this process. It is thread-safe, and no operation waits for a query."""

    def __init__(self, max_executions: int = MAX_EXECUTIONS) -> None:
        self._max_executions = max_executions
        self._lock = threading.Lock()
        self._executions: dict[tuple[UUID, UUID], QueryExecution] = {}  # by tenant and id

    def __len__(self) -> int:
        return len(self._executions)

    @contextmanager
    def register(
        self, caller: Caller, query: str, token: CancelToken, id: UUID | None = None
    ) -> Iterator[QueryExecution]:
        """Register an execution for the time of the block. An execution that was cancelled never ends successfully.

        Args:
            caller: the user of the execution
            query: name or id of the query, or PREVIEW
            token: cancels the work
            id: chosen by the client; None is a new one

        Raises:
            AlreadyExists: an execution of the tenant has this id (execution_exists)
            Unavailable: the process has too many executions (server_busy)
            Unsupported: a person cancelled the execution (query_cancelled)
        """
        execution = QueryExecution(id or uuid4(), caller, query, token)
        key = (caller.tenant, execution.id)
        with self._lock:
            if key in self._executions:
                raise AlreadyExists("execution_exists", execution_id=str(execution.id))
            if len(self._executions) >= self._max_executions:
                raise Unavailable("server_busy")
            self._executions[key] = execution
        try:
            yield execution
        finally:
            with self._lock:  # after this, `cancel` does not find it
                del self._executions[key]
        if execution.is_cancelled:
            raise Unsupported(_CANCELLED)

    def list(self, caller: Caller) -> Sequence[ExecutionRecord]:
        with self._lock:
            executions = [*self._executions.values()]
        return [execution.record() for execution in executions if execution.is_visible_to(caller)]

    def cancel(self, caller: Caller, id: UUID) -> ExecutionRecord | None:
        with self._lock:
            execution = self._executions.get((caller.tenant, id))
            if execution is None or not execution.is_visible_to(caller):
                return None
            execution.is_cancelled = True
        execution.token.cancel(_CANCELLED)
        return execution.record()


def parse_execution_id(text: str) -> UUID:
    """Parse an execution id that a client has chosen.

    Raises:
        Invalid: the text is not a UUID in its canonical spelling (bad_execution_id)
    """
    if id := parse_uuid(text):
        return id
    raise Invalid("bad_execution_id")


def list_executions(sources: Sequence[ExecutionSource], caller: Caller) -> list[ExecutionRecord]:
    """Return the executions that a caller may see, oldest first, at most MAX_EXECUTIONS."""
    caller.require(Role.VIEWER)
    records = [record for source in sources for record in source.list(caller)]
    return sorted(records, key=lambda record: (record.started_at, record.id))[:MAX_EXECUTIONS]


def cancel_execution(ws: Workspace, sources: Sequence[ExecutionSource], caller: Caller, id: str) -> None:
    """Cancel an execution and write the cancellation to the audit table.

    Raises:
        NotFound: no execution that the caller may see has this id, or it has ended (execution_not_found)
    """
    caller.require(Role.VIEWER)
    execution_id = parse_uuid(id)
    records = [source.cancel(caller, execution_id) for source in sources] if execution_id else []
    cancelled = [record for record in records if record]
    if not cancelled:
        raise NotFound("execution_not_found")
    with ws.db.write(caller) as tx:
        for record in cancelled:
            tx.audit("query.cancel", {"execution_id": record.id, "query": record.query, "user": record.user})
