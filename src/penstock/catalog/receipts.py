"""Store and find the receipts of commits by their idempotency keys."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any
from uuid import UUID

from sqlalchemy import Row, bindparam, select

from penstock.catalog import commit_numbers
from penstock.catalog.database import CatalogTransaction, Database, in_chunks
from penstock.catalog.tables import receipts
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.core.caller import Caller
from penstock.core.dataset.changes import DatasetCommit, GroupMember, Receipt, mark_replayed
from penstock.errors import AlreadyExists, CommitStateUnknown, Conflict, Unavailable

_SELECT = select(receipts).where(tenant_filter(receipts), receipts.c.key.in_(bindparam("keys", expanding=True)))
_INSERT = insert_for_tenant(receipts)
_COMMIT_FIELDS = [field.name for field in fields(DatasetCommit)]

# The receipt of each idempotency key that was used before; AlreadyExists if another request used the key.
ReceiptsByKey = dict[str, Receipt | AlreadyExists]


def find_receipt(db: Database, caller: Caller, key: str, fingerprint: str | None = None) -> Receipt | None:
    """Return the receipt of a request, or None if it was not committed. Waits for a running commit of the tenant.

    Args:
        key: the idempotency key of the request
        fingerprint: the digest of the request; None accepts any request with the key

    Raises:
        AlreadyExists: another request used the key
        CommitStateUnknown: the database did not respond
    """
    receipt = find_receipts(db, caller, [GroupMember(key, fingerprint)]).get(key)
    if isinstance(receipt, AlreadyExists):
        raise receipt
    return receipt


def find_receipts(db: Database, caller: Caller, members: Sequence[GroupMember]) -> ReceiptsByKey:
    """Return the receipts of several requests. Waits for a running commit of the tenant."""
    try:
        with db.write(caller) as tx:
            commit_numbers.wait_for_running_commit(tx)
            return select_receipts(tx, members)
    except (Unavailable, CommitStateUnknown, Conflict) as cause:
        raise unknown_outcome(members[0].key) from cause


def unknown_outcome(key: str) -> CommitStateUnknown:
    """Return the error for a request whose commit may or may not have succeeded."""
    return CommitStateUnknown("unknown_outcome", {"key": key}, idempotency_key=key)


def select_receipts(tx: CatalogTransaction, members: Sequence[GroupMember]) -> ReceiptsByKey:
    """Return the receipts of those requests whose keys were used before."""
    fingerprints = {member.key: member.request for member in members}
    rows = [row for keys in in_chunks(list(fingerprints)) for row in tx.all(_SELECT, keys=keys)]
    return {row.key: _from_row(row, fingerprints[row.key]) for row in rows}


def insert_receipts(tx: CatalogTransaction, members: Sequence[GroupMember], new: Mapping[str, Receipt]) -> None:
    """Store the receipts of a commit, one for each request."""
    tx.insert_many(_INSERT, [_to_row(new[member.key], member.request) for member in members])


def as_replays(receipts_by_key: ReceiptsByKey) -> ReceiptsByKey:
    """Mark the receipts as those of an earlier execution."""
    return {
        key: mark_replayed(receipt) if isinstance(receipt, Receipt) else receipt
        for key, receipt in receipts_by_key.items()
    }


def commits_as_json(commits: Sequence[DatasetCommit]) -> list[dict[str, Any]]:
    """Return the commits as JSON objects. Faster than `asdict`: a group commit may have hundreds of receipts."""
    return [
        {**{name: getattr(commit, name) for name in _COMMIT_FIELDS}, "dataset": str(commit.dataset)}
        for commit in commits
    ]


def _from_row(row: Row[Any], fingerprint: str | None) -> Receipt | AlreadyExists:
    if fingerprint not in (None, row.fingerprint):
        return AlreadyExists("key_reused", key=row.key)
    commits = tuple(
        DatasetCommit(**{**commit, "dataset": UUID(commit["dataset"])}) for commit in json.loads(row.dataset_commits)
    )
    return Receipt(row.key, row.commit_no, commits, row.created_at)


def _to_row(receipt: Receipt, fingerprint: str | None) -> dict[str, Any]:
    return {
        "key": receipt.key,
        "fingerprint": fingerprint,
        "commit_no": receipt.commit_no,
        "dataset_commits": json.dumps(commits_as_json(receipt.written)),
        "created_at": receipt.at,
    }
