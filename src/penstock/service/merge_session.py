"""Run a merge: read the source once, match it with the files of a target, and write the result.

`MergeExecution` is the same for datasets and plain directories; a `MergeTarget` supplies the files, their layouts and a
sink for new files. Committing the written files is up to the target's module.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from numbers import Integral
from typing import Any, Protocol

import pyarrow as pa

from penstock.core import merge as core_merge
from penstock.core.dataset.edit_policy import EditPolicy
from penstock.core.merge import (
    FileSink,
    MatchCounts,
    MergeOutput,
    MergePlan,
    MergeSession,
    Rest,
    RewritePlan,
    TargetFile,
)
from penstock.core.merge.key_ranges import KeyRanges
from penstock.core.progress import ProgressTracker
from penstock.core.schema.compatibility import cast_batch
from penstock.service import engine_choice
from penstock.service.datasets.row_source import RowSource, validated_batches
from penstock.service.engine_choice import EngineOptions
from penstock.service.workspace import WriteLimits
from penstock.storage.spool import spool


class MergeTarget(Protocol):
    """The files that a merge reads and replaces."""

    @property
    def rows(self) -> int:
        """Return the number of rows of the whole target."""
        ...

    @property
    def rewrites_all(self) -> bool:
        """Return True if every file must be rewritten, because the schema of the target changes."""
        ...

    def files_with_possible_nulls(self) -> Sequence[TargetFile]:
        """List the files whose key columns may contain NULL."""
        ...

    def files(self, key_ranges: KeyRanges | None) -> Sequence[TargetFile]:
        """List the files that may overlap the key ranges, or all files if None. Extra files do no harm."""
        ...

    def open_files(self, files: Iterable[TargetFile]) -> AbstractContextManager[None]:
        """Provide files at their paths for the duration of the block."""
        ...

    @property
    def edit_policy(self) -> EditPolicy | None:
        """Return the policy that decides between marking and rewriting; None: the target has no deletion vectors."""
        ...

    def layout(self, rewrite_plan: RewritePlan) -> RewritePlan:
        """Return the plan with the layouts of the files to rewrite."""
        ...

    def sink(self) -> FileSink:
        """Return a sink for new files, which adds their rows to the progress of the merge."""
        ...


class MergeExecution:
    """A merge of one source. The source is read once and can be matched with several targets in turn.

    Args:
        rows: the source
        engine: name of the engine, or "auto"
        options: returns the resources for the engine
        limits: limits for the batches of the source
        spool_path: returns a path for a temporary file with rows of the source
        progress: tracks the phases "read", "match" and "write"
        on_batch: receives every batch of the source once
    """

    def __init__(
        self,
        rows: RowSource,
        engine: str,
        options: Callable[[], EngineOptions],
        limits: WriteLimits,
        spool_path: Callable[[], str],
        progress: ProgressTracker,
        on_batch: Callable[[pa.RecordBatch], None] | None = None,
    ) -> None:
        self._rows, self._engine, self._options, self._limits = rows, engine, options, limits
        self._spool_path, self._progress = spool_path, progress
        self._on_batch = on_batch or (lambda _: None)
        self._plan: MergePlan | None = None
        self._session: MergeSession | None = None
        self._table: pa.Table | None = None
        self._open_files = ExitStack()  # the matched files: an engine may read them again when it writes
        self.engine_name = engine
        self.match_counts = MatchCounts({}, 0, 0)  # of the last match

    def __enter__(self) -> "MergeExecution":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def plan(self) -> MergePlan:
        assert self._plan is not None
        return self._plan

    @property
    def session(self) -> MergeSession:
        assert self._session is not None
        return self._session

    def open(self, plan: MergePlan, stored: pa.Schema) -> None:
        """Choose the engine and pass the source to it, unless this is done for the same plan.

        Args:
            plan: the merge, with the types of the target
            stored: schema of the target files
        """
        if self._session is not None and self._plan == plan:
            return
        self.close()
        engine = engine_choice.choose_engine(self._engine, plan, stored, self._rows, self._options())
        self._progress.update(phase="read", done=0, total=1, unit="parts")
        source: Any = self._rows.frame
        if engine.name != "spark" or source is None:
            source = self._table = self._spool(plan.source_schema)
        self._session, self._plan, self.engine_name = engine.open(plan, source), plan, engine.name
        self._progress.add(1)

    def match(self, target: MergeTarget) -> RewritePlan:
        """Match the source with the files of the target, and decide which files to rewrite.

        Raises:
            Invalid: a key column of the target contains NULL
        """
        session, plan = self.session, self.plan
        self._open_files.close()
        nullable_files = target.files_with_possible_nulls()
        with target.open_files(nullable_files):
            nulls = session.nulls(nullable_files)
        if nulls:
            raise core_merge.null_keys("target", nulls)
        deletes = plan.rules.rest is Rest.DELETE
        files = target.files(None if deletes else session.key_ranges)
        candidates = files if deletes else [file for file in files if session.key_ranges.overlaps(file.bounds)]
        self._progress.update(phase="match", done=0, total=len(candidates), unit="parts")
        self._open_files.enter_context(target.open_files(candidates))
        match = self.match_counts = session.match(candidates)
        self._progress.add(len(candidates))
        # An empty source must not rewrite all files.
        whole = target.rewrites_all and match.rows > 0
        return core_merge.plan_rewrite(plan, files, match, before=target.rows, whole=whole, policy=target.edit_policy)

    def write(self, rewrite_plan: RewritePlan, target: MergeTarget) -> MergeOutput:
        """Write the files of the last match."""
        rewrite_plan = target.layout(rewrite_plan)
        self._progress.update(phase="write", done=0, total=rewrite_plan.written_rows, unit="rows")
        with self._open_files.pop_all(), target.open_files((*rewrite_plan.rewrite, *rewrite_plan.mark)):
            return self.session.write(rewrite_plan, target.sink())

    def _spool(self, schema: pa.Schema) -> pa.Table:
        if self._table is not None:  # the types of the target have changed since the source was read
            return pa.Table.from_batches([cast_batch(batch, schema) for batch in self._table.to_batches()], schema)
        batches = validated_batches(self._rows.batches(), schema, self._limits, self._on_batch)
        return spool(schema, batches, self._spool_path)

    def close(self) -> None:
        """Close the engine session, if one is open."""
        session, self._session = self._session, None
        with self._open_files.pop_all():
            if session is not None:
                session.close()


def plain_integer(number: Any) -> Any:
    """Convert integers of other libraries, such as numpy, to int; return other values unchanged."""
    return number if isinstance(number, bool) or not isinstance(number, Integral) else int(number)
