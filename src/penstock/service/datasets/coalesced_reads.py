"""Share one catalog read of a dataset's newest version among concurrent callers."""

import threading
from collections.abc import Callable
from itertools import count
from uuid import UUID

from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.service.datasets.read import find
from penstock.service.workspace import Workspace

_MAX_ENTRIES = 1_000  # datasets whose last read is remembered


class LatestSnapshots:
    """Coalesce reads of newest snapshots.

    A read is shared by the callers that requested it before it began, so that a snapshot is never older than its request.
    """

    def __init__(self, ws: Workspace) -> None:
        self._ws = ws
        self._reads: dict[tuple[UUID, DatasetName | UUID], _SharedRead] = {}

    def get(self, caller: Caller, dataset: DatasetName | UUID) -> Snapshot:
        """Return the newest snapshot of a dataset, by id or name."""
        if len(self._reads) > _MAX_ENTRIES:
            self._reads.clear()  # waiting callers keep their own reference
        shared = self._reads.setdefault((caller.tenant, dataset), _SharedRead())
        return shared(lambda: find(self._ws, caller, dataset))


class _SharedRead:
    def __init__(self) -> None:
        self._lock, self._ticks = threading.Lock(), count(1)
        self._begun = 0  # the tick at which the last read began
        self._snapshot: Snapshot | None = None

    def __call__(self, read: Callable[[], Snapshot]) -> Snapshot:
        requested = next(self._ticks)
        with self._lock:
            if self._snapshot is None or self._begun < requested:
                begun = next(self._ticks)
                self._snapshot, self._begun = read(), begun
            return self._snapshot
