"""A dataset as a writer has it so far: a version, without the files it has replaced, with those it has staged."""

from dataclasses import replace

from penstock.catalog import commit as commits
from penstock.catalog import history
from penstock.core.caller import Caller
from penstock.core.change import Change, Counts, DataFile, NewFile
from penstock.core.dataset import Snapshot
from penstock.core.stats import Bounds
from penstock.service.workspace import Workspace


class Working:
    """Several changes on their way to become one."""

    def __init__(self, ws: Workspace, caller: Caller, base: Snapshot, *, location: str | None = None) -> None:
        """`location`: where the result goes, if it becomes another dataset. Rows get new ids there, so none are kept."""
        self._ws, self._caller = ws, caller
        self.base, self.schema, self.rows = base, base.schema, base.version.rows
        self.location, self.row_ids = location or base.location, base.row_ids and location is None
        self._staged: dict[str, NewFile] = {}
        self._replaced: dict[str, DataFile] = {}
        self._changes: list[Change] = []

    @property
    def file_count(self) -> int:
        return self.base.version.files - len(self._replaced) + len(self._staged)

    def files(self, bounds: Bounds | None = None, *, stats: bool = False) -> list[DataFile]:
        """The files that are there by now; with bounds, only those that may hold such rows. Staged ones have number 0."""
        with self._ws.db.read(self._caller) as tx:
            there = history.files(tx, self.base, bounds, stats=stats)
        kept = [file for file in there if file.path not in self._replaced]
        if self.row_ids:
            self._give_ids()
        return kept + [_shown(file) for file in self._staged.values() if file.may_hold(bounds or {})]

    def appended(self, added: tuple[NewFile, ...], request: str = "") -> Change:
        """The change that adds these files, whoever else writes at the same time."""
        base, counts = self.base, Counts(inserted=sum(file.rows for file in added))
        return Change(
            base.dataset,
            base.version.number,
            "append",
            self.schema,
            added=added,
            counts=counts,
            rebase=True,
            request=request,
        )

    def apply(self, change: Change) -> list[NewFile]:
        """Go on from what a change leaves. The answer is those staged files that nobody needs any more."""
        gone = [self._staged.pop(file.path) for file in change.removed if file.path in self._staged]
        known = {file.path for file in gone}
        self._replaced |= {file.path: file for file in change.removed if file.path not in known}
        self._staged |= {file.path: file for file in change.added}
        self.rows += change.counts.inserted - change.counts.deleted
        self.schema = change.schema
        self._changes.append(change)
        return gone

    def change(self) -> Change:
        """All changes as one. Appends alone are as true of any later version."""
        done = self._changes
        return Change(
            self.base.dataset,
            done[0].base if done else self.base.version.number,
            "+".join(dict.fromkeys(each.operation for each in done)),
            self.schema,
            added=tuple(self._staged.values()),
            removed=tuple(self._replaced.values()),
            counts=Counts(
                sum(each.counts.inserted for each in done),
                sum(each.counts.updated for each in done),
                sum(each.counts.deleted for each in done),
            ),
            alters=any(each.alters for each in done),
            rebase=all(each.rebase for each in done),
            request="".join(each.request for each in done),
        )

    def _give_ids(self) -> None:
        """Fresh rows may be found and rewritten before they are committed: they need their ids now."""
        fresh = [file for file in self._staged.values() if file.row_ids is None and file.first_row_id is None]
        if not fresh:
            return
        count = sum(file.rows for file in fresh)
        first = commits.reserve_row_ids(self._ws.db, self._caller, self.base.dataset, count)
        for file in fresh:
            self._staged[file.path] = replace(file, first_row_id=first)
            first += file.rows


def _shown(file: NewFile) -> DataFile:
    return DataFile(file.path, file.rows, file.bytes, file.checksum, file.stats, file.row_ids, file.first_row_id)
