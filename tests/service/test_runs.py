"""Runs in a queue: tenants take turns, cancelled ones stop, and the record is true whatever becomes of the process."""

import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from operation_cases import twice
from penstock.core.pipeline import definition as pipelines
from penstock.core.caller import Caller, Role
from penstock.core.pipeline.run import Progress, Run, State
from penstock.errors import Conflict, NotFound, Unavailable
from penstock.lake import Dataset, Lake
from penstock.service.pipelines import run_worker as runs
from penstock.service.pipelines.run_worker import Bounds, Runner, Ticket
from workspaces import Place

pytestmark = pytest.mark.usefixtures("spark")


class Gate:
    """Runs wait here, in the order they come; progress is told on the way."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.open, self.met = threading.Event(), threading.Event()

    def of(self, name: str) -> Callable[[Progress], None]:
        def hear(_: Progress) -> None:
            if name not in self.came:
                self.came.append(name)
            self.met.set()
            assert self.open.wait(60)

        return hear


def meant(ds: Dataset) -> pipelines.Pipeline:
    return pipelines.read(twice(ds))


def other_tenant(lake: Lake) -> Lake:
    return Lake(lake.workspace, Caller(uuid4(), uuid4(), "other", Role.ADMIN), lake.home)


def record(lake: Lake, ticket: Ticket) -> Run:
    return runs.show(lake.workspace, lake.caller, ticket.run.id)


@pytest.fixture
def runner(lake: Lake) -> Iterator[Runner]:
    it = Runner(lake.workspace, Bounds(at_once=1, waiting=4, of_one=3))
    yield it
    it.close()


HERE = pytest.mark.parametrize("here", [False, True], ids=["from the queue", "this process's own"])


def test_tenants_take_turns(lake: Lake, runner: Runner) -> None:
    other = other_tenant(lake)
    mine, theirs = (each.create("demo.rows", {"id": [1]}) for each in (lake, other))
    gate = Gate()
    tickets = [runner.submit(lake.caller, meant(mine), hear=gate.of("first"))]
    assert gate.met.wait(60)
    for name in ("second", "third"):
        tickets.append(runner.submit(lake.caller, meant(mine), hear=gate.of(name)))
    tickets.append(runner.submit(other.caller, meant(theirs), hear=gate.of("theirs")))
    assert [record(lake, ticket).state for ticket in tickets[:3]] == [State.RUNNING, State.QUEUED, State.QUEUED]
    gate.open.set()
    for ticket in tickets:
        assert runner.wait(ticket, 60)
        assert ticket.error is None
    assert gate.came == ["first", "second", "theirs", "third"]
    assert (mine.num_rows, theirs.num_rows) == (8, 2)


def test_nobody_fills_the_queue_and_nobody_fills_it_alone(lake: Lake, runner: Runner) -> None:
    other = other_tenant(lake)
    mine, theirs = (each.create("demo.rows", {"id": [1]}) for each in (lake, other))
    gate = Gate()
    tickets = [runner.submit(lake.caller, meant(mine), hear=gate.of("first"))]
    assert gate.met.wait(60)
    tickets += [runner.submit(lake.caller, meant(mine)) for _ in range(3)]
    with pytest.raises(Unavailable) as refusal:
        runner.submit(lake.caller, meant(mine))
    assert refusal.value.reason == "too_many_runs"
    tickets.append(runner.submit(other.caller, meant(theirs)))
    with pytest.raises(Unavailable):
        runner.submit(other.caller, meant(theirs))
    gate.open.set()
    for ticket in tickets:
        assert runner.wait(ticket, 120)
        assert ticket.error is None


@HERE
def test_a_cancelled_run_stops_and_writes_nothing_whether_it_waits_or_runs(
    lake: Lake, runner: Runner, here: bool
) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    gate = Gate()
    running = runner.submit(lake.caller, meant(ds), hear=gate.of("running"), here=here)
    assert gate.met.wait(60)
    waiting = runner.submit(lake.caller, meant(ds), here=here)
    assert runner.cancel(lake.caller, waiting.run.id).state is State.CANCELLED
    assert runner.cancel(lake.caller, running.run.id).cancelling
    gate.open.set()
    for ticket in (running, waiting):
        assert runner.wait(ticket, 60)
        assert isinstance(ticket.error, Conflict)
        assert record(lake, ticket).state is State.CANCELLED
    assert ds.version == 1
    assert runner.cancel(lake.caller, running.run.id).state is State.CANCELLED
    with pytest.raises(NotFound):
        runner.cancel(other_tenant(lake).caller, running.run.id)


def test_a_run_is_cancelled_through_the_catalog_by_another_process(lake: Lake, runner: Runner) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    begun, pause = threading.Event(), threading.Event()

    def until_told(_: Progress) -> None:
        begun.set()
        (attempt,) = runner._attempts
        while attempt.stop is None:
            pause.wait(0.05)

    ticket = runner.submit(lake.caller, meant(ds), hear=until_told)
    assert begun.wait(60)
    assert runs.cancel(lake.workspace, lake.caller, ticket.run.id).cancelling
    assert runner.wait(ticket, 60)
    assert record(lake, ticket).state is State.CANCELLED
    assert ds.version == 1


def test_a_run_of_this_process_alone_that_was_declared_dead_cannot_commit(lake: Lake, runner: Runner) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    gate = Gate()
    ticket = runner.submit(lake.caller, meant(ds), hear=gate.of("slow"), here=True)
    assert gate.met.wait(60)
    half_a_minute_later(lake)
    found = record(lake, ticket)
    assert (found.state, found.error["error"]["code"] if found.error else None) == (State.FAILED, "RUN_LOST")
    gate.open.set()
    assert runner.wait(ticket, 60)
    assert ticket.error is not None
    assert ds.version == 1
    assert record(lake, ticket).state is State.FAILED
    again = runner.submit(lake.caller, meant(ds))
    assert runner.wait(again, 60)
    assert ds.version == 2


def test_a_run_from_the_queue_that_was_declared_dead_is_done_again_and_committed_once(
    lake: Lake, runner: Runner
) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    gate = Gate()
    ticket = runner.submit(lake.caller, meant(ds), hear=gate.of("slow"))
    assert gate.met.wait(60)
    half_a_minute_later(lake)
    assert record(lake, ticket).state is State.QUEUED
    gate.open.set()
    assert runner.wait(ticket, 60)
    assert ticket.error is None
    assert (ds.version, ds.num_rows) == (2, 2)


def half_a_minute_later(lake: Lake) -> None:
    now = lake.workspace.db.clock
    lake.workspace.db.clock = lambda: now() + runs.SILENT + timedelta(seconds=5)


@HERE
def test_what_is_under_way_when_the_service_stops_is_given_back_or_recorded_as_stopped(lake: Lake, here: bool) -> None:
    ds = lake.create("demo.rows", {"id": [1]})
    runner = Runner(lake.workspace, Bounds(at_once=1))
    gate = Gate()
    first = runner.submit(lake.caller, meant(ds), hear=gate.of("first"), here=here)
    assert gate.met.wait(60)
    (attempt,) = runner._attempts
    second = runner.submit(lake.caller, meant(ds), here=here)
    closing = threading.Thread(target=runner.close)
    closing.start()
    while attempt.stop is None:
        closing.join(0.01)
    gate.open.set()
    closing.join(60)
    assert not closing.is_alive()
    for ticket in (first, second):
        found = record(lake, ticket)
        code = found.error["error"]["code"] if found.error else None
        assert (found.state, code) == ((State.FAILED, "SERVICE_STOPPED") if here else (State.QUEUED, None))
        assert runner.wait(ticket, 0) == here
    assert ds.version == 1
    with pytest.raises(Unavailable):
        runner.submit(lake.caller, meant(ds), here=here)


@pytest.mark.parametrize("step", ["stage.synced", "commit.added", "commit.sent"])
def test_a_killed_process_leaves_a_run_that_can_be_run_again(embedded: Place, step: str) -> None:
    with embedded.open() as lake:
        ds = lake.create("demo.rows", {"id": [1]})
    (Path(embedded.folder) / "go").touch()
    process = embedded.spawn("run_killed", "demo.rows", step)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"the run never came to {step}"
    happened = step == "commit.sent"
    with embedded.open() as lake:
        now = lake.workspace.db.clock
        lake.workspace.db.clock = lambda: now() + runs.SILENT + timedelta(seconds=5)
        ds = lake.dataset("demo.rows")
        assert ds.version == (2 if happened else 1)
        again = lake.pipeline(twice(ds)).run(idempotency_key="once")
        assert (ds.version, ds.num_rows, again.state) == (2, 2, State.SUCCEEDED)
