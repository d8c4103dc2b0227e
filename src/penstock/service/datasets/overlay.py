"""A dataset as a writer has it so far: a version, without the files it has replaced, with those it has staged."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from typing import Any

from penstock.catalog import commit as commits
from penstock.catalog import snapshots as history
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Counts, DataFile, NewFile
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.schema.canonical import from_fields, to_fields
from penstock.core.dataset.column_stats import Bounds, cut, from_json, to_json
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
        self._done: Change | None = None  # all that was applied, without its files

    @property
    def file_count(self) -> int:
        return self.base.version.files - len(self._replaced) + len(self._staged)

    def files(
        self, bounds: Bounds | None = None, *, stats: bool = False, ids: Sequence[tuple[int, int]] | None = None
    ) -> list[DataFile]:
        """The files that are there by now; with bounds, only those that may hold such rows. Staged ones have number 0.

        `ids`: stretches of row ids; files of the version that lie elsewhere are left out.
        """
        with self._ws.db.read(self._caller) as tx:
            there = history.files(tx, self.base, bounds, stats=stats, ids=ids)
        kept = [file for file in there if file.path not in self._replaced]
        if self.row_ids:
            self.give_ids()
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
        self._done = _both(self._done, change)
        return gone

    def change(self) -> Change:
        """All changes as one. Appends alone are as true of any later version."""
        done = self._done or replace(self.appended(()), operation="")
        return replace(
            done, schema=self.schema, added=tuple(self._staged.values()), removed=tuple(self._replaced.values())
        )

    def give_ids(self) -> None:
        """Fresh rows may be found and rewritten before they are committed: they need their ids now."""
        fresh = [file for file in self._staged.values() if file.row_ids is None and file.first_row_id is None]
        if not fresh:
            return
        count = sum(file.rows for file in fresh)
        first = commits.reserve_row_ids(self._ws.db, self._caller, self.base.dataset, count)
        for file in fresh:
            self._staged[file.path] = replace(file, first_row_id=first)
            first += file.rows

    def copy(self) -> "Working":
        """The same so far; what becomes of one is nothing to the other."""
        other = copy(self)
        other._staged, other._replaced = dict(self._staged), dict(self._replaced)
        return other

    @property
    def staged(self) -> list[str]:
        """Where the files are that it has written, and that no version holds yet."""
        return list(self._staged)

    @property
    def untouched(self) -> bool:
        return self._done is None

    def as_json(self) -> dict[str, Any]:
        """Enough for another process to go on from here."""
        assert self._done is not None
        done = self._done
        return {
            "version": self.base.version.number,
            "schema": to_fields(self.schema),
            "rows": self.rows,
            "staged": [_as_json(file) for file in self._staged.values()],
            "replaced": [[file.number, file.path, file.rows, file.bytes] for file in self._replaced.values()],
            "done": {
                "base": done.base,
                "operation": done.operation,
                "counts": asdict(done.counts),
                "alters": done.alters,
                "rebase": done.rebase,
                "request": done.request,
            },
        }

    @classmethod
    def from_json(cls, ws: Workspace, caller: Caller, base: Snapshot, told: Mapping[str, Any]) -> "Working":
        assert told["version"] == base.version.number, "another version than it was begun with"
        working, done = cls(ws, caller, base), told["done"]
        working.schema, working.rows = from_fields(told["schema"]), told["rows"]
        working._staged = {file["path"]: _from_json(file, working) for file in told["staged"]}
        working._replaced = {
            path: DataFile(path, rows, size, "", {}, number=number) for number, path, rows, size in told["replaced"]
        }
        working._done = Change(base.dataset, schema=working.schema, **{**done, "counts": Counts(**done["counts"])})
        return working


def _shown(file: NewFile) -> DataFile:
    return DataFile(file.path, file.rows, file.bytes, file.checksum, file.stats, file.row_ids, file.first_row_id)


def _both(before: Change | None, change: Change) -> Change:
    """One change after the other, without their files."""
    if before is None:
        return replace(change, added=(), removed=())
    one, other = before.counts, change.counts
    return replace(
        before,
        operation="+".join(dict.fromkeys([*before.operation.split("+"), change.operation])),
        schema=change.schema,
        counts=Counts(one.inserted + other.inserted, one.updated + other.updated, one.deleted + other.deleted),
        alters=before.alters or change.alters,
        rebase=before.rebase and change.rebase,
        request=before.request + change.request,
    )


def _as_json(file: NewFile) -> dict[str, Any]:
    """With as much of the statistics as the catalog would keep."""
    return {
        "path": file.path,
        "rows": file.rows,
        "bytes": file.bytes,
        "checksum": file.checksum,
        "stats": to_json({name: cut(stats) for name, stats in file.stats.items()}),
        "row_ids": file.row_ids,
        "first_row_id": file.first_row_id,
    }


def _from_json(told: Mapping[str, Any], working: Working) -> NewFile:
    ids = told["row_ids"]
    return NewFile(
        **{
            **told,
            "stats": from_json(working.schema)(told["stats"]),
            "row_ids": ids and (ids[0], ids[1]),
        }
    )
