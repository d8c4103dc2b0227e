"""Insert batches that arrive one by one, and commit small concurrent inserts as a group.

Small inserts of the same caller into the same dataset share a commit: one file, one version, one transaction, and one
receipt for each insert.
"""

import copy
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import ClassVar
from uuid import UUID

import pyarrow as pa

from penstock.catalog import file_rows, receipts
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import GENERATED_KEY_PREFIX, Change, GroupMember, NewFile, Receipt, fingerprint
from penstock.core.dataset.row_digest import RowDigest
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.core.schema.compatibility import check_fits
from penstock.errors import PenstockError
from penstock.service.datasets.coalesced_reads import LatestSnapshots
from penstock.service.datasets.commit_queue import CommitQueue
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_source import BatchValidator
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import read_only_error
from penstock.service.idempotency import check_idempotency_key
from penstock.service.workspace import Workspace
from penstock.storage.data_files import DataFileWriter

_MAX_SMALL_BATCHES = 100  # an insert of more batches is large, however few rows they have
_GROUP_SIZE_FACTOR = 16  # a group has at most this many times `small_bytes`


@dataclass(frozen=True, slots=True)
class InsertResult:
    """The outcome of an insert.

    Row i, in the order sent, has the row id `first_row_id + i`; None: no rows, or a dataset without row ids.
    The receipt is None inside a transaction.
    """

    rows: int
    first_row_id: int | None
    receipt: Receipt | None


class InsertService:
    """Commit the inserts of a server process."""

    def __init__(
        self, ws: Workspace, *, small_rows: int = 10_000, small_bytes: int = 1 << 20, max_group_size: int = 256
    ) -> None:
        self.ws, self.small_rows, self.small_bytes, self._max_group_size = ws, small_rows, small_bytes, max_group_size
        self._latest = LatestSnapshots(ws)
        self._queue: CommitQueue[_SmallInsert | _LargeInsert] = CommitQueue("insert", self._next_group, self._commit)

    def begin(
        self,
        caller: Caller,
        dataset: UUID | Snapshot,
        schema: pa.Schema,
        *,
        key: str | None = None,
        transaction: tuple[StagingArea, DatasetOverlay] | None = None,
    ) -> "InsertStream":
        """Begin an insert of batches.

        Args:
            caller: the author; needs the role developer
            dataset: the id of the dataset, or a snapshot that `latest_snapshot` has just returned
            schema: the schema of the batches
            key: the idempotency key of the request; without meaning inside a transaction, which has its own key
            transaction: the staging area and the overlay of the transaction that the insert belongs to
        """
        caller.require(Role.DEVELOPER)
        if transaction:
            return InsertStream(self, caller, transaction[1], schema, check_idempotency_key(key), transaction[0])
        target = dataset if isinstance(dataset, Snapshot) else self.latest_snapshot(caller, dataset)
        if target.read_only:
            raise read_only_error(target)
        return InsertStream(self, caller, DatasetOverlay(self.ws, caller, target), schema, check_idempotency_key(key))

    def latest_snapshot(self, caller: Caller, dataset: DatasetName | UUID) -> Snapshot:
        """Return the newest snapshot of a dataset. Concurrent callers share one catalog read."""
        return self._latest.get(caller, dataset)

    def close(self) -> None:
        """Reject new inserts, and wait until the submitted ones are committed."""
        self._queue.close()

    def submit(self, insert: "_SmallInsert | _LargeInsert") -> Future[InsertResult]:
        """Commit a complete insert: a large one alone, a small one with others of the same caller and dataset."""
        return self._queue.submit(insert)

    def _commit(self, group: list["_SmallInsert | _LargeInsert"]) -> None:
        small = [insert for insert in group if isinstance(insert, _SmallInsert)]
        if small:
            _commit_group(self.ws, small[0].group_key.caller, small)
        for insert in group:
            if isinstance(insert, _LargeInsert):
                insert.commit()

    def _next_group(self, queue: deque["_SmallInsert | _LargeInsert"]) -> list["_SmallInsert | _LargeInsert"]:
        """Take the next group from a queue: in order, of one schema, without duplicate keys.

        The second insert with a key stays in the queue and gets the receipt of the first.
        """
        group: list[_SmallInsert | _LargeInsert] = []
        later: list[_SmallInsert | _LargeInsert] = []
        keys: set[str] = set()
        free_bytes = _GROUP_SIZE_FACTOR * self.small_bytes
        while queue and len(group) < self._max_group_size and free_bytes > 0:
            insert = queue.popleft()
            assert isinstance(insert, _SmallInsert), "a large insert is not queued"
            if group and (insert.member.key in keys or not insert.overlay.schema.equals(group[0].overlay.schema)):
                later.append(insert)
            elif insert.done.set_running_or_notify_cancel():
                group.append(insert)
                keys.add(insert.member.key)
                free_bytes -= insert.bytes
        queue.extendleft(reversed(later))
        return group


class InsertStream:
    """One insert: `add` its batches, then `commit` or `discard` it.

    Inside a transaction, call `change` instead of `commit`. Every method except `commit` may block on disk access.
    Several threads may use an insert, one at a time. A method that raises an error has discarded the insert.
    """

    def __init__(
        self,
        inserts: InsertService,
        caller: Caller,
        overlay: DatasetOverlay,
        schema: pa.Schema,
        key: str,
        transaction_stage: StagingArea | None = None,
    ) -> None:
        check_fits(schema, overlay.schema)
        self.target: Snapshot = overlay.base
        self.rows = 0
        self._inserts, self._ws, self._caller, self._overlay, self._key = inserts, inserts.ws, caller, overlay, key
        self._digest = None if key.startswith(GENERATED_KEY_PREFIX) else RowDigest(schema)
        self._validate = BatchValidator(
            overlay.schema, self._ws.limits, self._digest.add if self._digest else lambda _: None
        )
        self._transaction_stage = transaction_stage
        self._batches: list[pa.RecordBatch] = []  # while the insert is small
        self._staged: tuple[StagingArea, DataFileWriter] | None = None  # once the insert is large
        self._ended = False

    def add(self, batch: pa.RecordBatch, *, validated: bool = False) -> None:
        """Validate a batch and add it: to memory while the insert is small, then to staged files."""
        assert not self._ended, "this insert has ended"
        try:
            for piece in self._validate(batch, validated=validated):
                self.rows += piece.num_rows
                if self._staged or self._is_large():
                    self._write(piece)
                elif piece.num_rows:
                    self._batches.append(_copy(piece))
        except BaseException:
            self.discard()
            raise

    def commit(self) -> Future[InsertResult]:
        """Submit the insert. Cancelling the future before the commit begins discards the insert."""
        assert not self._ended, "this insert has ended"
        assert self._transaction_stage is None, "an insert inside a transaction is not committed: call change()"
        self._ended = True
        request = self._digest.hexdigest() if self._digest else ""
        if self._staged:
            return self._inserts.submit(_LargeInsert(*self._staged, self._overlay, request))
        member = GroupMember(self._key, fingerprint((self._overlay.append_change((), request),)), self.rows)
        group_key = _GroupKey(self._caller, self.target.dataset)
        return self._inserts.submit(_SmallInsert(group_key, self._overlay, member, self._batches, self._validate.bytes))

    def change(self) -> tuple[Change, InsertResult]:
        """Return all rows as one change, with row ids, for the caller to apply to the transaction."""
        assert not self._ended, "this insert has ended"
        assert self._transaction_stage, "an insert outside of a transaction has no change: call commit()"
        try:
            if self._staged:
                added = _finish_files(*self._staged)
            else:
                added = self._transaction_stage.write(self._overlay.location, self._overlay.schema, self._batches)
            self._staged = None  # the transaction owns the files from here on
            first = None
            if added and self._overlay.row_ids:
                first = file_rows.reserve_row_ids(self._ws.db, self._caller, self.target.dataset, self.rows)
                added = _assign_row_ids(added, first)
        except BaseException:
            self.discard()
            raise
        self._ended = True
        request = self._digest.hexdigest() if self._digest else ""
        return self._overlay.append_change(added, request), InsertResult(self.rows, first, None)

    def discard(self) -> None:
        """Remove the staged files of the insert, unless it was submitted."""
        if self._ended:
            return
        self._ended = True
        self._batches = []
        if self._staged:
            stage, writer = self._staged
            writer.discard()
            if stage is not self._transaction_stage:
                stage.discard()

    def _is_large(self) -> bool:
        limits = self._inserts
        return (
            self.rows > limits.small_rows
            or self._validate.bytes > limits.small_bytes
            or len(self._batches) >= _MAX_SMALL_BATCHES
        )

    def _write(self, piece: pa.RecordBatch) -> None:
        if self._staged is None:
            stage = self._transaction_stage or StagingArea(self._ws, self._caller, key=self._key)
            self._staged = stage, stage.writer(self._overlay.location, self._overlay.schema)
            for batch in self._batches:
                self._staged[1].add(batch)
            self._batches = []
        stage, writer = self._staged
        stage.heartbeat()  # a slow stream may take hours to fill a row group
        writer.add(piece)


@dataclass(frozen=True, slots=True)
class _GroupKey:
    """Identify a queue of inserts that may share a commit. A version has one author."""

    caller: Caller
    dataset: UUID


@dataclass(frozen=True, slots=True)
class _SmallInsert:
    """A complete insert with its batches in memory."""

    group_key: _GroupKey
    overlay: DatasetOverlay
    member: GroupMember
    batches: list[pa.RecordBatch]
    bytes: int
    done: Future[InsertResult] = field(default_factory=Future)

    def discard(self) -> None:
        """Do nothing: a small insert has no files."""

    def resolve(self, outcome: Receipt | PenstockError) -> None:
        """Complete the future with a result or an error."""
        if isinstance(outcome, Receipt):
            self.done.set_result(_insert_result(outcome))
        else:
            self.done.set_exception(outcome)


@dataclass(frozen=True, slots=True)
class _LargeInsert:
    """A complete insert with its batches in staged files."""

    group_key: ClassVar[None] = None

    stage: StagingArea
    writer: DataFileWriter
    overlay: DatasetOverlay
    request: str
    done: Future[InsertResult] = field(default_factory=Future)

    def commit(self) -> None:
        """Commit the insert and complete the future."""
        try:
            with self.stage:
                added = _finish_files(self.stage, self.writer)
                receipt = self.stage.commit([self.overlay.append_change(added, self.request)])
            self.done.set_result(_insert_result(receipt))
        except BaseException as error:
            self.done.set_exception(error)

    def discard(self) -> None:
        """Remove the staged files."""
        self.writer.discard()
        self.stage.discard()


def _commit_group(ws: Workspace, caller: Caller, group: list[_SmallInsert]) -> None:
    """Commit small inserts as one append. An error of one insert does not affect the others."""
    remaining = group
    try:
        while remaining:
            outcomes = _append(ws, caller, remaining)
            for insert in remaining:
                if insert.member.key in outcomes:
                    insert.resolve(outcomes[insert.member.key])
            remaining = [insert for insert in remaining if insert.member.key not in outcomes]
    except PenstockError as error:
        is_unknown = error.reason == "unknown_outcome"
        for insert in remaining:
            insert.resolve(receipts.unknown_outcome(insert.member.key) if is_unknown else copy.copy(error))
    except BaseException as error:
        if len(remaining) == 1:
            remaining[0].done.set_exception(error)
        else:  # the rows of one insert may have caused the error
            for insert in remaining:
                _commit_group(ws, caller, [insert])


def _append(ws: Workspace, caller: Caller, group: list[_SmallInsert]) -> receipts.ReceiptsByKey:
    overlay = group[0].overlay
    with StagingArea(ws, caller) as stage:
        batches = (batch for insert in group for batch in insert.batches)
        added = stage.write(overlay.location, overlay.schema, batches)
        return stage.group_commit(overlay.append_change(added), [insert.member for insert in group])


def _finish_files(stage: StagingArea, writer: DataFileWriter) -> tuple[NewFile, ...]:
    try:
        return stage.track(writer.finish())
    except BaseException:
        writer.discard()
        raise


def _assign_row_ids(files: tuple[NewFile, ...], first: int) -> tuple[NewFile, ...]:
    starts = accumulate((file.rows for file in files), initial=first)
    return tuple(replace(file, first_row_id=start) for file, start in zip(files, starts, strict=False))


def _insert_result(receipt: Receipt) -> InsertResult:
    (written,) = receipt.written
    return InsertResult(written.inserted, written.first_row_id, receipt)


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the rows, so that a small slice does not keep a large message in memory."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
