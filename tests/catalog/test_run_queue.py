"""Runs that any process may take: in turns, one process at a time, and again when that one falls silent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from catalog.test_runs import CANCELLED, DEFINITION, DONE, FAILED, PROGRESS, READ, REQUEST, RESULT, now, writing
from penstock.catalog import run_queue, runs
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.runs import MAX_ATTEMPTS, ClaimedRun
from penstock.core.caller import Caller, Role
from penstock.core.pipeline.run import Run, RunState
from penstock.lake import Lake

SILENT = timedelta(seconds=30)


def queued(lake: Lake, **members: Any) -> Run:
    with lake._workspace.db.read_run_queue() as tx:
        turn = run_queue.load_status(tx, lake.caller.tenant).next_round
    with writing(lake) as tx:
        run = Run(uuid4(), None, "monthly", DEFINITION, RunState.QUEUED, tx.now, tx.caller.user, tx.caller.name)
        run = replace(run, **members)
        return runs.insert(tx, run, role=Role.DEVELOPER, request_digest=REQUEST, worker="host process 1", round_no=turn)


def due(lake: Lake) -> list[UUID]:
    with lake._workspace.db.read_run_queue() as tx:
        return [run for _, run in run_queue.next_entries(tx, 100)]


def took(lake: Lake, run: Run, holder: str = "host process 2") -> ClaimedRun | None:
    with writing(lake) as tx:
        return runs.claim(tx, run.id, holder, claimed_until=tx.now + SILENT)


def taken(lake: Lake, run: Run) -> ClaimedRun:
    found = took(lake, run)
    assert found is not None
    return found


@contextmanager
def later(lake: Lake, by: timedelta = SILENT + timedelta(seconds=1)) -> Iterator[None]:
    clock = lake._workspace.db.clock
    lake._workspace.db.clock = lambda: clock() + by
    try:
        yield
    finally:
        lake._workspace.db.clock = clock


# -- taking -----------------------------------------------------------------------------------------------------------


def test_claim_succeeds_once_and_executes_as_the_author(lake: Lake) -> None:
    asker = Caller(lake.caller.tenant, uuid4(), "ada", Role.ADMIN)
    run = queued(lake, created_by=asker.user, author=asker.name)
    assert now(lake, run) == run
    found = taken(lake, run)
    assert found.caller == replace(asker, role=Role.DEVELOPER)
    assert (found.run.state, found.number) == (RunState.RUNNING, 1)
    assert now(lake, run) == found.run
    assert took(lake, run) is None
    assert due(lake) == []


def test_run_without_a_queue_entry_cannot_be_claimed(lake: Lake) -> None:
    with writing(lake) as tx:
        run = Run(uuid4(), None, "monthly", DEFINITION, RunState.QUEUED, tx.now, tx.caller.user, tx.caller.name)
        runs.insert(tx, run, role=Role.DEVELOPER, request_digest=REQUEST, worker="host process 1", round_no=None)
    assert due(lake) == []
    assert took(lake, run) is None
    with writing(lake) as tx:
        assert runs.start(tx, run.id, "host process 1")
        assert not runs.requeue(tx, run.id, 1)


def test_queue_entry_is_visible_to_all_and_claimable_as_its_tenant_only(lake: Lake, other_tenant: Lake) -> None:
    mine, theirs = queued(lake), queued(other_tenant)
    assert set(due(lake)) == set(due(other_tenant)) == {mine.id, theirs.id}
    assert took(other_tenant, mine) is None
    with writing(other_tenant) as tx:
        assert not run_queue.lock(tx, mine.id)
        run_queue.extend_claim(tx, mine.id, tx.now + SILENT)
        run_queue.remove(tx, mine.id)
    assert set(due(lake)) == {mine.id, theirs.id}
    assert taken(lake, mine).run.state is RunState.RUNNING


@pytest.mark.parametrize("workspace", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_claim_does_not_wait_for_a_concurrent_claim(lake: Lake) -> None:
    first, second = queued(lake), queued(lake)
    with writing(lake) as tx:
        assert runs.claim(tx, first.id, "host process 1", claimed_until=tx.now + SILENT)
        assert due(lake) == [first.id, second.id], "not committed"
        assert took(lake, first) is None
        assert took(lake, second)


# -- turns ------------------------------------------------------------------------------------------------------------

# Who asks, in order, and in which order they have their turn. ">" takes one on the way.
TURNS = {
    "one tenant's runs come as they were asked for": ("a1 a2 a3", "a1 a2 a3"),
    "tenants take turns": ("a1 a2 a3 b1", "a1 b1 a2 a3"),
    "three tenants take turns": ("a1 a2 a3 b1 b2 c1", "a1 b1 c1 a2 b2 a3"),
    "who comes late does not come before who waits": ("a1 a2 a3 > > b1 b2", "a1 a2 a3 b1 b2"),
    "who comes late has every second turn": ("a1 a2 a3 a4 a5 > > b1 b2 b3", "a1 a2 a3 b1 a4 b2 a5 b3"),
    "who asks again and again does not keep the others waiting": (
        "a1 a2 a3 a4 b1 > > b2 > > b3 > > b4 >", "a1 b1 a2 b2 a3 b3 a4 b4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TURNS)
def test_next_entries_alternate_between_tenants(lake: Lake, case: str) -> None:
    requested, order = TURNS[case]
    tenants = {letter: _of_tenant(lake) for letter in "abc"}
    names, came = dict[UUID, str](), list[str]()

    def take_next() -> None:
        with lake._workspace.db.read_run_queue() as tx:
            ((tenant, run),) = run_queue.next_entries(tx, 1)
        (its,) = (each for each in tenants.values() if each.caller.tenant == tenant)
        with writing(its) as tx:
            assert runs.claim(tx, run, "host process 2", claimed_until=tx.now + SILENT)
        came.append(names[run])

    for word in requested.split():
        if word == ">":
            take_next()
        else:
            names[queued(tenants[word[0]]).id] = word
    while due(lake):
        take_next()
    assert " ".join(came) == order


def _of_tenant(lake: Lake) -> Lake:
    return Lake(lake._workspace, Caller(uuid4(), uuid4(), "other user", Role.ADMIN), lake._folder)


def test_load_status_counts_waiting_runs_only(lake: Lake, other_tenant: Lake) -> None:
    waiting = [queued(lake) for _ in range(3)]
    queued(other_tenant)
    taken(lake, waiting[0])
    with writing(lake) as tx:
        runs.request_cancel(tx, waiting[1].id)
    with lake._workspace.db.read_run_queue() as tx:
        queue = run_queue.load_status(tx, lake.caller.tenant)
        assert (queue.waiting, queue.own, run_queue.load_status(tx).waiting) == (2, 1, 2)
    with later(lake), lake._workspace.db.read_run_queue() as tx:
        assert run_queue.load_status(tx).waiting == 3, "whose process fell silent waits again"


# -- over -------------------------------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[CatalogTransaction, UUID], Any]] = {
    "done": lambda tx, run: runs.finish(tx, run, 1, DONE),
    "failed": lambda tx, run: runs.finish(tx, run, 1, FAILED),
    "cancelled": lambda tx, run: runs.finish(tx, run, 1, CANCELLED),
}


@pytest.mark.parametrize("end", ENDS)
def test_finished_run_has_no_queue_entry(lake: Lake, end: str) -> None:
    run = queued(lake)
    taken(lake, run)
    with writing(lake) as tx:
        assert ENDS[end](tx, run.id)
    with later(lake):
        assert due(lake) == []
        assert took(lake, run) is None


def test_cancelled_run_has_no_queue_entry(lake: Lake) -> None:
    run = queued(lake)
    with writing(lake) as tx:
        assert runs.request_cancel(tx, run.id).state is RunState.CANCELLED
    assert due(lake) == []
    assert took(lake, run) is None


def test_finish_that_is_rolled_back_keeps_the_queue_entry(lake: Lake) -> None:
    run = queued(lake)
    taken(lake, run)
    with pytest.raises(ZeroDivisionError), writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, DONE)
        raise ZeroDivisionError
    with later(lake):
        assert due(lake) == [run.id]


# -- given back, and fallen silent ------------------------------------------------------------------------------------


def test_requeued_run_is_reset_and_keeps_its_queue_position(lake: Lake) -> None:
    first, second = queued(lake), queued(lake)
    taken(lake, first)
    with writing(lake) as tx:
        runs.update_progress(tx, first.id, 1, PROGRESS, [RESULT], [READ])
        assert not runs.requeue(tx, first.id, 2)
        assert runs.requeue(tx, first.id, 1)
        assert not runs.requeue(tx, first.id, 1)
    assert now(lake, first) == first
    assert due(lake) == [first.id, second.id]
    assert taken(lake, first).number == 2


def test_run_with_heartbeats_is_not_claimable(lake: Lake) -> None:
    run = queued(lake)
    taken(lake, run)
    with later(lake, SILENT / 2), writing(lake) as tx:
        assert runs.heartbeat(tx, [(run.id, 1)], claimed_until=tx.now + SILENT) == {(run.id, 1): False}
    with later(lake):
        assert due(lake) == []
    with later(lake, SILENT * 2):
        assert due(lake) == [run.id]


LOSES: dict[str, Callable[[Lake, Run], Any]] = {
    "the tenant expires stale runs": lambda lake, _: _bury(lake),
    "another process takes it": took,
}


def _bury(lake: Lake) -> None:
    with writing(lake) as tx:
        assert runs.expire_stale_runs(tx, tx.now - SILENT) == 1
        assert runs.expire_stale_runs(tx, tx.now - SILENT) == 0


@pytest.mark.parametrize("loses", LOSES)
def test_stale_attempt_is_rejected_and_the_next_attempt_finishes(lake: Lake, loses: str) -> None:
    run = queued(lake)
    taken(lake, run)
    with writing(lake) as tx:
        runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
    with later(lake):
        LOSES[loses](lake, run)
        if now(lake, run).state is RunState.QUEUED:
            assert now(lake, run) == run, "back in the queue"
            assert taken(lake, run).number == 2
        again = now(lake, run)
        assert (again.state, again.progress, again.results, again.reads) == (RunState.RUNNING, None, (), ())
        with writing(lake) as tx:
            assert runs.heartbeat(tx, [(run.id, 1)], claimed_until=tx.now + SILENT) == {}
            runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
            assert not runs.finish(tx, run.id, 1, DONE)
            assert not runs.finish(tx, run.id, 1, FAILED)
            assert not runs.requeue(tx, run.id, 1)
        assert now(lake, run) == again
        with writing(lake) as tx:
            assert runs.heartbeat(tx, [(run.id, 2)], claimed_until=tx.now + SILENT) == {(run.id, 2): False}
            assert runs.finish(tx, run.id, 2, DONE)


@pytest.mark.parametrize("loses", LOSES)
def test_run_fails_as_lost_after_max_attempts(lake: Lake, loses: str) -> None:
    run = queued(lake)
    for number in range(1, MAX_ATTEMPTS + 1):
        assert taken(lake, run).number == number
        if number < MAX_ATTEMPTS:
            with writing(lake) as tx:
                assert runs.expire_stale_runs(tx, tx.now + timedelta(seconds=1)) == 1
    with later(lake):
        LOSES[loses](lake, run)
        lost = now(lake, run)
        assert lost.error is not None
        assert (lost.state, lost.error["error"]["code"], lost.error_kind) == (
            RunState.FAILED,
            "RUN_LOST",
            "Unavailable",
        )
        assert due(lake) == []


@pytest.mark.parametrize("loses", LOSES)
def test_stale_run_with_a_cancel_request_is_cancelled(lake: Lake, loses: str) -> None:
    run = queued(lake)
    taken(lake, run)
    with writing(lake) as tx:
        assert runs.request_cancel(tx, run.id).cancelling
    with later(lake):
        LOSES[loses](lake, run)
        assert now(lake, run).state is RunState.CANCELLED
        assert due(lake) == []


def test_queued_run_is_never_stale(lake: Lake) -> None:
    run = queued(lake)
    with later(lake, timedelta(days=30)):
        with writing(lake) as tx:
            assert not runs.has_stale_runs(tx, tx.now)
            assert runs.expire_stale_runs(tx, tx.now) == 0
        assert taken(lake, run).number == 1
