"""The registry of query executions: visibility, cancellation and limits."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.cancellation import CancelToken
from penstock.core.caller import Caller, Role
from penstock.errors import AlreadyExists, Invalid, NotFound, PenstockError, Unavailable, Unsupported
from penstock.lake import Lake
from penstock.service.queries.executions import (
    PREVIEW,
    ExecutionRecord,
    ExecutionRegistry,
    cancel_execution,
    list_executions,
    parse_execution_id,
)

TENANT, OTHER_TENANT = uuid4(), uuid4()
ADA = Caller(TENANT, uuid4(), "ada", Role.VIEWER)
BOB = Caller(TENANT, uuid4(), "bob", Role.DEVELOPER)
ADMIN = Caller(TENANT, uuid4(), "eve", Role.ADMIN)
OTHER_ADMIN = Caller(OTHER_TENANT, ADA.user, "ada", Role.ADMIN)  # the same user id in another tenant


def test_register_lists_execution_until_its_end() -> None:
    registry, id = ExecutionRegistry(), uuid4()
    with registry.register(ADA, "totals", CancelToken(), id) as execution:
        (record,) = registry.list(ADA)
        assert (record.id, record.query, record.user) == (id, "totals", "ada")
        assert record.seconds >= 0
        assert ExecutionRecord.from_json(record.as_json()) == record
        execution.query = "x" * 10_000
        assert len(registry.list(ADA)[0].query) == 200
    assert registry.list(ADA) == []
    assert registry.cancel(ADA, id) is None
    assert len(registry) == 0


@pytest.mark.parametrize(
    ("caller", "is_visible"),
    [(ADA, True), (ADMIN, True), (BOB, False), (OTHER_ADMIN, False)],
    ids=["owner", "admin", "other user", "other tenant"],
)
def test_cancel_reaches_own_executions_and_those_of_the_tenant_for_admins(caller: Caller, is_visible: bool) -> None:
    registry, token = ExecutionRegistry(), CancelToken()

    def run() -> None:
        with registry.register(ADA, PREVIEW, token) as execution:
            assert bool(registry.list(caller)) == is_visible
            assert bool(registry.cancel(caller, execution.id)) == is_visible
            assert token.is_cancelled == is_visible

    if not is_visible:
        run()
        return
    with pytest.raises(Unsupported) as error:
        run()
    assert error.value.reason == "query_cancelled"


def test_cancelled_execution_that_succeeds_anyway_raises_query_cancelled() -> None:
    registry, token = ExecutionRegistry(), CancelToken()
    token.cancel()  # the request was cancelled for another reason before
    with pytest.raises(Unsupported) as error, registry.register(ADA, PREVIEW, token) as execution:
        assert registry.cancel(ADA, execution.id)
    assert error.value.reason == "query_cancelled"


def test_cancel_races_with_the_end_and_both_agree() -> None:
    registry = ExecutionRegistry()

    def run(id: UUID) -> str:
        try:
            with registry.register(ADA, PREVIEW, CancelToken(), id):
                return "done"
        except PenstockError as error:
            return error.reason

    with ThreadPoolExecutor(2) as pool:
        for _ in range(500):
            id = uuid4()
            outcome = pool.submit(run, id)
            cancelled = pool.submit(registry.cancel, ADA, id)
            assert outcome.result() == ("query_cancelled" if cancelled.result() else "done")
    assert len(registry) == 0


def test_register_same_id_twice_conflicts_only_within_a_tenant() -> None:
    registry, id = ExecutionRegistry(), uuid4()
    with registry.register(ADA, PREVIEW, CancelToken(), id), registry.register(OTHER_ADMIN, PREVIEW, CancelToken(), id):
        for caller in (ADA, BOB, OTHER_ADMIN):
            with pytest.raises(AlreadyExists) as error, registry.register(caller, PREVIEW, CancelToken(), id):
                pass
            assert error.value.reason == "execution_exists"
        assert len(registry) == 2  # the conflict has removed no execution
    with registry.register(ADA, PREVIEW, CancelToken(), id):  # the id of an ended execution can be used again
        assert len(registry) == 1


def test_register_and_list_are_bounded() -> None:
    registry = ExecutionRegistry(max_executions=3_000)
    with ExitStack() as stack:
        for _ in range(3_000):
            stack.enter_context(registry.register(ADA, PREVIEW, CancelToken()))
        with pytest.raises(Unavailable), registry.register(ADA, PREVIEW, CancelToken()):
            pass
        records = list_executions([registry, registry], ADMIN)
        assert len(records) == 1_000
        assert records == sorted(records, key=lambda record: record.started_at)
        assert list_executions([registry], BOB) == []
    assert len(registry) == 0


def test_malformed_execution_id_is_rejected_or_not_found(lake: Lake) -> None:
    def cancel(id: str) -> NotFound:
        with pytest.raises(NotFound) as error:
            cancel_execution(lake._workspace, [ExecutionRegistry()], lake.caller, id)
        return error.value

    unknown = cancel(str(uuid4()))
    for text in ("", "x", "{}", "0" * 32, f"{uuid4()}0", "é" * 36, f" {uuid4()}"):
        with pytest.raises(Invalid) as error:
            parse_execution_id(text)
        assert error.value.reason == "bad_execution_id"
        assert cancel(text).as_dict() == unknown.as_dict()


def test_cancel_execution_searches_every_source(lake: Lake) -> None:
    first, second = ExecutionRegistry(), ExecutionRegistry()
    token: Any = CancelToken()
    with pytest.raises(Unsupported), second.register(lake.caller, PREVIEW, token) as execution:
        cancel_execution(lake._workspace, [first, second], lake.caller, str(execution.id))
    assert token.is_cancelled
