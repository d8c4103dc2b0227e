"""Combine a snapshot with the staged and removed files of a writer: the dataset as the writer sees it before the commit."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from penstock.catalog import file_rows, snapshots
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Counts, DataFile, DeletedRows, NewFile
from penstock.core.dataset.column_stats import Bounds, stats_parser, to_json, truncate_bounds
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.schema.type_names import from_fields, to_fields
from penstock.service.workspace import Workspace


class DatasetOverlay:
    """Accumulate several changes of one dataset into one change."""

    def __init__(self, ws: Workspace, caller: Caller, base: Snapshot, *, location: str | None = None) -> None:
        """Create an overlay without changes.

        Args:
            ws: the workspace
            caller: the author of the changes
            base: the snapshot that the changes apply to
            location: the folder of the output dataset, if the result becomes another dataset; its rows get new row ids
        """
        self._ws, self._caller = ws, caller
        self.base, self.schema, self.rows = base, base.schema, base.version.rows
        self.location, self.row_ids = location or base.location, base.row_ids and location is None
        self._staged: dict[str, NewFile] = {}
        self._replaced: dict[str, DataFile] = {}
        self._deleted: dict[str, DeletedRows] = {}  # of files of the base that are not replaced
        self._applied: Change | None = None  # the combination of the applied changes, without their files

    @property
    def file_count(self) -> int:
        """Return the number of files, staged ones included."""
        return self.base.version.files - len(self._replaced) + len(self._staged)

    def files(
        self, bounds: Bounds | None = None, *, stats: bool = False, ids: Sequence[tuple[int, int]] | None = None
    ) -> list[DataFile]:
        """List the files of the overlay. Staged files have the number 0.

        Args:
            bounds: list only files that may contain rows within these bounds
            stats: load the column statistics of the files
            ids: ranges of row ids; files of the snapshot without such a row are left out
        """
        with self._ws.db.read(self._caller) as tx:
            files = snapshots.files(tx, self.base, bounds, stats=stats, row_id_ranges=ids)
        remaining = [self._with_deleted(file) for file in files if file.path not in self._replaced]
        if self.row_ids:
            self.assign_row_ids()
        staged = [_staged_data_file(file) for file in self._staged.values() if file.may_contain(bounds or {})]
        return [file for file in remaining if file.live_rows] + staged

    def append_change(self, added: tuple[NewFile, ...], request: str = "") -> Change:
        """Return the change that appends files. It can be rebased over any commit of other writers."""
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
        """Apply a change to the overlay, and return the staged files that it has superseded."""
        superseded: list[NewFile] = []
        for file in change.removed:
            if file.path in self._staged:
                superseded.append(self._staged.pop(file.path))
            else:
                earlier = self._deleted.pop(file.path, None)
                self._replaced[file.path] = earlier.file if earlier else file
        for deleted in change.deleted:
            superseded += self._delete(deleted)
        self._staged |= {file.path: file for file in change.added}
        self.rows += change.counts.inserted - change.counts.deleted
        self.schema = change.schema
        self._applied = _combine(self._applied, change)
        return superseded

    def change(self) -> Change:
        """Return all applied changes as one. It can be rebased if every applied change can."""
        combined = self._applied or replace(self.append_change(()), operation="")
        return replace(
            combined,
            schema=self.schema,
            added=tuple(self._staged.values()),
            removed=tuple(self._replaced.values()),
            deleted=tuple(self._deleted.values()),
        )

    def _delete(self, deleted: DeletedRows) -> list[NewFile]:
        """Delete rows of a file, and return the file if it is a staged one without remaining rows."""
        path = deleted.file.path
        if path not in self._staged:
            earlier = self._deleted.get(path)
            self._deleted[path] = _combine_deleted(earlier, deleted) if earlier else deleted
            return []
        staged = self._staged[path]
        vector = staged.deleted | deleted.positions if staged.deleted else deleted.positions
        self._staged[path] = replace(staged, deleted=vector)
        return [self._staged.pop(path)] if len(vector) == staged.rows else []

    def _with_deleted(self, file: DataFile) -> DataFile:
        """Return a file of the base with a deletion vector that includes the rows deleted by applied changes."""
        deleted = self._deleted.get(file.path)
        if deleted is None:
            return file
        return replace(file, deleted=file.deleted | deleted.positions if file.deleted else deleted.positions)

    def assign_row_ids(self) -> None:
        """Reserve row ids for staged rows: later operations of the writer may rewrite the rows before the commit."""
        unassigned = [file for file in self._staged.values() if file.row_ids is None and file.first_row_id is None]
        if not unassigned:
            return
        count = sum(file.rows for file in unassigned)
        first = file_rows.reserve_row_ids(self._ws.db, self._caller, self.base.dataset, count)
        for file in unassigned:
            self._staged[file.path] = replace(file, first_row_id=first)
            first += file.rows

    def copy(self) -> "DatasetOverlay":
        """Return an independent copy."""
        other = copy(self)
        other._staged, other._replaced, other._deleted = dict(self._staged), dict(self._replaced), dict(self._deleted)
        return other

    @property
    def staged_paths(self) -> list[str]:
        """Return the paths of the staged files."""
        return list(self._staged)

    @property
    def is_unchanged(self) -> bool:
        """Return True if no change was applied."""
        return self._applied is None

    def to_json(self) -> dict[str, Any]:
        """Serialise the applied changes, so that another process can continue.

        The deletion vectors of the base are not included: `from_json` reads them from the catalog.
        """
        assert self._applied is not None
        applied = self._applied
        return {
            "version": self.base.version.number,
            "schema": to_fields(self.schema),
            "rows": self.rows,
            "staged": [_file_to_json(file) for file in self._staged.values()],
            "replaced": [_base_file_to_json(file) for file in self._replaced.values()],
            "deleted": [_deleted_to_json(deleted) for deleted in self._deleted.values()],
            "applied": {
                "base": applied.base,
                "operation": applied.operation,
                "counts": asdict(applied.counts),
                "alters_schema": applied.alters_schema,
                "rebase": applied.rebase,
                "request": applied.request,
            },
        }

    @classmethod
    def from_json(cls, ws: Workspace, caller: Caller, base: Snapshot, value: Mapping[str, Any]) -> "DatasetOverlay":
        """Restore an overlay from `to_json`. The base must be the version that it was serialised with."""
        assert value["version"] == base.version.number, "the overlay has another base version"
        overlay, applied = cls(ws, caller, base), value["applied"]
        overlay.schema, overlay.rows = from_fields(value["schema"]), value["rows"]
        overlay._staged = {file["path"]: _file_from_json(file, overlay) for file in value["staged"]}
        replaced, edited = value["replaced"], value["deleted"]
        numbers = [file[0] for file in (*replaced, *(deleted["file"] for deleted in edited))]
        vectors: Mapping[int, DeletionVector] = {}
        if numbers:
            with ws.db.read(caller) as tx:
                vectors = snapshots.vectors(tx, base, numbers)
        overlay._replaced = {file.path: file for file in (_base_file_from_json(file, vectors) for file in replaced)}
        deleted_rows = [_deleted_from_json(deleted, vectors) for deleted in edited]
        overlay._deleted = {deleted.file.path: deleted for deleted in deleted_rows}
        counts = Counts(**applied["counts"])
        overlay._applied = Change(base.dataset, schema=overlay.schema, **{**applied, "counts": counts})
        return overlay


def _staged_data_file(file: NewFile) -> DataFile:
    return DataFile(
        file.path, file.rows, file.bytes, file.checksum, file.stats, file.row_ids, file.first_row_id, file.deleted
    )


def _combine_deleted(first: DeletedRows, second: DeletedRows) -> DeletedRows:
    """Combine two successive deletions of rows of one file."""
    row_ids = None
    if first.row_ids is not None and second.row_ids is not None:
        positions = np.concatenate([first.positions.positions, second.positions.positions])
        row_ids = np.concatenate([first.row_ids, second.row_ids])[np.argsort(positions)]
    return DeletedRows(first.file, first.positions | second.positions, row_ids)


def _combine(first: Change | None, change: Change) -> Change:
    """Combine two successive changes of a dataset, without their files."""
    if first is None:
        return replace(change, added=(), removed=(), deleted=())
    one, other = first.counts, change.counts
    return replace(
        first,
        operation="+".join(dict.fromkeys([*first.operation.split("+"), change.operation])),
        schema=change.schema,
        counts=Counts(one.inserted + other.inserted, one.updated + other.updated, one.deleted + other.deleted),
        alters_schema=first.alters_schema or change.alters_schema,
        rebase=first.rebase and change.rebase,
        request=first.request + change.request,
    )


def _file_to_json(file: NewFile) -> dict[str, Any]:
    """Serialise a staged file, with its statistics truncated as in the catalog."""
    return {
        "path": file.path,
        "rows": file.rows,
        "bytes": file.bytes,
        "checksum": file.checksum,
        "stats": to_json({name: truncate_bounds(stats) for name, stats in file.stats.items()}),
        "row_ids": file.row_ids,
        "first_row_id": file.first_row_id,
        "deleted": _vector_to_json(file.deleted),
    }


def _base_file_to_json(file: DataFile) -> list[Any]:
    return [file.number, file.path, file.rows, file.bytes, file.first_row_id]


def _base_file_from_json(value: Sequence[Any], vectors: Mapping[int, DeletionVector]) -> DataFile:
    number, path, rows, size, first_row_id = value
    deleted = vectors.get(number)
    return DataFile(path, rows, size, "", {}, number=number, first_row_id=first_row_id, deleted=deleted)


def _deleted_to_json(deleted: DeletedRows) -> dict[str, Any]:
    row_ids = deleted.row_ids
    return {
        "file": _base_file_to_json(deleted.file),
        "positions": _vector_to_json(deleted.positions),
        "row_ids": None if row_ids is None else b64encode(row_ids.astype("<i8").tobytes()).decode(),
    }


def _deleted_from_json(value: Mapping[str, Any], vectors: Mapping[int, DeletionVector]) -> DeletedRows:
    positions = _vector_from_json(value["positions"])
    assert positions is not None
    row_ids = None if value["row_ids"] is None else np.frombuffer(b64decode(value["row_ids"]), "<i8")
    return DeletedRows(_base_file_from_json(value["file"], vectors), positions, row_ids)


def _vector_to_json(vector: DeletionVector | None) -> str | None:
    return b64encode(vector.to_bytes()).decode() if vector else None


def _vector_from_json(text: str | None) -> DeletionVector | None:
    return DeletionVector.from_bytes(b64decode(text)) if text else None


def _file_from_json(value: Mapping[str, Any], overlay: DatasetOverlay) -> NewFile:
    row_ids = value["row_ids"]
    return NewFile(
        **{
            **value,
            "stats": stats_parser(overlay.schema)(value["stats"]),
            "row_ids": row_ids and (row_ids[0], row_ids[1]),
            "deleted": _vector_from_json(value["deleted"]),
        }
    )
