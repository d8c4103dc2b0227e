"""Read rows of any retained version: as a stream, with the columns and rows that are wanted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock.catalog import dataset_search as datasets
from penstock.catalog import snapshots as history
from penstock.catalog.odata_sql import Page
from penstock.core import selector
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import DataFile
from penstock.core.dataset.snapshot import Snapshot, Version
from penstock.core.names import DatasetName
from penstock.core.odata import Options
from penstock.core.dataset.column_stats import Bounds, Plain, plain
from penstock.engines.arrow.selector import expression
from penstock.errors import Invalid, NotFound, Unsupported
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace
from penstock.storage.scan import BATCH_ROWS, scan

FIELDS = datasets.FIELDS  # of datasets, that can be searched
MAX_VERSIONS = 100_000  # of a history, at once


def find(ws: Workspace, caller: Caller, dataset: DatasetName | UUID) -> Snapshot:
    """A dataset as it is now."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return history.newest(tx, dataset) if isinstance(dataset, UUID) else history.named(tx, dataset)


def find_then(ws: Workspace, caller: Caller, name: DatasetName, commit_no: int) -> Snapshot:
    """The dataset that had the name after a commit, as it was then."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return history.named_then(tx, name, commit_no)


def moment(ws: Workspace, caller: Caller, commit_no: int | None = None) -> int:
    """The number of a snapshot of all the tenant's datasets: the newest, or an earlier one."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        newest = history.commit_no(tx)
    if commit_no is not None and not 0 <= commit_no <= newest:
        raise NotFound("commit_not_found", f"there is no commit {commit_no}; the newest is {newest}")
    return newest if commit_no is None else commit_no


def everything(ws: Workspace, caller: Caller) -> list[Snapshot]:
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return history.datasets_now(tx)


def schema_names(ws: Workspace, caller: Caller) -> list[str]:
    """The schemas that have a dataset."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return datasets.schema_names(tx)


def search(ws: Workspace, caller: Caller, options: Options) -> Page[Snapshot]:
    """A page of the datasets that fit, as they are now."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return datasets.search(tx, options)


def at(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    *,
    version: int | None = None,
    commit_no: int | None = None,
    time: datetime | None = None,
) -> Snapshot:
    """A dataset as it was: at a version, at a commit of the tenant, or at a time."""
    caller.require(Role.VIEWER)
    given = [moment for moment in (version, commit_no, time) if moment is not None]
    if len(given) != 1:
        raise Invalid("which_version", "say one of version, commit_no and time")
    if time is not None and time.tzinfo is None:
        raise Invalid("naive_time", f"the time {time.isoformat()} has no zone; write it with Z or an offset")
    if commit_no is not None:
        moment(ws, caller, commit_no)
    with ws.db.read(caller) as tx:
        if version is not None:
            return history.at_version(tx, dataset, version)
        return history.as_of(tx, dataset, given[0])


def versions(
    ws: Workspace, caller: Caller, dataset: UUID, *, limit: int = 100, before: int | None = None
) -> list[Version]:
    caller.require(Role.VIEWER)
    if not 0 < limit <= MAX_VERSIONS:
        raise Invalid("bad_limit", f"ask for 1 to {MAX_VERSIONS:,} versions at once, not {limit}")
    with ws.db.read(caller) as tx:
        history.newest(tx, dataset)
        return history.versions(tx, dataset, limit=limit, before=before)


def files(ws: Workspace, caller: Caller, snapshot: Snapshot, where: str | None = None) -> list[DataFile]:
    """The files that a read would open."""
    return holding(ws, caller, snapshot, _bound(where, snapshot.schema))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows of a dataset, and what of them."""

    columns: Sequence[str] | None = None
    where: str | None = None
    row_ids: bool = False
    batch_rows: int = BATCH_ROWS
    ahead: bool = True  # read before it is asked for; not for a stream that many may hold open, and slowly


def rows(
    ws: Workspace,
    caller: Caller,
    snapshot: Snapshot,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    row_ids: bool = False,
    batch_rows: int = BATCH_ROWS,
    ahead: bool = True,
) -> pa.RecordBatchReader:
    """A stream of rows in bounded memory. Files that cannot hold a wanted row are not opened."""
    wanted = Wanted(columns, where, row_ids, batch_rows, ahead)
    return _stream(ws, snapshot, snapshot.schema, wanted, lambda found: holding(ws, caller, snapshot, found))


def rows_within(ws: Workspace, working: Working, wanted: Wanted) -> pa.RecordBatchReader:
    """The same of a dataset as a transaction has it so far."""
    return _stream(ws, working.base, working.schema, wanted, lambda found: working.files(_bounds(found)))


def _stream(
    ws: Workspace,
    dataset: Snapshot,
    schema: pa.Schema,
    wanted: Wanted,
    files: Callable[[selector.Node | None], list[DataFile]],
) -> pa.RecordBatchReader:
    columns = wanted.columns
    if columns is not None and not columns:
        raise Invalid("no_columns", "no column is asked for; name one or more, or none for all")
    if columns is not None and (unknown := [c for c in columns if c not in schema.names]):
        raise Invalid(
            "no_such_column",
            f"there is no column {unknown[0]!r}; {dataset.name} has {', '.join(schema.names)}",
            column=unknown[0],
        )
    if wanted.row_ids and not dataset.row_ids:
        raise Unsupported("no_row_ids", f"{dataset.name} keeps no row ids", dataset=str(dataset.name))
    found = _bound(wanted.where, schema)
    return scan(
        ws.store,
        files(found),
        schema,
        columns=columns,
        where=None if found is None else expression(found, schema),
        filtered=() if found is None else selector.columns(found),
        row_ids=wanted.row_ids,
        batch_rows=wanted.batch_rows,
        ahead=wanted.ahead,
    )


def _bound(where: str | None, schema: pa.Schema) -> selector.Node | None:
    return None if where is None else selector.bind(selector.parse(where), schema)


def holding(ws: Workspace, caller: Caller, snapshot: Snapshot, wanted: selector.Node | None) -> list[DataFile]:
    """The files that may hold wanted rows."""
    caller.require(Role.VIEWER)
    with ws.db.read(caller) as tx:
        return history.files(tx, snapshot, _bounds(wanted))


def _bounds(wanted: selector.Node | None) -> Bounds:
    intervals = {} if wanted is None else selector.bounds(wanted)
    return {column: (_plain(interval.low), _plain(interval.high)) for column, interval in intervals.items()}


def _plain(end: Any) -> Plain | None:
    return None if end is None else plain(end)
