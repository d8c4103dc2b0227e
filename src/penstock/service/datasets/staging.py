"""Stage data files for a commit: write, adopt, link, and remove them if the commit is rejected."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID, uuid4

import pyarrow as pa

from penstock import failpoints
from penstock.catalog import commit as catalog_commit
from penstock.catalog.commit import OnCommit
from penstock.catalog.receipts import ReceiptsByKey
from penstock.core.caller import Caller
from penstock.core.dataset.changes import (
    GENERATED_KEY_PREFIX,
    Change,
    Counts,
    DataFile,
    GroupMember,
    NewDataset,
    NewFile,
    Receipt,
)
from penstock.core.dataset.row_digest import RowDigest
from penstock.core.merge import FileLayout
from penstock.core.progress import Progress, ProgressCallback, ProgressTracker
from penstock.core.schema.canonical import canonical_schema
from penstock.core.schema.compatibility import check_fits
from penstock.core.schema.type_names import to_fields
from penstock.core.workspace_layout import dataset_folder, scratch_folder
from penstock.errors import CommitStateUnknown, Conflict, PenstockError
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_source import SourceReader, validated_batches
from penstock.service.idempotency import check_idempotency_key, find_replay
from penstock.service.workspace import Workspace
from penstock.storage import data_files

T = TypeVar("T")
_LOCK_WAIT_SECONDS = 120.0  # for a dataset that another writer has locked
_ADOPT_THREADS = 4  # files that are hashed and flushed at once
_COPY_THREADS = 16


class StagingArea:
    """Own the files written for one commit.

    At the end the staging area removes its files, unless the commit succeeded or its outcome is unknown.

    Attributes:
        progress: tracks the write; every report renews the writer lease if it is due
    """

    def __init__(
        self,
        ws: Workspace,
        caller: Caller,
        progress: ProgressCallback | None = None,
        key: str | None = None,
        *,
        lease: UUID | None = None,
    ) -> None:
        """Create an empty staging area.

        Args:
            ws: the workspace
            caller: the author of the commit
            progress: receives the progress; may raise to stop the write
            key: the idempotency key of the request; None generates one
            lease: a writer lease that the client's transaction keeps alive, instead of the lease of this process
        """
        self._ws, self._caller, self._callback, self._key = ws, caller, progress, check_idempotency_key(key)
        self._store = ws.store_of(caller)
        self.progress = ProgressTracker(self._on_progress)
        self._has_external_lease = lease is not None
        self._lease = lease or ws.writers.lease(caller)
        self._files: list[NewFile] = []
        self._drafts: set[str] = set()  # locations given to an engine that may still be writing
        self._scratch: str | None = None  # location of the scratch folder
        self._scratch_path = ""
        failpoints.hit("stage.begun")

    def __enter__(self) -> "StagingArea":
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Conflict):
            self._ws.writers.forget(self._caller, self._lease, error)
        self.discard()

    def append(self, overlay: DatasetOverlay, source: SourceReader) -> Change:
        """Stage the rows of the source and return the change that appends them."""
        added, request = self._stage_rows(overlay.base.location, source, overlay.schema)
        return overlay.append_change(added, request)

    def overwrite(self, overlay: DatasetOverlay, source: SourceReader, *, base: int | None = None) -> Change:
        """Stage the rows of the source and return the change that replaces all rows of the dataset."""
        target, newest = overlay.base, overlay.base.version.number
        replaced: tuple[DataFile, ...] = ()
        if base in (None, newest):  # otherwise the commit raises a conflict, or returns the receipt of a replay
            replaced = tuple(overlay.files())
        added, request = self._stage_rows(target.location, source, target.schema)
        counts = Counts(inserted=sum(f.rows for f in added), deleted=sum(f.live_rows for f in replaced))
        return Change(
            target.dataset,
            newest if base is None else base,
            "overwrite",
            target.schema,
            added=added,
            removed=replaced,
            counts=counts,
            request=f"{request} {base}",
        )

    def create(self, creation: NewDataset, schema: pa.Schema, source: SourceReader | None) -> Change:
        """Stage the first rows of a new dataset and return the change that creates it."""
        dataset, stored_schema = uuid4(), canonical_schema(schema)
        added: tuple[NewFile, ...] = ()
        request = ""
        if source is not None:
            added, request = self._stage_rows(dataset_folder(self._caller, dataset), source, stored_schema)
        counts = Counts(inserted=sum(file.rows for file in added))
        request = f"{request} {to_fields(stored_schema)} {creation}"
        return Change(dataset, 0, "create", stored_schema, added=added, counts=counts, create=creation, request=request)

    def write(self, folder: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[NewFile, ...]:
        """Stage batches that were validated against the schema before."""
        added = data_files.write_files(
            self._store,
            folder,
            self._lease,
            schema,
            batches,
            sizing=self._ws.file_sizing,
            on_rows_written=self.progress.add,
        )
        return self.track(added)

    def writer(self, folder: str, schema: pa.Schema, *, file_bytes: int | None = None) -> data_files.DataFileWriter:
        """Return a writer for validated batches that arrive one by one. Pass its files to `track`.

        Args:
            folder: the folder of the dataset
            schema: the columns of the files
            file_bytes: size from which a file ends; None: that of the workspace
        """
        sizing = self._ws.file_sizing if file_bytes is None else replace(self._ws.file_sizing, file_bytes=file_bytes)
        return data_files.DataFileWriter(
            self._store, folder, self._lease, schema, sizing=sizing, on_rows_written=self.progress.add
        )

    def track(self, added: tuple[NewFile, ...]) -> tuple[NewFile, ...]:
        """Take ownership of written files: they are removed unless they are committed."""
        self._files += added
        return added

    def draft(self, folder: str) -> str:
        """Return the location for a file that an engine writes. `adopt` registers the file."""
        draft = self._store.draft(f"{folder}/{data_files.new_file_name(self._lease)}")
        self._drafts.add(draft)
        failpoints.hit("stage.opened")
        return draft

    def adopt(self, folder: str, written: Iterable[tuple[str, pa.Schema]]) -> tuple[NewFile, ...]:
        """Register files that an engine has written.

        Args:
            folder: the folder of the dataset
            written: the location and the schema of each file
        """
        with ThreadPoolExecutor(_ADOPT_THREADS) as pool:
            added = tuple(pool.map(lambda file: self._adopt(folder, *file), written))
        if added:
            self._store.sync(folder)
            failpoints.hit("stage.synced")
        return added

    def sink(self, folder: str, schema: pa.Schema) -> "StagedFileSink":
        """Return the sink through which an engine writes new files of a dataset."""
        return StagedFileSink(
            self,
            folder,
            FileLayout(schema, group_rows=self._ws.file_sizing.group_rows),
            self._ws.file_sizing.file_bytes,
        )

    def link(self, folder: str, files: Sequence[DataFile]) -> tuple[NewFile, ...]:
        """Copy files of another dataset into this one, with hard links if the store has them. The rows get new row ids."""
        paths = {file.path: f"{folder}/{data_files.new_file_name(self._lease)}" for file in files}
        added = [
            NewFile(paths[file.path], file.rows, file.bytes, file.checksum, file.stats, deleted=file.deleted)
            for file in files
        ]
        self._files += added
        # A copy within a bucket is one request, and a hard link takes less time than a thread.
        with ThreadPoolExecutor(_COPY_THREADS if self._store.is_remote else 1) as pool:
            copy_all = pool.map if self._store.is_remote else map
            list(copy_all(self._store.copy, paths.keys(), paths.values()))
        if added:
            self._store.sync(folder)
            failpoints.hit("stage.synced")
        return tuple(added)

    def scratch(self) -> str:
        """Return the folder for temporary files of an engine, and create it on the first call."""
        if self._scratch is None:
            name = data_files.new_file_name(self._lease).removesuffix(".parquet")
            self._scratch_path = f"{scratch_folder(self._caller)}/{name}"
            self._scratch = self._store.make_scratch(self._scratch_path)
        return self._scratch

    @property
    def has_client_key(self) -> bool:
        """Return True if the caller chose the idempotency key, False if it was generated."""
        return not self._key.startswith(GENERATED_KEY_PREFIX)

    def find_replay(self, change: Change) -> Receipt | None:
        """Return the receipt of an earlier commit of the same request, or None."""
        return find_replay(self._ws, self._caller, change, self._key) if self.has_client_key else None

    def commit(
        self, changes: list[Change], *, lock_holder: UUID | None = None, on_commit: OnCommit | None = None
    ) -> Receipt:
        """Commit the changes in one transaction.

        Args:
            changes: one change for each dataset
            lock_holder: the holder of the dataset lock, if this writer has locked the dataset
            on_commit: called with the receipt in the transaction of the commit
        """
        db, caller, lease, key = self._ws.db, self._caller, self._lease, self._key
        return self._commit_files(
            lambda: catalog_commit.commit(
                db, caller, changes, lease=lease, key=key, lock_holder=lock_holder, on_commit=on_commit
            ),
            lambda receipt: not receipt.replayed,  # a replay means that the first request committed files of its own
        )

    def group_commit(
        self, change: Change, members: Sequence[GroupMember], *, lock_holder: UUID | None = None
    ) -> ReceiptsByKey:
        """Commit a change that several requests share.

        If some of the requests were committed before, nothing is written, and only their receipts are returned.
        """
        return self._commit_files(
            lambda: catalog_commit.group_commit(
                self._ws.db, self._caller, change, members, lease=self._lease, lock_holder=lock_holder
            ),
            lambda receipts: all(isinstance(r, Receipt) and not r.replayed for r in receipts.values()),
        )

    def _commit_files(self, commit: Callable[[], T], is_committed: Callable[[T], bool]) -> T:
        failpoints.hit("stage.complete")
        # Until the outcome is known the files are not removed: only a definite rejection makes them removable again.
        files, self._files = self._files, []
        try:
            outcome = _retry_while_locked(commit)
        except CommitStateUnknown:
            raise
        except PenstockError:
            self._files = files
            raise
        if not is_committed(outcome):
            self._files = files
        return outcome

    def discard(self) -> None:
        """Remove all files that were written and not committed."""
        self.discard_files()
        if self._scratch:
            self._store.remove_scratch(self._scratch_path)
            self._scratch = None

    def drop(self, files: Collection[NewFile]) -> None:
        """Remove staged files that later files of the same commit have replaced."""
        removed = {file.path for file in files}
        data_files.discard_files(self._store, files)
        self._files = [file for file in self._files if file.path not in removed]

    def release(self, paths: Collection[str]) -> None:
        """Give up ownership of files that a client's transaction keeps: they are not removed at the end."""
        self._files = [file for file in self._files if file.path not in paths]

    def discard_files(self) -> None:
        """Remove the staged data files and drafts, and keep the folder for temporary files."""
        data_files.discard_files(self._store, self._files)
        self._files = []
        for draft in self._drafts:
            self._store.discard_draft(draft)
        self._drafts.clear()

    def _stage_rows(self, folder: str, source: SourceReader, schema: pa.Schema) -> tuple[tuple[NewFile, ...], str]:
        """Validate and stage rows; return the files and, if the caller chose a key, the digest of the rows."""
        check_fits(source.schema, schema)
        if not self.has_client_key:
            return self.write(folder, schema, validated_batches(iter(source), schema, self._ws.limits)), ""
        digest = RowDigest(source.schema)
        added = self.write(folder, schema, validated_batches(iter(source), schema, self._ws.limits, digest.add))
        return added, digest.hexdigest()

    def _adopt(self, folder: str, draft: str, schema: pa.Schema) -> NewFile:
        name = os.path.basename(draft) if draft in self._drafts else data_files.new_file_name(self._lease)
        file = data_files.register_file(self._store, draft, f"{folder}/{name}", schema)
        self._files.append(file)
        self._drafts.discard(draft)
        return file

    def heartbeat(self) -> None:
        """Renew the writer lease if it is due."""
        if not self._has_external_lease:
            self._ws.writers.heartbeat(self._caller, self._lease)

    def _on_progress(self, progress: Progress) -> None:
        self.heartbeat()
        if self._callback:
            self._callback(progress)


@dataclass(slots=True)
class StagedFileSink:
    """Give an engine paths for new files of a dataset. `StagingArea.adopt` registers the files."""

    stage: StagingArea
    location: str
    layout: FileLayout
    file_bytes: int

    def path(self) -> str:
        return self.stage.draft(self.location)

    def folder(self) -> str:
        return f"{self.stage.scratch()}/{uuid4().hex}"

    def add_rows(self, rows: int) -> None:
        self.stage.progress.add(rows)


def _retry_while_locked(commit: Callable[[], T]) -> T:
    """Repeat a commit while another writer has locked the dataset."""
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while True:
        try:
            return commit()
        except Conflict as error:
            if error.reason != "dataset_locked" or time.monotonic() > deadline:
                raise
        time.sleep(0.05)
