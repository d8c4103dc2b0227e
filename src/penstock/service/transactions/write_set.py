"""What a client's transaction has written so far, over all its datasets, as any process can go on from it."""

import json

from penstock.catalog import snapshots as history
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change
from penstock.core.names import DatasetName
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace


class Work:
    def __init__(self, ws: Workspace, caller: Caller, commit_no: int) -> None:
        self._ws, self._caller, self._commit_no = ws, caller, commit_no
        self._datasets: dict[str, Working] = {}
        self.spent: list[str] = []  # staged files that later ones replaced: a reader may still be at them

    def working(self, name: DatasetName) -> Working:
        """A dataset as it was at the transaction's start, with what it has written since."""
        if name.key not in self._datasets:
            with self._ws.db.read(self._caller) as tx:
                base = history.named_then(tx, name, self._commit_no)
            self._datasets[name.key] = Working(self._ws, self._caller, base)
        return self._datasets[name.key]

    def apply(self, working: Working, change: Change) -> None:
        """Rows get their ids now: whoever reads them, in whichever process, sees the same."""
        self.spent += [file.path for file in working.apply(change)]
        if working.row_ids:
            working.give_ids()

    def changes(self) -> list[Change]:
        """What is left to commit: one change for each dataset that is not as it was."""
        done = [working.change() for working in self._datasets.values()]
        return [change for change in done if not change.empty]

    @property
    def paths(self) -> list[str]:
        """All its files, wanted or spent."""
        return [*self.spent, *(path for working in self._datasets.values() for path in working.staged)]

    def copy(self) -> "Work":
        other = Work(self._ws, self._caller, self._commit_no)
        other._datasets = {name: working.copy() for name, working in self._datasets.items()}
        other.spent = list(self.spent)
        return other

    def to_json(self) -> str:
        written = {
            str(working.base.name): working.as_json() for working in self._datasets.values() if not working.untouched
        }
        return json.dumps({"written": written, "spent": self.spent}, separators=(",", ":"))

    @classmethod
    def from_json(cls, ws: Workspace, caller: Caller, commit_no: int, text: str) -> "Work":
        work, told = cls(ws, caller, commit_no), json.loads(text)
        work.spent = told["spent"]
        with ws.db.read(caller) as tx:
            for written, state in told["written"].items():
                name = DatasetName.parse(written)
                base = history.named_then(tx, name, commit_no)
                work._datasets[name.key] = Working.from_json(ws, caller, base, state)
        return work


def paths(text: str) -> list[str]:
    """The same of one that nobody will go on with."""
    told = json.loads(text)
    return [*told["spent"], *(file["path"] for state in told["written"].values() for file in state["staged"])]
