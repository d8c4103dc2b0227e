"""Lock a dataset: give one owner the exclusive right to commit to it for a limited time."""

from datetime import timedelta
from uuid import UUID

from sqlalchemy import bindparam, or_, update

from penstock.catalog import commit_numbers
from penstock.catalog.database import Database
from penstock.catalog.tables import datasets
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.caller import Caller

_d = datasets.c
_this_dataset = (tenant_filter(datasets), _d.dataset_id == bindparam("locked"))
_LOCK = (
    update(datasets)
    .where(
        *_this_dataset,
        or_(_d.locked_by.is_(None), _d.locked_by == bindparam("owner"), _d.locked_until <= bindparam("now")),
    )
    .values(locked_by=bindparam("owner"), locked_until=bindparam("until"))
)
_UNLOCK = (
    update(datasets).where(*_this_dataset, _d.locked_by == bindparam("owner")).values(locked_by=None, locked_until=None)
)


def lock_dataset(db: Database, caller: Caller, dataset: UUID, owner: UUID, duration: timedelta) -> bool:
    """Lock a dataset, or extend the owner's lock. Waits for a running commit of the tenant.

    Returns:
        False if another owner has locked the dataset
    """
    with db.write(caller) as tx:
        commit_numbers.take_commit_no(tx, dataset, step=0)
        return tx.execute(_LOCK, locked=dataset, owner=owner, now=tx.now, until=tx.now + duration) == 1


def unlock_dataset(db: Database, caller: Caller, dataset: UUID, owner: UUID) -> None:
    """Release the owner's lock. Does nothing if the owner has none."""
    with db.write(caller) as tx:
        tx.execute(_UNLOCK, locked=dataset, owner=owner)
