"""Which versions and files may go, and the record that they went."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import bindparam, delete, func, select, update

from penstock.catalog import snapshots as history
from penstock.catalog.database import Tx, in_chunks, mine
from penstock.catalog.tables import data_files, dataset_versions, datasets

_d, _v, _f = datasets.c, dataset_versions.c, data_files.c

_NO_HORIZON = 2**62

_HEADS = (
    select(
        _d.dataset_id, _d.schema_name, _d.table_name, _d.location, _d.dropped_at, func.max(_v.version).label("newest")
    )
    .join_from(datasets, dataset_versions, (mine(dataset_versions)) & (_v.dataset_id == _d.dataset_id))
    .where(mine(datasets))
    .group_by(_d.tenant_id, _d.dataset_id, _d.schema_name, _d.table_name, _d.location, _d.dropped_at)
    .order_by(_d.schema_name, _d.table_name, _d.dataset_id)
)
# A version was the newest until the next one came.
_YOUNGEST_PAST = select(func.max(_v.version)).where(
    mine(dataset_versions), _v.dataset_id == bindparam("dataset"), _v.created_at <= bindparam("moment")
)
_FADED = (
    select(_f.file_no, _f.path, _f.bytes, _f.checksum)
    .where(mine(data_files), _f.dataset_id == bindparam("dataset"), _f.end_version <= bindparam("horizon"))
    .order_by(_f.file_no)
)
_ALL = (
    select(_f.file_no, _f.path, _f.bytes, _f.checksum)
    .where(mine(data_files), _f.dataset_id == bindparam("dataset"))
    .order_by(_f.file_no)
)
_MARK = (
    update(dataset_versions)
    .where(
        mine(dataset_versions),
        _v.dataset_id == bindparam("dataset"),
        _v.version < bindparam("horizon"),
        _v.swept_at.is_(None),
    )
    .values(swept_at=bindparam("now"))
)
_FORGET = delete(data_files).where(
    mine(data_files), _f.dataset_id == bindparam("dataset"), _f.file_no.in_(bindparam("numbers", expanding=True))
)
_READABLE = select(func.count()).where(
    mine(dataset_versions),
    _v.dataset_id == bindparam("dataset"),
    _v.version < bindparam("horizon"),
    _v.swept_at.is_(None),
)
_KNOWN = select(_f.path).where(mine(data_files), _f.path.in_(bindparam("paths", expanding=True)))


@dataclass(frozen=True, slots=True)
class Head:
    dataset: UUID
    name: str
    location: str
    newest: int
    dropped_at: datetime | None


@dataclass(frozen=True, slots=True)
class Faded:
    """A file that no retained version holds."""

    number: int
    path: str
    bytes: int
    checksum: str


def heads(tx: Tx) -> list[Head]:
    """Every dataset, dropped ones too."""
    return [
        Head(row.dataset_id, f"{row.schema_name}.{row.table_name}", row.location, row.newest, row.dropped_at)
        for row in tx.all(_HEADS)
    ]


def newest_at(tx: Tx, dataset: UUID, moment: datetime) -> int:
    """The version that was the newest at that moment; 0 if there was none."""
    row = tx.first(_YOUNGEST_PAST, dataset=dataset, moment=moment)
    return int(row[0] or 0) if row else 0


def faded(tx: Tx, dataset: UUID, horizon: int | None) -> list[Faded]:
    """The files that no version from `horizon` on holds; all files where there is no horizon."""
    rows = tx.all(_ALL, dataset=dataset) if horizon is None else tx.all(_FADED, dataset=dataset, horizon=horizon)
    return [Faded(row.file_no, row.path, row.bytes, row.checksum) for row in rows]


def readable(tx: Tx, dataset: UUID, horizon: int | None) -> int:
    """How many versions below the horizon can be read."""
    row = tx.first(_READABLE, dataset=dataset, horizon=_NO_HORIZON if horizon is None else horizon)
    return int(row[0]) if row else 0


def mark_swept(tx: Tx, dataset: UUID, horizon: int | None) -> int:
    """From here on nobody can read a version below the horizon. The answer is how many there were."""
    return tx.run(_MARK, dataset=dataset, horizon=_NO_HORIZON if horizon is None else horizon, now=tx.now)


def forget(tx: Tx, dataset: UUID, files: Sequence[Faded]) -> None:
    """The files are gone from the store; take them off the list."""
    for part in in_chunks([file.number for file in files]):
        tx.run(_FORGET, dataset=dataset, numbers=part)
        history.unplace(tx, dataset, part)


def known(tx: Tx, paths: Sequence[str]) -> set[str]:
    """Those of the paths that some version holds."""
    return {row.path for part in in_chunks(paths) for row in tx.all(_KNOWN, paths=part)}
