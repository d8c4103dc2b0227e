"""Show, search and cancel pipeline runs by their records in the catalog."""

from uuid import UUID

from penstock.catalog import runs as run_records
from penstock.core.caller import Caller, Role
from penstock.core.odata import QueryOptions
from penstock.core.paging import SearchPage
from penstock.core.pipeline.run import Run
from penstock.service import process_identity
from penstock.service.workspace import Workspace

SEARCH_FIELDS = run_records.FIELDS
STALE_AFTER = process_identity.STALE_AFTER  # a run without a heartbeat for this long is lost or requeued


def show(ws: Workspace, caller: Caller, run: UUID) -> Run:
    """Return the record of a run."""
    caller.require(Role.VIEWER)
    expire_stale(ws, caller)
    with ws.db.read(caller) as tx:
        return run_records.find(tx, run)


def search(ws: Workspace, caller: Caller, options: QueryOptions) -> SearchPage[Run]:
    """Return one page of the runs that match the options."""
    caller.require(Role.VIEWER)
    expire_stale(ws, caller)
    with ws.db.read(caller) as tx:
        return run_records.search(tx, options)


def cancel(ws: Workspace, caller: Caller, run: UUID) -> Run:
    """Request the cancellation of a run, whichever process executes it. A run that has ended stays as it is."""
    return request_cancel(ws, caller, run)[0]


def request_cancel(ws: Workspace, caller: Caller, run: UUID) -> tuple[Run, bool]:
    """Cancel a run; also return whether that ended the run at once, because it was queued."""
    caller.require(Role.DEVELOPER)
    expire_stale(ws, caller)
    with ws.db.write(caller) as tx:
        was_queued = run_records.cancel_queued(tx, run)
        return run_records.request_cancel(tx, run), was_queued


def expire_stale(ws: Workspace, caller: Caller) -> None:
    """Requeue or fail the tenant's runs without a heartbeat. Nothing is written if there are none."""
    since = ws.db.clock() - STALE_AFTER
    with ws.db.read(caller) as tx:
        if not run_records.has_stale_runs(tx, since):
            return
    with ws.db.write(caller) as tx:
        run_records.expire_stale_runs(tx, since)
