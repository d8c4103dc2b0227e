"""Stored pipeline runs: request, progress, inputs, results and outcome."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from penstock.core.progress import Progress
from penstock.core.registry.revisions import isoformat_utc


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE_STATES = (RunState.QUEUED, RunState.RUNNING)


@dataclass(frozen=True, slots=True)
class InputVersion:
    """A dataset version that a run has read."""

    dataset: str  # its id
    name: str
    version: int
    newest: int  # at the end of the run


@dataclass(frozen=True, slots=True)
class Run:
    id: UUID
    pipeline_id: UUID | None  # None: the pipeline is not stored
    name: str  # of the pipeline
    pipeline: Mapping[str, Any]  # definition at the time of the request
    state: RunState
    created_at: datetime
    created_by: UUID
    author: str  # display name of created_by
    key: str | None = None  # idempotency key of the request, if any
    started_at: datetime | None = None
    ended_at: datetime | None = None
    commit_no: int | None = None
    reads: tuple[Mapping[str, Any], ...] = ()  # InputVersion
    written: tuple[Mapping[str, Any], ...] = ()  # core.dataset.changes.DatasetCommit
    results: tuple[Mapping[str, Any], ...] = ()  # responses of the operations; the last may be an error
    progress: Mapping[str, Any] | None = None  # from `progress_as_json`, while the run is active
    error: Mapping[str, Any] | None = None  # as `error_response` returns it
    error_kind: str | None = None  # name of one of errors.KINDS
    cancelling: bool = False  # whether cancellation was requested

    @property
    def version(self) -> int | None:
        """Return the new or unchanged version of the output; None while the run is active, and if it failed."""
        return self.written[0]["version"] if self.written else None

    def as_json(self) -> dict[str, Any]:
        def at(when: datetime | None) -> str | None:
            return isoformat_utc(when) if when else None

        return {
            "id": str(self.id),
            "pipeline_id": self.pipeline_id and str(self.pipeline_id),
            "name": self.name,
            "state": self.state.value,
            "created_at": isoformat_utc(self.created_at),
            "created_by": str(self.created_by),
            "author": self.author,
            "idempotency_key": self.key,
            "started_at": at(self.started_at),
            "ended_at": at(self.ended_at),
            "cancelling": self.cancelling,
            "progress": self.progress,
            "reads": list(self.reads),
            "written": list(self.written),
            "commit_no": self.commit_no,
            "results": list(self.results),
            "error": self.error,
            "pipeline": self.pipeline,
        }


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run that has ended, as stored."""

    state: RunState
    reads: tuple[InputVersion, ...] = ()
    results: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None
    error_kind: str | None = None

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def progress_as_json(progress: Progress) -> dict[str, Any]:
    """Return the progress of a run as its record stores it. `rows` are the rows that the operation has written."""
    return {
        "operation": progress.operation,
        "operations": progress.operations,
        "order": progress.order,
        "type": progress.type,
        "phase": progress.phase,
        "stages": progress.stages,
        "stages_done": progress.stages_done,
        "tasks": progress.tasks,
        "tasks_done": progress.tasks_done,
        "rows": progress.done if progress.unit == "rows" else 0,
    }
