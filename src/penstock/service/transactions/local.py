"""Commit several writes of one process together."""

from types import TracebackType
from uuid import UUID

import pyarrow as pa

from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Receipt
from penstock.core.merge import MergeResult
from penstock.errors import Unsupported
from penstock.service.datasets.merge import DatasetMerge, MergeRequest
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_edits import EditResult, RowEdit
from penstock.service.datasets.row_source import RowSource, SourceReader
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import load_writable
from penstock.service.transactions.transaction_commit import commit_changes
from penstock.service.workspace import Workspace


class LocalTransaction:
    """Stage writes and commit them at the end of the `with` block. An error discards all of them.

    A write sees the earlier writes of the transaction.
    """

    receipt: Receipt | None = None

    def __init__(self, ws: Workspace, caller: Caller, *, key: str | None = None) -> None:
        self._ws, self._caller = ws, caller
        self._stage = StagingArea(ws, caller, key=key)
        self._overlays: dict[UUID, DatasetOverlay] = {}
        self._ended = False

    def append(self, dataset: UUID, source: SourceReader) -> None:
        """Append rows to a dataset."""
        overlay = self._overlay(dataset)
        self._apply(overlay, self._stage.append(overlay, source))

    def overwrite(self, dataset: UUID, source: SourceReader, *, base: int | None = None) -> None:
        """Replace all rows of a dataset."""
        overlay = self._overlay(dataset)
        self._apply(overlay, self._stage.overwrite(overlay, source, base=base))

    def merge(self, dataset: UUID, rows: RowSource, request: MergeRequest) -> MergeResult:
        """Merge rows into a dataset. If another writer commits first, the transaction fails: the merge is not repeated."""
        overlay = self._overlay(dataset)
        with DatasetMerge(self._ws, self._caller, self._stage, rows, request) as merging:
            self._apply(overlay, merging.change(overlay))
            return merging.merged

    def edit(self, dataset: UUID, ids: pa.Array, rows: pa.Table | None, *, returning: bool = False) -> EditResult:
        """Update rows by id, or delete them if `rows` is None."""
        overlay = self._overlay(dataset)
        edit = RowEdit(self._ws, self._caller, self._stage, ids, rows, returning=returning, in_transaction=True)
        self._apply(overlay, edit.change(overlay))
        return edit.last_result

    def schema(self, dataset: UUID) -> pa.Schema:
        """Return the schema of a dataset with the changes of the transaction."""
        return self._overlay(dataset).schema

    def __enter__(self) -> "LocalTransaction":
        self._assert_open()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._assert_open()
        self._ended = True
        with self._stage:
            if error is None and self._overlays:
                changes = [overlay.change() for overlay in self._overlays.values()]
                self.receipt = commit_changes(self._ws, self._caller, self._stage, changes)

    def _overlay(self, dataset: UUID) -> DatasetOverlay:
        self._assert_open()
        if dataset not in self._overlays:
            self._overlays[dataset] = DatasetOverlay(
                self._ws, self._caller, load_writable(self._ws, self._caller, dataset)
            )
        return self._overlays[dataset]

    def _apply(self, overlay: DatasetOverlay, change: Change) -> None:
        self._stage.drop(overlay.apply(change))

    def _assert_open(self) -> None:
        if self._ended:
            raise Unsupported("transaction_over.local")
