"""Number the commits of a tenant.

The row of the tenant is locked from the moment a commit takes its number until the transaction ends, so the commits of
a tenant are serialized. Their timestamps never decrease.
"""

from uuid import UUID

from sqlalchemy import bindparam, update

from penstock.catalog import snapshots
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.tables import tenants
from penstock.catalog.tenant_guard import tenant_filter

_NEXT_COMMIT_NO = (
    update(tenants)
    .where(tenant_filter(tenants))
    .values(commit_no=tenants.c.commit_no + bindparam("step"))
    .returning(tenants.c.commit_no, tenants.c.committed_at)
)
_SET_COMMITTED_AT = update(tenants).where(tenant_filter(tenants)).values(committed_at=bindparam("committed_at"))


def take_commit_no(tx: CatalogTransaction, dataset: UUID, *, step: int = 1, create_tenant: bool = False) -> int:
    """Lock the tenant's row until the transaction ends and return the next commit number.

    The time of the transaction becomes the time at which the lock was granted, and is not before the previous commit.

    Args:
        dataset: the dataset that is reported as missing if the tenant has never committed
        step: 0 takes the lock, but no new number
        create_tenant: insert the tenant's row if there is none

    Raises:
        NotFound: the tenant has no row
    """
    row = tx.first(_NEXT_COMMIT_NO, step=step)
    if row is None and create_tenant:
        _insert_tenant(tx)
        row = tx.first(_NEXT_COMMIT_NO, step=step)
    if row is None:
        raise snapshots.dataset_not_found(dataset)
    tx.now = max(tx.clock(), row.committed_at)
    if step:
        tx.execute(_SET_COMMITTED_AT, committed_at=tx.now)
    return int(row.commit_no)


def wait_for_running_commit(tx: CatalogTransaction) -> None:
    """Wait until a running commit of the tenant has ended, also if it is the tenant's first one."""
    _insert_tenant(tx)
    tx.first(_NEXT_COMMIT_NO, step=0)


def _insert_tenant(tx: CatalogTransaction) -> None:
    """Insert the tenant's row unless it exists. Waits for a transaction that inserts it at the same time."""
    tx.insert_if_absent(tenants, commit_no=0, committed_at=tx.now, created_at=tx.now)
