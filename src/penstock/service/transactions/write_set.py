"""The write set of a client's transaction: its changes of all datasets, in a form that any process can continue."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.catalog import snapshots
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change
from penstock.core.names import DatasetName
from penstock.errors import Conflict, NotFound
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.workspace import Workspace


class WriteSet:
    """Hold the overlays of the datasets that a transaction reads and writes."""

    def __init__(self, ws: Workspace, caller: Caller, commit_no: int) -> None:
        self._ws, self._caller, self._commit_no = ws, caller, commit_no
        self._datasets: dict[str, DatasetOverlay] = {}
        self.superseded_files: list[str] = []  # staged files that later ones replaced; a reader may still use them

    def overlay(self, name: DatasetName) -> DatasetOverlay:
        """Return a dataset at the transaction's start, with the writes of the transaction."""
        if name.key not in self._datasets:
            with self._ws.db.read(self._caller) as tx:
                base = snapshots.by_name_at_commit(tx, name, self._commit_no)
            self._datasets[name.key] = DatasetOverlay(self._ws, self._caller, base)
        return self._datasets[name.key]

    def apply(self, overlay: DatasetOverlay, change: Change) -> None:
        """Apply a change, and assign row ids at once, so that every process reads the same ids."""
        self.superseded_files += [file.path for file in overlay.apply(change)]
        if overlay.row_ids:
            overlay.assign_row_ids()

    def changes(self) -> list[Change]:
        """Return one change for each dataset that differs from its base version."""
        changes = [overlay.change() for overlay in self._datasets.values()]
        return [change for change in changes if not change.empty]

    @contextmanager
    def translate_dropped(self) -> Iterator[None]:
        """Report a changed dataset that no longer exists as a conflict that names it."""
        try:
            yield
        except NotFound as error:
            names = {str(overlay.base.dataset): str(overlay.base.name) for overlay in self._datasets.values()}
            name = names.get(error.context.get("dataset", ""))
            if error.reason != "dataset_not_found" or name is None:
                raise
            raise Conflict("dataset_dropped", dataset=name) from None

    @property
    def paths(self) -> list[str]:
        """Return the paths of all staged files, superseded ones included."""
        return [*self.superseded_files, *(path for overlay in self._datasets.values() for path in overlay.staged_paths)]

    def copy(self) -> "WriteSet":
        """Return an independent copy."""
        other = WriteSet(self._ws, self._caller, self._commit_no)
        other._datasets = {name: overlay.copy() for name, overlay in self._datasets.items()}
        other.superseded_files = list(self.superseded_files)
        return other

    def to_json(self) -> str:
        """Serialise the write set for the catalog."""
        written = {
            str(overlay.base.name): overlay.to_json() for overlay in self._datasets.values() if not overlay.is_unchanged
        }
        return json.dumps({"written": written, "spent": self.superseded_files}, separators=(",", ":"))

    @classmethod
    def from_json(cls, ws: Workspace, caller: Caller, commit_no: int, text: str) -> "WriteSet":
        """Restore a write set from `to_json`."""
        write_set, value = cls(ws, caller, commit_no), json.loads(text)
        write_set.superseded_files = value["spent"]
        with ws.db.read(caller) as tx:
            for written, state in value["written"].items():
                name = DatasetName.parse(written)
                base = snapshots.by_name_at_commit(tx, name, commit_no)
                write_set._datasets[name.key] = DatasetOverlay.from_json(ws, caller, base, state)
        return write_set


def staged_paths(text: str) -> list[str]:
    """Return the paths of all staged files of a serialised write set."""
    value = json.loads(text)
    return [*value["spent"], *(file["path"] for state in value["written"].values() for file in state["staged"])]
