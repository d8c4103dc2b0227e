"""Let a dataset's schema grow, or take the dataset out of sight."""

from uuid import UUID

import pyarrow as pa

from penstock.catalog import commit as commits
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import Change, Receipt
from penstock.core.schema.canonical import grown, to_fields
from penstock.errors import Conflict
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Stage, replay, writable

_TRIES = 10


def alter(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    *,
    add: pa.Schema | None = None,
    widen: dict[str, pa.DataType] | None = None,
    key: str | None = None,
) -> Receipt:
    """Add nullable columns and widen types, as a new version. No file is rewritten: readers cast."""
    asked = f"{to_fields(add) if add else []} {widen}"
    if key and (before := replay(ws, caller, Change(dataset, 0, "alter", pa.schema([]), request=asked), key)):
        return before  # what was added once cannot be added again
    for last in [False] * (_TRIES - 1) + [True]:
        target = writable(ws, caller, dataset)
        schema = grown(target.schema, add or pa.schema([]), widen or {})
        changes = not schema.equals(target.schema)
        change = Change(dataset, target.version.number, "alter", schema, alters=changes, request=asked)
        try:
            with Stage(ws, caller, key=key) as stage:
                return stage.commit([change])
        except Conflict as refusal:
            # Somebody wrote in between; the new schema is worked out again from what is there now.
            if last or refusal.reason != "stale_version":
                raise
    raise AssertionError("unreachable")


def drop(ws: Workspace, caller: Caller, dataset: UUID) -> None:
    """Take a dataset out of sight and free its name. Its files stay until `sweep` is told to remove them."""
    caller.require(Role.ADMIN)
    commits.drop(ws.db, caller, dataset)
