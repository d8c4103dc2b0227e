"""Run Spark jobs in a thread, report their progress to the caller, and cancel them if the callback raises."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from contextlib import contextmanager, suppress
from itertools import chain, count, repeat
from typing import TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from penstock.core.progress import WAITING_FOR_WORKERS, Progress, ProgressCallback
from penstock.engines.spark.session import detect_loss, error_message
from penstock.errors import Unavailable

_POLL_SECONDS = (0.1, 0.2, 0.3, 0.5)  # delays before progress reports; the last one repeats

_T = TypeVar("_T")
_used_pools: set[int] = set()  # numbers of the scheduler pools in use
_pools_lock = threading.Lock()


def run_job(
    context: SparkContext, purpose: str, action: Callable[[], _T], on_job: ProgressCallback | None = None
) -> _T:
    """Run an action that starts Spark jobs, in a thread of its own.

    Args:
        purpose: description of the jobs in Spark
        on_job: receives the stages and tasks planned so far, in the caller's thread about every half second; an error
            of it, or Ctrl-C, cancels the jobs of this action and no others

    Raises:
        Unavailable: Spark failed (spark_failed) or its process ended (spark_lost)
    """
    group, outcome = f"penstock-{uuid4().hex}", Future[_T]()

    def work() -> None:
        try:
            with _scheduler_pool() as pool, detect_loss(context):
                context.setJobGroup(group, purpose)
                context.setLocalProperty("spark.scheduler.pool", pool)
                outcome.set_result(action())
        except BaseException as cause:
            error = _to_penstock_error(cause)
            if error is not None:
                error.__cause__ = cause
            outcome.set_exception(error or cause)

    with detect_loss(context):
        thread: threading.Thread = InheritableThread(work, name=group, daemon=True)
        thread.start()
    try:
        return _wait(outcome, lambda: on_job and on_job(_progress(context, group)))
    except BaseException:
        while thread.is_alive():  # the action may start another job after a cancelled one
            with suppress(Py4JError, OSError, AttributeError):  # a lost session has no jobs
                context.cancelJobGroup(group)
            thread.join(0.1)
        raise


def _wait(outcome: Future[_T], on_poll: Callable[[], None]) -> _T:
    for pause in chain(_POLL_SECONDS, repeat(_POLL_SECONDS[-1])):
        try:
            return outcome.result(pause)
        except StillRunning:
            if outcome.done():
                raise
            on_poll()
    raise AssertionError("the delays repeat without end")


@contextmanager
def _scheduler_pool() -> Iterator[str]:
    """Reserve an unused scheduler pool. Spark never removes pools, so numbers are reused."""
    with _pools_lock:
        free = next(number for number in count() if number not in _used_pools)
        _used_pools.add(free)
    try:
        yield f"penstock-{free}"
    finally:
        with _pools_lock:
            _used_pools.remove(free)


def _to_penstock_error(cause: BaseException) -> Unavailable | None:
    """Translate an error of Spark; return None for other errors."""
    if isinstance(cause, Py4JError | PySparkException):
        return Unavailable("spark_failed", {"cause": error_message(cause)})
    return None


def _progress(context: SparkContext, group: str) -> Progress:
    with detect_loss(context):
        return _read_progress(context, group)


def _read_progress(context: SparkContext, group: str) -> Progress:
    tracker = context.statusTracker()
    jobs = [job for number in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(number))]
    tasks_by_stage = [
        (stage.numTasks, stage.numTasks if job.status == "SUCCEEDED" else min(stage.numCompletedTasks, stage.numTasks))
        for job in jobs
        for number in job.stageIds
        if (stage := tracker.getStageInfo(number))
    ]
    tasks_done = sum(done for _, done in tasks_by_stage)
    is_waiting = bool(tasks_by_stage) and not tasks_done and not _has_workers(context)
    return Progress(
        phase=WAITING_FOR_WORKERS if is_waiting else None,
        stages=len(tasks_by_stage),
        stages_done=sum(tasks == done for tasks, done in tasks_by_stage),
        tasks=sum(tasks for tasks, _ in tasks_by_stage),
        tasks_done=tasks_done,
    )


def _has_workers(context: SparkContext) -> bool:
    """Return True if tasks can run: in this process, or on executors beside the driver."""
    if str(context.master).startswith("local"):
        return True
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) > 1


def _is_foreign_thread(_record: logging.LogRecord) -> bool:
    """Suppress PySpark's log of errors in threads of this module, which raise them."""
    return not threading.current_thread().name.startswith("penstock-")


PySparkLogger.getLogger("DataFrameQueryContextLogger").addFilter(_is_foreign_thread)
