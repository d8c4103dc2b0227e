"""Commit changes to one or more datasets in one SQL transaction, and drop datasets."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row, and_, bindparam, select, update

from penstock import failpoints
from penstock.catalog import deletion_vectors, file_rows, queries, receipts, snapshots, writer_leases
from penstock.catalog.commit_numbers import take_commit_no
from penstock.catalog.database import CatalogTransaction, Database
from penstock.catalog.receipts import ReceiptsByKey
from penstock.catalog.tables import dataset_schemas, dataset_versions, datasets
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.core.caller import Caller
from penstock.core.dataset.changes import (
    Change,
    DatasetCommit,
    DeletedRows,
    GroupMember,
    NewDataset,
    NewFile,
    Receipt,
    fingerprint,
)
from penstock.core.names import DatasetName, join_names
from penstock.core.schema.type_names import to_fields
from penstock.core.workspace_layout import dataset_folder
from penstock.errors import AlreadyExists, CommitStateUnknown, Conflict, Unsupported

_MAX_ATTEMPTS = 5  # of a transaction that the database aborted because of a deadlock or a serialization failure
_MAX_LISTED_QUERIES = 100  # in the facts of an error
_MAX_LISTED_ROWS = 20

_d, _v = datasets.c, dataset_versions.c

_SELECT_HEAD = (
    select(
        _d.schema_name, _d.table_name, _d.read_only, _d.row_ids, _d.locked_by, _d.locked_until,
        _v.version, _v.schema_no, _v.operation, _v.author, _v.rows, _v.files, _v.bytes, _v.deleted_rows, _v.vector_files,
    )
    .join_from(datasets, dataset_versions, and_(tenant_filter(dataset_versions), _v.dataset_id == _d.dataset_id))
    .where(tenant_filter(datasets), _d.dataset_id == bindparam("dataset"), _d.dropped_at.is_(None))
    .order_by(_v.version.desc())
    .limit(1)
)  # fmt: skip
_INSERT_SCHEMA = insert_for_tenant(dataset_schemas)
_SET_CLUSTER_KEY = (
    update(datasets)
    .where(tenant_filter(datasets), _d.dataset_id == bindparam("clustered"))
    .values(cluster_by=bindparam("columns"), updated_at=bindparam("now"), updated_by=bindparam("user"))
)
# Called inside the transaction of the commit: its statements are committed with the data or not at all.
OnCommit = Callable[[CatalogTransaction, Receipt], None]


def commit(
    db: Database,
    caller: Caller,
    changes: Sequence[Change],
    *,
    lease: UUID,
    key: str,
    lock_holder: UUID | None = None,
    on_commit: OnCommit | None = None,
) -> Receipt:
    """Commit all changes in one transaction, or none.

    If the response of the database is lost, the receipt is looked up before an error is reported.

    Args:
        lease: the writer lease under which the files were written
        key: the idempotency key; a repeated request returns the first receipt
        lock_holder: owner of the dataset lock, if the caller holds one
        on_commit: statements to run in the same transaction

    Raises:
        Conflict: a dataset has a newer version, is locked, or the lease has ended
        AlreadyExists: the name of a new dataset is taken, or another request used the key
        CommitStateUnknown: it is unknown whether the commit happened
    """
    changes = tuple(sorted(changes, key=lambda change: change.dataset))
    assert len({change.dataset for change in changes}) == len(changes), "one change for each dataset"
    member = GroupMember(key, fingerprint(changes))
    outcome = _commit_with_retry(db, caller, changes, [member], lease, lock_holder, on_commit)[key]
    if isinstance(outcome, AlreadyExists):
        raise outcome
    return outcome


def group_commit(
    db: Database,
    caller: Caller,
    change: Change,
    members: Sequence[GroupMember],
    *,
    lease: UUID,
    lock_holder: UUID | None = None,
) -> ReceiptsByKey:
    """Commit one change for several requests: one version, and one receipt for each request.

    If keys were used before, nothing is written and only their receipts are returned. The caller removes the rows of
    those requests and commits the rest. If the outcome is unknown, each request must receive
    `receipts.unknown_outcome`.
    """
    return _commit_with_retry(db, caller, (change,), members, lease, lock_holder)


def _commit_with_retry(
    db: Database,
    caller: Caller,
    changes: tuple[Change, ...],
    members: Sequence[GroupMember],
    lease: UUID,
    lock_holder: UUID | None = None,
    on_commit: OnCommit | None = None,
) -> ReceiptsByKey:
    for attempts_left in reversed(range(_MAX_ATTEMPTS)):
        try:
            with db.write(caller, failpoints.hit) as tx:
                receipts_by_key = _apply_changes(tx, changes, members, lease, lock_holder, on_commit)
            break
        except _AlreadyCommitted as replay:
            return replay.receipts_by_key
        except Conflict as conflict:
            if conflict.reason != "overtaken" or not attempts_left:
                raise
        except CommitStateUnknown:
            receipts_by_key = receipts.find_receipts(db, caller, members)
            if not receipts_by_key:
                raise Conflict("commit_lost") from None
            if len(receipts_by_key) < len(members):  # a commit is atomic: another group committed these
                return receipts.as_replays(receipts_by_key)
            break
    failpoints.hit("commit.done")
    return receipts_by_key


def drop_dataset(db: Database, caller: Caller, dataset: UUID, *, force: bool = False) -> None:
    """Drop a dataset. Its files stay until they are swept.

    Raises:
        Unsupported: registered queries read the dataset, and `force` is not set
    """
    with db.write(caller) as tx:
        commit_no = take_commit_no(tx, dataset)
        head = _select_head(tx, dataset)
        name = DatasetName(head.schema_name, head.table_name)
        if not force and (readers := queries.list_readers(tx, name)):
            raise _dataset_in_use(name, readers)
        tx.execute(
            update(datasets)
            .where(tenant_filter(datasets), _d.dataset_id == bindparam("dropped"), _d.dropped_at.is_(None))
            .values(dropped_at=tx.now, dropped_commit_no=commit_no, updated_at=tx.now, updated_by=caller.user),
            dropped=dataset,
        )
        tx.audit("drop", {"dataset": dataset, "name": str(name)}, commit_no=commit_no)


def _apply_changes(
    tx: CatalogTransaction,
    changes: tuple[Change, ...],
    members: Sequence[GroupMember],
    lease: UUID,
    lock_holder: UUID | None,
    on_commit: OnCommit | None,
) -> ReceiptsByKey:
    writer_leases.assert_alive(tx, lease)
    failpoints.hit("commit.begun")
    changes_something = not all(change.empty for change in changes)
    commit_no = take_commit_no(
        tx, changes[0].dataset, step=int(changes_something), create_tenant=any(c.create for c in changes)
    )
    failpoints.hit("commit.numbered")
    if earlier := receipts.select_receipts(tx, members):
        raise _AlreadyCommitted(receipts.as_replays(earlier))
    commits = tuple(_apply_change(tx, change, commit_no, lock_holder) for change in changes)
    new = {
        member.key: Receipt(member.key, commit_no, own_commits, tx.now)
        for member, own_commits in GroupMember.split_receipts(members, commits)
    }
    receipts.insert_receipts(tx, members, new)
    if changes_something:
        tx.audit(
            "+".join(dict.fromkeys(c.operation for c in changes))[:40],
            receipts.commits_as_json(commits),
            commit_no=commit_no,
        )
    failpoints.hit("commit.recorded")
    if on_commit:
        for receipt in new.values():
            on_commit(tx, receipt)
    return {**new}


def _apply_change(tx: CatalogTransaction, change: Change, commit_no: int, lock_holder: UUID | None) -> DatasetCommit:
    head: Row[Any]
    if change.create:
        name, base = _insert_dataset(tx, change.dataset, change.create), _NO_VERSION
        row_ids = change.create.row_ids
    else:
        head = _select_head(tx, change.dataset)
        name, row_ids = _full_name(head), head.row_ids
        if head.read_only:
            raise Unsupported("read_only.write", {"name": name}, dataset=name)
        if head.locked_by not in (None, lock_holder) and head.locked_until > tx.now:
            raise Conflict(
                "dataset_locked.by_writer",
                {"name": name},
                dataset=name,
                until=head.locked_until.isoformat(),
            )
        if head.version != change.base and not change.rebase:
            raise _stale_version(change, head)
        totals = _Totals(head.rows, head.files, head.bytes, head.deleted_rows, head.vector_files)
        base = _BaseVersion(head.version, head.schema_no, totals)
        if change.empty:
            return DatasetCommit(change.dataset, name, base.version, change.operation, base.totals.rows)

    version = base.version + 1
    try:
        marks = deletion_vectors.plan(tx, change)
    except deletion_vectors.RowsChanged as conflict:
        raise _rows_changed(change, head, conflict.rows) from None
    totals = _new_totals(base.totals, change, marks)
    inserted = tx.insert_if_absent(
        dataset_versions,
        dataset_id=change.dataset,
        version=version,
        commit_no=commit_no,
        schema_no=_resolve_schema_no(tx, change, base),
        operation=change.operation,
        **asdict(change.counts),
        **asdict(totals),
        created_at=tx.now,
        created_by=tx.caller.user,
        author=tx.caller.name,
    )
    if not inserted:
        raise _stale_version(change, _select_head(tx, change.dataset))
    failpoints.hit("commit.versioned")
    ended = [*change.removed, *(mark.deleted.file for mark in marks if mark.drops_file)]
    if file_rows.end_files(tx, change.dataset, [file.number for file in ended], version) != len(ended):
        raise _stale_version(change, head)
    failpoints.hit("commit.removed")
    deletion_vectors.apply(tx, change.dataset, marks, version)
    failpoints.hit("commit.marked")
    first_row_id = file_rows.insert_files(tx, change, version, row_ids=row_ids)
    failpoints.hit("commit.added")
    if change.cluster_by is not None:
        columns = _cluster_key_json(change.cluster_by)
        tx.execute(_SET_CLUSTER_KEY, clustered=change.dataset, columns=columns, now=tx.now, user=tx.caller.user)
    counts = asdict(change.counts)
    return DatasetCommit(
        change.dataset, name, version, change.operation, totals.rows, **counts, first_row_id=first_row_id
    )


@dataclass(frozen=True, slots=True)
class _Totals:
    """Totals of a version, as in `dataset_versions`."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    deleted_rows: int = 0
    vector_files: int = 0


@dataclass(frozen=True, slots=True)
class _BaseVersion:
    """Number and totals of the version that a change is applied to."""

    version: int
    schema_no: int
    totals: _Totals


_NO_VERSION = _BaseVersion(0, 0, _Totals())


def _new_totals(base: _Totals, change: Change, marks: Sequence[deletion_vectors.FileMark]) -> _Totals:
    files = Counter(asdict(base))
    for sign, parts in ((1, change.added), (-1, change.removed)):
        for file in parts:
            _add_file(files, sign, file, len(file.deleted) if file.deleted else 0)
    for mark in marks:
        file, touched = mark.deleted.file, len(mark.deleted.positions)
        if mark.drops_file:
            _add_file(files, -1, file, mark.deleted_before)
        else:
            files.update(rows=-touched, deleted_rows=touched, vector_files=int(not mark.deleted_before))
    return _Totals(**files)


def _add_file(totals: Counter[str], sign: int, file: NewFile, deleted: int) -> None:
    totals.update(
        rows=sign * (file.rows - deleted),
        files=sign,
        bytes=sign * file.bytes,
        deleted_rows=sign * deleted,
        vector_files=sign * bool(deleted),
    )


class _AlreadyCommitted(Exception):
    """Aborts the transaction because keys of its requests were used before."""

    def __init__(self, receipts_by_key: ReceiptsByKey) -> None:
        self.receipts_by_key = receipts_by_key


def _insert_dataset(tx: CatalogTransaction, dataset: UUID, new: NewDataset) -> str:
    name = str(new.name)
    inserted = tx.insert_if_absent(
        datasets,
        dataset_id=dataset,
        schema_name=new.name.schema,
        table_name=new.name.table,
        name_key=new.name.key,
        location=dataset_folder(tx.caller, dataset),
        read_only=new.read_only,
        row_ids=new.row_ids,
        next_row_id=1,
        next_file_no=1,
        cluster_by=_cluster_key_json(new.cluster_by),
        created_at=tx.now,
        created_by=tx.caller.user,
        updated_at=tx.now,
        updated_by=tx.caller.user,
    )
    if not inserted:
        raise AlreadyExists("dataset_exists", {"name": name}, dataset=name)
    return name


def _cluster_key_json(columns: tuple[str, ...]) -> str | None:
    return json.dumps(columns, ensure_ascii=False) if columns else None


def _select_head(tx: CatalogTransaction, dataset: UUID) -> Row[Any]:
    head = tx.first(_SELECT_HEAD, dataset=dataset)
    if head is None:
        raise snapshots.dataset_not_found(dataset)
    return head


def _full_name(head: Row[Any]) -> str:
    return f"{head.schema_name}.{head.table_name}"


def _dataset_in_use(name: DatasetName, readers: Sequence[tuple[UUID, str]]) -> Unsupported:
    return Unsupported(
        "dataset_in_use",
        {"names": join_names([query_name for _, query_name in readers])},
        dataset=str(name),
        query_count=len(readers),
        queries=[{"id": str(id), "name": query_name} for id, query_name in readers[:_MAX_LISTED_QUERIES]],
    )


def _stale_version(change: Change, head: Row[Any]) -> Conflict:
    name = _full_name(head)
    return Conflict(
        "stale_version",
        {"name": name, "version": head.version, "operation": head.operation},
        dataset=name,
        base=change.base,
        newest=head.version,
        author=head.author,
    )


def _rows_changed(change: Change, head: Row[Any], rows: DeletedRows | None) -> Conflict:
    if rows is None:
        return _stale_version(change, head)
    name, row_ids = _full_name(head), rows.list_row_ids(_MAX_LISTED_ROWS)
    return Conflict(
        "row_conflict",
        {"name": name, "count": len(rows.positions), "version": head.version, "rows": _row_id_list(row_ids)},
        dataset=name,
        base=change.rows_read_at,
        newest=head.version,
        author=head.author,
        conflicting_rows=len(rows.positions),
        row_ids=row_ids,
    )


def _row_id_list(row_ids: Sequence[int]) -> str:
    return f" (row ids {', '.join(map(str, row_ids[:5]))}{', …' if len(row_ids) > 5 else ''})" if row_ids else ""


def _resolve_schema_no(tx: CatalogTransaction, change: Change, base: _BaseVersion) -> int:
    if not (change.alters_schema or change.create):
        return base.schema_no
    number = base.schema_no + 1
    fields = json.dumps(to_fields(change.schema), ensure_ascii=False)
    tx.execute(_INSERT_SCHEMA, dataset_id=change.dataset, schema_no=number, fields=fields)
    return number
