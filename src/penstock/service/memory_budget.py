"""Budget for the memory of requests: bodies, parsed values, Arrow messages and held results of REST, Flight and queries."""

import weakref
from types import TracebackType
from typing import Self

from penstock.errors import Unavailable
from penstock.service.fair_shares import Exhausted, FairShares, Shareholder

DEFAULT_BYTES = 1 << 30

_REASONS = {
    Exhausted.PROCESS: "memory_exhausted",
    Exhausted.TENANT: "tenant_memory_exhausted",
    Exhausted.USER: "tenant_memory_exhausted",
}


class MemoryBudget:
    """Count the memory that requests hold, and refuse more before it is taken. It is thread-safe."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._shares = FairShares(max_bytes)

    @property
    def max_bytes(self) -> int:
        return self._shares.capacity

    @property
    def used_bytes(self) -> int:
        return self._shares.used

    def reserve(self, caller: Shareholder, size: int = 0) -> "Reservation":
        """Reserve memory for a request.

        Raises:
            Unavailable: too little is left for the process (memory_exhausted), or of the share of the tenant or the user
                (tenant_memory_exhausted)
        """
        reservation = Reservation(self._shares, caller)
        reservation.grow(size)
        return reservation


class Reservation:
    """Reserved memory of one request. Release it, or use it as a context manager."""

    def __init__(self, shares: FairShares, caller: Shareholder) -> None:
        self._shares, self._caller = shares, caller
        self.size = 0

    def grow(self, size: int) -> None:
        """Reserve more memory.

        Raises:
            Unavailable: too little is left; the reservation stays as it was
        """
        if exhausted := self._take(size):
            raise Unavailable(_REASONS[exhausted], {"size": size})

    def try_grow(self, size: int) -> bool:
        """Reserve more memory if it is available."""
        return self._take(size) is None

    def shrink(self, size: int) -> None:
        """Release a part of it."""
        self.size -= size
        self._shares.give_back(self._caller, size)

    def release(self) -> None:
        """Release all of it. A second call has no effect."""
        self.shrink(self.size)

    def release_with(self, owner: object) -> None:
        """Release it when an object is garbage-collected."""
        weakref.finalize(owner, self.release).atexit = False

    def _take(self, size: int) -> Exhausted | None:
        exhausted = self._shares.take(self._caller, size)
        if exhausted is None:
            self.size += size
        return exhausted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.release()
