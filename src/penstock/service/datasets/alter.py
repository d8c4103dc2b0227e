"""Add columns to a dataset, widen its types, set its cluster key, or drop it."""

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa

from penstock.catalog import commit
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import Change, Receipt
from penstock.core.dataset.cluster_key import check_cluster_key
from penstock.core.schema.compatibility import evolve
from penstock.core.schema.type_names import to_fields
from penstock.errors import Conflict
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import load_writable
from penstock.service.idempotency import find_replay
from penstock.service.workspace import Workspace

_MAX_ATTEMPTS = 10


def alter(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    *,
    add: pa.Schema | None = None,
    widen: dict[str, pa.DataType] | None = None,
    cluster_by: str | Sequence[str] | None = None,
    key: str | None = None,
) -> Receipt:
    """Add nullable columns, widen types and set the cluster key, as a new version.

    Data files stay as they are: readers cast, and the next compaction sorts. The cluster key belongs to the dataset and
    not to a version, so earlier versions show the present one.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        dataset: the id of the dataset
        add: the columns to add
        widen: the new types by column name
        cluster_by: the columns that compaction sorts the rows by; none removes the cluster key; None keeps it
        key: the idempotency key of the request; None generates one

    Returns:
        The receipt of the commit.

    Raises:
        Invalid: a column or a type does not fit the schema, or the cluster key is invalid
    """
    request = f"{to_fields(add) if add else []} {widen}"
    if cluster_by is not None:
        request += f" {[cluster_by] if isinstance(cluster_by, str) else list(cluster_by)}"
    if key and (before := find_replay(ws, caller, Change(dataset, 0, "alter", pa.schema([]), request=request), key)):
        return before  # the columns exist by now, so that the request itself would fail
    for is_last in [False] * (_MAX_ATTEMPTS - 1) + [True]:
        target = load_writable(ws, caller, dataset)
        schema = evolve(target.schema, add or pa.schema([]), widen or {})
        alters = not schema.equals(target.schema)
        cluster_key = None if cluster_by is None else check_cluster_key(cluster_by, schema)
        change = Change(
            dataset,
            target.version.number,
            "alter",
            schema,
            alters_schema=alters,
            cluster_by=None if cluster_key == target.cluster_by else cluster_key,
            request=request,
        )
        try:
            with StagingArea(ws, caller, key=key) as stage:
                return stage.commit([change])
        except Conflict as error:
            # Another writer has committed; evolve the schema of the newest version.
            if is_last or error.reason != "stale_version":
                raise
    raise AssertionError("unreachable")


def drop(ws: Workspace, caller: Caller, dataset: UUID, *, force: bool = False) -> None:
    """Drop a dataset and free its name. Its files stay until `sweep` removes them.

    Args:
        ws: the workspace
        caller: needs the role admin
        dataset: the id of the dataset
        force: drop it even if registered queries read it; they fail afterwards

    Raises:
        Unsupported: registered queries read the dataset, and `force` is not set
    """
    caller.require(Role.ADMIN)
    commit.drop_dataset(ws.db, caller, dataset, force=force)
