"""Merge into a dataset, as a new version: matched rows keep their ids, files without a match stay as they are.

Two merges that bring the same new key never make two rows of it. Whoever commits second looks at the files that came
in between: if none holds a key of its source, the merge is as true of the newer version; otherwise it is done again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.types as pt

from penstock.catalog import snapshots as history
from penstock.core import merge as meaning
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, DataFile, NewFile, Receipt
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.dataset.row_digest import Digest
from penstock.core.merge import BATCH_ROWS, Layout, Merged, Plan, Progress, Rest, Session, TargetFile, Work
from penstock.core.names import CARRIED
from penstock.core.schema.canonical import canonical, conform
from penstock.core.dataset.column_stats import Bounds
from penstock.errors import Unsupported
from penstock.service import engine_choice as engines
from penstock.service.engine_choice import Tools
from penstock.service.datasets.commit_retry import Attempt, land
from penstock.service.datasets.row_source import Rows, checked
from penstock.service.datasets.overlay import Working
from penstock.service.workspace import Workspace
from penstock.service.datasets.write import Stage, writable
from penstock.storage.spool import spool

_ROW_ID = pa.field(CARRIED, pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """A merge as the caller words it."""

    keys: str | Sequence[str]
    strategy: str = "upsert"
    order_by: str | Sequence[str] | None = None
    add_columns: bool = False
    engine: str = "auto"
    batch_rows: int = BATCH_ROWS
    spark: Any = field(default=None, compare=False, repr=False)
    watch: Any = field(default=None, compare=False, repr=False)  # hears how far Spark is; may raise to stop it

    @property
    def meaning(self) -> tuple[Any, ...]:
        """What tells this merge from another, however it is worded and whoever does it."""
        order = [self.order_by] if isinstance(self.order_by, str) else self.order_by
        return meaning.normalize_keys(self.keys), self.strategy, list(order or []), self.add_columns

    def __post_init__(self) -> None:
        engines.check_name(self.engine)
        meaning.normalize_keys(self.keys)
        meaning.strategy_named(self.strategy)


def merge(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    rows: Rows,
    asked: Asked,
    *,
    key: str | None = None,
    progress: Progress | None = None,
) -> Merged:
    """Merge rows into the newest version, whoever else writes at the same time."""
    target = writable(ws, caller, dataset)
    if key and rows.frame is not None:
        raise Unsupported(
            "key_with_frame",
            "a Spark frame may give other rows each time, so it cannot be known again by an idempotency key; "
            "leave the key out, or give the rows as Parquet",
        )
    with Stage(ws, caller, key=key) as stage, Merging(ws, caller, stage, rows, asked, progress) as merging:
        if before := stage.replayed(merging.request(Working(ws, caller, target))):
            return merging.told(before)

        def attempt() -> Attempt:
            return Attempt(merging.change(Working(ws, caller, writable(ws, caller, dataset))), rebased)

        def rebased(change: Change) -> Change | None:
            newest = writable(ws, caller, dataset)
            return replace(change, base=newest.version.number) if merging.as_true_of(newest, change.base) else None

        return merging.told(land(ws, caller, stage, dataset, attempt))


def preview(
    ws: Workspace, caller: Caller, dataset: UUID, rows: Rows, asked: Asked, *, progress: Progress | None = None
) -> Merged:
    """What the merge would do to the newest version. Nothing is written."""
    target = writable(ws, caller, dataset)
    with Stage(ws, caller) as stage, Merging(ws, caller, stage, rows, asked, progress) as merging:
        return merging.preview(Working(ws, caller, target))


class Merging:
    """One merge on its way: the source is read once, and meets as many versions as it takes."""

    def __init__(
        self, ws: Workspace, caller: Caller, stage: Stage, rows: Rows, asked: Asked, progress: Progress | None = None
    ) -> None:
        self._ws, self._caller, self._stage, self._rows, self._asked = ws, caller, stage, rows, asked
        self._heard = progress or (lambda _stage, _done, _total: None)
        self._plan: Plan | None = None
        self._session: Session | None = None
        self._table: pa.Table | None = None
        self._digest = Digest(rows.schema) if stage.keyed else None
        self._engine = asked.engine
        self.merged = Merged({})  # what the last match came to
        self._source_rows = 0
        self._base_schema: pa.Schema | None = None  # of the version that the last change was made for
        self._relied_on: list[int] = []  # numbers of the files that have a key of the source, or that go

    def __enter__(self) -> "Merging":
        return self

    def __exit__(self, *_: object) -> None:
        if self._session:
            self._session.close()

    def request(self, target: Working) -> Change:
        """What is asked for, as a change that does nothing yet."""
        self._meet(target)
        asked = f"{self._digest.hexdigest() if self._digest else ''} {self._asked.meaning}"
        return Change(target.base.dataset, target.base.version.number, "merge", target.schema, request=asked)

    def change(self, target: Working) -> Change:
        """Match and write: the change that makes the next version."""
        self._base_schema = target.base.schema
        session, plan = self._meet(target)
        work, files = self._matching(session, plan, target)
        added: tuple[NewFile, ...] = ()
        if not work.empty:
            folder = target.location
            outputs = session.write(work, self._stage.sink(folder, plan.schema, self._telling(work)))
            added = self._stage.adopt(folder, [(output.path, plan.schema) for output in outputs])
        removed = tuple(files[file.path] for file in (*work.rewrite, *work.drop))
        work.assert_written(sum(file.rows for file in added))
        fresh = sum(file.rows for file in added if file.row_ids is None)
        assert not plan.row_ids or fresh == work.counts.inserted, "a row that was there has lost its id"
        alters = plan.schema != target.schema and self._source_rows > 0
        return replace(
            self.request(target),
            schema=plan.schema if alters else target.schema,
            added=added,
            removed=removed,
            counts=work.counts,
            alters=alters,
        )

    def as_true_of(self, newest: Snapshot, base: int) -> bool:
        """Would the merge do the very same to a newer version?"""
        session, plan = self._session, self._plan
        assert session is not None
        assert plan is not None
        if newest.schema != self._base_schema:
            return False
        with self._ws.db.read(self._caller) as tx:
            if newest.version.number == base or not history.still_live(tx, newest.dataset, self._relied_on):
                return False
            came = history.files_since(tx, newest, base)
        if came and (plan.write.rest is Rest.DELETE or any(_nulls(file, plan.keys) for file in came)):
            return False
        near = [self._target(file, plan) for file in came if session.reach.meets(_bounds(file, plan.keys))]
        return not session.match(near).found

    def preview(self, target: Working) -> Merged:
        session, plan = self._meet(target)
        self._matching(session, plan, target)
        return self.merged

    def told(self, receipt: Receipt) -> Merged:
        (written,) = receipt.written
        stats = meaning.compute_merge_stats(
            strategy=self._asked.strategy,
            target_before=written.rows - written.inserted + written.deleted,
            target_after=written.rows,
            inserted=written.inserted,
            updated=written.updated,
            deleted=written.deleted,
        )
        return replace(self.merged, stats=stats, receipt=receipt)

    def _telling(self, work: Work) -> Callable[[int], None]:
        """Hears how many rows more are written, and tells how far that is."""
        total, done = sum(file.rows for file in work.rewrite) + work.counts.inserted, 0

        def beat(rows: int) -> None:
            nonlocal done
            done = min(done + rows, total)
            self._heard("write", done, total)

        return beat

    def _meet(self, target: Working) -> tuple[Session, Plan]:
        """The source in the engine's hands, with the types that the target asks for."""
        plan = self._planned(target)
        if self._session is not None and self._plan == plan:
            return self._session, plan
        if self._session is not None:
            self._session.close()
        tools = Tools(self._stage.scratch(), self._ws.cluster, self._asked.spark, self._asked.watch)
        engine = engines.chosen(self._asked.engine, plan, plan.schema, self._rows, tools)
        self._heard("read", 0, 1)
        source: Any = self._rows.frame
        if engine.name != "spark" or source is None:
            source = self._table = self._spooled(plan)
        self._session, self._plan, self._engine = engine.open(plan, source), plan, engine.name
        self._heard("read", 1, 1)
        return self._session, plan

    def _planned(self, target: Working) -> Plan:
        return meaning.plan(
            _kept(self._rows.schema),
            target.schema,
            self._asked.keys,
            self._asked.strategy,
            dedup_order_by=self._asked.order_by,
            add_columns=self._asked.add_columns,
            row_ids=target.row_ids,
            batch_rows=self._asked.batch_rows,
        )

    def _spooled(self, plan: Plan) -> pa.Table:
        schema = plan.source_schema
        if self._table is not None:  # the target's types have changed since
            return pa.Table.from_batches([conform(batch, schema) for batch in self._table.to_batches()], schema)
        heard = self._digest.add if self._digest else (lambda _: None)
        rows = checked(self._rows.batches(), schema, self._ws.limits, heard)
        return spool(schema, rows, lambda: f"{self._stage.scratch()}/{uuid4().hex}")

    def _matching(self, session: Session, plan: Plan, target: Working) -> tuple[Work, Mapping[str, DataFile]]:
        self._check_nulls(session, plan, target)
        everything = plan.write.rest is Rest.DELETE
        listed = target.files(None if everything else session.reach.bounds())
        files = {self._ws.store.locate(file.path): file for file in listed}
        near = [self._target(file, plan) for file in listed]
        if not everything:
            near = [file for file in near if session.reach.meets(file.bounds)]
        self._heard("match", 0, len(near))
        match = session.match(near)
        self._heard("match", len(near), len(near))
        self._source_rows = match.rows
        work = meaning.decide(plan, near, match, before=target.rows)
        touched = {*match.found, *(file.path for file in (*work.rewrite, *work.drop))}
        self._relied_on = [number for path in touched if (number := files[path].number)]  # staged files have none
        self.merged = Merged(
            work.stats(self._asked.strategy),
            tuple(files[file.path].path for file in work.rewrite),
            tuple(files[file.path].path for file in work.drop),
            target.file_count - len(work.rewrite) - len(work.drop),
            self._engine,
        )
        return work, files

    def _check_nulls(self, session: Session, plan: Plan, target: Working) -> None:
        if not any(target.schema.field(key).nullable for key in plan.keys):
            return
        doubtful = [file for file in target.files(stats=True) if _nulls(file, plan.keys)]
        if nulls := session.nulls([self._target(file, plan) for file in doubtful]):
            raise meaning.null_keys("target", nulls)

    def _target(self, file: DataFile, plan: Plan) -> TargetFile:
        schema = plan.schema.append(_ROW_ID) if plan.row_ids else plan.schema
        return TargetFile(
            self._ws.store.locate(file.path),
            file.rows,
            Layout(schema, group_rows=self._ws.shape.group_rows),
            bounds=_bounds(file, plan.keys),
            first_row_id=file.first_row_id,
        )


def _kept(schema: pa.Schema) -> pa.Schema:
    """The source's columns with canonical types; one that holds nothing but NULL may become anything."""
    kept = canonical(pa.schema([field for field in schema if not pt.is_null(field.type)]))
    return pa.schema([field if pt.is_null(field.type) else kept.field(field.name) for field in schema])


def _bounds(file: DataFile, keys: Sequence[str]) -> Bounds:
    return {key: (stats.low, stats.high) for key in keys if (stats := file.stats.get(key))}


def _nulls(file: DataFile, keys: Sequence[str]) -> bool:
    """May a key of the file be NULL? A file without the column has nothing else."""
    return any(key not in file.stats or file.stats[key].nulls for key in keys)
