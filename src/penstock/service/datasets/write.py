"""The way of a write: who, validate, stage, commit, receipt. Read this first."""

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID, uuid4

import pyarrow as pa

from penstock import failpoints as faults
from penstock.catalog import commit as commits
from penstock.catalog import snapshots as history
from penstock.catalog.commit import Record, Settled
from penstock.core.caller import Caller, Role
from penstock.core.dataset.changes import (AUTOMATIC, Change, Counts, Creation, DataFile, NewFile, Receipt, Share, fingerprint)
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.dataset.row_digest import Digest
from penstock.core.merge import Layout
from penstock.core.names import DatasetName
from penstock.core.schema.canonical import canonical, check_fits, to_fields
from penstock.errors import Conflict, Invalid, PenstockError, Undecided, Unsupported
from penstock.service.datasets.row_source import Source, checked
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace
from penstock.storage import data_files as datafiles

T = TypeVar("T")
Progress = Callable[[int], None]  # hears how many rows were written since it last heard

MAX_KEY = 200
_OURS = re.compile(re.escape(AUTOMATIC) + r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WAIT = 120.0  # seconds, for a dataset that is held for somebody else
_ADOPTERS = 4  # files that are hashed and flushed at once


def append(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    source: Source,
    *,
    key: str | None = None,
    progress: Progress | None = None,
) -> Receipt:
    """Add rows. Whoever else writes at the same time, they are added."""
    target = writable(ws, caller, dataset)
    with Stage(ws, caller, progress, key) as stage:
        return stage.commit([stage.append(Working(ws, caller, target), source)])


def overwrite(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    source: Source,
    *,
    base: int | None = None,
    key: str | None = None,
    progress: Progress | None = None,
) -> Receipt:
    """Put rows in place of all that are there. Refused if the dataset moves past `base` (now, unless given)."""
    target = writable(ws, caller, dataset)
    with Stage(ws, caller, progress, key) as stage:
        return stage.commit([stage.overwrite(Working(ws, caller, target), source, base=base)])


def create(
    ws: Workspace,
    caller: Caller,
    name: DatasetName,
    schema: pa.Schema,
    source: Source | None = None,
    *,
    row_ids: bool = True,
    read_only: bool = False,
    key: str | None = None,
    progress: Progress | None = None,
) -> Receipt:
    """Bring a dataset into being, with its first rows if there are some: both or neither."""
    caller.require(Role.DEVELOPER)
    with Stage(ws, caller, progress, key) as stage:
        creation = Creation(name, row_ids=row_ids, read_only=read_only)
        return stage.commit([stage.create(creation, schema, source)])


def writable(ws: Workspace, caller: Caller, dataset: UUID) -> Snapshot:
    """The newest version of a dataset that the caller may write to."""
    caller.require(Role.DEVELOPER)
    with ws.db.read(caller) as tx:
        target = history.newest(tx, dataset)
    if target.read_only:
        raise read_only(target)
    return target


def read_only(target: Snapshot) -> Unsupported:
    return Unsupported("read_only", f"{target.name} is read-only", dataset=str(target.name))


def replay(ws: Workspace, caller: Caller, change: Change, key: str) -> Receipt | None:
    """The receipt of this very request, if it was carried out before."""
    caller.require(Role.DEVELOPER)
    before = commits.lookup(ws.db, caller, key, fingerprint((change,)))
    return before and before.again()


class Stage:
    """Files written for one commit. Removed at the end unless it happened, or nobody knows whether it did."""

    def __init__(
        self,
        ws: Workspace,
        caller: Caller,
        progress: Progress | None = None,
        key: str | None = None,
        *,
        lease: UUID | None = None,
    ) -> None:
        """`lease`: one that somebody else keeps alive, instead of this process's own."""
        self._ws, self._caller, self._progress, self._key = ws, caller, progress, checked_key(key)
        self._kept_alive = lease is not None
        self._lease = lease or ws.writers.lease(caller)
        self._files: list[NewFile] = []
        self._drafts: set[str] = set()  # where an engine may be writing
        self._scratch: str | None = None
        faults.at("stage.begun")

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Conflict):
            self._ws.writers.forget(self._caller, self._lease, error)
        self.discard()

    def append(self, working: Working, source: Source) -> Change:
        added, request = self._rows(working.base.location, source, working.schema)
        return working.appended(added, request)

    def overwrite(self, working: Working, source: Source, *, base: int | None = None) -> Change:
        target, newest = working.base, working.base.version.number
        there: tuple[DataFile, ...] = ()
        if base in (None, newest):  # else the commit will say who came first, or that this was done before
            there = tuple(working.files())
        added, request = self._rows(target.location, source, target.schema)
        counts = Counts(inserted=sum(f.rows for f in added), deleted=sum(f.rows for f in there))
        return Change(
            target.dataset,
            newest if base is None else base,
            "overwrite",
            target.schema,
            added=added,
            removed=there,
            counts=counts,
            request=f"{request} {base}",
        )

    def create(self, creation: Creation, schema: pa.Schema, source: Source | None) -> Change:
        dataset, kept = uuid4(), canonical(schema)
        added: tuple[NewFile, ...] = ()
        request = ""
        if source is not None:
            added, request = self._rows(commits.location(self._caller, dataset), source, kept)
        counts = Counts(inserted=sum(file.rows for file in added))
        asked = f"{request} {to_fields(kept)} {creation}"
        return Change(dataset, 0, "create", kept, added=added, counts=counts, create=creation, request=asked)

    def write(self, folder: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[NewFile, ...]:
        """Stage rows that are known to fit."""
        added = datafiles.write(
            self._ws.store, folder, self._lease, schema, batches, shape=self._ws.shape, wrote=self.wrote
        )
        return self.own(added)

    def writer(self, folder: str, schema: pa.Schema) -> datafiles.Writer:
        """For rows that come batch by batch and are known to fit; `own` what it has written."""
        return datafiles.Writer(self._ws.store, folder, self._lease, schema, shape=self._ws.shape, wrote=self.wrote)

    def own(self, added: tuple[NewFile, ...]) -> tuple[NewFile, ...]:
        self._files += added
        return added

    def draft(self, folder: str) -> str:
        """Where an engine may write a file; `adopt` makes it one of ours."""
        located = self._ws.store.prepare(f"{folder}/{datafiles.name(self._lease)}")
        self._drafts.add(located)
        faults.at("stage.opened")
        return located

    def adopt(self, folder: str, written: Iterable[tuple[str, pa.Schema]]) -> tuple[NewFile, ...]:
        """Take over files that an engine has written: where they are, and what they hold."""
        with ThreadPoolExecutor(_ADOPTERS) as pool:
            added = tuple(pool.map(lambda each: self._adopt(folder, *each), written))
        if added:
            self._ws.store.sync(folder)
            faults.at("stage.synced")
        return added

    def sink(self, folder: str, schema: pa.Schema, beat: Callable[[int], None]) -> "Sink":
        """Where an engine puts new files of a dataset."""
        return Sink(self, folder, Layout(schema, group_rows=self._ws.shape.group_rows), self._ws.shape.file_bytes, beat)

    def link(self, folder: str, files: Iterable[DataFile]) -> tuple[NewFile, ...]:
        """Files of another dataset as files of this one: their bytes are there once, their rows get ids of their own."""
        added = []
        for file in files:
            path = f"{folder}/{datafiles.name(self._lease)}"
            self._ws.store.link(file.path, path)
            added.append(NewFile(path, file.rows, file.bytes, file.checksum, file.stats))
            self._files.append(added[-1])
        if added:
            self._ws.store.sync(folder)
            faults.at("stage.synced")
        return tuple(added)

    def scratch(self) -> str:
        """A folder for what an engine needs on the way."""
        if self._scratch is None:
            self._scratch = f"scratch/{self._caller.tenant}/{datafiles.name(self._lease).removesuffix('.parquet')}"
            os.mkdir(self._ws.store.prepare(self._scratch))
        return self._ws.store.locate(self._scratch)

    @property
    def keyed(self) -> bool:
        """Did the caller choose the request's key?"""
        return not self._key.startswith(AUTOMATIC)

    def replayed(self, change: Change) -> Receipt | None:
        """The receipt of this very request, if it was carried out before."""
        return replay(self._ws, self._caller, change, self._key) if self.keyed else None

    def commit(self, changes: list[Change], *, hold: UUID | None = None, record: Record | None = None) -> Receipt:
        """Carry out the changes. `hold`: the dataset is held for this very writer."""
        db, caller, lease, key = self._ws.db, self._caller, self._lease, self._key
        return self._land(
            lambda: commits.commit(db, caller, changes, lease=lease, key=key, hold=hold, record=record),
            lambda receipt: not receipt.replayed,  # else the first request brought its own files
        )

    def commit_shared(self, append: Change, shares: Sequence[Share]) -> Settled:
        """Carry out an append that several requests share, or say which of them were carried out before."""
        return self._land(
            lambda: commits.commit_shared(self._ws.db, self._caller, append, shares, lease=self._lease),
            lambda settled: all(isinstance(each, Receipt) and not each.replayed for each in settled.values()),
        )

    def _land(self, act: Callable[[], T], landed: Callable[[T], bool]) -> T:
        mine, self._files = self._files, []  # from here on only a plain refusal makes them ours to remove again
        try:
            outcome = _patiently(act)
        except Undecided:
            raise
        except PenstockError:
            self._files = mine
            raise
        if not landed(outcome):
            self._files = mine
        return outcome

    def discard(self) -> None:
        """Remove what was written and not committed."""
        self.discard_files()
        if self._scratch:
            self._ws.store.remove_folder(self._scratch)
            self._scratch = None

    def drop(self, files: Collection[NewFile]) -> None:
        """Remove some of the files: something better has taken their place."""
        gone = {file.path for file in files}
        datafiles.discard(self._ws.store, files)
        self._files = [file for file in self._files if file.path not in gone]

    def let_go(self, paths: Collection[str]) -> None:
        """Leave some of the files to somebody who goes on with them: they are not removed at the end."""
        self._files = [file for file in self._files if file.path not in paths]

    def discard_files(self) -> None:
        datafiles.discard(self._ws.store, self._files)
        self._files = []
        for located in self._drafts:
            with suppress(OSError):
                os.unlink(located)
        self._drafts.clear()

    def _rows(self, folder: str, source: Source, schema: pa.Schema) -> tuple[tuple[NewFile, ...], str]:
        """Stage rows from outside. Where the caller chose a key, also say what they were, to know them again."""
        check_fits(source.schema, schema)
        if not self.keyed:
            return self.write(folder, schema, checked(iter(source), schema, self._ws.limits)), ""
        digest = Digest(source.schema)
        added = self.write(folder, schema, checked(iter(source), schema, self._ws.limits, digest.add))
        return added, digest.hexdigest()

    def _adopt(self, folder: str, located: str, schema: pa.Schema) -> NewFile:
        name = os.path.basename(located) if located in self._drafts else datafiles.name(self._lease)
        file = datafiles.adopt(self._ws.store, located, f"{folder}/{name}", schema)
        self._files.append(file)
        self._drafts.discard(located)
        return file

    def wrote(self, rows: int) -> None:
        """Show progress, and a sign of life."""
        if not self._kept_alive:
            self._ws.writers.beat(self._caller, self._lease)
        if self._progress:
            self._progress(rows)


@dataclass(slots=True)
class Sink:
    """Where an engine puts new files of a dataset; `Stage.adopt` makes them the dataset's."""

    stage: Stage
    place: str
    layout: Layout
    file_bytes: int
    heard: Callable[[int], None]

    def path(self) -> str:
        return self.stage.draft(self.place)

    def folder(self) -> str:
        return f"{self.stage.scratch()}/{uuid4().hex}"

    def beat(self, rows: int) -> None:
        self.stage.wrote(rows)
        self.heard(rows)


def _patiently(act: Callable[[], T]) -> T:
    """While a dataset is held for somebody else, wait."""
    deadline = time.monotonic() + _WAIT
    while True:
        try:
            return act()
        except Conflict as refusal:
            if refusal.reason != "dataset_held" or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def checked_key(key: str | None) -> str:
    """The name of a request: the caller's own, or one that nobody else has."""
    if key is None:
        return f"{AUTOMATIC}{uuid4()}"
    if not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise Invalid("bad_idempotency_key", f"an idempotency key is 1 to {MAX_KEY} printable characters")
    if key.startswith(AUTOMATIC) and not _OURS.fullmatch(key):  # one that was told may be sent again
        raise Invalid("bad_idempotency_key", f"keys that begin with {AUTOMATIC!r} are made by Penstock; choose another")
    return key
