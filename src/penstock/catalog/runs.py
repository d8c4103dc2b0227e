"""Store the runs of pipelines: request, worker, progress and outcome.

A run is active (queued, running) or ended, and ends once: the functions that end a run report whether they did. A run
therefore ends in the SQL transaction that commits its data. A run with a queue entry (`catalog.run_queue`) can be
claimed by any worker, and again by another worker when the heartbeats stop. Attempts are numbered, and only the
newest one can end the run.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, and_, bindparam, exists, or_, select, update

from penstock.catalog import odata_sql, run_queue, search_statements, tables
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.odata_sql import Columns, FoldedText
from penstock.catalog.search_statements import SortKey
from penstock.catalog.tables import pipeline_runs
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.caller import ROLES, Caller, Role
from penstock.core.dataset.changes import DatasetCommit
from penstock.core.odata import (
    FieldKind,
    Fields,
    Node,
    ODataAnd,
    ODataCompare,
    ODataComparison,
    ODataField,
    ODataIn,
    ODataLiteral,
    ODataOr,
    QueryOptions,
)
from penstock.core.paging import SearchPage
from penstock.core.pipeline.responses import error_response
from penstock.core.pipeline.run import ACTIVE_STATES, InputVersion, Run, RunOutcome, RunState, progress_as_json
from penstock.core.progress import Progress
from penstock.errors import AlreadyExists, Conflict, NotFound, Unavailable

MAX_ATTEMPTS = 3  # of a run whose worker stops each time
_MAX_LOOKUPS = 5  # of a key whose run ended in the meantime
_MAX_AUTHOR_LENGTH, _MAX_WORKER_LENGTH = 320, 200
_RUN_LOST = Unavailable("run_lost")

_ACTIVE = [state.value for state in ACTIVE_STATES]

_r = pipeline_runs.c
_is_active = _r.state.in_(_ACTIVE)
_this = (tenant_filter(pipeline_runs), _r.id == bindparam("run"))
_ALL = select(pipeline_runs).where(tenant_filter(pipeline_runs))
_FIND = select(pipeline_runs).where(*_this)
_BY_KEY = _ALL.where(
    _r.idempotency_key == bindparam("key"),
    # Literals in the statement: only then SQLite sees that the partial index on keys covers the condition.
    _r.state.in_(bindparam("counting", [*_ACTIVE, RunState.SUCCEEDED.value], expanding=True, literal_execute=True)),
)
_START = (
    update(pipeline_runs)
    .where(*_this, _r.state == RunState.QUEUED.value)
    .values(
        state=RunState.RUNNING.value,
        started_at=bindparam("now"),
        heartbeat_at=bindparam("now"),
        worker=bindparam("by"),
        attempts=bindparam("number"),
    )
)
_this_attempt = (*_this, _r.attempts == bindparam("number"))
_HEARTBEAT = (
    update(pipeline_runs)
    .where(*_this_attempt, _is_active)
    .values(heartbeat_at=bindparam("now"))
    .returning(_r.cancel_requested_at)
)
_PROGRESS = (
    update(pipeline_runs)
    .where(*_this_attempt, _r.state == RunState.RUNNING.value)
    .values(
        progress=bindparam("new_progress"),
        results=bindparam("new_results"),
        reads=bindparam("new_reads"),
        heartbeat_at=bindparam("now"),
    )
)
_OUTCOME_COLUMNS = ("state", "reads", "results", "error", "error_kind", "written", "commit_no")
_FINISH = (
    update(pipeline_runs)
    .where(*_this_attempt, _r.state == RunState.RUNNING.value)
    .values(progress=None, ended_at=bindparam("now"))
    .values({name: bindparam(f"new_{name}") for name in _OUTCOME_COLUMNS})
)
_REQUEUE = (
    update(pipeline_runs)
    .where(*_this_attempt, _r.state == RunState.RUNNING.value)
    .values(state=RunState.QUEUED.value, started_at=None, worker="", progress=None, reads=[], results=[])
)
_CANCEL = (
    update(pipeline_runs)
    .where(*_this, _r.state == RunState.QUEUED.value)
    .values(state=RunState.CANCELLED.value, cancel_requested_at=bindparam("now"), ended_at=bindparam("now"))
)
_REQUEST_CANCEL = (
    update(pipeline_runs)
    .where(*_this, _r.state == RunState.RUNNING.value, _r.cancel_requested_at.is_(None))
    .values(cancel_requested_at=bindparam("now"))
)
_is_queued = exists().where(tenant_filter(tables.run_queue), tables.run_queue.c.run_id == _r.id)
_is_stale = and_(_is_active, _r.heartbeat_at < bindparam("silent_since"))
_SELECT_STALE = select(_r.id, _r.attempts, _r.cancel_requested_at).where(
    tenant_filter(pipeline_runs), _is_stale, or_(_r.state == RunState.RUNNING.value, ~_is_queued)
)
_HAS_STALE = _SELECT_STALE.with_only_columns(_r.id).limit(1)
_END_STALE = (
    update(pipeline_runs)
    .where(*_this_attempt, _is_stale)
    .values(progress=None, ended_at=bindparam("now"))
    .values({name: bindparam(f"new_{name}") for name in ("state", "error", "error_kind")})
)
_REQUEUE_STALE = _REQUEUE.where(_is_stale)

FIELDS: Fields = {
    "id": FieldKind.GUID,
    "pipeline_id": FieldKind.GUID,
    "name": FieldKind.TEXT,
    "state": FieldKind.TEXT,
    "author": FieldKind.TEXT,
    "created_at": FieldKind.INSTANT,
    "started_at": FieldKind.INSTANT,
    "ended_at": FieldKind.INSTANT,
}
_NAME = FoldedText(_r.name, _r.name_lower, _r.name_upper)
_COLUMNS: Columns = {**{name: _r[name] for name in FIELDS}, "name": _NAME}


def insert(
    tx: CatalogTransaction, run: Run, *, role: Role, request_digest: str, worker: str, round_no: int | None
) -> Run:
    """Store a new run. Returns the run that its idempotency key identifies: this one, or the earlier one.

    A key identifies the run that is active or has succeeded with it.

    Args:
        request_digest: distinguishes requests with the same key
        worker: host and process, for display
        round_no: the round in the run queue; None: only the inserting process may execute the run

    Raises:
        AlreadyExists: another request used the key
    """
    values = {"role": role.claim, "heartbeat_at": tx.now, "request_digest": request_digest}
    values |= (
        {"worker": worker[:_MAX_WORKER_LENGTH], "attempts": 1} if round_no is None else {"worker": "", "attempts": 0}
    )
    for _ in range(_MAX_LOOKUPS):
        if tx.insert_if_absent(pipeline_runs, **_to_row(run), **values):
            if round_no is not None:
                run_queue.insert(tx, run.id, round_no)
            tx.audit("run.create", {"run_id": run.id, "pipeline_id": run.pipeline_id, "name": run.name})
            return run
        if row := tx.first(_BY_KEY, key=run.key):
            if row.request_digest != request_digest:
                raise AlreadyExists(
                    "key_reused",
                    key=run.key,
                )
            return _from_row(row)
    raise Conflict("overtaken")


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that a worker has claimed, the caller that it executes as, and the number of the attempt."""

    run: Run
    caller: Caller
    number: int


def claim(tx: CatalogTransaction, run: UUID, worker: str, *, claimed_until: datetime) -> ClaimedRun | None:
    """Claim a queued run. Returns None if it is not claimable, another worker was first, or it had too many attempts."""
    if not run_queue.lock_claimable(tx, run):
        return None
    row = tx.first(_FIND, run=run)
    assert row is not None
    if row.state == RunState.RUNNING.value:
        _expire(tx, row, tx.now)
    if not start(tx, run, worker, attempt=row.attempts + 1):
        return None
    run_queue.extend_claim(tx, run, claimed_until)
    author = Caller(tx.caller.tenant, row.created_by, row.author, ROLES[row.role])
    return ClaimedRun(find(tx, run), author, row.attempts + 1)


def start(tx: CatalogTransaction, run: UUID, worker: str, *, attempt: int = 1) -> bool:
    """Start an attempt of a queued run. Returns False if the run is not queued any more."""
    return tx.execute(_START, run=run, by=worker[:_MAX_WORKER_LENGTH], number=attempt, now=tx.now) == 1


def requeue(tx: CatalogTransaction, run: UUID, attempt: int) -> bool:
    """Return the run to the queue. Returns False if it has no queue entry, or if the attempt is not the newest."""
    if not run_queue.lock(tx, run) or not tx.execute(_REQUEUE, run=run, number=attempt):
        return False
    run_queue.requeue(tx, run)
    return True


def heartbeat(
    tx: CatalogTransaction, attempts: Collection[tuple[UUID, int]], *, claimed_until: datetime
) -> dict[tuple[UUID, int], bool]:
    """Send the heartbeats of attempts.

    Returns:
        for each attempt that is still active, whether cancellation was requested; ended attempts are left out
    """
    alive = dict[tuple[UUID, int], bool]()
    for run, attempt in sorted(attempts):
        run_queue.lock(tx, run)
        if row := tx.first(_HEARTBEAT, run=run, number=attempt, now=tx.now):
            alive[run, attempt] = row.cancel_requested_at is not None
            run_queue.extend_claim(tx, run, claimed_until)
    return alive


def update_progress(
    tx: CatalogTransaction,
    run: UUID,
    attempt: int,
    progress: Progress,
    results: Sequence[Mapping[str, Any]],
    reads: Sequence[InputVersion],
) -> None:
    """Store the progress of an attempt. Counts as a heartbeat."""
    tx.execute(
        _PROGRESS,
        run=run,
        number=attempt,
        new_progress=_as_json(progress_as_json(progress)),
        new_results=_as_json(results),
        new_reads=_as_json([asdict(read) for read in reads]),
        now=tx.now,
    )


def finish(
    tx: CatalogTransaction,
    run: UUID,
    attempt: int,
    outcome: RunOutcome,
    *,
    written: Sequence[DatasetCommit] = (),
    commit_no: int | None = None,
) -> bool:
    """End a run. Returns False if it had ended or has a newer attempt; the SQL transaction must then be rolled back."""
    run_queue.lock(tx, run)
    values = {f"new_{name}": _as_json(fact) for name, fact in outcome.facts().items()}
    values |= {"new_written": _as_json([asdict(commit) for commit in written]), "new_commit_no": commit_no}
    if not tx.execute(_FINISH, run=run, number=attempt, **values, now=tx.now):
        return False
    run_queue.remove(tx, run)
    return True


def cancel_queued(tx: CatalogTransaction, run: UUID) -> bool:
    """End a queued run as cancelled. Returns False if it is not queued."""
    run_queue.lock(tx, run)
    if not tx.execute(_CANCEL, run=run, now=tx.now):
        return False
    run_queue.remove(tx, run)
    tx.audit("run.cancel", {"run_id": run})
    return True


def request_cancel(tx: CatalogTransaction, run: UUID) -> Run:
    """Cancel a queued run, or ask a running one to stop. An ended run stays as it is."""
    if not cancel_queued(tx, run) and tx.execute(_REQUEST_CANCEL, run=run, now=tx.now):
        tx.audit("run.cancel", {"run_id": run})
    return find(tx, run)


def has_stale_runs(tx: CatalogTransaction, stale_before: datetime) -> bool:
    """Return whether an active run had no heartbeat since `stale_before`. Reads only."""
    return tx.first(_HAS_STALE, silent_since=stale_before) is not None


def expire_stale_runs(tx: CatalogTransaction, stale_before: datetime) -> int:
    """Requeue or end the runs without a heartbeat since `stale_before`. Their attempts cannot commit any more.
    Returns their number.
    """
    # Runs are locked in the order of their ids, so that transactions never deadlock.
    rows = sorted(tx.all(_SELECT_STALE, silent_since=stale_before), key=lambda row: row.id)
    return sum(_expire(tx, row, stale_before) for row in rows)


def _expire(tx: CatalogTransaction, row: Row[Any], stale_before: datetime) -> bool:
    """Requeue a run whose worker stopped, or end it after too many attempts."""
    params = {"run": row.id, "number": row.attempts, "silent_since": stale_before}
    if run_queue.lock(tx, row.id) and row.attempts < MAX_ATTEMPTS and row.cancel_requested_at is None:
        expired = tx.execute(_REQUEUE_STALE, **params) == 1
        if expired:
            run_queue.requeue(tx, row.id)
        return expired
    error = None if row.cancel_requested_at else _RUN_LOST
    outcome = {
        "new_state": (RunState.FAILED if error else RunState.CANCELLED).value,
        "new_error": error and error_response(error),
        "new_error_kind": error and error.kind,
    }
    expired = tx.execute(_END_STALE, **params, **outcome, now=tx.now) == 1
    if expired:
        run_queue.remove(tx, row.id)
    return expired


def find(tx: CatalogTransaction, run: UUID) -> Run:
    """Return a run by id."""
    if row := tx.first(_FIND, run=run):
        return _from_row(row)
    raise NotFound("run_not_found", run_id=str(run))


def search(tx: CatalogTransaction, options: QueryOptions) -> SearchPage[Run]:
    """Return a page of the tenant's runs, newest first unless another order is requested."""
    statement = _ALL.where(*odata_sql.conditions(options.filter, options.search, _COLUMNS, [_NAME]))
    keys = (
        search_statements.sort_keys(options.orderby, _COLUMNS, [_r.id]) if options.orderby else _newest_first(options)
    )
    search = search_statements.prepare_search(statement, keys, search_statements.null_positions(options))
    return search_statements.search_page(tx, search, options, _from_row)


def _newest_first(options: QueryOptions) -> tuple[SortKey, ...]:
    return search_statements.newest_first(_r.created_at, _r.id, few=_is_selective(options.filter))


def _is_selective(node: Node | None) -> bool:
    """Return whether a filter matches few runs. Active runs are few, however many have ended."""
    match node:
        case ODataAnd(parts):
            return any(map(_is_selective, parts))
        case ODataOr(parts):
            return all(map(_is_selective, parts))
        case ODataCompare(ODataComparison.EQ, ODataField("state"), ODataLiteral(state)):
            return state in _ACTIVE
        case ODataIn(ODataField("state"), items):
            return all(isinstance(item, ODataLiteral) and item.value in _ACTIVE for item in items)
    return odata_sql.is_selective(node, ["id"])


def _as_json(value: Any) -> Any:
    """Return the value as JSON that every database stores: the end of a run must not fail because of a detail of its
    error.
    """
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def _to_row(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "pipeline_id": run.pipeline_id,
        "name": run.name,
        "name_lower": run.name.lower(),
        "name_upper": run.name.upper(),
        "definition": _as_json(run.pipeline),
        "state": run.state.value,
        "idempotency_key": run.key,
        "created_at": run.created_at,
        "created_by": run.created_by,
        "author": run.author[:_MAX_AUTHOR_LENGTH],
        "started_at": run.started_at,
        "reads": [],
        "written": [],
        "results": [],
    }


def _from_row(row: Row[Any]) -> Run:
    return Run(
        id=row.id,
        pipeline_id=row.pipeline_id,
        name=row.name,
        pipeline=row.definition,
        state=RunState(row.state),
        created_at=row.created_at,
        created_by=row.created_by,
        author=row.author,
        key=row.idempotency_key,
        started_at=row.started_at,
        ended_at=row.ended_at,
        commit_no=row.commit_no,
        reads=tuple(row.reads),
        written=tuple(row.written),
        results=tuple(row.results),
        progress=row.progress,
        error=row.error,
        error_kind=row.error_kind,
        cancelling=row.cancel_requested_at is not None,
    )
