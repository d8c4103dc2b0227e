"""The newest version of a dataset, read once for all who ask for it at the same time."""

import threading
from collections.abc import Callable
from itertools import count
from uuid import UUID

from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.service.datasets.read import find
from penstock.service.workspace import Workspace

_KEPT = 1_000  # datasets that were asked for lately


class Newest:
    """An answer is shared by those who asked before its reading began: nobody hears of a state older than the question."""

    def __init__(self, ws: Workspace) -> None:
        self._ws = ws
        self._asked: dict[tuple[UUID, DatasetName | UUID], _Shared] = {}

    def of(self, caller: Caller, dataset: DatasetName | UUID) -> Snapshot:
        if len(self._asked) > _KEPT:
            self._asked.clear()  # whoever waits has it at hand
        shared = self._asked.setdefault((caller.tenant, dataset), _Shared())
        return shared(lambda: find(self._ws, caller, dataset))


class _Shared:
    def __init__(self) -> None:
        self._turn, self._ticks = threading.Lock(), count(1)
        self._begun = 0  # when the reading of the last answer began
        self._answer: Snapshot | None = None

    def __call__(self, read: Callable[[], Snapshot]) -> Snapshot:
        asked = next(self._ticks)
        with self._turn:
            if self._answer is None or self._begun < asked:
                begun = next(self._ticks)
                self._answer, self._begun = read(), begun
            return self._answer
