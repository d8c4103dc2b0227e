"""Progress on the terminal: one line of standard error that is redrawn in place and erased at the end."""

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from penstock.core.formatting import format_count
from penstock.core.progress import WAITING_FOR_WORKERS, Progress

_SHOW_AFTER_SECONDS = 1.0  # until a bar appears
_REDRAW_SECONDS = 0.1
_BAR_LENGTH = 24  # characters
_ERASE = "\r\x1b[K"


@contextmanager
def show_progress(title: str = "", *, print_operations: bool = False) -> Iterator["ProgressLine"]:
    """Show the progress that the block reports to the line, and erase the line at the end."""
    line = ProgressLine(title, print_operations=print_operations)
    try:
        yield line
    finally:
        line.finish(succeeded=False)


class ProgressLine:
    """Show progress events: a bar if the work takes longer than a second, the current operation for a pipeline run.

    Args:
        title: text in front of a bar
        print_operations: print a line for each completed operation if standard error is not a terminal
    """

    def __init__(self, title: str = "", *, print_operations: bool = False) -> None:
        self._title, self._is_live = title, sys.stderr.isatty()
        self._prints_operations = print_operations and not self._is_live
        self._last: Progress | None = None
        self._start, self._drawn_at, self._is_drawn = time.monotonic(), 0.0, False
        self._lock = threading.Lock()  # a run reports from its own thread, and another thread waits

    def on_progress(self, progress: Progress) -> None:
        """Record the progress, and redraw the line if the last time is long enough ago."""
        with self._lock:
            if progress.operations and (self._last is None or self._last.operation != progress.operation):
                self._end_operation()
                self._start, self._drawn_at = time.monotonic(), 0.0
            is_waiting = progress.phase == WAITING_FOR_WORKERS
            if is_waiting and self._prints_operations and not (self._last and self._last.phase == WAITING_FOR_WORKERS):
                click.echo("penstock: waiting for workers of the Spark master", err=True)
            self._last = progress
            if time.monotonic() - self._drawn_at > _REDRAW_SECONDS:
                self._draw()

    def on_wait(self) -> None:
        """Redraw the line: its time has changed."""
        with self._lock:
            self._draw()

    def on_cancel(self) -> None:
        """Print that the run is being cancelled, instead of its progress."""
        with self._lock:
            self._erase()
            self._is_live = False
            click.echo("penstock: cancelling", err=True)

    def finish(self, *, succeeded: bool = True) -> None:
        """Print the last operation if it succeeded, and erase the line."""
        with self._lock:
            if succeeded:
                self._end_operation()
            self._erase()

    def _draw(self) -> None:
        now = time.monotonic()
        seconds = now - self._start
        if self._is_live and self._last and (self._last.operations or seconds > _SHOW_AFTER_SECONDS):
            text = format_progress(self._last, seconds, self._title)
            click.echo(f"{_ERASE}{text[: shutil.get_terminal_size().columns - 1]}", err=True, nl=False)
            self._drawn_at, self._is_drawn = now, True

    def _erase(self) -> None:
        if self._is_drawn:
            click.echo(_ERASE, err=True, nl=False)
            self._is_drawn = False

    def _end_operation(self) -> None:
        if self._prints_operations and self._last and self._last.operations:
            click.echo(_format_operation(self._last, [], time.monotonic() - self._start), err=True)
        self._last = None


def format_progress(progress: Progress, seconds: float, title: str = "") -> str:
    """Return the progress as one line: the current operation of a pipeline run, or else a bar."""
    if not progress.operations:
        return _format_bar(progress, seconds, title)
    details = [progress.phase or "starting"]
    if progress.stages:
        stages, tasks = f"{progress.stages_done}/{progress.stages}", f"{progress.tasks_done}/{progress.tasks}"
        details.append(f"stages {stages} · tasks {tasks}")
    return _format_operation(progress, details, seconds)


def _format_bar(progress: Progress, seconds: float, title: str) -> str:
    heading = f"{title}: {progress.phase}" if progress.phase else title
    counts = f"{progress.done:,} {progress.unit} · {progress.done / seconds:,.0f}/s · {seconds:,.0f} s"
    if not progress.total:
        return f"{heading}  {counts}"
    share = min(progress.done / progress.total, 1.0)
    return f"{heading}  {'━' * round(share * _BAR_LENGTH):<{_BAR_LENGTH}} {share:4.0%}  {counts}"


def _format_operation(progress: Progress, details: Sequence[str], seconds: float) -> str:
    # A merge rewrites the files in which it changes a row: most of their rows stay the same.
    verb = "in rewritten files" if progress.type == "merge" else "written"
    has_rows = progress.unit == "rows" and progress.done
    rows = [f"{format_count(progress.done, 'row')} {verb}"] if has_rows else []
    operation = f"operation {progress.operation + 1}/{progress.operations} {progress.type}"
    return " · ".join([operation, *details, *rows, f"{seconds:,.0f} s"])
