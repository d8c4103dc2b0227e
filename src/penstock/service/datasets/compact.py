"""Compact datasets: rewrite small files, files with deleted rows and files with overlapping keys.

A compaction works in steps of bounded size, and each step is a commit with the same rows and row ids. A step does not
lock the dataset: it is rebased over commits of other writers. Rows of its files that they delete meanwhile are deleted
in the new files. If there are many of them, the step is lost, and the rest is planned again for the newest version.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from penstock.catalog import snapshots
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, NewFile, Receipt
from penstock.core.dataset.compaction import (
    CompactionPolicy,
    CompactionResult,
    CompactionStep,
    is_small,
    max_passes,
    plan_compaction,
)
from penstock.core.dataset.file_cuts import FileCutter
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.core.progress import Progress, ProgressCallback
from penstock.errors import Conflict
from penstock.service.datasets.compaction_rebase import rebase_step
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import load_writable
from penstock.service.idempotency import find_replay
from penstock.service.workspace import Workspace
from penstock.storage.data_files import has_sorted_groups
from penstock.storage.file_store import FileStore
from penstock.storage.scan import BATCH_ROWS, scan, scan_with_row_ids

_MAX_FILE_ATTEMPTS = 4  # lost steps after which a file is left as it is
_MAX_STEP_REBASES = 20  # of one step, while other writers keep changing its files
_MAX_LOST_STEPS = 100  # of one compaction, while other writers keep replacing files


def compact(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    *,
    policy: CompactionPolicy | None = None,
    max_steps: int | None = None,
    lease: UUID | None = None,
    progress: ProgressCallback | None = None,
    key: str | None = None,
    losses: Counter[int] | None = None,
) -> CompactionResult:
    """Rewrite the files of a dataset that are worth it. Rows, row ids and earlier versions stay the same.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        dataset: the id of the dataset
        policy: decides which files are worth rewriting; None: all that can be improved
        max_steps: number of steps after which the compaction ends
        lease: a writer lease that the caller keeps alive; None: the lease of this process
        progress: receives the number of rows rewritten; may raise to stop the compaction after the committed steps
        key: the idempotency key of the request: a repeated request does nothing if all steps were done, else it
            continues
        losses: number of lost steps by file number, from earlier calls; this call adds its own

    Returns:
        The number of steps, files, rows and bytes.

    Raises:
        Unsupported: the dataset is read-only
    """
    target = load_writable(ws, caller, dataset)
    if key and (before := find_replay(ws, caller, _empty_change(target), key)):
        return CompactionResult(before.version, written=before.written, replayed=True)
    compaction = _Compaction(ws, caller, target, policy or CompactionPolicy(), lease, progress, losses)
    is_key_stored = compaction.run(max_steps, key)
    if key and not is_key_stored:
        with StagingArea(ws, caller, key=key, lease=lease) as stage:
            stage.commit([_empty_change(target)])
    return compaction.result


def plan(
    ws: Workspace, caller: Caller, dataset: UUID, policy: CompactionPolicy | None = None
) -> tuple[Snapshot, list[CompactionStep]]:
    """Return the newest snapshot of a dataset, and the steps with which a compaction of it would begin."""
    target = load_writable(ws, caller, dataset)
    return target, plan_steps(ws, caller, target, policy or CompactionPolicy())


def plan_steps(
    ws: Workspace, caller: Caller, target: Snapshot, policy: CompactionPolicy, excluded: frozenset[int] = frozenset()
) -> list[CompactionStep]:
    """Plan the compaction of a snapshot.

    Args:
        ws: the workspace
        caller: the reader of the catalog
        target: the newest snapshot of the dataset
        policy: decides which files are worth rewriting
        excluded: numbers of files that stay as they are
    """
    with ws.db.read(caller) as tx:
        files = snapshots.files(tx, target, stats=bool(target.cluster_by))
    files = [file for file in files if file.number not in excluded]
    file_bytes, unsorted, store = ws.file_sizing.file_bytes, set[int](), ws.store_of(caller)
    if target.cluster_by and policy.sorts_files:
        unsorted = {
            file.number
            for file in files
            if not is_small(file, file_bytes) and not has_sorted_groups(store, file, target.cluster_by[0])
        }
    return plan_compaction(files, target.cluster_by, file_bytes, policy, unsorted)


class _Compaction:
    """Execute the steps of one compaction, and plan them again after a lost step."""

    def __init__(
        self,
        ws: Workspace,
        caller: Caller,
        target: Snapshot,
        policy: CompactionPolicy,
        lease: UUID | None,
        progress: ProgressCallback | None,
        losses: Counter[int] | None,
    ) -> None:
        self._ws, self._caller, self._target, self._policy, self._lease = ws, caller, target, policy, lease
        self._callback = progress or (lambda _: None)
        self._losses = Counter() if losses is None else losses
        self._total_rows = 0  # of committed and planned steps
        self._passes_left = max_passes(target.version.files) if target.cluster_by else 1
        self.result = CompactionResult(target.version.number)

    def run(self, max_steps: int | None, key: str | None) -> bool:
        """Execute the steps. Return True if the commit of the last step has stored the idempotency key."""
        steps = self._plan()
        if steps:
            self._callback(Progress(total=self._total_rows))
        while steps and not self._is_limit_reached(max_steps):
            step = steps.popleft()
            is_last = not steps and self._passes_left == 1
            try:
                self._run_step(step, key if is_last else None)
            except Conflict as error:
                if error.reason != "stale_version":
                    raise
                self._losses.update(file.number for file in step.files)
                self.result = replace(self.result, lost_steps=self.result.lost_steps + 1)
                steps = self._plan_again()
                continue
            if is_last:
                return True
            if not steps:
                self._passes_left -= 1
                steps = self._plan_again()
        return False

    def _is_limit_reached(self, max_steps: int | None) -> bool:
        lost = self.result.lost_steps
        return lost >= _MAX_LOST_STEPS or (max_steps is not None and self.result.steps + lost >= max_steps)

    def _plan_again(self) -> deque[CompactionStep]:
        self._target = load_writable(self._ws, self._caller, self._target.dataset)
        self.result = replace(self.result, version=self._target.version.number)
        return self._plan()

    def _plan(self) -> deque[CompactionStep]:
        """Plan steps. Those with files of lost steps come last, so that a contended file does not delay the others."""
        excluded = frozenset(number for number, losses in self._losses.items() if losses >= _MAX_FILE_ATTEMPTS)
        steps = plan_steps(self._ws, self._caller, self._target, self._policy, excluded)
        self._total_rows = self.result.rows + sum(step.rows for step in steps)
        return deque(sorted(steps, key=lambda step: max(self._losses[file.number] for file in step.files)))

    def _run_step(self, step: CompactionStep, key: str | None) -> None:
        with StagingArea(self._ws, self._caller, self._on_progress, key, lease=self._lease) as stage:
            added = _write_step(self._ws, self._caller, stage, self._target, step)
            change = replace(_empty_change(self._target), added=added, removed=step.files)
            receipt, change = self._commit(stage, change)
        before = self.result
        self.result = replace(
            before,
            version=receipt.version,
            steps=before.steps + 1,
            files_before=before.files_before + len(change.removed),
            files_after=before.files_after + len(added),
            rows=before.rows + step.rows,
            deleted_rows=before.deleted_rows + step.deleted_rows,
            bytes_before=before.bytes_before + step.bytes,
            bytes_after=before.bytes_after + sum(file.bytes for file in added),
            written=(*before.written, *receipt.written),
        )

    def _commit(self, stage: StagingArea, change: Change) -> tuple[Receipt, Change]:
        """Commit the change of a step. Return its receipt, and the change as it was committed."""
        for rebases_left in reversed(range(_MAX_STEP_REBASES)):
            try:
                return stage.commit([change]), change
            except Conflict as error:
                rebased = None
                if error.reason == "stale_version" and rebases_left:
                    rebased = rebase_step(self._ws, self._caller, change)
                if rebased is None:
                    raise
                change = rebased
        raise AssertionError("unreachable")

    def _on_progress(self, progress: Progress) -> None:
        """Report the rows of the committed steps and of the present one."""
        self._callback(Progress(done=self.result.rows + progress.done, total=self._total_rows))


def _empty_change(target: Snapshot) -> Change:
    return Change(target.dataset, target.version.number, "compact", target.schema, rebase=True)


def _write_step(
    ws: Workspace, caller: Caller, stage: StagingArea, target: Snapshot, step: CompactionStep
) -> tuple[NewFile, ...]:
    """Write the rows of a step to new files of about equal size, sorted by the cluster key."""
    schema, order_by = target.schema, list(target.cluster_by)
    if target.row_ids:
        schema = schema.append(pa.field(STORED_ROW_ID_COLUMN, pa.int64(), nullable=False))
        order_by.append(STORED_ROW_ID_COLUMN)
    rows = _read_rows(ws.store_of(caller), target, step)
    if target.cluster_by:
        from penstock.engines.duckdb.sort import sort_batches

        spill_folder = f"{stage.scratch()}/sort"
        rows = sort_batches(
            _with_heartbeat(rows, stage), schema, order_by, temp_directory=spill_folder, batch_rows=BATCH_ROWS
        )
    file_bytes = ws.file_sizing.file_bytes
    cutter = FileCutter(step.file_rows(file_bytes), target.cluster_by)
    # The number of rows decides where a file ends; the size is only a limit for estimates that are far off.
    writer = stage.writer(target.location, schema, file_bytes=2 * file_bytes)
    try:
        for batch in rows:
            for part, begins_file in cutter.cut(batch):
                if begins_file:
                    writer.end_file()
                writer.add(part)
        return stage.track(writer.finish())
    except BaseException:
        writer.discard()
        raise


def _read_rows(store: FileStore, target: Snapshot, step: CompactionStep) -> Iterator[pa.RecordBatch]:
    if not target.row_ids:
        reader: Iterator[pa.RecordBatch] = scan(store, step.files, target.schema, read_ahead=False)
        return reader
    return scan_with_row_ids(store, step.files, target.schema)


def _with_heartbeat(batches: Iterator[pa.RecordBatch], stage: StagingArea) -> Iterator[pa.RecordBatch]:
    """Report progress while rows are sorted, so that the writer lease is renewed and the callback can stop the work."""
    for batch in batches:
        stage.progress.add(0)
        yield batch
