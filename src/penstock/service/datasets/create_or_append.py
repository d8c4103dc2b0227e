"""Bring rows into a dataset by name: make it if it is not there, add to it or replace its rows if it is."""

from collections.abc import Callable

import pyarrow as pa

from penstock.catalog import commit as commits
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Receipt
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.errors import NotFound
from penstock.service.datasets.read import find
from penstock.service.datasets.row_source import Source
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Progress, append, create, overwrite


def load(
    ws: Workspace,
    caller: Caller,
    name: DatasetName,
    rows: Callable[[pa.Schema | None], Source],
    *,
    replace: bool = False,
    key: str | None = None,
    progress: Progress | None = None,
) -> Receipt:
    """`rows` opens the source, given the dataset's schema where there is one."""
    there = _there(ws, caller, name, key)
    source = rows(there and there.schema)
    if there is None:
        return create(ws, caller, name, source.schema, source, key=key, progress=progress)
    fill = overwrite if replace else append
    return fill(ws, caller, there.dataset, source, key=key, progress=progress)


def _there(ws: Workspace, caller: Caller, name: DatasetName, key: str | None) -> Snapshot | None:
    """The dataset, unless this very request is the one that made it: sent again, it is a creation again."""
    before = commits.lookup(ws.db, caller, key) if key else None
    if before and before.written[0].operation == "create":
        return None
    try:
        return find(ws, caller, name)
    except NotFound:
        return None
