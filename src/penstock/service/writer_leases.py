"""Hold the writer leases of this process: one for each tenant."""

import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from penstock.catalog import writer_leases
from penstock.catalog.database import Database
from penstock.core.caller import Caller
from penstock.errors import Conflict, PenstockError

_HEARTBEAT_AFTER = writer_leases.LEASE_TIMEOUT / 6


class WriterLeases:
    """Take, renew and end the writer leases of this process: one for each tenant, taken at the first write."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: dict[UUID, _HeldLease] = {}

    def lease(self, caller: Caller) -> UUID:
        """Return a valid lease for a write that begins now."""
        if self._process != os.getpid():  # a forked child: the leases, and perhaps the lock, belong to its parent
            self._reset()
        with self._lock:
            held = self._held.get(caller.tenant)
        if held:
            with suppress(Conflict):  # the lease has ended while nothing was written: take a new one
                self.heartbeat(caller, held.lease)
                return held.lease
        with self._lock:
            held = self._held.get(caller.tenant)
            if held is None:
                with self._db.write(caller) as tx:
                    lease = writer_leases.begin(tx, f"{socket.gethostname()} process {os.getpid()}")
                held = self._held[caller.tenant] = _HeldLease(caller, lease, self._db.clock())
        return held.lease

    def heartbeat(self, caller: Caller, lease: UUID) -> None:
        """Renew a lease if its last heartbeat is old. Every commit renews it, too.

        Raises:
            Conflict: the lease has ended
        """
        held, now = self._held.get(caller.tenant), self._db.clock()
        if held and held.lease == lease and abs(now - held.heartbeat_at) < _HEARTBEAT_AFTER:
            return
        try:
            with self._db.write(caller) as tx:
                writer_leases.assert_alive(tx, lease)
        except Conflict as error:
            self.forget(caller, lease, error)
            raise
        if held and held.lease == lease:
            held.heartbeat_at = now

    def forget(self, caller: Caller, lease: UUID, error: Conflict) -> None:
        """Forget a lease if the error says that it has ended, so that the next write takes a new one."""
        with self._lock:
            held = self._held.get(caller.tenant)
            if error.reason == "lease_ended" and held and held.lease == lease:
                del self._held[caller.tenant]

    def close(self) -> None:
        """End all leases of this process."""
        held, self._held = (self._held if self._process == os.getpid() else {}), {}
        for lease in held.values():
            with suppress(PenstockError), self._db.write(lease.caller) as tx:  # otherwise it expires
                writer_leases.end(tx, lease.lease)


@dataclass
class _HeldLease:
    caller: Caller
    lease: UUID
    heartbeat_at: datetime
