"""Commit a write that other writers may overtake: rebase its change onto the newer version, or prepare it again.

The last attempt locks the dataset, so that frequent small commits of other writers cannot keep overtaking it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, TypeVar
from uuid import UUID, uuid4

from penstock.catalog import dataset_locks
from penstock.catalog.database import CatalogTransaction
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Receipt
from penstock.errors import AlreadyExists, Conflict
from penstock.service.datasets.staging import StagingArea
from penstock.service.workspace import Workspace

T = TypeVar("T")
MAX_ATTEMPTS = 4
_MAX_REBASES = 100  # of one attempt, while other writers keep committing
_LOCK_WAIT_SECONDS = 120.0  # for a dataset that another writer has locked
_LOCK_TIME_TO_LIVE = timedelta(seconds=60)  # a lock that is not renewed expires
_OVERTAKEN = ("stale_version", "row_conflict", "dataset_exists")  # another writer has committed first


class RetryableWrite(Protocol):
    """A write that `commit_with_retry` can repeat."""

    def prepare(self) -> Change:
        """Stage the files of the write for the newest version, and return the change. Called once for each attempt."""

    def rebase(self, change: Change) -> Change | None:
        """Return the change for the version that is newest by now, or None if the write must be prepared again."""

    def on_commit(self, tx: CatalogTransaction, receipt: Receipt) -> None:
        """Record the commit, in its transaction."""


def commit_with_retry(
    ws: Workspace, caller: Caller, stage: StagingArea, dataset: UUID | None, write: RetryableWrite
) -> Receipt:
    """Prepare and commit a write of one request until the commit succeeds. The arguments are those of `retry_commit`."""

    def commit(change: Change, lock_holder: UUID | None) -> Receipt:
        return stage.commit([change], lock_holder=lock_holder, on_commit=write.on_commit)

    return retry_commit(ws, caller, stage, dataset, write, commit)


def retry_commit(
    ws: Workspace,
    caller: Caller,
    stage: StagingArea,
    dataset: UUID | None,
    write: RetryableWrite,
    commit: Callable[[Change, UUID | None], T],
) -> T:
    """Prepare and commit a write until the commit succeeds.

    Args:
        ws: the workspace
        caller: the author of the commit
        stage: the staging area that the write uses
        dataset: the dataset that other writers may commit to; None: the write creates a dataset
        write: the write
        commit: commits a change, as the holder of the dataset lock if there is one

    Returns:
        The result of `commit`.

    Raises:
        Conflict: another writer committed first, or has locked the dataset, at the last attempt
    """
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        with _locked(ws, caller, None if attempts_left else dataset) as lock_holder:
            change = write.prepare()
            for rebases_left in reversed(range(_MAX_REBASES)):
                try:
                    return commit(change, lock_holder)
                except (Conflict, AlreadyExists) as error:
                    if error.reason not in _OVERTAKEN or not (attempts_left and rebases_left):
                        raise
                if (rebased := write.rebase(change)) is None:
                    break
                change = rebased
            stage.discard_files()
    raise AssertionError("unreachable")


@contextmanager
def _locked(ws: Workspace, caller: Caller, dataset: UUID | None) -> Iterator[UUID | None]:
    """Lock a dataset against commits of other writers, and renew the lock in a thread. None locks nothing."""
    if dataset is None:
        yield None
        return
    holder, ended = uuid4(), threading.Event()
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while not dataset_locks.lock_dataset(ws.db, caller, dataset, holder, _LOCK_TIME_TO_LIVE):
        if time.monotonic() > deadline:
            raise Conflict("dataset_locked.lock_timeout", dataset=str(dataset))
        time.sleep(0.05)

    def renew() -> None:
        while not ended.wait(_LOCK_TIME_TO_LIVE.total_seconds() / 4):
            dataset_locks.lock_dataset(ws.db, caller, dataset, holder, _LOCK_TIME_TO_LIVE)

    renewal = threading.Thread(target=renew, daemon=True)
    renewal.start()
    try:
        yield holder
    finally:
        ended.set()
        renewal.join()
        dataset_locks.unlock_dataset(ws.db, caller, dataset, holder)
