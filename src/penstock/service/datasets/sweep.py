"""Delete the files of versions that are no longer retained, and files that dead writers have left.

A sweep cannot be undone. Therefore every version is retained unless the policy says otherwise; the newest version is
always retained, and so is a version that was the newest within the grace period, because it may be in use by a reader.
A file that belongs to no version is deleted only after its writer's lease has ended: the writer cannot commit it then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from penstock.catalog import retention, writer_leases
from penstock.core.caller import Caller, Role, local_caller
from penstock.core.progress import Progress, ProgressCallback, ProgressTracker
from penstock.core.workspace_layout import DATA_FOLDER, scratch_folder, tenant_folder
from penstock.errors import Forbidden, Invalid, NotFound
from penstock.service.workspace import Workspace
from penstock.storage.data_files import parse_lease

GRACE = timedelta(hours=1)
_FILES_PER_TRANSACTION = 500
_FILES_PER_LISTING = 20_000  # bounds the memory of a sweep


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Define which versions are retained.

    Without `days` and `versions` all versions are. With both, a version is retained if either of them retains it.
    """

    days: float | None = None
    versions: int | None = None
    grace: timedelta = GRACE

    def __post_init__(self) -> None:
        if self.days is not None and self.days < 0:
            raise Invalid("bad_retention.days", {"days": self.days})
        if self.versions is not None and self.versions < 1:
            raise Invalid("bad_retention.versions", {"versions": self.versions})


@dataclass
class SweepReport:
    """Count what a sweep has deleted, or would delete."""

    done: bool
    versions: int = 0
    files: int = 0
    bytes: int = 0
    orphans: int = 0  # files that never belonged to a version; included in `files`
    scratch: int = 0  # temporary folders of engines
    unknown: int = 0  # files with a writer that the catalog does not know; never deleted
    datasets: dict[str, int] = field(default_factory=dict)  # name → files

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON output."""
        return {
            "done": self.done,
            "versions": self.versions,
            "files": self.files,
            "bytes": self.bytes,
            "orphans": self.orphans,
            "scratch": self.scratch,
            "unknown": self.unknown,
            "datasets": self.datasets,
        }


def sweep(
    ws: Workspace,
    caller: Caller,
    policy: RetentionPolicy,
    *,
    execute: bool = False,
    progress: ProgressCallback | None = None,
) -> SweepReport:
    """Report what a sweep of the caller's tenant would delete, and delete it if `execute` is set.

    Args:
        ws: the workspace
        caller: needs the role admin
        policy: the versions to retain
        execute: delete the files instead of only counting them
        progress: receives the number of deleted files; may raise to stop the sweep

    Raises:
        Forbidden: the caller is not an admin
    """
    caller.require(Role.ADMIN)
    report, tracker = SweepReport(done=execute), ProgressTracker(progress, Progress(unit="files"))
    stale_since = ws.db.clock() - writer_leases.LEASE_TIMEOUT
    if execute:
        with ws.db.write(caller) as tx:
            writer_leases.expire_stale(tx, stale_since)
    with ws.db.read(caller) as tx:
        heads = retention.list_heads(tx)
    for head in heads:
        _sweep_versions(ws, caller, policy, head, report, tracker)
    _sweep_orphans(ws, caller, stale_since, report, tracker)
    _sweep_scratch(ws, caller, stale_since, report)
    if execute and report.orphans:
        with ws.db.write(caller) as tx:
            tx.audit("sweep", {"orphans": report.orphans})
    return report


def sweep_tenant(
    ws: Workspace,
    caller: Caller,
    tenant: UUID,
    policy: RetentionPolicy,
    *,
    execute: bool = False,
    progress: ProgressCallback | None = None,
) -> SweepReport:
    """Sweep any tenant of the workspace, on the machine that has access to the database and the files.

    Args:
        ws: the workspace
        caller: the local caller of the command line; a caller with a token is rejected, whatever its role
        tenant: the tenant to sweep
        policy: the versions to retain
        execute: delete the files instead of only counting them
        progress: receives the number of deleted files; may raise to stop the sweep

    Raises:
        Forbidden: the caller is not the local caller, and the tenant is not the caller's own
        NotFound: the workspace has no such tenant
    """
    if tenant != caller.tenant:
        if caller != local_caller(caller.tenant, caller.name.removesuffix(" (local)")):
            raise Forbidden("operator_required", tenant=str(tenant))
        caller = replace(caller, tenant=tenant)
        _assert_tenant_exists(ws, caller)
    return sweep(ws, caller, policy, execute=execute, progress=progress)


def _assert_tenant_exists(ws: Workspace, caller: Caller) -> None:
    with ws.db.read(caller) as tx:
        has_datasets = bool(retention.list_heads(tx))
    if not has_datasets and tenant_folder(caller) not in ws.store.folders(DATA_FOLDER):
        raise NotFound("tenant_not_found", tenant=str(caller.tenant))


def _sweep_versions(
    ws: Workspace,
    caller: Caller,
    policy: RetentionPolicy,
    head: retention.DatasetHead,
    report: SweepReport,
    tracker: ProgressTracker,
) -> None:
    now = ws.db.clock()
    with ws.db.read(caller) as tx:
        is_expired = (
            head.dropped_at is not None and policy.days is not None and head.dropped_at <= _drop_horizon(now, policy)
        )
        horizon = (
            None
            if is_expired
            else _horizon(policy, head, lambda time: retention.newest_at(tx, head.dataset, time), now)
        )
        if horizon is not None and horizon <= 1:
            return
        files = retention.expired_files(tx, head.dataset, horizon)
        versions = retention.count_readable(tx, head.dataset, horizon)
    report.versions += versions
    if report.done and (files or versions):
        with ws.db.write(caller) as tx:
            retention.mark_swept(tx, head.dataset, horizon)
            tx.audit("sweep", {"dataset": head.name, "versions": versions, "files": len(files), "before": horizon})
        for start in range(0, len(files), _FILES_PER_TRANSACTION):
            part = files[start : start + _FILES_PER_TRANSACTION]
            ws.store_of(caller).remove([file.path for file in part])
            with ws.db.write(caller) as tx:
                retention.delete_files(tx, head.dataset, part)
            tracker.add(len(part))
    if files:
        report.files += len(files)
        report.bytes += sum(file.bytes for file in files)
        report.datasets[head.name] = report.datasets.get(head.name, 0) + len(files)


def _sweep_orphans(
    ws: Workspace,
    caller: Caller,
    stale_since: datetime,
    report: SweepReport,
    tracker: ProgressTracker,
) -> None:
    """Delete files that belong to no version.

    The files are listed before the leases are read: a lease that has ended by then never becomes valid again.
    """
    listing = ws.store_of(caller).files(tenant_folder(caller))
    candidates = ((path, (lease, size)) for path, size in listing if (lease := parse_lease(path)))
    while part := dict(islice(candidates, _FILES_PER_LISTING)):
        _sweep_listed_orphans(ws, caller, part, stale_since, report, tracker)


def _sweep_listed_orphans(
    ws: Workspace,
    caller: Caller,
    candidates: Mapping[str, tuple[UUID, int]],
    stale_since: datetime,
    report: SweepReport,
    tracker: ProgressTracker,
) -> None:
    with ws.db.read(caller) as tx:
        registered = retention.registered_paths(tx, list(candidates))
        orphans = {path: owner for path, owner in candidates.items() if path not in registered}
        writers = list({lease for lease, _ in orphans.values()})
        dead = writer_leases.find_ended(tx, writers, stale_before=None if report.done else stale_since)
        foreign = writer_leases.find_unknown(tx, writers)
    report.unknown += sum(lease in foreign for lease, _ in orphans.values())
    removable = {path: size for path, (lease, size) in orphans.items() if lease in dead}
    for start in range(0, len(removable), _FILES_PER_TRANSACTION):
        paths = list(removable)[start : start + _FILES_PER_TRANSACTION]
        if report.done:
            ws.store_of(caller).remove(paths)
        report.files += len(paths)
        report.orphans += len(paths)
        report.bytes += sum(removable[path] for path in paths)
        tracker.add(len(paths))


def _sweep_scratch(ws: Workspace, caller: Caller, stale_since: datetime, report: SweepReport) -> None:
    """Delete temporary folders of engines whose writers are dead."""
    store = ws.store_of(caller)
    leases = {
        folder: lease
        for folder in store.scratch_folders(scratch_folder(caller))
        if (lease := parse_lease(f"{folder}.parquet"))
    }
    with ws.db.read(caller) as tx:
        dead = writer_leases.find_ended(
            tx, list(set(leases.values())), stale_before=None if report.done else stale_since
        )
    for folder, lease in leases.items():
        if lease in dead:
            report.scratch += 1
            if report.done:
                store.remove_scratch(folder)


def _horizon(
    policy: RetentionPolicy, head: retention.DatasetHead, newest_at: Callable[[datetime], int], now: datetime
) -> int:
    """Return the oldest version that the policy retains."""
    if policy.days is None and policy.versions is None:
        return 1
    horizon = head.newest
    if policy.versions is not None:
        horizon = min(horizon, head.newest - policy.versions + 1)
    if policy.days is not None:
        horizon = min(horizon, newest_at(now - timedelta(days=policy.days)))
    return max(1, min(horizon, newest_at(now - policy.grace)))


def _drop_horizon(now: datetime, policy: RetentionPolicy) -> datetime:
    assert policy.days is not None
    return now - max(timedelta(days=policy.days), policy.grace)
