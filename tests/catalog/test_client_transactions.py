"""A client's transaction is over once, carries out one operation at a time, and is known to its own user alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier
from uuid import UUID, uuid4

import pytest

from penstock.catalog import client_transactions, writer_leases
from penstock.catalog.database import CatalogTransaction
from penstock.core.dataset.transaction_state import TransactionRecord, TransactionState
from penstock.errors import NotFound
from penstock.lake import Lake

HERE, THERE = "host kernel 1 10", "host kernel 2 20"
MINUTE = timedelta(minutes=1)


def created(lake: Lake) -> UUID:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.create(tx, HERE, auto_commit=False, expires_at=tx.now + MINUTE)


def now(lake: Lake, transaction: UUID) -> TransactionRecord:
    with lake._workspace.db.read(lake.caller) as tx:
        return client_transactions.find(tx, transaction)


def entered(lake: Lake, transaction: UUID, process: str = HERE) -> bool:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.begin_operation(tx, transaction, process, expires_at=tx.now + MINUTE) is not None


def left(lake: Lake, transaction: UUID, process: str = HERE, *, seq: int = 0, work: str = "{}") -> bool:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.end_operation(
            tx, transaction, process, seq=seq, write_set=work, expires_at=tx.now + MINUTE
        )


def committed(lake: Lake, transaction: UUID, seq: int = 0) -> bool:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.commit(tx, transaction, seq=seq, key="k")


def ended(lake: Lake, transaction: UUID, judged: TransactionRecord | None = None) -> tuple[bool, str | None]:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.end(tx, transaction, TransactionState.ABORTED, unchanged_since=judged)


def test_create_reads_the_newest_lake_snapshot(lake: Lake) -> None:
    first = created(lake)
    lake.create("demo.words", {"id": [1]}).append({"id": [2]})
    second = created(lake)
    assert [now(lake, each).commit_no for each in (first, second)] == [0, 2]
    found = now(lake, second)
    assert (found.state, found.user, found.owner, found.seq) == (TransactionState.ACTIVE, lake.caller.user, HERE, 0)
    assert found.expires_at == found.heartbeat_at + MINUTE


def test_find_by_another_user_raises_not_found(lake: Lake, other_tenant: Lake) -> None:
    transaction, colleague = created(lake), Lake(lake._workspace, replace(lake.caller, user=uuid4()), lake._folder)
    answers = set()
    for who, which in ((other_tenant, transaction), (colleague, transaction), (lake, uuid4())):
        with pytest.raises(NotFound) as raised:
            now(who, which)
        answers.add((raised.value.reason, raised.value.message))
    assert len(answers) == 1
    assert now(lake, transaction).id == transaction


def test_begin_operation_while_another_runs_returns_none(lake: Lake) -> None:
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
    with lake._workspace.db.read(lake.caller) as tx:
        assert client_transactions.load_write_set(tx, transaction) == (2, "2")


def test_commit_with_an_old_sequence_number_is_rejected(lake: Lake) -> None:
    transaction = created(lake)
    assert entered(lake, transaction)
    assert left(lake, transaction)
    assert not committed(lake, transaction, seq=0)
    assert committed(lake, transaction, seq=1)
    assert (now(lake, transaction).state, now(lake, transaction).receipt) == (TransactionState.COMMITTED, "k")


ENDS: dict[str, Callable[[Lake, UUID], object]] = {
    "a commit": committed,
    "a rollback": ended,
}


@pytest.mark.parametrize("end", ENDS)
def test_operations_in_an_ended_transaction_have_no_effect(lake: Lake, end: str) -> None:
    transaction = created(lake)
    ENDS[end](lake, transaction)
    over = now(lake, transaction)
    assert not entered(lake, transaction)
    assert not left(lake, transaction)
    assert not committed(lake, transaction)
    assert ended(lake, transaction) == (False, None)
    with lake._workspace.db.write(lake.caller) as tx:
        client_transactions.heartbeat(tx, [transaction])
        client_transactions.extend_expiry(tx, [transaction], expires_at=tx.now + 9 * MINUTE)
        assert writer_leases.find_ended(tx, [transaction]) == {transaction}, (
            "the files of an ended lease cannot be committed"
        )
        assert client_transactions.list_active(tx) == []
    assert now(lake, transaction) == over


def test_concurrent_ends_succeed_exactly_once(lake: Lake) -> None:
    transaction, together = created(lake), Barrier(6)

    def end(who: int) -> bool:
        together.wait(60)
        return committed(lake, transaction) if who % 2 else ended(lake, transaction)[0]

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(end, range(6)))
    assert won.count(True) == 1
    assert now(lake, transaction).state is (
        TransactionState.COMMITTED if won.index(True) % 2 else TransactionState.ABORTED
    )


def test_end_returns_the_write_set(lake: Lake) -> None:
    transaction = created(lake)
    assert entered(lake, transaction)
    assert left(lake, transaction, work='{"a": "\\u0000"}')
    assert ended(lake, transaction) == (True, '{"a": "\\u0000"}')
    with lake._workspace.db.read(lake.caller) as tx:
        assert client_transactions.load_write_set(tx, transaction) == (1, None)


SIGNS: dict[str, Callable[[CatalogTransaction, UUID], object]] = {
    "the owner's": lambda tx, transaction: client_transactions.heartbeat(tx, [transaction]),
    "a user's": lambda tx, transaction: client_transactions.extend_expiry(
        tx, [transaction], expires_at=tx.now + 2 * MINUTE
    ),
    "an operation's": lambda tx, transaction: client_transactions.begin_operation(
        tx, transaction, HERE, expires_at=tx.now + 2 * MINUTE
    ),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_end_after_a_heartbeat_since_the_record_was_read_is_rejected(lake: Lake, sign: str) -> None:
    transaction = created(lake)
    judged = now(lake, transaction)
    with lake._workspace.db.write(lake.caller) as tx:
        SIGNS[sign](tx, transaction)
    assert ended(lake, transaction, judged) == (False, None)
    assert now(lake, transaction).state is TransactionState.ACTIVE
    assert ended(lake, transaction, now(lake, transaction)) == (True, None)


def test_transaction_with_an_ended_lease_rejects_operations(lake: Lake) -> None:
    transaction = created(lake)
    with lake._workspace.db.write(lake.caller) as tx:
        writer_leases.expire_stale(tx, tx.now + MINUTE)
    assert not entered(lake, transaction)
    assert now(lake, transaction).operating is None
