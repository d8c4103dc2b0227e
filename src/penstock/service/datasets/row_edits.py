"""Update and delete rows by their ids, as a new version: only the files that hold them are written anew.

An edit is as true of any later version in which those files still live, so rows that others add do not disturb it.
Whoever meets a file that somebody else has replaced meanwhile looks for the rows again.
"""

import threading
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from penstock.catalog import snapshots as history
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Counts, DataFile, Receipt
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.dataset.row_digest import Digest
from penstock.core.schema.exact_match import check_exact
from penstock.core.merge.key_index import first_repeat
from penstock.core.merge import Layout, TargetFile
from penstock.core.names import CARRIED, ROWID
from penstock.core.dataset.row_ids import RowIds
from penstock.engines.arrow.parquet_io import ROW_ID
from penstock.engines.arrow.row_edits import Hits, find, pick, rewrite
from penstock.errors import Invalid, NotFound, Unsupported
from penstock.service.datasets.commit_retry import Attempt, land
from penstock.service.datasets.row_source import checked
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Progress, Stage, writable

_SHOWN_ID = pa.field(ROWID, pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class Edited:
    affected: int
    returned: pa.Table | None  # the dataset's columns, then `rowid`; None: nobody asked
    receipt: Receipt | None = None  # None: it is part of a transaction


def update(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    ids: pa.Array,
    rows: pa.Table,
    *,
    returning: bool = False,
    key: str | None = None,
    progress: Progress | None = None,
) -> Edited:
    """Put row i in place of the row with the i-th id. One that is missing, and nothing changes."""
    return _edit(ws, caller, dataset, ids, rows, returning, key, progress)


def delete(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    ids: pa.Array,
    *,
    returning: bool = False,
    key: str | None = None,
    progress: Progress | None = None,
) -> Edited:
    """Take out the rows with these ids. Those that are missing are not missed."""
    return _edit(ws, caller, dataset, ids, None, returning, key, progress)


def _edit(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    ids: pa.Array,
    rows: pa.Table | None,
    returning: bool,
    key: str | None,
    progress: Progress | None,
) -> Edited:
    target = Working(ws, caller, writable(ws, caller, dataset))
    with Stage(ws, caller, progress, key) as stage:
        editing = Editing(ws, caller, stage, ids, rows, returning=returning)
        if before := stage.replayed(editing.request(target)):
            return editing.told(before)

        def attempt() -> Attempt:
            return Attempt(editing.change(Working(ws, caller, writable(ws, caller, dataset))), lambda _: None)

        return editing.told(land(ws, caller, stage, dataset, attempt))


class Editing:
    """One update or delete on its way: the ids are sorted once, and meet as many versions as it takes."""

    def __init__(
        self,
        ws: Workspace,
        caller: Caller,
        stage: Stage,
        ids: pa.Array,
        rows: pa.Table | None,
        *,
        returning: bool = False,
    ) -> None:
        self._ws, self._caller, self._stage, self._returning = ws, caller, stage, returning
        self._verb = "DELETE" if rows is None else "UPDATE"
        check_ids(ids, self._verb)
        if rows is not None:
            check_count(len(ids), rows.num_rows)
        self._ids, self._asked = ids, RowIds.of(ids.to_numpy())
        self._given, self._rows = rows, rows
        self._digest = ""
        self._met: pa.Schema | None = None  # what the rows were brought to
        self.edited = Edited(0, None)  # what the last change came to

    def request(self, target: Working) -> Change:
        """What is asked for, as a change that does nothing yet."""
        check_supported(target.base, self._verb)
        self._meet(target.schema)
        return Change(
            target.base.dataset,
            target.base.version.number,
            self._verb.lower(),
            target.schema,
            rebase=True,
            request=self._digest,
        )

    def change(self, target: Working) -> Change:
        """Find and write: the change that makes the next version."""
        request = self.request(target)
        files = {self._ws.store.locate(file.path): file for file in target.files(ids=self._asked.spans())}
        hits = self._found(files, target.schema)
        affected = sum(map(len, hits))
        seen = _Seen(self._ws.limits.returned_bytes) if self._returning and self._rows is None else None
        sink = self._stage.sink(target.location, target.schema, lambda _: None)
        outputs = rewrite(hits, self._rows, sink, seen.hear if seen else None)
        # A file is hashed and made durable while the next ones are being written.
        added = self._stage.adopt(target.location, ((output.path, target.schema) for output in outputs))
        updates = self._rows is not None
        gone = 0 if updates else affected
        assert sum(file.rows for file in added) == sum(each.file.rows for each in hits) - gone, "rows were lost"
        self.edited = Edited(affected, seen.table(target.schema) if seen else self._sent())
        return replace(
            request,
            added=added,
            removed=tuple(files[each.file.path] for each in hits),
            counts=Counts(updated=affected) if updates else Counts(deleted=affected),
        )

    def told(self, receipt: Receipt) -> Edited:
        """What it came to, once it is committed; perhaps by an earlier request, which this one repeats."""
        if not receipt.replayed:
            return replace(self.edited, receipt=receipt)
        (written,) = receipt.written
        returned = self._sent()
        if self._returning and self._rows is None:
            returned = self._were(receipt)
        return Edited(written.updated + written.deleted, returned, receipt)

    def _meet(self, schema: pa.Schema) -> None:
        """The rows proven sound, and brought to the schema; and what tells this request from another."""
        if schema == self._met:
            return
        if self._stage.keyed:
            ids = pa.record_batch([self._ids], ["ids"])
            digest = Digest(ids.schema)
            digest.add(ids)
            self._digest = digest.hexdigest()
        if self._given is not None:
            self._rows, told = self._fitting(self._given, schema)
            self._digest += told
        self._met = schema

    def _fitting(self, given: pa.Table, schema: pa.Schema) -> tuple[pa.Table, str]:
        check_exact(given.schema, schema)  # again: a column may have come since the caller looked
        digest = Digest(given.schema) if self._stage.keyed else None
        heard = digest.add if digest else (lambda _: None)
        fitting = checked(iter(given.to_batches()), schema, self._ws.limits, heard)
        rows = pa.Table.from_batches(fitting, schema)
        if self._returning and rows.nbytes + self._ids.nbytes > self._ws.limits.returned_bytes:
            raise returned_too_large(self._ws.limits.returned_bytes)
        return rows, f" {digest.hexdigest()}" if digest else ""

    def _found(self, files: dict[str, DataFile], schema: pa.Schema) -> list[Hits]:
        """Where the ids are. An update needs all of them."""
        hits = find([self._target(path, file, schema) for path, file in files.items()], self._asked)
        found = np.zeros(len(self._ids), dtype=bool)
        for each in hits:
            found[each.places] = True
        assert found.sum() == sum(map(len, hits)), "an id stands twice"
        missing = self._asked.places[~found[self._asked.places]]
        if len(missing) and self._rows is not None:
            first = self._ids[int(missing.min())].as_py()
            raise NotFound(
                "row_not_found", f"row_id {first} not found in table", row_id=first, missing_rows=len(missing)
            )
        return hits

    def _target(self, path: str, file: DataFile, schema: pa.Schema) -> TargetFile:
        first = file.first_row_id
        ids = file.row_ids if first is None else (first, first + file.rows - 1)
        assert ids is not None
        layout = Layout(schema.append(ROW_ID), group_rows=self._ws.shape.group_rows, differences=True)
        return TargetFile(path, file.rows, layout, bounds={CARRIED: ids}, first_row_id=first)

    def _sent(self) -> pa.Table | None:
        """The rows of an update are stored as they were sent."""
        if not self._returning or self._rows is None:
            return None
        return self._rows.append_column(_SHOWN_ID, self._ids)

    def _were(self, receipt: Receipt) -> pa.Table:
        """What an earlier delete took away, read from the version before it."""
        (written,) = receipt.written
        seen = _Seen(self._ws.limits.returned_bytes)
        with self._ws.db.read(self._caller) as tx:
            if not written.deleted:
                return seen.table(history.newest(tx, written.dataset).schema)
            then = history.at_version(tx, written.dataset, written.version - 1)
            listed = history.files(tx, then, ids=self._asked.spans())
        files = {self._ws.store.locate(file.path): file for file in listed}
        pick(self._found(files, then.schema), seen.hear)
        return seen.table(then.schema)


def check_ids(ids: pa.Array, verb: str) -> None:
    """Refuse what cannot be asked for, before a row is sent or looked for."""
    if not len(ids):
        raise Invalid("empty_row_ids", f"row_ids cannot be empty for {verb}")
    if verb == "UPDATE" and (repeat := first_repeat(ids)):
        row_id = ids[repeat[1]].as_py()
        raise Invalid("duplicate_row_ids", f"row_id {row_id} is given more than once", row_id=row_id)


def check_count(ids: int, rows: int) -> None:
    """Is there a row for each id?"""
    if ids != rows:
        raise Invalid("row_count_mismatch", f"row_ids count ({ids}) does not match input rows ({rows})")


def check_supported(target: Snapshot, verb: str) -> None:
    """Only rows that have ids can be named by them."""
    if verb != "INSERT" and not target.row_ids:
        raise Unsupported(
            "no_row_ids",
            f"table '{target.name.table}' does not support {verb} (no rowid)",
            dataset=str(target.name),
        )


def returned_too_large(most: int) -> Invalid:
    return Invalid(
        "returned_too_large", f"a write gives back at most {most:,} bytes of rows; name fewer rows, or ask for none"
    )


class _Seen:
    """Rows that go, with the places of their ids in the list that was given."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._lock = threading.Lock()
        self._rows: list[pa.RecordBatch] = []
        self._places: list[Any] = []

    def hear(self, places: Any, rows: pa.RecordBatch) -> None:
        with self._lock:
            self._bytes += rows.nbytes
            if self._bytes > self._most:
                raise returned_too_large(self._most)
            self._places.append(places)
            self._rows.append(rows)

    def table(self, schema: pa.Schema) -> pa.Table:
        shown = schema.append(_SHOWN_ID)
        if not self._rows:
            return shown.empty_table()
        whole = pa.Table.from_batches(self._rows)
        order = np.argsort(np.concatenate(self._places))
        return pa.table(whole.take(pa.array(order)).columns, schema=shown)
