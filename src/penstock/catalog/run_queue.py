"""Queue runs for workers, round-robin by tenant.

A run has a queue entry from the request until it ends. A worker that claims the run sets `claimed_until` and extends
it with its heartbeats; the entry becomes claimable again when the worker stops. A transaction that changes a queued
run locks its queue entry first, so that transactions never deadlock.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import bindparam, delete, func, or_, select, update

from penstock.catalog import tables
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter

_queue = tables.run_queue
_q = _queue.c
_is_claimable = or_(_q.claimed_until.is_(None), _q.claimed_until <= bindparam("now"))
_is_own = _q.tenant_id == bindparam("whose")
_this = (tenant_filter(_queue), _q.run_id == bindparam("run"))
_SELECT_NEXT = (
    select(_q.tenant_id, _q.run_id).where(_is_claimable).order_by(_q.round_no, _q.queued_at).limit(bindparam("most"))
)
_COUNT = select(
    func.count().label("waiting"),
    func.count().filter(_is_own).label("own"),
    func.min(_q.round_no).label("first"),
    func.max(_q.round_no).filter(_is_own).label("last_own"),
).where(_is_claimable)
_INSERT = insert_for_tenant(_queue)
_LOCK = select(_q.run_id).where(*_this).with_for_update()
_LOCK_CLAIMABLE = select(_q.run_id).where(*_this, _is_claimable).with_for_update(skip_locked=True)
_SET_CLAIMED_UNTIL = update(_queue).where(*_this).values(claimed_until=bindparam("when"))
_DELETE = delete(_queue).where(*_this)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Number of waiting runs, of all tenants and of one, and the round of the tenant's next run."""

    waiting: int
    own: int
    next_round: int


# -- over all tenants: `Database.read_run_queue` -----------------------------------------------------------------------


def load_status(tx: CatalogTransaction, whose: UUID | None = None) -> QueueStatus:
    """Return the length of the queue and the round of a new run of a tenant.

    The round follows the tenant's last waiting run, so that tenants alternate, and is not below the first round in
    the queue, so that a tenant with many requests cannot delay the others.
    """
    row = tx.first(_COUNT, whose=whose, now=tx.now)
    assert row is not None
    after_own = 0 if row.last_own is None else row.last_own + 1
    return QueueStatus(row.waiting, row.own, max(row.first or 0, after_own))


def next_entries(tx: CatalogTransaction, limit: int) -> list[tuple[UUID, UUID]]:
    """Return tenant and run of the next claimable entries."""
    return [(row.tenant_id, row.run_id) for row in tx.all(_SELECT_NEXT, most=limit, now=tx.now)]


# -- of one tenant ----------------------------------------------------------------------------------------------------


def insert(tx: CatalogTransaction, run: UUID, round_no: int) -> None:
    """Add a run to the queue."""
    tx.execute(_INSERT, run_id=run, round_no=round_no, queued_at=tx.now, claimed_until=None)


def lock(tx: CatalogTransaction, run: UUID) -> bool:
    """Lock the queue entry of a run until the transaction ends. Returns False if the run has none."""
    return tx.first(_LOCK, run=run) is not None


def lock_claimable(tx: CatalogTransaction, run: UUID) -> bool:
    """Lock the queue entry of a run if it is claimable. Returns False if it is not, or if another transaction has
    locked it; never waits.
    """
    return tx.first(_LOCK_CLAIMABLE, run=run, now=tx.now) is not None


def extend_claim(tx: CatalogTransaction, run: UUID, claimed_until: datetime) -> None:
    """Mark the run as claimed. Without a heartbeat it is claimable again at `claimed_until`."""
    tx.execute(_SET_CLAIMED_UNTIL, run=run, when=claimed_until)


def requeue(tx: CatalogTransaction, run: UUID) -> None:
    """Make the run claimable again, at its old position."""
    tx.execute(_SET_CLAIMED_UNTIL, run=run, when=None)


def remove(tx: CatalogTransaction, run: UUID) -> None:
    """Remove a run from the queue."""
    tx.execute(_DELETE, run=run)
