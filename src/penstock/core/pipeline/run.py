"""A run of a pipeline as it is remembered: who asked for what, what it read and wrote, how far it is, how it ended."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from penstock.core.registry.revisions import moment


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNDER_WAY = (State.QUEUED, State.RUNNING)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: which operation it does, and what Spark says of the job that is under way."""

    operation: int  # how many operations are done
    operations: int
    order: int | None = None  # of the operation under way, as are the others
    type: str | None = None
    phase: str | None = None  # read, match, write
    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    tasks_done: int = 0
    rows: int = 0  # written, as far as it is known


@dataclass(frozen=True, slots=True)
class Read:
    """A version that a run has read."""

    dataset: str  # its id
    name: str
    version: int
    newest: int  # when the run ended; what came in between it has not seen


@dataclass(frozen=True, slots=True)
class Run:
    id: UUID
    pipeline_id: UUID | None  # None: it was never stored
    name: str  # of the pipeline
    pipeline: Mapping[str, Any]  # as it was
    state: State
    created_at: datetime
    created_by: UUID
    author: str  # created_by, for people
    key: str | None = None  # the request's idempotency key, where the caller chose one
    started_at: datetime | None = None
    ended_at: datetime | None = None
    commit_no: int | None = None
    reads: tuple[Mapping[str, Any], ...] = ()  # Read
    written: tuple[Mapping[str, Any], ...] = ()  # core.change.Written
    results: tuple[Mapping[str, Any], ...] = ()  # of each operation, as its caller is told; the last may be an error
    progress: Mapping[str, Any] | None = None  # Progress, while it is under way
    error: Mapping[str, Any] | None = None  # as core.operations.envelope tells it
    error_kind: str | None = None  # which of errors.KINDS
    cancelling: bool = False  # was it asked to stop?

    @property
    def version(self) -> int | None:
        """The version that it made, or left as it was; None while it is under way, and if it failed."""
        return self.written[0]["version"] if self.written else None

    def as_json(self) -> dict[str, Any]:
        def at(when: datetime | None) -> str | None:
            return moment(when) if when else None

        return {
            "id": str(self.id),
            "pipeline_id": self.pipeline_id and str(self.pipeline_id),
            "name": self.name,
            "state": self.state.value,
            "created_at": moment(self.created_at),
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
class Outcome:
    """What is to be remembered of a run that has ended."""

    state: State
    reads: tuple[Read, ...] = ()
    results: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None
    error_kind: str | None = None

    def facts(self) -> dict[str, Any]:
        return asdict(self)
