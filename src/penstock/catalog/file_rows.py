"""Insert and end the rows of data files: the tables `data_files` and `file_ranges`."""

from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

from sqlalchemy import bindparam, update

from penstock.catalog import deletion_vectors, range_index, snapshots
from penstock.catalog.database import CatalogTransaction, Database, in_chunks
from penstock.catalog.tables import data_files, datasets
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change
from penstock.core.dataset.column_stats import to_json, truncate_bounds

_d, _f = datasets.c, data_files.c

_RESERVE_NUMBERS = (
    update(datasets)
    .where(tenant_filter(datasets), _d.dataset_id == bindparam("dataset"))
    .values(
        next_row_id=_d.next_row_id + bindparam("ids"),
        next_file_no=_d.next_file_no + bindparam("files"),
        updated_at=bindparam("now"),
        updated_by=bindparam("user"),
    )
    .returning(_d.next_row_id, _d.next_file_no)
)
_RESERVE_ROW_IDS = (
    update(datasets)
    .where(tenant_filter(datasets), _d.dataset_id == bindparam("dataset"))
    .values(next_row_id=_d.next_row_id + bindparam("ids"))
    .returning(_d.next_row_id)
)
_END_FILES = (
    update(data_files)
    .where(
        tenant_filter(data_files),
        _f.dataset_id == bindparam("dataset"),
        _f.file_no.in_(bindparam("numbers", expanding=True)),
        _f.end_version.is_(None),
    )
    .values(end_version=bindparam("version"))
)
_INSERT_FILE = insert_for_tenant(data_files)


def reserve_row_ids(db: Database, caller: Caller, dataset: UUID, count: int) -> int:
    """Reserve row ids for rows that need them before they are committed.

    Returns:
        the first of `count` consecutive row ids
    """
    with db.write(caller) as tx:
        reserved = tx.first(_RESERVE_ROW_IDS, dataset=dataset, ids=count)
    if reserved is None:
        raise snapshots.dataset_not_found(dataset)
    return int(reserved.next_row_id) - count


def end_files(tx: CatalogTransaction, dataset: UUID, file_nos: Sequence[int], version: int) -> int:
    """End files and their deletion vectors at a version, and remove the files from the range index.

    Returns:
        the number of files that were live until now
    """
    ended = 0
    for part in in_chunks(file_nos):
        ended += tx.execute(_END_FILES, dataset=dataset, numbers=part, version=version)
        range_index.remove(tx, dataset, part)
        deletion_vectors.end(tx, dataset, part, version)
    return ended


def insert_files(tx: CatalogTransaction, change: Change, version: int, *, row_ids: bool) -> int | None:
    """Insert the added files of a change, and assign row ids to rows that have none.

    Args:
        row_ids: whether the dataset has row ids

    Returns:
        the first new row id, if the new row ids are consecutive
    """
    new_row_count = sum(f.rows for f in change.added if f.row_ids is None and f.first_row_id is None) if row_ids else 0
    reserved = tx.first(
        _RESERVE_NUMBERS,
        dataset=change.dataset,
        ids=new_row_count,
        files=len(change.added),
        now=tx.now,
        user=tx.caller.user,
    )
    assert reserved is not None
    next_row_id, first_file_no = reserved.next_row_id - new_row_count, reserved.next_file_no - len(change.added)
    file_rows, range_rows, vector_rows = [], [], []
    id_ranges: list[tuple[int, int]] = []  # first id and number of rows of each file whose ids are implicit
    for file_no, file in enumerate(change.added, first_file_no):
        first_row_id, row_id_range = file.first_row_id, file.row_ids
        if row_ids and row_id_range is None:
            if first_row_id is None:
                first_row_id = next_row_id
                next_row_id += file.rows
            row_id_range = (first_row_id, first_row_id + file.rows - 1)
            id_ranges.append((first_row_id, file.rows))
        file_rows.append(
            {
                "dataset_id": change.dataset,
                "file_no": file_no,
                "path": file.path,
                "rows": file.rows,
                "bytes": file.bytes,
                "checksum": file.checksum,
                "first_row_id": first_row_id,
                "low_row_id": row_id_range and row_id_range[0],
                "high_row_id": row_id_range and row_id_range[1],
                "stats": to_json({name: truncate_bounds(stats) for name, stats in file.stats.items()}),
                "begin_version": version,
            }
        )
        range_rows += range_index.rows_of_file(change.dataset, file_no, file, change.schema, row_id_range)
        if file.deleted:
            vector_rows.append(deletion_vectors.row_of_file(change.dataset, file_no, file.deleted, version))
    tx.insert_many(_INSERT_FILE, file_rows)
    range_index.insert(tx, range_rows)
    deletion_vectors.insert(tx, vector_rows)
    contiguous = all(first + rows == following for (first, rows), (following, _) in pairwise(id_ranges))
    return id_ranges[0][0] if id_ranges and contiguous else None
