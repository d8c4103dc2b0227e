"""A client's transaction is over once, carries out one operation at a time, and is known to its own user alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier
from uuid import UUID, uuid4

import pytest

from penstock.catalog import writer_leases as leases
from penstock.catalog import client_transactions as transactions
from penstock.catalog.database import Tx
from penstock.core.dataset.transaction_state import Standing, State
from penstock.errors import NotFound
from penstock.lake import Lake

HERE, THERE = "host kernel 1 10", "host kernel 2 20"
MINUTE = timedelta(minutes=1)


def created(lake: Lake) -> UUID:
    with lake.workspace.db.write(lake.caller) as tx:
        return transactions.create(tx, HERE, auto_commit=False, until=tx.now + MINUTE)


def now(lake: Lake, transaction: UUID) -> Standing:
    with lake.workspace.db.read(lake.caller) as tx:
        return transactions.find(tx, transaction)


def entered(lake: Lake, transaction: UUID, process: str = HERE) -> bool:
    with lake.workspace.db.write(lake.caller) as tx:
        return transactions.enter(tx, transaction, process, until=tx.now + MINUTE) is not None


def left(lake: Lake, transaction: UUID, process: str = HERE, *, seq: int = 0, work: str = "{}") -> bool:
    with lake.workspace.db.write(lake.caller) as tx:
        return transactions.leave(tx, transaction, process, seq=seq, work=work, until=tx.now + MINUTE)


def committed(lake: Lake, transaction: UUID, seq: int = 0) -> bool:
    with lake.workspace.db.write(lake.caller) as tx:
        return transactions.commit(tx, transaction, seq=seq, key="k")


def ended(lake: Lake, transaction: UUID, judged: Standing | None = None) -> tuple[bool, str | None]:
    with lake.workspace.db.write(lake.caller) as tx:
        return transactions.end(tx, transaction, State.ABORTED, judged=judged)


def test_a_new_one_reads_what_is_committed_by_then(lake: Lake) -> None:
    first = created(lake)
    lake.create("demo.words", {"id": [1]}).append({"id": [2]})
    second = created(lake)
    assert [now(lake, each).commit_no for each in (first, second)] == [0, 2]
    found = now(lake, second)
    assert (found.state, found.user, found.owner, found.seq) == (State.ACTIVE, lake.caller.user, HERE, 0)
    assert found.expires_at == found.beaten_at + MINUTE


def test_only_its_own_user_knows_it(lake: Lake, stranger: Lake) -> None:
    transaction, colleague = created(lake), Lake(lake.workspace, replace(lake.caller, user=uuid4()), lake.home)
    answers = set()
    for who, which in ((stranger, transaction), (colleague, transaction), (lake, uuid4())):
        with pytest.raises(NotFound) as refusal:
            now(who, which)
        answers.add((refusal.value.reason, refusal.value.message))
    assert len(answers) == 1
    assert now(lake, transaction).id == transaction


def test_one_operation_goes_on_at_a_time(lake: Lake) -> None:
    transaction = created(lake)
    assert entered(lake, transaction)
    assert not entered(lake, transaction)
    assert not entered(lake, transaction, THERE)
    assert not committed(lake, transaction), "it would be without what is under way"
    assert not left(lake, transaction, THERE)
    assert left(lake, transaction, work="1")
    assert not left(lake, transaction, seq=1), "nothing is under way"
    assert entered(lake, transaction, THERE)
    assert not left(lake, transaction, THERE, seq=0)
    assert left(lake, transaction, THERE, seq=1, work="2")
    with lake.workspace.db.read(lake.caller) as tx:
        assert transactions.work(tx, transaction) == (2, "2")


def test_whoever_has_not_seen_the_last_operation_cannot_commit(lake: Lake) -> None:
    transaction = created(lake)
    assert entered(lake, transaction)
    assert left(lake, transaction)
    assert not committed(lake, transaction, seq=0)
    assert committed(lake, transaction, seq=1)
    assert (now(lake, transaction).state, now(lake, transaction).receipt) == (State.COMMITTED, "k")


ENDS: dict[str, Callable[[Lake, UUID], object]] = {
    "a commit": committed,
    "a rollback": ended,
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_happens_in_one_that_is_over(lake: Lake, end: str) -> None:
    transaction = created(lake)
    ENDS[end](lake, transaction)
    over = now(lake, transaction)
    assert not entered(lake, transaction)
    assert not left(lake, transaction)
    assert not committed(lake, transaction)
    assert ended(lake, transaction) == (False, None)
    with lake.workspace.db.write(lake.caller) as tx:
        transactions.beat(tx, [transaction])
        transactions.touch(tx, [transaction], until=tx.now + 9 * MINUTE)
        assert leases.ended(tx, [transaction]) == {transaction}, "its files are nobody's to commit"
        assert transactions.active(tx) == []
    assert now(lake, transaction) == over


def test_of_many_who_end_it_at_once_one_does(lake: Lake) -> None:
    transaction, together = created(lake), Barrier(6)

    def end(who: int) -> bool:
        together.wait(60)
        return committed(lake, transaction) if who % 2 else ended(lake, transaction)[0]

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(end, range(6)))
    assert won.count(True) == 1
    assert now(lake, transaction).state is (State.COMMITTED if won.index(True) % 2 else State.ABORTED)


def test_whoever_ends_it_hears_what_it_had_written(lake: Lake) -> None:
    transaction = created(lake)
    assert entered(lake, transaction)
    assert left(lake, transaction, work='{"a": "\\u0000"}')
    assert ended(lake, transaction) == (True, '{"a": "\\u0000"}')
    with lake.workspace.db.read(lake.caller) as tx:
        assert transactions.work(tx, transaction) == (1, None)


SIGNS: dict[str, Callable[[Tx, UUID], object]] = {
    "the owner's": lambda tx, transaction: transactions.beat(tx, [transaction]),
    "a user's": lambda tx, transaction: transactions.touch(tx, [transaction], until=tx.now + 2 * MINUTE),
    "an operation's": lambda tx, transaction: transactions.enter(tx, transaction, HERE, until=tx.now + 2 * MINUTE),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_a_sign_of_life_comes_before_a_judgement(lake: Lake, sign: str) -> None:
    transaction = created(lake)
    judged = now(lake, transaction)
    with lake.workspace.db.write(lake.caller) as tx:
        SIGNS[sign](tx, transaction)
    assert ended(lake, transaction, judged) == (False, None)
    assert now(lake, transaction).state is State.ACTIVE
    assert ended(lake, transaction, now(lake, transaction)) == (True, None)


def test_one_whose_lease_was_ended_can_do_nothing_more(lake: Lake) -> None:
    transaction = created(lake)
    with lake.workspace.db.write(lake.caller) as tx:
        leases.fence(tx, tx.now + MINUTE)
    assert not entered(lake, transaction)
    assert now(lake, transaction).operating is None
