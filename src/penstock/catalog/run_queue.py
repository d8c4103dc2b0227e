"""Whose turn it is: the queue of runs that any process may take, in which tenants take turns.

A turn is there from the moment its run is asked for until the run is over. While somebody has the run, the turn is not due;
it is again when that one falls silent. Whoever changes a run that has a turn locks the turn first: nobody waits in a circle.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import bindparam, delete, func, or_, select, update

from penstock.catalog.database import Tx, add, mine
from penstock.catalog.tables import run_turns

_t = run_turns.c
_due = or_(_t.due_at.is_(None), _t.due_at <= bindparam("now"))
_own = _t.tenant_id == bindparam("whose")
_this = (mine(run_turns), _t.run_id == bindparam("run"))
_NEXT = select(_t.tenant_id, _t.run_id).where(_due).order_by(_t.turn, _t.queued_at).limit(bindparam("most"))
_QUEUE = select(
    func.count().label("waiting"),
    func.count().filter(_own).label("own"),
    func.min(_t.turn).label("first"),
    func.max(_t.turn).filter(_own).label("last_own"),
).where(_due)
_ADD = add(run_turns)
_HOLD = select(_t.run_id).where(*_this).with_for_update()
_HOLD_DUE = select(_t.run_id).where(*_this, _due).with_for_update(skip_locked=True)
_SET_DUE = update(run_turns).where(*_this).values(due_at=bindparam("when"))
_REMOVE = delete(run_turns).where(*_this)


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits, of all tenants and of one."""

    waiting: int
    own: int
    next_turn: int  # of that one, if it asks for a run now


# -- over all tenants: `Database.turns` -------------------------------------------------------------------------------


def queue(tx: Tx, whose: UUID | None = None) -> Queue:
    """How long the queue is, and where a run would come that is asked for now.

    After the tenant's own ones, so that tenants alternate; and not before the first of all, so that nobody who keeps
    asking can keep the others waiting.
    """
    row = tx.first(_QUEUE, whose=whose, now=tx.now)
    assert row is not None
    after_own = 0 if row.last_own is None else row.last_own + 1
    return Queue(row.waiting, row.own, max(row.first or 0, after_own))


def due(tx: Tx, most: int) -> list[tuple[UUID, UUID]]:
    """The next runs, each with its tenant."""
    return [(row.tenant_id, row.run_id) for row in tx.all(_NEXT, most=most, now=tx.now)]


# -- of one tenant ----------------------------------------------------------------------------------------------------


def insert(tx: Tx, run: UUID, turn: int) -> None:
    tx.run(_ADD, run_id=run, turn=turn, queued_at=tx.now, due_at=None)


def hold(tx: Tx, run: UUID) -> bool:
    """Lock a turn until the transaction ends, whoever has it. False: the run has none."""
    return tx.first(_HOLD, run=run) is not None


def hold_due(tx: Tx, run: UUID) -> bool:
    """Lock a turn that is due. False: it is not, or somebody else is just taking it; nobody is waited for."""
    return tx.first(_HOLD_DUE, run=run, now=tx.now) is not None


def keep(tx: Tx, run: UUID, until: datetime) -> None:
    """Somebody has the run; unless more is heard, it is due again then."""
    tx.run(_SET_DUE, run=run, when=until)


def put_back(tx: Tx, run: UUID) -> None:
    """Nobody has the run. It is back at its old place."""
    tx.run(_SET_DUE, run=run, when=None)


def remove(tx: Tx, run: UUID) -> None:
    tx.run(_REMOVE, run=run)
