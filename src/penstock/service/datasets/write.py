"""Append to, overwrite and create datasets: check the role, validate and stage the rows, commit, return the receipt."""

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa

from penstock.catalog import snapshots
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import (
    NewDataset,
    Receipt,
)
from penstock.core.dataset.cluster_key import check_cluster_key
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.core.progress import ProgressCallback
from penstock.core.schema.canonical import canonical_schema
from penstock.errors import Unsupported
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_source import SourceReader
from penstock.service.datasets.staging import StagingArea
from penstock.service.workspace import Workspace


def append(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    source: SourceReader,
    *,
    key: str | None = None,
    progress: ProgressCallback | None = None,
) -> Receipt:
    """Append rows to a dataset. An append never conflicts with other writers.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        dataset: the id of the dataset
        source: the rows
        key: the idempotency key of the request; None generates one
        progress: receives the number of rows written; may raise to stop the write

    Returns:
        The receipt of the commit.

    Raises:
        Invalid: the rows do not fit the schema of the dataset
        NotFound: the dataset does not exist
        Unsupported: the dataset is read-only
    """
    target = load_writable(ws, caller, dataset)
    with StagingArea(ws, caller, progress, key) as stage:
        return stage.commit([stage.append(DatasetOverlay(ws, caller, target), source)])


def overwrite(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    source: SourceReader,
    *,
    base: int | None = None,
    key: str | None = None,
    progress: ProgressCallback | None = None,
) -> Receipt:
    """Replace all rows of a dataset.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        dataset: the id of the dataset
        source: the rows
        base: the version that is replaced; None: the newest one
        key: the idempotency key of the request; None generates one
        progress: receives the number of rows written; may raise to stop the write

    Returns:
        The receipt of the commit.

    Raises:
        Conflict: the dataset has a newer version than `base`
        Invalid: the rows do not fit the schema of the dataset
    """
    target = load_writable(ws, caller, dataset)
    with StagingArea(ws, caller, progress, key) as stage:
        return stage.commit([stage.overwrite(DatasetOverlay(ws, caller, target), source, base=base)])


def create(
    ws: Workspace,
    caller: Caller,
    name: DatasetName,
    schema: pa.Schema,
    source: SourceReader | None = None,
    *,
    row_ids: bool = True,
    read_only: bool = False,
    cluster_by: str | Sequence[str] = (),
    key: str | None = None,
    progress: ProgressCallback | None = None,
) -> Receipt:
    """Create a dataset, with its first rows if a source is given, in one commit.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        name: the name of the dataset
        schema: its columns
        source: its first rows
        row_ids: whether its rows have row ids
        read_only: whether later writes are rejected
        cluster_by: the columns that compaction sorts the rows by
        key: the idempotency key of the request; None generates one
        progress: receives the number of rows written; may raise to stop the write

    Returns:
        The receipt of the commit.

    Raises:
        AlreadyExists: a dataset with this name exists
        Invalid: the schema, a row or the cluster key is invalid
    """
    caller.require(Role.DEVELOPER)
    cluster_key = check_cluster_key(cluster_by, canonical_schema(schema)) if cluster_by else ()
    with StagingArea(ws, caller, progress, key) as stage:
        creation = NewDataset(name, row_ids=row_ids, read_only=read_only, cluster_by=cluster_key)
        return stage.commit([stage.create(creation, schema, source)])


def load_writable(ws: Workspace, caller: Caller, dataset: UUID) -> Snapshot:
    """Load the newest snapshot of a dataset that the caller may write to.

    Raises:
        Unsupported: the dataset is read-only
    """
    caller.require(Role.DEVELOPER)
    with ws.db.read(caller) as tx:
        target = snapshots.newest(tx, dataset)
    if target.read_only:
        raise read_only_error(target)
    return target


def read_only_error(target: Snapshot) -> Unsupported:
    """Return the error for a write to a read-only dataset."""
    return Unsupported("read_only.dataset", {"name": target.name}, dataset=str(target.name))
