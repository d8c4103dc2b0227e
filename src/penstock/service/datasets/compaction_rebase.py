"""Rebase a step of a compaction over edits: delete in its new files the rows that other writers have deleted meanwhile.

The rows of a file that has ended meanwhile are all deleted in the new files: another writer has changed them or moved
them to files of its own.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from penstock.catalog import snapshots
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, DataFile, NewFile
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.dataset.row_ids import RowIds
from penstock.engines.arrow.row_edits import read_row_ids
from penstock.service.datasets.row_edits import locate_rows
from penstock.service.workspace import Workspace
from penstock.storage.file_store import FileStore


def rebase_step(ws: Workspace, caller: Caller, change: Change) -> Change | None:
    """Rebase a step onto the newest version.

    Args:
        ws: the workspace
        caller: the reader of the catalog
        change: the change of the step; its removed files have the deletion vectors of the version that was read

    Returns:
        The change for the newest version; None if the step must be executed again: the rows have no ids, or the new
        files would exceed the limits of deletion vectors.
    """
    with ws.db.read(caller) as tx:
        newest = snapshots.newest(tx, change.dataset)
        live = {
            file.number: file for file in snapshots.live_files(tx, newest, [file.number for file in change.removed])
        }
    changed = [(file, live.get(file.number)) for file in change.removed]
    deleted_count = sum(file.live_rows - (now.live_rows if now else 0) for file, now in changed)
    deleted_before = sum(file.rows - file.live_rows for file in change.added)
    rows = sum(file.rows for file in change.added)
    if not live or not newest.row_ids or not ws.edit_policy.marks(rows, deleted_before, deleted_count):
        return None
    store = ws.store_of(caller)
    row_ids = [ids for file, now in changed if len(ids := _ids_of_deleted_rows(store, file, now))]
    added = _delete_rows(ws, store, change, np.concatenate(row_ids)) if row_ids else change.added
    if added is None:
        return None
    removed = tuple(now for _, now in changed if now)
    return replace(change, base=newest.version.number, read_version=newest.version.number, added=added, removed=removed)


def _ids_of_deleted_rows(store: FileStore, file: DataFile, now: DataFile | None) -> Any:
    """Return the ids of the rows that were deleted since a version was read.

    Args:
        store: the store of the data files
        file: the file with the deletion vector of that version
        now: the file with its newest deletion vector; None: it has ended
    """
    deleted = np.arange(file.rows)
    if now:
        deleted = now.deleted.positions if now.deleted else deleted[:0]
    if file.deleted:
        deleted = deleted[~file.deleted.contains(deleted)]
    if file.first_row_id is not None or not len(deleted):
        return deleted + (file.first_row_id or 0)
    with store.open_local([file]):
        return read_row_ids(store.locate(file.path), deleted)


def _delete_rows(ws: Workspace, store: FileStore, change: Change, row_ids: Any) -> tuple[NewFile, ...] | None:
    """Delete rows in the new files of a step. Return None if a file would exceed the limits of deletion vectors."""
    paths = {store.locate(file.path): file for file in change.added}
    found = locate_rows(ws, store, paths, change.schema, RowIds.from_array(row_ids))
    matches = {match.file.path: match for match in found}
    added = []
    for path, file in paths.items():
        if match := matches.get(path):
            deleted = file.rows - file.live_rows
            if not ws.edit_policy.marks(file.rows, deleted, len(match)) or deleted + len(match) == file.rows:
                return None
            positions = DeletionVector.from_positions(match.positions)
            added.append(replace(file, deleted=file.deleted | positions if file.deleted else positions))
        else:
            added.append(file)
    return tuple(added)
