"""Several writes that become visible together, or not at all."""

from dataclasses import replace
from types import TracebackType
from uuid import UUID

from penstock.core.caller import Caller
from penstock.core.change import Change, Counts, Receipt
from penstock.errors import Unsupported
from penstock.service.source import Source
from penstock.service.workspace import Workspace
from penstock.service.write import Progress, Stage, writable


class Transaction:
    """Writes are staged as they are asked for, and committed at the end of the `with` block; an error drops them all."""

    receipt: Receipt | None = None

    def __init__(
        self, ws: Workspace, caller: Caller, *, key: str | None = None, progress: Progress | None = None
    ) -> None:
        self._ws, self._caller, self._key = ws, caller, key
        self._stage = Stage(ws, caller, progress)
        self._changes: dict[UUID, Change] = {}

    def append(self, dataset: UUID, source: Source) -> None:
        self._add(self._stage.append(writable(self._ws, self._caller, dataset), source))

    def overwrite(self, dataset: UUID, source: Source, *, base: int | None = None) -> None:
        self._add(self._stage.overwrite(writable(self._ws, self._caller, dataset), source, base=base))

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stage:
            if error is None and self._changes:
                self.receipt = self._stage.commit(list(self._changes.values()), self._key)

    def _add(self, change: Change) -> None:
        before = self._changes.get(change.dataset)
        if before and not (before.rebase and change.rebase):
            raise Unsupported(
                "written_twice", "a transaction may append to a dataset often, but overwrite it once and then no more"
            )
        if before:
            counts = Counts(inserted=before.counts.inserted + change.counts.inserted)
            change = replace(before, added=before.added + change.added, counts=counts)
        self._changes[change.dataset] = change
