"""Execute one attempt of a run as the run's author, record its progress, and end it in the commit of its data.

An attempt whose worker sent no heartbeat for too long is superseded; its commit fails.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.catalog import runs
from penstock.catalog.database import CatalogTransaction
from penstock.core.caller import Caller
from penstock.core.pipeline import definition as pipeline_definition
from penstock.core.pipeline.responses import error_response
from penstock.core.pipeline.run import InputVersion, Run, RunOutcome, RunState
from penstock.core.progress import Progress, ProgressCallback
from penstock.errors import KINDS, Conflict, PenstockError, Unavailable, public_error
from penstock.service.pipelines import execution
from penstock.service.pipelines.execution import PipelineResult
from penstock.service.pipelines.planning import PipelinePlan
from penstock.service.pipelines.spark_readiness import SPARK_FAILURES, START_FAILURES
from penstock.service.workspace import Workspace

_PROGRESS_SECONDS = 1.0  # between two updates of the recorded progress
_ERROR_CLASSES = {error_class.__name__: error_class for error_class in KINDS}
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class RunAttempt:
    """One attempt of a worker to execute a run."""

    caller: Caller
    run: Run
    number: int  # counts the attempts of the run, from 1
    on_progress: ProgressCallback = lambda _: None
    on_spark_failure: Callable[[PenstockError], None] = lambda _: None  # called before the run is requeued or ends
    stop: PenstockError | None = None  # set to make the attempt end early
    error: PenstockError | None = None  # the error that ended the attempt


def execute_attempt(ws: Workspace, attempt: RunAttempt) -> bool:
    """Execute an attempt until the record has the final state of the run.

    Returns:
        False if the run was requeued or another worker has claimed it.
    """
    caller, run = attempt.caller, attempt.run.id
    results: tuple[dict[str, Any], ...] = ()
    reads: tuple[InputVersion, ...] = ()
    recorded_at = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal recorded_at
        if attempt.stop:
            raise attempt.stop
        attempt.on_progress(progress)
        if time.monotonic() - recorded_at > _PROGRESS_SECONDS:
            recorded_at = time.monotonic()
            with (
                suppress(PenstockError),
                ws.db.write(caller) as tx,
            ):  # a failed update of the progress must not end the run
                runs.update_progress(tx, run, attempt.number, progress, results, reads)

    def on_operation(plan: PipelinePlan, results_so_far: tuple[dict[str, Any], ...]) -> None:
        nonlocal results, reads
        if len(results_so_far) == 1:
            with ws.db.read(caller) as tx:
                reads = plan.reads(tx, {})
        results = results_so_far

    def on_commit(tx: CatalogTransaction, done: PipelineResult) -> None:
        assert done.receipt is not None
        if attempt.stop:
            raise attempt.stop
        outcome = RunOutcome(RunState.SUCCEEDED, done.reads, done.results)
        written, commit_no = done.receipt.written, done.receipt.commit_no
        if not runs.finish(tx, run, attempt.number, outcome, written=written, commit_no=commit_no):
            raise lost_run_error()

    try:
        execution.run(
            ws,
            caller,
            pipeline_definition.parse_pipeline(attempt.run.pipeline),
            progress=on_progress,
            on_operation=on_operation,
            on_commit=on_commit,
        )
        return True
    except PenstockError as error:
        attempt.error = attempt.stop or error
    except Exception:
        _log.exception("run %s failed", run)
        attempt.error = internal_error()
    reason = attempt.error.reason
    if reason in SPARK_FAILURES:
        attempt.on_spark_failure(attempt.error)
    response = error_response(public_error(attempt.error))  # every viewer can read the record
    outcome = RunOutcome(final_state(attempt.error), reads, (*results, response), response, attempt.error.kind)
    with ws.db.write(caller) as tx:
        if (reason == "service_stopped" or reason in START_FAILURES) and runs.requeue(tx, run, attempt.number):
            return False
        if runs.finish(tx, run, attempt.number, outcome):
            return True
        if runs.find(tx, run).state is RunState.SUCCEEDED:
            attempt.error = None  # the response of the commit was lost; the record shows that it succeeded
            return True
    return False


def final_state(error: PenstockError | None) -> RunState:
    """Return the final state of a run that ended with this error, or without one."""
    if error is None:
        return RunState.SUCCEEDED
    return RunState.CANCELLED if error.reason == "run_cancelled" else RunState.FAILED


def recorded_error(run: Run) -> PenstockError | None:
    """Return the error that ended a run, from its record."""
    if run.state is RunState.SUCCEEDED:
        return None
    response = (run.error or error_response(cancelled_error()))["error"]
    error_class = _ERROR_CLASSES.get(run.error_kind or "", Unavailable) if run.error else Conflict
    return error_class(response["code"].lower(), response["message"], **response["details"])


def cancelled_error() -> PenstockError:
    """Return the error of a cancelled run."""
    return Conflict("run_cancelled")


def stopped_error() -> PenstockError:
    """Return the error of a run whose worker process was stopped."""
    return Unavailable("service_stopped.during_run")


def lost_run_error() -> PenstockError:
    """Return the error of an attempt that another attempt has superseded."""
    return Conflict("run_over")


def internal_error() -> PenstockError:
    """Return the error of a run that failed because of a bug."""
    return Unavailable("internal_error")
