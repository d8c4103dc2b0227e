"""Run a pipeline: read one snapshot, plan every operation, execute them in order with Spark, commit once.

The run creates one new version at its end, or leaves every dataset unchanged. Appends never read the working dataset
and do not conflict with other writers. A merge that another writer has overtaken is rebased or executed again. If the
Java process of Spark ends, nothing is committed yet, and the operations are executed again in a new session.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from penstock.catalog import snapshots
from penstock.catalog.database import CatalogTransaction
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Counts, NewDataset, Receipt
from penstock.core.pipeline.definition import PipelineDefinition
from penstock.core.pipeline.plan import PlannedAppend, PlannedMerge, SourceFiles, translate_error
from penstock.core.pipeline.responses import rebase_response, success_response
from penstock.core.pipeline.run import InputVersion
from penstock.core.progress import Progress, ProgressCallback
from penstock.core.workspace_layout import dataset_folder
from penstock.errors import PenstockError, Unavailable
from penstock.extras import translate_missing_extra
from penstock.service.datasets import read
from penstock.service.datasets.commit_retry import commit_with_retry
from penstock.service.datasets.merge import DatasetMerge, MergeRequest
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_source import RowSource
from penstock.service.datasets.staging import StagingArea
from penstock.service.pipelines.planning import PipelinePlan, Step, plan_pipeline
from penstock.service.workspace import Workspace

MAX_SPARK_LOSSES = 3  # of one run, which may itself be the cause
_LOCK_POLL_SECONDS = 0.2
_retry_lock = threading.Lock()  # so that runs that lost Spark together cannot make each other lose it again
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The outcome of a run or of a preview."""

    results: tuple[dict[str, Any], ...]  # the response of each operation
    reads: tuple[InputVersion, ...]
    receipt: Receipt | None  # None: a preview, which commits nothing


OnPipelineCommit = Callable[[CatalogTransaction, PipelineResult], None]  # called in the transaction of the commit
OnOperation = Callable[["PipelinePlan", tuple[dict[str, Any], ...]], None]  # receives the responses so far


def run(
    ws: Workspace,
    caller: Caller,
    pipeline: PipelineDefinition,
    *,
    progress: ProgressCallback | None = None,
    on_operation: OnOperation = lambda _plan, _results: None,
    on_commit: OnPipelineCommit = lambda _tx, _result: None,
) -> PipelineResult:
    """Execute a pipeline and commit its result.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        pipeline: the definition
        progress: receives the progress of the operations; may raise to stop the run
        on_operation: called after each operation
        on_commit: called with the result in the transaction of the commit

    Returns:
        The responses of the operations, the versions that were read, and the receipt.

    Raises:
        Unavailable: Spark cannot be started, or was lost `MAX_SPARK_LOSSES` times (spark_lost)
        PenstockError: the pipeline is not valid, or an operation failed; nothing is committed
    """

    def run_once() -> PipelineResult:
        plan = plan_pipeline(ws, caller, pipeline)
        with (
            StagingArea(ws, caller, progress) as stage,
            _Execution(ws, caller, stage, on_operation) as execution,
        ):
            write = _RetryableRun(execution, plan, on_commit)
            target = plan.output.dataset if plan.output else None if plan.has_output else plan.working.dataset
            commit_with_retry(ws, caller, stage, target, write)
        assert write.result is not None
        return write.result

    return _retry_lost_spark(run_once, lambda: _report_start(pipeline, progress))


def preview(
    ws: Workspace, caller: Caller, pipeline: PipelineDefinition, *, progress: ProgressCallback | None = None
) -> PipelineResult:
    """Count the rows that each operation of a run would write. Nothing is committed; staged files are removed."""

    def preview_once() -> PipelineResult:
        plan = plan_pipeline(ws, caller, pipeline)
        with (
            StagingArea(ws, caller, progress) as stage,
            _Execution(ws, caller, stage, lambda _plan, _results: None) as execution,
        ):
            execution.count(plan)
            with ws.db.read(caller) as tx:
                return PipelineResult(execution.results, plan.reads(tx, {}), None)

    return _retry_lost_spark(preview_once, lambda: _report_start(pipeline, progress))


def _report_start(pipeline: PipelineDefinition, progress: ProgressCallback | None) -> None:
    if progress:
        progress(Progress(operations=len(pipeline.operations)))


def _retry_lost_spark(execute: Callable[[], PipelineResult], on_wait: Callable[[], None]) -> PipelineResult:
    """Execute a pipeline again if the Java process of Spark ended; only one such run of this process at a time.

    Args:
        execute: plans, executes and commits; has committed nothing if it raises `spark_lost`
        on_wait: called while another run is executed again; may raise to stop the run
    """
    for losses in range(MAX_SPARK_LOSSES):
        with _exclusive_retry(on_wait) if losses else nullcontext():
            try:
                return execute()
            except Unavailable as error:
                if error.reason != "spark_lost" or losses + 1 == MAX_SPARK_LOSSES:
                    raise
                _log.warning("Spark was lost; the run is executed again", extra={"facts": {"losses": losses + 1}})
    raise AssertionError("unreachable")


@contextmanager
def _exclusive_retry(on_wait: Callable[[], None]) -> Iterator[None]:
    while not _retry_lock.acquire(timeout=_LOCK_POLL_SECONDS):
        on_wait()
    try:
        yield
    finally:
        _retry_lock.release()


class _RetryableRun:
    """Prepare, rebase and record a run for `commit_with_retry`."""

    def __init__(self, execution: "_Execution", plan: PipelinePlan, on_commit: OnPipelineCommit) -> None:
        self._execution, self._plan, self._on_commit = execution, plan, on_commit
        self._is_prepared = False
        self.result: PipelineResult | None = None

    def prepare(self) -> Change:
        if self._is_prepared:
            self._plan = self._execution.plan_again(self._plan)
        self._is_prepared = True
        return self._execution.change(self._plan)

    def rebase(self, change: Change) -> Change | None:
        return self._execution.rebase(self._plan, change)

    def on_commit(self, tx: CatalogTransaction, receipt: Receipt) -> None:
        before = {written.dataset: written.version - 1 for written in receipt.written}
        reads = self._plan.reads(tx, before if self._execution.changed else {})
        self.result = PipelineResult(self._committed_results(receipt), reads, receipt)
        self._on_commit(tx, self.result)

    def _committed_results(self, receipt: Receipt) -> tuple[dict[str, Any], ...]:
        """Return the responses for the version that was committed, which other writers may have made larger."""
        results = self._execution.results
        if self._plan.has_output:
            return results
        (written,) = receipt.written
        rows_before = written.rows - written.inserted + written.deleted
        added_rows = rows_before - self._plan.working.version.rows
        return tuple(rebase_response(response, added_rows) for response in results)


class _Execution:
    """Execute the operations of a pipeline with Spark, for one or more versions of its datasets."""

    def __init__(self, ws: Workspace, caller: Caller, stage: StagingArea, on_operation: OnOperation) -> None:
        self._ws, self._caller, self._stage, self._on_operation = ws, caller, stage, on_operation
        self._spark: Any = None
        self._start_seconds = 0.0  # until Spark had started; no part of an operation's time
        self._open = ExitStack()
        self._merges: list[DatasetMerge] = []
        self.results: tuple[dict[str, Any], ...] = ()
        self.changed = False

    def __enter__(self) -> "_Execution":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def plan_again(self, plan: PipelinePlan) -> PipelinePlan:
        """Plan the pipeline for the datasets as they are now."""
        return plan_pipeline(self._ws, self._caller, plan.pipeline)

    def change(self, plan: PipelinePlan) -> Change:
        """Execute every operation, and return the change of the working or output dataset."""
        self._begin(plan)
        goal = plan.output.dataset if plan.output else uuid4()
        location = dataset_folder(self._caller, goal) if plan.has_output else None
        working = DatasetOverlay(self._ws, self._caller, plan.working, location=location)
        for index in range(len(plan.steps)):
            self._execute(plan, index, working, self._staged_change)
        change = self._output_change(plan, working, goal) if plan.has_output else working.change()
        self.changed = not change.empty
        return change

    def count(self, plan: PipelinePlan) -> None:
        """Count the rows of every operation. Only rows that a later merge reads are written, and removed afterwards."""
        self._begin(plan)
        working = DatasetOverlay(self._ws, self._caller, plan.working)
        last_merge = max(
            (index for index, step in enumerate(plan.steps) if isinstance(step.planned, PlannedMerge)), default=-1
        )
        for index in range(len(plan.steps)):
            self._execute(plan, index, working, self._staged_change if index < last_merge else self._counted_change)

    def rebase(self, plan: PipelinePlan, change: Change) -> Change | None:
        """Return the change for the newest version, or None if the operations must be executed again."""
        with self._ws.db.read(self._caller) as tx:
            newest = snapshots.newest(tx, change.dataset) if change.create is None else None
            replaced = tuple(snapshots.files(tx, newest)) if newest and plan.has_output else ()
        if newest is None:  # another writer has created the output dataset
            return None
        if plan.has_output:
            counts = replace(change.counts, deleted=sum(file.live_rows for file in replaced))
            alters = change.schema != newest.schema
            return replace(change, base=newest.version.number, removed=replaced, counts=counts, alters_schema=alters)
        with self._detect_lost_spark():
            if all(merging.still_applies_to(newest, change.base) for merging in self._merges):
                return change.rebased(newest.version.number)
        return None

    def _begin(self, plan: PipelinePlan) -> None:
        self._open.close()
        self._merges, self.results = [], ()
        self._on_operation(plan, ())

    @property
    def _session(self) -> Any:
        """Return a Spark session of this run. The process shares one Spark context."""
        if self._spark is None:
            with translate_missing_extra():
                from penstock.engines.spark.session import get_or_start_session, isolated_session

            begun = time.monotonic()
            self._spark = isolated_session(get_or_start_session(self._ws.cluster.master, self._ws.cluster.conf))
            self._start_seconds += time.monotonic() - begun
        return self._spark

    def _execute(
        self,
        plan: PipelinePlan,
        index: int,
        working: DatasetOverlay,
        compute_change: Callable[[DatasetOverlay, Step], Change],
    ) -> None:
        """Execute one operation: apply its change to the working dataset, and report its progress and its response."""
        step, begun, before = plan.steps[index], time.monotonic() - self._start_seconds, working.rows
        operation = step.operation
        self._stage.progress.report(
            Progress(operation=index, operations=len(plan.steps), order=operation.order, type=operation.type)
        )
        try:
            with self._detect_lost_spark():
                change = compute_change(working, step)
            self._stage.drop(working.apply(change))
        except PenstockError as error:
            raise translate_error(operation, error) from error
        duration_ms = round((time.monotonic() - self._start_seconds - begun) * 1000)
        self.results = (*self.results, success_response(operation, change.counts, before, duration_ms))
        self._on_operation(plan, self.results)

    def _staged_change(self, working: DatasetOverlay, step: Step) -> Change:
        """Write the rows of an operation."""
        match step.planned:
            case PlannedAppend() as planned:
                return self._append(working, step, planned)
            case PlannedMerge() as planned:
                change = self._merging(step, planned).change(working)
                # A merge widens the dataset even if no row needs it: later operations were planned with the wider schema.
                return replace(change, schema=planned.working, alters_schema=planned.working != working.schema)

    def _counted_change(self, working: DatasetOverlay, step: Step) -> Change:
        """Count the rows of an operation without writing them."""
        match step.planned:
            case PlannedAppend() as planned:
                append, on_job = _load_spark_append(), self._stage.progress.on_job
                source, scratch = self._files(step), self._stage.scratch()
                rows = append.count_append(self._session, planned, source, scratch, on_job)
                return replace(working.append_change(()), counts=Counts(inserted=rows))
            case PlannedMerge() as planned:
                stats = self._merging(step, planned).preview(working).stats
                counts = Counts(stats["inserted"], stats["updated"], stats["deleted"])
                return replace(working.append_change(()), counts=counts, schema=planned.working)

    def _append(self, working: DatasetOverlay, step: Step, planned: PlannedAppend) -> Change:
        append, progress = _load_spark_append(), self._stage.progress
        source = self._files(step)
        if not source.paths:
            return working.append_change(())
        session, sink = self._session, self._stage.sink(working.location, planned.working)
        progress.update(phase="write")
        outputs = append.write_append(session, planned, source, sink, self._stage.scratch(), progress.on_job)
        return working.append_change(
            self._stage.adopt(working.location, [(out.path, planned.working) for out in outputs])
        )

    def _merging(self, step: Step, planned: PlannedMerge) -> DatasetMerge:
        append = _load_spark_append()
        source, scratch = self._files(step), self._stage.scratch()
        frame = append.select_rows(self._session, source, planned.selector, planned.columns, scratch)
        schema = pa.schema([step.source.schema.field(name) for name in planned.columns])
        rows = RowSource(schema, lambda: iter(frame.toArrow().to_batches()), frame)
        order_by = planned.dedup_order_by or None
        request = MergeRequest(planned.keys, planned.strategy, order_by, engine="spark", spark=self._session)
        merging = DatasetMerge(self._ws, self._caller, self._stage, rows, request)
        self._merges.append(self._open.enter_context(merging))
        return merging

    def _files(self, step: Step) -> SourceFiles:
        """Return the files of the source that may contain rows of the filter expression."""
        files = read.files_matching(self._ws, self._caller, step.source, step.planned.selector)
        store = self._ws.store_of(self._caller)
        paths = tuple(store.locate(file.path) for file in files)
        self._open.enter_context(store.open_local(files))  # Spark reads them lazily, until the run ends
        return SourceFiles(
            step.source.schema,
            paths,
            sum(file.live_rows for file in files),
            sum(file.bytes for file in files),
            {path: file.deleted for path, file in zip(paths, files, strict=True) if file.deleted},
        )

    def _output_change(self, plan: PipelinePlan, working: DatasetOverlay, goal: UUID) -> Change:
        """Return the change that writes the working rows to the output dataset. Existing files are linked, not copied."""
        change, name = working.change(), plan.pipeline.output
        assert name is not None
        committed = [file for file in working.files(stats=True) if file.number]
        added = (*self._stage.link(working.location, committed), *change.added)
        counts = Counts(inserted=sum(file.live_rows for file in added))
        if plan.output is None:
            creation = NewDataset(name)
            return Change(goal, 0, "create", working.schema, added=added, counts=counts, create=creation)
        with self._ws.db.read(self._caller) as tx:
            removed = tuple(snapshots.files(tx, plan.output))
        return Change(
            goal,
            plan.output.version.number,
            "overwrite",
            working.schema,
            added=added,
            removed=removed,
            counts=replace(counts, deleted=sum(file.live_rows for file in removed)),
            alters_schema=working.schema != plan.output.schema,
        )

    @contextmanager
    def _detect_lost_spark(self) -> Iterator[None]:
        """Raise `spark_lost` in place of an error that the end of the Java process has caused."""
        try:
            yield
        except Exception:
            if self._spark is None:
                raise
            from penstock.engines.spark.session import detect_loss

            with detect_loss(self._spark.sparkContext):
                raise


def _load_spark_append() -> Any:
    """Import the Spark append engine, which needs the extra `spark`."""
    with translate_missing_extra():
        from penstock.engines.spark import append
    return append
