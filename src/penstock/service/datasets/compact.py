"""Rewrite many small files into few, as a new version with the same rows and row ids."""

from collections.abc import Iterator
from uuid import UUID

import pyarrow as pa

from penstock.catalog import snapshots as history
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, DataFile, NewFile, Receipt
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import CARRIED
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Progress, Stage, writable
from penstock.storage.scan import carried, scan

_SMALL = 0.75  # a file below this part of the target size is worth rewriting


def small_files(ws: Workspace, caller: Caller, snapshot: Snapshot) -> list[DataFile]:
    """The files that a compaction would replace: the small ones, if there is more than one."""
    with ws.db.read(caller) as tx:
        files = history.files(tx, snapshot)
    small = [file for file in files if file.bytes < ws.shape.file_bytes * _SMALL]
    return small if len(small) > 1 else []


def compact(
    ws: Workspace, caller: Caller, dataset: UUID, *, progress: Progress | None = None, key: str | None = None
) -> Receipt:
    """Rows that others add meanwhile stay as they are; a conflict with somebody who replaces the same files is told."""
    target = writable(ws, caller, dataset)
    small = small_files(ws, caller, target)
    with Stage(ws, caller, progress, key) as stage:
        added: tuple[NewFile, ...] = ()
        if small:
            schema = target.schema.append(pa.field(CARRIED, pa.int64(), nullable=False))
            added = stage.write(target.location, schema if target.row_ids else target.schema, _rows(ws, target, small))
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


def _rows(ws: Workspace, target: Snapshot, files: list[DataFile]) -> Iterator[pa.RecordBatch]:
    if not target.row_ids:
        yield from scan(ws.store, files, target.schema)
        return
    for file in files:
        yield from carried(ws.store, file, target.schema)
