"""Find datasets and versions, and stream their rows with a projection and a filter expression."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock.catalog import dataset_search, snapshots
from penstock.core import selector
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import DataFile
from penstock.core.dataset.column_stats import Bounds, StatValue, stat_value
from penstock.core.dataset.snapshot import DatasetVersionInfo, Snapshot
from penstock.core.names import ROW_ID_COLUMN, DatasetName
from penstock.core.odata import QueryOptions
from penstock.core.paging import SearchPage
from penstock.engines.arrow.selector import to_arrow_filter
from penstock.errors import Invalid, NotFound, Unsupported
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.workspace import Workspace
from penstock.storage import scan as storage_scan
from penstock.storage.file_store import FileStore
from penstock.storage.scan import scan

SEARCH_FIELDS = dataset_search.FIELDS
BATCH_ROWS = storage_scan.BATCH_ROWS  # the default size of a batch
SCAN_BUFFER_BYTES = storage_scan.SCAN_BUFFER_BYTES  # of encoded pages
READ_AHEAD_SCAN_BYTES = storage_scan.READ_AHEAD_SCAN_BYTES  # largest memory of a scan that reads ahead
MAX_VERSIONS = 100_000  # of one page of a history

_MAX_ROW_ID = (1 << 63) - 1


def find(ws: Workspace, caller: Caller, dataset: DatasetName | UUID) -> Snapshot:
    """Return the newest snapshot of a dataset, by id or name."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return snapshots.newest(tx, dataset) if isinstance(dataset, UUID) else snapshots.by_name(tx, dataset)


def find_at_commit(ws: Workspace, caller: Caller, name: DatasetName, commit_no: int) -> Snapshot:
    """Return the snapshot of the dataset that had this name after a commit of the tenant."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return snapshots.by_name_at_commit(tx, name, commit_no)


def resolve_commit(ws: Workspace, caller: Caller, commit_no: int | None = None) -> int:
    """Return the number of the tenant's newest commit, or check that a commit number exists.

    Raises:
        NotFound: the tenant has no commit with this number
    """
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        newest = snapshots.commit_no(tx)
    if commit_no is not None and not 0 <= commit_no <= newest:
        raise NotFound("commit_not_found", {"commit_no": commit_no, "newest": newest})
    return newest if commit_no is None else commit_no


def list_all(ws: Workspace, caller: Caller) -> list[Snapshot]:
    """Return the newest snapshots of all datasets of the tenant."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return snapshots.list_newest(tx)


def schema_names(ws: Workspace, caller: Caller) -> list[str]:
    """Return the namespaces that contain a dataset."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return dataset_search.list_namespaces(tx)


def search(ws: Workspace, caller: Caller, options: QueryOptions) -> SearchPage[Snapshot]:
    """Return one page of the datasets that match the options, as newest snapshots."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return dataset_search.search(tx, options)


def find_version(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    *,
    version: int | None = None,
    commit_no: int | None = None,
    time: datetime | None = None,
) -> Snapshot:
    """Return the snapshot of a dataset at a version, at a commit of the tenant, or at a time.

    Raises:
        Invalid: not exactly one of version, commit_no and time is given, or the time has no time zone
        NotFound: the dataset does not have such a version
    """
    caller.require(Role.VIEWER)
    selectors = [value for value in (version, commit_no, time) if value is not None]
    if len(selectors) != 1:
        raise Invalid("ambiguous_version")
    if time is not None and time.tzinfo is None:
        raise Invalid("naive_time", {"time": time.isoformat()})
    if commit_no is not None:
        resolve_commit(ws, caller, commit_no)
    with ws.db.read(caller) as tx:
        if version is not None:
            return snapshots.at_version(tx, dataset, version)
        return snapshots.as_of(tx, dataset, selectors[0])


def versions(
    ws: Workspace, caller: Caller, dataset: UUID, *, limit: int = 100, before: int | None = None
) -> list[DatasetVersionInfo]:
    """Return the history of a dataset, newest version first, starting below the version `before`."""
    caller.require(Role.VIEWER)
    if not 0 < limit <= MAX_VERSIONS:
        raise Invalid("bad_limit", {"max_versions": MAX_VERSIONS, "limit": limit})
    with ws.db.read(caller) as tx:
        snapshots.newest(tx, dataset)
        return snapshots.versions(tx, dataset, limit=limit, before=before)


def files(ws: Workspace, caller: Caller, snapshot: Snapshot, where: str | None = None) -> list[DataFile]:
    """Return the files that a scan with this filter expression would open."""
    return files_matching(ws, caller, snapshot, _parse_filter(where, snapshot.schema, row_ids=snapshot.row_ids))


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Select the rows and columns of a scan, and how they are read."""

    columns: Sequence[str] | None = None
    where: str | None = None
    row_ids: bool = False
    batch_rows: int = BATCH_ROWS
    read_ahead: bool = True  # read before the consumer requests rows; off for streams that slow clients may keep open


def scan_rows(
    ws: Workspace,
    caller: Caller,
    snapshot: Snapshot,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    row_ids: bool = False,
    batch_rows: int = BATCH_ROWS,
    read_ahead: bool = True,
) -> pa.RecordBatchReader:
    """Stream rows of a snapshot in bounded memory. Files that cannot contain a matching row are not opened.

    Args:
        ws: the workspace
        caller: needs the role viewer
        snapshot: the dataset at one version
        columns: the columns to read; None: all
        where: a filter expression
        row_ids: add the column `rowid`
        batch_rows: the largest number of rows in a batch
        read_ahead: read before the consumer requests rows; takes up to READ_AHEAD_SCAN_BYTES of memory

    Raises:
        Invalid: a column does not exist, or the filter expression is not valid
        Unsupported: row ids are requested, and the dataset has none
    """
    options = ScanOptions(columns, where, row_ids, batch_rows, read_ahead)
    store = ws.store_of(caller)
    return _scan(store, snapshot, snapshot.schema, options, lambda node: files_matching(ws, caller, snapshot, node))


def scan_overlay(ws: Workspace, caller: Caller, overlay: DatasetOverlay, options: ScanOptions) -> pa.RecordBatchReader:
    """Stream rows of an overlay: the dataset as a transaction sees it."""
    return _scan(
        ws.store_of(caller),
        overlay.base,
        overlay.schema,
        options,
        lambda node: overlay.files(_bounds(node), ids=_row_id_ranges(node, overlay.base)),
    )


def _scan(
    store: FileStore,
    dataset: Snapshot,
    schema: pa.Schema,
    options: ScanOptions,
    files: Callable[[selector.Node | None], list[DataFile]],
) -> pa.RecordBatchReader:
    columns = options.columns
    if columns is not None and not columns and not options.row_ids:
        raise Invalid("missing_columns.scan")
    if columns is not None and (unknown := [c for c in columns if c not in schema.names]):
        raise Invalid(
            "column_not_found.scan",
            {"dataset": dataset.name, "names": schema.names},
            column=unknown[0],
        )
    if options.row_ids and not dataset.row_ids:
        raise Unsupported("missing_row_ids.scan", {"name": dataset.name}, dataset=str(dataset.name))
    filter_schema = schema.append(storage_scan.ROW_ID_FIELD) if dataset.row_ids else schema
    node = _parse_filter(options.where, schema, row_ids=dataset.row_ids)
    return scan(
        store,
        files(node),
        schema,
        columns=columns,
        where=None if node is None else to_arrow_filter(node, filter_schema),
        filter_columns=() if node is None else selector.columns(node),
        row_ids=options.row_ids,
        batch_rows=options.batch_rows,
        read_ahead=options.read_ahead,
    )


def _parse_filter(where: str | None, schema: pa.Schema, *, row_ids: bool) -> selector.Node | None:
    if where is None:
        return None
    node = selector.parse(where)
    if row_ids and ROW_ID_COLUMN in selector.columns(node):
        schema = schema.append(storage_scan.ROW_ID_FIELD)
    return selector.bind(node, schema)


def files_matching(ws: Workspace, caller: Caller, snapshot: Snapshot, node: selector.Node | None) -> list[DataFile]:
    """Return the files that may contain rows that match a bound filter expression."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        id_ranges = _row_id_ranges(node, snapshot)
        listed = snapshots.files(tx, snapshot, _bounds(node), row_id_ranges=id_ranges)
    return [file for file in listed if _may_hold(file, id_ranges)]


def _bounds(node: selector.Node | None) -> Bounds:
    intervals = {} if node is None else selector.bounds(node)
    return {
        column: (_stat_value(interval.low), _stat_value(interval.high))
        for column, interval in intervals.items()
        if column != ROW_ID_COLUMN
    }


def _row_id_ranges(node: selector.Node | None, dataset: Snapshot) -> list[tuple[int, int]] | None:
    """Return the range of row ids that a filter expression allows; None: any."""
    interval = selector.bounds(node).get(ROW_ID_COLUMN) if node is not None and dataset.row_ids else None
    if interval is None:
        return None
    low, high = (end if isinstance(end, int) else None for end in (interval.low, interval.high))
    return [(max(low or 0, 0), _MAX_ROW_ID if high is None else min(max(high, 0), _MAX_ROW_ID))]


def _may_hold(file: DataFile, id_ranges: list[tuple[int, int]] | None) -> bool:
    """Return whether a file may hold rows with these ids; the index returns some files that do not."""
    if id_ranges is None or file.row_ids is None:
        return True
    first, last = file.row_ids
    return any(first <= high and low <= last for low, high in id_ranges)


def _stat_value(end: Any) -> StatValue | None:
    return None if end is None else stat_value(end)
