"""What every use of Penstock stands on: a catalog, a store, and the sizes and limits in force."""

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from penstock.catalog import writer_leases as leases
from penstock.catalog.database import Database
from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import DATA
from penstock.errors import Conflict, PenstockError
from penstock.storage.data_files import Shape
from penstock.storage.file_store import Store

_BEAT_AFTER = leases.TIME_TO_LIVE / 6


@dataclass(frozen=True, slots=True)
class Limits:
    """What may come from outside in one request."""

    write_bytes: int = 1 << 40  # of rows, unpacked, in one write
    batch_bytes: int = 1 << 30  # of rows, unpacked, in one batch
    row_bytes: int = 64 << 20  # the average row of a batch
    returned_bytes: int = 64 << 20  # of rows that a write gives back


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where Spark runs, for those who bring no session of their own."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Workspace:
    db: Database
    store: Store
    shape: Shape = field(default_factory=Shape)
    limits: Limits = field(default_factory=Limits)
    cluster: Cluster = field(default_factory=Cluster)
    writers: "Writers" = field(init=False)

    def __post_init__(self) -> None:
        self.writers = Writers(self.db)

    @property
    def data(self) -> str:
        """The folder of all files of all datasets."""
        return self.store.locate(DATA)

    def close(self) -> None:
        try:
            self.writers.close()
        finally:
            self.db.close()


class Writers:
    """The leases under which this process writes: one for each tenant, taken at the first write."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: dict[UUID, _Held] = {}

    def lease(self, caller: Caller) -> UUID:
        """The lease for a write that begins now."""
        if self._process != os.getpid():  # a forked child: the leases, and perhaps the lock, are its parent's
            self._begin()
        with self._lock:
            held = self._held.get(caller.tenant)
        if held:
            with suppress(Conflict):  # it was ended while nothing was being written: a new one is as good
                self.beat(caller, held.lease)
                return held.lease
        with self._lock:
            held = self._held.get(caller.tenant)
            if held is None:
                with self._db.write(caller) as tx:
                    lease = leases.begin(tx, f"{socket.gethostname()} process {os.getpid()}")
                held = self._held[caller.tenant] = _Held(caller, lease, self._db.clock())
        return held.lease

    def beat(self, caller: Caller, lease: UUID) -> None:
        """Show a sign of life if the last one is old. Every commit shows one too."""
        held, now = self._held.get(caller.tenant), self._db.clock()
        if held and held.lease == lease and abs(now - held.beaten) < _BEAT_AFTER:
            return
        try:
            with self._db.write(caller) as tx:
                leases.assert_alive(tx, lease)
        except Conflict as refusal:
            self.forget(caller, lease, refusal)
            raise
        if held and held.lease == lease:
            held.beaten = now

    def forget(self, caller: Caller, lease: UUID, refusal: Conflict) -> None:
        """A lease that was ended by somebody else is of no more use; the next write takes a new one."""
        with self._lock:
            held = self._held.get(caller.tenant)
            if refusal.reason == "lease_ended" and held and held.lease == lease:
                del self._held[caller.tenant]

    def close(self) -> None:
        held, self._held = (self._held if self._process == os.getpid() else {}), {}
        for each in held.values():
            with suppress(PenstockError), self._db.write(each.caller) as tx:  # else it runs out by itself
                leases.end(tx, each.lease)


@dataclass
class _Held:
    caller: Caller
    lease: UUID
    beaten: datetime
