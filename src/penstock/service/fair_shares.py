"""Divide a capacity fairly: one tenant may use three quarters of it, and one user three quarters of the tenant's share."""

import threading
from collections import Counter
from enum import Enum
from typing import Protocol, TypeVar
from uuid import UUID

K = TypeVar("K")


class Shareholder(Protocol):
    """A caller, as far as a capacity is concerned."""

    @property
    def tenant(self) -> UUID: ...

    @property
    def user(self) -> UUID: ...


class Exhausted(Enum):
    """The share that has too little left."""

    USER = "user"
    TENANT = "tenant"
    PROCESS = "process"


class FairShares:
    """Count the used part of a capacity in total, by tenant and by user. It is thread-safe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tenant_capacity = share_of(capacity)
        self.user_capacity = share_of(self.tenant_capacity)
        self._used = 0
        self._by_tenant, self._by_user = Counter[UUID](), Counter[tuple[UUID, UUID]]()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    def used_by_tenant(self, tenant: UUID) -> int:
        return self._by_tenant[tenant]

    def take(self, caller: Shareholder, amount: int = 1) -> Exhausted | None:
        """Take an amount for a caller, or return the share that has too little left."""
        tenant, user = caller.tenant, (caller.tenant, caller.user)
        with self._lock:
            if self._used + amount > self.capacity:
                return Exhausted.PROCESS
            if self._by_tenant[tenant] + amount > self.tenant_capacity:
                return Exhausted.TENANT
            if self._by_user[user] + amount > self.user_capacity:
                return Exhausted.USER
            self._used += amount
            self._by_tenant[tenant] += amount
            self._by_user[user] += amount
            return None

    def give_back(self, caller: Shareholder, amount: int = 1) -> None:
        """Return an amount that was taken for the caller."""
        tenant, user = caller.tenant, (caller.tenant, caller.user)
        with self._lock:
            self._used -= amount
            _subtract(self._by_tenant, tenant, amount)
            _subtract(self._by_user, user, amount)


def share_of(capacity: int) -> int:
    """Return three quarters of a capacity, so that others always find the rest; all of a few."""
    return capacity - capacity // 4


def _subtract(counter: Counter[K], key: K, amount: int) -> None:
    """Subtract an amount; a key without any is removed, so that the counter does not grow with every caller."""
    counter[key] -= amount
    if not counter[key]:
        del counter[key]
