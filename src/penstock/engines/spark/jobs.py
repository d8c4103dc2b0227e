"""Let Spark work while the caller listens: progress is told, and whoever stops listening stops the work."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from typing import TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException

from penstock.engines.spark.session import told
from penstock.errors import Unavailable

_PAUSE = 0.5  # seconds between two beats

_T = TypeVar("_T")


def run(context: SparkContext, act: Callable[[], _T], beat: Callable[[float], None] | None = None) -> _T:
    """Do it in a thread. `beat` hears, in the caller's thread, which share of the work is done so far.

    An error of the beat's, or Ctrl-C, cancels every job of it, and no other.
    """
    group, outcome = f"penstock-{uuid4().hex}", Future[_T]()

    def work() -> None:
        try:
            context.setJobGroup(group, "penstock merge")
            outcome.set_result(act())
        except BaseException as cause:
            known = _ours(cause)
            if known is not None:
                known.__cause__ = cause
            outcome.set_exception(known or cause)

    thread: threading.Thread = InheritableThread(work, daemon=True)
    thread.start()
    try:
        return _awaited(outcome, lambda: beat and beat(_share(context, group)))
    except BaseException:
        while thread.is_alive():  # a cancelled job may be followed by another
            context.cancelJobGroup(group)
            thread.join(0.1)
        raise


def _awaited(outcome: Future[_T], meanwhile: Callable[[], None]) -> _T:
    while True:
        try:
            return outcome.result(_PAUSE)
        except StillRunning:
            if outcome.done():
                raise
            meanwhile()


def _ours(cause: BaseException) -> Unavailable | None:
    """What an error of Spark's is to us; None for all others."""
    match cause:
        case Py4JNetworkError() | ConnectionError():
            return Unavailable("spark_gone", "the connection to Spark was lost: its process has ended")
        case Py4JError() | PySparkException():
            return Unavailable("spark_failed", f"Spark could not finish: {told(cause)}")
    return None


def _share(context: SparkContext, group: str) -> float:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    tasks = sum(stage.numTasks for stage in stages if stage)
    return sum(stage.numCompletedTasks for stage in stages if stage) / tasks if tasks else 0.0
