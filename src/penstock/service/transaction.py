"""Several writes that become visible together, or not at all."""

from dataclasses import replace
from types import TracebackType
from uuid import UUID

from penstock.core.caller import Caller
from penstock.core.change import Change, Counts, Receipt
from penstock.core.dataset import Snapshot
from penstock.core.merge import Merged
from penstock.errors import Unsupported
from penstock.service.merge import Asked, Merging
from penstock.service.source import Rows, Source
from penstock.service.workspace import Workspace
from penstock.service.write import Progress, Stage, writable


class Transaction:
    """Writes are staged as they are asked for, and committed at the end of the `with` block; an error drops them all."""

    receipt: Receipt | None = None

    def __init__(
        self, ws: Workspace, caller: Caller, *, key: str | None = None, progress: Progress | None = None
    ) -> None:
        self._ws, self._caller = ws, caller
        self._stage = Stage(ws, caller, progress, key)
        self._changes: dict[UUID, Change] = {}
        self._over = False

    def append(self, dataset: UUID, source: Source) -> None:
        target = self._writable(dataset)
        if (before := self._changes.get(dataset)) and not before.rebase:
            raise _written_twice(target)
        change = self._stage.append(target, source)
        if before:
            counts = Counts(inserted=before.counts.inserted + change.counts.inserted)
            request = before.request + change.request
            change = replace(change, added=before.added + change.added, counts=counts, request=request)
        self._changes[dataset] = change

    def overwrite(self, dataset: UUID, source: Source, *, base: int | None = None) -> None:
        target = self._writable(dataset)
        if dataset in self._changes:
            raise _written_twice(target)
        self._changes[dataset] = self._stage.overwrite(target, source, base=base)

    def merge(self, dataset: UUID, rows: Rows, asked: Asked) -> Merged:
        """What it did counts when the transaction is committed; unlike a merge alone it is not redone if overtaken."""
        target = self._writable(dataset)
        if dataset in self._changes:
            raise _written_twice(target)
        with Merging(self._ws, self._caller, self._stage, rows, asked) as merging:
            self._changes[dataset] = merging.change(target)
            return merging.merged

    def __enter__(self) -> "Transaction":
        self._assert_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._assert_open()
        self._over = True
        with self._stage:
            if error is None and self._changes:
                self.receipt = self._stage.commit(list(self._changes.values()))

    def _writable(self, dataset: UUID) -> Snapshot:
        self._assert_open()
        return writable(self._ws, self._caller, dataset)

    def _assert_open(self) -> None:
        if self._over:
            raise Unsupported("transaction_over", "this transaction has ended; begin another")


def _written_twice(target: Snapshot) -> Unsupported:
    return Unsupported(
        "written_twice",
        f"{target.name}: a transaction may append to a dataset often, or overwrite it or merge into it once",
        dataset=str(target.name),
    )
