"""Plan a compaction: choose the data files that are worth rewriting, in steps of bounded size.

A compaction rewrites small files together, files with deleted rows, and, if the dataset has a cluster key, files whose
key ranges overlap. Each step is committed on its own. Steps do not share files.
"""

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from penstock.core.dataset.changes import DataFile, DatasetCommit
from penstock.core.dataset.column_stats import MAX_BOUND_LENGTH, StatValue
from penstock.core.dataset.edit_policy import vector_bytes

_SMALL_FRACTION = 0.75  # a file below this fraction of the target size is small
_STEP_FILES = 4  # a step rewrites at most the bytes of this many files of the target size, or one larger file
_MAX_STEP_SOURCES = 10_000  # files that one commit ends

# A bound of a key column in an order over all values: (0,) is below, (2,) is NULL, which sorts last, (3,) is above.
_Bound: TypeAlias = tuple[Any, ...]
_BELOW: _Bound = (0,)
_NULL: _Bound = (2,)
_ABOVE: _Bound = (3,)


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Rules that decide which files are worth rewriting. The defaults are those of a requested compaction.

    Attributes:
        min_small_files: fewer small files are left as they are
        max_deleted_percent: a file with a larger share of deleted rows is rewritten
        max_vector_bytes: a file with a larger deletion vector is rewritten, whatever its share of deleted rows
        max_size_ratio: a small file that exceeds the smaller ones together by this factor is left as it is, so that
            frequent compactions do not write the same rows again and again
        min_overlap: number of files with a common key from which overlapping files are sorted
        sorts_files: whether large files are sorted whose own rows are not in the order of the key
        max_step_bytes: larger steps are left out
    """

    min_small_files: int = 2
    max_deleted_percent: int = 0
    max_vector_bytes: float = math.inf
    max_size_ratio: float = math.inf
    min_overlap: int = 2
    sorts_files: bool = True
    max_step_bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class CompactionStep:
    """Files that one commit replaces by files with the same rows."""

    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows that are written."""
        return sum(file.live_rows for file in self.files)

    @property
    def deleted_rows(self) -> int:
        """Return the number of deleted rows that are left out."""
        return sum(file.rows - file.live_rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def as_dict(self) -> dict[str, int]:
        return {
            "files": len(self.files),
            "rows": self.rows,
            "deleted_rows": self.deleted_rows,
            "bytes": self.bytes,
        }

    def file_rows(self, target_bytes: int) -> int:
        """Return the number of rows of each new file, so that all have about the same size, near the target size."""
        file_count = max(1, round(sum(map(live_bytes, self.files)) / target_bytes))
        return max(1, -(-self.rows // file_count))


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Result of a compaction.

    Attributes:
        version: version of the dataset after the last step
        steps: number of committed steps
        lost_steps: number of steps that were given up or planned again because another writer changed their files
        files_before: number of files that were replaced
        files_after: number of files that replace them
        rows: number of rows that were written
        deleted_rows: number of deleted rows whose files no longer contain them
        bytes_before: size of the replaced files
        bytes_after: size of the new files
        written: the commit of each step
        replayed: whether the request had been executed before
    """

    version: int
    steps: int = 0
    lost_steps: int = 0
    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    deleted_rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    written: tuple[DatasetCommit, ...] = ()
    replayed: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_compaction(
    files: Sequence[DataFile],
    cluster_by: Sequence[str],
    target_bytes: int,
    policy: CompactionPolicy,
    unsorted: Collection[int] = (),
) -> list[CompactionStep]:
    """Choose the files to rewrite, in steps.

    Args:
        files: the files of the newest version, with statistics if there is a cluster key
        cluster_by: the columns of the cluster key; none: files keep the order in which they were written
        target_bytes: the target size of a data file
        policy: decides which files are worth rewriting
        unsorted: numbers of files whose rows are not in the order of the key
    """
    small = _worthwhile_small_files([file for file in files if is_small(file, target_bytes)], policy)
    small_numbers = {file.number for file in small}
    chosen = small_numbers | {
        file.number for file in files if file.number in unsorted or _has_many_deleted_rows(file, policy)
    }
    candidates = [file for file in files if file.number in chosen]
    if cluster_by:
        candidates.sort(key=lambda file: _key_range(file, cluster_by))
        parts = [candidates]
    else:  # steps that combine the files of many small edits stay short, and come first
        parts = [
            [file for file in candidates if file.number in small_numbers],
            [file for file in candidates if file.number not in small_numbers],
        ]
    groups = [
        group
        for part in parts
        for group in _split(part, target_bytes)
        if len(group) > 1 or group[0].deleted or group[0].number in unsorted
    ]
    if cluster_by:
        large = [file for file in files if file.number not in chosen and not is_small(file, target_bytes)]
        groups += _overlapping_groups(large, cluster_by, target_bytes, policy.min_overlap)
    steps = [CompactionStep(tuple(group)) for group in groups]
    return [step for step in steps if step.bytes <= policy.max_step_bytes]


def is_small(file: DataFile, target_bytes: int) -> bool:
    """Check whether a file is worth combining with others."""
    return live_bytes(file) < target_bytes * _SMALL_FRACTION


def live_bytes(file: DataFile) -> int:
    """Return the estimated size of a file without its deleted rows."""
    return file.bytes * file.live_rows // max(file.rows, 1)


def max_passes(file_count: int) -> int:
    """Return the number of plans after which a requested compaction ends.

    With a cluster key a step sorts few of the files that overlap, so a dataset is sorted by several passes over its
    files, each of which narrows the key ranges by the number of files in a step.
    """
    return 2 + math.ceil(math.log(max(file_count, 1), _STEP_FILES))


def _has_many_deleted_rows(file: DataFile, policy: CompactionPolicy) -> bool:
    if not file.deleted:
        return False
    deleted = len(file.deleted)
    return (
        100 * deleted > policy.max_deleted_percent * file.rows
        or vector_bytes(file.rows, deleted) > policy.max_vector_bytes
    )


def _worthwhile_small_files(small: list[DataFile], policy: CompactionPolicy) -> list[DataFile]:
    by_size = sorted(small, key=live_bytes)
    total = sum(map(live_bytes, by_size))
    while by_size:
        largest = live_bytes(by_size[-1])
        if largest <= policy.max_size_ratio * (total - largest):
            break
        total -= largest
        by_size.pop()
    return by_size if len(by_size) >= policy.min_small_files else []


def _split(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Split files, in their order, into groups for one step each. The last step also takes a small rest."""
    groups: list[list[DataFile]] = []
    size = 0
    for file in files:
        size += live_bytes(file)
        if not groups or size > _STEP_FILES * target_bytes or len(groups[-1]) >= _MAX_STEP_SOURCES:
            groups.append([])
            size = live_bytes(file)
        groups[-1].append(file)
    if len(groups) > 1 and size < _SMALL_FRACTION * target_bytes:
        rest = groups.pop()
        groups[-1] += rest
    return groups


def _overlapping_groups(
    files: Sequence[DataFile], cluster_by: Sequence[str], target_bytes: int, min_overlap: int
) -> list[list[DataFile]]:
    """Group neighbours in the order of the key, where enough key ranges overlap to make sorting worthwhile."""
    ranges = {file.number: _key_range(file, cluster_by) for file in files}
    ordered = sorted(files, key=lambda file: ranges[file.number])
    groups: list[list[DataFile]] = []
    for cluster in _connected(ordered, ranges):
        if _depth(cluster, ranges) >= min_overlap:
            groups += [group for group in _split(cluster, target_bytes) if _depth(group, ranges) > 1]
    return groups


_KeyRange: TypeAlias = tuple[tuple[_Bound, ...], tuple[_Bound, ...]]


def _connected(ordered: Sequence[DataFile], ranges: dict[int, _KeyRange]) -> list[list[DataFile]]:
    """Split files, in the order of the key, where a range begins after all earlier ranges have ended."""
    clusters: list[list[DataFile]] = []
    end: tuple[_Bound, ...] = ()
    for file in ordered:
        low, high = ranges[file.number]
        if not clusters or end <= low:
            clusters.append([])
            end = high
        clusters[-1].append(file)
        end = max(end, high)
    return clusters


def _depth(ordered: Sequence[DataFile], ranges: dict[int, _KeyRange]) -> int:
    """Return the maximum number of files that may contain the same key; ranges that only touch do not count."""
    ends: list[tuple[_Bound, ...]] = []
    depth = 0
    for file in ordered:
        low, high = ranges[file.number]
        while ends and ends[0] <= low:
            heapq.heappop(ends)
        heapq.heappush(ends, high)
        depth = max(depth, len(ends))
    return depth


def _key_range(file: DataFile, cluster_by: Sequence[str]) -> _KeyRange:
    """Return bounds of the keys of a file.

    Statistics describe single columns, so a column counts only if the columns before it have a single value. Bounds are
    completed such that two ranges that share only a prefix of the key touch and do not overlap: sorted files that were
    cut inside a run of equal values must not be sorted again. The same holds for texts with a common truncated prefix
    and for files without statistics.
    """
    low: list[_Bound] = []
    high: list[_Bound] = []
    for name in cluster_by:
        stats = file.stats.get(name)
        if stats is None or stats.nulls == file.rows:  # the column was added after the file was written
            first, last = _NULL, _NULL
        elif stats.low is None or stats.high is None:
            break
        else:
            first, last = _bound(stats.low), _NULL if stats.nulls else _bound(stats.high)
        low.append(first)
        high.append(last)
        if first != last:
            break
    missing = len(cluster_by) - len(low)
    return (*low, *[_ABOVE] * missing), (*high, *[_BELOW] * missing)


def _bound(value: StatValue) -> _Bound:
    # The last character of a truncated upper bound is incremented.
    return (1, value[: MAX_BOUND_LENGTH - 1] if isinstance(value, str | bytes) else value)
