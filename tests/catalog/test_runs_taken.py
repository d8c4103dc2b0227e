"""Runs that any process may take: in turns, one process at a time, and again when that one falls silent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from catalog.test_runs import (CANCELLED, DEFINITION, DONE, FAILED, PROGRESS, READ, REQUEST, RESULT, now, writing)
from penstock.catalog import run_queue as turns
from penstock.catalog import runs
from penstock.catalog.database import Tx
from penstock.catalog.runs import TRIES, Taken
from penstock.core.caller import Caller, Role
from penstock.core.pipeline.run import Run, State
from penstock.lake import Lake

SILENT = timedelta(seconds=30)


def queued(lake: Lake, **members: Any) -> Run:
    with lake.workspace.db.turns() as tx:
        turn = turns.queue(tx, lake.caller.tenant).next_turn
    with writing(lake) as tx:
        run = Run(uuid4(), None, "monthly", DEFINITION, State.QUEUED, tx.now, tx.caller.user, tx.caller.name)
        run = replace(run, **members)
        return runs.insert(tx, run, role=Role.DEVELOPER, request=REQUEST, holder="host process 1", turn=turn)


def due(lake: Lake) -> list[UUID]:
    with lake.workspace.db.turns() as tx:
        return [run for _, run in turns.due(tx, 100)]


def took(lake: Lake, run: Run, holder: str = "host process 2") -> Taken | None:
    with writing(lake) as tx:
        return runs.take(tx, run.id, holder, until=tx.now + SILENT)


def taken(lake: Lake, run: Run) -> Taken:
    found = took(lake, run)
    assert found is not None
    return found


@contextmanager
def later(lake: Lake, by: timedelta = SILENT + timedelta(seconds=1)) -> Iterator[None]:
    clock = lake.workspace.db.clock
    lake.workspace.db.clock = lambda: clock() + by
    try:
        yield
    finally:
        lake.workspace.db.clock = clock


# -- taking -----------------------------------------------------------------------------------------------------------


def test_a_run_is_taken_once_and_in_the_name_of_who_asked(lake: Lake) -> None:
    asker = Caller(lake.caller.tenant, uuid4(), "ada", Role.ADMIN)
    run = queued(lake, created_by=asker.user, author=asker.name)
    assert now(lake, run) == run
    found = taken(lake, run)
    assert found.caller == replace(asker, role=Role.DEVELOPER)
    assert (found.run.state, found.number) == (State.RUNNING, 1)
    assert now(lake, run) == found.run
    assert took(lake, run) is None
    assert due(lake) == []


def test_nobody_else_takes_a_run_that_is_one_processs_own(lake: Lake) -> None:
    with writing(lake) as tx:
        run = Run(uuid4(), None, "monthly", DEFINITION, State.QUEUED, tx.now, tx.caller.user, tx.caller.name)
        runs.insert(tx, run, role=Role.DEVELOPER, request=REQUEST, holder="host process 1", turn=None)
    assert due(lake) == []
    assert took(lake, run) is None
    with writing(lake) as tx:
        assert runs.start(tx, run.id, "host process 1")
        assert not runs.give_back(tx, run.id, 1)


def test_a_turn_is_seen_by_all_and_taken_by_its_tenant_only(lake: Lake, stranger: Lake) -> None:
    mine, theirs = queued(lake), queued(stranger)
    assert set(due(lake)) == set(due(stranger)) == {mine.id, theirs.id}
    assert took(stranger, mine) is None
    with writing(stranger) as tx:
        assert not turns.hold(tx, mine.id)
        turns.keep(tx, mine.id, tx.now + SILENT)
        turns.remove(tx, mine.id)
    assert set(due(lake)) == {mine.id, theirs.id}
    assert taken(lake, mine).run.state is State.RUNNING


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_whoever_is_just_taking_a_run_holds_nobody_up(lake: Lake) -> None:
    first, second = queued(lake), queued(lake)
    with writing(lake) as tx:
        assert runs.take(tx, first.id, "host process 1", until=tx.now + SILENT)
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
def test_tenants_take_turns(lake: Lake, case: str) -> None:
    asked, order = TURNS[case]
    tenants = {letter: _of_tenant(lake) for letter in "abc"}
    names, came = dict[UUID, str](), list[str]()

    def take_next() -> None:
        with lake.workspace.db.turns() as tx:
            ((tenant, run),) = turns.due(tx, 1)
        (its,) = (each for each in tenants.values() if each.caller.tenant == tenant)
        with writing(its) as tx:
            assert runs.take(tx, run, "host process 2", until=tx.now + SILENT)
        came.append(names[run])

    for word in asked.split():
        if word == ">":
            take_next()
        else:
            names[queued(tenants[word[0]]).id] = word
    while due(lake):
        take_next()
    assert " ".join(came) == order


def _of_tenant(lake: Lake) -> Lake:
    return Lake(lake.workspace, Caller(uuid4(), uuid4(), "somebody", Role.ADMIN), lake.home)


def test_the_queue_counts_what_waits_and_not_what_is_under_way(lake: Lake, stranger: Lake) -> None:
    waiting = [queued(lake) for _ in range(3)]
    queued(stranger)
    taken(lake, waiting[0])
    with writing(lake) as tx:
        runs.ask_to_cancel(tx, waiting[1].id)
    with lake.workspace.db.turns() as tx:
        queue = turns.queue(tx, lake.caller.tenant)
        assert (queue.waiting, queue.own, turns.queue(tx).waiting) == (2, 1, 2)
    with later(lake), lake.workspace.db.turns() as tx:
        assert turns.queue(tx).waiting == 3, "whose process fell silent waits again"


# -- over -------------------------------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[Tx, UUID], Any]] = {
    "done": lambda tx, run: runs.finish(tx, run, 1, DONE),
    "failed": lambda tx, run: runs.finish(tx, run, 1, FAILED),
    "cancelled": lambda tx, run: runs.finish(tx, run, 1, CANCELLED),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_is_over_has_no_turn(lake: Lake, end: str) -> None:
    run = queued(lake)
    taken(lake, run)
    with writing(lake) as tx:
        assert ENDS[end](tx, run.id)
    with later(lake):
        assert due(lake) == []
        assert took(lake, run) is None


def test_a_cancelled_run_leaves_the_queue(lake: Lake) -> None:
    run = queued(lake)
    with writing(lake) as tx:
        assert runs.ask_to_cancel(tx, run.id).state is State.CANCELLED
    assert due(lake) == []
    assert took(lake, run) is None


def test_an_end_that_is_rolled_back_leaves_the_turn(lake: Lake) -> None:
    run = queued(lake)
    taken(lake, run)
    with pytest.raises(ZeroDivisionError), writing(lake) as tx:
        assert runs.finish(tx, run.id, 1, DONE)
        raise ZeroDivisionError
    with later(lake):
        assert due(lake) == [run.id]


# -- given back, and fallen silent ------------------------------------------------------------------------------------


def test_what_is_given_back_is_as_it_was_before_and_at_its_old_place(lake: Lake) -> None:
    first, second = queued(lake), queued(lake)
    taken(lake, first)
    with writing(lake) as tx:
        runs.show_progress(tx, first.id, 1, PROGRESS, [RESULT], [READ])
        assert not runs.give_back(tx, first.id, 2)
        assert runs.give_back(tx, first.id, 1)
        assert not runs.give_back(tx, first.id, 1)
    assert now(lake, first) == first
    assert due(lake) == [first.id, second.id]
    assert taken(lake, first).number == 2


def test_a_run_that_shows_signs_of_life_is_not_due(lake: Lake) -> None:
    run = queued(lake)
    taken(lake, run)
    with later(lake, SILENT / 2), writing(lake) as tx:
        assert runs.beat(tx, [(run.id, 1)], until=tx.now + SILENT) == {(run.id, 1): False}
    with later(lake):
        assert due(lake) == []
    with later(lake, SILENT * 2):
        assert due(lake) == [run.id]


LOSES: dict[str, Callable[[Lake, Run], Any]] = {
    "somebody of the tenant looks": lambda lake, _: _bury(lake),
    "another process takes it": took,
}


def _bury(lake: Lake) -> None:
    with writing(lake) as tx:
        assert runs.bury(tx, tx.now - SILENT) == 1
        assert runs.bury(tx, tx.now - SILENT) == 0


@pytest.mark.parametrize("loses", LOSES)
def test_a_try_that_fell_silent_can_do_no_more_and_the_next_can(lake: Lake, loses: str) -> None:
    run = queued(lake)
    taken(lake, run)
    with writing(lake) as tx:
        runs.show_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
    with later(lake):
        LOSES[loses](lake, run)
        if now(lake, run).state is State.QUEUED:
            assert now(lake, run) == run, "back in the queue"
            assert taken(lake, run).number == 2
        again = now(lake, run)
        assert (again.state, again.progress, again.results, again.reads) == (State.RUNNING, None, (), ())
        with writing(lake) as tx:
            assert runs.beat(tx, [(run.id, 1)], until=tx.now + SILENT) == {}
            runs.show_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
            assert not runs.finish(tx, run.id, 1, DONE)
            assert not runs.finish(tx, run.id, 1, FAILED)
            assert not runs.give_back(tx, run.id, 1)
        assert now(lake, run) == again
        with writing(lake) as tx:
            assert runs.beat(tx, [(run.id, 2)], until=tx.now + SILENT) == {(run.id, 2): False}
            assert runs.finish(tx, run.id, 2, DONE)


@pytest.mark.parametrize("loses", LOSES)
def test_after_three_tries_a_run_is_lost(lake: Lake, loses: str) -> None:
    run = queued(lake)
    for number in range(1, TRIES + 1):
        assert taken(lake, run).number == number
        if number < TRIES:
            with writing(lake) as tx:
                assert runs.bury(tx, tx.now + timedelta(seconds=1)) == 1
    with later(lake):
        LOSES[loses](lake, run)
        lost = now(lake, run)
        assert lost.error is not None
        assert (lost.state, lost.error["error"]["code"], lost.error_kind) == (State.FAILED, "RUN_LOST", "Unavailable")
        assert due(lake) == []


@pytest.mark.parametrize("loses", LOSES)
def test_a_run_that_was_asked_to_stop_and_fell_silent_is_cancelled(lake: Lake, loses: str) -> None:
    run = queued(lake)
    taken(lake, run)
    with writing(lake) as tx:
        assert runs.ask_to_cancel(tx, run.id).cancelling
    with later(lake):
        LOSES[loses](lake, run)
        assert now(lake, run).state is State.CANCELLED
        assert due(lake) == []


def test_what_waits_is_not_silent_however_long_it_takes(lake: Lake) -> None:
    run = queued(lake)
    with later(lake, timedelta(days=30)):
        with writing(lake) as tx:
            assert not runs.silent(tx, tx.now)
            assert runs.bury(tx, tx.now) == 0
        assert taken(lake, run).number == 1
