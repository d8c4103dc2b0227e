"""The protocol of merge engines, and the files that they read and write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.core.dataset.column_stats import Bounds
from penstock.core.dataset.deletion_vector import DeletionVector
from penstock.core.merge.key_ranges import KeyRanges
from penstock.core.merge.plan import MergePlan

if TYPE_CHECKING:
    from penstock.core.merge.decision import RewritePlan


DEFAULT_GROUP_ROWS = 128 << 10


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Physical layout of a Parquet file. A rewritten file keeps the layout of its predecessor."""

    schema: pa.Schema  # stored columns in order: without partition columns, with `_rowid` if row ids are stored
    codec: str = "zstd"  # as pyarrow names it
    group_rows: int = DEFAULT_GROUP_ROWS
    options: Mapping[str, Any] = field(default_factory=dict)  # further options of pyarrow's writer
    differences: bool = False  # whether integers may be delta-encoded, which not all readers support
    stores_required: bool = False  # whether NOT NULL must be stored in the file, because no catalog knows it


@dataclass(frozen=True, slots=True)
class TargetFile:
    path: str  # that can be opened
    rows: int
    layout: FileLayout
    partition_values: Mapping[str, Any] = field(default_factory=dict)  # partition columns by the file's folder
    bounds: Bounds = field(default_factory=dict)  # of the key columns, where known
    first_row_id: int | None = None  # with row ids: row i has first_row_id + i; None: the file stores them
    deleted: DeletionVector | None = None  # rows that the target does not contain any more; `rows` counts them

    @property
    def deleted_rows(self) -> int:
        return len(self.deleted) if self.deleted else 0

    @property
    def live_rows(self) -> int:
        return self.rows - self.deleted_rows

    def __hash__(self) -> int:
        return hash(self.path)


class FileSink(Protocol):
    """Destination of an engine's new files. Each path is handed out once; a completed file is an `OutputFile`."""

    layout: FileLayout  # of files with new rows
    file_bytes: int  # size at which a file with new rows is closed

    def path(self) -> str:
        """Return a path for a new file, in an existing folder."""
        ...

    def folder(self) -> str:
        """Return a path for a folder that does not exist yet, for engines that write folders."""
        ...

    def add_rows(self, rows: int) -> None:
        """Report rows written since the last call. May raise to cancel the merge."""
        ...


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that an engine has written and closed."""

    path: str
    rows: int
    replaces: TargetFile | None = None  # the file that it rewrites, if any
    partition_values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MergeOutput:
    """The result of a merge: new files, and rows of existing files that are replaced or deleted."""

    files: tuple[OutputFile, ...]
    deleted: Mapping[TargetFile, DeletionVector] = field(default_factory=dict)  # of the files to mark


@dataclass(frozen=True, slots=True)
class MatchCounts:
    """Numbers of matched and new rows."""

    matched_rows: Mapping[
        str, int
    ]  # path of a file → its rows whose key is in the source; files without any are absent
    new: int  # source rows whose key is in no file
    rows: int  # source rows after deduplication


class MergeSession(Protocol):
    """A source that an engine has read and checked: no NULL keys, no duplicate keys. Must be closed."""

    key_ranges: KeyRanges  # of the source; files outside of them need not be opened

    def nulls(self, files: Sequence[TargetFile]) -> Mapping[str, int]:
        """Count the rows with NULL per key column; columns without NULL are absent."""
        ...

    def match(self, files: Sequence[TargetFile]) -> MatchCounts:
        """Find the rows of the files that have a source key. Reads key columns only."""
        ...

    def write(self, rewrite_plan: "RewritePlan", sink: FileSink) -> MergeOutput:
        """Write the rewritten files, the updated rows of marked files, and the new rows of the last match.

        Updated rows of marked files get files of their own, with their row ids: new rows have none yet.
        """
        ...

    def close(self) -> None: ...


class MergeEngine(Protocol):
    name: str

    def open(self, plan: MergePlan, source: Any) -> MergeSession:
        """Read the source: an Arrow table with `plan.source_schema`, or a data frame of the engine."""
        ...

    def explain_unsupported(self, schema: pa.Schema) -> str | None:
        """Return the reason why the engine cannot process files of this schema; None if it can."""
        ...
