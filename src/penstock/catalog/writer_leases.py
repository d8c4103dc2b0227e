"""Register writers. A file that no version contains may be deleted only after its writer's lease has ended."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from sqlalchemy import bindparam, or_, select, update

from penstock.catalog.database import CatalogTransaction, in_chunks
from penstock.catalog.tables import leases
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.errors import Conflict

LEASE_TIMEOUT = timedelta(hours=1)  # a lease without a heartbeat for this time may be ended

_l = leases.c
_INSERT = insert_for_tenant(leases)
_HEARTBEAT = (
    update(leases)
    .where(tenant_filter(leases), _l.lease_id == bindparam("lease"), _l.ended_at.is_(None))
    .values(heartbeat_at=bindparam("now"))
)
_HEARTBEAT_ALL = (
    update(leases)
    .where(tenant_filter(leases), _l.lease_id.in_(bindparam("these", expanding=True)), _l.ended_at.is_(None))
    .values(heartbeat_at=bindparam("now"))
)
_END = (
    update(leases)
    .where(tenant_filter(leases), _l.lease_id == bindparam("lease"), _l.ended_at.is_(None))
    .values(ended_at=bindparam("now"))
)
_END_STALE = (
    update(leases)
    .where(tenant_filter(leases), _l.ended_at.is_(None), _l.heartbeat_at < bindparam("silent_since"))
    .values(ended_at=bindparam("now"))
)
_SELECT_LIVE_HOLDERS = select(_l.lease_id, _l.heartbeat_at).where(
    tenant_filter(leases), _l.ended_at.is_(None), _l.holder.startswith(bindparam("role"), autoescape=False)
)
_SELECT = select(_l.lease_id).where(tenant_filter(leases), _l.lease_id.in_(bindparam("these", expanding=True)))
_SELECT_ENDED = _SELECT.where(_l.ended_at.is_not(None))
_SELECT_ENDED_OR_STALE = _SELECT.where(or_(_l.ended_at.is_not(None), _l.heartbeat_at < bindparam("silent_since")))


def begin(tx: CatalogTransaction, holder: str) -> UUID:
    """Register a writer and return its lease id."""
    lease = uuid4()
    tx.execute(_INSERT, lease_id=lease, holder=holder[:200], started_at=tx.now, heartbeat_at=tx.now)
    return lease


def claim(tx: CatalogTransaction, role: str, holder: str, stale_before: datetime) -> UUID | None:
    """Register the only writer of the tenant that has a role, and return its lease id.

    The transaction must have locked the tenant (`commit_numbers.take_commit_no`). A stale lease of the role is ended, so
    that its holder cannot commit any more.

    Args:
        role: what the lease is for
        holder: host and process
        stale_before: time of the last heartbeat before which a lease of the role is stale

    Returns:
        None if another writer has the role
    """
    live = tx.all(_SELECT_LIVE_HOLDERS, role=f"{role}: ")
    if any(row.heartbeat_at >= stale_before for row in live):
        return None
    for row in live:
        end(tx, row.lease_id)
    return begin(tx, f"{role}: {holder}")


def assert_alive(tx: CatalogTransaction, lease: UUID) -> None:
    """Send a heartbeat inside the transaction that depends on the lease. A transaction that ends the lease waits for
    it.

    Raises:
        Conflict: the lease has ended
    """
    if tx.execute(_HEARTBEAT, lease=lease, now=tx.now) != 1:
        raise Conflict(
            "lease_ended",
            {"lease_timeout": LEASE_TIMEOUT},
        )


def heartbeat(tx: CatalogTransaction, lease_ids: Sequence[UUID]) -> int:
    """Send a heartbeat for those leases that have not ended. Returns their number."""
    return sum(tx.execute(_HEARTBEAT_ALL, these=chunk, now=tx.now) for chunk in in_chunks(lease_ids))


def end(tx: CatalogTransaction, lease: UUID) -> None:
    """End a lease."""
    tx.execute(_END, lease=lease, now=tx.now)


def expire_stale(tx: CatalogTransaction, stale_before: datetime) -> int:
    """End the leases without a heartbeat since `stale_before`. Their writers cannot commit any more. Returns their
    number.
    """
    return tx.execute(_END_STALE, silent_since=stale_before, now=tx.now)


def find_ended(tx: CatalogTransaction, lease_ids: Sequence[UUID], *, stale_before: datetime | None = None) -> set[UUID]:
    """Return the leases that have ended; with `stale_before` also those that `expire_stale` would end.

    Leases that this catalog does not know are left out: their files belong to another catalog.
    """
    statement = _SELECT_ENDED if stale_before is None else _SELECT_ENDED_OR_STALE
    params = {} if stale_before is None else {"silent_since": stale_before}
    return {row.lease_id for chunk in in_chunks(lease_ids) for row in tx.all(statement, these=chunk, **params)}


def find_unknown(tx: CatalogTransaction, lease_ids: Sequence[UUID]) -> set[UUID]:
    """Return the leases that this catalog never granted."""
    return set(lease_ids) - {row.lease_id for chunk in in_chunks(lease_ids) for row in tx.all(_SELECT, these=chunk)}
