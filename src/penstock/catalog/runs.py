"""Remember the runs of pipelines: what was asked, who carries it out, how far it is, how it ended.

A run is under way (queued, running) or over, and is over once: whoever ends it is told whether it was the first. That is
what lets a run end in the transaction that commits its data. A run that has a turn (`catalog.turns`) may be taken by any
process, and again by another when that one falls silent. Each try has a number, and only the last can end the run.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, and_, bindparam, exists, or_, select, update

from penstock.catalog import odata_sql as searches
from penstock.catalog import run_queue as turns
from penstock.catalog.database import Tx, mine
from penstock.catalog.odata_sql import Cased, Columns, Page
from penstock.catalog.tables import pipeline_runs, run_turns
from penstock.core.caller import ROLES, Caller, Role
from penstock.core.dataset.changes import Written
from penstock.core.odata import And, Compare, Comparison, Field, Fields, In, Kind, Literal, Node, Options, Or
from penstock.core.pipeline.operations import envelope
from penstock.core.pipeline.run import UNDER_WAY, Outcome, Progress, Read, Run, State
from penstock.errors import AlreadyExists, Conflict, NotFound, Unavailable

TRIES = 3  # at a run whose process falls silent each time
_LOOKS = 5  # at a key whose run ended just when it was looked at
_MAX_AUTHOR, _MAX_HOLDER = 320, 200
_LOST = Unavailable(
    "run_lost", "the process that ran it has ended, or was silent for too long; nothing was written, run it again"
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
        state=State.RUNNING.value,
        started_at=bindparam("now"),
        heartbeat_at=bindparam("now"),
        holder=bindparam("by"),
        tries=bindparam("number"),
    )
)
_this_try = (*_this, _r.tries == bindparam("number"))
_BEAT = (
    update(pipeline_runs)
    .where(*_this_try, _under_way)
    .values(heartbeat_at=bindparam("now"))
    .returning(_r.cancel_requested_at)
)
_PROGRESS = (
    update(pipeline_runs)
    .where(*_this_try, _r.state == State.RUNNING.value)
    .values(
        progress=bindparam("new_progress"),
        results=bindparam("new_results"),
        reads=bindparam("new_reads"),
        heartbeat_at=bindparam("now"),
    )
)
_TOLD = ("state", "reads", "results", "error", "error_kind", "written", "commit_no")
_FINISH = (
    update(pipeline_runs)
    .where(*_this_try, _r.state == State.RUNNING.value)
    .values(progress=None, ended_at=bindparam("now"))
    .values({name: bindparam(f"new_{name}") for name in _TOLD})
)
_GIVE_BACK = (
    update(pipeline_runs)
    .where(*_this_try, _r.state == State.RUNNING.value)
    .values(state=State.QUEUED.value, started_at=None, holder="", progress=None, reads=[], results=[])
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
_has_turn = exists().where(mine(run_turns), run_turns.c.run_id == _r.id)
_is_silent = and_(_under_way, _r.heartbeat_at < bindparam("silent_since"))
_SILENT_ONES = select(_r.id, _r.tries, _r.cancel_requested_at).where(
    mine(pipeline_runs), _is_silent, or_(_r.state == State.RUNNING.value, ~_has_turn)
)
_SILENT = _SILENT_ONES.with_only_columns(_r.id).limit(1)
_BURY = (
    update(pipeline_runs)
    .where(*_this_try, _is_silent)
    .values(progress=None, ended_at=bindparam("now"))
    .values({name: bindparam(f"new_{name}") for name in ("state", "error", "error_kind")})
)
_REVIVE = _GIVE_BACK.where(_is_silent)

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


def insert(tx: Tx, run: Run, *, role: Role, request: str, holder: str, turn: int | None) -> Run:
    """Remember a new run. The answer is the run that counts: this one, or the one that its key names already.

    A key names the run that is under way or has succeeded with it. `request` tells one request from another. Without a
    turn the run is the holder's alone.
    """
    keeper = {"role": role.wire, "heartbeat_at": tx.now, "request": request}
    keeper |= {"holder": holder[:_MAX_HOLDER], "tries": 1} if turn is None else {"holder": "", "tries": 0}
    for _ in range(_LOOKS):
        if tx.add_if_free(pipeline_runs, **_written(run), **keeper):
            if turn is not None:
                turns.insert(tx, run.id, turn)
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


@dataclass(frozen=True, slots=True)
class Taken:
    """A run that was taken from the queue, and in whose name it is carried out."""

    run: Run
    caller: Caller
    number: int  # of the try


def take(tx: Tx, run: UUID, holder: str, *, until: datetime) -> Taken | None:
    """Take a run whose turn it is. None: it is not, or somebody else was first, or it was tried often enough."""
    if not turns.hold_due(tx, run):
        return None
    row = tx.first(_FIND, run=run)
    assert row is not None
    if row.state == State.RUNNING.value:
        _let_go(tx, row, tx.now)
    if not start(tx, run, holder, number=row.tries + 1):
        return None
    turns.keep(tx, run, until)
    who = Caller(tx.caller.tenant, row.created_by, row.author, ROLES[row.role])
    return Taken(find(tx, run), who, row.tries + 1)


def start(tx: Tx, run: UUID, holder: str, *, number: int = 1) -> bool:
    """Begin a run, for the first time or again. False: it waits no longer."""
    return tx.run(_START, run=run, by=holder[:_MAX_HOLDER], number=number, now=tx.now) == 1


def give_back(tx: Tx, run: UUID, number: int) -> bool:
    """Let another process carry the run out. False: nobody but this one may, or the run is not its own any more."""
    if not turns.hold(tx, run) or not tx.run(_GIVE_BACK, run=run, number=number):
        return False
    turns.put_back(tx, run)
    return True


def beat(tx: Tx, tries: Collection[tuple[UUID, int]], *, until: datetime) -> dict[tuple[UUID, int], bool]:
    """Show that tries are alive. For each that is still under way: was it asked to stop? The others are over.

    A run that has a turn is due then, unless more is heard.
    """
    alive = dict[tuple[UUID, int], bool]()
    for run, number in sorted(tries):
        turns.hold(tx, run)
        if row := tx.first(_BEAT, run=run, number=number, now=tx.now):
            alive[run, number] = row.cancel_requested_at is not None
            turns.keep(tx, run, until)
    return alive


def show_progress(
    tx: Tx, run: UUID, number: int, progress: Progress, results: Sequence[Mapping[str, Any]], reads: Sequence[Read]
) -> None:
    """Tell how far a run is, while it runs; that it is alive, too."""
    tx.run(
        _PROGRESS,
        run=run,
        number=number,
        new_progress=_plain(asdict(progress)),
        new_results=_plain(results),
        new_reads=_plain([asdict(each) for each in reads]),
        now=tx.now,
    )


def finish(
    tx: Tx, run: UUID, number: int, outcome: Outcome, *, written: Sequence[Written] = (), commit_no: int | None = None
) -> bool:
    """End a run. False: it was over, or given to another try; what the transaction did besides must not be committed."""
    turns.hold(tx, run)
    told = {f"new_{name}": _plain(fact) for name, fact in outcome.facts().items()}
    told |= {"new_written": _plain([asdict(each) for each in written]), "new_commit_no": commit_no}
    if not tx.run(_FINISH, run=run, number=number, **told, now=tx.now):
        return False
    turns.remove(tx, run)
    return True


def cancel_waiting(tx: Tx, run: UUID) -> bool:
    """End a run that waits. False: it does not, or not any more."""
    turns.hold(tx, run)
    if not tx.run(_CANCEL, run=run, now=tx.now):
        return False
    turns.remove(tx, run)
    tx.audit("run.cancel", {"run_id": run})
    return True


def ask_to_cancel(tx: Tx, run: UUID) -> Run:
    """Cancel a run that waits, ask one that runs to stop, and leave one that is over as it is."""
    if not cancel_waiting(tx, run) and tx.run(_ASK, run=run, now=tx.now):
        tx.audit("run.cancel", {"run_id": run})
    return find(tx, run)


def silent(tx: Tx, silent_since: datetime) -> bool:
    """Is there a run to let go of? Looks only."""
    return tx.first(_SILENT, silent_since=silent_since) is not None


def bury(tx: Tx, silent_since: datetime) -> int:
    """Let go of the runs that have shown no sign of life since. From here on they cannot commit."""
    # Whoever locks several locks them in the order of their ids.
    found = sorted(tx.all(_SILENT_ONES, silent_since=silent_since), key=lambda row: row.id)
    return sum(_let_go(tx, row, silent_since) for row in found)


def _let_go(tx: Tx, row: Row[Any], silent_since: datetime) -> bool:
    """Take a run away from the process that fell silent: back into the queue, or to its end."""
    given = {"run": row.id, "number": row.tries, "silent_since": silent_since}
    if turns.hold(tx, row.id) and row.tries < TRIES and row.cancel_requested_at is None:
        gone = tx.run(_REVIVE, **given) == 1
        if gone:
            turns.put_back(tx, row.id)
        return gone
    lost = None if row.cancel_requested_at else _LOST
    told = {
        "new_state": (State.FAILED if lost else State.CANCELLED).value,
        "new_error": lost and envelope(lost),
        "new_error_kind": lost and lost.kind,
    }
    gone = tx.run(_BURY, **given, **told, now=tx.now) == 1
    if gone:
        turns.remove(tx, row.id)
    return gone


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
        error_kind=row.error_kind,
        cancelling=row.cancel_requested_at is not None,
    )
