"""Inserts whose batches come one by one; small ones that come together are committed together.

The first insert goes at once. Those of the same caller into the same dataset that come while it is under way wait, and
go together after it: one file, one version, one transaction, and a receipt for each.
"""

import copy
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from uuid import UUID

import pyarrow as pa

from penstock.catalog import commit as commits
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import AUTOMATIC, Change, NewFile, Receipt, Share, fingerprint
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.dataset.row_digest import Digest
from penstock.core.names import DatasetName
from penstock.core.schema.canonical import check_fits
from penstock.errors import PenstockError, Unavailable
from penstock.service.datasets.coalesced_reads import Newest
from penstock.service.datasets.row_source import Check
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Stage, checked_key, read_only
from penstock.storage.data_files import Writer

_WORKERS = 32  # commits under way at once, of all callers; one that waits for a held dataset has its thread to itself
_SMALL_BATCHES = 100  # an insert of more is not small, however few rows they hold
_GROUP = 16  # small inserts of the largest size that go together


@dataclass(frozen=True, slots=True)
class Inserted:
    rows: int
    first_row_id: (
        int | None
    )  # row i has first_row_id + i, in the order sent; None: no rows, or the dataset keeps no ids
    receipt: Receipt | None  # None inside a transaction


class Inserts:
    """All inserts of a serving process."""

    def __init__(
        self, ws: Workspace, *, small_rows: int = 10_000, small_bytes: int = 1 << 20, together: int = 256
    ) -> None:
        self.ws, self.small_rows, self.small_bytes, self._together = ws, small_rows, small_bytes, together
        self._newest = Newest(ws)
        self._pool = ThreadPoolExecutor(_WORKERS, "insert")
        self._lock = threading.Condition()
        self._waiting: dict[_Line, deque[_Small]] = {}  # a line is there as long as somebody serves it
        self._closed = False

    def begin(
        self,
        caller: Caller,
        dataset: UUID | Snapshot,
        schema: pa.Schema,
        *,
        key: str | None = None,
        within: tuple[Stage, Working] | None = None,
    ) -> "Insertion":
        """An insert of batches with this schema, into the newest version or `within` a transaction.

        `dataset` is an id, or what `target` has just said. A transaction has a key of its own: `key` means nothing there.
        """
        caller.require(Role.DEVELOPER)
        if within:
            return Insertion(self, caller, within[1], schema, checked_key(key), within[0])
        target = dataset if isinstance(dataset, Snapshot) else self.target(caller, dataset)
        if target.read_only:
            raise read_only(target)
        return Insertion(self, caller, Working(self.ws, caller, target), schema, checked_key(key))

    def target(self, caller: Caller, dataset: DatasetName | UUID) -> Snapshot:
        """A dataset as it is now. Those who ask at the same time share the answer."""
        return self._newest.of(caller, dataset)

    def close(self) -> None:
        """Wait for all that was asked to be committed."""
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: not self._waiting)
        self._pool.shutdown()

    def land(self, asked: "_Small | _Large") -> Future[Inserted]:
        """Commit a complete insert: a large one by itself, a small one with those that wait for the same."""
        with self._lock:
            if not self._closed:
                self._enqueue(asked)
                return asked.done
        asked.discard()
        asked.done.set_exception(Unavailable("shutting_down", "the service is shutting down; insert again later"))
        return asked.done

    def _enqueue(self, asked: "_Small | _Large") -> None:
        if isinstance(asked, _Large):
            self._pool.submit(asked.land)
        elif asked.line in self._waiting:
            self._waiting[asked.line].append(asked)
        else:
            self._waiting[asked.line] = deque([asked])
            self._pool.submit(self._serve, asked.line)

    def _serve(self, line: "_Line") -> None:
        """Commit those who wait. Who comes meanwhile is served after others have had a turn."""
        try:
            with self._lock:
                group = self._group(self._waiting[line])
            _land(self.ws, line.caller, group)
        finally:
            with self._lock:
                if self._waiting[line]:
                    self._pool.submit(self._serve, line)
                else:
                    del self._waiting[line]
                    self._lock.notify_all()

    def _group(self, waiting: deque["_Small"]) -> list["_Small"]:
        """Who goes next: in order, of one schema, no key twice. The second use of a key hears what came of the first."""
        group: list[_Small] = []
        later: list[_Small] = []
        keys: set[str] = set()
        room = _GROUP * self.small_bytes
        while waiting and len(group) < self._together and room > 0:
            each = waiting.popleft()
            if group and (each.share.key in keys or not each.working.schema.equals(group[0].working.schema)):
                later.append(each)
            elif each.done.set_running_or_notify_cancel():
                group.append(each)
                keys.add(each.share.key)
                room -= each.bytes
        waiting.extendleft(reversed(later))
        return group


class Insertion:
    """One insert on its way: `add` its batches, then `commit` it, or `discard` it.

    Inside a transaction, `change` takes the place of `commit`. All but `commit` may wait for a disk. Several threads may
    use it, one at a time. What raises an error has discarded it.
    """

    def __init__(
        self,
        inserts: Inserts,
        caller: Caller,
        working: Working,
        schema: pa.Schema,
        key: str,
        within: Stage | None = None,
    ) -> None:
        check_fits(schema, working.schema)
        self.target: Snapshot = working.base
        self.rows = 0
        self._inserts, self._ws, self._caller, self._working, self._key = inserts, inserts.ws, caller, working, key
        self._digest = None if key.startswith(AUTOMATIC) else Digest(schema)
        self._check = Check(working.schema, self._ws.limits, self._digest.add if self._digest else lambda _: None)
        self._within = within
        self._held: list[pa.RecordBatch] = []  # while it is small
        self._staged: tuple[Stage, Writer] | None = None  # since it is not
        self._over = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch that is sound and fits: into memory while they are few, and then into staged files."""
        assert not self._over, "this insert has ended"
        try:
            for piece in self._check(batch):
                self.rows += piece.num_rows
                if self._staged or self._is_large():
                    self._write(piece)
                elif piece.num_rows:
                    self._held.append(_copied(piece))
        except BaseException:
            self.discard()
            raise

    def commit(self) -> Future[Inserted]:
        """Have it carried out. A future that is cancelled before its turn has come leaves nothing behind."""
        assert not self._over, "this insert has ended"
        assert self._within is None, "inside a transaction, an insert ends as its change"
        self._over = True
        request = self._digest.hexdigest() if self._digest else ""
        if self._staged:
            return self._inserts.land(_Large(*self._staged, self._working, request))
        share = Share(self._key, fingerprint((self._working.appended((), request),)), self.rows)
        line = _Line(self._caller, self.target.dataset)
        return self._inserts.land(_Small(line, self._working, share, self._held, self._check.bytes))

    def change(self) -> tuple[Change, Inserted]:
        """All rows as one change of the transaction's working state, which is left to apply it. They have their ids."""
        assert not self._over, "this insert has ended"
        assert self._within, "outside of a transaction, an insert is committed"
        try:
            if self._staged:
                added = _finished(*self._staged)
            else:
                added = self._within.write(self._working.location, self._working.schema, self._held)
            self._staged = None  # from here on the files are the transaction's
            first = None
            if added and self._working.row_ids:
                first = commits.reserve_row_ids(self._ws.db, self._caller, self.target.dataset, self.rows)
                added = _numbered(added, first)
        except BaseException:
            self.discard()
            raise
        self._over = True
        request = self._digest.hexdigest() if self._digest else ""
        return self._working.appended(added, request), Inserted(self.rows, first, None)

    def discard(self) -> None:
        """Leave nothing behind, unless it was asked to be carried out."""
        if self._over:
            return
        self._over = True
        self._held = []
        if self._staged:
            stage, writer = self._staged
            writer.discard()
            if stage is not self._within:
                stage.discard()

    def _is_large(self) -> bool:
        most = self._inserts
        return self.rows > most.small_rows or self._check.bytes > most.small_bytes or len(self._held) >= _SMALL_BATCHES

    def _write(self, piece: pa.RecordBatch) -> None:
        if self._staged is None:
            stage = self._within or Stage(self._ws, self._caller, key=self._key)
            self._staged = stage, stage.writer(self._working.location, self._working.schema)
            for each in self._held:
                self._staged[1].add(each)
            self._held = []
        stage, writer = self._staged
        stage.wrote(0)  # a stream may trickle for hours before it fills a row group
        writer.add(piece)


@dataclass(frozen=True, slots=True)
class _Line:
    """Who waits here may go together: a version has one author."""

    caller: Caller
    dataset: UUID


@dataclass(frozen=True, slots=True)
class _Small:
    line: _Line
    working: Working
    share: Share
    batches: list[pa.RecordBatch]
    bytes: int
    done: Future[Inserted] = field(default_factory=Future)

    def discard(self) -> None:
        """Nothing was written yet."""

    def tell(self, outcome: Receipt | PenstockError) -> None:
        if isinstance(outcome, Receipt):
            self.done.set_result(_told(outcome))
        else:
            self.done.set_exception(outcome)


@dataclass(frozen=True, slots=True)
class _Large:
    stage: Stage
    writer: Writer
    working: Working
    request: str
    done: Future[Inserted] = field(default_factory=Future)

    def land(self) -> None:
        if not self.done.set_running_or_notify_cancel():
            self.discard()
            return
        try:
            with self.stage:
                added = _finished(self.stage, self.writer)
                receipt = self.stage.commit([self.working.appended(added, self.request)])
            self.done.set_result(_told(receipt))
        except BaseException as error:
            self.done.set_exception(error)

    def discard(self) -> None:
        self.writer.discard()
        self.stage.discard()


def _land(ws: Workspace, caller: Caller, group: list[_Small]) -> None:
    """Carry out small inserts as one append. What concerns one of them alone does not keep the others from it."""
    left = group
    try:
        while left:
            settled = _append(ws, caller, left)
            for each in left:
                if each.share.key in settled:
                    each.tell(settled[each.share.key])
            left = [each for each in left if each.share.key not in settled]
    except PenstockError as refusal:
        for each in left:
            unknown = refusal.reason == "unknown_outcome"
            each.tell(commits.unknown(each.share.key) if unknown else copy.copy(refusal))
    except BaseException as bug:
        if len(left) == 1:
            left[0].done.set_exception(bug)
        else:  # perhaps it is in the rows of one of them
            for each in left:
                _land(ws, caller, [each])


def _append(ws: Workspace, caller: Caller, group: list[_Small]) -> commits.Settled:
    working = group[0].working
    with Stage(ws, caller) as stage:
        batches = (batch for each in group for batch in each.batches)
        added = stage.write(working.location, working.schema, batches)
        return stage.commit_shared(working.appended(added), [each.share for each in group])


def _finished(stage: Stage, writer: Writer) -> tuple[NewFile, ...]:
    try:
        return stage.own(writer.finish())
    except BaseException:
        writer.discard()
        raise


def _numbered(files: tuple[NewFile, ...], first: int) -> tuple[NewFile, ...]:
    starts = accumulate((file.rows for file in files), initial=first)
    return tuple(replace(file, first_row_id=start) for file, start in zip(files, starts, strict=False))


def _told(receipt: Receipt) -> Inserted:
    (written,) = receipt.written
    return Inserted(written.inserted, written.first_row_id, receipt)


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows alone: as they came, a few may keep a large message in memory."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
