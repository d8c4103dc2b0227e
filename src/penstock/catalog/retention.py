"""Find versions and files that retention no longer needs, and record their removal."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import bindparam, delete, func, select, update

from penstock.catalog import deletion_vectors, range_index
from penstock.catalog.database import CatalogTransaction, in_chunks
from penstock.catalog.tables import data_files, dataset_versions, datasets
from penstock.catalog.tenant_guard import tenant_filter

_d, _v, _f = datasets.c, dataset_versions.c, data_files.c

_MAX_VERSION = 2**62

_SELECT_HEADS = (
    select(
        _d.dataset_id, _d.schema_name, _d.table_name, _d.location, _d.dropped_at, func.max(_v.version).label("newest")
    )
    .join_from(datasets, dataset_versions, (tenant_filter(dataset_versions)) & (_v.dataset_id == _d.dataset_id))
    .where(tenant_filter(datasets))
    .group_by(_d.tenant_id, _d.dataset_id, _d.schema_name, _d.table_name, _d.location, _d.dropped_at)
    .order_by(_d.schema_name, _d.table_name, _d.dataset_id)
)
# A version is the newest until the next one is created.
_NEWEST_AT = select(func.max(_v.version)).where(
    tenant_filter(dataset_versions), _v.dataset_id == bindparam("dataset"), _v.created_at <= bindparam("moment")
)
_SELECT_EXPIRED = (
    select(_f.file_no, _f.path, _f.bytes, _f.checksum)
    .where(tenant_filter(data_files), _f.dataset_id == bindparam("dataset"), _f.end_version <= bindparam("horizon"))
    .order_by(_f.file_no)
)
_SELECT_ALL = (
    select(_f.file_no, _f.path, _f.bytes, _f.checksum)
    .where(tenant_filter(data_files), _f.dataset_id == bindparam("dataset"))
    .order_by(_f.file_no)
)
_MARK_SWEPT = (
    update(dataset_versions)
    .where(
        tenant_filter(dataset_versions),
        _v.dataset_id == bindparam("dataset"),
        _v.version < bindparam("horizon"),
        _v.swept_at.is_(None),
    )
    .values(swept_at=bindparam("now"))
)
_DELETE_FILES = delete(data_files).where(
    tenant_filter(data_files),
    _f.dataset_id == bindparam("dataset"),
    _f.file_no.in_(bindparam("numbers", expanding=True)),
)
_COUNT_READABLE = select(func.count()).where(
    tenant_filter(dataset_versions),
    _v.dataset_id == bindparam("dataset"),
    _v.version < bindparam("horizon"),
    _v.swept_at.is_(None),
)
_SELECT_PATHS = select(_f.path).where(tenant_filter(data_files), _f.path.in_(bindparam("paths", expanding=True)))


@dataclass(frozen=True, slots=True)
class DatasetHead:
    """A dataset with the number of its newest version."""

    dataset: UUID
    name: str
    location: str
    newest: int
    dropped_at: datetime | None


@dataclass(frozen=True, slots=True)
class ExpiredFile:
    """A file that no retained version contains."""

    number: int
    path: str
    bytes: int
    checksum: str


def list_heads(tx: CatalogTransaction) -> list[DatasetHead]:
    """Return every dataset, including dropped ones."""
    return [
        DatasetHead(row.dataset_id, f"{row.schema_name}.{row.table_name}", row.location, row.newest, row.dropped_at)
        for row in tx.all(_SELECT_HEADS)
    ]


def newest_at(tx: CatalogTransaction, dataset: UUID, time: datetime) -> int:
    """Return the version that was the newest at a time, or 0 if there was none."""
    row = tx.first(_NEWEST_AT, dataset=dataset, moment=time)
    return int(row[0] or 0) if row else 0


def expired_files(tx: CatalogTransaction, dataset: UUID, horizon: int | None) -> list[ExpiredFile]:
    """Return the files that no version from `horizon` on contains; all files if `horizon` is None."""
    rows = (
        tx.all(_SELECT_ALL, dataset=dataset)
        if horizon is None
        else tx.all(_SELECT_EXPIRED, dataset=dataset, horizon=horizon)
    )
    return [ExpiredFile(row.file_no, row.path, row.bytes, row.checksum) for row in rows]


def count_readable(tx: CatalogTransaction, dataset: UUID, horizon: int | None) -> int:
    """Count the versions below the horizon that are not swept."""
    row = tx.first(_COUNT_READABLE, dataset=dataset, horizon=_MAX_VERSION if horizon is None else horizon)
    return int(row[0]) if row else 0


def mark_swept(tx: CatalogTransaction, dataset: UUID, horizon: int | None) -> int:
    """Mark the versions below the horizon as swept, and delete the deletion vectors that only they contain.

    Returns:
        the number of versions, which cannot be read any more
    """
    horizon = _MAX_VERSION if horizon is None else horizon
    deletion_vectors.delete_expired(tx, dataset, horizon)
    return tx.execute(_MARK_SWEPT, dataset=dataset, horizon=horizon, now=tx.now)


def delete_files(tx: CatalogTransaction, dataset: UUID, files: Sequence[ExpiredFile]) -> None:
    """Delete the rows of files that were removed from the store."""
    for file_nos in in_chunks([file.number for file in files]):
        tx.execute(_DELETE_FILES, dataset=dataset, numbers=file_nos)
        range_index.remove(tx, dataset, file_nos)
        deletion_vectors.delete_of_files(tx, dataset, file_nos)


def registered_paths(tx: CatalogTransaction, paths: Sequence[str]) -> set[str]:
    """Return those paths that belong to a file in the catalog."""
    return {row.path for chunk in in_chunks(paths) for row in tx.all(_SELECT_PATHS, paths=chunk)}
