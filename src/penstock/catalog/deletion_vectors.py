"""Read and write the deletion vectors of data files: the table `deletion_vectors`.

The vector of a file at a version is the union of its rows with `begin_version <= version < end_version`. A commit inserts
one row with the positions that it deletes, together with those of existing rows that are not larger, which end. So a
position is written again at most once for each doubling of the vector, and a file has few rows at any version, however
many commits have deleted rows of it.

A commit that deletes the last rows of a file ends it. Their positions are stored, too, in a row whose `end_version` is
its `begin_version`: it belongs to no version, and shows a later writer which rows were changed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import Row, bindparam, delete, or_, select, update

from penstock.catalog.database import CatalogTransaction, in_chunks
from penstock.catalog.tables import data_files, deletion_vectors
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.core.dataset.changes import Change, DeletedRows
from penstock.core.dataset.deletion_vector import DeletionVector

_MAX_FILES_BY_NUMBER = 500  # for more files, all vectors of the version are read

_t, _f = deletion_vectors.c, data_files.c
_of_dataset = (tenant_filter(deletion_vectors), _t.dataset_id == bindparam("dataset"))
_numbered = _t.file_no.in_(bindparam("numbers", expanding=True))
_AT_VERSION = select(_t.file_no, _t.bitmap).where(
    *_of_dataset,
    _t.begin_version <= bindparam("version"),
    or_(_t.end_version.is_(None), _t.end_version > bindparam("version")),
)
_NUMBERED_AT_VERSION = _AT_VERSION.where(_numbered)
_LIVE = (
    select(_t.file_no, _t.begin_version, _t.rows, _t.bitmap)
    .where(*_of_dataset, _numbered, _t.end_version.is_(None))
    .order_by(_t.file_no, _t.rows, _t.begin_version)
)
_CHANGED_SINCE = select(_t.file_no).where(
    *_of_dataset, _numbered, _t.end_version.is_(None), _t.begin_version > bindparam("version")
)
_SINCE = select(_t.file_no, _t.bitmap).where(*_of_dataset, _numbered, _t.begin_version > bindparam("version"))
_LIVE_FILES = select(_f.file_no).where(
    tenant_filter(data_files),
    _f.dataset_id == bindparam("dataset"),
    _f.file_no.in_(bindparam("numbers", expanding=True)),
    _f.end_version.is_(None),
)
_INSERT = insert_for_tenant(deletion_vectors)
_END = (
    update(deletion_vectors)
    .where(*_of_dataset, _numbered, _t.end_version.is_(None))
    .values(end_version=bindparam("version"))
)
_END_ONE = (
    update(deletion_vectors)
    .where(*_of_dataset, _t.file_no == bindparam("number"), _t.begin_version == bindparam("begin"))
    .values(end_version=bindparam("version"))
)
_DELETE_EXPIRED = delete(deletion_vectors).where(*_of_dataset, _t.end_version <= bindparam("horizon"))
_DELETE_OF_FILES = delete(deletion_vectors).where(*_of_dataset, _numbered)


@dataclass(frozen=True, slots=True)
class FileMark:
    """The deleted rows of one file in a commit, with the rows of its vector that are folded into the new one."""

    deleted: DeletedRows
    vector: DeletionVector  # the new positions and the folded ones
    folded: tuple[int, ...]  # `begin_version` of the folded rows
    deleted_before: int  # rows of the file that were deleted before

    @property
    def drops_file(self) -> bool:
        """Return True if no row of the file remains."""
        return self.deleted_before + len(self.deleted.positions) == self.deleted.file.rows


class RowsChanged(Exception):
    """Another writer has changed files or rows that a change replaces.

    Attributes:
        rows: the rows that both deleted or updated; None: a whole file was replaced
    """

    def __init__(self, rows: DeletedRows | None = None) -> None:
        self.rows = rows


def load(tx: CatalogTransaction, dataset: UUID, version: int, file_nos: Sequence[int]) -> dict[int, DeletionVector]:
    """Return the deletion vectors of files at a version, by file number; files without one are absent."""
    key = {"dataset": dataset, "version": version}
    rows: list[Row[Any]]
    if len(file_nos) > _MAX_FILES_BY_NUMBER:
        rows = list(tx.all(_AT_VERSION, **key))
    else:
        rows = list(tx.all(_NUMBERED_AT_VERSION, numbers=list(file_nos), **key)) if file_nos else []
    vectors: dict[int, DeletionVector] = {}
    for row in rows:
        vector = DeletionVector.from_bytes(row.bitmap)
        vectors[row.file_no] = vectors[row.file_no] | vector if row.file_no in vectors else vector
    return vectors


def have_changed(tx: CatalogTransaction, dataset: UUID, file_nos: Sequence[int], version: int) -> bool:
    """Return True if rows of one of the files were deleted after a version."""
    return any(tx.all(_CHANGED_SINCE, dataset=dataset, numbers=part, version=version) for part in in_chunks(file_nos))


def plan(tx: CatalogTransaction, change: Change) -> list[FileMark]:
    """Combine the deleted rows of a change with the live vectors of their files.

    Raises:
        RowsChanged: since the version that the writer read, another writer has deleted one of the rows, or rows of a
            file that the change removes, or has replaced a file
    """
    if have_changed(tx, change.dataset, [file.number for file in change.removed], change.rows_read_at):
        raise RowsChanged
    file_nos = [deleted.file.number for deleted in change.deleted]
    live_files = [
        row for part in in_chunks(file_nos) for row in tx.all(_LIVE_FILES, dataset=change.dataset, numbers=part)
    ]
    live = [row for part in in_chunks(file_nos) for row in tx.all(_LIVE, dataset=change.dataset, numbers=part)]
    live_by_file = {file_no: list(rows) for file_no, rows in groupby(live, lambda row: row.file_no)}
    marks = [
        _plan_file(deleted, live_by_file.get(deleted.file.number, []), change.rows_read_at)
        for deleted in change.deleted
    ]
    if len(live_files) != len(file_nos):
        live_numbers = {row.file_no for row in live_files}
        ended = [rows for rows in change.deleted if rows.file.number not in live_numbers]
        check_rows(tx, change.dataset, ended, change.rows_read_at)
        raise RowsChanged
    return marks


def check_rows(tx: CatalogTransaction, dataset: UUID, rows: Sequence[DeletedRows], version: int) -> None:
    """Check rows of files, which may have ended.

    Raises:
        RowsChanged: another writer has deleted one of the rows since a version
    """
    by_number = {deleted.file.number: deleted for deleted in rows}
    for part in in_chunks(list(by_number)):
        for row in tx.all(_SINCE, dataset=dataset, numbers=part, version=version):
            stored, deleted = DeletionVector.from_bytes(row.bitmap), by_number[row.file_no]
            if not stored.is_disjoint(deleted.positions):
                raise RowsChanged(_overlap(deleted, stored))


def _plan_file(deleted: DeletedRows, live: Sequence[Row[Any]], read_version: int) -> FileMark:
    vector, folded = deleted.positions, []
    is_folding = True
    for row in live:  # the smallest first
        stored = None
        if row.begin_version > read_version:
            stored = DeletionVector.from_bytes(row.bitmap)
            if not stored.is_disjoint(deleted.positions):
                raise RowsChanged(_overlap(deleted, stored))
        is_folding = is_folding and row.rows <= len(vector)
        if is_folding:
            vector = vector | (stored or DeletionVector.from_bytes(row.bitmap))
            folded.append(row.begin_version)
    return FileMark(deleted, vector, tuple(folded), sum(row.rows for row in live))


def _overlap(deleted: DeletedRows, stored: DeletionVector) -> DeletedRows:
    common = deleted.positions & stored
    row_ids = None if deleted.row_ids is None else deleted.row_ids[common.contains(deleted.positions.positions)]
    return DeletedRows(deleted.file, common, row_ids)


def apply(tx: CatalogTransaction, dataset: UUID, marks: Iterable[FileMark], version: int) -> None:
    """Store the vectors of the files that keep rows, and the last deleted rows of those that do not."""
    new_rows, ended = [], []
    for mark in marks:
        file_no = mark.deleted.file.number
        if mark.drops_file:
            new_rows.append(row_of_file(dataset, file_no, mark.deleted.positions, version, end=version))
            continue
        ended += [{"dataset": dataset, "number": file_no, "begin": begin, "version": version} for begin in mark.folded]
        new_rows.append(row_of_file(dataset, file_no, mark.vector, version))
    tx.execute_many(_END_ONE, ended)
    insert(tx, new_rows)


def row_of_file(
    dataset: UUID, file_no: int, vector: DeletionVector, version: int, end: int | None = None
) -> dict[str, Any]:
    """Return the table row of a vector that begins at a version."""
    return {
        "dataset_id": dataset,
        "file_no": file_no,
        "begin_version": version,
        "end_version": end,
        "rows": len(vector),
        "bitmap": vector.to_bytes(),
    }


def insert(tx: CatalogTransaction, rows: Sequence[dict[str, Any]]) -> None:
    tx.insert_many(_INSERT, rows)


def end(tx: CatalogTransaction, dataset: UUID, file_nos: list[int], version: int) -> None:
    """End the vectors of files that end at a version."""
    tx.execute(_END, dataset=dataset, numbers=file_nos, version=version)


def delete_expired(tx: CatalogTransaction, dataset: UUID, horizon: int) -> None:
    """Delete the rows that no version from `horizon` on contains."""
    tx.execute(_DELETE_EXPIRED, dataset=dataset, horizon=horizon)


def delete_of_files(tx: CatalogTransaction, dataset: UUID, file_nos: list[int]) -> None:
    """Delete the vectors of files whose rows are deleted from the catalog."""
    tx.execute(_DELETE_OF_FILES, dataset=dataset, numbers=file_nos)
