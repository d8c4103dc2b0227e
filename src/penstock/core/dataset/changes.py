"""A commit as data: what becomes of which datasets, and what the writer is told afterwards."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock.core.names import DatasetName
from penstock.core.dataset.column_stats import Bounds, Stats, may_hold


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that is complete and durable, and that no version holds yet."""

    path: str  # below the workspace
    rows: int
    bytes: int
    checksum: str
    stats: Mapping[str, Stats]
    row_ids: tuple[int, int] | None = None  # lowest and highest id that the file carries; None: fresh rows
    first_row_id: int | None = None  # of fresh rows: row i has the id first_row_id + i; None: not known yet

    def may_hold(self, bounds: Bounds) -> bool:
        """Can a row lie within all of these?"""
        return all(may_hold(self.stats.get(name), self.rows, low, high) for name, (low, high) in bounds.items())


@dataclass(frozen=True, slots=True)
class DataFile(NewFile):
    """A data file that some version holds."""

    number: int = 0
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class Creation:
    """The dataset that a change brings into being."""

    name: DatasetName
    row_ids: bool = True
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    dataset: UUID
    base: int  # the version the writer read; it must still be the newest, unless `rebase`
    operation: str
    schema: pa.Schema  # what the added files were written with
    added: tuple[NewFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    counts: Counts = Counts()
    alters: bool = False  # does `schema` become the dataset's?
    create: Creation | None = None
    rebase: bool = False  # is it as true of any later version in which the removed files still live?
    request: str = ""  # what was asked for, where the caller gave the request a key

    @property
    def empty(self) -> bool:
        return not (self.added or self.removed or self.alters or self.create)


@dataclass(frozen=True, slots=True)
class Written:
    """What one dataset got."""

    dataset: UUID
    name: str
    version: int
    operation: str
    rows: int  # the dataset's rows afterwards
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    first_row_id: int | None = None  # of its new rows, where their ids follow one another


@dataclass(frozen=True, slots=True)
class Share:
    """What one request has in a commit, and what it is known by when it is sent again."""

    key: str
    request: str | None  # its fingerprint; None: whatever was asked for by that key
    rows: int | None = None  # of the new rows, in their order; None: the commit is all its own

    @staticmethod
    def told(shares: Sequence["Share"], written: tuple[Written, ...]) -> Iterator[tuple["Share", tuple[Written, ...]]]:
        """What each of them is told of what was written."""
        before = 0
        for share in shares:
            if share.rows is None:
                yield share, written
                continue
            (whole,) = written
            first = whole.first_row_id + before if share.rows and whole.first_row_id is not None else None
            yield share, (replace(whole, inserted=share.rows, first_row_id=first),)
            before += share.rows


@dataclass(frozen=True, slots=True)
class Receipt:
    key: str
    commit_no: int
    written: tuple[Written, ...]
    at: datetime
    replayed: bool = field(default=False, compare=False)  # this request had been carried out before

    @property
    def version(self) -> int:
        """The version made, where only one dataset was written."""
        (only,) = self.written
        return only.version

    def again(self) -> "Receipt":
        return replace(self, replayed=True)

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat(), "written": [asdict(w) for w in self.written]}


AUTOMATIC = "auto:"  # how a key starts that nobody chose; who knows it sent the request, so it is not compared


def fingerprint(changes: tuple[Change, ...]) -> str:
    """The same for the same request, whatever versions it met: what tells a replay from another use of a key."""
    asked = [[str(c.create.name if c.create else c.dataset), c.operation, c.request] for c in changes]
    return hashlib.sha256(json.dumps(sorted(asked)).encode()).hexdigest()
