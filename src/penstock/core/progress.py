"""Progress of long work: one event for writes, merges, maintenance and pipeline runs, and the callback that receives it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

WAITING_FOR_WORKERS = "waiting for workers"  # phase of a Spark job whose master has not assigned a worker yet


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a write, a merge, a compaction or a pipeline run, as a progress callback receives it.

    A `ProgressCallback` is a function of one `Progress`. If it raises, the work stops, and a write is not committed.

    Attributes:
        phase: `read`, `match`, `write` or `commit` of a merge or of an operation of a pipeline, or `waiting for workers`
            of the Spark master; None if the work has only one phase, or has not begun
        done: completed amount of the phase
        total: amount of the whole phase; None if it is not known
        unit: unit of both amounts: `rows`, `parts`, `files` or `bytes`
        operation: number of completed operations of the pipeline
        operations: number of operations of the pipeline; 0 if no pipeline runs
        order: `order` of the current operation
        type: type of the current operation
        stages: planned stages of the current Spark job
        stages_done: completed stages
        tasks: planned tasks of the current Spark job
        tasks_done: completed tasks

    Example:
        >>> lake.create("demo.counted", {"id": [1, 2, 3]}, progress=lambda event: print(event.done, event.unit)).version
        3 rows
        1
    """

    phase: str | None = None
    done: int = 0
    total: int | None = None
    unit: str = "rows"
    operation: int = 0
    operations: int = 0
    order: int | None = None
    type: str | None = None
    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    tasks_done: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]  # may raise to stop the work


class ProgressTracker:
    """Hold the progress of one piece of work, and report every change of it. Engines report from several threads."""

    def __init__(self, callback: ProgressCallback | None = None, start: Progress | None = None) -> None:
        self._callback = callback or (lambda _: None)
        self._current = start or Progress()
        self._lock = threading.Lock()

    def report(self, progress: Progress) -> None:
        """Replace the progress, as at the start of an operation, and report it."""
        with self._lock:
            self._set(progress)

    def update(self, **changes: Any) -> None:
        """Change fields of the progress and report it."""
        with self._lock:
            self._set(replace(self._current, **changes))

    def add(self, amount: int) -> None:
        """Add to the completed amount, up to the total, and report it. An amount of 0 shows that the work continues."""
        with self._lock:
            done, total = self._current.done + amount, self._current.total
            self._set(replace(self._current, done=done if total is None else min(done, total)))

    def on_job(self, job: Progress) -> None:
        """Report the stages and tasks of a Spark job, and whether it waits for workers."""
        phase = None if self._current.phase == WAITING_FOR_WORKERS else self._current.phase
        counts = {
            "stages": job.stages,
            "stages_done": job.stages_done,
            "tasks": job.tasks,
            "tasks_done": job.tasks_done,
        }
        self.update(phase=job.phase or phase, **counts)

    def _set(self, progress: Progress) -> None:
        self._current = progress
        self._callback(progress)
