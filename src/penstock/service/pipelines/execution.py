"""Run a pipeline: read one snapshot, check every operation, let Spark do them in order, commit once.

Whatever happens on the way, a dataset gets its new version at the end, whole, or is as it was. Appends alone never read
the working dataset, and land whoever else writes to it. A merge that was overtaken is carried over or done again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from penstock.catalog import commit as commits
from penstock.catalog import snapshots as history
from penstock.catalog.database import Tx
from penstock.core.pipeline import operations
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, Counts, Creation, Receipt
from penstock.core.pipeline.operations import PlannedAppend, PlannedMerge, SourceFiles
from penstock.core.pipeline.definition import Pipeline
from penstock.core.pipeline.run import Progress, Read
from penstock.errors import Invalid
from penstock.service.datasets import read
from penstock.service.datasets.commit_retry import Attempt, land
from penstock.service.datasets.merge import Asked, Merging
from penstock.service.pipelines.planning import Ready, Step, prepare
from penstock.service.datasets.row_source import Rows
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Stage

Hear = Callable[[Progress], None]  # may raise to stop the run


@dataclass(frozen=True, slots=True)
class Done:
    results: tuple[dict[str, Any], ...]  # of each operation, as its caller is told
    reads: tuple[Read, ...]
    receipt: Receipt | None  # None: nothing was to be written


Record = Callable[[Tx, Done], None]  # in the very transaction that commits the data


def run(
    ws: Workspace,
    caller: Caller,
    pipeline: Pipeline,
    *,
    hear: Hear = lambda _: None,
    noted: Callable[[Ready, tuple[dict[str, Any], ...]], None] = lambda _ready, _results: None,
    record: Record = lambda _tx, _done: None,
) -> Done:
    """Carry it out. `noted` hears of each operation that is done; `record` writes down the end with the commit itself."""
    ready = prepare(ws, caller, pipeline)
    done: Done | None = None
    with Stage(ws, caller) as stage, _Running(ws, caller, stage, hear, noted) as running:

        def attempt() -> Attempt:
            nonlocal ready
            ready = prepare(ws, caller, pipeline) if running.tries else ready
            return Attempt(running.change(ready), lambda tried: running.rebased(ready, tried), finish)

        def finish(tx: Tx, receipt: Receipt) -> None:
            nonlocal done
            before = {each.dataset: each.version - 1 for each in receipt.written} if running.changed else {}
            done = Done(running.results, ready.reads(tx, before), receipt)
            record(tx, done)

        written = ready.output.dataset if ready.output else None if ready.elsewhere else ready.working.dataset
        land(ws, caller, stage, written, attempt)
    assert done is not None
    return done


def preview(ws: Workspace, caller: Caller, pipeline: Pipeline, *, hear: Hear = lambda _: None) -> Done:
    """What a run would do now: every operation is counted. Nothing is committed, and nothing is left behind."""
    ready = prepare(ws, caller, pipeline)
    with Stage(ws, caller) as stage, _Running(ws, caller, stage, hear, lambda _ready, _results: None) as running:
        running.count(ready)
        with ws.db.read(caller) as tx:
            return Done(running.results, ready.reads(tx, {}), None)


class _Running:
    """A pipeline in Spark's hands. It may meet several versions of its datasets until it is committed."""

    def __init__(
        self,
        ws: Workspace,
        caller: Caller,
        stage: Stage,
        hear: Hear,
        noted: Callable[[Ready, tuple[dict[str, Any], ...]], None],
    ) -> None:
        self._ws, self._caller, self._stage, self._hear, self._noted = ws, caller, stage, hear, noted
        self._spark: Any = None
        self._open = ExitStack()
        self._merges: list[Merging] = []
        self.results: tuple[dict[str, Any], ...] = ()
        self.tries, self.changed = 0, False

    def __enter__(self) -> "_Running":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def change(self, ready: Ready) -> Change:
        """Do every operation: the change that makes the next version."""
        self._begin()
        goal = ready.output.dataset if ready.output else uuid4()
        location = commits.location(self._caller, goal) if ready.elsewhere else None
        working = Working(self._ws, self._caller, ready.working, location=location)
        for place, step in enumerate(ready.steps):
            with self._told(ready, place, working) as told:
                match step.planned:
                    case PlannedAppend():
                        change = self._append(working, step, told)
                    case PlannedMerge():
                        change = self._merge(working, step, step.planned, told)
                self._stage.drop(working.apply(change))
                told.counts = change.counts
        change = self._sent(ready, working, goal) if ready.elsewhere else working.change()
        self.changed = not change.empty
        return change

    def count(self, ready: Ready) -> None:
        """The same, as far as it takes to count: only what a later merge must meet is written, and thrown away."""
        from penstock.engines.spark import append as appends

        self._begin()
        working = Working(self._ws, self._caller, ready.working)
        last = max(
            (place for place, step in enumerate(ready.steps) if isinstance(step.planned, PlannedMerge)), default=-1
        )
        for place, step in enumerate(ready.steps):
            with self._told(ready, place, working) as told:
                match step.planned:
                    case PlannedAppend() if place > last:
                        rows = appends.count(self._session, step.planned, self._files(step), told.watch)
                        change = replace(working.appended(()), counts=Counts(inserted=rows))
                    case PlannedAppend():
                        change = self._append(working, step, told)
                    case PlannedMerge() if place == last:
                        stats = self._merging(step, step.planned, told).preview(working).stats
                        counts = Counts(stats["inserted"], stats["updated"], stats["deleted"])
                        change = replace(working.appended(()), counts=counts, schema=step.planned.working)
                    case PlannedMerge():
                        change = self._merge(working, step, step.planned, told)
                self._stage.drop(working.apply(change))
                told.counts = change.counts

    def rebased(self, ready: Ready, tried: Change) -> Change | None:
        """The change for the version that is newest by now; None: it must be done again."""
        with self._ws.db.read(self._caller) as tx:
            newest = history.newest(tx, tried.dataset) if tried.create is None else None
            there = tuple(history.files(tx, newest)) if newest and ready.elsewhere else ()
        if newest is None:  # somebody has made the output meanwhile
            return None
        if ready.elsewhere:
            counts = replace(tried.counts, deleted=sum(file.rows for file in there))
            alters = tried.schema != newest.schema
            return replace(tried, base=newest.version.number, removed=there, counts=counts, alters=alters)
        if all(merging.as_true_of(newest, tried.base) for merging in self._merges):
            return replace(tried, base=newest.version.number)
        return None

    def _begin(self) -> None:
        self._open.close()
        self._merges, self.results = [], ()
        self.tries += 1

    @property
    def _session(self) -> Any:
        """A session of the run's own, beside those of others: the process has one context."""
        if self._spark is None:
            from penstock.engines.spark.session import for_merging, session

            self._spark = for_merging(session(self._ws.cluster.master, self._ws.cluster.conf))
        return self._spark

    def _append(self, working: Working, step: Step, told: "_Told") -> Change:
        from penstock.engines.spark import append as appends

        planned = step.planned
        assert isinstance(planned, PlannedAppend)
        source = self._files(step)
        if not source.paths:
            return working.appended(())
        sink = self._stage.sink(working.location, planned.working, told.wrote)
        outputs = appends.write(self._session, planned, source, sink, told.watch)
        return working.appended(self._stage.adopt(working.location, [(out.path, planned.working) for out in outputs]))

    def _merge(self, working: Working, step: Step, planned: PlannedMerge, told: "_Told") -> Change:
        change = self._merging(step, planned, told).change(working)
        # Whether a merge widens the dataset does not depend on its rows: what comes after relies on it.
        return replace(change, schema=planned.working, alters=planned.working != working.schema)

    def _merging(self, step: Step, planned: PlannedMerge, told: "_Told") -> Merging:
        from penstock.engines.spark import append as appends

        frame = appends.selected(self._session, self._files(step), planned.selector, planned.columns)
        schema = pa.schema([step.source.schema.field(name) for name in planned.columns])
        rows = Rows(schema, lambda: iter(frame.toArrow().to_batches()), frame)
        order_by = planned.dedup_order_by or None
        asked = Asked(planned.keys, planned.strategy, order_by, engine="spark", spark=self._session, watch=told.watch)
        merging = Merging(self._ws, self._caller, self._stage, rows, asked, told.merged)
        self._merges.append(self._open.enter_context(merging))
        return merging

    def _files(self, step: Step) -> SourceFiles:
        """What the selector's ranges leave of the source's files."""
        files = read.holding(self._ws, self._caller, step.source, step.planned.selector)
        paths = tuple(self._ws.store.locate(file.path) for file in files)
        return SourceFiles(
            step.source.schema, paths, sum(file.rows for file in files), sum(file.bytes for file in files)
        )

    def _sent(self, ready: Ready, working: Working, goal: UUID) -> Change:
        """The working rows as those of the output. Files that were there already are linked, and not copied."""
        made, name = working.change(), ready.pipeline.output
        assert name is not None
        there = [file for file in working.files(stats=True) if file.number]
        added = (*self._stage.link(working.location, there), *made.added)
        counts = Counts(inserted=sum(file.rows for file in added))
        if ready.output is None:
            creation = Creation(name)
            return Change(goal, 0, "create", working.schema, added=added, counts=counts, create=creation)
        with self._ws.db.read(self._caller) as tx:
            removed = tuple(history.files(tx, ready.output))
        return Change(
            goal,
            ready.output.version.number,
            "overwrite",
            working.schema,
            added=added,
            removed=removed,
            counts=replace(counts, deleted=sum(file.rows for file in removed)),
            alters=working.schema != ready.output.schema,
        )

    @contextmanager
    def _told(self, ready: Ready, place: int, working: Working) -> Iterator["_Told"]:
        """One operation: how far it is, what it came to, and what was wrong, in its own words."""
        operation, begun, before = ready.steps[place].operation, time.monotonic(), working.rows
        progress = Progress(place, len(ready.steps), operation.order, operation.type)
        told = _Told(self._hear, progress, lambda: self._stage.wrote(0))
        told.say()
        try:
            yield told
        except Invalid as refusal:
            raise operations.translated(operation, refusal) from refusal
        took = round((time.monotonic() - begun) * 1000)
        self.results = (*self.results, operations.success(operation, told.counts, before, took))
        self._noted(ready, self.results)


class _Told:
    """Turns what engines say on their way into the progress of a run."""

    def __init__(self, hear: Hear, progress: Progress, alive: Callable[[], None]) -> None:
        self._hear, self._progress, self._alive = hear, progress, alive
        self.counts = Counts()

    def say(self, **facts: Any) -> None:
        self._progress = replace(self._progress, **facts)
        self._hear(self._progress)

    def watch(self, stages: Any) -> None:
        self._alive()
        self.say(
            stages=stages.stages,
            stages_done=stages.stages_done,
            tasks=stages.tasks,
            tasks_done=stages.tasks_done,
        )

    def wrote(self, rows: int) -> None:
        self.say(phase="write", rows=self._progress.rows + rows)

    def merged(self, phase: str, done: int, _total: int) -> None:
        self.say(phase=phase, **({"rows": done} if phase == "write" else {}))
