"""Client transactions in the catalog: state changes, operations and access by other users."""

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

PROCESS_1, PROCESS_2 = "host kernel 1 10", "host kernel 2 20"
MINUTE = timedelta(minutes=1)


def create(lake: Lake) -> UUID:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.create(tx, PROCESS_1, auto_commit=False, expires_at=tx.now + MINUTE)


def load(lake: Lake, transaction: UUID) -> TransactionRecord:
    with lake._workspace.db.read(lake.caller) as tx:
        return client_transactions.find(tx, transaction)


def begin_operation(lake: Lake, transaction: UUID, process: str = PROCESS_1) -> bool:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.begin_operation(tx, transaction, process, expires_at=tx.now + MINUTE) is not None


def end_operation(lake: Lake, transaction: UUID, process: str = PROCESS_1, *, seq: int = 0, work: str = "{}") -> bool:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.end_operation(
            tx, transaction, process, seq=seq, write_set=work, expires_at=tx.now + MINUTE
        )


def commit(lake: Lake, transaction: UUID, seq: int = 0) -> bool:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.commit(tx, transaction, seq=seq, key="k")


def end_transaction(lake: Lake, transaction: UUID, seen: TransactionRecord | None = None) -> tuple[bool, str | None]:
    with lake._workspace.db.write(lake.caller) as tx:
        return client_transactions.end(tx, transaction, TransactionState.ABORTED, unchanged_since=seen)


def test_create_reads_the_newest_lake_snapshot(lake: Lake) -> None:
    first = create(lake)
    lake.create("demo.words", {"id": [1]}).append({"id": [2]})
    second = create(lake)
    assert [load(lake, transaction).commit_no for transaction in (first, second)] == [0, 2]
    record = load(lake, second)
    assert (record.state, record.user, record.owner, record.seq) == (
        TransactionState.ACTIVE,
        lake.caller.user,
        PROCESS_1,
        0,
    )
    assert record.expires_at == record.heartbeat_at + MINUTE


def test_find_by_another_user_raises_not_found(lake: Lake, other_tenant: Lake) -> None:
    transaction, colleague = create(lake), Lake(lake._workspace, replace(lake.caller, user=uuid4()), lake._folder)
    errors = set()
    for caller, transaction_id in ((other_tenant, transaction), (colleague, transaction), (lake, uuid4())):
        with pytest.raises(NotFound) as raised:
            load(caller, transaction_id)
        errors.add((raised.value.reason, raised.value.message))
    assert len(errors) == 1
    assert load(lake, transaction).id == transaction


def test_begin_operation_while_another_runs_returns_none(lake: Lake) -> None:
    transaction = create(lake)
    assert begin_operation(lake, transaction)
    assert not begin_operation(lake, transaction)
    assert not begin_operation(lake, transaction, PROCESS_2)
    assert not commit(lake, transaction), "an operation is in progress"
    assert not end_operation(lake, transaction, PROCESS_2)
    assert end_operation(lake, transaction, work="1")
    assert not end_operation(lake, transaction, seq=1), "no operation is in progress"
    assert begin_operation(lake, transaction, PROCESS_2)
    assert not end_operation(lake, transaction, PROCESS_2, seq=0)
    assert end_operation(lake, transaction, PROCESS_2, seq=1, work="2")
    with lake._workspace.db.read(lake.caller) as tx:
        assert client_transactions.load_write_set(tx, transaction) == (2, "2")


def test_commit_with_an_old_sequence_number_is_rejected(lake: Lake) -> None:
    transaction = create(lake)
    assert begin_operation(lake, transaction)
    assert end_operation(lake, transaction)
    assert not commit(lake, transaction, seq=0)
    assert commit(lake, transaction, seq=1)
    assert (load(lake, transaction).state, load(lake, transaction).receipt) == (TransactionState.COMMITTED, "k")


TRANSACTION_ENDS: dict[str, Callable[[Lake, UUID], object]] = {
    "a commit": commit,
    "a rollback": end_transaction,
}


@pytest.mark.parametrize("end", TRANSACTION_ENDS)
def test_operations_in_an_ended_transaction_have_no_effect(lake: Lake, end: str) -> None:
    transaction = create(lake)
    TRANSACTION_ENDS[end](lake, transaction)
    ended = load(lake, transaction)
    assert not begin_operation(lake, transaction)
    assert not end_operation(lake, transaction)
    assert not commit(lake, transaction)
    assert end_transaction(lake, transaction) == (False, None)
    with lake._workspace.db.write(lake.caller) as tx:
        client_transactions.heartbeat(tx, [transaction])
        client_transactions.extend_expiry(tx, [transaction], expires_at=tx.now + 9 * MINUTE)
        assert writer_leases.find_ended(tx, [transaction]) == {transaction}, (
            "the files of an ended lease cannot be committed"
        )
        assert client_transactions.list_active(tx) == []
    assert load(lake, transaction) == ended


def test_concurrent_ends_succeed_exactly_once(lake: Lake) -> None:
    transaction, barrier = create(lake), Barrier(6)

    def end(number: int) -> bool:
        barrier.wait(60)
        return commit(lake, transaction) if number % 2 else end_transaction(lake, transaction)[0]

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(end, range(6)))
    assert results.count(True) == 1
    assert load(lake, transaction).state is (
        TransactionState.COMMITTED if results.index(True) % 2 else TransactionState.ABORTED
    )


def test_end_returns_the_write_set(lake: Lake) -> None:
    transaction = create(lake)
    assert begin_operation(lake, transaction)
    assert end_operation(lake, transaction, work='{"a": "\\u0000"}')
    assert end_transaction(lake, transaction) == (True, '{"a": "\\u0000"}')
    with lake._workspace.db.read(lake.caller) as tx:
        assert client_transactions.load_write_set(tx, transaction) == (1, None)


HEARTBEATS: dict[str, Callable[[CatalogTransaction, UUID], object]] = {
    "heartbeat of the owner": lambda tx, transaction: client_transactions.heartbeat(tx, [transaction]),
    "use by the user": lambda tx, transaction: client_transactions.extend_expiry(
        tx, [transaction], expires_at=tx.now + 2 * MINUTE
    ),
    "begin of an operation": lambda tx, transaction: client_transactions.begin_operation(
        tx, transaction, PROCESS_1, expires_at=tx.now + 2 * MINUTE
    ),
}


@pytest.mark.parametrize("heartbeat", HEARTBEATS)
def test_end_after_a_heartbeat_since_the_record_was_read_is_rejected(lake: Lake, heartbeat: str) -> None:
    transaction = create(lake)
    seen = load(lake, transaction)
    with lake._workspace.db.write(lake.caller) as tx:
        HEARTBEATS[heartbeat](tx, transaction)
    assert end_transaction(lake, transaction, seen) == (False, None)
    assert load(lake, transaction).state is TransactionState.ACTIVE
    assert end_transaction(lake, transaction, load(lake, transaction)) == (True, None)


def test_transaction_with_an_ended_lease_rejects_operations(lake: Lake) -> None:
    transaction = create(lake)
    with lake._workspace.db.write(lake.caller) as tx:
        writer_leases.expire_stale(tx, tx.now + MINUTE)
    assert not begin_operation(lake, transaction)
    assert load(lake, transaction).operating is None
