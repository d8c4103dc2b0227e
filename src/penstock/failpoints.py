"""Failpoints: named steps of a write at which a test can fail or kill the process.

`hit(step)` does nothing unless a test in the same process has armed the step. No setting, variable or request can arm
a failpoint.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS = (
    "stage.begun",  # the writer holds a lease; no file exists yet
    "stage.opened",  # the file has a name and possibly some bytes
    "stage.written",  # the file is complete, but not yet durable
    "stage.synced",  # the file and its directory are durable
    "stage.complete",  # all files of the commit are durable
    "commit.begun",  # the SQL transaction is open, and the writer lease is valid
    "commit.numbered",  # the tenant's commit number is assigned
    "commit.versioned",  # (dataset, base + 1) is inserted: this writer has won
    "commit.removed",  # replaced files have an end version
    "commit.marked",  # deletion vectors are inserted
    "commit.added",  # new files are inserted
    "commit.recorded",  # receipt and audit row are inserted
    "commit.ready",  # everything but COMMIT is done
    "commit.sent",  # COMMIT was executed, and its response was lost
    "commit.done",  # the response to COMMIT arrived; the caller has no result yet
)

SWAP_STEPS = (  # steps of a merge into a plain Parquet directory
    "swap.locked",  # the directory is locked; nothing is staged
    "swap.staged",  # all new files are complete and durable, under names that readers ignore
    "swap.journaled",  # the journal is durable: this process or a later one completes the merge
    "swap.moved",  # a new file has its final name
    "swap.removed",  # a replaced file is deleted
    "swap.done",  # all steps of the journal are done; the journal still exists
)

_armed: dict[str, Callable[[], None]] = {}


def hit(step: str) -> None:
    """Run the action of an armed step."""
    if _armed and (action := _armed.get(step)):
        action()


@contextmanager
def armed(step: str, action: Callable[[], None]) -> Iterator[None]:
    """Arm a step: `hit(step)` calls `action` within the context."""
    if step not in (*STEPS, *SWAP_STEPS):
        raise KeyError(step)
    _armed[step] = action
    try:
        yield
    finally:
        del _armed[step]
