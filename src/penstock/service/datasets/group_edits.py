"""Commit small concurrent updates and deletes of rows as a group.

Edits of the same caller and dataset that arrive during a commit share the next one: one file with the updated rows, one
version, one transaction, and one receipt for each edit. The edits of a group have no row in common; an edit of a row that
is in the group already waits for the next one.
"""

import copy
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock.catalog import receipts
from penstock.catalog.database import CatalogTransaction
from penstock.core.caller import Caller
from penstock.core.dataset.changes import GENERATED_KEY_PREFIX, Change, Counts, GroupMember, Receipt, fingerprint
from penstock.errors import Invalid, NotFound, PenstockError
from penstock.service.datasets import row_edits
from penstock.service.datasets.commit_queue import CommitQueue
from penstock.service.datasets.commit_retry import retry_commit
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_edits import EditResult, RowEdit
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import load_writable
from penstock.service.idempotency import check_idempotency_key
from penstock.service.workspace import Workspace

_MAX_GROUP_ROWS = 50_000
_GROUP_SIZE_FACTOR = 16  # a group has at most this many times `small_bytes`


class EditService:
    """Commit the updates and deletes of a server process."""

    def __init__(
        self, ws: Workspace, *, small_rows: int = 10_000, small_bytes: int = 1 << 20, max_group_size: int = 256
    ) -> None:
        self._ws, self._small_rows, self._small_bytes, self._max_group_size = (
            ws,
            small_rows,
            small_bytes,
            max_group_size,
        )
        self._queue: CommitQueue[_QueuedEdit] = CommitQueue("edit", self._next_group, partial(_commit_group, ws))

    def submit(
        self,
        caller: Caller,
        dataset: UUID,
        ids: pa.Array,
        rows: pa.Table | None,
        *,
        returning: bool = False,
        key: str | None = None,
    ) -> Future[EditResult]:
        """Update rows by id, or delete them if `rows` is None. The arguments are those of `row_edits.update`.

        Cancelling the future before the commit begins discards the edit.
        """
        edit = _QueuedEdit(caller, dataset, ids, rows, returning, check_idempotency_key(key))
        try:
            row_edits.check_request(ids, rows)
        except Invalid as error:
            edit.done.set_exception(error)
            return edit.done
        is_small = len(ids) <= self._small_rows and edit.bytes <= self._small_bytes
        if is_small and not (returning and rows is None):  # deleted rows are read for one request only
            edit.group_key = caller, dataset
        return self._queue.submit(edit)

    def close(self) -> None:
        """Reject new edits, and wait until the submitted ones are committed."""
        self._queue.close()

    def _next_group(self, queue: deque["_QueuedEdit"]) -> list["_QueuedEdit"]:
        """Take the next group from a queue: in order, without a common row or key, with one schema."""
        group: list[_QueuedEdit] = []
        later: list[_QueuedEdit] = []
        grouped: set[int | str] = set()  # row ids and keys of the group and of the edits that stay in the queue
        schema: pa.Schema | None = None
        free_rows, free_bytes = _MAX_GROUP_ROWS, _GROUP_SIZE_FACTOR * self._small_bytes
        while queue and len(group) < self._max_group_size and free_rows > 0 and free_bytes > 0:
            edit = queue.popleft()
            own = {*edit.ids.to_pylist(), edit.key}
            fits = schema is None or edit.rows is None or edit.rows.schema.equals(schema)
            if not fits or not grouped.isdisjoint(own):
                later.append(edit)
            elif edit.done.set_running_or_notify_cancel():
                group.append(edit)
                schema = schema if edit.rows is None else edit.rows.schema
                free_rows, free_bytes = free_rows - len(edit.ids), free_bytes - edit.bytes
            else:
                continue
            grouped |= own
        queue.extendleft(reversed(later))
        return group


@dataclass(slots=True)
class _QueuedEdit:
    """An update or delete that waits for its commit."""

    caller: Caller
    dataset: UUID
    ids: pa.Array
    rows: pa.Table | None
    returning: bool
    key: str
    group_key: Hashable = None
    done: Future[EditResult] = field(default_factory=Future)

    @property
    def bytes(self) -> int:
        return int(self.ids.nbytes + (self.rows.nbytes if self.rows is not None else 0))

    @property
    def verb(self) -> str:
        return "delete" if self.rows is None else "update"

    def discard(self) -> None:
        """Do nothing: an edit has no files before its commit."""

    def member(self, affected: int) -> GroupMember:
        """Return the part of the edit in a group commit."""
        digest = "" if self.key.startswith(GENERATED_KEY_PREFIX) else row_edits.request_digest(self.ids, self.rows)
        request = Change(self.dataset, 0, self.verb, pa.schema([]), request=digest)
        counts = Counts(deleted=affected) if self.rows is None else Counts(updated=affected)
        return GroupMember(self.key, fingerprint((request,)), counts=counts)

    def commit(self, ws: Workspace) -> None:
        """Commit the edit alone, and complete the future."""
        try:
            call = partial(row_edits.delete, ws, self.caller, self.dataset, self.ids)
            if self.rows is not None:
                call = partial(row_edits.update, ws, self.caller, self.dataset, self.ids, self.rows)
            self.done.set_result(call(returning=self.returning, key=self.key))
        except BaseException as error:
            self.done.set_exception(error)


def _commit_group(ws: Workspace, group: Sequence[_QueuedEdit]) -> None:
    """Commit edits together. An edit that cannot be executed is executed alone, so that it affects no other.

    If the group fails for another reason, each edit is executed alone.
    """
    remaining = list(group)
    try:
        while len(remaining) > 1:
            try:
                outcomes = _commit_together(ws, remaining)
            except _InvalidEdits as error:
                for edit in error.edits:
                    edit.commit(ws)
            else:
                for edit in remaining:
                    outcome = outcomes.get(edit.key)
                    if isinstance(outcome, EditResult):
                        edit.done.set_result(outcome)
                    elif outcome is not None:
                        edit.done.set_exception(outcome)
            remaining = [edit for edit in remaining if not edit.done.done()]
    except PenstockError as error:
        if error.reason == "unknown_outcome":
            for edit in remaining:
                edit.done.set_exception(receipts.unknown_outcome(edit.key))
            return
    except Exception:  # noqa: S110  # each edit reports its own error below
        pass
    for edit in remaining:
        if not edit.done.done():
            edit.commit(ws)


def _commit_together(ws: Workspace, group: Sequence[_QueuedEdit]) -> dict[str, EditResult | PenstockError]:
    """Commit edits in one version and return the result of each.

    If keys were used before, nothing is written, and only the results of their edits are returned.

    Raises:
        _InvalidEdits: nothing is written, because some of the edits cannot be executed
    """
    first = group[0]
    with StagingArea(ws, first.caller) as stage:
        write = _GroupWrite(ws, stage, group)

        def commit(change: Change, lock_holder: UUID | None) -> receipts.ReceiptsByKey:
            return stage.group_commit(change, write.members(), lock_holder=lock_holder)

        try:
            by_key = retry_commit(ws, first.caller, stage, first.dataset, write, commit)
        except (Invalid, NotFound) as error:
            if invalid := write.find_invalid(error):
                raise _InvalidEdits(invalid) from error
            raise
    return {
        edit.key: write.result(edit, outcome) if isinstance(outcome, Receipt) else copy.copy(outcome)
        for edit in group
        if (outcome := by_key.get(edit.key)) is not None
    }


class _InvalidEdits(Exception):
    """Some edits of a group cannot be executed."""

    def __init__(self, edits: Sequence[_QueuedEdit]) -> None:
        self.edits = edits


class _GroupWrite:
    """Prepare the updates and deletes of a group for `retry_commit`: all updates as one, and all deletes as one."""

    def __init__(self, ws: Workspace, stage: StagingArea, group: Sequence[_QueuedEdit]) -> None:
        self._ws, self._group = ws, group
        self._caller, self._dataset = group[0].caller, group[0].dataset
        self._parts: list[tuple[RowEdit, list[_QueuedEdit]]] = []
        for edits in ([e for e in group if e.rows is not None], [e for e in group if e.rows is None]):
            if edits:
                ids = pa.concat_arrays([edit.ids for edit in edits])
                tables = [edit.rows for edit in edits if edit.rows is not None]
                rows = pa.concat_tables(tables) if tables else None
                self._parts.append((RowEdit(ws, self._caller, stage, ids, rows), edits))

    def prepare(self) -> Change:
        overlay = DatasetOverlay(self._ws, self._caller, load_writable(self._ws, self._caller, self._dataset))
        for combined, _ in self._parts:
            overlay.apply(combined.change(overlay))
        return overlay.change()

    def find_invalid(self, error: PenstockError) -> list[_QueuedEdit]:
        """Return the edits that caused the error of `prepare`: those with an unknown row id, or with invalid rows."""
        combined, updates = self._parts[0]
        if error.reason == "row_not_found":
            return [edit for edit, is_found in self._split(updates, combined.is_found) if not is_found.all()]
        schema = load_writable(self._ws, self._caller, self._dataset).schema
        return [edit for edit in updates if edit.rows is not None and not self._is_valid(edit.rows, schema)]

    def _is_valid(self, rows: pa.Table, schema: pa.Schema) -> bool:
        try:
            row_edits.cast_rows(self._ws, rows, schema)
        except Invalid:
            return False
        return True

    @staticmethod
    def _split(edits: Sequence[_QueuedEdit], values: Any) -> Iterator[tuple[_QueuedEdit, Any]]:
        """Yield each edit with its part of an array that has a value for each row id."""
        first = 0
        for edit in edits:
            yield edit, values[first : first + len(edit.ids)]
            first += len(edit.ids)

    def rebase(self, _change: Change) -> None:
        """Return None: the catalog rebases edits itself unless their rows were changed; then they are found again."""

    def on_commit(self, tx: CatalogTransaction, receipt: Receipt) -> None:
        """Record nothing: an edit has no record of its own."""

    def members(self) -> list[GroupMember]:
        """Return the part of each edit, with the rows that the last `prepare` has found."""
        members = {}
        for combined, edits in self._parts:
            for edit, is_found in self._split(edits, combined.is_found):
                members[edit.key] = edit.member(int(is_found.sum()))
        return [members[edit.key] for edit in self._group]

    def result(self, edit: _QueuedEdit, receipt: Receipt) -> EditResult:
        """Return the result of one edit. The receipt may be that of an earlier, identical request."""
        (written,) = receipt.written
        returned = None
        if edit.returning:  # an update: its rows are stored as they were sent
            combined, edits = self._parts[0]
            start = sum(len(other.ids) for other in edits[: edits.index(edit)])
            returned = combined.updated_rows().slice(start, len(edit.ids))
        return EditResult(written.updated + written.deleted, returned, receipt)
