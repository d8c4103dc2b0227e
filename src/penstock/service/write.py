"""The way of a write: who, validate, stage, commit, receipt. Read this first."""

from collections.abc import Callable, Iterable, Iterator
from uuid import UUID, uuid4

import pyarrow as pa

from penstock import faults
from penstock.catalog import commit as commits
from penstock.catalog import history
from penstock.core.caller import Caller, Role
from penstock.core.change import Change, Counts, Creation, NewFile, Receipt
from penstock.core.dataset import Snapshot
from penstock.core.names import DatasetName
from penstock.core.schema import canonical, check_fits
from penstock.errors import Conflict, Invalid, PenstockError, Undecided, Unsupported
from penstock.service.source import Source, checked
from penstock.service.workspace import Workspace
from penstock.storage import datafiles

Progress = Callable[[int], None]  # hears how many rows were written since it last heard

MAX_KEY = 200


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
    with Stage(ws, caller, progress) as stage:
        return stage.commit([stage.append(target, source)], key)


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
    with Stage(ws, caller, progress) as stage:
        return stage.commit([stage.overwrite(target, source, base=base)], key)


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
    with Stage(ws, caller, progress) as stage:
        creation = Creation(name, row_ids=row_ids, read_only=read_only)
        return stage.commit([stage.create(creation, schema, source)], key)


def writable(ws: Workspace, caller: Caller, dataset: UUID) -> Snapshot:
    """The newest version of a dataset that the caller may write to."""
    caller.require(Role.DEVELOPER)
    with ws.db.read(caller) as tx:
        target = history.newest(tx, dataset)
    if target.read_only:
        raise Unsupported("read_only", f"{target.name} is read-only", dataset=str(target.name))
    return target


class Stage:
    """Files written for one commit. Removed at the end unless it happened, or nobody knows whether it did."""

    def __init__(self, ws: Workspace, caller: Caller, progress: Progress | None = None) -> None:
        self._ws, self._caller, self._progress = ws, caller, progress
        self._lease = ws.writers.lease(caller)
        self._files: list[NewFile] = []
        faults.at("stage.begun")

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Conflict):
            self._ws.writers.forget(self._caller, error)
        self.discard()

    def append(self, target: Snapshot, source: Source) -> Change:
        check_fits(source.schema, target.schema)
        added = self.write(target.location, target.schema, self._rows(source, target.schema))
        counts = Counts(inserted=sum(file.rows for file in added))
        return Change(
            target.dataset, target.version.number, "append", target.schema, added=added, counts=counts, rebase=True
        )

    def overwrite(self, target: Snapshot, source: Source, *, base: int | None = None) -> Change:
        check_fits(source.schema, target.schema)
        base = target.version.number if base is None else base
        with self._ws.db.read(self._caller) as tx:
            there = history.files(tx, history.at_version(tx, target.dataset, base))
        added = self.write(target.location, target.schema, self._rows(source, target.schema))
        counts = Counts(inserted=sum(f.rows for f in added), deleted=sum(f.rows for f in there))
        return Change(
            target.dataset, base, "overwrite", target.schema, added=added, removed=tuple(there), counts=counts
        )

    def create(self, creation: Creation, schema: pa.Schema, source: Source | None) -> Change:
        dataset, kept = uuid4(), canonical(schema)
        added: tuple[NewFile, ...] = ()
        if source is not None:
            check_fits(source.schema, kept)
            added = self.write(commits.location(self._caller, dataset), kept, self._rows(source, kept))
        counts = Counts(inserted=sum(file.rows for file in added))
        return Change(dataset, 0, "create", kept, added=added, counts=counts, create=creation)

    def write(self, folder: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[NewFile, ...]:
        added = datafiles.write(
            self._ws.store, folder, self._lease, schema, batches, shape=self._ws.shape, wrote=self._wrote
        )
        self._files += added
        return added

    def commit(self, changes: list[Change], key: str | None = None) -> Receipt:
        request = checked_key(key)
        mine, self._files = self._files, []  # from here on only a plain refusal makes them ours to remove again
        try:
            receipt = commits.commit(self._ws.db, self._caller, changes, lease=self._lease, key=request)
        except Undecided:
            raise
        except PenstockError:
            self._files = mine
            raise
        if receipt.replayed:  # the first request brought its own files
            self._files = mine
        return receipt

    def discard(self) -> None:
        """Remove what was written and not committed."""
        datafiles.discard(self._ws.store, self._files)
        self._files = []

    def _rows(self, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return checked(iter(source), schema, self._ws.limits)

    def _wrote(self, rows: int) -> None:
        self._ws.writers.beat(self._caller)
        if self._progress:
            self._progress(rows)


def checked_key(key: str | None) -> str:
    """The name of a request: the caller's own, or one that nobody else has."""
    if key is None:
        return f"auto:{uuid4()}"
    if not 0 < len(key) <= MAX_KEY or not key.isprintable() or key.startswith("auto:"):
        raise Invalid(
            "bad_idempotency_key",
            f"an idempotency key is 1 to {MAX_KEY} printable characters and does not start with 'auto:'",
        )
    return key
