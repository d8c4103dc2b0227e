"""Which writers are alive. A file that no version holds may go only when its writer's lease has ended."""

from datetime import datetime, timedelta
from uuid import UUID, uuid4

from sqlalchemy import bindparam, select, update

from penstock.catalog.access import Tx, add, mine
from penstock.catalog.tables import leases
from penstock.errors import Conflict

TIME_TO_LIVE = timedelta(hours=1)  # a writer that was silent for so long may be declared dead

_l = leases.c
_ADD = add(leases)
_BEAT = (
    update(leases)
    .where(mine(leases), _l.lease_id == bindparam("lease"), _l.ended_at.is_(None))
    .values(heartbeat_at=bindparam("now"))
)
_END = (
    update(leases)
    .where(mine(leases), _l.lease_id == bindparam("lease"), _l.ended_at.is_(None))
    .values(ended_at=bindparam("now"))
)
_FENCE = (
    update(leases)
    .where(mine(leases), _l.ended_at.is_(None), _l.heartbeat_at < bindparam("silent_since"))
    .values(ended_at=bindparam("now"))
)
_LIVE = select(_l.lease_id).where(mine(leases), _l.ended_at.is_(None), _l.heartbeat_at >= bindparam("silent_since"))


def begin(tx: Tx, holder: str) -> UUID:
    lease = uuid4()
    tx.run(_ADD, lease_id=lease, holder=holder[:200], started_at=tx.now, heartbeat_at=tx.now)
    return lease


def assert_alive(tx: Tx, lease: UUID) -> None:
    """Show a sign of life, inside the transaction that depends on it: whoever ends the lease waits for that."""
    if tx.run(_BEAT, lease=lease, now=tx.now) != 1:
        raise Conflict(
            "lease_ended",
            f"this writer was silent for more than {TIME_TO_LIVE} and was declared dead; start the write again",
        )


def end(tx: Tx, lease: UUID) -> None:
    tx.run(_END, lease=lease, now=tx.now)


def fence(tx: Tx, silent_since: datetime) -> int:
    """End the leases of silent writers. From here on they cannot commit."""
    return tx.run(_FENCE, silent_since=silent_since, now=tx.now)


def live(tx: Tx, silent_since: datetime) -> frozenset[UUID]:
    """Leases of writers that may still commit."""
    return frozenset(row.lease_id for row in tx.all(_LIVE, silent_since=silent_since))
