"""One queue for all processes: a run outlives who was asked and who carries it out, and happens once.

The pipelines here link the files of one dataset into another, which is no work for Spark. A result that came about twice
would be at version 2.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from sqlalchemy import event, select

from penstock import failpoints as faults
from penstock.catalog import runs as records
from penstock.catalog.database import mine
from penstock.catalog.tables import pipeline_runs
from penstock.core.pipeline import definition as pipelines
from penstock.core.caller import Caller, Role
from penstock.core.pipeline.definition import Pipeline
from penstock.core.pipeline.run import Run, State
from penstock.errors import Conflict, Forbidden, NotFound, PenstockError, Unavailable, Unsupported
from penstock.lake import Lake
from penstock.service.datasets import read
from penstock.service.pipelines import run_worker as runs
from penstock.service.pipelines.run_worker import Bounds, Runner
from workspaces import Place


@pytest.fixture
def lake(place: Place) -> Iterator[Lake]:
    with place.open() as lake:
        lake.create("demo.rows", {"id": [1, 2, 3]})
        lake.create("demo.none", schema=pa.schema([("id", pa.int64())]))
        yield lake


@pytest.fixture
def front(lake: Lake) -> Runner:
    """A process that is asked, and leaves runs to others."""
    return Runner(lake.workspace, Bounds(waiting=4, of_one=3), takes=False)


@pytest.fixture
def hands(lake: Lake) -> Iterator[Runner]:
    """A process that carries runs out, once it is started."""
    runner = Runner(lake.workspace)
    yield runner
    runner.close()


def copied(lake: Lake, name: str = "demo.copy") -> dict[str, Any]:
    """A pipeline that makes a dataset of the rows of another."""
    schema, _, table = name.partition(".")
    append = {"type": "append", "parameters": {"source": {"dataset_id": str(lake.dataset("demo.none").id)}}}
    return {
        "name": "copied",
        "working": {"dataset_id": str(lake.dataset("demo.rows").id)},
        "operations": [append],
        "output": {"schema_name": schema, "table_name": table},
    }


def meant(lake: Lake, name: str = "demo.copy") -> Pipeline:
    return pipelines.read(copied(lake, name))


def record(lake: Lake, run: UUID) -> Run:
    return runs.show(lake.workspace, lake.caller, run)


def tries(lake: Lake, run: UUID) -> int:
    c = pipeline_runs.c
    with lake.workspace.db.read(lake.caller) as tx:
        row = tx.first(select(c.tries).where(mine(pipeline_runs), c.id == run))
    assert row is not None
    return int(row.tries)


def half_a_minute_later(lake: Lake) -> None:
    clock = lake.workspace.db.clock
    lake.workspace.db.clock = lambda: clock() + runs.SILENT + timedelta(seconds=5)


def killed(place: Place, script: str, *args: Any) -> list[str]:
    """What a process said that was killed by its own hand."""
    (Path(place.folder) / "go").touch()
    process = place.spawn(script, *args)
    out, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, err
    return out.splitlines()


# -- processes that end -----------------------------------------------------------------------------------------------


def test_a_run_that_waits_survives_the_process_that_was_asked(place: Place, lake: Lake, hands: Runner) -> None:
    run = UUID(killed(place, "ask_killed", copied(lake))[-1])
    half_a_minute_later(lake)
    assert record(lake, run).state is State.QUEUED
    hands.start()
    assert hands.wait(runs.Ticket(lake.caller, record(lake, run)), 60)
    assert (record(lake, run).state, lake.dataset("demo.copy").version) == (State.SUCCEEDED, 1)


# Where a worker is killed, and how often the run is begun until it is over.
STEPS = {"stage.begun": 2, "commit.begun": 2, "commit.added": 2, "commit.ready": 2, "commit.sent": 1}


@pytest.mark.parametrize("step", STEPS)
def test_a_run_whose_worker_was_killed_is_carried_out_once(
    place: Place, lake: Lake, front: Runner, hands: Runner, step: str
) -> None:
    ticket = front.submit(lake.caller, meant(lake))
    killed(place, "work_killed", step)
    happened = STEPS[step] == 1
    assert record(lake, ticket.run.id).state is (State.SUCCEEDED if happened else State.RUNNING)
    hands.start()
    assert front.wait(ticket, 0) == happened, "nobody takes it from a process that may be alive"
    half_a_minute_later(lake)
    assert front.wait(ticket, 60)
    assert ticket.error is None
    assert (lake.dataset("demo.copy").version, lake.dataset("demo.copy").num_rows) == (1, 3)
    assert tries(lake, ticket.run.id) == STEPS[step]
    assert hands.queued() == 0


def test_a_run_that_kills_every_worker_is_given_up(place: Place, lake: Lake, front: Runner) -> None:
    ticket = front.submit(lake.caller, meant(lake))
    for _ in range(3):
        killed(place, "work_killed", "stage.begun")
        with lake.workspace.db.write(lake.caller) as tx:
            assert records.bury(tx, tx.now + timedelta(seconds=1)) == 1
    assert front.wait(ticket, 60)
    assert isinstance(ticket.error, Unavailable)
    assert (ticket.error.reason, ticket.run.state) == ("run_lost", State.FAILED)
    assert front.queued() == 0


def test_several_workers_share_the_queue_and_no_run_happens_twice(place: Place, lake: Lake) -> None:
    asking = Runner(lake.workspace, takes=False)
    tickets = [asking.submit(lake.caller, meant(lake, f"demo.copy_{n}")) for n in range(12)]
    ended = place.race("work", [[], [], []])
    assert sum(ended) == 12, ended
    assert {record(lake, ticket.run.id).state for ticket in tickets} == {State.SUCCEEDED}
    assert {tries(lake, ticket.run.id) for ticket in tickets} == {1}
    assert {lake.dataset(f"demo.copy_{n}").version for n in range(12)} == {1}


def test_processes_that_are_declared_dead_all_the_time_commit_no_run_twice(
    place: Place, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "SILENT", timedelta(seconds=0.05))
    monkeypatch.setattr(runs, "_PULSE", 0.1)
    with place.open() as another:
        workers = [Runner(each.workspace) for each in (lake, another, lake)]
        tickets = [workers[0].submit(lake.caller, meant(lake, f"demo.copy_{n}")) for n in range(12)]
        for each in workers:
            each.start()
        for ticket in tickets:
            while not workers[1].wait(ticket, 0.05):  # which looks, and takes runs from the silent
                pass
        for each in workers:
            each.close()
    ends = [record(lake, ticket.run.id) for ticket in tickets]
    made = {f"demo.copy_{n}" for n, run in enumerate(ends) if run.state is State.SUCCEEDED}
    assert {run.error["error"]["code"] for run in ends if run.error} <= {"RUN_LOST"}
    assert {at.name: at.version for at in lake.datasets()} == dict.fromkeys({"demo.rows", "demo.none", *made}, 1)


def test_what_a_worker_gives_back_is_carried_out_by_another(lake: Lake, front: Runner, hands: Runner) -> None:
    ticket = front.submit(lake.caller, meant(lake))
    leaving, begun, go = Runner(lake.workspace), threading.Event(), threading.Event()

    def pause() -> None:
        begun.set()
        assert go.wait(60)

    with faults.armed("stage.begun", pause):
        leaving.start()
        assert begun.wait(60)
        (attempt,) = leaving._attempts
        closing = threading.Thread(target=leaving.close)
        closing.start()
        while attempt.stop is None:
            closing.join(0.01)
        go.set()
        closing.join()
    assert record(lake, ticket.run.id).state is State.QUEUED
    hands.start()
    assert front.wait(ticket, 60)
    assert (ticket.error, tries(lake, ticket.run.id), lake.dataset("demo.copy").version) == (None, 2, 1)


# -- what others carry out --------------------------------------------------------------------------------------------


def test_a_run_is_carried_out_in_the_name_of_who_asked(lake: Lake, front: Runner, hands: Runner) -> None:
    ada = Caller(lake.caller.tenant, uuid4(), "ada", Role.DEVELOPER)
    ticket = front.submit(ada, meant(lake))
    hands.start()
    assert front.wait(ticket, 60)
    (version,) = read.versions(lake.workspace, lake.caller, lake.dataset("demo.copy").id)
    assert version.author == "ada"
    with pytest.raises(Forbidden):
        front.submit(replace(ada, role=Role.VIEWER), meant(lake))


def _unknown(lake: Lake) -> dict[str, Any]:
    return {**copied(lake), "working": {"dataset_id": str(uuid4())}}


def _read_only(lake: Lake) -> dict[str, Any]:
    lake.create("demo.fixed", {"id": [1]}, read_only=True)
    return copied(lake, "demo.fixed")


REFUSALS: dict[str, tuple[Callable[[Lake], dict[str, Any]], type[PenstockError]]] = {
    "a dataset that nobody knows": (_unknown, NotFound),
    "a dataset that is read-only": (_read_only, Unsupported),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_who_asked_hears_the_same_refusal_whichever_process_it_came_from(
    lake: Lake, front: Runner, hands: Runner, refusal: str
) -> None:
    make, kind = REFUSALS[refusal]
    definition = pipelines.read(make(lake))
    ticket = front.submit(lake.caller, definition)
    hands.start()
    there = hands.submit(lake.caller, definition)
    for runner, each in ((front, ticket), (hands, there)):
        assert runner.wait(each, 60)
        assert type(each.error) is kind
    assert there.error is not None
    assert ticket.error is not None
    assert there.error.facts() == ticket.error.facts()


def test_a_run_that_waits_is_cancelled_by_any_process(lake: Lake, front: Runner, hands: Runner) -> None:
    ticket = front.submit(lake.caller, meant(lake))
    assert hands.cancel(lake.caller, ticket.run.id).state is State.CANCELLED
    hands.start()
    assert front.wait(ticket, 60)
    assert isinstance(ticket.error, Conflict)
    assert ticket.error.reason == "run_cancelled"
    assert [at.name for at in lake.datasets()] == ["demo.none", "demo.rows"]


def test_who_runs_it_here_takes_what_waits_under_the_same_key(lake: Lake, front: Runner) -> None:
    asked = front.submit(lake.caller, meant(lake), key="once")
    done = lake.pipeline(copied(lake)).run(idempotency_key="once")
    assert (done.id, done.state) == (asked.run.id, State.SUCCEEDED)
    assert front.wait(asked, 60)


# -- the queue --------------------------------------------------------------------------------------------------------


def test_the_queue_has_one_length_for_all_processes(place: Place, lake: Lake, front: Runner) -> None:
    stranger = Lake(lake.workspace, Caller(uuid4(), uuid4(), "other", Role.ADMIN), lake.home)
    with place.open() as another:
        beside = Runner(another.workspace, Bounds(waiting=4, of_one=3), takes=False)
        tickets = [each.submit(lake.caller, meant(lake)) for each in (front, beside, front)]
        for each in (front, beside):
            with pytest.raises(Unavailable, match="3 runs of yours") as refusal:
                each.submit(lake.caller, meant(lake))
            assert refusal.value.reason == "too_many_runs"
        beside.submit(stranger.caller, meant(lake))
        with pytest.raises(Unavailable, match="1 runs of yours"):
            front.submit(stranger.caller, meant(lake))
        beside.cancel(lake.caller, tickets[0].run.id)
        front.submit(stranger.caller, meant(lake))
        assert front.queued() == beside.queued() == 4


def test_who_leaves_runs_to_others_carries_none_out(lake: Lake, front: Runner) -> None:
    ticket = front.submit(lake.caller, meant(lake))
    front.start()
    assert not front.wait(ticket, 1.0)
    assert record(lake, ticket.run.id).state is State.QUEUED
    front.close()


def test_an_idle_process_looks_and_writes_nothing(lake: Lake, hands: Runner) -> None:
    said, looked = list[str](), threading.Event()

    def hear(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        said.append(statement)
        if sum("FROM run_turns" in each for each in said) == 3:
            looked.set()

    event.listen(lake.workspace.db.engine, "before_cursor_execute", hear)
    hands.start()
    assert looked.wait(60)
    event.remove(lake.workspace.db.engine, "before_cursor_execute", hear)
    assert {statement.split()[0] for statement in said} <= {"SELECT", "BEGIN"}
    assert "BEGIN IMMEDIATE" not in said
