"""One try at a run: carried out in the name of who asked, told how far it is, and ended in the commit of its data.

A try whose process was silent for too long is not the run's last any more, and finds out when it wants to commit.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.catalog import runs
from penstock.catalog.database import Tx
from penstock.core.pipeline import definition as pipelines
from penstock.core.caller import Caller
from penstock.core.pipeline.operations import envelope
from penstock.core.pipeline.run import Outcome, Progress, Read, Run, State
from penstock.errors import KINDS, Conflict, PenstockError, Unavailable
from penstock.service.pipelines import execution as pipeline
from penstock.service.pipelines.execution import Done
from penstock.service.pipelines.planning import Ready
from penstock.service.workspace import Workspace

_SHOWN = 1.0  # seconds between two looks at a run's progress
_KINDS = {kind.__name__: kind for kind in KINDS}
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Attempt:
    caller: Caller
    run: Run
    number: int  # which try it is
    hear: Callable[[Progress], None] = lambda _: None
    stop: PenstockError | None = None  # why it is to end before its time
    error: PenstockError | None = None  # what ended it, if something did


def carry_out(ws: Workspace, attempt: Attempt) -> bool:
    """Until the record says how the run ended. False: it goes on elsewhere, or will."""
    caller, run = attempt.caller, attempt.run.id
    results: tuple[dict[str, Any], ...] = ()
    reads: tuple[Read, ...] = ()
    shown = 0.0

    def hear(progress: Progress) -> None:
        nonlocal shown
        if attempt.stop:
            raise attempt.stop
        attempt.hear(progress)
        if time.monotonic() - shown > _SHOWN:
            shown = time.monotonic()
            with suppress(PenstockError), ws.db.write(caller) as tx:  # what is only shown must not end a run
                runs.show_progress(tx, run, attempt.number, progress, results, reads)

    def noted(ready: Ready, so_far: tuple[dict[str, Any], ...]) -> None:
        nonlocal results, reads
        if len(so_far) == 1:
            with ws.db.read(caller) as tx:
                reads = ready.reads(tx, {})
        results = so_far

    def record(tx: Tx, done: Done) -> None:
        assert done.receipt is not None
        if attempt.stop:
            raise attempt.stop
        outcome = Outcome(State.SUCCEEDED, done.reads, done.results)
        written, commit_no = done.receipt.written, done.receipt.commit_no
        if not runs.finish(tx, run, attempt.number, outcome, written=written, commit_no=commit_no):
            raise over()

    try:
        pipeline.run(ws, caller, pipelines.read(attempt.run.pipeline), hear=hear, noted=noted, record=record)
        return True
    except PenstockError as refusal:
        attempt.error = attempt.stop or refusal
    except Exception:
        _log.exception("run %s failed", run)
        attempt.error = bug()
    told = envelope(attempt.error)
    outcome = Outcome(ended_as(attempt.error), reads, (*results, told), told, attempt.error.kind)
    with ws.db.write(caller) as tx:
        if attempt.error.reason == "service_stopped" and runs.give_back(tx, run, attempt.number):
            return False
        if runs.finish(tx, run, attempt.number, outcome):
            return True
        if runs.find(tx, run).state is State.SUCCEEDED:
            attempt.error = None  # the answer to its commit was lost, and the record knows
            return True
    return False


def ended_as(error: PenstockError | None) -> State:
    if error is None:
        return State.SUCCEEDED
    return State.CANCELLED if error.reason == "run_cancelled" else State.FAILED


def as_error(run: Run) -> PenstockError | None:
    """What ended a run, by its record."""
    if run.state is State.SUCCEEDED:
        return None
    told = (run.error or envelope(cancelled()))["error"]
    kind = _KINDS.get(run.error_kind or "", Unavailable) if run.error else Conflict
    return kind(told["code"].lower(), told["message"], **told["details"])


def cancelled() -> PenstockError:
    return Conflict("run_cancelled", "the run was cancelled; nothing was written")


def stopped() -> PenstockError:
    return Unavailable("service_stopped", "the service was stopped; run it again")


def over() -> PenstockError:
    return Conflict("run_over", "the process was silent for too long; the run is over, or another process has it")


def bug() -> PenstockError:
    return Unavailable("internal_error", "something went wrong that is not your fault; the log tells more")
