"""Which writers are alive. A file that no version holds may go only when its writer's lease has ended."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from sqlalchemy import bindparam, or_, select, update

from penstock.catalog.database import Tx, add, in_chunks, mine
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
_BEAT_ALL = (
    update(leases)
    .where(mine(leases), _l.lease_id.in_(bindparam("these", expanding=True)), _l.ended_at.is_(None))
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
_THESE = select(_l.lease_id).where(mine(leases), _l.lease_id.in_(bindparam("these", expanding=True)))
_ENDED = _THESE.where(_l.ended_at.is_not(None))
_WOULD_END = _THESE.where(or_(_l.ended_at.is_not(None), _l.heartbeat_at < bindparam("silent_since")))


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


def beat(tx: Tx, these: Sequence[UUID]) -> int:
    """Show a sign of life for those that have not ended; the answer is how many that are."""
    return sum(tx.run(_BEAT_ALL, these=part, now=tx.now) for part in in_chunks(these))


def end(tx: Tx, lease: UUID) -> None:
    tx.run(_END, lease=lease, now=tx.now)


def fence(tx: Tx, silent_since: datetime) -> int:
    """End the leases of silent writers. From here on they cannot commit."""
    return tx.run(_FENCE, silent_since=silent_since, now=tx.now)


def ended(tx: Tx, these: Sequence[UUID], *, silent_since: datetime | None = None) -> set[UUID]:
    """Those leases that have ended, and so can commit no more; with a moment, those too that `fence` would end.

    A lease that this catalog has never heard of is not among them: its files are another catalog's.
    """
    statement = _ENDED if silent_since is None else _WOULD_END
    given = {} if silent_since is None else {"silent_since": silent_since}
    return {row.lease_id for part in in_chunks(these) for row in tx.all(statement, these=part, **given)}


def unknown(tx: Tx, these: Sequence[UUID]) -> set[UUID]:
    """Those leases that this catalog never gave."""
    return set(these) - {row.lease_id for part in in_chunks(these) for row in tx.all(_THESE, these=part)}
