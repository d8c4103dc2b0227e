"""Queue pipeline runs, and execute a limited number of them at once.

The run queue is in the catalog: any worker with a free thread claims the next run, and a queued run survives the process
that submitted it. A run ends in the transaction that commits its data, so that its record is always consistent with the
data. A worker that sends no heartbeats cannot commit its runs any more, and another worker claims them. A worker without
a working Spark claims no runs.
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

from penstock.catalog import run_queue
from penstock.catalog import runs as run_records
from penstock.core.caller import Caller, Role, user_id
from penstock.core.pipeline.definition import PipelineDefinition
from penstock.core.pipeline.run import ACTIVE_STATES, Run, RunState
from penstock.core.progress import ProgressCallback
from penstock.errors import PenstockError, Unavailable
from penstock.service.idempotency import check_idempotency_key
from penstock.service.pipelines import run_attempt, runs
from penstock.service.pipelines.run_attempt import RunAttempt
from penstock.service.pipelines.spark_readiness import SparkReadiness
from penstock.service.workspace import Workspace

_HEARTBEAT_SECONDS = 2.0  # between two heartbeats
_POLL_SECONDS = 0.5  # between two reads of the queue, or of a run of another process
_RECONNECT_SECONDS = 5.0  # between two reads of the queue while the catalog is unavailable
_MAX_CANDIDATES = 10  # queue entries to try, because other workers may claim them first
_log = logging.getLogger(__name__)


@dataclass
class RunHandle:
    """A submitted run. `ended` is set once the record has the final state; `error` is the error that ended the run."""

    caller: Caller
    run: Run
    on_progress: ProgressCallback = lambda _: None  # receives progress if this process executes the run
    ended: threading.Event = field(default_factory=threading.Event)
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of a worker and of the run queue."""

    max_concurrent: int = 2  # runs of this process, which share one Spark context
    max_queued: int = 100  # queued runs of all tenants
    max_queued_per_tenant: int = 25


class RunWorker:
    """Submit runs, and execute the local ones and, if enabled, runs from the queue."""

    def __init__(self, ws: Workspace, limits: RunLimits | None = None, *, takes_queued_runs: bool = True) -> None:
        self._ws, self._limits, self._takes_queued_runs = ws, limits or RunLimits(), takes_queued_runs
        self._spark = SparkReadiness(ws.cluster)
        self._holder = f"{socket.gethostname()} process {os.getpid()}"
        self._handles: WeakValueDictionary[UUID, RunHandle] = WeakValueDictionary()  # those that a caller still uses
        self._end_callbacks: list[Callable[[RunState, float], None]] = []
        self._change = threading.Condition()
        self._attempts: list[RunAttempt] = []  # claimed by this process and not ended
        self._pending: deque[RunAttempt] = deque()  # attempts without a thread
        self._claiming = self._claim_again = False
        self._threads: list[threading.Thread] = []
        self._run_threads = self._idle_threads = 0
        self._started = self._closed = False
        self._stop: PenstockError | None = None  # set when the worker stops

    def on_run_end(self, callback: Callable[[RunState, float], None]) -> None:
        """Register a callback that receives the final state and the duration in seconds of every run of this process."""
        self._end_callbacks.append(callback)

    def queued_count(self) -> int:
        """Return the number of queued runs of all tenants."""
        with self._ws.db.read_run_queue() as tx:
            return run_queue.load_status(tx).waiting

    def running_count(self) -> int:
        """Return the number of runs that this process executes."""
        with self._change:
            return len(self._attempts)

    def spark_error(self) -> PenstockError | None:
        """Return the error for which this process claims no runs, or None if it claims them or is not meant to."""
        return self._spark.check() if self.claims_runs else None

    @property
    def claims_runs(self) -> bool:
        """Return True if this process is started and executes queued runs."""
        return self._takes_queued_runs and self._started

    def is_idle(self) -> bool:
        """Return True if the queue is empty and this process executes no run."""
        if self.queued_count():
            return False
        with self._change:
            return not self._claiming and not self._attempts

    def start(self) -> None:
        """Start the threads that send heartbeats and claim queued runs."""
        with self._change:
            self._claim_again = True
            self._change.notify_all()
            if not self._started:
                self._started = True
                self._start_thread("heartbeat", self._heartbeat_loop)
                if self._takes_queued_runs:
                    self._start_thread("run queue", self._claim_loop)

    def submit(
        self,
        caller: Caller,
        pipeline: PipelineDefinition,
        *,
        pipeline_id: UUID | None = None,
        key: str | None = None,
        on_progress: ProgressCallback = lambda _: None,
        local: bool = False,
    ) -> RunHandle:
        """Submit a run.

        Args:
            caller: the author; needs the role developer
            pipeline: the definition
            pipeline_id: the stored pipeline that the definition comes from
            key: the idempotency key; if it names an active or successful run, that run is returned
            on_progress: receives progress if this process executes the run
            local: this process executes the run, without the queue; a queued run with the same key is claimed

        Raises:
            Unavailable: the queue is full, or the worker is closed
        """
        caller.require(Role.DEVELOPER)
        key = None if key is None else check_idempotency_key(key)
        definition = pipeline.as_json()
        request = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()
        runs.expire_stale(self._ws, caller)
        if self._closed:
            raise Unavailable("service_stopped.submit")
        round_no = None if local else self._next_round(caller)
        now = self._ws.db.clock()
        new = Run(uuid4(), pipeline_id, pipeline.name, definition, RunState.QUEUED, now, caller.user, caller.name, key)
        handle = self._handles[new.id] = RunHandle(caller, new, on_progress)
        with self._ws.db.write(caller) as tx:
            run = run_records.insert(
                tx, new, role=caller.role, request_digest=request, worker=self._holder, round_no=round_no
            )
        if run.id != new.id:
            handle = self._handle_of(caller, run, on_progress)
        if local and run.state is RunState.QUEUED:
            attempt = (
                RunAttempt(caller, run, 1, on_progress) if run.id == new.id else self._claim(caller.tenant, run.id)
            )
            if attempt:
                self._dispatch(attempt)
        if local or self._takes_queued_runs:
            self.start()
        return handle

    def wait(self, handle: RunHandle, seconds: float = math.inf) -> bool:
        """Wait until the run has ended or the time is over; return whether it has ended.

        The record of a run that another process executes is polled.
        """
        deadline = time.monotonic() + seconds
        while not handle.ended.wait(min(_POLL_SECONDS, max(deadline - time.monotonic(), 0))):
            if not self._attempts_of(handle.run.id) and not handle.ended.is_set():
                handle.run = runs.show(self._ws, handle.caller, handle.run.id)
                if handle.run.state not in ACTIVE_STATES:
                    handle.error = run_attempt.recorded_error(handle.run)
                    handle.ended.set()
            if time.monotonic() >= deadline:
                return handle.ended.is_set()
        return True

    def cancel(self, caller: Caller, run: UUID) -> Run:
        """Cancel a run like `runs.cancel`; a run of this process stops without waiting for the next heartbeat."""
        record, was_queued = runs.request_cancel(self._ws, caller, run)
        if was_queued:
            self._notify_end(RunState.CANCELLED, 0.0)
        if record.cancelling:
            for attempt in self._attempts_of(run):
                attempt.stop = run_attempt.cancelled_error()
        return record

    def close(self, grace_seconds: float = 0.0) -> None:
        """Claim no more runs, and wait for the running ones. After the grace period they are stopped and requeued."""
        with self._change:
            self._closed = True
            self._spark.close()
            self._change.notify_all()
            self._change.wait_for(lambda: not self._attempts and not self._claiming, grace_seconds)
            self._stop = run_attempt.stopped_error()
            if self._attempts:
                _log.warning("stopping active runs", extra={"facts": {"runs": len(self._attempts)}})
            for attempt in self._attempts:
                attempt.stop = attempt.stop or self._stop
        for thread in self._threads:
            thread.join()

    # -- submitting ---------------------------------------------------------------------------------------------------

    def _next_round(self, caller: Caller) -> int:
        """Return the queue round of a new run. Concurrent callers may get the same one, and may exceed the limit by a few.

        Raises:
            Unavailable: the queue is full for the tenant or for all tenants
        """
        with self._ws.db.read_run_queue() as tx:
            queue = run_queue.load_status(tx, caller.tenant)
        limits = self._limits
        if queue.own >= limits.max_queued_per_tenant:
            raise Unavailable("too_many_runs.tenant", {"queued": queue.own, "limit": limits.max_queued_per_tenant})
        if queue.waiting >= limits.max_queued:
            raise Unavailable("too_many_runs.queue", {"queued": queue.waiting, "limit": limits.max_queued})
        return queue.next_round

    def _handle_of(self, caller: Caller, run: Run, on_progress: ProgressCallback) -> RunHandle:
        """Return the handle of a run that was submitted before, by this or another process."""
        if run.state not in ACTIVE_STATES:
            handle = RunHandle(caller, run)
            handle.ended.set()
            return handle
        return self._handles.setdefault(run.id, RunHandle(caller, run, on_progress))

    def _attempts_of(self, run: UUID) -> list[RunAttempt]:
        with self._change:
            return [attempt for attempt in self._attempts if attempt.run.id == run]

    # -- claiming -----------------------------------------------------------------------------------------------------

    def _claim_loop(self) -> None:
        """Claim queued runs while a thread is free and Spark works: after each submission, and by polling."""
        while self._wait_for_free_thread():
            claimed, pause = None, _RECONNECT_SECONDS
            with _log_errors("cannot read the run queue"):
                claimed, pause = None if self._spark.check() else self._claim_next(), _POLL_SECONDS
            if claimed:
                self._dispatch(claimed)
            with self._change:
                self._claiming = False
                self._change.notify_all()
                if not claimed and not self._claim_again and not self._closed:
                    self._change.wait(pause)

    def _wait_for_free_thread(self) -> bool:
        """Wait until a run can be executed. Return False if the worker is closed."""
        with self._change:
            self._change.wait_for(lambda: self._closed or len(self._attempts) < self._limits.max_concurrent)
            self._claiming, self._claim_again = not self._closed, False
            return self._claiming

    def _claim_next(self) -> RunAttempt | None:
        with self._ws.db.read_run_queue() as tx:
            entries = run_queue.next_entries(tx, _MAX_CANDIDATES)
        for tenant, run in entries:
            with _log_errors(f"cannot claim run {run}"):  # the next entries are still tried
                if attempt := self._claim(tenant, run):
                    return attempt
        return None

    def _claim(self, tenant: UUID, run: UUID) -> RunAttempt | None:
        with self._ws.db.write(_queue_caller(tenant)) as tx:
            claim = run_records.claim(tx, run, self._holder, claimed_until=tx.now + runs.STALE_AFTER)
        if claim is None:
            return None
        handle = self._handles.get(run)
        on_progress = handle.on_progress if handle else lambda _: None
        return RunAttempt(claim.caller, claim.run, claim.number, on_progress, self._spark.report)

    def _dispatch(self, attempt: RunAttempt) -> None:
        """Give an attempt to an idle thread or to a new one, or else to the first thread that becomes idle."""
        with self._change:
            attempt.stop = self._stop
            self._attempts.append(attempt)
            self._pending.append(attempt)
            if len(self._pending) > self._idle_threads and self._run_threads < self._limits.max_concurrent:
                self._run_threads += 1
                self._start_thread("run", self._execute_loop)
            self._change.notify_all()

    def _start_thread(self, name: str, target: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=target, name=f"penstock {name}", daemon=True))
        self._threads[-1].start()

    # -- executing ----------------------------------------------------------------------------------------------------

    def _execute_loop(self) -> None:
        while attempt := self._next_attempt():
            begun, has_ended = time.monotonic(), False
            facts: dict[str, Any] = {
                "run": str(attempt.run.id),
                "tenant": str(attempt.caller.tenant),
                "try": attempt.number,
            }
            _log.info("run started", extra={"facts": facts})
            try:
                has_ended = self._start_attempt(attempt) and run_attempt.execute_attempt(self._ws, attempt)
            except Exception:  # the catalog is unavailable: without heartbeats the run is requeued or fails
                _log.warning("cannot record run %s", attempt.run.id, exc_info=True)
            seconds = time.monotonic() - begun
            facts["seconds"] = round(seconds, 3)
            if has_ended:
                _log.info(
                    "run ended", extra={"facts": {**facts, "state": run_attempt.final_state(attempt.error).value}}
                )
                self._end(attempt, seconds)
            else:
                _log.info("run left to another worker", extra={"facts": facts})
            with self._change:
                self._attempts.remove(attempt)
                self._change.notify_all()

    def _next_attempt(self) -> RunAttempt | None:
        with self._change:
            self._idle_threads += 1
            self._change.wait_for(lambda: self._pending or (self._closed and not self._claiming))
            self._idle_threads -= 1
            return self._pending.popleft() if self._pending else None

    def _start_attempt(self, attempt: RunAttempt) -> bool:
        """Mark a local run as running; a claimed run is marked already. Return False if the run was cancelled."""
        if attempt.run.state is RunState.RUNNING:
            return True
        with self._ws.db.write(attempt.caller) as tx:
            return run_records.start(tx, attempt.run.id, self._holder)

    def _end(self, attempt: RunAttempt, seconds: float) -> None:
        """Complete the handle, before the attempt is removed: `wait` polls a run without an attempt."""
        self._notify_end(run_attempt.final_state(attempt.error), seconds)
        if handle := self._handles.get(attempt.run.id):
            handle.error = attempt.error
            handle.ended.set()

    def _notify_end(self, state: RunState, seconds: float) -> None:
        for callback in self._end_callbacks:
            callback(state, seconds)

    def _heartbeat_loop(self) -> None:
        """Send heartbeats, and stop the attempts whose runs were cancelled or claimed by another process."""
        while not self._wait_for_heartbeat():
            with self._change:
                attempts = list(self._attempts)
            for tenant in {attempt.caller.tenant for attempt in attempts}:
                of_tenant = [attempt for attempt in attempts if attempt.caller.tenant == tenant]
                try:
                    with self._ws.db.write(of_tenant[0].caller) as tx:
                        keys = {(attempt.run.id, attempt.number) for attempt in of_tenant}
                        alive = run_records.heartbeat(tx, keys, claimed_until=tx.now + runs.STALE_AFTER)
                except PenstockError:
                    continue
                for attempt in of_tenant:
                    match alive.get((attempt.run.id, attempt.number)):
                        case None:
                            attempt.stop = attempt.stop or run_attempt.lost_run_error()
                        case True:
                            attempt.stop = attempt.stop or run_attempt.cancelled_error()

    def _wait_for_heartbeat(self) -> bool:
        """Wait until the next heartbeat is due. Return True if the worker is closed and has no attempts."""
        with self._change:
            return self._change.wait_for(
                lambda: self._closed and not self._attempts and not self._claiming, timeout=_HEARTBEAT_SECONDS
            )


@contextmanager
def _log_errors(message: str) -> Iterator[None]:
    """Log an error of the block instead of raising it."""
    try:
        yield
    except PenstockError as error:
        _log.warning("%s: %s", message, error)
    except Exception:
        _log.exception("%s", message)


def _queue_caller(tenant: UUID) -> Caller:
    """Return the system caller that claims queued runs. The run itself executes as its author."""
    return Caller(tenant, user_id("penstock", "queue"), "run queue", Role.DEVELOPER)
