"""Named steps of a write at which a test may fail or kill the process; inert otherwise.

`at(step)` does nothing until a test arms the step in the same process. No setting, variable or
request can arm one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS = (
    "stage.begun",  # the writer holds a lease; no file exists yet
    "stage.opened",  # the file has a name, and perhaps some bytes
    "stage.written",  # the file is complete, but not yet durable
    "stage.synced",  # the file and its directory are durable
    "commit.begun",  # the SQL transaction is open and the writer's lease was found alive
    "commit.numbered",  # the tenant's commit number is taken
    "commit.versioned",  # (dataset, base + 1) is inserted: this writer won
    "commit.removed",  # replaced files have an end
    "commit.added",  # new files are listed
    "commit.recorded",  # receipt and audit row are written
    "commit.ready",  # nothing is left to do but COMMIT
    "commit.sent",  # COMMIT was carried out, and the answer was lost
    "commit.done",  # the answer arrived; the caller has not heard yet
)

SWAP_STEPS = (  # of a merge into a plain directory
    "swap.locked",  # the directory is ours; nothing is staged
    "swap.staged",  # all new files are complete and durable, under names that nobody reads
    "swap.journaled",  # the journal is durable: from here on the merge is finished, by us or by the next
    "swap.moved",  # a new file has its name
    "swap.removed",  # a replaced file is gone
    "swap.done",  # all is as the journal says; the journal is still there
)

_armed: dict[str, Callable[[], None]] = {}


def at(step: str) -> None:
    if _armed and (act := _armed.get(step)):
        act()


@contextmanager
def armed(step: str, act: Callable[[], None]) -> Iterator[None]:
    if step not in (*STEPS, *SWAP_STEPS):
        raise KeyError(step)
    _armed[step] = act
    try:
        yield
    finally:
        del _armed[step]
