"""Pipelines of the Python API, and the wait for a run that `penstock run` shares."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.payload import documents
from penstock.core.pipeline.definition import PipelineDefinition as PipelineDefinition
from penstock.core.pipeline.definition import parse_pipeline
from penstock.core.pipeline.run import Run, RunState
from penstock.core.progress import Progress, ProgressCallback
from penstock.errors import Invalid, PenstockError
from penstock.service.pipelines import execution, planning, runs

if TYPE_CHECKING:
    from penstock.lake import Lake

MAX_FILE_BYTES = 4 << 20  # of a pipeline file
_WAIT_SECONDS = 0.2  # between two calls of `RunObserver.on_wait`


class Pipeline:
    """Operations on a working dataset that run on Spark, in order, and are committed once."""

    def __init__(self, lake: "Lake", definition: Mapping[str, Any] | str | Path) -> None:
        self._lake = lake
        self._value = _read_definition(definition) if isinstance(definition, str | Path) else definition

    @cached_property
    def definition(self) -> PipelineDefinition:
        """The parsed definition.

        Raises:
            Invalid: the definition has errors; `errors` of its context lists all of them
        """
        return parse_pipeline(self._value)

    def validate(self) -> list[dict[str, Any]]:
        """List all errors that prevent a run, of the definition and of its datasets, without reading rows.

        Returns:
            errors with `pointer`, `code`, `message` and `details`; an empty list if the pipeline can run

        Raises:
            Unavailable: the catalog cannot be reached

        Example:
            >>> pipeline.validate()
            []
        """
        return planning.validate_pipeline(self._lake._workspace, self._lake.caller, self._value)

    def preview(self, *, progress: ProgressCallback | None = None) -> list[dict[str, Any]]:
        """Compute the result of each operation, without writing.

        Args:
            progress: called with a `Progress` as the run proceeds; an exception stops the run

        Returns:
            the response of each operation

        Raises:
            PenstockError: an operation fails

        Example:
            >>> pipeline.preview()[0]["result"]["rows_appended"]
            3
        """
        result = execution.preview(self._lake._workspace, self._lake.caller, self.definition, progress=progress)
        return list(result.results)

    def run(self, *, idempotency_key: str | None = None, progress: ProgressCallback | None = None) -> Run:
        """Run the pipeline in this process and wait for its end. Ctrl-C cancels the run.

        Args:
            idempotency_key: a repeated call with the same key and definition runs the pipeline once
            progress: called with a `Progress` as the run proceeds; an exception stops the run

        Returns:
            the record of the run: state, results of the operations, versions read and written

        Raises:
            PenstockError: an operation failed; nothing was written

        Example:
            >>> pipeline.run().results[0]["result"]["rows_appended"]
            3
        """
        outcome = execute_and_wait(
            self._lake, self.definition, _CallbackObserver(progress or (lambda _: None)), idempotency_key
        )
        if outcome.interrupt:
            raise outcome.interrupt
        if outcome.error:
            raise outcome.error
        return outcome.run


def _read_definition(path: str | Path) -> Any:
    """Read the definition in a JSON or YAML file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as cause:
        raise Invalid("unreadable_input", {"file": path, "strerror": cause.strerror}) from None
    if len(data) > MAX_FILE_BYTES:
        raise Invalid("input_too_large", {"file": path}, limit=MAX_FILE_BYTES)
    return documents.parse_document(data, documents.format_of(str(path)), str(path)).value


class RunObserver(Protocol):
    """Receives the progress of a run from the run's thread, and ticks from the thread that waits."""

    def on_progress(self, progress: Progress) -> None: ...
    def on_wait(self) -> None: ...
    def on_cancel(self) -> None: ...


@dataclass(frozen=True)
class WaitOutcome:
    """The end of a run that a caller waited for."""

    run: Run
    error: PenstockError | None = None  # of a run that failed or was cancelled
    interrupt: KeyboardInterrupt | None = None  # Ctrl-C, which cancelled the run unless it had ended
    is_replay: bool = False  # an earlier run with the same idempotency key had succeeded


def execute_and_wait(
    lake: "Lake", definition: PipelineDefinition, observer: RunObserver, idempotency_key: str | None = None
) -> WaitOutcome:
    """Run a pipeline in this process and wait for its end. Ctrl-C cancels the run and waits on."""
    worker, interrupt = lake._run_worker, None
    handle = worker.submit(lake.caller, definition, key=idempotency_key, on_progress=observer.on_progress, local=True)
    is_replay = handle.run.state is RunState.SUCCEEDED
    try:
        while not worker.wait(handle, _WAIT_SECONDS):
            observer.on_wait()
    except KeyboardInterrupt as error:
        interrupt = error
        observer.on_cancel()
        worker.cancel(lake.caller, handle.run.id)
        worker.wait(handle)
    run = runs.show(lake._workspace, lake.caller, handle.run.id)
    return WaitOutcome(run, handle.error, interrupt, is_replay)


@dataclass(frozen=True)
class _CallbackObserver:
    on_progress: ProgressCallback

    def on_wait(self) -> None:
        pass

    def on_cancel(self) -> None:
        pass
