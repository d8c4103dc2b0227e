"""Remember the runs of pipelines: what was asked, how far it is, how it ended, and which of them have fallen silent.

A run is under way (queued, running) or over, and is over once: whoever ends it is told whether it was the first. That is
what lets a run end in the transaction that commits its data. One that was declared dead cannot commit any more.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, bindparam, select, update

from penstock.catalog import search as searches
from penstock.catalog.access import Tx, in_chunks, mine
from penstock.catalog.search import Cased, Columns, Page
from penstock.catalog.tables import pipeline_runs
from penstock.core.caller import Role
from penstock.core.change import Written
from penstock.core.odata import And, Compare, Comparison, Field, Fields, In, Kind, Literal, Node, Options, Or
from penstock.core.operations import envelope
from penstock.core.run import UNDER_WAY, Outcome, Progress, Read, Run, State
from penstock.errors import AlreadyExists, Conflict, NotFound, Unavailable

_TRIES = 5  # at a key whose run ended just when it was looked at
_MAX_AUTHOR, _MAX_HOLDER = 320, 200
_LOST = envelope(
    Unavailable(
        "run_lost", "the process that ran it has ended, or was silent for too long; nothing was written, run it again"
    )
)

_UNDER_WAY = [state.value for state in UNDER_WAY]

_r = pipeline_runs.c
_under_way = _r.state.in_(_UNDER_WAY)
_this = (mine(pipeline_runs), _r.id == bindparam("run"))
_ALL = select(pipeline_runs).where(mine(pipeline_runs))
_FIND = select(pipeline_runs).where(*_this)
_KEYED = _ALL.where(
    _r.idempotency_key == bindparam("key"),
    # Spelled out in the statement, which is how SQLite sees that the index of keys holds them all.
    _r.state.in_(bindparam("counting", [*_UNDER_WAY, State.SUCCEEDED.value], expanding=True, literal_execute=True)),
)
_START = (
    update(pipeline_runs)
    .where(*_this, _r.state == State.QUEUED.value)
    .values(
        state=State.RUNNING.value, started_at=bindparam("now"), heartbeat_at=bindparam("now"), holder=bindparam("by")
    )
)
_BEAT = (
    update(pipeline_runs)
    .where(mine(pipeline_runs), _r.id.in_(bindparam("these", expanding=True)), _under_way)
    .values(heartbeat_at=bindparam("now"))
    .returning(_r.id, _r.cancel_requested_at)
)
_PROGRESS = (
    update(pipeline_runs)
    .where(*_this, _r.state == State.RUNNING.value)
    .values(
        progress=bindparam("new_progress"),
        results=bindparam("new_results"),
        reads=bindparam("new_reads"),
        heartbeat_at=bindparam("now"),
    )
)
_FINISH = (
    update(pipeline_runs)
    .where(*_this, _under_way)
    .values(progress=None, ended_at=bindparam("now"))
    .values({name: bindparam(f"new_{name}") for name in ("state", "reads", "results", "error", "written", "commit_no")})
)
_CANCEL = (
    update(pipeline_runs)
    .where(*_this, _r.state == State.QUEUED.value)
    .values(state=State.CANCELLED.value, cancel_requested_at=bindparam("now"), ended_at=bindparam("now"))
)
_ASK = (
    update(pipeline_runs)
    .where(*_this, _r.state == State.RUNNING.value, _r.cancel_requested_at.is_(None))
    .values(cancel_requested_at=bindparam("now"))
)
_silent = (mine(pipeline_runs), _under_way, _r.heartbeat_at < bindparam("silent_since"))
_SILENT = select(_r.id).where(*_silent).limit(1)
_BURY = (
    update(pipeline_runs)
    .where(*_silent)
    .values(state=State.FAILED.value, progress=None, error=_LOST, ended_at=bindparam("now"))
)

FIELDS: Fields = {
    "id": Kind.GUID,
    "pipeline_id": Kind.GUID,
    "name": Kind.TEXT,
    "state": Kind.TEXT,
    "author": Kind.TEXT,
    "created_at": Kind.INSTANT,
    "started_at": Kind.INSTANT,
    "ended_at": Kind.INSTANT,
}
_NAME = Cased(_r.name, _r.name_lower, _r.name_upper)
_COLUMNS: Columns = {**{name: _r[name] for name in FIELDS}, "name": _NAME}


def insert(tx: Tx, run: Run, *, role: Role, holder: str, request: str) -> Run:
    """Remember a new run. The answer is the run that counts: this one, or the one that its key names already.

    A key names the run that is under way or has succeeded with it. `request` tells one request from another.
    """
    for _ in range(_TRIES):
        if tx.add_if_free(pipeline_runs, **_written(run), **_keeper(tx, role, holder), request=request):
            tx.audit("run.create", {"run_id": run.id, "pipeline_id": run.pipeline_id, "name": run.name})
            return run
        if row := tx.first(_KEYED, key=run.key):
            if row.request != request:
                raise AlreadyExists(
                    "key_reused",
                    f"the idempotency key {run.key!r} was used for another request; take a new one",
                    key=run.key,
                )
            return _run(row)
    raise Conflict("overtaken", "another transaction came first; try again")


def start(tx: Tx, run: UUID, holder: str) -> bool:
    """Take a run from the queue. False: it waits there no longer."""
    return tx.run(_START, run=run, by=holder[:_MAX_HOLDER], now=tx.now) == 1


def beat(tx: Tx, runs: Sequence[UUID]) -> dict[UUID, bool]:
    """Show that runs are alive. For each that is still under way: was it asked to stop? The others are over."""
    rows = (row for part in in_chunks(runs) for row in tx.all(_BEAT, these=part, now=tx.now))
    return {row.id: row.cancel_requested_at is not None for row in rows}


def show_progress(
    tx: Tx, run: UUID, progress: Progress, results: Sequence[Mapping[str, Any]], reads: Sequence[Read]
) -> None:
    """Tell how far a run is, while it runs; that it is alive, too."""
    tx.run(
        _PROGRESS,
        run=run,
        new_progress=_plain(asdict(progress)),
        new_results=_plain(results),
        new_reads=_plain([asdict(each) for each in reads]),
        now=tx.now,
    )


def finish(
    tx: Tx, run: UUID, outcome: Outcome, *, written: Sequence[Written] = (), commit_no: int | None = None
) -> bool:
    """End a run. False: it was over already, and whatever the transaction did besides must not be committed."""
    told = {f"new_{name}": _plain(fact) for name, fact in outcome.facts().items()}
    new_written = _plain([asdict(each) for each in written])
    return tx.run(_FINISH, run=run, **told, new_written=new_written, new_commit_no=commit_no, now=tx.now) == 1


def ask_to_cancel(tx: Tx, run: UUID) -> Run:
    """Cancel a run that waits, ask one that runs to stop, and leave one that is over as it is."""
    if tx.run(_CANCEL, run=run, now=tx.now) or tx.run(_ASK, run=run, now=tx.now):
        tx.audit("run.cancel", {"run_id": run})
    return find(tx, run)


def silent(tx: Tx, silent_since: datetime) -> bool:
    """Is there a run to bury? Looks only."""
    return tx.first(_SILENT, silent_since=silent_since) is not None


def bury(tx: Tx, silent_since: datetime) -> int:
    """End the runs under way that have shown no sign of life since. From here on they cannot commit."""
    return tx.run(_BURY, silent_since=silent_since, now=tx.now)


def find(tx: Tx, run: UUID) -> Run:
    if row := tx.first(_FIND, run=run):
        return _run(row)
    raise NotFound("run_not_found", "there is no such run, or none that you may see", run_id=str(run))


def search(tx: Tx, options: Options) -> Page[Run]:
    """The tenant's runs; the newest first unless another order is asked for."""
    wanted = _ALL.where(*searches.conditions(options.filter, options.search, _COLUMNS, [_NAME]))
    by = searches.order(options.orderby, _COLUMNS, [_r.id]) if options.orderby else _newest_first(options)
    return searches.page(tx, wanted.order_by(*by), options, _run)


def _newest_first(options: Options) -> list[Any]:
    return searches.newest_first(_r.created_at, _r.id, few=_finds_few(options.filter))


def _finds_few(node: Node | None) -> bool:
    """Runs under way are few, however many are over."""
    match node:
        case And(parts):
            return any(map(_finds_few, parts))
        case Or(parts):
            return all(map(_finds_few, parts))
        case Compare(Comparison.EQ, Field("state"), Literal(state)):
            return state in _UNDER_WAY
        case In(Field("state"), items):
            return all(item.value in _UNDER_WAY for item in items)
    return searches.finds_few(node, ["id"])


def _plain(value: Any) -> Any:
    """What every database keeps as JSON: the end of a run must not fail over a detail of its error."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def _keeper(tx: Tx, role: Role, holder: str) -> dict[str, Any]:
    return {"role": role.wire, "holder": holder[:_MAX_HOLDER], "heartbeat_at": tx.now}


def _written(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "pipeline_id": run.pipeline_id,
        "name": run.name,
        "name_lower": run.name.lower(),
        "name_upper": run.name.upper(),
        "definition": _plain(run.pipeline),
        "state": run.state.value,
        "idempotency_key": run.key,
        "created_at": run.created_at,
        "created_by": run.created_by,
        "author": run.author[:_MAX_AUTHOR],
        "started_at": run.started_at,
        "reads": [],
        "written": [],
        "results": [],
    }


def _run(row: Row[Any]) -> Run:
    return Run(
        id=row.id,
        pipeline_id=row.pipeline_id,
        name=row.name,
        pipeline=row.definition,
        state=State(row.state),
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
        cancelling=row.cancel_requested_at is not None,
    )
