"""Update and delete rows by row id, as a new version.

Rows are marked as deleted in the deletion vectors of their files, and updated rows are written to a new file; a file of
which many rows change is rewritten instead. An edit can be rebased onto any later version in which its rows are
unchanged, so that appends, and edits of other rows, do not conflict with it. If another writer has changed one of the
rows, or replaced a file, the edit finds the rows again.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from penstock.catalog import deletion_vectors, snapshots
from penstock.catalog.database import CatalogTransaction
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Counts, DataFile, DatasetCommit, DeletedRows, NewFile, Receipt
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.dataset.row_digest import RowDigest
from penstock.core.dataset.row_ids import RowIds
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.merge import FileLayout, TargetFile
from penstock.core.merge.key_index import first_repeat
from penstock.core.names import ROW_ID_COLUMN, STORED_ROW_ID_COLUMN
from penstock.core.schema.exact_match import check_exact
from penstock.engines.arrow.parquet_io import ROW_ID
from penstock.engines.arrow.row_edits import (
    OnOldRows,
    RowMatches,
    files_to_read,
    find_rows,
    read_rows,
    rewrite_files,
)
from penstock.errors import Invalid, NotFound, Unsupported
from penstock.service.datasets.commit_retry import commit_with_retry
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_source import validated_batches
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import load_writable
from penstock.service.workspace import Workspace
from penstock.storage.file_store import FileStore

_RETURNED_ROW_ID = pa.field(ROW_ID_COLUMN, pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class EditResult:
    """The outcome of an update or delete."""

    affected: int
    returned: pa.Table | None  # the dataset's columns, then `rowid`; None: not requested
    receipt: Receipt | None = None  # None: the edit is part of a transaction


def update(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    ids: pa.Array,
    rows: pa.Table,
    *,
    returning: bool = False,
    key: str | None = None,
) -> EditResult:
    """Replace the row with id `ids[i]` by `rows[i]`.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        dataset: the id of the dataset
        ids: the row ids, without duplicates
        rows: one row for each id, with exactly the columns of the dataset
        returning: return the updated rows
        key: the idempotency key of the request; None generates one

    Raises:
        Invalid: the ids or the rows are not valid
        NotFound: a row id does not exist; nothing is changed
        Unsupported: the dataset is read-only or has no row ids
    """
    return _edit(ws, caller, dataset, ids, rows, returning, key)


def delete(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    ids: pa.Array,
    *,
    returning: bool = False,
    key: str | None = None,
) -> EditResult:
    """Delete rows by id. Unknown ids are ignored.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        dataset: the id of the dataset
        ids: the row ids
        returning: return the deleted rows, in the order of the ids
        key: the idempotency key of the request; None generates one

    Raises:
        Invalid: the list of ids is empty
        Unsupported: the dataset is read-only or has no row ids
    """
    return _edit(ws, caller, dataset, ids, None, returning, key)


def _edit(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    ids: pa.Array,
    rows: pa.Table | None,
    returning: bool,
    key: str | None,
) -> EditResult:
    target = DatasetOverlay(ws, caller, load_writable(ws, caller, dataset))
    with StagingArea(ws, caller, key=key) as stage:
        edit = RowEdit(ws, caller, stage, ids, rows, returning=returning)
        if receipt := stage.find_replay(edit.request(target)):
            return edit.result(receipt)
        return edit.result(commit_with_retry(ws, caller, stage, dataset, _RetryableEdit(ws, caller, dataset, edit)))


@dataclass(frozen=True, slots=True)
class _RetryableEdit:
    """Prepare an update or delete for `commit_with_retry`."""

    ws: Workspace
    caller: Caller
    dataset: UUID
    edit: "RowEdit"

    def prepare(self) -> Change:
        newest = load_writable(self.ws, self.caller, self.dataset)
        return self.edit.change(DatasetOverlay(self.ws, self.caller, newest))

    def rebase(self, _change: Change) -> None:
        """Return None: the catalog rebases an edit itself unless its rows were changed; then they are found again."""

    def on_commit(self, tx: CatalogTransaction, receipt: Receipt) -> None:
        """Record nothing: an edit has no record of its own."""


class RowEdit:
    """One update or delete. The ids are sorted once; the change can be prepared for several versions."""

    def __init__(
        self,
        ws: Workspace,
        caller: Caller,
        stage: StagingArea,
        ids: pa.Array,
        rows: pa.Table | None,
        *,
        returning: bool = False,
        in_transaction: bool = False,
    ) -> None:
        self._ws, self._caller, self._stage, self._returning = ws, caller, stage, returning
        self._store = ws.store_of(caller)
        self._policy = ws.edit_policy.for_transactions() if in_transaction else ws.edit_policy.for_row_edits()
        self._verb = "DELETE" if rows is None else "UPDATE"
        check_request(ids, rows)
        self._ids, self._row_ids = ids, RowIds.from_array(ids.to_numpy())
        self._source, self._rows = rows, rows
        self._digest = ""
        self._schema: pa.Schema | None = None  # the schema that the rows were validated against
        self.is_found = np.zeros(len(ids), dtype=bool)  # for each id: whether the last change has found its row
        self.last_result = EditResult(0, None)  # the outcome of the last change

    def request(self, target: DatasetOverlay) -> Change:
        """Return the request as a change without files, for the lookup of its receipt."""
        check_supported(target.base, self._verb)
        self._validate(target.schema)
        return Change(
            target.base.dataset,
            target.base.version.number,
            self._verb.lower(),
            target.schema,
            rebase=True,
            request=self._digest,
        )

    def change(self, target: DatasetOverlay) -> Change:
        """Find the rows, mark them or rewrite their files, and return the change."""
        request = self.request(target)
        files = {self._store.locate(file.path): file for file in target.files(ids=self._row_ids.spans())}
        matches = self._find(files, target.schema)
        affected = sum(map(len, matches))
        returned = _ReturnedRows(self._ws.limits.returned_bytes) if self._returning and self._rows is None else None
        marked = [match for match in matches if self._is_marked(files[match.file.path], match)]
        rewritten = [match for match in matches if not self._is_marked(files[match.file.path], match)]
        if returned:
            self._read_old_rows(files, marked, returned)
        added = (
            *self._write_updated_rows(target, marked),
            *self._rewrite_files(target, files, rewritten, returned.add if returned else None),
        )
        updates = self._rows is not None
        unchanged = sum(match.file.live_rows - len(match) for match in rewritten)
        assert sum(file.rows for file in added) == unchanged + (affected if updates else 0), "rows were lost"
        self.last_result = EditResult(affected, returned.table(target.schema) if returned else self._returned_rows())
        return replace(
            request,
            added=added,
            removed=tuple(files[match.file.path] for match in rewritten),
            deleted=tuple(self._deleted_rows(files[match.file.path], match) for match in marked),
            counts=Counts(updated=affected) if updates else Counts(deleted=affected),
        )

    def _is_marked(self, file: DataFile, match: RowMatches) -> bool:
        # A staged file, whose number is 0, belongs to this writer: to rewrite it conflicts with no other.
        policy = self._policy if file.number else self._ws.edit_policy
        return policy.marks(file.rows, file.rows - file.live_rows, len(match))

    def _deleted_rows(self, file: DataFile, match: RowMatches) -> DeletedRows:
        row_ids = None if file.first_row_id is not None else self._ids.to_numpy()[match.id_indices]
        return DeletedRows(file, DeletionVector.from_positions(match.positions), row_ids)

    def _write_updated_rows(self, target: DatasetOverlay, marked: list[RowMatches]) -> tuple[NewFile, ...]:
        """Write the new values of marked rows to a file, in the order of their row ids."""
        if self._rows is None or not marked:
            return ()
        indices = np.concatenate([match.id_indices for match in marked])
        indices = pa.array(indices[np.argsort(self._ids.to_numpy()[indices])])
        rows = self._rows.take(indices).append_column(ROW_ID, self._ids.take(indices))
        return self._stage.write(target.location, target.schema.append(ROW_ID), rows.to_batches())

    def _rewrite_files(
        self,
        target: DatasetOverlay,
        files: Mapping[str, DataFile],
        rewritten: list[RowMatches],
        on_old_rows: OnOldRows | None,
    ) -> tuple[NewFile, ...]:
        sink = self._stage.sink(target.location, target.schema)
        with self._store.open_local(files[match.file.path] for match in rewritten):
            outputs = rewrite_files(rewritten, self._rows, sink, on_old_rows)
            # A file is hashed and flushed while the engine writes the next ones.
            return self._stage.adopt(target.location, ((output.path, target.schema) for output in outputs))

    def _read_old_rows(
        self, files: Mapping[str, DataFile], matches: list[RowMatches], returned: "_ReturnedRows"
    ) -> None:
        with self._store.open_local(files[match.file.path] for match in matches):
            read_rows(matches, returned.add)

    def result(self, receipt: Receipt) -> EditResult:
        """Return the outcome of the committed edit. The receipt may be that of an earlier, identical request."""
        if not receipt.replayed:
            return replace(self.last_result, receipt=receipt)
        (written,) = receipt.written
        returned = self._returned_rows()
        if self._returning and self._rows is None:
            returned = self._read_deleted(receipt)
        return EditResult(written.updated + written.deleted, returned, receipt)

    def _validate(self, schema: pa.Schema) -> None:
        """Validate the rows against the schema, cast them, and compute the digest of the request."""
        if schema == self._schema:
            return
        if self._source is not None:
            self._rows = self._cast(self._source, schema)
        if self._stage.has_client_key:
            self._digest = request_digest(self._ids, self._source)
        self._schema = schema

    def _cast(self, source: pa.Table, schema: pa.Schema) -> pa.Table:
        rows = cast_rows(self._ws, source, schema)
        if self._returning and rows.nbytes + self._ids.nbytes > self._ws.limits.returned_bytes:
            raise returned_too_large_error(self._ws.limits.returned_bytes)
        return rows

    def _find(self, files: Mapping[str, DataFile], schema: pa.Schema) -> list[RowMatches]:
        """Find the rows in the files.

        Raises:
            NotFound: a row id of an update does not exist
        """
        matches = locate_rows(self._ws, self._store, files, schema, self._row_ids)
        is_found = np.zeros(len(self._ids), dtype=bool)
        for match in matches:
            is_found[match.id_indices] = True
        assert is_found.sum() == sum(map(len, matches)), "two rows have the same row id"
        self.is_found = is_found
        missing = self._row_ids.positions[~is_found[self._row_ids.positions]]
        if len(missing) and self._rows is not None:
            first = self._ids[int(missing.min())].as_py()
            raise NotFound("row_not_found", row_id=first, missing_rows=len(missing))
        return matches

    def updated_rows(self) -> pa.Table:
        """Return the rows of an update, which are stored as they were sent, with their ids."""
        assert self._rows is not None, "a delete has no new rows"
        return self._rows.append_column(_RETURNED_ROW_ID, self._ids)

    def _returned_rows(self) -> pa.Table | None:
        return self.updated_rows() if self._returning and self._rows is not None else None

    def _read_deleted(self, receipt: Receipt) -> pa.Table:
        """Return the rows of an earlier delete, read from the version before it.

        Raises:
            NotFound: that version was swept
        """
        (written,) = receipt.written
        deleted = _ReturnedRows(self._ws.limits.returned_bytes)
        with self._ws.db.read(self._caller) as tx:
            if not written.deleted:
                return deleted.table(snapshots.newest(tx, written.dataset).schema)
            try:
                before = snapshots.at_version(tx, written.dataset, written.version - 1)
                listed = snapshots.files(tx, before, row_id_ranges=self._row_ids.spans())
            except NotFound as error:
                if error.reason != "version_not_found":
                    raise
                raise _deleted_rows_swept_error(written) from error
        files = {self._store.locate(file.path): file for file in listed}
        self._read_old_rows(files, self._find(files, before.schema), deleted)
        return deleted.table(before.schema)


def relocate(ws: Workspace, caller: Caller, change: Change) -> Change | None:
    """Locate the rows of an edit again, in the files to which a compaction has moved them.

    Returns:
        The change for the version that the compaction has created; None if there is none, if another writer has changed
        one of the rows or replaced a file first, or if the change replaces whole files.
    """
    if not (change.deleted and change.rebase) or change.removed:
        return None
    row_ids = [deleted.all_row_ids() for deleted in change.deleted]
    if any(ids is None for ids in row_ids):
        return None
    ids = np.concatenate(row_ids)
    with ws.db.read(caller) as tx:
        moved = snapshots.first_end(tx, change.dataset, [deleted.file.number for deleted in change.deleted])
        read, compacted = (
            snapshots.version_info(tx, change.dataset, number) for number in (change.rows_read_at, moved or 0)
        )
        # A sweep of the version that was read has deleted the record of later changes.
        if read is None or read.swept or compacted is None or compacted.operation != "compact":
            return None
        try:
            deletion_vectors.check_rows(tx, change.dataset, change.deleted, change.rows_read_at)
        except deletion_vectors.RowsChanged:
            return None
        target = snapshots.at_version(tx, change.dataset, compacted.number)
        listed = snapshots.files(tx, target, row_id_ranges=RowIds.from_array(ids).spans())
    store = ws.store_of(caller)
    files = {store.locate(file.path): file for file in listed}
    matches = locate_rows(ws, store, files, target.schema, RowIds.from_array(ids))
    if sum(map(len, matches)) != len(ids):
        return None
    deleted = tuple(
        DeletedRows(
            files[match.file.path], DeletionVector.from_positions(match.positions), np.asarray(ids)[match.id_indices]
        )
        for match in matches
    )
    return replace(change.rebased(compacted.number), read_version=compacted.number, deleted=deleted)


def locate_rows(
    ws: Workspace, store: FileStore, files: Mapping[str, NewFile], schema: pa.Schema, ids: RowIds
) -> list[RowMatches]:
    """Locate row ids in files. Only files that store row ids, and may contain one of these, are read."""
    targets = [target_file(ws, path, file, schema) for path, file in files.items()]
    with store.open_local(files[target.path] for target in files_to_read(targets, ids)):
        return find_rows(targets, ids)


def target_file(ws: Workspace, path: str, file: NewFile, schema: pa.Schema) -> TargetFile:
    """Describe a data file for `find_rows`."""
    first = file.first_row_id
    ids = file.row_ids if first is None else (first, first + file.rows - 1)
    assert ids is not None
    layout = FileLayout(schema.append(ROW_ID), group_rows=ws.file_sizing.group_rows, differences=True)
    return TargetFile(
        path, file.rows, layout, bounds={STORED_ROW_ID_COLUMN: ids}, first_row_id=first, deleted=file.deleted
    )


def request_digest(ids: pa.Array, rows: pa.Table | None) -> str:
    """Return a digest of an update or delete, which identifies a retry with the same idempotency key."""
    parts = [pa.table({"ids": ids}), *([] if rows is None else [rows])]
    digests = [RowDigest(part.schema) for part in parts]
    for digest, part in zip(digests, parts, strict=True):
        for batch in part.to_batches():
            digest.add(batch)
    return " ".join(digest.hexdigest() for digest in digests)


def cast_rows(ws: Workspace, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of an update with the types of the schema.

    Raises:
        Invalid: the rows do not match the schema
    """
    check_exact(rows.schema, schema)  # checked for each version: another writer may have added a column
    return pa.Table.from_batches(validated_batches(iter(rows.to_batches()), schema, ws.limits), schema)


def check_request(ids: pa.Array, rows: pa.Table | None) -> None:
    """Raise Invalid if an update (`rows`) or a delete (None) is wrong whatever the dataset contains."""
    check_ids(ids, "DELETE" if rows is None else "UPDATE")
    if rows is not None:
        check_count(len(ids), rows.num_rows)


def check_ids(ids: pa.Array, verb: str) -> None:
    """Raise Invalid if the list of row ids is empty, or has duplicates for an update."""
    if not len(ids):
        raise Invalid("empty_row_ids", {"verb": verb})
    if verb == "UPDATE" and (repeat := first_repeat(ids)):
        row_id = ids[repeat[1]].as_py()
        raise Invalid("duplicate_row_ids", row_id=row_id)


def check_count(ids: int, rows: int) -> None:
    """Raise Invalid if an update does not have one row for each row id."""
    if ids != rows:
        raise Invalid("row_count_mismatch.update", {"ids": ids, "rows": rows})


def check_supported(target: Snapshot, verb: str) -> None:
    """Raise Unsupported if rows are updated or deleted in a dataset without row ids."""
    if verb != "INSERT" and not target.row_ids:
        raise Unsupported(
            "missing_row_ids.edit",
            {"table": target.name.table, "verb": verb},
            dataset=str(target.name),
        )


def returned_too_large_error(max_bytes: int) -> Invalid:
    """Return the error for a write whose returned rows exceed the limit."""
    return Invalid("returned_too_large", {"max_bytes": max_bytes})


def _deleted_rows_swept_error(written: DatasetCommit) -> NotFound:
    return NotFound(
        "deleted_rows_swept",
        {
            "count": written.deleted,
            "name": written.name,
            "version": written.version,
            "before": written.version - 1,
        },
        dataset=written.name,
        requested_version=written.version - 1,
        actual_version=written.version,
    )


class _ReturnedRows:
    """Collect deleted rows to return, with the indices of their ids in the request."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._lock = threading.Lock()
        self._rows: list[pa.RecordBatch] = []
        self._indices: list[Any] = []

    def add(self, indices: Any, rows: pa.RecordBatch) -> None:
        """Add rows. Called by several threads."""
        with self._lock:
            self._bytes += rows.nbytes
            if self._bytes > self._max_bytes:
                raise returned_too_large_error(self._max_bytes)
            self._indices.append(indices)
            self._rows.append(rows)

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return the rows in the order of the request, with their ids."""
        returned = schema.append(_RETURNED_ROW_ID)
        if not self._rows:
            return returned.empty_table()
        whole = pa.Table.from_batches(self._rows)
        order = np.argsort(np.concatenate(self._indices))
        return pa.table(whole.take(pa.array(order)).columns, schema=returned)
