"""Rewrite many small files into few, as a new version with the same rows and row ids."""

from collections.abc import Iterator
from uuid import UUID

import pyarrow as pa

from penstock.catalog import snapshots
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, DataFile, NewFile, Receipt
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.core.progress import ProgressCallback
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import load_writable
from penstock.service.workspace import Workspace
from penstock.storage.scan import scan, scan_with_row_ids

_SMALL_FRACTION = 0.75  # a file below this fraction of the target size is worth rewriting


def small_files(ws: Workspace, caller: Caller, snapshot: Snapshot) -> list[DataFile]:
    """Return the files that a compaction would replace: the small ones, if there is more than one."""
    with ws.db.read(caller) as tx:
        files = snapshots.files(tx, snapshot)
    small = [file for file in files if file.bytes < ws.file_sizing.file_bytes * _SMALL_FRACTION]
    return small if len(small) > 1 else []


def compact(
    ws: Workspace, caller: Caller, dataset: UUID, *, progress: ProgressCallback | None = None, key: str | None = None
) -> Receipt:
    """Rewrite the small files of a dataset into few. The commit is rebased over appends of other writers.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        dataset: the id of the dataset
        progress: receives the number of rows rewritten; may raise to stop the compaction
        key: the idempotency key of the request; None generates one

    Returns:
        The receipt of the commit.

    Raises:
        Conflict: another writer has replaced one of the files
    """
    target = load_writable(ws, caller, dataset)
    small = small_files(ws, caller, target)
    with StagingArea(ws, caller, progress, key) as stage:
        added: tuple[NewFile, ...] = ()
        if small:
            stage.progress.update(total=sum(file.live_rows for file in small))
            schema = target.schema.append(pa.field(STORED_ROW_ID_COLUMN, pa.int64(), nullable=False))
            added = stage.write(
                target.location, schema if target.row_ids else target.schema, _read_rows(ws, target, small)
            )
        change = Change(
            dataset,
            target.version.number,
            "compact",
            target.schema,
            added=added,
            removed=tuple(small),
            rebase=True,
        )
        return stage.commit([change])


def _read_rows(ws: Workspace, target: Snapshot, files: list[DataFile]) -> Iterator[pa.RecordBatch]:
    if not target.row_ids:
        yield from scan(ws.store, files, target.schema)
        return
    for file in files:
        yield from scan_with_row_ids(ws.store, file, target.schema)
