"""Commit what others may overtake: carried over where it is as true of the newer version, and otherwise done again.

The last try holds the dataset, so that steady small writes cannot keep overtaking it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

from penstock.catalog import commit as commits
from penstock.catalog.commit import Record
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Receipt
from penstock.errors import AlreadyExists, Conflict
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Stage

TRIES = 4
_CARRIES = 100  # over newer versions, of one try
_WAIT = 120.0  # seconds, for a dataset that somebody else holds
_HOLD = timedelta(seconds=60)  # a hold that is not renewed ends by itself
_OVERTAKEN = ("stale_version", "dataset_exists")


@dataclass(frozen=True, slots=True)
class Attempt:
    change: Change
    rebased: Callable[[Change], Change | None]  # as it is for the newest version; None: it must be done again
    record: Record | None = None


def land(ws: Workspace, caller: Caller, stage: Stage, dataset: UUID | None, attempt: Callable[[], Attempt]) -> Receipt:
    """Attempt it until it is committed. `dataset`: the one that others may write to; None: it is yet to be made."""
    for tries_left in reversed(range(TRIES)):
        with _held(ws, caller, None if tries_left else dataset) as hold:
            tried = attempt()
            change = tried.change
            for carries_left in reversed(range(_CARRIES)):
                try:
                    return stage.commit([change], hold=hold, record=tried.record)
                except (Conflict, AlreadyExists) as refusal:
                    if refusal.reason not in _OVERTAKEN or not (tries_left and carries_left):
                        raise
                if (carried := tried.rebased(change)) is None:
                    break
                change = carried
            stage.discard_files()
    raise AssertionError("unreachable")


@contextmanager
def _held(ws: Workspace, caller: Caller, dataset: UUID | None) -> Iterator[UUID | None]:
    """Nobody else commits to the dataset meanwhile. A thread renews the hold for as long as the work takes."""
    if dataset is None:
        yield None
        return
    holder, over = uuid4(), threading.Event()
    deadline = time.monotonic() + _WAIT
    while not commits.hold(ws.db, caller, dataset, holder, _HOLD):
        if time.monotonic() > deadline:
            raise Conflict("dataset_held", "another merge holds the dataset; try again later", dataset=str(dataset))
        time.sleep(0.05)

    def renew() -> None:
        while not over.wait(_HOLD.total_seconds() / 4):
            commits.hold(ws.db, caller, dataset, holder, _HOLD)

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield holder
    finally:
        over.set()
        renewing.join()
        commits.release(ws.db, caller, dataset, holder)
