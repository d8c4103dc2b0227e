"""Read datasets at a version, their history, and the files of a version."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, and_, bindparam, func, or_, select

from penstock.catalog import deletion_vectors, range_index
from penstock.catalog.database import CatalogTransaction, in_chunks
from penstock.catalog.tables import data_files, dataset_schemas, dataset_versions, datasets, tenants
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.dataset.changes import Counts, DataFile
from penstock.core.dataset.column_stats import Bounds, ColumnStats, StatValue, has_stats, stats_parser
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.dataset.range_index import search_window
from penstock.core.dataset.snapshot import DatasetVersionInfo, Snapshot
from penstock.core.names import DatasetName
from penstock.core.schema.type_names import from_fields
from penstock.errors import NotFound

MAX_VERSION = 2**62  # no version comes after this one

_d, _v, _s, _f = datasets.c, dataset_versions.c, dataset_schemas.c, data_files.c

_SNAPSHOT = (
    select(
        _d.dataset_id, _d.schema_name, _d.table_name, _d.location, _d.row_ids, _d.read_only, _d.cluster_by,
        _d.created_at.label("created"), _s.fields, dataset_versions,
    )
    .join_from(datasets, dataset_versions, and_(tenant_filter(dataset_versions), _v.dataset_id == _d.dataset_id))
    .join(
        dataset_schemas,
        and_(tenant_filter(dataset_schemas), _s.dataset_id == _v.dataset_id, _s.schema_no == _v.schema_no),
    )
    .where(tenant_filter(datasets))
)  # fmt: skip
_newest_first = _v.version.desc()
_not_dropped = _d.dropped_at.is_(None)
_BY_ID = _SNAPSHOT.where(_d.dataset_id == bindparam("dataset"), _not_dropped)
_NEWEST = _BY_ID.order_by(_newest_first).limit(1)
_BY_NAME = _SNAPSHOT.where(_d.name_key == bindparam("name"), _not_dropped).order_by(_newest_first).limit(1)
_AT_VERSION = _BY_ID.where(_v.version == bindparam("version"))
_AS_OF_COMMIT = _BY_ID.where(_v.commit_no <= bindparam("commit_no")).order_by(_newest_first).limit(1)
_not_dropped_at_commit = or_(_not_dropped, _d.dropped_commit_no > bindparam("commit_no"))
_BY_NAME_AT_COMMIT = (
    _SNAPSHOT.where(_d.name_key == bindparam("name"), _not_dropped_at_commit, _v.commit_no <= bindparam("commit_no"))
    .order_by(_v.commit_no.desc())
    .limit(1)
)
_AS_OF_TIME = _BY_ID.where(_v.created_at <= bindparam("time")).order_by(_newest_first).limit(1)

_all_versions = dataset_versions.alias()
_newest_version = (
    select(func.max(_all_versions.c.version))
    .where(tenant_filter(_all_versions), _all_versions.c.dataset_id == _d.dataset_id)
    .scalar_subquery()
)
NEWEST_OF_ALL = _SNAPSHOT.where(_not_dropped, _v.version == _newest_version).order_by(_d.name_key)

_VERSIONS = (
    select(dataset_versions)
    .where(tenant_filter(dataset_versions), _v.dataset_id == bindparam("dataset"), _v.version < bindparam("before"))
    .order_by(_newest_first)
    .limit(bindparam("limit"))
)

_SELECT_SWEPT_AT = select(_v.swept_at).where(
    tenant_filter(dataset_versions), _v.dataset_id == bindparam("dataset"), _v.version == bindparam("version")
)

# Files with statistics (True) or without (False): they are most of what a plan would have to read.
_file_columns = {stats: select(*(c for c in _f if stats or c is not _f.stats)) for stats in (False, True)}
_of_dataset = (tenant_filter(data_files), _f.dataset_id == bindparam("dataset"))
_LIVE = {stats: base.where(*_of_dataset, _f.end_version.is_(None)) for stats, base in _file_columns.items()}
_ENDED = {
    stats: base.where(*_of_dataset, _f.end_version > bindparam("version")) for stats, base in _file_columns.items()
}
_NUMBERED_FILES = {
    stats: base.where(*_of_dataset, _f.file_no.in_(bindparam("numbers", expanding=True)))
    for stats, base in _file_columns.items()
}
_LIVE_SINCE = _LIVE[True].where(_f.begin_version > bindparam("version"))
_STILL_LIVE = select(_f.file_no).where(
    *_of_dataset, _f.file_no.in_(bindparam("numbers", expanding=True)), _f.end_version.is_(None)
)
_COMMIT_NO = select(tenants.c.commit_no).where(tenant_filter(tenants))


def commit_no(tx: CatalogTransaction) -> int:
    """Return the number of the tenant's newest commit, which identifies a lake snapshot."""
    row = tx.first(_COMMIT_NO)
    return row.commit_no if row else 0


def list_newest(tx: CatalogTransaction) -> list[Snapshot]:
    """Return the newest snapshot of every dataset, by name."""
    return [snapshot_from_row(row) for row in tx.all(NEWEST_OF_ALL)]


def by_name(tx: CatalogTransaction, name: DatasetName) -> Snapshot:
    """Return the newest snapshot of the dataset with this name."""
    if row := tx.first(_BY_NAME, name=name.key):
        return snapshot_from_row(row)
    raise dataset_not_found(name)


def by_name_at_commit(tx: CatalogTransaction, name: DatasetName, commit_no: int) -> Snapshot:
    """Return the dataset that had the name after a commit, as it was then, even if it was dropped later."""
    row = tx.first(_BY_NAME_AT_COMMIT, name=name.key, commit_no=commit_no)
    if row is None:
        raise dataset_not_found(name)
    if row.swept_at:
        raise _version_unavailable(row, row.version, "was swept")
    return snapshot_from_row(row)


def newest(tx: CatalogTransaction, dataset: UUID) -> Snapshot:
    """Return the newest snapshot of a dataset."""
    if row := tx.first(_NEWEST, dataset=dataset):
        return snapshot_from_row(row)
    raise dataset_not_found(dataset)


def dataset_not_found(dataset: UUID | DatasetName) -> NotFound:
    """Return the error for an unknown dataset. A dataset of another tenant gives the same error."""
    return NotFound("dataset_not_found", dataset=str(dataset))


def at_version(tx: CatalogTransaction, dataset: UUID, version: int) -> Snapshot:
    """Return the snapshot of a dataset at a version."""
    row = tx.first(_AT_VERSION, dataset=dataset, version=version) if 0 < version <= MAX_VERSION else None
    if row is None or row.swept_at:
        newest_row = tx.first(_NEWEST, dataset=dataset)
        raise (
            _version_unavailable(newest_row, version, "was swept" if row else "does not exist")
            if newest_row
            else dataset_not_found(dataset)
        )
    return snapshot_from_row(row)


def as_of(tx: CatalogTransaction, dataset: UUID, point: int | datetime) -> Snapshot:
    """Return the snapshot that was the newest at a commit number or at a time."""
    if isinstance(point, datetime):
        row = tx.first(_AS_OF_TIME, dataset=dataset, time=point)
    else:
        row = tx.first(_AS_OF_COMMIT, dataset=dataset, commit_no=point)
    if row is None:
        current = newest(tx, dataset)
        when = f"at {point.isoformat()}" if isinstance(point, datetime) else f"at commit {point}"
        raise NotFound(
            "version_not_found.not_yet_created",
            {"name": current.name, "point": when},
            dataset=str(current.name),
            actual_version=current.version.number,
        )
    return at_version(tx, dataset, row.version)


def _version_unavailable(newest_row: Row[Any], version: int, problem: str) -> NotFound:
    name = str(DatasetName(newest_row.schema_name, newest_row.table_name))
    return NotFound(
        "version_not_found.unavailable",
        {"version": version, "name": name, "problem": problem, "newest": newest_row.version},
        dataset=name,
        requested_version=version,
        actual_version=newest_row.version,
    )


def versions(
    tx: CatalogTransaction, dataset: UUID, *, limit: int, before: int | None = None
) -> list[DatasetVersionInfo]:
    """Return versions below `before`, newest first."""
    before = MAX_VERSION if before is None else max(0, min(before, MAX_VERSION))
    rows = tx.all(_VERSIONS, dataset=dataset, limit=limit, before=before)
    return [_version_from_row(row) for row in rows]


def version_info(tx: CatalogTransaction, dataset: UUID, number: int) -> DatasetVersionInfo | None:
    """Return a version; None if it does not exist."""
    found = versions(tx, dataset, limit=1, before=number + 1)
    return found[0] if found and found[0].number == number else None


def files(
    tx: CatalogTransaction,
    snapshot: Snapshot,
    bounds: Bounds | None = None,
    *,
    stats: bool = False,
    row_id_ranges: Sequence[tuple[int, int]] | None = None,
) -> list[DataFile]:
    """Return the files of a snapshot in the order in which they were written.

    Args:
        bounds: return only files that may contain rows within these column ranges, with statistics
        stats: return the files with their statistics
        row_id_ranges: lowest and highest row ids of ranges; leave out files without such row ids
    """
    bounds = bounds or {}
    _assert_not_swept(tx, snapshot)
    stats = stats or bool(bounds)
    if row_id_ranges is None:
        file_nos = _files_in_bounds(tx, snapshot, bounds)
    else:
        file_nos = range_index.find_files(
            tx,
            snapshot.dataset,
            range_index.ROW_ID_COLUMN_NO,
            [search_window(low, high) for low, high in row_id_ranges],
        )
    parse_stats = stats_parser(snapshot.schema) if stats else None
    files = (_file_from_row(row, parse_stats) for row in _select_files(tx, snapshot, file_nos, stats=stats))
    return _with_vectors(tx, snapshot, [file for file in files if file.may_contain(bounds)])


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a snapshot, with its statistics as they are stored."""

    path: str
    rows: int
    bytes: int
    checksum: str
    stats_json: str
    deleted: DeletionVector | None


def file_listing(tx: CatalogTransaction, snapshot: Snapshot) -> list[ListedFile]:
    """Return every file of a snapshot without parsing its statistics."""
    _assert_not_swept(tx, snapshot)
    rows = _select_files(tx, snapshot, None, stats=True)
    vectors = _load_vectors(tx, snapshot, [row.file_no for row in rows])
    return [
        ListedFile(row.path, row.rows, row.bytes, row.checksum, row.stats, vectors.get(row.file_no)) for row in rows
    ]


def _with_vectors(tx: CatalogTransaction, snapshot: Snapshot, files: list[DataFile]) -> list[DataFile]:
    vectors = _load_vectors(tx, snapshot, [file.number for file in files])
    return [replace(file, deleted=vectors[file.number]) if file.number in vectors else file for file in files]


def vectors(tx: CatalogTransaction, snapshot: Snapshot, file_nos: list[int]) -> dict[int, DeletionVector]:
    """Return the deletion vectors of files of a snapshot by file number; files without one are absent."""
    _assert_not_swept(tx, snapshot)
    return _load_vectors(tx, snapshot, file_nos)


def _load_vectors(tx: CatalogTransaction, snapshot: Snapshot, file_nos: list[int]) -> dict[int, DeletionVector]:
    if not snapshot.version.vector_files:
        return {}
    return deletion_vectors.load(tx, snapshot.dataset, snapshot.version.number, file_nos)


def _assert_not_swept(tx: CatalogTransaction, snapshot: Snapshot) -> None:
    row = tx.first(_SELECT_SWEPT_AT, dataset=snapshot.dataset, version=snapshot.version.number)
    if row is None:
        raise dataset_not_found(snapshot.dataset)
    if row.swept_at:
        raise NotFound(
            "version_not_found.swept",
            {"number": snapshot.version.number, "name": snapshot.name},
            dataset=str(snapshot.name),
            requested_version=snapshot.version.number,
        )


def _select_files(
    tx: CatalogTransaction, snapshot: Snapshot, file_nos: list[int] | None, *, stats: bool
) -> list[Row[Any]]:
    """Select the files of a version by number, in the order of their numbers: the live ones (limited to `file_nos`),
    and those that ended after the version.
    """
    version, key = snapshot.version.number, {"dataset": snapshot.dataset}
    if file_nos is None:
        rows = list(tx.all(_LIVE[stats], **key))
    else:
        rows = [row for chunk in in_chunks(file_nos) for row in tx.all(_NUMBERED_FILES[stats], numbers=chunk, **key)]
    rows += tx.all(_ENDED[stats], version=version, **key)
    return sorted((row for row in rows if row.begin_version <= version), key=lambda row: row.file_no)


def files_since(tx: CatalogTransaction, snapshot: Snapshot, version: int) -> list[DataFile]:
    """Return the live files that were added after a version."""
    parse_stats = stats_parser(snapshot.schema)
    rows = tx.all(_LIVE_SINCE, dataset=snapshot.dataset, version=version)
    return _with_vectors(tx, snapshot, [_file_from_row(row, parse_stats) for row in rows])


def live_files(tx: CatalogTransaction, newest: Snapshot, file_nos: Sequence[int]) -> list[DataFile]:
    """Return those of the files that the newest version still contains."""
    rows = [
        row
        for part in in_chunks(file_nos)
        for row in tx.all(_NUMBERED_FILES[False], dataset=newest.dataset, numbers=part)
    ]
    return _with_vectors(tx, newest, [_file_from_row(row, None) for row in rows if row.end_version is None])


def first_end(tx: CatalogTransaction, dataset: UUID, file_nos: Sequence[int]) -> int | None:
    """Return the first version at which one of the files ended, or None."""
    ends = [
        row.end_version
        for part in in_chunks(file_nos)
        for row in tx.all(_NUMBERED_FILES[False], dataset=dataset, numbers=part)
    ]
    return min((end for end in ends if end is not None), default=None)


def are_unchanged(tx: CatalogTransaction, dataset: UUID, file_nos: Sequence[int], since: int) -> bool:
    """Return whether the newest version contains all of these files with the rows that a version contains."""
    live = sum(len(tx.all(_STILL_LIVE, dataset=dataset, numbers=chunk)) for chunk in in_chunks(file_nos))
    return live == len(file_nos) and not deletion_vectors.have_changed(tx, dataset, file_nos, since)


def _files_in_bounds(tx: CatalogTransaction, snapshot: Snapshot, bounds: Bounds) -> list[int] | None:
    """Return the live files that the range index finds for the most selective bound, or None if no bound is indexed."""
    indexed = [name for name in snapshot.schema.names[: range_index.INDEXED_COLUMNS] if name in bounds]
    indexed = [name for name in indexed if has_stats(snapshot.schema.field(name).type)]
    if not indexed:
        return None
    column = min(indexed, key=lambda name: _bound_width(*bounds[name]))
    return range_index.find_files(
        tx, snapshot.dataset, snapshot.schema.get_field_index(column), [search_window(*bounds[column])]
    )


def _bound_width(low: StatValue | None, high: StatValue | None) -> int:
    if low is None or high is None:
        return 2
    return 0 if low == high else 1


def snapshot_from_row(row: Row[Any]) -> Snapshot:
    return Snapshot(
        dataset=row.dataset_id,
        name=DatasetName(row.schema_name, row.table_name),
        location=row.location,
        row_ids=row.row_ids,
        read_only=row.read_only,
        created_at=row.created,
        cluster_by=tuple(json.loads(row.cluster_by)) if row.cluster_by else (),
        schema=from_fields(json.loads(row.fields)),
        version=_version_from_row(row),
    )


def _version_from_row(row: Row[Any]) -> DatasetVersionInfo:
    return DatasetVersionInfo(
        number=row.version,
        commit_no=row.commit_no,
        operation=row.operation,
        counts=Counts(row.inserted, row.updated, row.deleted),
        rows=row.rows,
        files=row.files,
        bytes=row.bytes,
        deleted_rows=row.deleted_rows,
        vector_files=row.vector_files,
        committed_at=row.created_at,
        author=row.author,
        swept=row.swept_at is not None,
    )


def _file_from_row(row: Row[Any], parse_stats: Callable[[str], dict[str, ColumnStats]] | None) -> DataFile:
    return DataFile(
        path=row.path,
        rows=row.rows,
        bytes=row.bytes,
        checksum=row.checksum,
        stats=parse_stats(row.stats) if parse_stats else {},
        row_ids=None if row.low_row_id is None else (row.low_row_id, row.high_row_id),
        number=row.file_no,
        first_row_id=row.first_row_id,
        begin=row.begin_version,
        end=row.end_version,
    )
