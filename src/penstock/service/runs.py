"""Runs of pipelines: queued, carried out a few at once, watched, cancelled, and remembered however they end.

The record says what happened, whatever becomes of the process: a run ends in the very transaction that commits its
data, and one whose process fell silent is declared failed and cannot commit any more.
"""

import hashlib
import json
import logging
import math
import os
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from penstock.catalog import runs
from penstock.catalog.access import Tx
from penstock.catalog.search import Page
from penstock.core.caller import Caller, Role
from penstock.core.odata import Options
from penstock.core.operations import MESSAGES, envelope
from penstock.core.pipeline import Pipeline
from penstock.core.run import UNDER_WAY, Outcome, Progress, Read, Run, State
from penstock.errors import Conflict, Invalid, NotFound, PenstockError, Unavailable
from penstock.service import pipeline as pipelines
from penstock.service.pipeline import Done
from penstock.service.readiness import Ready
from penstock.service.workspace import Workspace
from penstock.service.write import checked_key

FIELDS = runs.FIELDS  # that can be searched
SILENT = timedelta(seconds=30)  # a run whose process showed no sign of life for so long has failed
_PULSE = 2.0  # seconds between two signs of life
_LOOK = 0.5  # seconds between two looks at a run of another process
_SHOWN = 1.0  # seconds between two looks at a run's progress
_log = logging.getLogger(__name__)


def show(ws: Workspace, caller: Caller, run: UUID) -> Run:
    caller.require(Role.VIEWER)
    _bury(ws, caller)
    with ws.db.read(caller) as tx:
        return runs.find(tx, run)


def search(ws: Workspace, caller: Caller, options: Options) -> Page[Run]:
    caller.require(Role.VIEWER)
    _bury(ws, caller)
    with ws.db.read(caller) as tx:
        return runs.search(tx, options)


def cancel(ws: Workspace, caller: Caller, run: UUID) -> Run:
    """Ask a run to stop, whichever process it is in. One that is over stays as it is."""
    caller.require(Role.DEVELOPER)
    _bury(ws, caller)
    with ws.db.write(caller) as tx:
        return runs.ask_to_cancel(tx, run)


def _bury(ws: Workspace, caller: Caller) -> None:
    """Declare the silent ones dead. Most of the time there are none, and nothing is written."""
    since = ws.db.clock() - SILENT
    with ws.db.read(caller) as tx:
        if not runs.silent(tx, since):
            return
    with ws.db.write(caller) as tx:
        runs.bury(tx, since)


@dataclass
class Ticket:
    """A run in this process. `ended` is set when the record says how it ended; `error` is what ended it, if something did."""

    caller: Caller
    run: Run
    pipeline: Pipeline
    hear: Callable[[Progress], None] = lambda _: None
    ended: threading.Event = field(default_factory=threading.Event)
    error: PenstockError | None = None
    stop: PenstockError | None = None  # why it is to end before its time


@dataclass(frozen=True, slots=True)
class Bounds:
    at_once: int = 2  # runs that share Spark
    waiting: int = 100  # runs in the queue
    of_one: int = 25  # of them, those of one tenant


class Runner:
    """Carries out the runs that this process was asked for: tenants take turns, and nobody fills the queue alone."""

    def __init__(self, ws: Workspace, bounds: Bounds | None = None) -> None:
        self._ws, self._bounds = ws, bounds or Bounds()
        self._holder = f"{socket.gethostname()} process {os.getpid()}"
        self._change = threading.Condition()
        self._waiting: OrderedDict[UUID, deque[Ticket]] = OrderedDict()  # by tenant; the first has the next turn
        self._tickets: dict[UUID, Ticket] = {}  # under way
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False
        self._hearers: list[Callable[[State, float], None]] = []

    def hear_ends(self, hear: Callable[[State, float], None]) -> None:
        """Let somebody hear of every run that ends here: how, and how many seconds it took."""
        self._hearers.append(hear)

    def queued(self) -> int:
        with self._change:
            return sum(map(len, self._waiting.values()))

    def running(self) -> int:
        with self._change:
            return len(self._tickets) - sum(map(len, self._waiting.values()))

    def submit(
        self,
        caller: Caller,
        pipeline: Pipeline,
        *,
        pipeline_id: UUID | None = None,
        key: str | None = None,
        hear: Callable[[Progress], None] = lambda _: None,
    ) -> Ticket:
        """Put a run into the queue. With a key that names a run under way, or a success, that run is the answer."""
        caller.require(Role.DEVELOPER)
        given = None if key is None else checked_key(key)
        definition = pipeline.as_json()
        request = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()
        _bury(self._ws, caller)
        with self._change:
            self._assert_room(caller)
        with self._ws.db.write(caller) as tx:
            new = Run(
                uuid4(), pipeline_id, pipeline.name, definition, State.QUEUED, tx.now, caller.user, caller.name, given
            )
            run = runs.insert(tx, new, role=caller.role, holder=self._holder, request=request)
        if run.id != new.id:
            return self._known(caller, run, pipeline)
        ticket = Ticket(caller, run, pipeline, hear)
        with self._change:
            self._tickets[run.id] = ticket
            self._waiting.setdefault(caller.tenant, deque()).append(ticket)
            self._staff()
            self._change.notify_all()
        return ticket

    def wait(self, ticket: Ticket, seconds: float = math.inf) -> bool:
        """Until the run has ended, or so long. A run of another process is looked at now and then."""
        deadline = time.monotonic() + seconds
        while not ticket.ended.wait(min(_LOOK, max(deadline - time.monotonic(), 0))):
            if ticket.run.id not in self._tickets and not ticket.ended.is_set():
                ticket.run = show(self._ws, ticket.caller, ticket.run.id)
                if ticket.run.state not in UNDER_WAY:
                    ticket.error = _as_error(ticket.run)
                    ticket.ended.set()
            if time.monotonic() >= deadline:
                return ticket.ended.is_set()
        return True

    def cancel(self, caller: Caller, run: UUID) -> Run:
        """The same as `cancel`, without waiting for the next sign of life."""
        found = cancel(self._ws, caller, run)
        if found.cancelling and (ticket := self._tickets.get(run)):
            ticket.stop = _cancelled()
            self._take_out(ticket)
        return found

    def close(self, patience: float = 0.0) -> None:
        """Take no more. Runs under way have so many seconds; then they are stopped, and the record says so."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        deadline = time.monotonic() + patience
        for ticket in list(self._tickets.values()):
            ticket.ended.wait(max(deadline - time.monotonic(), 0))
            ticket.stop = ticket.stop or Unavailable("service_stopped", "the service was stopped; run it again")
        for thread in self._threads:
            thread.join()

    def _assert_room(self, caller: Caller) -> None:
        if self._closed:
            raise Unavailable("service_stopped", "the service is about to stop; send it again")
        waiting = {tenant: len(queue) for tenant, queue in self._waiting.items()}
        if waiting.get(caller.tenant, 0) >= self._bounds.of_one or sum(waiting.values()) >= self._bounds.waiting:
            raise Unavailable(
                "too_many_runs",
                f"{waiting.get(caller.tenant, 0)} runs of yours are waiting already; try again when some have ended",
            )

    def _take_out(self, ticket: Ticket) -> None:
        """A cancelled run takes no place in the queue."""
        with self._change:
            queue = self._waiting.get(ticket.caller.tenant, deque())
            if ticket not in queue:
                return
            queue.remove(ticket)
            if not queue:
                del self._waiting[ticket.caller.tenant]
            ticket.error = ticket.stop
            self._end(ticket, 0.0)

    def _end(self, ticket: Ticket, seconds: float) -> None:
        for hear in self._hearers:
            hear(_ended_as(ticket.error), seconds)
        ticket.ended.set()  # before it is forgotten: who waits takes a run that is not here for one of another process
        with self._change:
            del self._tickets[ticket.run.id]
            self._change.notify_all()

    def _known(self, caller: Caller, run: Run, pipeline: Pipeline) -> Ticket:
        """The ticket of a run that was asked for before, here or in another process."""
        if ticket := self._tickets.get(run.id):
            return ticket
        ticket = Ticket(caller, run, pipeline)
        if run.state not in UNDER_WAY:
            ticket.ended.set()
        return ticket

    def _staff(self) -> None:
        """A thread for each run at once, as they are needed, and one that shows that runs are alive."""
        if not self._threads:
            self._threads.append(threading.Thread(target=self._pulse, name="penstock pulse", daemon=True))
            self._threads[0].start()
        if not self._idle and len(self._threads) <= self._bounds.at_once:
            self._threads.append(threading.Thread(target=self._work, name="penstock run", daemon=True))
            self._threads[-1].start()

    def _work(self) -> None:
        while ticket := self._next():
            begun = time.monotonic()
            try:
                _carry_out(self._ws, ticket, self._holder)
            except Exception as cause:  # the catalog cannot be reached: the run falls silent, and that will be seen
                _log.warning("run %s could not be recorded", ticket.run.id, exc_info=True)
                ticket.error = cause if isinstance(cause, PenstockError) else _bug()
            finally:
                self._end(ticket, time.monotonic() - begun)

    def _next(self) -> Ticket | None:
        with self._change:
            while not self._waiting:
                if self._closed:
                    return None
                self._idle += 1
                self._change.wait()
                self._idle -= 1
            tenant, queue = self._waiting.popitem(last=False)
            ticket = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            return ticket

    def _pulse(self) -> None:
        """Show signs of life, and hear who was cancelled elsewhere or declared dead."""
        while True:
            with self._change:
                self._change.wait(_PULSE)
                tickets = list(self._tickets.values())
                if self._closed and not tickets:
                    return
            for tenant in {ticket.caller.tenant for ticket in tickets}:
                mine = [ticket for ticket in tickets if ticket.caller.tenant == tenant]
                try:
                    with self._ws.db.write(mine[0].caller) as tx:
                        alive = runs.beat(tx, [ticket.run.id for ticket in mine])
                except PenstockError:
                    continue
                for ticket in mine:
                    if alive.get(ticket.run.id, True):
                        ticket.stop = ticket.stop or _cancelled()


def _carry_out(ws: Workspace, ticket: Ticket, holder: str) -> None:
    with ws.db.write(ticket.caller) as tx:
        if not runs.start(tx, ticket.run.id, holder):
            ticket.error = _cancelled()
            return
    results: tuple[dict[str, Any], ...] = ()
    reads: tuple[Read, ...] = ()
    shown = 0.0

    def hear(progress: Progress) -> None:
        nonlocal shown
        if ticket.stop:
            raise ticket.stop
        ticket.hear(progress)
        if time.monotonic() - shown > _SHOWN:
            shown = time.monotonic()
            with suppress(PenstockError), ws.db.write(ticket.caller) as tx:  # what is only shown must not end a run
                runs.show_progress(tx, ticket.run.id, progress, results, reads)

    def noted(ready: Ready, so_far: tuple[dict[str, Any], ...]) -> None:
        nonlocal results, reads
        if len(so_far) == 1:
            with ws.db.read(ticket.caller) as tx:
                reads = ready.reads(tx, {})
        results = so_far

    def record(tx: Tx, done: Done) -> None:
        assert done.receipt is not None
        outcome = Outcome(State.SUCCEEDED, done.reads, done.results)
        if not runs.finish(tx, ticket.run.id, outcome, written=done.receipt.written, commit_no=done.receipt.commit_no):
            raise Conflict("run_over", "the run was declared dead, or cancelled, before it could commit; run it again")

    try:
        pipelines.run(ws, ticket.caller, ticket.pipeline, hear=hear, noted=noted, record=record)
        return
    except PenstockError as refusal:
        ticket.error = ticket.stop or refusal
    except Exception:
        _log.exception("run %s failed", ticket.run.id)
        ticket.error = _bug()
    told = envelope(ticket.error)
    with ws.db.write(ticket.caller) as tx:
        ended = runs.finish(tx, ticket.run.id, Outcome(_ended_as(ticket.error), reads, (*results, told), told))
        if not ended and runs.find(tx, ticket.run.id).state is State.SUCCEEDED:
            ticket.error = None  # the answer to its commit was lost, and the record knows


_CANCELLED = "run_cancelled"


def _ended_as(error: PenstockError | None) -> State:
    if error is None:
        return State.SUCCEEDED
    return State.CANCELLED if error.reason == _CANCELLED else State.FAILED


def _as_error(run: Run) -> PenstockError | None:
    """What ended a run of another process."""
    if run.state is State.SUCCEEDED:
        return None
    told = (run.error or envelope(_cancelled()))["error"]
    reason = told["code"].lower()
    return _kind(reason)(reason, told["message"], **told["details"])


def _kind(reason: str) -> type[PenstockError]:
    """The record keeps an error's words, and not its kind."""
    if reason in MESSAGES:
        return NotFound if reason.endswith(("_001", "_002")) else Invalid
    return Conflict if reason == _CANCELLED else Unavailable


def _cancelled() -> PenstockError:
    return Conflict(_CANCELLED, "the run was cancelled; nothing was written")


def _bug() -> PenstockError:
    return Unavailable("internal_error", "something went wrong that is not your fault; the log tells more")
