"""Remove files that nothing needs: those of versions that are no longer retained, and what dead writers left behind.

The most dangerous thing that Penstock does, so: every version is kept unless the caller says otherwise; the newest
always; a version that was the newest within the grace period too, because somebody may be reading it. A file that no
version holds goes only when its writer's lease has ended, because from then on that writer cannot commit any more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from penstock.catalog import writer_leases as leases
from penstock.catalog import commit, retention
from penstock.core.caller import Caller, Role
from penstock.errors import Invalid
from penstock.service.workspace import Workspace
from penstock.storage.data_files import lease_of

GRACE = timedelta(hours=1)
_AT_ONCE = 500  # files between two transactions


@dataclass(frozen=True, slots=True)
class Keep:
    """What is retained. Nothing said: everything. Both said: what either keeps."""

    days: float | None = None
    versions: int | None = None
    grace: timedelta = GRACE

    def __post_init__(self) -> None:
        if self.days is not None and self.days < 0:
            raise Invalid("bad_retention", f"{self.days} days cannot be kept; say 0 or more")
        if self.versions is not None and self.versions < 1:
            raise Invalid(
                "bad_retention", f"{self.versions} versions cannot be kept; the newest always stays, so say 1 or more"
            )


@dataclass
class Swept:
    """What was removed, or would be."""

    done: bool
    versions: int = 0
    files: int = 0
    bytes: int = 0
    orphans: int = 0  # among the files: those that no version ever held
    scratch: int = 0  # folders that engines left on their way
    unknown: int = 0  # files that another catalog must have made; they are left alone
    datasets: dict[str, int] = field(default_factory=dict)  # name → files

    def facts(self) -> dict[str, Any]:
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
    keep: Keep,
    *,
    really: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Swept:
    """Say what could go; `really`: remove it."""
    caller.require(Role.ADMIN)
    swept = Swept(done=really)
    silent_since = ws.db.clock() - leases.TIME_TO_LIVE
    if really:
        with ws.db.write(caller) as tx:
            leases.fence(tx, silent_since)
    with ws.db.read(caller) as tx:
        heads = retention.heads(tx)
    for head in heads:
        _sweep_versions(ws, caller, keep, head, swept, progress)
    for folder in ws.store.folders(commit.home(caller)):
        _sweep_orphans(ws, caller, folder, silent_since, swept, progress)
    _sweep_scratch(ws, caller, silent_since, swept)
    if really and swept.orphans:
        with ws.db.write(caller) as tx:
            tx.audit("sweep", {"orphans": swept.orphans})
    return swept


def _sweep_versions(
    ws: Workspace, caller: Caller, keep: Keep, head: retention.Head, swept: Swept, progress: Callable[[int], None]
) -> None:
    now = ws.db.clock()
    with ws.db.read(caller) as tx:
        gone = head.dropped_at is not None and keep.days is not None and head.dropped_at <= _before(now, keep)
        horizon = (
            None if gone else _horizon(keep, head, lambda moment: retention.newest_at(tx, head.dataset, moment), now)
        )
        if horizon is not None and horizon <= 1:
            return
        files = retention.faded(tx, head.dataset, horizon)
        versions = retention.readable(tx, head.dataset, horizon)
    swept.versions += versions
    if swept.done and (files or versions):
        with ws.db.write(caller) as tx:
            retention.mark_swept(tx, head.dataset, horizon)
            tx.audit("sweep", {"dataset": head.name, "versions": versions, "files": len(files), "before": horizon})
        for start in range(0, len(files), _AT_ONCE):
            part = files[start : start + _AT_ONCE]
            for file in part:
                ws.store.remove(file.path)
            with ws.db.write(caller) as tx:
                retention.forget(tx, head.dataset, part)
            progress(len(part))
    if files:
        swept.files += len(files)
        swept.bytes += sum(file.bytes for file in files)
        swept.datasets[head.name] = swept.datasets.get(head.name, 0) + len(files)


def _sweep_orphans(
    ws: Workspace, caller: Caller, folder: str, silent_since: datetime, swept: Swept, progress: Callable[[int], None]
) -> None:
    """Files that no version holds. Listed first and judged afterwards: a writer that is dead by then stays dead."""
    ours = {path: (lease, size) for path, size in ws.store.files(folder) if (lease := lease_of(path))}
    with ws.db.read(caller) as tx:
        held = retention.known(tx, list(ours))
        stray = {path: whose for path, whose in ours.items() if path not in held}
        writers = list({lease for lease, _ in stray.values()})
        dead = leases.ended(tx, writers, silent_since=None if swept.done else silent_since)
        foreign = leases.unknown(tx, writers)
    for path, (lease, size) in stray.items():
        swept.unknown += lease in foreign
        if lease in dead:
            swept.files += 1
            swept.bytes += size
            swept.orphans += 1
            if swept.done:
                ws.store.remove(path)
            progress(1)


def _sweep_scratch(ws: Workspace, caller: Caller, silent_since: datetime, swept: Swept) -> None:
    """What engines of dead writers left on the way."""
    whose = {
        folder: lease
        for folder in ws.store.folders(f"scratch/{caller.tenant}")
        if (lease := lease_of(f"{folder}.parquet"))
    }
    with ws.db.read(caller) as tx:
        dead = leases.ended(tx, list(set(whose.values())), silent_since=None if swept.done else silent_since)
    for folder, lease in whose.items():
        if lease in dead:
            swept.scratch += 1
            if swept.done:
                ws.store.remove_folder(folder)


def _horizon(keep: Keep, head: retention.Head, newest_at: Callable[[datetime], int], now: datetime) -> int:
    """The oldest version that is retained."""
    if keep.days is None and keep.versions is None:
        return 1
    horizon = head.newest
    if keep.versions is not None:
        horizon = min(horizon, head.newest - keep.versions + 1)
    if keep.days is not None:
        horizon = min(horizon, newest_at(now - timedelta(days=keep.days)))
    return max(1, min(horizon, newest_at(now - keep.grace)))


def _before(now: datetime, keep: Keep) -> datetime:
    assert keep.days is not None
    return now - max(timedelta(days=keep.days), keep.grace)
