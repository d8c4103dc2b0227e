"""Several writes that become visible together, or not at all."""

from types import TracebackType
from uuid import UUID

import pyarrow as pa

from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Receipt
from penstock.core.merge import Merged
from penstock.errors import Unsupported
from penstock.service.datasets.row_edits import Edited, Editing
from penstock.service.datasets.merge import Asked, Merging
from penstock.service.datasets.row_source import Rows, Source
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Progress, Stage, writable


class Transaction:
    """Writes are staged as they are asked for, and committed at the end of the `with` block; an error drops them all.

    A write sees what those before it have left of its dataset.
    """

    receipt: Receipt | None = None

    def __init__(
        self, ws: Workspace, caller: Caller, *, key: str | None = None, progress: Progress | None = None
    ) -> None:
        self._ws, self._caller = ws, caller
        self._stage = Stage(ws, caller, progress, key)
        self._written: dict[UUID, Working] = {}
        self._over = False

    def append(self, dataset: UUID, source: Source) -> None:
        working = self._working(dataset)
        self._apply(working, self._stage.append(working, source))

    def overwrite(self, dataset: UUID, source: Source, *, base: int | None = None) -> None:
        working = self._working(dataset)
        self._apply(working, self._stage.overwrite(working, source, base=base))

    def merge(self, dataset: UUID, rows: Rows, asked: Asked) -> Merged:
        """What it did counts when the transaction is committed; unlike a merge alone it is not redone if overtaken."""
        working = self._working(dataset)
        with Merging(self._ws, self._caller, self._stage, rows, asked) as merging:
            self._apply(working, merging.change(working))
            return merging.merged

    def edit(self, dataset: UUID, ids: pa.Array, rows: pa.Table | None, *, returning: bool = False) -> Edited:
        """Update rows by their ids; with `rows` None, delete them."""
        working = self._working(dataset)
        editing = Editing(self._ws, self._caller, self._stage, ids, rows, returning=returning)
        self._apply(working, editing.change(working))
        return editing.edited

    def schema(self, dataset: UUID) -> pa.Schema:
        """The columns that a dataset has by now."""
        return self._working(dataset).schema

    def __enter__(self) -> "Transaction":
        self._assert_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._assert_open()
        self._over = True
        with self._stage:
            if error is None and self._written:
                self.receipt = self._stage.commit([working.change() for working in self._written.values()])

    def _working(self, dataset: UUID) -> Working:
        self._assert_open()
        if dataset not in self._written:
            self._written[dataset] = Working(self._ws, self._caller, writable(self._ws, self._caller, dataset))
        return self._written[dataset]

    def _apply(self, working: Working, change: Change) -> None:
        self._stage.drop(working.apply(change))

    def _assert_open(self) -> None:
        if self._over:
            raise Unsupported("transaction_over", "this transaction has ended; begin another")
