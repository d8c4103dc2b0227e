"""Merge rows into a dataset as a new version: matched rows keep their ids, files without a match stay unchanged.

Two concurrent merges with the same new key never create two rows for it. The merge that commits second checks the files
added since its base version: if none contains a key of its source, its change is rebased onto the newer version;
otherwise the merge is repeated.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.types as pt

from penstock.catalog import snapshots
from penstock.catalog.database import CatalogTransaction
from penstock.core import merge as core_merge
from penstock.core.caller import Caller
from penstock.core.dataset.changes import Change, DataFile, DeletedRows, NewFile, Receipt
from penstock.core.dataset.column_stats import Bounds
from penstock.core.dataset.edit_policy import EditPolicy
from penstock.core.dataset.row_digest import RowDigest
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.merge import (
    BATCH_ROWS,
    FileLayout,
    FileSink,
    MergePlan,
    MergeResult,
    Rest,
    RewritePlan,
    TargetFile,
)
from penstock.core.merge.key_ranges import KeyRanges
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.core.progress import ProgressCallback
from penstock.core.schema.canonical import canonical_schema
from penstock.errors import Unsupported
from penstock.service import engine_choice
from penstock.service.datasets.commit_retry import commit_with_retry
from penstock.service.datasets.overlay import DatasetOverlay
from penstock.service.datasets.row_source import RowSource
from penstock.service.datasets.staging import StagingArea
from penstock.service.datasets.write import load_writable
from penstock.service.engine_choice import EngineOptions
from penstock.service.merge_session import MergeExecution, plain_integer
from penstock.service.workspace import Workspace
from penstock.storage.data_files import FileSizing
from penstock.storage.file_store import FileStore

_ROW_ID = pa.field(STORED_ROW_ID_COLUMN, pa.int64(), nullable=False)


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """Arguments of a merge."""

    keys: str | Sequence[str]
    strategy: str = "upsert"
    order_by: str | Sequence[str] | None = None
    add_columns: bool = False
    engine: str = "auto"
    batch_rows: int = BATCH_ROWS
    spark: Any = field(default=None, compare=False, repr=False)

    @property
    def meaning(self) -> tuple[Any, ...]:
        """Return the normalized arguments that determine the result, for comparison by idempotency key."""
        order = [self.order_by] if isinstance(self.order_by, str) else self.order_by
        return core_merge.normalize_keys(self.keys), self.strategy, list(order or []), self.add_columns

    def __post_init__(self) -> None:
        engine_choice.check_name(self.engine)
        core_merge.normalize_keys(self.keys)
        core_merge.rules_for(self.strategy)


def merge(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    rows: RowSource,
    request: MergeRequest,
    *,
    key: str | None = None,
    progress: ProgressCallback | None = None,
) -> MergeResult:
    """Merge rows into the newest version of a dataset; repeat or rebase the merge if other writers commit first.

    Args:
        key: idempotency key; a repeated request returns the first receipt
        progress: receives the phases "read", "match" and "write"; may raise to stop the merge

    Raises:
        Unsupported: an idempotency key is used with a Spark DataFrame
    """
    snapshot = load_writable(ws, caller, dataset)
    if key and rows.frame is not None:
        raise Unsupported("key_with_frame")
    with (
        StagingArea(ws, caller, progress, key) as stage,
        DatasetMerge(ws, caller, stage, rows, request) as dataset_merge,
    ):
        if receipt := stage.find_replay(dataset_merge.request(DatasetOverlay(ws, caller, snapshot))):
            return dataset_merge.result(receipt)
        write = _RetryableMerge(ws, caller, dataset, dataset_merge)
        return dataset_merge.result(commit_with_retry(ws, caller, stage, dataset, write))


@dataclass(frozen=True, slots=True)
class _RetryableMerge:
    """Prepare and rebase a merge for `commit_with_retry`."""

    ws: Workspace
    caller: Caller
    dataset: UUID
    dataset_merge: "DatasetMerge"

    def prepare(self) -> Change:
        newest = load_writable(self.ws, self.caller, self.dataset)
        return self.dataset_merge.change(DatasetOverlay(self.ws, self.caller, newest))

    def rebase(self, change: Change) -> Change | None:
        newest = load_writable(self.ws, self.caller, self.dataset)
        if not self.dataset_merge.still_applies_to(newest, change.base):
            return None
        return change.rebased(newest.version.number)

    def on_commit(self, tx: CatalogTransaction, receipt: Receipt) -> None:
        """Record nothing: a merge has no record of its own."""


def preview(
    ws: Workspace,
    caller: Caller,
    dataset: UUID,
    rows: RowSource,
    request: MergeRequest,
    *,
    progress: ProgressCallback | None = None,
) -> MergeResult:
    """Return the result that a merge into the newest version would have. Nothing is written."""
    snapshot = load_writable(ws, caller, dataset)
    with (
        StagingArea(ws, caller, progress) as stage,
        DatasetMerge(ws, caller, stage, rows, request) as dataset_merge,
    ):
        return dataset_merge.preview(DatasetOverlay(ws, caller, snapshot))


class DatasetMerge:
    """One merge into a dataset. The source is read once and matched with as many versions as retries need.

    The staging area tracks the progress.
    """

    def __init__(
        self,
        ws: Workspace,
        caller: Caller,
        stage: StagingArea,
        rows: RowSource,
        request: MergeRequest,
    ) -> None:
        self._ws, self._caller, self._stage, self._rows, self._request = ws, caller, stage, rows, request
        self._digest = RowDigest(rows.schema) if stage.has_client_key else None
        self._execution = MergeExecution(
            rows,
            request.engine,
            lambda: EngineOptions(stage.scratch(), ws.cluster, request.spark, stage.progress.on_job),
            ws.limits,
            lambda: f"{stage.scratch()}/{uuid4().hex}",
            stage.progress,
            self._digest.add if self._digest else None,
        )
        self.merged = MergeResult({})  # result of the last match
        self._base_schema: pa.Schema | None = None  # of the version of the last change
        self._required_files: list[int] = []  # numbers of the files whose rows must not change before the commit

    def __enter__(self) -> "DatasetMerge":
        return self

    def __exit__(self, *_: object) -> None:
        self._execution.close()

    def request(self, overlay: DatasetOverlay) -> Change:
        """Read the source and return the request as a change without files, for the lookup by idempotency key."""
        self._open(overlay)
        request = f"{self._digest.hexdigest() if self._digest else ''} {self._request.meaning}"
        return Change(overlay.base.dataset, overlay.base.version.number, "merge", overlay.schema, request=request)

    def change(self, overlay: DatasetOverlay) -> Change:
        """Match and write files, and return the change that creates the next version."""
        self._base_schema = overlay.base.schema
        target = self._open(overlay)
        rewrite_plan = self._match(target)
        plan = self._execution.plan
        added: tuple[NewFile, ...] = ()
        deleted: tuple[DeletedRows, ...] = ()
        if not rewrite_plan.empty:
            output = self._execution.write(rewrite_plan, target)
            added = self._stage.adopt(overlay.location, [(file.path, plan.schema) for file in output.files])
            deleted = tuple(DeletedRows(target.data_files[f.path], vector) for f, vector in output.deleted.items())
        removed = tuple(target.data_files[file.path] for file in (*rewrite_plan.rewrite, *rewrite_plan.drop))
        rewrite_plan.assert_written(sum(file.rows for file in added), sum(len(rows.positions) for rows in deleted))
        new_rows = sum(file.rows for file in added if file.row_ids is None)
        assert not plan.row_ids or new_rows == rewrite_plan.counts.inserted, "an existing row has lost its row id"
        alters_schema = plan.schema != overlay.schema and self._execution.match_counts.rows > 0
        return replace(
            self.request(overlay),
            schema=plan.schema if alters_schema else overlay.schema,
            added=added,
            removed=removed,
            deleted=deleted,
            counts=rewrite_plan.counts,
            alters_schema=alters_schema,
        )

    def still_applies_to(self, newest: Snapshot, base: int) -> bool:
        """Return True if the merge would have the same effect on a newer version."""
        session, plan = self._execution.session, self._execution.plan
        if newest.schema != self._base_schema:
            return False
        with self._ws.db.read(self._caller) as tx:
            if newest.version.number == base or not snapshots.are_unchanged(
                tx, newest.dataset, self._required_files, base
            ):
                return False
            new_files = snapshots.files_since(tx, newest, base)
        if new_files and (plan.rules.rest is Rest.DELETE or any(_may_have_nulls(f, plan.keys) for f in new_files)):
            return False
        candidates = [file for file in new_files if session.key_ranges.overlaps(_key_bounds(file, plan.keys))]
        store = self._ws.store_of(self._caller)
        targets = [_target_file(store, self._ws.file_sizing, file, plan) for file in candidates]
        with store.open_local(candidates):
            return not session.match(targets).matched_rows

    def preview(self, overlay: DatasetOverlay) -> MergeResult:
        """Match without writing, and return the result that the merge would have."""
        self._match(self._open(overlay))
        return self.merged

    def result(self, receipt: Receipt) -> MergeResult:
        """Return the result of the merge with the counts of its receipt."""
        (written,) = receipt.written
        stats = core_merge.compute_merge_stats(
            strategy=self._request.strategy,
            target_before=written.rows - written.inserted + written.deleted,
            target_after=written.rows,
            inserted=written.inserted,
            updated=written.updated,
            deleted=written.deleted,
        )
        return replace(self.merged, stats=stats, receipt=receipt)

    def _open(self, overlay: DatasetOverlay) -> "_DatasetTarget":
        plan = core_merge.plan_merge(
            _source_schema(self._rows.schema),
            overlay.schema,
            self._request.keys,
            self._request.strategy,
            dedup_order_by=self._request.order_by,
            add_columns=self._request.add_columns,
            row_ids=overlay.row_ids,
            batch_rows=plain_integer(self._request.batch_rows),
        )
        self._execution.open(plan, plan.schema)
        return _DatasetTarget(self._ws, self._caller, self._stage, overlay, plan)

    def _match(self, target: "_DatasetTarget") -> RewritePlan:
        rewrite_plan = self._execution.match(target)
        data_files = target.data_files
        affected = (*rewrite_plan.rewrite, *rewrite_plan.mark, *rewrite_plan.drop)
        required = {*self._execution.match_counts.matched_rows, *(file.path for file in affected)}
        required -= {file.path for file in rewrite_plan.mark}  # the commit checks their rows one by one
        self._required_files = [number for path in required if (number := data_files[path].number)]  # not staged ones
        self.merged = MergeResult(
            rewrite_plan.stats(self._request.strategy),
            tuple(data_files[file.path].path for file in rewrite_plan.rewrite),
            tuple(data_files[file.path].path for file in rewrite_plan.drop),
            tuple(data_files[file.path].path for file in rewrite_plan.mark),
            unchanged_files=target.overlay.file_count - len(affected),
            engine=self._execution.engine_name,
        )
        return rewrite_plan


class _DatasetTarget:
    """The files of a dataset overlay as a `MergeTarget`."""

    rewrites_all = False  # old files may lack columns or have narrower types

    def __init__(
        self, ws: Workspace, caller: Caller, stage: StagingArea, overlay: DatasetOverlay, plan: MergePlan
    ) -> None:
        self._ws, self._stage, self._plan, self.overlay = ws, stage, plan, overlay
        self._store = ws.store_of(caller)
        self.data_files: dict[str, DataFile] = {}  # of the last call of `files`, by location
        self._nullable_files: dict[str, DataFile] = {}  # of the last call of `files_with_possible_nulls`, by location

    @property
    def rows(self) -> int:
        return self.overlay.rows

    @property
    def edit_policy(self) -> EditPolicy:
        return self._ws.edit_policy

    def files_with_possible_nulls(self) -> list[TargetFile]:
        keys = self._plan.keys
        if not any(self.overlay.schema.field(key).nullable for key in keys):
            return []
        files = [file for file in self.overlay.files(stats=True) if _may_have_nulls(file, keys)]
        self._nullable_files = {self._store.locate(file.path): file for file in files}
        return self._target_files(files)

    def files(self, key_ranges: KeyRanges | None) -> list[TargetFile]:
        files = self.overlay.files(None if key_ranges is None else key_ranges.bounds())
        self.data_files = {self._store.locate(file.path): file for file in files}
        return self._target_files(files)

    def open_files(self, files: Iterable[TargetFile]) -> AbstractContextManager[None]:
        listed = {**self._nullable_files, **self.data_files}
        return self._store.open_local(listed[file.path] for file in files)

    def _target_files(self, files: Sequence[DataFile]) -> list[TargetFile]:
        return [_target_file(self._store, self._ws.file_sizing, file, self._plan) for file in files]

    def layout(self, rewrite_plan: RewritePlan) -> RewritePlan:
        return rewrite_plan  # `_target_file` sets the layout

    def sink(self) -> FileSink:
        return self._stage.sink(self.overlay.location, self._plan.schema)


def _target_file(store: FileStore, sizing: FileSizing, file: DataFile, plan: MergePlan) -> TargetFile:
    schema = plan.schema.append(_ROW_ID) if plan.row_ids else plan.schema
    return TargetFile(
        store.locate(file.path),
        file.rows,
        FileLayout(schema, group_rows=sizing.group_rows),
        bounds=_key_bounds(file, plan.keys),
        first_row_id=file.first_row_id,
        deleted=file.deleted,
    )


def _source_schema(schema: pa.Schema) -> pa.Schema:
    """Return the source's columns with canonical types; a column of type NULL may become any type."""
    typed = canonical_schema(pa.schema([field for field in schema if not pt.is_null(field.type)]))
    return pa.schema([field if pt.is_null(field.type) else typed.field(field.name) for field in schema])


def _key_bounds(file: DataFile, keys: Sequence[str]) -> Bounds:
    return {key: (stats.low, stats.high) for key in keys if (stats := file.stats.get(key))}


def _may_have_nulls(file: DataFile, keys: Sequence[str]) -> bool:
    """Return True if a key column may contain NULL. A file without the column has only NULL."""
    return any(key not in file.stats or file.stats[key].nulls for key in keys)
