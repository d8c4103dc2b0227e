"""Let Spark work while the caller listens: progress is told, and whoever stops listening stops the work."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, repeat
from typing import TypeAlias, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from penstock.engines.spark.session import told
from penstock.errors import Unavailable

_PAUSES = (0.1, 0.2, 0.3, 0.5)  # seconds before each beat; the last one over and over

_T = TypeVar("_T")
_slots: set[int] = set()  # of the scheduler, that are in use
_choosing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Stages:
    """How far Spark is, as far as it has planned: more stages may follow."""

    stages: int
    stages_done: int
    tasks: int
    tasks_done: int

    @property
    def share(self) -> float:
        return self.tasks_done / self.tasks if self.tasks else 0.0


Watch: TypeAlias = Callable[[Stages], None]  # may raise to stop the work


def run(context: SparkContext, purpose: str, act: Callable[[], _T], watch: Watch | None = None) -> _T:
    """Do it in a thread. `watch` hears, in the caller's thread and every half second, how far it is.

    An error of the watch's, or Ctrl-C, cancels every job of it, and no other.
    """
    group, outcome = f"penstock-{uuid4().hex}", Future[_T]()

    def work() -> None:
        try:
            with _slot() as slot:
                context.setJobGroup(group, purpose)
                context.setLocalProperty("spark.scheduler.pool", slot)
                outcome.set_result(act())
        except BaseException as cause:
            known = _ours(cause)
            if known is not None:
                known.__cause__ = cause
            outcome.set_exception(known or cause)

    thread: threading.Thread = InheritableThread(work, name=group, daemon=True)
    thread.start()
    try:
        return _awaited(outcome, lambda: watch and watch(_stages(context, group)))
    except BaseException:
        while thread.is_alive():  # a cancelled job may be followed by another
            context.cancelJobGroup(group)
            thread.join(0.1)
        raise


def _awaited(outcome: Future[_T], meanwhile: Callable[[], None]) -> _T:
    for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
        try:
            return outcome.result(pause)
        except StillRunning:
            if outcome.done():
                raise
            meanwhile()
    raise AssertionError("pauses do not end")


@contextmanager
def _slot() -> Iterator[str]:
    """A pool of the scheduler's that nobody else is in. Spark never forgets a pool, so they are used again."""
    with _choosing:
        free = next(number for number in count() if number not in _slots)
        _slots.add(free)
    try:
        yield f"penstock-{free}"
    finally:
        with _choosing:
            _slots.remove(free)


def _ours(cause: BaseException) -> Unavailable | None:
    """What an error of Spark's is to us; None for all others."""
    match cause:
        case Py4JNetworkError() | ConnectionError():
            return Unavailable("spark_gone", "the connection to Spark was lost: its process has ended")
        case Py4JError() | PySparkException():
            return Unavailable("spark_failed", f"Spark could not finish: {told(cause)}")
    return None


def _stages(context: SparkContext, group: str) -> Stages:
    tracker = context.statusTracker()
    jobs = [job for number in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(number))]
    known = [
        (stage.numTasks, stage.numTasks if job.status == "SUCCEEDED" else min(stage.numCompletedTasks, stage.numTasks))
        for job in jobs
        for number in job.stageIds
        if (stage := tracker.getStageInfo(number))
    ]
    return Stages(
        stages=len(known),
        stages_done=sum(tasks == done for tasks, done in known),
        tasks=sum(tasks for tasks, _ in known),
        tasks_done=sum(done for _, done in known),
    )


def _not_ours(_record: logging.LogRecord) -> bool:
    """PySpark logs an error of a frame with all that Java knows of it; what fails in our threads is raised."""
    return not threading.current_thread().name.startswith("penstock-")


PySparkLogger.getLogger("DataFrameQueryContextLogger").addFilter(_not_ours)
