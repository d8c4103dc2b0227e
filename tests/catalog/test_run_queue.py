"""The run queue: round-robin by tenant, claims, heartbeats and requeueing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from catalog.test_runs import (
    CANCELLED,
    DEFINITION,
    DONE,
    FAILED,
    PROGRESS,
    READ,
    REQUEST,
    RESULT,
    load_run,
    write_transaction,
)
from penstock.catalog import run_queue, runs
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.runs import MAX_ATTEMPTS, ClaimedRun
from penstock.core.caller import Caller, Role
from penstock.core.pipeline.run import Run, RunState
from penstock.lake import Lake

STALE_AFTER = timedelta(seconds=30)


def enqueue_run(lake: Lake, **members: Any) -> Run:
    with lake._workspace.db.read_run_queue() as tx:
        round_no = run_queue.load_status(tx, lake.caller.tenant).next_round
    with write_transaction(lake) as tx:
        run = Run(uuid4(), None, "monthly", DEFINITION, RunState.QUEUED, tx.now, tx.caller.user, tx.caller.name)
        run = replace(run, **members)
        return runs.insert(
            tx, run, role=Role.DEVELOPER, request_digest=REQUEST, worker="host process 1", round_no=round_no
        )


def claimable_runs(lake: Lake) -> list[UUID]:
    with lake._workspace.db.read_run_queue() as tx:
        return [run for _, run in run_queue.next_entries(tx, 100)]


def try_claim(lake: Lake, run: Run, holder: str = "host process 2") -> ClaimedRun | None:
    with write_transaction(lake) as tx:
        return runs.claim(tx, run.id, holder, claimed_until=tx.now + STALE_AFTER)


def claim(lake: Lake, run: Run) -> ClaimedRun:
    claimed = try_claim(lake, run)
    assert claimed is not None
    return claimed


@contextmanager
def advance_clock(lake: Lake, delay: timedelta = STALE_AFTER + timedelta(seconds=1)) -> Iterator[None]:
    clock = lake._workspace.db.clock
    lake._workspace.db.clock = lambda: clock() + delay
    try:
        yield
    finally:
        lake._workspace.db.clock = clock


# -- claim ------------------------------------------------------------------------------------------------------------


def test_claim_succeeds_once_and_executes_as_the_author(lake: Lake) -> None:
    author = Caller(lake.caller.tenant, uuid4(), "ada", Role.ADMIN)
    run = enqueue_run(lake, created_by=author.user, author=author.name)
    assert load_run(lake, run) == run
    claimed = claim(lake, run)
    assert claimed.caller == replace(author, role=Role.DEVELOPER)
    assert (claimed.run.state, claimed.number) == (RunState.RUNNING, 1)
    assert load_run(lake, run) == claimed.run
    assert try_claim(lake, run) is None
    assert claimable_runs(lake) == []


def test_run_without_a_queue_entry_cannot_be_claimed(lake: Lake) -> None:
    with write_transaction(lake) as tx:
        run = Run(uuid4(), None, "monthly", DEFINITION, RunState.QUEUED, tx.now, tx.caller.user, tx.caller.name)
        runs.insert(tx, run, role=Role.DEVELOPER, request_digest=REQUEST, worker="host process 1", round_no=None)
    assert claimable_runs(lake) == []
    assert try_claim(lake, run) is None
    with write_transaction(lake) as tx:
        assert runs.start(tx, run.id, "host process 1")
        assert not runs.requeue(tx, run.id, 1)


def test_queue_entry_is_visible_to_all_and_claimable_as_its_tenant_only(lake: Lake, other_tenant: Lake) -> None:
    own_run, other_run = enqueue_run(lake), enqueue_run(other_tenant)
    assert set(claimable_runs(lake)) == set(claimable_runs(other_tenant)) == {own_run.id, other_run.id}
    assert try_claim(other_tenant, own_run) is None
    with write_transaction(other_tenant) as tx:
        assert not run_queue.lock(tx, own_run.id)
        run_queue.extend_claim(tx, own_run.id, tx.now + STALE_AFTER)
        run_queue.remove(tx, own_run.id)
    assert set(claimable_runs(lake)) == {own_run.id, other_run.id}
    assert claim(lake, own_run).run.state is RunState.RUNNING


@pytest.mark.parametrize("workspace", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_claim_does_not_wait_for_a_concurrent_claim(lake: Lake) -> None:
    first, second = enqueue_run(lake), enqueue_run(lake)
    with write_transaction(lake) as tx:
        assert runs.claim(tx, first.id, "host process 1", claimed_until=tx.now + STALE_AFTER)
        assert claimable_runs(lake) == [first.id, second.id], "not committed"
        assert try_claim(lake, first) is None
        assert try_claim(lake, second)


# -- round-robin ------------------------------------------------------------------------------------------------------

# The requests in order, and the order of the claims. ">" claims a run between requests.
QUEUE_ORDERS = {
    "runs of one tenant in request order": ("a1 a2 a3", "a1 a2 a3"),
    "two tenants alternate": ("a1 a2 a3 b1", "a1 b1 a2 a3"),
    "three tenants alternate": ("a1 a2 a3 b1 b2 c1", "a1 b1 c1 a2 b2 a3"),
    "late tenant does not overtake waiting runs": ("a1 a2 a3 > > b1 b2", "a1 a2 a3 b1 b2"),
    "late tenant alternates with the first": ("a1 a2 a3 a4 a5 > > b1 b2 b3", "a1 a2 a3 b1 a4 b2 a5 b3"),
    "frequent requests do not delay other tenants": (
        "a1 a2 a3 a4 b1 > > b2 > > b3 > > b4 >", "a1 b1 a2 b2 a3 b3 a4 b4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", QUEUE_ORDERS)
def test_next_entries_alternate_between_tenants(lake: Lake, case: str) -> None:
    requested, order = QUEUE_ORDERS[case]
    tenants = {tenant_name: _of_tenant(lake) for tenant_name in "abc"}
    names, claimed = dict[UUID, str](), list[str]()

    def take_next() -> None:
        with lake._workspace.db.read_run_queue() as tx:
            ((tenant, run),) = run_queue.next_entries(tx, 1)
        (tenant_lake,) = (lake_ for lake_ in tenants.values() if lake_.caller.tenant == tenant)
        with write_transaction(tenant_lake) as tx:
            assert runs.claim(tx, run, "host process 2", claimed_until=tx.now + STALE_AFTER)
        claimed.append(names[run])

    for word in requested.split():
        if word == ">":
            take_next()
        else:
            names[enqueue_run(tenants[word[0]]).id] = word
    while claimable_runs(lake):
        take_next()
    assert " ".join(claimed) == order


def _of_tenant(lake: Lake) -> Lake:
    return Lake(lake._workspace, Caller(uuid4(), uuid4(), "other user", Role.ADMIN), lake._folder)


def test_load_status_counts_waiting_runs_only(lake: Lake, other_tenant: Lake) -> None:
    waiting = [enqueue_run(lake) for _ in range(3)]
    enqueue_run(other_tenant)
    claim(lake, waiting[0])
    with write_transaction(lake) as tx:
        runs.request_cancel(tx, waiting[1].id)
    with lake._workspace.db.read_run_queue() as tx:
        queue = run_queue.load_status(tx, lake.caller.tenant)
        assert (queue.waiting, queue.own, run_queue.load_status(tx).waiting) == (2, 1, 2)
    with advance_clock(lake), lake._workspace.db.read_run_queue() as tx:
        assert run_queue.load_status(tx).waiting == 3, "a stale run waits again"


# -- end --------------------------------------------------------------------------------------------------------------

ENDS: dict[str, Callable[[CatalogTransaction, UUID], Any]] = {
    "done": lambda tx, run: runs.finish(tx, run, 1, DONE),
    "failed": lambda tx, run: runs.finish(tx, run, 1, FAILED),
    "cancelled": lambda tx, run: runs.finish(tx, run, 1, CANCELLED),
}


@pytest.mark.parametrize("end", ENDS)
def test_finished_run_has_no_queue_entry(lake: Lake, end: str) -> None:
    run = enqueue_run(lake)
    claim(lake, run)
    with write_transaction(lake) as tx:
        assert ENDS[end](tx, run.id)
    with advance_clock(lake):
        assert claimable_runs(lake) == []
        assert try_claim(lake, run) is None


def test_cancelled_run_has_no_queue_entry(lake: Lake) -> None:
    run = enqueue_run(lake)
    with write_transaction(lake) as tx:
        assert runs.request_cancel(tx, run.id).state is RunState.CANCELLED
    assert claimable_runs(lake) == []
    assert try_claim(lake, run) is None


def test_finish_that_is_rolled_back_keeps_the_queue_entry(lake: Lake) -> None:
    run = enqueue_run(lake)
    claim(lake, run)
    with pytest.raises(ZeroDivisionError), write_transaction(lake) as tx:
        assert runs.finish(tx, run.id, 1, DONE)
        raise ZeroDivisionError
    with advance_clock(lake):
        assert claimable_runs(lake) == [run.id]


# -- requeue and expiry -----------------------------------------------------------------------------------------------


def test_requeued_run_is_reset_and_keeps_its_queue_position(lake: Lake) -> None:
    first, second = enqueue_run(lake), enqueue_run(lake)
    claim(lake, first)
    with write_transaction(lake) as tx:
        runs.update_progress(tx, first.id, 1, PROGRESS, [RESULT], [READ])
        assert not runs.requeue(tx, first.id, 2)
        assert runs.requeue(tx, first.id, 1)
        assert not runs.requeue(tx, first.id, 1)
    assert load_run(lake, first) == first
    assert claimable_runs(lake) == [first.id, second.id]
    assert claim(lake, first).number == 2


def test_run_with_heartbeats_is_not_claimable(lake: Lake) -> None:
    run = enqueue_run(lake)
    claim(lake, run)
    with advance_clock(lake, STALE_AFTER / 2), write_transaction(lake) as tx:
        assert runs.heartbeat(tx, [(run.id, 1)], claimed_until=tx.now + STALE_AFTER) == {(run.id, 1): False}
    with advance_clock(lake):
        assert claimable_runs(lake) == []
    with advance_clock(lake, STALE_AFTER * 2):
        assert claimable_runs(lake) == [run.id]


CLAIM_LOSSES: dict[str, Callable[[Lake, Run], Any]] = {
    "the tenant expires stale runs": lambda lake, _: _expire_stale_runs(lake),
    "another process claims the run": try_claim,
}


def _expire_stale_runs(lake: Lake) -> None:
    with write_transaction(lake) as tx:
        assert runs.expire_stale_runs(tx, tx.now - STALE_AFTER) == 1
        assert runs.expire_stale_runs(tx, tx.now - STALE_AFTER) == 0


@pytest.mark.parametrize("loss", CLAIM_LOSSES)
def test_stale_attempt_is_rejected_and_the_next_attempt_finishes(lake: Lake, loss: str) -> None:
    run = enqueue_run(lake)
    claim(lake, run)
    with write_transaction(lake) as tx:
        runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
    with advance_clock(lake):
        CLAIM_LOSSES[loss](lake, run)
        if load_run(lake, run).state is RunState.QUEUED:
            assert load_run(lake, run) == run, "back in the queue"
            assert claim(lake, run).number == 2
        next_attempt = load_run(lake, run)
        assert (next_attempt.state, next_attempt.progress, next_attempt.results, next_attempt.reads) == (
            RunState.RUNNING,
            None,
            (),
            (),
        )
        with write_transaction(lake) as tx:
            assert runs.heartbeat(tx, [(run.id, 1)], claimed_until=tx.now + STALE_AFTER) == {}
            runs.update_progress(tx, run.id, 1, PROGRESS, [RESULT], [READ])
            assert not runs.finish(tx, run.id, 1, DONE)
            assert not runs.finish(tx, run.id, 1, FAILED)
            assert not runs.requeue(tx, run.id, 1)
        assert load_run(lake, run) == next_attempt
        with write_transaction(lake) as tx:
            assert runs.heartbeat(tx, [(run.id, 2)], claimed_until=tx.now + STALE_AFTER) == {(run.id, 2): False}
            assert runs.finish(tx, run.id, 2, DONE)


@pytest.mark.parametrize("loss", CLAIM_LOSSES)
def test_run_fails_as_lost_after_max_attempts(lake: Lake, loss: str) -> None:
    run = enqueue_run(lake)
    for number in range(1, MAX_ATTEMPTS + 1):
        assert claim(lake, run).number == number
        if number < MAX_ATTEMPTS:
            with write_transaction(lake) as tx:
                assert runs.expire_stale_runs(tx, tx.now + timedelta(seconds=1)) == 1
    with advance_clock(lake):
        CLAIM_LOSSES[loss](lake, run)
        failed = load_run(lake, run)
        assert failed.error is not None
        assert (failed.state, failed.error["error"]["code"], failed.error_kind) == (
            RunState.FAILED,
            "RUN_LOST",
            "Unavailable",
        )
        assert claimable_runs(lake) == []


@pytest.mark.parametrize("loss", CLAIM_LOSSES)
def test_stale_run_with_a_cancel_request_is_cancelled(lake: Lake, loss: str) -> None:
    run = enqueue_run(lake)
    claim(lake, run)
    with write_transaction(lake) as tx:
        assert runs.request_cancel(tx, run.id).cancelling
    with advance_clock(lake):
        CLAIM_LOSSES[loss](lake, run)
        assert load_run(lake, run).state is RunState.CANCELLED
        assert claimable_runs(lake) == []


def test_queued_run_is_never_stale(lake: Lake) -> None:
    run = enqueue_run(lake)
    with advance_clock(lake, timedelta(days=30)):
        with write_transaction(lake) as tx:
            assert not runs.has_stale_runs(tx, tx.now)
            assert runs.expire_stale_runs(tx, tx.now) == 0
        assert claim(lake, run).number == 1
