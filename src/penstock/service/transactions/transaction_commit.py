"""Commit the changes of a transaction, also if compaction has moved their rows to other files."""

from collections.abc import Sequence

from penstock.catalog.commit import OnCommit
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Receipt
from penstock.errors import Conflict
from penstock.service.datasets.row_edits import relocate
from penstock.service.datasets.staging import StagingArea
from penstock.service.workspace import Workspace

_MAX_RELOCATIONS = 20  # of one commit, while compaction continues


def commit_changes(
    ws: Workspace, caller: Caller, stage: StagingArea, changes: Sequence[Change], on_commit: OnCommit | None = None
) -> Receipt:
    """Commit changes of several datasets in one transaction.

    Nothing is executed again. If the file of an edited row was compacted, the row is located in the new file.

    Raises:
        Conflict: another writer has changed rows or files that the changes replace
    """
    changes = list(changes)
    for relocations_left in reversed(range(_MAX_RELOCATIONS)):
        try:
            return stage.commit(changes, on_commit=on_commit)
        except Conflict as error:
            if error.reason != "stale_version" or not relocations_left:
                raise
            relocated = [relocate(ws, caller, change) for change in changes]
            if not any(relocated):
                raise
            changes = [new or change for new, change in zip(relocated, changes, strict=True)]
    raise AssertionError("unreachable")
