"""Remember the transactions of clients: how each stands, and what it has written so far.

A transaction is active or over, and is over once: whoever ends it is told whether it was the first. That is what lets
it become committed in the very transaction of its data, and lets its files be removed once it is known to be aborted.
Its id is also the lease that its files are written under, by whichever process: when it is over, so is the lease.
Statements touch the lease first and the transaction second, so that two processes never wait for each other.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, bindparam, func, select, update

from penstock.catalog import snapshots as history
from penstock.catalog import writer_leases as leases
from penstock.catalog.database import Tx, add, in_chunks, mine
from penstock.catalog.tables import transactions
from penstock.core.dataset.transaction_state import Standing, State
from penstock.errors import Invalid, NotFound

MAX_ACTIVE = 1_000  # of one tenant

_t = transactions.c
_standing = [column for column in _t if column.name not in ("tenant_id", "work", "created_at", "ended_at")]
_this = (mine(transactions), _t.id == bindparam("this"))
_active = _t.state == State.ACTIVE.value
_ADD = add(transactions)
_FIND = select(*_standing).where(*_this, _t.user_id == bindparam("user"))
_ACTIVE = select(*_standing).where(mine(transactions), _active)
_COUNT = select(func.count().label("active")).select_from(transactions).where(mine(transactions), _active)
_STATE = select(_t.state).where(*_this)
_WORK = select(_t.seq, _t.work).where(*_this)
_ENTER = (
    update(transactions)
    .where(*_this, _active, _t.operating.is_(None))
    .values(operating=bindparam("process"), expires_at=bindparam("until"))
    .returning(*_standing)
)
_LEAVE = (
    update(transactions)
    .where(*_this, _active, _t.operating == bindparam("process"), _t.seq == bindparam("at_seq"))
    .values(operating=None, seq=_t.seq + 1, work=bindparam("new_work"), expires_at=bindparam("until"))
)
_these = (mine(transactions), _t.id.in_(bindparam("these", expanding=True)), _active)
_BEAT = update(transactions).where(*_these).values(beaten_at=bindparam("now"))
_TOUCH = update(transactions).where(*_these).values(expires_at=bindparam("until"))
_COMMIT = (
    update(transactions)
    .where(*_this, _active, _t.operating.is_(None), _t.seq == bindparam("at_seq"))
    .values(state=State.COMMITTED.value, receipt=bindparam("key"), work=None, ended_at=bindparam("now"))
)
_END = (
    update(transactions)
    .where(*_this, _active)
    .values(state=bindparam("new_state"), operating=None, ended_at=bindparam("now"))
)
_END_JUDGED = _END.where(_t.beaten_at == bindparam("beaten"), _t.expires_at == bindparam("expires"))
_FORGET_WORK = update(transactions).where(*_this).values(work=None)


def create(tx: Tx, owner: str, *, auto_commit: bool, until: datetime) -> UUID:
    """Begin one that reads what is committed by now."""
    found = tx.first(_COUNT)
    if found is not None and found.active >= MAX_ACTIVE:
        raise Invalid(
            "too_many_transactions",
            f"{found.active:,} transactions are open, and there may be {MAX_ACTIVE:,}; commit or roll back some of them",
            limit=MAX_ACTIVE,
        )
    transaction = leases.begin(tx, f"transaction of {owner}")
    tx.run(
        _ADD,
        id=transaction,
        user_id=tx.caller.user,
        state=State.ACTIVE.value,
        commit_no=history.commit_no(tx),
        auto_commit=auto_commit,
        seq=0,
        owner=owner,
        created_at=tx.now,
        beaten_at=tx.now,
        expires_at=until,
    )
    return transaction


def find(tx: Tx, transaction: UUID) -> Standing:
    """One of the caller's own; anybody else's is as unknown as one that never was."""
    if row := tx.first(_FIND, this=transaction, user=tx.caller.user):
        return _as_standing(row)
    raise NotFound(
        "transaction_not_found",
        "there is no such transaction, or none that you may see",
        transaction_id=str(transaction),
    )


def state(tx: Tx, transaction: UUID) -> State:
    """How one stands that is known to be there, whoever asks."""
    row = tx.first(_STATE, this=transaction)
    assert row is not None
    return State(row.state)


def active(tx: Tx) -> list[Standing]:
    """All of the tenant's that are not over."""
    return [_as_standing(row) for row in tx.all(_ACTIVE)]


def work(tx: Tx, transaction: UUID) -> tuple[int, str | None]:
    """What it has written so far, and after how many operations."""
    row = tx.first(_WORK, this=transaction)
    assert row is not None
    return row.seq, row.work


def enter(tx: Tx, transaction: UUID, process: str, *, until: datetime) -> Standing | None:
    """Begin an operation in this process. None: another is under way, or the transaction or its lease is over."""
    alive = leases.beat(tx, [transaction])
    row = tx.first(_ENTER, this=transaction, process=process, until=until) if alive else None
    return _as_standing(row) if row else None


def leave(tx: Tx, transaction: UUID, process: str, *, seq: int, work: str, until: datetime) -> bool:
    """Keep what an operation has done. False: the transaction is over, and it did nothing."""
    alive = leases.beat(tx, [transaction]) == 1
    return alive and tx.run(_LEAVE, this=transaction, process=process, at_seq=seq, new_work=work, until=until) == 1


def beat(tx: Tx, these: Sequence[UUID]) -> None:
    """Show that their owner is alive."""
    leases.beat(tx, these)
    for part in in_chunks(these):
        tx.run(_BEAT, these=part, now=tx.now)


def touch(tx: Tx, these: Sequence[UUID], *, until: datetime) -> None:
    """Put off when they expire: they are in use."""
    leases.beat(tx, these)
    for part in in_chunks(these):
        tx.run(_TOUCH, these=part, until=until)


def commit(tx: Tx, transaction: UUID, *, seq: int, key: str | None) -> bool:
    """End it as committed, in the transaction that commits its data. False: that must not happen any more, or not yet."""
    leases.beat(tx, [transaction])
    if tx.run(_COMMIT, this=transaction, at_seq=seq, key=key, now=tx.now) != 1:
        return False
    leases.end(tx, transaction)
    return True


def end(tx: Tx, transaction: UUID, state: State, *, judged: Standing | None = None) -> tuple[bool, str | None]:
    """End it without a commit. The answer: was it this that ended it, and what had it written?

    `judged`: only if nobody has shown a sign of life since.
    """
    leases.beat(tx, [transaction])
    statement, seen = _END, {}
    if judged:
        statement, seen = _END_JUDGED, {"beaten": judged.beaten_at, "expires": judged.expires_at}
    if tx.run(statement, this=transaction, new_state=state.value, now=tx.now, **seen) != 1:
        return False, None
    leases.end(tx, transaction)
    _, left = work(tx, transaction)
    tx.run(_FORGET_WORK, this=transaction)
    return True, left


def _as_standing(row: Row[Any]) -> Standing:
    return Standing(
        id=row.id,
        user=row.user_id,
        state=State(row.state),
        commit_no=row.commit_no,
        auto_commit=row.auto_commit,
        seq=row.seq,
        owner=row.owner,
        operating=row.operating,
        beaten_at=row.beaten_at,
        expires_at=row.expires_at,
        receipt=row.receipt,
    )
