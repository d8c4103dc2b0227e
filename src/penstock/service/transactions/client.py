"""Transactions of remote clients over several calls: one snapshot to read, and writes that become visible together.

The catalog stores the state of each transaction, so that any process can continue it. Two rules make this safe:
a transaction ends once, in one SQL transaction, which for a commit is the one that commits its data; and its files are
removed only after it has ended without a commit, because no process can commit them from then on.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from penstock.catalog import client_transactions, receipts
from penstock.catalog.database import CatalogTransaction
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import GENERATED_KEY_PREFIX, Change, Receipt, mark_replayed
from penstock.core.dataset.transaction_state import TransactionRecord, TransactionState
from penstock.core.names import DatasetName
from penstock.errors import CommitStateUnknown, Conflict, Forbidden, Invalid, PenstockError, Unavailable, Unsupported
from penstock.service import process_identity
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import read_only_error
from penstock.service.transactions.transaction_commit import commit_changes
from penstock.service.transactions.write_set import WriteSet, staged_paths
from penstock.service.workspace import Workspace

__all__ = ["ClientTransactions", "TransactionOperation", "TransactionState"]

TIME_TO_LIVE = timedelta(seconds=300)
_HEARTBEAT_AFTER = process_identity.STALE_AFTER / 3
_RETRYABLE_REASONS = (
    "commit_lost",
    "overtaken",
    "dataset_locked",
    "transaction_busy",
)  # the same commit may yet succeed


class TransactionOperation:
    """One write of a transaction. It sees the writes of the transaction's earlier operations."""

    def __init__(self, caller: Caller, stage: StagingArea, write_set: WriteSet) -> None:
        self._caller, self._write_set = caller, write_set
        self.stage = stage
        self.receipt: Receipt | None = None  # set if the operation has committed the transaction

    def overlay(self, name: DatasetName) -> DatasetOverlay:
        """Return the overlay of a dataset to write to.

        Raises:
            Unsupported: the dataset is read-only
        """
        self._caller.require(Role.DEVELOPER)
        overlay = self._write_set.overlay(name)
        if overlay.base.read_only:
            raise read_only_error(overlay.base)
        return overlay

    def apply(self, overlay: DatasetOverlay, change: Change) -> None:
        """Add a change to the transaction."""
        self._write_set.apply(overlay, change)


@dataclass(slots=True)
class _OpenTransaction:
    """State of an active transaction in the memory of this process."""

    caller: Caller
    begun_here: bool = False
    operating: bool = False
    must_abort: bool = False  # an operation has failed, and the catalog could not be updated
    seq: int = 0
    write_set: WriteSet | None = None


class ClientTransactions:
    """Create, use and end the transactions of clients in this process."""

    def __init__(self, ws: Workspace, *, ttl: timedelta = TIME_TO_LIVE, auto_commit: bool = False) -> None:
        self._ws, self._ttl, self._auto_commit = ws, ttl, auto_commit
        self._process = process_identity.current_process()
        self._lock = threading.Lock()
        self._open: dict[UUID, _OpenTransaction] = {}

    def create(self, caller: Caller, auto_commit: bool | None = None) -> UUID:
        """Begin a transaction on the tenant's newest commit.

        Raises:
            Invalid: the tenant has too many active transactions
        """
        caller.require(Role.VIEWER)
        auto_commit = self._auto_commit if auto_commit is None else auto_commit
        try:
            transaction = self._create(caller, auto_commit=auto_commit)
        except Invalid:
            if not self._has_overdue(caller):
                raise
            self._expire(caller)  # expired transactions count against the limit
            transaction = self._create(caller, auto_commit=auto_commit)
        with self._lock:
            self._open[transaction] = _OpenTransaction(caller, begun_here=True)
        return transaction

    def status(self, caller: Caller, transaction: UUID) -> TransactionState:
        """Return the state of a transaction."""
        return self._load(caller, transaction).state

    @contextmanager
    def operation(self, caller: Caller, transaction: UUID) -> Iterator[TransactionOperation]:
        """Execute one write. Its changes are stored if the block succeeds; an error aborts the transaction.

        Nothing is locked during the operation. A concurrent operation of the same transaction is rejected.

        Raises:
            Conflict: another operation of the transaction is in progress
            Unsupported: the transaction has ended
        """
        record = self._enter(caller, transaction)
        stage: StagingArea | None = None
        try:
            stage = StagingArea(self._ws, caller, lease=transaction)
            write_set = self._load_write_set(caller, record)[1].copy()
            operation = TransactionOperation(caller, stage, write_set)
            yield operation
            self._leave(caller, record, write_set)
        except BaseException:
            self._fail(caller, transaction, stage)
            raise
        finally:
            with self._lock:
                if local := self._open.get(transaction):
                    local.operating = False
        stage.release(set(write_set.paths))
        stage.discard()
        if record.auto_commit:
            operation.receipt = self.commit(caller, transaction)

    def snapshot_for_read(self, caller: Caller, transaction: UUID, name: DatasetName) -> DatasetOverlay:
        """Return the overlay of a dataset to read: the snapshot of the transaction's start, with its writes."""
        caller.require(Role.VIEWER)
        record = self._active(caller, transaction)
        if record.expires_at - self._ws.db.clock() < self._ttl - _HEARTBEAT_AFTER:
            with self._ws.db.write(caller) as tx:
                client_transactions.extend_expiry(tx, [transaction], expires_at=tx.now + self._ttl)
        return self._load_write_set(caller, record)[1].copy().overlay(name)

    def commit(self, caller: Caller, transaction: UUID) -> Receipt | None:
        """Commit all writes at once. A repeated call returns the same receipt; None: nothing was written.

        Raises:
            Conflict: another writer committed first, or dropped a dataset that the transaction changed
            Forbidden: the transaction has writes, and the caller may not write; it stays active
        """
        record = self._load(caller, transaction)
        if record.state is TransactionState.COMMITTED:
            return self._receipt(caller, record)
        if record.state is not TransactionState.ACTIVE or record.operating:
            raise _state_error(record)
        try:
            seq, write_set = self._load_write_set(caller, record)
            changes = write_set.changes()
            if changes:
                caller.require(Role.DEVELOPER)
            with write_set.translate_dropped():
                receipt = self._commit(caller, transaction, seq, changes)
        except PenstockError as error:
            if isinstance(error, Unavailable | CommitStateUnknown | Forbidden) or error.reason in _RETRYABLE_REASONS:
                raise
            if (
                self._end(caller, transaction, TransactionState.ABORTED) is TransactionState.COMMITTED
            ):  # a concurrent call has committed the transaction
                return self._receipt(caller, self._load(caller, transaction))
            raise
        self._forget(transaction)
        self._remove(caller, write_set.superseded_files)
        return receipt

    def rollback(self, caller: Caller, transaction: UUID) -> None:
        """Abort a transaction. One that has ended without a commit stays as it is.

        Raises:
            Unsupported: the transaction is committed
        """
        record = self._load(caller, transaction)
        if record.state is TransactionState.ACTIVE:
            record = replace(record, state=self._end(caller, transaction, TransactionState.ABORTED))
        if record.state is TransactionState.COMMITTED:
            raise _state_error(record)

    def expire_idle(self) -> None:
        """End transactions that are idle or whose owner is dead, and send heartbeats. Call it every few seconds."""
        with self._lock:
            callers = {local.caller.tenant: local.caller for local in self._open.values()}
        for caller in callers.values():
            with suppress(PenstockError):  # the next call repeats it
                self._maintain(caller)

    def close(self) -> None:
        """Abort the transactions that this process has begun or is operating on."""
        with self._lock:
            open_transactions = dict(self._open)
        for transaction, local in open_transactions.items():
            if local.begun_here or local.operating:
                with suppress(PenstockError):  # other processes detect that the owner is dead
                    self._end(local.caller, transaction, TransactionState.ABORTED)

    def _create(self, caller: Caller, *, auto_commit: bool) -> UUID:
        with self._ws.db.write(caller) as tx:
            return client_transactions.create(tx, self._process, auto_commit=auto_commit, expires_at=tx.now + self._ttl)

    def _load(self, caller: Caller, transaction: UUID) -> TransactionRecord:
        """Load the record of a transaction, and end the transaction if it is overdue."""
        caller.require(Role.VIEWER)
        with self._ws.db.read(caller) as tx:
            record = client_transactions.find(tx, transaction)
        return self._end_if_due(caller, record)

    def _end_if_due(self, caller: Caller, record: TransactionRecord) -> TransactionRecord:
        due = self._due(record, self._ws.db.clock())
        if due is None:
            return record
        return replace(record, state=self._end(caller, record.id, due, judged=record))

    def _due(self, record: TransactionRecord, now: datetime) -> TransactionState | None:
        """Return the state in which an active transaction must end now, or None."""
        local = self._open.get(record.id)
        if record.state is not TransactionState.ACTIVE:
            return None
        if local and local.must_abort:
            return TransactionState.ABORTED
        if _is_dead(record.owner, record.heartbeat_at, now):
            return TransactionState.ABORTED
        if record.operating and process_identity.is_alive(record.operating) is False:
            return TransactionState.ABORTED
        if record.expires_at <= now and not (local and local.operating):
            return TransactionState.EXPIRED
        return None

    def _active(self, caller: Caller, transaction: UUID) -> TransactionRecord:
        record = self._load(caller, transaction)
        if record.state is not TransactionState.ACTIVE:
            raise _state_error(record)
        return record

    def _enter(self, caller: Caller, transaction: UUID) -> TransactionRecord:
        self._active(caller, transaction)
        try:
            with self._ws.db.write(caller) as tx:
                record = client_transactions.begin_operation(
                    tx, transaction, self._process, expires_at=tx.now + self._ttl
                )
        except CommitStateUnknown:
            self._fail(caller, transaction, None)
            raise
        if record is None:
            record = self._load(caller, transaction)
            if (
                record.state is TransactionState.ACTIVE and not record.operating
            ):  # its lease has ended, so that its files may have been swept
                record = replace(record, state=self._end(caller, transaction, TransactionState.ABORTED))
            raise _state_error(record)
        with self._lock:
            self._open.setdefault(transaction, _OpenTransaction(caller)).operating = True
        return record

    def _leave(self, caller: Caller, record: TransactionRecord, write_set: WriteSet) -> None:
        with self._ws.db.write(caller) as tx:
            is_stored = client_transactions.end_operation(
                tx,
                record.id,
                self._process,
                seq=record.seq,
                write_set=write_set.to_json(),
                expires_at=tx.now + self._ttl,
            )
        if not is_stored:
            raise _state_error(replace(record, state=self._end(caller, record.id, TransactionState.ABORTED)))
        self._remember(caller, record.id, record.seq + 1, write_set)

    def _fail(self, caller: Caller, transaction: UUID, stage: StagingArea | None) -> None:
        """Abort the transaction of a failed operation, and remove the operation's files."""
        try:
            state = self._end(caller, transaction, TransactionState.ABORTED)
        except PenstockError:  # the write set may have been stored, so its files stay until they are swept
            with self._lock:
                self._open.setdefault(transaction, _OpenTransaction(caller)).must_abort = True
            return
        if stage and state is not TransactionState.COMMITTED:
            stage.discard()

    def _commit(self, caller: Caller, transaction: UUID, seq: int, changes: list[Change]) -> Receipt | None:
        def mark_committed(tx: CatalogTransaction, receipt: Receipt | None) -> None:
            if not client_transactions.commit(tx, transaction, seq=seq, key=receipt.key if receipt else None):
                raise _state_error(client_transactions.find(tx, transaction))

        if not changes:
            with self._ws.db.write(caller) as tx:
                mark_committed(tx, None)
            return None
        # The transaction owns the files, not the staging area: they are removed when it ends without a commit.
        stage = StagingArea(self._ws, caller, key=f"{GENERATED_KEY_PREFIX}{transaction}", lease=transaction)
        return commit_changes(self._ws, caller, stage, changes, mark_committed)

    def _receipt(self, caller: Caller, record: TransactionRecord) -> Receipt | None:
        if record.receipt is None:
            return None
        receipt = receipts.find_receipt(self._ws.db, caller, record.receipt)
        return receipt and mark_replayed(receipt)

    def _end(
        self, caller: Caller, transaction: UUID, state: TransactionState, *, judged: TransactionRecord | None = None
    ) -> TransactionState:
        """End a transaction without a commit, unless it has ended, and remove its files. Return its state."""
        with self._ws.db.write(caller) as tx:
            ended, left = client_transactions.end(tx, transaction, state, unchanged_since=judged)
            if not ended:
                state = client_transactions.load_state(tx, transaction)
        if state is not TransactionState.ACTIVE:
            self._forget(transaction)
        self._remove(caller, staged_paths(left) if left else [])
        return state

    def _expire(self, caller: Caller) -> list[TransactionRecord]:
        """End the overdue transactions of the tenant, and return the active ones."""
        with self._ws.db.read(caller) as tx:
            active = client_transactions.list_active(tx)
        records = [self._end_if_due(caller, record) for record in active]
        return [record for record in records if record.state is TransactionState.ACTIVE]

    def _has_overdue(self, caller: Caller) -> bool:
        """Return whether the tenant may have active transactions to end, at the cost of one small query."""
        with self._ws.db.read(caller) as tx:
            owners = client_transactions.summarize_owners(tx)
        now = self._ws.db.clock()
        return any(owner.first_expiry <= now or _is_dead(owner.owner, owner.oldest_heartbeat, now) for owner in owners)

    def _maintain(self, caller: Caller) -> None:
        with self._lock:
            local = {id: entry for id, entry in self._open.items() if entry.caller.tenant == caller.tenant}
        active = {record.id: record for record in self._expire(caller)}
        now = self._ws.db.clock()
        entries = [(id, entry, active[id]) for id, entry in local.items() if id in active]
        heartbeat_due = [
            id for id, entry, record in entries if entry.begun_here and record.heartbeat_at <= now - _HEARTBEAT_AFTER
        ]
        touch_due = [
            id
            for id, entry, record in entries
            if entry.operating and record.expires_at < now + self._ttl - _HEARTBEAT_AFTER
        ]
        if heartbeat_due or touch_due:
            with self._ws.db.write(caller) as tx:
                client_transactions.heartbeat(tx, heartbeat_due)
                client_transactions.extend_expiry(tx, touch_due, expires_at=tx.now + self._ttl)
        for id in local.keys() - active.keys():
            self._forget(id)

    def _load_write_set(self, caller: Caller, record: TransactionRecord) -> tuple[int, WriteSet]:
        """Return the number of operations and the write set. The write set is shared: copy it before a change."""
        with self._lock:
            local = self._open.get(record.id)
            if local and local.write_set and local.seq == record.seq:
                return local.seq, local.write_set
        with self._ws.db.read(caller) as tx:
            seq, text = client_transactions.load_write_set(tx, record.id)
        if text is None:
            if seq:  # the transaction has ended in the meantime
                raise _state_error(self._load(caller, record.id))
            return seq, WriteSet(self._ws, caller, record.commit_no)
        write_set = WriteSet.from_json(self._ws, caller, record.commit_no, text)
        self._remember(caller, record.id, seq, write_set)
        return seq, write_set

    def _remember(self, caller: Caller, transaction: UUID, seq: int, write_set: WriteSet) -> None:
        with self._lock:
            local = self._open.setdefault(transaction, _OpenTransaction(caller))
            if seq > local.seq:
                local.seq, local.write_set = seq, write_set

    def _forget(self, transaction: UUID) -> None:
        with self._lock:
            self._open.pop(transaction, None)

    def _remove(self, caller: Caller, files: Iterable[str]) -> None:
        with suppress(PenstockError):  # a file that cannot be removed now is swept later
            self._ws.store_of(caller).remove(files)


def _is_dead(owner: str, heartbeat_at: datetime, now: datetime) -> bool:
    """Return whether a process has ended, or may have: one of another machine without a recent heartbeat."""
    lives = process_identity.is_alive(owner)
    return lives is False or (lives is None and heartbeat_at <= now - process_identity.STALE_AFTER)


def _state_error(record: TransactionRecord) -> PenstockError:
    """Return the error for a call that the state of the transaction does not allow."""
    if record.state is TransactionState.ACTIVE:
        return Conflict(
            "transaction_busy",
            transaction_id=str(record.id),
        )
    return Unsupported(
        "transaction_over.client",
        {"state": record.state.value},
        transaction_id=str(record.id),
        transaction_status=record.state.value,
    )
