"""The data of a commit: changes to datasets, and the receipt that the writer gets."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock.core.dataset.column_stats import Bounds, ColumnStats, may_contain
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.names import DatasetName


@dataclass(frozen=True, slots=True)
class NewFile:
    """A complete and durable data file that is not yet part of a version."""

    path: str  # relative to the workspace
    rows: int
    bytes: int
    checksum: str
    stats: Mapping[str, ColumnStats]
    row_ids: tuple[int, int] | None = None  # lowest and highest stored row id; None: the rows are new
    first_row_id: int | None = None  # of new rows: row i has the id first_row_id + i; None: not assigned yet
    deleted: DeletionVector | None = None  # rows that do not belong to the dataset any more

    @property
    def live_rows(self) -> int:
        """Return the number of rows without the deleted ones."""
        return self.rows - len(self.deleted) if self.deleted else self.rows

    def may_contain(self, bounds: Bounds) -> bool:
        """Check whether a row of the file may lie within all bounds."""
        return all(may_contain(self.stats.get(name), self.rows, low, high) for name, (low, high) in bounds.items())


@dataclass(frozen=True, slots=True)
class DataFile(NewFile):
    """A data file that is part of at least one version."""

    number: int = 0
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Rows of a live data file that a change deletes, or replaces by rows of an added file."""

    file: DataFile  # with the deletion vector that the writer read
    positions: DeletionVector  # none of them is in that vector
    row_ids: Any = (
        None  # numpy array: the row id of each position; None: they follow from `first_row_id`, or are unknown
    )

    def all_row_ids(self) -> Any:
        """Return the row ids as a numpy array; None if they are unknown."""
        if self.row_ids is not None:
            return self.row_ids
        first = self.file.first_row_id
        return None if first is None else self.positions.positions + first

    def list_row_ids(self, limit: int) -> list[int]:
        """Return the first row ids; none if they are unknown."""
        row_ids = self.all_row_ids()
        return [] if row_ids is None else [int(row_id) for row_id in row_ids[:limit]]


@dataclass(frozen=True, slots=True)
class Counts:
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class NewDataset:
    """Description of a dataset that a change creates."""

    name: DatasetName
    row_ids: bool = True
    read_only: bool = False
    cluster_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    dataset: UUID
    base: int  # version that the writer read; must still be the newest, unless `rebase`
    operation: str
    schema: pa.Schema  # of the added files
    added: tuple[NewFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    counts: Counts = Counts()
    alters_schema: bool = False  # whether `schema` becomes the dataset's schema
    create: NewDataset | None = None
    # Whether it applies to any later version in which the removed files and the deleted rows are still live.
    rebase: bool = False
    request: str = ""  # fingerprint of the request, if the caller gave an idempotency key
    deleted: tuple[DeletedRows, ...] = ()
    read_version: int | None = None  # version whose rows the writer read, if the change was rebased; None: `base`
    cluster_by: tuple[str, ...] | None = None  # the new cluster key; None: it stays as it is

    @property
    def empty(self) -> bool:
        return not (
            self.added
            or self.removed
            or self.deleted
            or self.alters_schema
            or self.create
            or self.cluster_by is not None
        )

    @property
    def rows_read_at(self) -> int:
        """Return the version whose files and deletion vectors the writer read."""
        return self.base if self.read_version is None else self.read_version

    def rebased(self, base: int) -> "Change":
        """Return the change for a newer version in which the rows that the writer read are unchanged."""
        return replace(self, base=base, read_version=self.rows_read_at)


@dataclass(frozen=True, slots=True)
class DatasetCommit:
    """Result of a commit for one dataset."""

    dataset: UUID
    name: str
    version: int
    operation: str
    rows: int  # the dataset's rows afterwards
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    first_row_id: int | None = None  # of the new rows, if their ids are consecutive


@dataclass(frozen=True, slots=True)
class GroupMember:
    """The part of one request in a group commit, with the idempotency key that identifies a retry."""

    key: str
    request: str | None  # its fingerprint; None: any request with that key
    rows: int | None = None  # number of new rows, in order; None: the request has the commit for itself
    counts: Counts | None = None  # of an edit that shares a commit with others

    @staticmethod
    def split_receipts(
        members: Sequence["GroupMember"], written: tuple[DatasetCommit, ...]
    ) -> Iterator[tuple["GroupMember", tuple[DatasetCommit, ...]]]:
        """Yield the part of the commit's result that each request receives."""
        before = 0
        for member in members:
            if member.counts is not None:
                (whole,) = written
                yield member, (replace(whole, **asdict(member.counts)),)
                continue
            if member.rows is None:
                yield member, written
                continue
            (whole,) = written
            first = whole.first_row_id + before if member.rows and whole.first_row_id is not None else None
            yield member, (replace(whole, inserted=member.rows, first_row_id=first),)
            before += member.rows


@dataclass(frozen=True, slots=True)
class Receipt:
    """The stored result of a commit. A repeated request with the same idempotency key returns the same receipt.

    Attributes:
        key: the idempotency key, generated if the request had none
        commit_no: number of the commit of the tenant
        written: name, new version and row counts of each dataset
        at: time of the commit
        replayed: True if an earlier request with the same key was committed
    """

    key: str
    commit_no: int
    written: tuple[DatasetCommit, ...]
    at: datetime
    replayed: bool = field(default=False, compare=False)  # whether the request had been executed before

    @property
    def version(self) -> int:
        """New version of the dataset, of a commit to a single dataset."""
        (commit,) = self.written
        return commit.version

    def as_dict(self) -> dict[str, Any]:
        """Return the receipt as JSON values, with the time in ISO 8601.

        Example:
            >>> receipt = stock.append({"item": ["bolt"], "amount": [2]}, idempotency_key="two bolts")
            >>> receipt.as_dict()["key"], receipt.as_dict()["written"][0]["inserted"]
            ('two bolts', 1)
        """
        return {**asdict(self), "at": self.at.isoformat(), "written": [asdict(w) for w in self.written]}


def mark_replayed(receipt: Receipt) -> Receipt:
    """Return the receipt of an earlier request as the response to a repeated one."""
    return replace(receipt, replayed=True)


GENERATED_KEY_PREFIX = (
    "auto:"  # prefix of keys that Penstock generates: only the sender knows them, so requests are not compared
)


def fingerprint(changes: tuple[Change, ...]) -> str:
    """Return a digest that is equal for equal requests, regardless of versions.

    It distinguishes a retry from another use of the same idempotency key.
    """
    requests = [[str(c.create.name if c.create else c.dataset), c.operation, c.request] for c in changes]
    return hashlib.sha256(json.dumps(sorted(requests)).encode()).hexdigest()
