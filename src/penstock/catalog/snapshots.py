"""Read what was committed: datasets at a version, their past, and the files of a version."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, and_, bindparam, delete, func, or_, select

from penstock.catalog.database import Tx, in_chunks, mine
from penstock.catalog.tables import data_files, dataset_schemas, dataset_versions, datasets, file_bins, tenants
from penstock.core.dataset.range_index import Search, search
from penstock.core.dataset.changes import Counts, DataFile
from penstock.core.dataset.snapshot import Snapshot, Version
from penstock.core.names import DatasetName
from penstock.core.schema.canonical import from_fields
from penstock.core.dataset.column_stats import Bounds, Plain, Stats, from_json, has_stats
from penstock.errors import NotFound

INDEXED_COLUMNS = 32  # the first so many columns of a dataset are worth an index of their ranges
LAST = 2**62  # no version comes after this one
ROW_IDS = -1  # their place in that index

_d, _v, _s, _f, _b = datasets.c, dataset_versions.c, dataset_schemas.c, data_files.c, file_bins.c

_SNAPSHOT = (
    select(
        _d.dataset_id, _d.schema_name, _d.table_name, _d.location, _d.row_ids, _d.read_only,
        _d.created_at.label("created"), _s.fields, dataset_versions,
    )
    .join_from(datasets, dataset_versions, and_(mine(dataset_versions), _v.dataset_id == _d.dataset_id))
    .join(
        dataset_schemas,
        and_(mine(dataset_schemas), _s.dataset_id == _v.dataset_id, _s.schema_no == _v.schema_no),
    )
    .where(mine(datasets))
)  # fmt: skip
_NEWEST_FIRST = _v.version.desc()
_there = _d.dropped_at.is_(None)
_BY_ID = _SNAPSHOT.where(_d.dataset_id == bindparam("dataset"), _there)
_NEWEST = _BY_ID.order_by(_NEWEST_FIRST).limit(1)
_NAMED = _SNAPSHOT.where(_d.name_key == bindparam("name"), _there).order_by(_NEWEST_FIRST).limit(1)
_NUMBERED = _BY_ID.where(_v.version == bindparam("version"))
_AS_OF_COMMIT = _BY_ID.where(_v.commit_no <= bindparam("commit_no")).order_by(_NEWEST_FIRST).limit(1)
_then = or_(_there, _d.dropped_commit_no > bindparam("commit_no"))
_NAMED_THEN = (
    _SNAPSHOT.where(_d.name_key == bindparam("name"), _then, _v.commit_no <= bindparam("commit_no"))
    .order_by(_v.commit_no.desc())
    .limit(1)
)
_AS_OF_TIME = _BY_ID.where(_v.created_at <= bindparam("time")).order_by(_NEWEST_FIRST).limit(1)

_other = dataset_versions.alias()
_last = select(func.max(_other.c.version)).where(mine(_other), _other.c.dataset_id == _d.dataset_id).scalar_subquery()
NEWEST_OF_ALL = _SNAPSHOT.where(_there, _v.version == _last).order_by(_d.name_key)

_VERSIONS = (
    select(dataset_versions)
    .where(mine(dataset_versions), _v.dataset_id == bindparam("dataset"), _v.version < bindparam("before"))
    .order_by(_NEWEST_FIRST)
    .limit(bindparam("limit"))
)

_SWEPT = select(_v.swept_at).where(
    mine(dataset_versions), _v.dataset_id == bindparam("dataset"), _v.version == bindparam("version")
)

# Files with statistics (True) or without (False): they are most of what a plan would have to read.
_wanted = {stats: select(*(c for c in _f if stats or c is not _f.stats)) for stats in (False, True)}
_own = (mine(data_files), _f.dataset_id == bindparam("dataset"))
_LIVE = {stats: base.where(*_own, _f.end_version.is_(None)) for stats, base in _wanted.items()}
_ENDED = {stats: base.where(*_own, _f.end_version > bindparam("version")) for stats, base in _wanted.items()}
_THESE = {
    stats: base.where(*_own, _f.file_no.in_(bindparam("numbers", expanding=True))) for stats, base in _wanted.items()
}
_SINCE = _LIVE[True].where(_f.begin_version > bindparam("version"))
_STILL = select(_f.file_no).where(*_own, _f.file_no.in_(bindparam("numbers", expanding=True)), _f.end_version.is_(None))
_places = select(_b.file_no).where(
    mine(file_bins), _b.dataset_id == bindparam("dataset"), _b.column_no == bindparam("column")
)
_BETWEEN = _places.where(_b.place.between(bindparam("first"), bindparam("last")))
_AROUND = _places.where(_b.place.in_(bindparam("places", expanding=True)))

_COMMIT_NO = select(tenants.c.commit_no).where(mine(tenants))


def commit_no(tx: Tx) -> int:
    """The newest commit: the number of a snapshot of all the tenant's datasets."""
    row = tx.first(_COMMIT_NO)
    return row.commit_no if row else 0


def datasets_now(tx: Tx) -> list[Snapshot]:
    return [snapshot(row) for row in tx.all(NEWEST_OF_ALL)]


def named(tx: Tx, name: DatasetName) -> Snapshot:
    if row := tx.first(_NAMED, name=name.key):
        return snapshot(row)
    raise no_such(name)


def named_then(tx: Tx, name: DatasetName, commit_no: int) -> Snapshot:
    """The dataset that had the name after a commit, as it was then; dropping it later takes nothing away."""
    row = tx.first(_NAMED_THEN, name=name.key, commit_no=commit_no)
    if row is None:
        raise no_such(name)
    if row.swept_at:
        raise _unreadable(row, row.version, "was swept")
    return snapshot(row)


def newest(tx: Tx, dataset: UUID) -> Snapshot:
    if row := tx.first(_NEWEST, dataset=dataset):
        return snapshot(row)
    raise no_such(dataset)


def no_such(dataset: UUID | DatasetName) -> NotFound:
    """The same answer for what is not there and for what belongs to somebody else."""
    return NotFound("dataset_not_found", f"there is no dataset {str(dataset)!r}", dataset=str(dataset))


def at_version(tx: Tx, dataset: UUID, version: int) -> Snapshot:
    row = tx.first(_NUMBERED, dataset=dataset, version=version) if 0 < version <= LAST else None
    if row is None or row.swept_at:
        last = tx.first(_NEWEST, dataset=dataset)
        raise _unreadable(last, version, "was swept" if row else "does not exist") if last else no_such(dataset)
    return snapshot(row)


def as_of(tx: Tx, dataset: UUID, moment: int | datetime) -> Snapshot:
    """The newest version at a moment: a commit's number, or a time."""
    if isinstance(moment, datetime):
        row = tx.first(_AS_OF_TIME, dataset=dataset, time=moment)
    else:
        row = tx.first(_AS_OF_COMMIT, dataset=dataset, commit_no=moment)
    if row is None:
        last = newest(tx, dataset)
        when = f"at {moment.isoformat()}" if isinstance(moment, datetime) else f"at commit {moment}"
        raise NotFound(
            "version_not_found",
            f"{last.name} was not there {when}",
            dataset=str(last.name),
            actual_version=last.version.number,
        )
    return at_version(tx, dataset, row.version)


def _unreadable(last: Row[Any], version: int, why: str) -> NotFound:
    name = str(DatasetName(last.schema_name, last.table_name))
    return NotFound(
        "version_not_found",
        f"version {version} of {name} {why}; the newest is {last.version}",
        dataset=name,
        requested_version=version,
        actual_version=last.version,
    )


def versions(tx: Tx, dataset: UUID, *, limit: int, before: int | None = None) -> list[Version]:
    """The newest first."""
    before = LAST if before is None else max(0, min(before, LAST))
    rows = tx.all(_VERSIONS, dataset=dataset, limit=limit, before=before)
    return [_version(row) for row in rows]


def files(
    tx: Tx,
    snapshot: Snapshot,
    bounds: Bounds | None = None,
    *,
    stats: bool = False,
    ids: Sequence[tuple[int, int]] | None = None,
) -> list[DataFile]:
    """The files of a version, in the order they were written; with bounds, only those that may hold such rows.

    With bounds, or where asked for, they have their statistics. `ids`: the lowest and the highest row id of each
    stretch of ids; files that the index of ranges knows to be elsewhere are left out.
    """
    bounds = bounds or {}
    _assert_kept(tx, snapshot)
    stats = stats or bool(bounds)
    if ids is None:
        numbers = _found(tx, snapshot, bounds)
    else:
        numbers = _located(tx, snapshot, ROW_IDS, [search(low, high) for low, high in ids])
    known = from_json(snapshot.schema) if stats else None
    files = (_file(row, known) for row in _rows(tx, snapshot, numbers, stats=stats))
    return [file for file in files if file.may_hold(bounds)]


def listed(tx: Tx, snapshot: Snapshot) -> list[tuple[str, int, str]]:
    """Path, rows and statistics of every file of a version, as they are kept (`core.stats`): for somebody else to read."""
    _assert_kept(tx, snapshot)
    return [(row.path, row.rows, row.stats) for row in _rows(tx, snapshot, None, stats=True)]


def _assert_kept(tx: Tx, snapshot: Snapshot) -> None:
    swept = tx.first(_SWEPT, dataset=snapshot.dataset, version=snapshot.version.number)
    if swept is None:
        raise no_such(snapshot.dataset)
    if swept.swept_at:
        raise NotFound(
            "version_not_found",
            f"version {snapshot.version.number} of {snapshot.name} was swept",
            dataset=str(snapshot.name),
            requested_version=snapshot.version.number,
        )


def _rows(tx: Tx, snapshot: Snapshot, numbers: list[int] | None, *, stats: bool) -> list[Row[Any]]:
    """Files of a version, in the order they were written; live ones with these numbers, or all."""
    version, at = snapshot.version.number, {"dataset": snapshot.dataset}
    if numbers is None:
        rows = list(tx.all(_LIVE[stats], **at))
    else:
        rows = [row for part in in_chunks(numbers) for row in tx.all(_THESE[stats], numbers=part, **at)]
    rows += tx.all(_ENDED[stats], version=version, **at)
    return sorted((row for row in rows if row.begin_version <= version), key=lambda row: row.file_no)


def files_since(tx: Tx, snapshot: Snapshot, version: int) -> list[DataFile]:
    """The files of the newest version that came after an earlier one."""
    known = from_json(snapshot.schema)
    return [_file(row, known) for row in tx.all(_SINCE, dataset=snapshot.dataset, version=version)]


def still_live(tx: Tx, dataset: UUID, numbers: Sequence[int]) -> bool:
    """Does the newest version hold all of these files?"""
    return sum(len(tx.all(_STILL, dataset=dataset, numbers=part)) for part in in_chunks(numbers)) == len(numbers)


def unplace(tx: Tx, dataset: UUID, numbers: list[int]) -> None:
    """Take files out of the index of ranges: it knows live ones only."""
    tx.run(_UNPLACE, dataset=dataset, numbers=numbers)


_UNPLACE = delete(file_bins).where(
    mine(file_bins), _b.dataset_id == bindparam("dataset"), _b.file_no.in_(bindparam("numbers", expanding=True))
)


def _found(tx: Tx, snapshot: Snapshot, bounds: Bounds) -> list[int] | None:
    """Live files that the index finds for the most selective bound that it knows; None if it knows none."""
    indexed = [name for name in snapshot.schema.names[:INDEXED_COLUMNS] if name in bounds]
    indexed = [name for name in indexed if has_stats(snapshot.schema.field(name).type)]
    if not indexed:
        return None
    column = min(indexed, key=lambda name: _width(*bounds[name]))
    return _located(tx, snapshot, snapshot.schema.get_field_index(column), [search(*bounds[column])])


def _located(tx: Tx, snapshot: Snapshot, column: int, searches: Sequence[Search]) -> list[int]:
    """Live files with a place where one of the searches looks."""
    at = {"dataset": snapshot.dataset, "column": column}
    found = {row.file_no for each in searches for row in tx.all(_BETWEEN, first=each.first, last=each.last, **at)}
    around = sorted({place for each in searches for place in each.around})
    found |= {row.file_no for part in in_chunks(around) for row in tx.all(_AROUND, places=part, **at)}
    return sorted(found)


def _width(low: Plain | None, high: Plain | None) -> int:
    if low is None or high is None:
        return 2
    return 0 if low == high else 1


def snapshot(row: Row[Any]) -> Snapshot:
    return Snapshot(
        dataset=row.dataset_id,
        name=DatasetName(row.schema_name, row.table_name),
        location=row.location,
        row_ids=row.row_ids,
        read_only=row.read_only,
        created_at=row.created,
        schema=from_fields(json.loads(row.fields)),
        version=_version(row),
    )


def _version(row: Row[Any]) -> Version:
    return Version(
        number=row.version,
        commit_no=row.commit_no,
        operation=row.operation,
        counts=Counts(row.inserted, row.updated, row.deleted),
        rows=row.rows,
        files=row.files,
        bytes=row.bytes,
        at=row.created_at,
        author=row.author,
        swept=row.swept_at is not None,
    )


def _file(row: Row[Any], known: Callable[[str], dict[str, Stats]] | None) -> DataFile:
    return DataFile(
        path=row.path,
        rows=row.rows,
        bytes=row.bytes,
        checksum=row.checksum,
        stats=known(row.stats) if known else {},
        row_ids=None if row.low_row_id is None else (row.low_row_id, row.high_row_id),
        number=row.file_no,
        first_row_id=row.first_row_id,
        begin=row.begin_version,
        end=row.end_version,
    )
