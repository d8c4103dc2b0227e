"""Make new versions, all or none, or say who came first."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pyarrow as pa
from sqlalchemy import Row, and_, bindparam, or_, select, update

from penstock import failpoints as faults
from penstock.catalog import snapshots as history
from penstock.catalog import writer_leases as leases
from penstock.catalog.database import Database, Tx, add, in_chunks, mine
from penstock.catalog.tables import (data_files, dataset_schemas, dataset_versions, datasets, file_bins, receipts, tenants)
from penstock.core.dataset.range_index import EVERYWHERE, place
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Creation, NewFile, Receipt, Share, Written, fingerprint
from penstock.core.dataset.snapshot import DATA
from penstock.core.schema.canonical import to_fields
from penstock.core.dataset.column_stats import cut, to_json
from penstock.errors import AlreadyExists, Conflict, Unavailable, Undecided, Unsupported

_TRIES = 5  # of a transaction that the database broke off before it could decide

_d, _v, _f = datasets.c, dataset_versions.c, data_files.c

_NUMBER = (
    update(tenants)
    .where(mine(tenants))
    .values(commit_no=tenants.c.commit_no + bindparam("step"))
    .returning(tenants.c.commit_no, tenants.c.committed_at)
)
_AT = update(tenants).where(mine(tenants)).values(committed_at=bindparam("moment"))
_RECEIPTS = select(receipts).where(mine(receipts), receipts.c.key.in_(bindparam("keys", expanding=True)))
_HEAD = (
    select(
        _d.schema_name, _d.table_name, _d.read_only, _d.row_ids, _d.held_by, _d.held_until,
        _v.version, _v.schema_no, _v.operation, _v.author, _v.rows, _v.files, _v.bytes,
    )
    .join_from(datasets, dataset_versions, and_(mine(dataset_versions), _v.dataset_id == _d.dataset_id))
    .where(mine(datasets), _d.dataset_id == bindparam("dataset"), _d.dropped_at.is_(None))
    .order_by(_v.version.desc())
    .limit(1)
)  # fmt: skip
_RESERVE = (
    update(datasets)
    .where(mine(datasets), _d.dataset_id == bindparam("dataset"))
    .values(
        next_row_id=_d.next_row_id + bindparam("ids"),
        next_file=_d.next_file + bindparam("files"),
        updated_at=bindparam("now"),
        updated_by=bindparam("user"),
    )
    .returning(_d.next_row_id, _d.next_file)
)
_RESERVE_IDS = (
    update(datasets)
    .where(mine(datasets), _d.dataset_id == bindparam("dataset"))
    .values(next_row_id=_d.next_row_id + bindparam("ids"))
    .returning(_d.next_row_id)
)
_END = (
    update(data_files)
    .where(
        mine(data_files),
        _f.dataset_id == bindparam("dataset"),
        _f.file_no.in_(bindparam("numbers", expanding=True)),
        _f.end_version.is_(None),
    )
    .values(end_version=bindparam("version"))
)
_held = (mine(datasets), _d.dataset_id == bindparam("held"))
_HOLD = (
    update(datasets)
    .where(*_held, or_(_d.held_by.is_(None), _d.held_by == bindparam("holder"), _d.held_until <= bindparam("now")))
    .values(held_by=bindparam("holder"), held_until=bindparam("until"))
)
_RELEASE = update(datasets).where(*_held, _d.held_by == bindparam("holder")).values(held_by=None, held_until=None)
_ADD_SCHEMA = add(dataset_schemas)
_ADD_FILE = add(data_files)
_ADD_BIN = add(file_bins)
_ADD_RECEIPT = add(receipts)
_WRITTEN = [field.name for field in fields(Written)]


Record = Callable[[Tx, Receipt], None]  # writes down, in the very transaction, what else is true if it happens


def commit(
    db: Database,
    caller: Caller,
    changes: Sequence[Change],
    *,
    lease: UUID,
    key: str,
    hold: UUID | None = None,
    record: Record | None = None,
) -> Receipt:
    """Carry out all changes in one transaction. The answer is a receipt; a refusal leaves nothing behind.

    `key` names the request: sent again, it is answered with the first receipt. Where the database's
    answer was lost, the receipt is looked up before anything is said.
    """
    changes = tuple(sorted(changes, key=lambda change: change.dataset))
    assert len({change.dataset for change in changes}) == len(changes), "one change for each dataset"
    asked = Share(key, fingerprint(changes))
    outcome = _carry_out(db, caller, changes, [asked], lease, hold, record)[key]
    if isinstance(outcome, AlreadyExists):
        raise outcome
    return outcome


Settled = dict[str, Receipt | AlreadyExists]  # by the keys of requests


def commit_shared(db: Database, caller: Caller, append: Change, shares: Sequence[Share], *, lease: UUID) -> Settled:
    """Carry out an append that several requests share: one version, and a receipt for each of them.

    Where the keys of some were used before, nothing is written, and the answer is of those alone: take their rows
    out, and come again. Where the outcome is not known, `unknown` is what each of them must hear.
    """
    return _carry_out(db, caller, (append,), shares, lease)


def _carry_out(
    db: Database,
    caller: Caller,
    changes: tuple[Change, ...],
    shares: Sequence[Share],
    lease: UUID,
    hold: UUID | None = None,
    record: Record | None = None,
) -> Settled:
    for tries_left in reversed(range(_TRIES)):
        try:
            with db.write(caller, faults.at) as tx:
                settled = _apply(tx, changes, shares, lease, hold, record)
            break
        except _Replay as replay:
            return replay.settled
        except Conflict as refusal:
            if refusal.reason != "overtaken" or not tries_left:
                raise
        except Undecided:
            settled = _look_up(db, caller, shares)
            if not settled:
                raise Conflict(
                    "commit_lost", "the database broke off before the commit; nothing was written, try again"
                ) from None
            if len(settled) < len(shares):  # it was all or nothing: somebody else has carried these out
                return _again(settled)
            break
    faults.at("commit.done")
    return settled


def lookup(db: Database, caller: Caller, key: str, request: str | None = None) -> Receipt | None:
    """Was this request carried out? Waits for a commit that is still under way."""
    found = _look_up(db, caller, [Share(key, request)]).get(key)
    if isinstance(found, AlreadyExists):
        raise found
    return found


def unknown(key: str) -> Undecided:
    return Undecided(
        "unknown_outcome",
        f"the database did not answer, so it is not known whether this write happened; "
        f"send it again with the idempotency key {key!r}: it happens once at most",
        idempotency_key=key,
    )


def _look_up(db: Database, caller: Caller, shares: Sequence[Share]) -> Settled:
    try:
        with db.write(caller) as tx:
            # The commit in question holds the tenant's row until it has ended; the first one of all has just made it.
            _add_tenant(tx)
            tx.first(_NUMBER, step=0)
            return _settled(tx, shares)
    except (Unavailable, Undecided, Conflict) as cause:
        raise unknown(shares[0].key) from cause


def hold(db: Database, caller: Caller, dataset: UUID, holder: UUID, time: timedelta) -> bool:
    """Let nobody else commit to the dataset for a while; again by the same holder, for a while longer.

    False: somebody else holds it. A commit that is under way ends before this does.
    """
    with db.write(caller) as tx:
        _commit_no(tx, dataset, step=0)
        return tx.run(_HOLD, held=dataset, holder=holder, now=tx.now, until=tx.now + time) == 1


def release(db: Database, caller: Caller, dataset: UUID, holder: UUID) -> None:
    with db.write(caller) as tx:
        tx.run(_RELEASE, held=dataset, holder=holder)


def reserve_row_ids(db: Database, caller: Caller, dataset: UUID, count: int) -> int:
    """Take so many row ids, for rows that need them before they are committed. The answer is the first of them."""
    with db.write(caller) as tx:
        reserved = tx.first(_RESERVE_IDS, dataset=dataset, ids=count)
    if reserved is None:
        raise history.no_such(dataset)
    return int(reserved.next_row_id) - count


def drop(db: Database, caller: Caller, dataset: UUID) -> None:
    """Take a dataset out of sight. Its files stay until they are swept."""
    with db.write(caller) as tx:
        number = _commit_no(tx, dataset)
        head = _head(tx, dataset)
        tx.run(
            update(datasets)
            .where(mine(datasets), _d.dataset_id == bindparam("dropped"), _d.dropped_at.is_(None))
            .values(dropped_at=tx.now, dropped_commit_no=number, updated_at=tx.now, updated_by=caller.user),
            dropped=dataset,
        )
        tx.audit("drop", {"dataset": dataset, "name": _name(head)}, commit_no=number)


def _apply(
    tx: Tx,
    changes: tuple[Change, ...],
    shares: Sequence[Share],
    lease: UUID,
    hold: UUID | None,
    record: Record | None,
) -> Settled:
    leases.assert_alive(tx, lease)
    faults.at("commit.begun")
    changes_something = not all(change.empty for change in changes)
    number = _commit_no(tx, changes[0].dataset, step=int(changes_something), create=any(c.create for c in changes))
    faults.at("commit.numbered")
    if before := _settled(tx, shares):
        raise _Replay(_again(before))
    written = tuple(_apply_one(tx, change, number, hold) for change in changes)
    made = {share.key: Receipt(share.key, number, told, tx.now) for share, told in Share.told(shares, written)}
    tx.each(_ADD_RECEIPT, [_kept(made[share.key], share.request) for share in shares])
    if changes_something:
        tx.audit("+".join(dict.fromkeys(c.operation for c in changes))[:40], _plain(written), commit_no=number)
    faults.at("commit.recorded")
    if record:
        for receipt in made.values():
            record(tx, receipt)
    return {**made}


def _apply_one(tx: Tx, change: Change, number: int, hold: UUID | None) -> Written:
    head: Row[Any]
    if change.create:
        name, base = _create(tx, change.dataset, change.create), _NOTHING
        row_ids = change.create.row_ids
    else:
        head = _head(tx, change.dataset)
        name, row_ids = _name(head), head.row_ids
        if head.read_only:
            raise Unsupported("read_only", f"{name} is read-only", dataset=name)
        if head.held_by not in (None, hold) and head.held_until > tx.now:
            raise Conflict(
                "dataset_held",
                f"{name} is held for a merge that others kept overtaking; try again in a moment",
                dataset=name,
                until=head.held_until.isoformat(),
            )
        if head.version != change.base and not change.rebase:
            raise _moved_on(change, head)
        base = _Totals(head.version, head.schema_no, head.rows, head.files, head.bytes)
        if change.empty:
            return Written(change.dataset, name, base.version, change.operation, base.rows)

    version = base.version + 1
    rows = base.rows + _sum(change.added, "rows") - _sum(change.removed, "rows")
    won = tx.add_if_free(
        dataset_versions,
        dataset_id=change.dataset,
        version=version,
        commit_no=number,
        schema_no=_schema_no(tx, change, base),
        operation=change.operation,
        **asdict(change.counts),
        rows=rows,
        files=base.files + len(change.added) - len(change.removed),
        bytes=base.bytes + _sum(change.added, "bytes") - _sum(change.removed, "bytes"),
        created_at=tx.now,
        created_by=tx.caller.user,
        author=tx.caller.name,
    )
    if not won:
        raise _moved_on(change, _head(tx, change.dataset))
    faults.at("commit.versioned")
    if _end(tx, change, version) != len(change.removed):
        raise _moved_on(change, head)
    faults.at("commit.removed")
    first_row_id = _add_files(tx, change, version, row_ids=row_ids)
    faults.at("commit.added")
    counts = asdict(change.counts)
    return Written(change.dataset, name, version, change.operation, rows, **counts, first_row_id=first_row_id)


@dataclass(frozen=True, slots=True)
class _Totals:
    """The version that a change stands on."""

    version: int
    schema_no: int
    rows: int
    files: int
    bytes: int


_NOTHING = _Totals(0, 0, 0, 0, 0)


class _Replay(Exception):
    def __init__(self, settled: Settled) -> None:
        self.settled = settled


def _again(settled: Settled) -> Settled:
    return {key: each.again() if isinstance(each, Receipt) else each for key, each in settled.items()}


def _commit_no(tx: Tx, dataset: UUID, *, step: int = 1, create: bool = False) -> int:
    """Take the tenant's next number. The row stays locked until the end: commits of a tenant follow one another.

    So do their times: a commit that waited here is of now, and no earlier than the one it waited for.
    """
    row = tx.first(_NUMBER, step=step)
    if row is None and create:
        _add_tenant(tx)
        row = tx.first(_NUMBER, step=step)
    if row is None:
        raise history.no_such(dataset)
    tx.now = max(tx.clock(), row.committed_at)
    if step:
        tx.run(_AT, moment=tx.now)
    return int(row.commit_no)


def _add_tenant(tx: Tx) -> None:
    """Waits for whoever is adding it at the same moment."""
    tx.add_if_free(tenants, commit_no=0, committed_at=tx.now, created_at=tx.now)


def _settled(tx: Tx, shares: Sequence[Share]) -> Settled:
    """What became of those requests whose keys were used before."""
    asked = {share.key: share.request for share in shares}
    rows = [row for keys in in_chunks(list(asked)) for row in tx.all(_RECEIPTS, keys=keys)]
    return {row.key: _receipt(row, asked[row.key]) for row in rows}


def _receipt(row: Row[Any], request: str | None) -> Receipt | AlreadyExists:
    if request not in (None, row.fingerprint):
        return AlreadyExists(
            "key_reused", f"the idempotency key {row.key!r} was used for another request; take a new one", key=row.key
        )
    written = tuple(Written(**{**w, "dataset": UUID(w["dataset"])}) for w in json.loads(row.written))
    return Receipt(row.key, row.commit_no, written, row.created_at)


def _kept(receipt: Receipt, request: str | None) -> dict[str, Any]:
    return {
        "key": receipt.key,
        "fingerprint": request,
        "commit_no": receipt.commit_no,
        "written": json.dumps(_plain(receipt.written)),
        "created_at": receipt.at,
    }


def _plain(written: tuple[Written, ...]) -> list[dict[str, Any]]:
    """Without `asdict`: a commit may have hundreds of receipts."""
    return [{**{name: getattr(w, name) for name in _WRITTEN}, "dataset": str(w.dataset)} for w in written]


def _create(tx: Tx, dataset: UUID, creation: Creation) -> str:
    name = str(creation.name)
    free = tx.add_if_free(
        datasets,
        dataset_id=dataset,
        schema_name=creation.name.schema,
        table_name=creation.name.table,
        name_key=creation.name.key,
        location=location(tx.caller, dataset),
        read_only=creation.read_only,
        row_ids=creation.row_ids,
        next_row_id=1,
        next_file=1,
        created_at=tx.now,
        created_by=tx.caller.user,
        updated_at=tx.now,
        updated_by=tx.caller.user,
    )
    if not free:
        raise AlreadyExists("dataset_exists", f"there is a dataset {name!r} already", dataset=name)
    return name


def home(caller: Caller) -> str:
    """The folder of all files of a tenant, below the workspace."""
    return f"{DATA}/{caller.tenant}"


def location(caller: Caller, dataset: UUID) -> str:
    """The folder of a dataset's files."""
    return f"{home(caller)}/{dataset}"


def _head(tx: Tx, dataset: UUID) -> Row[Any]:
    head = tx.first(_HEAD, dataset=dataset)
    if head is None:
        raise history.no_such(dataset)
    return head


def _name(head: Row[Any]) -> str:
    return f"{head.schema_name}.{head.table_name}"


def _moved_on(change: Change, head: Row[Any]) -> Conflict:
    name = _name(head)
    return Conflict(
        "stale_version",
        f"{name} has moved past version {change.base}: {head.author} committed version {head.version} "
        f"({head.operation}); read it again and retry",
        dataset=name,
        base=change.base,
        newest=head.version,
        author=head.author,
    )


def _schema_no(tx: Tx, change: Change, base: _Totals) -> int:
    if not (change.alters or change.create):
        return base.schema_no
    number = base.schema_no + 1
    fields = json.dumps(to_fields(change.schema), ensure_ascii=False)
    tx.run(_ADD_SCHEMA, dataset_id=change.dataset, schema_no=number, fields=fields)
    return number


def _end(tx: Tx, change: Change, version: int) -> int:
    """End the replaced files; the answer is how many were still live."""
    ended = 0
    for numbers in in_chunks([file.number for file in change.removed]):
        ended += tx.run(_END, dataset=change.dataset, numbers=numbers, version=version)
        history.unplace(tx, change.dataset, numbers)
    return ended


def _add_files(tx: Tx, change: Change, version: int, *, row_ids: bool) -> int | None:
    """List the new files. Fresh rows get their ids here, from what the footers say, if they have none yet.

    The answer is the first of their ids, if they follow one another.
    """
    fresh = sum(f.rows for f in change.added if f.row_ids is None and f.first_row_id is None) if row_ids else 0
    reserved = tx.first(
        _RESERVE, dataset=change.dataset, ids=fresh, files=len(change.added), now=tx.now, user=tx.caller.user
    )
    assert reserved is not None
    next_id, first = reserved.next_row_id - fresh, reserved.next_file - len(change.added)
    listed, bins = [], []
    given: list[tuple[int, int]] = []
    for number, file in enumerate(change.added, first):
        first_id, ids = file.first_row_id, file.row_ids
        if row_ids and ids is None:
            if first_id is None:
                first_id = next_id
                next_id += file.rows
            ids = (first_id, first_id + file.rows - 1)
            given.append((first_id, file.rows))
        listed.append(
            {
                "dataset_id": change.dataset,
                "file_no": number,
                "path": file.path,
                "rows": file.rows,
                "bytes": file.bytes,
                "checksum": file.checksum,
                "first_row_id": first_id,
                "low_row_id": ids and ids[0],
                "high_row_id": ids and ids[1],
                "stats": to_json({name: cut(stats) for name, stats in file.stats.items()}),
                "begin_version": version,
            }
        )
        bins += [
            {"dataset_id": change.dataset, "column_no": column, "place": where, "file_no": number}
            for column, where in _places(file, change.schema, ids)
        ]
    tx.each(_ADD_FILE, listed)
    tx.each(_ADD_BIN, bins)
    in_a_row = all(begun + rows == following for (begun, rows), (following, _) in pairwise(given))
    return given[0][0] if given and in_a_row else None


def _places(file: NewFile, schema: pa.Schema, ids: tuple[int, int] | None) -> Iterator[tuple[int, int]]:
    """Where the index of ranges keeps a file: one place for each column that can be searched, and for the row ids."""
    for column, name in enumerate(schema.names[: history.INDEXED_COLUMNS]):
        stats = file.stats.get(name)
        if stats is None or stats.nulls == file.rows:
            continue
        if stats.low is None or stats.high is None:
            yield column, EVERYWHERE
        else:
            yield column, place(stats.low, stats.high)
    if ids:
        yield history.ROW_IDS, place(*ids)


def _sum(files: Iterable[NewFile], what: str) -> int:
    return sum(getattr(file, what) for file in files)
