"""Transactions of clients, that last over many calls: a snapshot to read, and writes that become visible together.

How each stands is in the catalog, so that any process can go on with it. Two rules make that safe. A transaction is
over once, in one SQL transaction; if it is committed, that is the one of its data. And its files are removed only when
it is known to have ended otherwise, because from then on nobody can commit them.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from penstock.catalog import commit as commits
from penstock.catalog import client_transactions as transactions
from penstock.catalog.database import Tx
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import AUTOMATIC, Change, Receipt
from penstock.core.names import DatasetName
from penstock.core.dataset.transaction_state import Standing, State
from penstock.errors import Conflict, Invalid, PenstockError, Unavailable, Undecided, Unsupported
from penstock.service import process_identity as process
from penstock.service.transactions.write_set import Work, paths
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Stage, read_only

__all__ = ["Operation", "State", "Transactions"]

TIME_TO_LIVE = timedelta(seconds=300)
_BEAT_AFTER = process.SILENT / 3
_MAY_PASS = ("commit_lost", "overtaken", "dataset_held", "transaction_busy")  # the same commit may yet succeed


class Operation:
    """One write of a transaction, on its way. It sees what those before it have left."""

    def __init__(self, caller: Caller, stage: Stage, work: Work) -> None:
        self._caller, self._work = caller, work
        self.stage = stage
        self.receipt: Receipt | None = None  # if the transaction was committed with it

    def working(self, name: DatasetName) -> Working:
        """A dataset to write to."""
        self._caller.require(Role.DEVELOPER)
        working = self._work.working(name)
        if working.base.read_only:
            raise read_only(working.base)
        return working

    def apply(self, working: Working, change: Change) -> None:
        self._work.apply(working, change)


@dataclass(slots=True)
class _Known:
    """What this process knows of a transaction that is not over."""

    caller: Caller
    begun_here: bool = False
    operating: bool = False
    doomed: bool = False  # an operation has failed, and the catalog could not be told
    seq: int = 0
    work: Work | None = None


class Transactions:
    """Those that this process serves."""

    def __init__(self, ws: Workspace, *, ttl: timedelta = TIME_TO_LIVE, auto_commit: bool = False) -> None:
        self._ws, self._ttl, self._auto_commit = ws, ttl, auto_commit
        self._process = process.name()
        self._lock = threading.Lock()
        self._known: dict[UUID, _Known] = {}

    def create(self, caller: Caller, auto_commit: bool | None = None) -> UUID:
        """Begin one. It reads what is committed by now."""
        caller.require(Role.VIEWER)
        auto_commit = self._auto_commit if auto_commit is None else auto_commit
        try:
            transaction = self._create(caller, auto_commit=auto_commit)
        except Invalid:
            self._bury(caller)  # there may be room then
            transaction = self._create(caller, auto_commit=auto_commit)
        with self._lock:
            self._known[transaction] = _Known(caller, begun_here=True)
        return transaction

    def status(self, caller: Caller, transaction: UUID) -> State:
        return self._standing(caller, transaction).state

    @contextmanager
    def operation(self, caller: Caller, transaction: UUID) -> Iterator[Operation]:
        """One write. What it applies is kept if the block ends well; an error ends the transaction.

        Nothing is locked meanwhile. Another operation that comes before this one has ended is refused.
        """
        standing = self._enter(caller, transaction)
        stage: Stage | None = None
        try:
            stage = Stage(self._ws, caller, lease=transaction)
            work = self._work(caller, standing)[1].copy()
            operation = Operation(caller, stage, work)
            yield operation
            self._leave(caller, standing, work)
        except BaseException:
            self._fail(caller, transaction, stage)
            raise
        finally:
            with self._lock:
                if known := self._known.get(transaction):
                    known.operating = False
        stage.let_go(set(work.paths))
        stage.discard()
        if standing.auto_commit:
            operation.receipt = self.commit(caller, transaction)

    def reading(self, caller: Caller, transaction: UUID, name: DatasetName) -> Working:
        """A dataset to read: as it was at the transaction's start, with what it has written since."""
        caller.require(Role.VIEWER)
        standing = self._active(caller, transaction)
        if standing.expires_at - self._ws.db.clock() < self._ttl - _BEAT_AFTER:
            with self._ws.db.write(caller) as tx:
                transactions.touch(tx, [transaction], until=tx.now + self._ttl)
        return self._work(caller, standing)[1].copy().working(name)

    def commit(self, caller: Caller, transaction: UUID) -> Receipt | None:
        """Make its writes visible, all at once. Again: the same answer. None: it wrote nothing."""
        standing = self._standing(caller, transaction)
        if standing.state is State.COMMITTED:
            return self._receipt(caller, standing)
        if standing.state is not State.ACTIVE or standing.operating:
            raise _refusal(standing)
        try:
            seq, work = self._work(caller, standing)
            receipt = self._commit(caller, transaction, seq, work.changes())
        except PenstockError as refusal:
            if isinstance(refusal, Unavailable | Undecided) or refusal.reason in _MAY_PASS:
                raise
            if self._end(caller, transaction, State.ABORTED) is State.COMMITTED:  # the same was asked twice at once
                return self._receipt(caller, self._standing(caller, transaction))
            raise
        self._forget(transaction)
        self._remove(work.spent)
        return receipt

    def rollback(self, caller: Caller, transaction: UUID) -> None:
        """Undo all its writes; they were never seen. One that has ended without a commit stays as it is."""
        standing = self._standing(caller, transaction)
        if standing.state is State.ACTIVE:
            standing = replace(standing, state=self._end(caller, transaction, State.ABORTED))
        if standing.state is State.COMMITTED:
            raise _refusal(standing)

    def expire(self) -> None:
        """End those that are idle or whose owner has ended, and show that this process lives. Call it every few seconds."""
        with self._lock:
            callers = {known.caller.tenant: known.caller for known in self._known.values()}
        for caller in callers.values():
            with suppress(PenstockError):  # the next time is as good
                self._tend(caller)

    def close(self) -> None:
        """Abort those that this process has begun, or has an operation of."""
        with self._lock:
            known = dict(self._known)
        for transaction, each in known.items():
            if each.begun_here or each.operating:
                with suppress(PenstockError):  # others will see that its owner has ended
                    self._end(each.caller, transaction, State.ABORTED)

    def _create(self, caller: Caller, *, auto_commit: bool) -> UUID:
        with self._ws.db.write(caller) as tx:
            return transactions.create(tx, self._process, auto_commit=auto_commit, until=tx.now + self._ttl)

    def _standing(self, caller: Caller, transaction: UUID) -> Standing:
        """How it stands; one that should be over, is."""
        caller.require(Role.VIEWER)
        with self._ws.db.read(caller) as tx:
            standing = transactions.find(tx, transaction)
        return self._judged(caller, standing)

    def _judged(self, caller: Caller, standing: Standing) -> Standing:
        due = self._due(standing, self._ws.db.clock())
        if due is None:
            return standing
        return replace(standing, state=self._end(caller, standing.id, due, judged=standing))

    def _due(self, standing: Standing, now: datetime) -> State | None:
        """Should it be over, and how?"""
        known = self._known.get(standing.id)
        if standing.state is not State.ACTIVE:
            return None
        if known and known.doomed:
            return State.ABORTED
        owner_lives = process.lives(standing.owner)
        if owner_lives is False or (owner_lives is None and standing.beaten_at <= now - process.SILENT):
            return State.ABORTED
        if standing.operating and process.lives(standing.operating) is False:
            return State.ABORTED
        if standing.expires_at <= now and not (known and known.operating):
            return State.EXPIRED
        return None

    def _active(self, caller: Caller, transaction: UUID) -> Standing:
        standing = self._standing(caller, transaction)
        if standing.state is not State.ACTIVE:
            raise _refusal(standing)
        return standing

    def _enter(self, caller: Caller, transaction: UUID) -> Standing:
        self._active(caller, transaction)
        try:
            with self._ws.db.write(caller) as tx:
                standing = transactions.enter(tx, transaction, self._process, until=tx.now + self._ttl)
        except Undecided:
            self._fail(caller, transaction, None)
            raise
        if standing is None:
            standing = self._standing(caller, transaction)
            if standing.state is State.ACTIVE and not standing.operating:  # its files may have been swept
                standing = replace(standing, state=self._end(caller, transaction, State.ABORTED))
            raise _refusal(standing)
        with self._lock:
            self._known.setdefault(transaction, _Known(caller)).operating = True
        return standing

    def _leave(self, caller: Caller, standing: Standing, work: Work) -> None:
        with self._ws.db.write(caller) as tx:
            kept = transactions.leave(
                tx, standing.id, self._process, seq=standing.seq, work=work.to_json(), until=tx.now + self._ttl
            )
        if not kept:
            raise _refusal(replace(standing, state=self._end(caller, standing.id, State.ABORTED)))
        self._remember(caller, standing.id, standing.seq + 1, work)

    def _fail(self, caller: Caller, transaction: UUID, stage: Stage | None) -> None:
        """An operation has failed, and with it the transaction."""
        try:
            state = self._end(caller, transaction, State.ABORTED)
        except PenstockError:  # whether its work was kept may be unknown, so its files stay until they are swept
            with self._lock:
                self._known.setdefault(transaction, _Known(caller)).doomed = True
            return
        if stage and state is not State.COMMITTED:
            stage.discard()

    def _commit(self, caller: Caller, transaction: UUID, seq: int, changes: list[Change]) -> Receipt | None:
        def record(tx: Tx, receipt: Receipt | None) -> None:
            if not transactions.commit(tx, transaction, seq=seq, key=receipt.key if receipt else None):
                raise _refusal(transactions.find(tx, transaction))

        if not changes:
            with self._ws.db.write(caller) as tx:
                record(tx, None)
            return None
        # The files are the transaction's and not the stage's: what becomes of them depends on how it ends.
        stage = Stage(self._ws, caller, key=f"{AUTOMATIC}{transaction}", lease=transaction)
        return stage.commit(changes, record=record)

    def _receipt(self, caller: Caller, standing: Standing) -> Receipt | None:
        if standing.receipt is None:
            return None
        receipt = commits.lookup(self._ws.db, caller, standing.receipt)
        return receipt and receipt.again()

    def _end(self, caller: Caller, transaction: UUID, state: State, *, judged: Standing | None = None) -> State:
        """End it without a commit, unless it is over already, and remove its files. The answer is how it stands."""
        with self._ws.db.write(caller) as tx:
            ended, left = transactions.end(tx, transaction, state, judged=judged)
            if not ended:
                state = transactions.state(tx, transaction)
        if state is not State.ACTIVE:
            self._forget(transaction)
        self._remove(paths(left) if left else [])
        return state

    def _bury(self, caller: Caller) -> list[Standing]:
        """End those of the tenant that should be over; the others are the answer."""
        with self._ws.db.read(caller) as tx:
            active = transactions.active(tx)
        judged = [self._judged(caller, standing) for standing in active]
        return [standing for standing in judged if standing.state is State.ACTIVE]

    def _tend(self, caller: Caller) -> None:
        with self._lock:
            known = {id: each for id, each in self._known.items() if each.caller.tenant == caller.tenant}
        active = {standing.id: standing for standing in self._bury(caller)}
        now = self._ws.db.clock()
        ours = [(id, each, active[id]) for id, each in known.items() if id in active]
        silent = [id for id, each, standing in ours if each.begun_here and standing.beaten_at <= now - _BEAT_AFTER]
        used = [
            id for id, each, standing in ours if each.operating and standing.expires_at < now + self._ttl - _BEAT_AFTER
        ]
        if silent or used:
            with self._ws.db.write(caller) as tx:
                transactions.beat(tx, silent)
                transactions.touch(tx, used, until=tx.now + self._ttl)
        for id in known.keys() - active.keys():
            self._forget(id)

    def _work(self, caller: Caller, standing: Standing) -> tuple[int, Work]:
        """What it has written so far, and after how many operations. Not to be changed: others read it too."""
        with self._lock:
            known = self._known.get(standing.id)
            if known and known.work and known.seq == standing.seq:
                return known.seq, known.work
        with self._ws.db.read(caller) as tx:
            seq, text = transactions.work(tx, standing.id)
        if text is None:
            if seq:  # it has ended since
                raise _refusal(self._standing(caller, standing.id))
            return seq, Work(self._ws, caller, standing.commit_no)
        work = Work.from_json(self._ws, caller, standing.commit_no, text)
        self._remember(caller, standing.id, seq, work)
        return seq, work

    def _remember(self, caller: Caller, transaction: UUID, seq: int, work: Work) -> None:
        with self._lock:
            known = self._known.setdefault(transaction, _Known(caller))
            if seq > known.seq:
                known.seq, known.work = seq, work

    def _forget(self, transaction: UUID) -> None:
        with self._lock:
            self._known.pop(transaction, None)

    def _remove(self, files: Iterable[str]) -> None:
        for path in files:
            with suppress(PenstockError):  # what cannot be removed now is swept later
                self._ws.store.remove(path)


def _refusal(standing: Standing) -> PenstockError:
    """Why nothing can be done in it."""
    if standing.state is State.ACTIVE:
        return Conflict(
            "transaction_busy",
            "another operation of this transaction is under way; wait until it has ended",
            transaction_id=str(standing.id),
        )
    return Unsupported(
        "transaction_over",
        f"this transaction is {standing.state.value}; begin another",
        transaction_id=str(standing.id),
        transaction_status=standing.state.value,
    )
