"""Commands for pipelines: validate, run, runs."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from penstock.cli.dataset import File
from penstock.cli.context import Command, Frame, printable, report, shared
from penstock.cli.input_files import content, document
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.core.pipeline.run import Progress, Run
    from penstock.core.payload.documents import Document
    from penstock.lake import Lake
    from penstock.service.pipelines.run_worker import Ticket

_STATES = click.Choice(["queued", "running", "succeeded", "failed", "cancelled"])
_MAX_BYTES = 4 << 20  # of a pipeline
_MAX_LISTED = 1_000  # runs
_BEAT = 0.2  # seconds between two looks at a run


@click.command(cls=Command)
@click.argument("file", type=File())
@shared(
    """
    penstock validate budget.yaml
    penstock validate - --json
    """
)
def validate(frame: Frame, file: Path) -> None:
    """Tell everything that is wrong with the pipeline in FILE (JSON or YAML; - for standard input).

    Datasets, versions, columns and types are looked up; no row is read, and Spark is not started.
    """
    from penstock.service.pipelines import planning as readiness

    data = content(file, _MAX_BYTES)
    try:
        asked = document(file, data)
    except PenstockError as refusal:
        error = {"pointer": "", "code": refusal.reason.upper(), "message": refusal.message}
        errors = [error if (line := refusal.context.get("line")) is None else error | {"line": line}]
    else:
        with frame.lake() as lake:
            errors = _with_lines(asked, readiness.problems(lake.workspace, lake.caller, asked.value))
    frame.tell({"valid": not errors, "errors": errors}, _listed(file, errors) or f"{file} can run")
    if errors:
        raise SystemExit(1)


@click.command(cls=Command)
@click.argument("file", type=File())
@click.option("--dry-run", is_flag=True, help="Only tell what each operation would answer; nothing is written.")
@click.option("--key", help="The same run, asked for again with this key, happens only once.")
@shared(
    """
    penstock run budget.yaml --dry-run
    penstock run budget.yaml --key budget-2026-03
    """
)
def run(frame: Frame, file: Path, dry_run: bool, key: str | None) -> None:
    """Run the pipeline in FILE (JSON or YAML; - for standard input) on Spark, and commit its result once.

    Prints what each operation answers, as JSON. If one fails, its error is printed and nothing is written. Ctrl-C
    cancels the run. PENSTOCK_SPARK_MASTER says where Spark is; unless it is set, on this machine.
    """
    if dry_run and key:
        raise click.UsageError("--key goes with a run that writes, and --dry-run writes nothing")
    asked = document(file, content(file, _MAX_BYTES))
    with frame.lake() as lake, _in_envelope(frame, file, asked), watched(frame) as watch:
        if dry_run:
            results = lake.pipeline(asked.value).preview(progress=watch.hear_and_draw)
            watch.finish()
            _tell_results(frame, results, "nothing was written (--dry-run)")
        else:
            _carry_out(frame, lake, asked.value, key, watch)


@click.command(cls=Command)
@click.argument("id", type=click.UUID, required=False)
@click.option("--cancel", is_flag=True, help="Ask the run ID to stop.")
@click.option("--state", "states", type=_STATES, multiple=True, help="Only such runs; several: repeat it.")
@click.option("--limit", type=click.IntRange(1, _MAX_LISTED), default=20, show_default=True, help="So many.")
@shared(
    """
    penstock runs --state running --state queued
    penstock runs 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d
    penstock runs 7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d --cancel
    """
)
def runs(frame: Frame, id: UUID | None, cancel: bool, states: tuple[str, ...], limit: int) -> None:
    """List the runs of pipelines, the newest first; or show the run ID, as JSON."""
    from penstock.service.pipelines import run_worker as records

    if cancel and id is None:
        raise click.UsageError("--cancel needs the ID of a run; `penstock runs` lists them")
    with frame.lake() as lake:
        if id is None:
            _list(frame, lake, states, limit)
        elif cancel:
            found = records.cancel(lake.workspace, lake.caller, id)
            frame.tell(found.as_json(), f"run {id} {_stopping(found)}")
        else:
            frame.print_json(records.show(lake.workspace, lake.caller, id).as_json())


# -- validate ---------------------------------------------------------------------------------------------------------


def _with_lines(asked: "Document", errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = [asked.line(error["pointer"]) for error in errors]
    return [error if line is None else {**error, "line": line} for error, line in zip(errors, lines, strict=True)]


def _listed(file: Path, errors: list[dict[str, Any]]) -> str:
    """One line for each error: where it is, what it is, and the facts."""
    return "\n".join(
        f"{file}{':' + str(error['line']) if 'line' in error else ''}: "
        + printable(
            f"{error['pointer'] or '/'}: {error['code']} {_sentence(error['message'], error.get('details', {}))}"
        )
        for error in errors
    )


def _sentence(message: str, details: Mapping[str, Any]) -> str:
    if "problem" in details:  # it says the rest in words
        return f"{message}: {details['problem']}"
    facts = [
        f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in details.items()
        if name not in ("operation_order", "pointer", "errors")
    ]
    return f"{message} ({'; '.join(facts)})" if facts else message


# -- run --------------------------------------------------------------------------------------------------------------


@contextmanager
def _in_envelope(frame: Frame, file: Path, asked: "Document") -> Iterator[None]:
    """An error is an answer, too: an envelope for programs, and a sentence for people."""
    from penstock.core.pipeline.operations import envelope

    try:
        yield
    except PenstockError as error:
        if frame.json:
            raise
        frame.print_json(envelope(error))
        order = error.context.get("operation_order")
        sentence = ("" if order is None else f"operation {order}: ") + _sentence(error.message, error.context)
        report(type(error)(error.reason, sentence), as_json=False)
        if several := error.context.get("errors"):
            click.echo(_listed(file, _with_lines(asked, several)), err=True)
        raise SystemExit(1) from None


def _carry_out(frame: Frame, lake: "Lake", value: Any, key: str | None, watch: "Watch") -> None:
    from penstock.core.pipeline.run import State
    from penstock.service.pipelines import run_worker as records

    ticket = lake.runner.submit(lake.caller, lake.pipeline(value).definition, key=key, hear=watch.hear, here=True)
    before = ticket.run.state is State.SUCCEEDED
    interrupted = _waited(lake, ticket, watch)
    watch.finish(well=ticket.error is None)
    done = records.show(lake.workspace, lake.caller, ticket.run.id)
    if frame.json:
        frame.print_json(done.as_json())
    if ticket.error and interrupted:
        click.echo("penstock: the run was cancelled; nothing was written", err=True)
        raise SystemExit(130)
    if ticket.error:
        raise ticket.error
    if not frame.json:
        _tell_results(frame, done.results, _made(done) + (" (done before)" if before else ""))


def _waited(lake: "Lake", ticket: "Ticket", watch: "Watch") -> bool:
    """Was it cancelled by Ctrl-C?"""
    try:
        while not lake.runner.wait(ticket, _BEAT):
            watch.draw()
    except KeyboardInterrupt:
        watch.clear()
        click.echo("penstock: cancelling", err=True)
        lake.runner.cancel(lake.caller, ticket.run.id)
        lake.runner.wait(ticket)
        return True
    return False


def _tell_results(frame: Frame, results: Any, sentence: str) -> None:
    if frame.json:
        frame.print_json(list(results))
        return
    for result in results:
        frame.print_json(result)
    click.echo(sentence, err=True)


def _made(done: "Run") -> str:
    from penstock.lake import counted

    (written,) = done.written
    return f"{written['name']} is at version {written['version']}, with {counted(written['rows'], 'row')}"


# -- watching ---------------------------------------------------------------------------------------------------------


@contextmanager
def watched(frame: Frame) -> "Iterator[Watch]":
    """Lets people see how far a run is. Spark ends with the process."""
    watch = Watch(live=sys.stderr.isatty(), lines=not frame.json)
    try:
        yield watch
    finally:
        watch.clear()
        _stop_spark_at_the_end()


class Watch:
    """What is seen of a run: one living line on a terminal; otherwise a line for each operation that is done."""

    def __init__(self, *, live: bool, lines: bool) -> None:
        self._live, self._lines = live, lines and not live
        self._last: Progress | None = None
        self._begun = time.monotonic()
        self._drawn = False

    def hear(self, progress: "Progress") -> None:
        if self._last is None or self._last.operation != progress.operation:
            self._done()
            self._begun = time.monotonic()
        self._last = progress

    def hear_and_draw(self, progress: "Progress") -> None:
        self.hear(progress)
        self.draw()

    def draw(self) -> None:
        last = self._last  # the run's own thread may put another in its place
        if self._live and last:
            line = shown(last, time.monotonic() - self._begun)[: shutil.get_terminal_size().columns - 1]
            click.echo(f"\r\x1b[K{line}", err=True, nl=False)
            self._drawn = True

    def finish(self, *, well: bool = True) -> None:
        if well:
            self._done()
        self.clear()

    def clear(self) -> None:
        if self._drawn:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._drawn = False

    def _done(self) -> None:
        """The operation that was under way."""
        if self._lines and self._last:
            click.echo(_line(self._last, [], time.monotonic() - self._begun), err=True)
        self._last = None


def shown(progress: "Progress", seconds: float) -> str:
    """How far a run is."""
    how = [progress.phase or "starting"]
    if progress.stages:
        how.append(f"stages {progress.stages_done}/{progress.stages} · tasks {progress.tasks_done}/{progress.tasks}")
    return _line(progress, how, seconds)


def _line(progress: "Progress", how: Sequence[str], seconds: float) -> str:
    from penstock.lake import counted

    # A merge writes the files anew in which it changes a row: most of their rows stay as they were.
    what = "in files written anew" if progress.type == "merge" else "written"
    rows = [f"{counted(progress.rows, 'row')} {what}"] if progress.rows else []
    which = f"operation {progress.operation + 1}/{progress.operations} {progress.type}"
    return " · ".join([which, *how, *rows, f"{seconds:,.0f} s"])


def _stop_spark_at_the_end() -> None:
    """When the process ends, and not before: a session that was there is not ours to stop."""
    if spark := sys.modules.get("penstock.engines.spark.session"):
        import atexit

        stop: Callable[[], None] = spark.stop
        atexit.unregister(stop)
        atexit.register(stop)


# -- runs -------------------------------------------------------------------------------------------------------------


def _list(frame: Frame, lake: "Lake", states: tuple[str, ...], limit: int) -> None:
    from penstock.core import odata
    from penstock.service.pipelines import run_worker as records

    wanted = [("$filter", " or ".join(f"state eq '{state}'" for state in states))] if states else []
    options = odata.options(wanted, records.FIELDS, default_top=limit, max_top=_MAX_LISTED)
    found = records.search(lake.workspace, lake.caller, options).items
    columns = {name: name for name in ("id", "state", "pipeline", "started", "took", "rows", "by")}
    rows = [run.as_json() for run in found] if frame.json else [_row(run) for run in found]
    frame.table(rows, columns, "there are no such runs; `penstock run FILE` makes one")


def _row(run: "Run") -> dict[str, Any]:
    took = run.ended_at - run.started_at if run.started_at and run.ended_at else None
    changed = sum(each[count] for each in run.written for count in ("inserted", "updated", "deleted"))
    return {
        "id": str(run.id),
        "state": "cancelling" if run.cancelling and run.ended_at is None else run.state.value,
        "pipeline": printable(run.name),
        "started": f"{run.started_at:%Y-%m-%d %H:%M:%S}" if run.started_at else None,
        "took": f"{took.total_seconds():,.1f} s" if took else None,
        "rows": changed if run.written else None,
        "by": printable(run.author),
    }


def _stopping(run: "Run") -> str:
    from penstock.core.pipeline.run import UNDER_WAY

    if run.state in UNDER_WAY:
        return "was asked to stop"
    return f"is over: {run.state.value}"
