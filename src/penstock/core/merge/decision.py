"""Decide which files a merge rewrites or drops, and compute its statistics."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.dataset.changes import Counts, Receipt
from penstock.core.dataset.edit_policy import EditPolicy
from penstock.core.merge.engine import MatchCounts, TargetFile
from penstock.core.merge.plan import MergePlan
from penstock.core.merge.strategy import Matched, New, Rest, rules_for
from penstock.errors import Invalid


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Files to rewrite and to drop after a match, with the resulting counts."""

    rewrite: tuple[TargetFile, ...]
    mark: tuple[TargetFile, ...]  # files whose matched rows get a deletion vector; their new values go to new files
    drop: tuple[TargetFile, ...]  # files without remaining rows
    insert: bool  # whether there are new rows to write
    counts: Counts
    before: int
    after: int
    deletes: bool = False  # whether rows that are not in the source are deleted
    marked_rows: int = 0  # matched rows of the files in `mark`

    @property
    def empty(self) -> bool:
        """Return True if there is nothing to do."""
        return not (self.rewrite or self.mark or self.drop or self.insert)

    @property
    def written_rows(self) -> int:
        """Return the number of rows that an engine must write, for the progress."""
        return sum(file.live_rows for file in self.rewrite) + self.marked_rows + self.counts.inserted

    def assert_written(self, rows: int, deleted: int) -> None:
        """Check the number of rows that an engine wrote and deleted against the counts, before they are committed."""
        if deleted != self.marked_rows:
            raise AssertionError(f"an engine matched {self.marked_rows} rows of marked files, and deleted {deleted}")
        change = rows - deleted - sum(file.live_rows for file in (*self.rewrite, *self.drop))
        if change != self.counts.inserted - self.counts.deleted:
            raise AssertionError(f"an engine counted {self.counts}, and wrote {change:+} rows")

    def stats(self, strategy: str) -> dict[str, int]:
        """Return the merge statistics for the caller."""
        return compute_merge_stats(
            strategy=strategy,
            target_before=self.before,
            target_after=self.after,
            inserted=self.counts.inserted,
            updated=self.counts.updated,
            deleted=self.counts.deleted,
        )


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of a merge, or of its dry run."""

    stats: dict[str, int]
    rewritten: tuple[str, ...] = ()  # target files that were replaced
    dropped: tuple[str, ...] = ()  # target files that were removed without replacement
    marked: tuple[str, ...] = ()  # target files that got a deletion vector
    unchanged_files: int = 0
    engine: str = ""
    receipt: Receipt | None = None  # of the new version, if the target is a dataset


def plan_rewrite(
    plan: MergePlan,
    files: Sequence[TargetFile],
    match: MatchCounts,
    *,
    before: int,
    whole: bool = False,
    policy: EditPolicy | None = None,
) -> RewritePlan:
    """Decide which files to rewrite, which to mark and which to drop.

    An empty source changes nothing, unless the rules delete the rows that it lacks.

    Args:
        plan: the merge
        files: files that the match has read
        match: result of the match
        before: rows of the whole target
        whole: rewrite every file
        policy: decides between marking and rewriting; None: the target has no deletion vectors
    """
    rules = plan.rules
    matched = sum(match.matched_rows.values())
    updated = matched if rules.matched is Matched.UPDATE else 0
    inserted = match.new if rules.new is New.INSERT else 0
    deleted = before - matched if rules.rest is Rest.DELETE else 0
    drop: tuple[TargetFile, ...] = ()
    if rules.rest is Rest.DELETE:
        drop = tuple(f for f in files if f.path not in match.matched_rows)
    rewrite: tuple[TargetFile, ...] = ()
    mark: tuple[TargetFile, ...] = ()
    if whole and (before or inserted):
        already_dropped = set(drop)
        drop = (*drop, *(f for f in files if not f.rows and f not in already_dropped))
        dropped = set(drop)
        rewrite = tuple(f for f in files if f not in dropped)
    elif updated or deleted:
        matched_files = [f for f in files if f.path in match.matched_rows]
        if policy and rules.rest is Rest.KEEP:  # otherwise every row is updated or deleted
            matched_rows = match.matched_rows
            mark = tuple(f for f in matched_files if policy.marks(f.rows, f.deleted_rows, matched_rows[f.path]))
        marked = set(mark)
        rewrite = tuple(f for f in matched_files if f not in marked)
    return RewritePlan(
        rewrite=rewrite,
        mark=mark,
        drop=drop,
        insert=inserted > 0,
        counts=Counts(inserted, updated, deleted),
        before=before,
        after=before + inserted - deleted,
        deletes=rules.rest is Rest.DELETE,
        marked_rows=sum(match.matched_rows[file.path] for file in mark),
    )


def compute_merge_stats(
    *, strategy: str, target_before: int, target_after: int, inserted: int, updated: int, deleted: int
) -> dict[str, int]:
    """Return the statistics of a merge.

    Raises:
        Invalid: a count is negative, or the counts do not add up
    """
    rules_for(strategy)
    counts = {"inserted": inserted, "updated": updated, "deleted": deleted, "total": target_after}
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in (*counts.values(), target_before)):
        raise Invalid("bad_counts.not_counts", {"counts": counts})
    if target_before + inserted - deleted != target_after:
        raise Invalid(
            "bad_counts.wrong_total",
            {"target_before": target_before, "inserted": inserted, "deleted": deleted, "target_after": target_after},
        )
    return counts
