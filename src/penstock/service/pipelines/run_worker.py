"""Runs of pipelines: queued, carried out a few at once, watched, cancelled, and remembered however they end.

The queue is in the catalog: a run waits there for whichever process has a hand free, and survives the one that was asked.
The record says what happened, whatever becomes of processes: a run ends in the very transaction that commits its data.
If its process falls silent it cannot commit any more, and another takes it.
"""

import hashlib
import json
import logging
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

from penstock.catalog import run_queue as turns
from penstock.catalog import runs
from penstock.catalog.odata_sql import Page
from penstock.core.caller import Caller, Role, person
from penstock.core.odata import Options
from penstock.core.pipeline.definition import Pipeline
from penstock.core.pipeline.run import UNDER_WAY, Progress, Run, State
from penstock.errors import PenstockError, Unavailable
from penstock.service.pipelines import run_attempt as attempts
from penstock.service.pipelines.run_attempt import Attempt
from penstock.service.process_identity import SILENT
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import checked_key

FIELDS = runs.FIELDS  # that can be searched
_PULSE = 2.0  # seconds between two signs of life
_LOOK = 0.5  # seconds between two looks at the queue, or at a run of another process
_LONG_LOOK = 5.0  # while the catalog cannot be reached
_REACH = 10  # turns that are tried, if others are faster
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
    return _cancel(ws, caller, run)[0]


def _cancel(ws: Workspace, caller: Caller, run: UUID) -> tuple[Run, bool]:
    """Also: did that end it, because it was waiting?"""
    caller.require(Role.DEVELOPER)
    _bury(ws, caller)
    with ws.db.write(caller) as tx:
        waited = runs.cancel_waiting(tx, run)
        return runs.ask_to_cancel(tx, run), waited


def _bury(ws: Workspace, caller: Caller) -> None:
    """Let go of the silent ones. Most of the time there are none, and nothing is written."""
    since = ws.db.clock() - SILENT
    with ws.db.read(caller) as tx:
        if not runs.silent(tx, since):
            return
    with ws.db.write(caller) as tx:
        runs.bury(tx, since)


@dataclass
class Ticket:
    """What one has who asked for a run. `ended` is set when the record says how it ended; `error` is what ended it."""

    caller: Caller
    run: Run
    hear: Callable[[Progress], None] = lambda _: None  # hears of what is done in this process
    ended: threading.Event = field(default_factory=threading.Event)
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    at_once: int = 2  # runs that share Spark
    waiting: int = 100  # runs in the queue, of all processes
    of_one: int = 25  # of them, those of one tenant


class Runner:
    """Carries out the runs whose turn it is, if it takes any, and those that are this process's alone."""

    def __init__(self, ws: Workspace, bounds: Bounds | None = None, *, takes: bool = True) -> None:
        self._ws, self._bounds, self._takes = ws, bounds or Bounds(), takes
        self._holder = f"{socket.gethostname()} process {os.getpid()}"
        self._asked: WeakValueDictionary[UUID, Ticket] = WeakValueDictionary()  # while somebody wants to know
        self._hearers: list[Callable[[State, float], None]] = []
        self._change = threading.Condition()
        self._attempts: list[Attempt] = []  # under way here
        self._unbegun: deque[Attempt] = deque()  # of them, those that no thread has yet
        self._looking = self._look_again = False
        self._threads: list[threading.Thread] = []
        self._hands = self._idle = 0  # threads that carry runs out; of them, those that wait for one
        self._started = self._closed = False
        self._stop: PenstockError | None = None  # why everything is to end

    def hear_ends(self, hear: Callable[[State, float], None]) -> None:
        """Let somebody hear of every run that ends here: how, and how many seconds it took."""
        self._hearers.append(hear)

    def queued(self) -> int:
        """Runs that wait for any process."""
        with self._ws.db.turns() as tx:
            return turns.queue(tx).waiting

    def running(self) -> int:
        with self._change:
            return len(self._attempts)

    def idle(self) -> bool:
        """Is there nothing to take, and nothing under way here?"""
        if self.queued():
            return False
        with self._change:
            return not self._looking and not self._attempts

    def start(self) -> None:
        """Take runs from now on, without having been asked for one."""
        with self._change:
            self._look_again = True
            self._change.notify_all()
            if not self._started:
                self._started = True
                self._employ("pulse", self._pulse)
                if self._takes:
                    self._employ("turns", self._take_turns)

    def submit(
        self,
        caller: Caller,
        pipeline: Pipeline,
        *,
        pipeline_id: UUID | None = None,
        key: str | None = None,
        hear: Callable[[Progress], None] = lambda _: None,
        here: bool = False,
    ) -> Ticket:
        """Put a run into the queue. With a key that names a run under way, or a success, that run is the answer.

        `here`: this process carries it out, and no other. It has no turn; one that its key names and that waits is taken.
        """
        caller.require(Role.DEVELOPER)
        given = None if key is None else checked_key(key)
        definition = pipeline.as_json()
        request = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()
        _bury(self._ws, caller)
        if self._closed:
            raise Unavailable("service_stopped", "the service is about to stop; send it again")
        turn = None if here else self._turn(caller)
        now = self._ws.db.clock()
        new = Run(uuid4(), pipeline_id, pipeline.name, definition, State.QUEUED, now, caller.user, caller.name, given)
        ticket = self._asked[new.id] = Ticket(caller, new, hear)
        with self._ws.db.write(caller) as tx:
            run = runs.insert(tx, new, role=caller.role, request=request, holder=self._holder, turn=turn)
        if run.id != new.id:
            ticket = self._known(caller, run, hear)
        if here and run.state is State.QUEUED:
            own = Attempt(caller, run, 1, hear) if run.id == new.id else self._taken(caller.tenant, run.id)
            if own:
                self._hand(own)
        if here or self._takes:
            self.start()
        return ticket

    def wait(self, ticket: Ticket, seconds: float = math.inf) -> bool:
        """Until the run has ended, or so long. A run that is not under way here is looked at now and then."""
        deadline = time.monotonic() + seconds
        while not ticket.ended.wait(min(_LOOK, max(deadline - time.monotonic(), 0))):
            if not self._at(ticket.run.id) and not ticket.ended.is_set():
                ticket.run = show(self._ws, ticket.caller, ticket.run.id)
                if ticket.run.state not in UNDER_WAY:
                    ticket.error = attempts.as_error(ticket.run)
                    ticket.ended.set()
            if time.monotonic() >= deadline:
                return ticket.ended.is_set()
        return True

    def cancel(self, caller: Caller, run: UUID) -> Run:
        """The same as `cancel`, without waiting for the next sign of life."""
        found, waited = _cancel(self._ws, caller, run)
        if waited:
            self._tell(State.CANCELLED, 0.0)
        if found.cancelling:
            for attempt in self._at(run):
                attempt.stop = attempts.cancelled()
        return found

    def close(self, patience: float = 0.0) -> None:
        """Take no more. Runs under way have so many seconds; then they are stopped, and others may take them."""
        with self._change:
            self._closed = True
            self._change.notify_all()
            self._change.wait_for(lambda: not self._attempts and not self._looking, patience)
            self._stop = attempts.stopped()
            if self._attempts:
                _log.warning("runs under way are stopped", extra={"facts": {"runs": len(self._attempts)}})
            for attempt in self._attempts:
                attempt.stop = attempt.stop or self._stop
        for thread in self._threads:
            thread.join()

    # -- asking -------------------------------------------------------------------------------------------------------

    def _turn(self, caller: Caller) -> int:
        """The place in the queue. Those who ask at the same moment may share one, and even the last that is free."""
        with self._ws.db.turns() as tx:
            queue = turns.queue(tx, caller.tenant)
        if queue.own >= self._bounds.of_one or queue.waiting >= self._bounds.waiting:
            raise Unavailable(
                "too_many_runs",
                f"{queue.own} runs of yours are waiting already; try again when some have ended",
            )
        return queue.next_turn

    def _known(self, caller: Caller, run: Run, hear: Callable[[Progress], None]) -> Ticket:
        """The ticket of a run that was asked for before, here or in another process."""
        if run.state not in UNDER_WAY:
            ticket = Ticket(caller, run)
            ticket.ended.set()
            return ticket
        return self._asked.setdefault(run.id, Ticket(caller, run, hear))

    def _at(self, run: UUID) -> list[Attempt]:
        with self._change:
            return [attempt for attempt in self._attempts if attempt.run.id == run]

    # -- taking -------------------------------------------------------------------------------------------------------

    def _take_turns(self) -> None:
        """Look whose turn it is, whenever there is a hand free: when this process was asked, and now and then."""
        while self._has_room():
            taken, pause = None, _LONG_LOOK
            with _logged("the queue of runs cannot be looked at"):
                taken, pause = self._first_taken(), _LOOK
            if taken:
                self._hand(taken)
            with self._change:
                self._looking = False
                self._change.notify_all()
                if not taken and not self._look_again and not self._closed:
                    self._change.wait(pause)

    def _has_room(self) -> bool:
        """Wait for it. False: there is nothing to be taken any more."""
        with self._change:
            self._change.wait_for(lambda: self._closed or len(self._attempts) < self._bounds.at_once)
            self._looking, self._look_again = not self._closed, False
            return self._looking

    def _first_taken(self) -> Attempt | None:
        with self._ws.db.turns() as tx:
            due = turns.due(tx, _REACH)
        for tenant, run in due:
            with _logged(f"run {run} cannot be taken"):  # which must not keep others from their turn
                if taken := self._taken(tenant, run):
                    return taken
        return None

    def _taken(self, tenant: UUID, run: UUID) -> Attempt | None:
        with self._ws.db.write(_taker(tenant)) as tx:
            taken = runs.take(tx, run, self._holder, until=tx.now + SILENT)
        if taken is None:
            return None
        ticket = self._asked.get(run)
        return Attempt(taken.caller, taken.run, taken.number, ticket.hear if ticket else lambda _: None)

    def _hand(self, attempt: Attempt) -> None:
        """Give a run to a thread: one that is idle, or a new one; else to the first that will be."""
        with self._change:
            attempt.stop = self._stop
            self._attempts.append(attempt)
            self._unbegun.append(attempt)
            if len(self._unbegun) > self._idle and self._hands < self._bounds.at_once:
                self._hands += 1
                self._employ("run", self._work)
            self._change.notify_all()

    def _employ(self, name: str, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, name=f"penstock {name}", daemon=True))
        self._threads[-1].start()

    # -- working ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while attempt := self._next():
            begun, over = time.monotonic(), False
            facts: dict[str, Any] = {
                "run": str(attempt.run.id),
                "tenant": str(attempt.caller.tenant),
                "try": attempt.number,
            }
            _log.info("a run begins", extra={"facts": facts})
            try:
                over = self._begun(attempt) and attempts.carry_out(self._ws, attempt)
            except Exception:  # the catalog cannot be reached: the run falls silent, and that will be seen
                _log.warning("run %s could not be recorded", attempt.run.id, exc_info=True)
            seconds = time.monotonic() - begun
            facts["seconds"] = round(seconds, 3)
            if over:
                _log.info("a run ended", extra={"facts": {**facts, "state": attempts.ended_as(attempt.error).value}})
                self._end(attempt, seconds)
            else:
                _log.info("a run was let go", extra={"facts": facts})
            with self._change:
                self._attempts.remove(attempt)
                self._change.notify_all()

    def _next(self) -> Attempt | None:
        with self._change:
            self._idle += 1
            self._change.wait_for(lambda: self._unbegun or (self._closed and not self._looking))
            self._idle -= 1
            return self._unbegun.popleft() if self._unbegun else None

    def _begun(self, attempt: Attempt) -> bool:
        """Is it under way? One that was taken is."""
        if attempt.run.state is State.RUNNING:
            return True
        with self._ws.db.write(attempt.caller) as tx:
            return runs.start(tx, attempt.run.id, self._holder)

    def _end(self, attempt: Attempt, seconds: float) -> None:
        """Before it is forgotten: who waits takes a run that is not here for one of another process."""
        self._tell(attempts.ended_as(attempt.error), seconds)
        if ticket := self._asked.get(attempt.run.id):
            ticket.error = attempt.error
            ticket.ended.set()

    def _tell(self, state: State, seconds: float) -> None:
        for hear in self._hearers:
            hear(state, seconds)

    def _pulse(self) -> None:
        """Show signs of life, and hear who was cancelled elsewhere or declared dead."""
        while not self._over():
            with self._change:
                under_way = list(self._attempts)
            for tenant in {attempt.caller.tenant for attempt in under_way}:
                mine = [attempt for attempt in under_way if attempt.caller.tenant == tenant]
                try:
                    with self._ws.db.write(mine[0].caller) as tx:
                        tries = {(attempt.run.id, attempt.number) for attempt in mine}
                        alive = runs.beat(tx, tries, until=tx.now + SILENT)
                except PenstockError:
                    continue
                for attempt in mine:
                    match alive.get((attempt.run.id, attempt.number)):
                        case None:
                            attempt.stop = attempt.stop or attempts.over()
                        case True:
                            attempt.stop = attempt.stop or attempts.cancelled()

    def _over(self) -> bool:
        """A pulse later: is there nothing more to show signs of life for?"""
        with self._change:
            return self._change.wait_for(
                lambda: self._closed and not self._attempts and not self._looking, timeout=_PULSE
            )


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except PenstockError as trouble:
        _log.warning("%s: %s", what, trouble)
    except Exception:
        _log.exception("%s", what)


def _taker(tenant: UUID) -> Caller:
    """The one in whose name a run is taken. It is carried out in the name of who asked."""
    return Caller(tenant, person("penstock", "queue"), "the queue of runs", Role.DEVELOPER)
