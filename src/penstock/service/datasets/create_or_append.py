"""Write rows to a dataset by name: create the dataset, append to it, or replace its rows."""

from collections.abc import Callable

import pyarrow as pa

from penstock.catalog import receipts
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Receipt
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.core.progress import ProgressCallback
from penstock.errors import NotFound
from penstock.service.datasets.read import find
from penstock.service.datasets.row_source import SourceReader
from penstock.service.datasets.write import append, create, overwrite
from penstock.service.workspace import Workspace


def create_or_append(
    ws: Workspace,
    caller: Caller,
    name: DatasetName,
    open_rows: Callable[[pa.Schema | None], SourceReader],
    *,
    replace: bool = False,
    key: str | None = None,
    progress: ProgressCallback | None = None,
) -> Receipt:
    """Create a dataset from rows, or append them to it if it exists.

    Args:
        ws: the workspace
        caller: the author; needs the role developer
        name: the name of the dataset
        open_rows: opens the source; its argument is the schema of the dataset, or None if the dataset is new
        replace: replace all rows of an existing dataset instead of appending
        key: the idempotency key of the request; None generates one
        progress: receives the number of rows written; may raise to stop the write

    Returns:
        The receipt of the commit.
    """
    target = _find_target(ws, caller, name, key)
    source = open_rows(target and target.schema)
    if target is None:
        return create(ws, caller, name, source.schema, source, key=key, progress=progress)
    write = overwrite if replace else append
    return write(ws, caller, target.dataset, source, key=key, progress=progress)


def _find_target(ws: Workspace, caller: Caller, name: DatasetName, key: str | None) -> Snapshot | None:
    """Return the dataset, or None if it is new or if an earlier attempt of the same request created it."""
    receipt = receipts.find_receipt(ws.db, caller, key) if key else None
    if receipt and receipt.written[0].operation == "create":
        return None
    try:
        return find(ws, caller, name)
    except NotFound:
        return None
