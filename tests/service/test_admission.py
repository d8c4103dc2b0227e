"""Admission control, fair shares and the memory budget: limits in total, per tenant and per user."""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from random import Random
from uuid import UUID

import pytest

from penstock import cancellation
from penstock.cancellation import CancelToken
from penstock.core.caller import Caller, Role
from penstock.errors import Unavailable, Unsupported
from penstock.service.admission import AdmissionControl, AsyncAdmissionControl
from penstock.service.fair_shares import Exhausted, FairShares
from penstock.service.memory_budget import MemoryBudget


def caller(tenant: int, user: int = 0) -> Caller:
    return Caller(UUID(int=tenant), UUID(int=user), "caller", Role.VIEWER)


A, B, C = caller(1), caller(2), caller(3)
LONG_SECONDS = 60


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.001)


def test_fair_shares_limit_process_tenant_and_user() -> None:
    shares = FairShares(16)
    assert (shares.tenant_capacity, shares.user_capacity) == (12, 9)
    assert shares.take(A, 9) is None
    assert shares.take(A) is Exhausted.USER
    assert shares.take(caller(1, 1), 3) is None
    assert shares.take(caller(1, 2)) is Exhausted.TENANT
    assert shares.take(B, 4) is None
    assert shares.take(B) is Exhausted.PROCESS
    shares.give_back(A, 9)
    assert shares.take(B, 5) is None
    assert shares.used == 12


def test_fair_shares_of_one_or_two_units_are_available_to_one_user() -> None:
    for capacity in (1, 2, 3):
        assert FairShares(capacity).user_capacity == capacity


@pytest.mark.parametrize("seed", [1, 2, None], ids=str)
def test_fair_shares_random_use_never_exceeds_limits(seed: int | None) -> None:
    seed = seed or Random().randrange(1 << 32)
    random = Random(seed)
    shares, reserved = FairShares(40), list[tuple[Caller, int]]()
    for _ in range(2_000):
        if reserved and random.random() < 0.5:
            shares.give_back(*reserved.pop(random.randrange(len(reserved))))
        else:
            entry = caller(random.randrange(3), random.randrange(3)), random.randrange(1, 8)
            if shares.take(*entry) is None:
                reserved.append(entry)
        by_user = {
            key: sum(n for c, n in reserved if (c.tenant, c.user) == key)
            for key in {(c.tenant, c.user) for c, _ in reserved}
        }
        by_tenant = {key: sum(n for c, n in reserved if c.tenant == key) for key in {c.tenant for c, _ in reserved}}
        assert shares.used == sum(by_user.values()) <= 40, seed
        assert max(by_tenant.values(), default=0) <= 30, seed
        assert max(by_user.values(), default=0) <= 23, seed


def test_memory_budget_rejects_requests_over_the_limit_and_releases() -> None:
    budget = MemoryBudget(1600)
    with budget.reserve(A, 900) as reservation:
        with pytest.raises(Unavailable) as rejected:
            reservation.grow(1)
        assert rejected.value.reason == "tenant_memory_exhausted"
        other = budget.reserve(B, 700)
        with pytest.raises(Unavailable) as rejected:
            budget.reserve(C, 1)
        assert rejected.value.reason == "memory_exhausted"
        assert not other.try_grow(1)
        other.shrink(100)
        assert other.try_grow(50)
        assert budget.used_bytes == 1550
    assert budget.used_bytes == 650
    other.release()
    other.release()
    assert budget.used_bytes == 0


def test_memory_budget_released_with_its_owner() -> None:
    class BudgetOwner:
        pass

    budget, owner = MemoryBudget(100), BudgetOwner()
    budget.reserve(A, 10).release_with(owner)
    assert budget.used_bytes == 10
    del owner
    gc.collect()
    assert budget.used_bytes == 0


def test_admission_limits_share_of_one_tenant() -> None:
    admission = AdmissionControl(max_running=4, max_waiting=4)
    users = [caller(1, n) for n in range(8)]
    with ExitStack() as running, ThreadPoolExecutor(8) as pool:
        for user in users[:3]:
            running.enter_context(admission.admit(user, 0.01))
        with pytest.raises(Unavailable, match="Your tenant"), admission.admit(users[3], 0.01):
            raise AssertionError("the tenant has used its share of running work")
        with admission.admit(B, 0.01):
            pass
        finished = threading.Event()

        def run(user: Caller) -> None:
            with admission.admit(user, LONG_SECONDS):
                finished.wait(LONG_SECONDS)

        waiting = [pool.submit(run, user) for user in users[3:6]]
        wait_for(lambda: admission._admitted.used_by_tenant(A.tenant) == 6)
        with pytest.raises(Unavailable, match="Your tenant"), admission.admit(users[6], LONG_SECONDS):
            raise AssertionError("the tenant has used its share of waiting work")
        with admission.admit(B, 0.01), pytest.raises(Unavailable, match="The server"), admission.admit(C, 0.01):
            raise AssertionError("all capacity is in use")
        finished.set()
        running.close()
        for future in waiting:
            future.result(LONG_SECONDS)
    with ExitStack() as stack:
        for user in (*users[:3], B):
            stack.enter_context(admission.admit(user, 0.01))


def test_admission_cancelled_while_waiting_raises_at_once() -> None:
    admission, token = AdmissionControl(max_running=1, max_waiting=4), CancelToken()

    def run() -> None:
        with cancellation.active(token), admission.admit(B, LONG_SECONDS):
            raise AssertionError("it runs")

    with ThreadPoolExecutor(1) as pool, admission.admit(A, 0.01):
        future = pool.submit(run)
        wait_for(lambda: admission._admitted.used == 2)
        token.cancel()
        with pytest.raises(Unsupported, match="cancelled"):
            future.result(LONG_SECONDS)
    assert admission._admitted.used == 0


def test_async_admission_lets_other_tenants_pass_a_waiting_one() -> None:
    async def scenario() -> None:
        admission = AsyncAdmissionControl(capacity=4, max_waiting=8)
        order = list[str]()

        async def run(name: str, user_caller: Caller, end: asyncio.Event) -> None:
            async with admission.admit(user_caller, LONG_SECONDS):
                order.append(name)
                await end.wait()

        end = asyncio.Event()
        tasks = [asyncio.create_task(run(f"a{n}", caller(1, n), end)) for n in range(5)]
        tasks.append(asyncio.create_task(run("b", B, end)))
        while len(order) < 4:
            await asyncio.sleep(0)
        assert order == ["a0", "a1", "a2", "b"]
        assert (admission.running, admission.waiting) == (4, 2)
        end.set()
        await asyncio.gather(*tasks)
        assert order[4:] == ["a3", "a4"]
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(scenario())


def test_async_admission_weight_counts_as_several_requests() -> None:
    async def scenario() -> None:
        admission = AsyncAdmissionControl(capacity=16, max_waiting=8)
        async with admission.admit(A, 0.01, weight=1000), admission.admit(B, 0.01, weight=7):
            assert admission.running == 16
            with pytest.raises(Unavailable) as rejected:
                async with admission.admit(C, 0.01):
                    raise AssertionError("it runs")
            assert rejected.value.reason == "server_busy"
        assert admission.running == 0

    asyncio.run(scenario())


def test_async_admission_waiting_is_bounded_and_cancellable() -> None:
    async def scenario() -> None:
        admission = AsyncAdmissionControl(capacity=1, max_waiting=4)

        async def run(user_caller: Caller) -> None:
            async with admission.admit(user_caller, LONG_SECONDS):
                pass

        async with AsyncExitStack() as running:
            await running.enter_async_context(admission.admit(B, 0.01))
            tasks = [asyncio.create_task(run(caller(1, n))) for n in range(4)]
            while admission.waiting < 3 or not tasks[3].done():
                await asyncio.sleep(0)
            error = tasks[3].exception()
            assert isinstance(error, Unavailable)
            assert error.reason == "tenant_busy"
            tasks[0].cancel()
            await asyncio.wait([tasks[0]])
            assert admission.waiting == 2
        await asyncio.gather(*tasks[1:3])
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(scenario())


def test_cancel_token_runs_callbacks_once_and_late_ones_at_once() -> None:
    token, calls = CancelToken(), list[str]()
    with cancellation.active(token):
        cancellation.raise_if_cancelled()
        with cancellation.on_cancel(lambda: calls.append("finished")):
            pass
        with cancellation.on_cancel(lambda: calls.append("in progress")):
            token.cancel()
            token.cancel()
        with cancellation.on_cancel(lambda: calls.append("late")), pytest.raises(Unsupported):
            cancellation.raise_if_cancelled()
    assert calls == ["in progress", "late"]
    assert cancellation.current() is None


def test_async_admission_gives_no_capacity_to_a_cancelled_waiter() -> None:
    async def scenario() -> None:
        admission = AsyncAdmissionControl(capacity=1, max_waiting=8)

        async def run(user_caller: Caller, token: CancelToken) -> None:
            with cancellation.active(token):
                async with admission.admit(user_caller, LONG_SECONDS):
                    pass

        tokens = [CancelToken() for _ in range(3)]
        async with admission.admit(B, LONG_SECONDS):
            tasks = [asyncio.create_task(run(caller(1, n), token)) for n, token in enumerate(tokens)]
            while admission.waiting < 3:
                await asyncio.sleep(0)
            tokens[0].cancel()
            tasks[1].cancel()
            await asyncio.sleep(0)  # both are cancelled, and their tasks have not run yet
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], Unsupported)
        assert isinstance(results[1], asyncio.CancelledError)
        assert results[2] is None
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(scenario())
