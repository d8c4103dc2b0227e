"""Progress events: accumulation, limits, and errors of the callback."""

import threading

import pytest

from penstock.core.pipeline.run import progress_as_json
from penstock.core.progress import Progress, ProgressTracker


def test_progress_tracker_add_accumulates_up_to_the_total() -> None:
    events: list[Progress] = []
    tracker = ProgressTracker(events.append, Progress("write", total=5))
    for rows in (3, 0, 3):
        tracker.add(rows)
    assert events == [Progress("write", done, 5) for done in (3, 3, 5)]


def test_progress_tracker_add_without_total_has_no_limit() -> None:
    events: list[Progress] = []
    tracker = ProgressTracker(events.append, Progress(unit="files"))
    tracker.add(2)
    tracker.add(1)
    assert events == [Progress(done=2, unit="files"), Progress(done=3, unit="files")]


def test_progress_tracker_update_keeps_the_operation_and_the_job() -> None:
    events: list[Progress] = []
    tracker = ProgressTracker(events.append)
    tracker.report(Progress(operation=1, operations=2, order=7, type="merge"))
    tracker.on_job(Progress(stages=2, stages_done=1, tasks=8, tasks_done=3))
    tracker.update(phase="match", done=0, total=4, unit="parts")
    assert events[-1] == Progress("match", 0, 4, "parts", 1, 2, 7, "merge", 2, 1, 8, 3)
    tracker.report(Progress(operation=2, operations=2, order=8, type="append"))
    assert events[-1] == Progress(operation=2, operations=2, order=8, type="append")


def test_progress_tracker_callback_error_is_raised_and_the_tracker_stays_usable() -> None:
    def stop(progress: Progress) -> None:
        if progress.done == 1:
            raise RuntimeError("enough")

    tracker = ProgressTracker(stop)
    with pytest.raises(RuntimeError, match="enough"):
        tracker.add(1)
    tracker.add(1)


def test_progress_tracker_add_from_several_threads_loses_nothing() -> None:
    events: list[Progress] = []
    tracker = ProgressTracker(events.append)
    threads = [threading.Thread(target=lambda: [tracker.add(1) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.done for event in events] == list(range(1, 2_001))


@pytest.mark.parametrize(("unit", "rows"), [("rows", 3), ("parts", 0)])
def test_progress_as_json_counts_only_rows_as_rows(unit: str, rows: int) -> None:
    assert progress_as_json(Progress("write", 3, 5, unit))["rows"] == rows
