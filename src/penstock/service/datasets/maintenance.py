"""Compact the datasets of all tenants by policy, in a thread of a worker.

A pass visits every tenant whose data is in the store. Of several workers, one at a time maintains a tenant: it holds a
writer lease with the role `maintenance`, under which its files are written. If the worker ends unexpectedly, another one ends the
lease after a few minutes without a heartbeat, and the dead worker's step can never be committed.
"""

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from uuid import UUID

from penstock.catalog import commit_numbers, snapshots, writer_leases
from penstock.core.caller import Caller, Role, user_id
from penstock.core.dataset.compaction import CompactionPolicy, CompactionResult
from penstock.core.dataset.edit_policy import EditPolicy
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import parse_uuid
from penstock.core.progress import Progress
from penstock.core.workspace_layout import DATA_FOLDER
from penstock.errors import PenstockError
from penstock.service.datasets.compact import compact, plan_steps
from penstock.service.workspace import Workspace

_ROLE = "maintenance"
_CLAIM_TIMEOUT = timedelta(minutes=5)  # a worker without a heartbeat for this long has lost its claim
_HEARTBEAT_SECONDS = 20.0
_MAX_STEPS = 8  # of one dataset in one pass
_MAX_BUSY_STEP_BYTES = 16 << 20  # of a step while more urgent work waits: it takes less than a second
_URGENT_PASSES = 9  # between two complete passes
_URGENT_FACTOR = 8  # an urgent pass visits datasets that got so many times the small files that are combined
_MAX_SIZE_RATIO = 4.0  # see CompactionPolicy
_VECTOR_SHARE = 0.5  # of the size from which an edit rewrites the file, so that a compaction does it before
_MIN_OVERLAP = 4
_RECENT_VERSIONS = 100  # searched for the last version that is not a compaction
_FILE_ERRORS = ("file_missing", "file_unreadable")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """Rules that decide which datasets are compacted.

    Attributes:
        small_files: number of small files from which they are combined
        deleted_percent: share of deleted rows above which a file is rewritten
        idle: time without a change after which a dataset is compacted completely, whatever its files
        pause_seconds: time between two passes
    """

    small_files: int = 16
    deleted_percent: int = 10
    idle: timedelta = timedelta(hours=24)
    pause_seconds: float = 60.0

    def compaction(self, idle: timedelta, edits: EditPolicy) -> CompactionPolicy:
        """Return the policy for a dataset that has not been changed for some time."""
        if idle >= self.idle:
            return CompactionPolicy()
        return CompactionPolicy(
            self.small_files,
            self.deleted_percent,
            _VECTOR_SHARE * edits.max_vector_bytes,
            _MAX_SIZE_RATIO,
            _MIN_OVERLAP,
            sorts_files=False,
        )


StepCallback = Callable[[CompactionResult, float], None]


class MaintenanceWorker:
    """Compact datasets in a thread, one at a time, until it is closed.

    Attributes:
        passes: number of completed passes; a pass that left out steps because runs waited does not count
    """

    def __init__(
        self, ws: Workspace, policy: MaintenancePolicy | None = None, *, is_busy: Callable[[], bool] = lambda: False
    ) -> None:
        """Create a worker that is not started.

        Args:
            ws: the workspace
            policy: decides which datasets are compacted
            is_busy: tells whether more urgent work waits; a pass executes only short steps while it does
        """
        self._ws, self._policy, self._is_busy = ws, policy or MaintenancePolicy(), is_busy
        self._holder = f"{socket.gethostname()} process {os.getpid()}"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._step_callbacks: list[StepCallback] = []
        self._unneeded: dict[UUID, tuple[int, CompactionPolicy]] = {}  # dataset → version without steps
        self._losses: dict[UUID, Counter[int]] = {}  # dataset → lost steps by file number
        self._is_limited = False  # whether more urgent work has waited during the present pass
        self._file_counts: dict[UUID, int] = {}  # dataset → lowest number of files since it was visited
        self.passes = 0

    def on_step(self, callback: StepCallback) -> None:
        """Register a callback that receives the result and the seconds of every step, also of a lost one."""
        self._step_callbacks.append(callback)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="penstock maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the present step, which is not committed, and end the thread."""
        self._stop.set()
        if self._thread:
            self._thread.join()

    def run_pass(self, *, urgent: bool = False) -> bool:
        """Visit every tenant once.

        Args:
            urgent: visit only datasets that got many files since they were visited: each small edit adds one

        Returns:
            False if steps were left out because of more urgent work.
        """
        self._is_limited = False
        for folder in self._ws.store.folders(DATA_FOLDER):
            tenant = parse_uuid(folder.rpartition("/")[2])
            if tenant is None:
                continue
            try:
                self._maintain_tenant(Caller(tenant, user_id("penstock", _ROLE), _ROLE, Role.DEVELOPER), urgent)
            except _PassEnded:
                return False
            except PenstockError as error:  # other tenants are still visited, and this one in the next pass
                _log.warning("cannot maintain tenant %s: %s", tenant, error)
        return not self._is_limited

    def _run(self) -> None:
        for number in count():
            urgent = number % (1 + _URGENT_PASSES) != 0
            try:
                is_complete = self.run_pass(urgent=urgent)
                self.passes += is_complete and not urgent
            except Exception:
                _log.exception("maintenance failed")
            if self._stop.wait(self._policy.pause_seconds / (1 + _URGENT_PASSES)):
                return

    def _maintain_tenant(self, caller: Caller, urgent: bool) -> None:
        self._check_stop()
        with self._ws.db.read(caller) as tx:
            targets = snapshots.list_newest(tx)
        grown = [target for target in targets if self._has_many_new_files(target)]
        targets = grown if urgent else targets
        self._file_counts.update({target.dataset: target.version.files for target in targets})
        due = [(target, policy) for target in targets if (policy := self._choose_policy(caller, target))]
        if not due:
            return
        claim = _Claim.take(self._ws, caller, self._holder, due[0][0].dataset)
        if claim is None:
            return  # another worker maintains this tenant
        try:
            for target, policy in due:
                try:
                    self._compact_dataset(claim, target, policy)
                except PenstockError as error:
                    if error.reason == "lease_ended":
                        raise
                    _log.warning("cannot compact dataset %s: %s", target.dataset, error)
                    if error.reason in _FILE_ERRORS:  # not again before the next version
                        self._unneeded[target.dataset] = (target.version.number, policy)
        finally:
            claim.end()

    def _has_many_new_files(self, target: Snapshot) -> bool:
        """Return True if a dataset got many files since it was visited or compacted."""
        files = target.version.files
        lowest = self._file_counts[target.dataset] = min(files, self._file_counts.get(target.dataset, files))
        return files - lowest >= _URGENT_FACTOR * self._policy.small_files

    def _choose_policy(self, caller: Caller, target: Snapshot) -> CompactionPolicy | None:
        """Return the policy by which a dataset is due, or None."""
        version = target.version
        if target.read_only or (version.files < 2 and not version.vector_files):
            return None
        policy = self._policy.compaction(self._ws.db.clock() - self._last_change(caller, target), self._ws.edit_policy)
        if self._unneeded.get(target.dataset) == (version.number, policy):
            return None
        if plan_steps(self._ws, caller, target, policy):
            return policy
        self._unneeded[target.dataset] = (version.number, policy)
        return None

    def _limited(self, policy: CompactionPolicy) -> CompactionPolicy:
        """Return the policy without long steps while more urgent work waits."""
        if not self._is_busy():
            return policy
        self._is_limited = True
        return replace(policy, max_step_bytes=_MAX_BUSY_STEP_BYTES)

    def _last_change(self, caller: Caller, target: Snapshot) -> datetime:
        """Return the time of the last version that is not a compaction."""
        if target.version.operation != "compact":
            return target.version.committed_at
        with self._ws.db.read(caller) as tx:
            versions = snapshots.versions(tx, target.dataset, limit=_RECENT_VERSIONS)
        changes = [version for version in versions if version.operation != "compact"]
        return (changes[0] if changes else versions[-1]).committed_at

    def _compact_dataset(self, claim: "_Claim", target: Snapshot, policy: CompactionPolicy) -> None:
        losses = self._losses[target.dataset] = _reduced(self._losses.get(target.dataset, Counter()))
        for _ in range(_MAX_STEPS):
            self._check_stop()
            begun = time.monotonic()
            result = compact(
                self._ws,
                claim.caller,
                target.dataset,
                policy=self._limited(policy),
                max_steps=1,
                lease=claim.lease,
                progress=lambda progress: self._on_progress(claim, progress),
                losses=losses,
            )
            if not result.steps and not result.lost_steps:
                return
            self._file_counts[target.dataset] -= result.files_before - result.files_after
            seconds = time.monotonic() - begun
            self._report_step(claim.caller, target, result, seconds)

    def _report_step(self, caller: Caller, target: Snapshot, result: CompactionResult, seconds: float) -> None:
        facts = {
            "tenant": str(caller.tenant),
            "dataset": str(target.dataset),
            "version": result.version,
            "files_before": result.files_before,
            "files_after": result.files_after,
            "rows": result.rows,
            "deleted_rows": result.deleted_rows,
            "seconds": round(seconds, 3),
        }
        _log.info(
            "step of a compaction committed" if result.steps else "step of a compaction lost", extra={"facts": facts}
        )
        for callback in self._step_callbacks:
            callback(result, seconds)

    def _on_progress(self, claim: "_Claim", _progress: Progress) -> None:
        if self._stop.is_set():
            raise _PassEnded
        claim.renew()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _PassEnded


def _reduced(losses: Counter[int]) -> Counter[int]:
    """Return the losses of earlier passes for the next one, in which a file that was given up is tried once more."""
    return Counter({number: count - 1 for number, count in losses.items() if count > 1})


class _PassEnded(Exception):
    """Ends a pass because the worker stops."""


@dataclass
class _Claim:
    """The right of this process to maintain a tenant: a writer lease with the role `maintenance`."""

    ws: Workspace
    caller: Caller
    lease: UUID
    renewed_at: float = field(default_factory=time.monotonic)

    @classmethod
    def take(cls, ws: Workspace, caller: Caller, holder: str, dataset: UUID) -> "_Claim | None":
        with ws.db.write(caller) as tx:
            commit_numbers.take_commit_no(tx, dataset, step=0)
            lease = writer_leases.claim(tx, _ROLE, holder, tx.now - _CLAIM_TIMEOUT)
        return None if lease is None else cls(ws, caller, lease)

    def renew(self) -> None:
        """Send a heartbeat if it is due. Raise `Conflict` if the claim was lost."""
        if time.monotonic() - self.renewed_at >= _HEARTBEAT_SECONDS:
            with self.ws.db.write(self.caller) as tx:
                writer_leases.assert_alive(tx, self.lease)
            self.renewed_at = time.monotonic()

    def end(self) -> None:
        with self.ws.db.write(self.caller) as tx:
            writer_leases.end(tx, self.lease)
