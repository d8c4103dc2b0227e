"""Store the transactions of clients, which last over many calls: their state and their write set.

A transaction is active or ended, and ends once: `commit` and `end` report whether they ended it. A transaction is
therefore marked as committed in the SQL transaction that commits its data, and its files are removed only after it is
known to be aborted. Its id is also the writer lease of its files; the lease ends with the transaction. Statements
lock the lease first and the transaction second, so that two processes never deadlock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, bindparam, func, select, update

from penstock.catalog import snapshots, writer_leases
from penstock.catalog.database import CatalogTransaction, in_chunks
from penstock.catalog.tables import transactions
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.core.dataset.transaction_state import TransactionRecord, TransactionState
from penstock.errors import Invalid, NotFound

MAX_ACTIVE_TRANSACTIONS = 1_000  # per tenant

_t = transactions.c
_record_columns = [column for column in _t if column.name not in ("tenant_id", "write_set", "created_at", "ended_at")]
_this = (tenant_filter(transactions), _t.id == bindparam("this"))
_active = _t.state == TransactionState.ACTIVE.value
_INSERT = insert_for_tenant(transactions)
_FIND = select(*_record_columns).where(*_this, _t.user_id == bindparam("user"))
_ACTIVE = select(*_record_columns).where(tenant_filter(transactions), _active)
_COUNT_ACTIVE = (
    select(func.count().label("active")).select_from(transactions).where(tenant_filter(transactions), _active)
)
_OWNERS = (
    select(_t.owner, func.min(_t.expires_at).label("first_expiry"), func.min(_t.heartbeat_at).label("oldest_heartbeat"))
    .where(tenant_filter(transactions), _active)
    .group_by(_t.owner)
)
_SELECT_STATE = select(_t.state).where(*_this)
_SELECT_WRITE_SET = select(_t.seq, _t.write_set).where(*_this)
_BEGIN_OPERATION = (
    update(transactions)
    .where(*_this, _active, _t.operation_process.is_(None))
    .values(operation_process=bindparam("process"), expires_at=bindparam("until"))
    .returning(*_record_columns)
)
_END_OPERATION = (
    update(transactions)
    .where(*_this, _active, _t.operation_process == bindparam("process"), _t.seq == bindparam("at_seq"))
    .values(operation_process=None, seq=_t.seq + 1, write_set=bindparam("new_write_set"), expires_at=bindparam("until"))
)
_these_active = (tenant_filter(transactions), _t.id.in_(bindparam("these", expanding=True)), _active)
_HEARTBEAT = update(transactions).where(*_these_active).values(heartbeat_at=bindparam("now"))
_EXTEND_EXPIRY = update(transactions).where(*_these_active).values(expires_at=bindparam("until"))
_COMMIT = (
    update(transactions)
    .where(*_this, _active, _t.operation_process.is_(None), _t.seq == bindparam("at_seq"))
    .values(state=TransactionState.COMMITTED.value, receipt=bindparam("key"), write_set=None, ended_at=bindparam("now"))
)
_END = (
    update(transactions)
    .where(*_this, _active)
    .values(state=bindparam("new_state"), operation_process=None, ended_at=bindparam("now"))
)
_END_UNCHANGED = _END.where(_t.heartbeat_at == bindparam("beaten"), _t.expires_at == bindparam("expires"))
_DELETE_WRITE_SET = update(transactions).where(*_this).values(write_set=None)


@dataclass(frozen=True, slots=True)
class OwnerSummary:
    """The active transactions of one process: the next expiry, and the oldest heartbeat."""

    owner: str
    first_expiry: datetime
    oldest_heartbeat: datetime


def create(tx: CatalogTransaction, owner: str, *, auto_commit: bool, expires_at: datetime) -> UUID:
    """Begin a transaction that reads the newest lake snapshot.

    Raises:
        Invalid: the tenant has too many open transactions
    """
    row = tx.first(_COUNT_ACTIVE)
    if row is not None and row.active >= MAX_ACTIVE_TRANSACTIONS:
        raise Invalid(
            "too_many_transactions",
            {"active": row.active, "max_active": MAX_ACTIVE_TRANSACTIONS},
            limit=MAX_ACTIVE_TRANSACTIONS,
        )
    transaction = writer_leases.begin(tx, f"transaction of {owner}")
    tx.execute(
        _INSERT,
        id=transaction,
        user_id=tx.caller.user,
        state=TransactionState.ACTIVE.value,
        commit_no=snapshots.commit_no(tx),
        auto_commit=auto_commit,
        seq=0,
        owner=owner,
        created_at=tx.now,
        heartbeat_at=tx.now,
        expires_at=expires_at,
    )
    return transaction


def find(tx: CatalogTransaction, transaction: UUID) -> TransactionRecord:
    """Return a transaction of the caller. A transaction of another user is not found."""
    if row := tx.first(_FIND, this=transaction, user=tx.caller.user):
        return _from_row(row)
    raise NotFound(
        "transaction_not_found",
        transaction_id=str(transaction),
    )


def load_state(tx: CatalogTransaction, transaction: UUID) -> TransactionState:
    """Return the state of a transaction that is known to exist, for any user of the tenant."""
    row = tx.first(_SELECT_STATE, this=transaction)
    assert row is not None
    return TransactionState(row.state)


def list_active(tx: CatalogTransaction) -> list[TransactionRecord]:
    """Return all active transactions of the tenant."""
    return [_from_row(row) for row in tx.all(_ACTIVE)]


def summarize_owners(tx: CatalogTransaction) -> list[OwnerSummary]:
    """Return the processes that own active transactions of the tenant: few, however many transactions are open."""
    return [OwnerSummary(row.owner, row.first_expiry, row.oldest_heartbeat) for row in tx.all(_OWNERS)]


def load_write_set(tx: CatalogTransaction, transaction: UUID) -> tuple[int, str | None]:
    """Return the number of finished operations and the write set."""
    row = tx.first(_SELECT_WRITE_SET, this=transaction)
    assert row is not None
    return row.seq, row.write_set


def begin_operation(
    tx: CatalogTransaction, transaction: UUID, process: str, *, expires_at: datetime
) -> TransactionRecord | None:
    """Begin an operation in a process. Returns None if another operation is running, or if the transaction or its
    lease has ended.
    """
    alive = writer_leases.heartbeat(tx, [transaction])
    row = tx.first(_BEGIN_OPERATION, this=transaction, process=process, until=expires_at) if alive else None
    return _from_row(row) if row else None


def end_operation(
    tx: CatalogTransaction, transaction: UUID, process: str, *, seq: int, write_set: str, expires_at: datetime
) -> bool:
    """Store the write set after an operation. Returns False if the transaction has ended; the operation had no
    effect.
    """
    alive = writer_leases.heartbeat(tx, [transaction]) == 1
    return (
        alive
        and tx.execute(
            _END_OPERATION, this=transaction, process=process, at_seq=seq, new_write_set=write_set, until=expires_at
        )
        == 1
    )


def heartbeat(tx: CatalogTransaction, transaction_ids: Sequence[UUID]) -> None:
    """Send the heartbeat of the process that owns the transactions."""
    writer_leases.heartbeat(tx, transaction_ids)
    for chunk in in_chunks(transaction_ids):
        tx.execute(_HEARTBEAT, these=chunk, now=tx.now)


def extend_expiry(tx: CatalogTransaction, transaction_ids: Sequence[UUID], *, expires_at: datetime) -> None:
    """Extend the expiry of transactions that are in use."""
    writer_leases.heartbeat(tx, transaction_ids)
    for chunk in in_chunks(transaction_ids):
        tx.execute(_EXTEND_EXPIRY, these=chunk, until=expires_at)


def commit(tx: CatalogTransaction, transaction: UUID, *, seq: int, key: str | None) -> bool:
    """Mark a transaction as committed, in the SQL transaction that commits its data. Returns False if that must not
    happen: the transaction has ended, or an operation is running.
    """
    writer_leases.heartbeat(tx, [transaction])
    if tx.execute(_COMMIT, this=transaction, at_seq=seq, key=key, now=tx.now) != 1:
        return False
    writer_leases.end(tx, transaction)
    return True


def end(
    tx: CatalogTransaction,
    transaction: UUID,
    state: TransactionState,
    *,
    unchanged_since: TransactionRecord | None = None,
) -> tuple[bool, str | None]:
    """End a transaction without a commit.

    Args:
        unchanged_since: end it only if there was no heartbeat and no operation since this record was read

    Returns:
        whether this call ended it, and its write set
    """
    writer_leases.heartbeat(tx, [transaction])
    statement, params = _END, {}
    if unchanged_since:
        statement, params = (
            _END_UNCHANGED,
            {"beaten": unchanged_since.heartbeat_at, "expires": unchanged_since.expires_at},
        )
    if tx.execute(statement, this=transaction, new_state=state.value, now=tx.now, **params) != 1:
        return False, None
    writer_leases.end(tx, transaction)
    _, write_set = load_write_set(tx, transaction)
    tx.execute(_DELETE_WRITE_SET, this=transaction)
    return True, write_set


def _from_row(row: Row[Any]) -> TransactionRecord:
    return TransactionRecord(
        id=row.id,
        user=row.user_id,
        state=TransactionState(row.state),
        commit_no=row.commit_no,
        auto_commit=row.auto_commit,
        seq=row.seq,
        owner=row.owner,
        operating=row.operation_process,
        heartbeat_at=row.heartbeat_at,
        expires_at=row.expires_at,
        receipt=row.receipt,
    )
