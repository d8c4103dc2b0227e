"""What every use of Penstock stands on: a catalog, a store, and the sizes and limits in force."""

import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from penstock.catalog import leases
from penstock.catalog.access import Database
from penstock.core.caller import Caller
from penstock.errors import Conflict
from penstock.storage.datafiles import Shape
from penstock.storage.store import Store

_BEATS_A_LIFE = 6


@dataclass(frozen=True, slots=True)
class Limits:
    """What may come from outside in one request."""

    write_bytes: int = 1 << 40  # of rows, unpacked, in one write
    batch_bytes: int = 1 << 30  # of rows, unpacked, in one batch
    row_bytes: int = 64 << 20  # the average row of a batch


@dataclass
class Workspace:
    db: Database
    store: Store
    shape: Shape = field(default_factory=Shape)
    limits: Limits = field(default_factory=Limits)
    writers: "Writers" = field(init=False)

    def __post_init__(self) -> None:
        self.writers = Writers(self.db)

    def close(self) -> None:
        self.writers.close()
        self.db.close()


class Writers:
    """The leases under which this process writes: one for each tenant, taken at the first write."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._held: dict[UUID, _Held] = {}

    def lease(self, caller: Caller) -> UUID:
        """The lease for a write that begins now."""
        with suppress(Conflict):  # it was ended while nothing was being written: a new one is as good
            self.beat(caller)
        with self._lock:
            held = self._held.get(caller.tenant)
            if held is None or held.process != os.getpid():
                with self._db.write(caller) as tx:
                    lease = leases.begin(tx, f"{socket.gethostname()} process {os.getpid()}")
                held = self._held[caller.tenant] = _Held(caller, lease, self._db.clock(), os.getpid())
        return held.lease

    def beat(self, caller: Caller) -> None:
        """Show a sign of life if the last one is old. Every commit shows one too."""
        held, now = self._held.get(caller.tenant), self._db.clock()
        if held and now - held.beaten > leases.TIME_TO_LIVE / _BEATS_A_LIFE:
            try:
                with self._db.write(caller) as tx:
                    leases.assert_alive(tx, held.lease)
            except Conflict as refusal:
                self.forget(caller, refusal)
                raise
            held.beaten = now

    def forget(self, caller: Caller, refusal: Conflict) -> None:
        """A lease that was ended by somebody else is of no more use; the next write takes a new one."""
        if refusal.reason == "lease_ended":
            with self._lock:
                self._held.pop(caller.tenant, None)

    def close(self) -> None:
        with self._lock:
            for held in self._held.values():
                if held.process == os.getpid():
                    with self._db.write(held.caller) as tx:
                        leases.end(tx, held.lease)
            self._held.clear()


@dataclass
class _Held:
    caller: Caller
    lease: UUID
    beaten: datetime
    process: int
