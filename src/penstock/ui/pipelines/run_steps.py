"""Steps of a run: the status of each operation, the progress, and the error of the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.core.pipeline.run import ACTIVE_STATES, RunState
from penstock.ui import formatting
from penstock.ui.pipelines.definition import Details, format_details

Run = Mapping[str, Any]  # as the API returns it
NOTHING_WRITTEN = "Nothing was written."


class StepStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "not run"


@dataclass(frozen=True)
class RunStep:
    """One operation of a run and its status."""

    number: int  # from 1
    title: str
    source: str  # id of the dataset that the operation reads
    status: StepStatus
    message: str = ""
    details: Details = ()  # of an error


def is_active(run: Run) -> bool:
    """Return whether a run is waiting or running."""
    return run["state"] in ACTIVE_STATES


def list_steps(run: Run) -> list[RunStep]:
    """List the operations of a run with their status. An error belongs to the operation that it names."""
    done = {result["order"]: result for result in run["results"] if result.get("success")}
    failed = _error(run).get("details", {}).get("operation_order")
    return [
        RunStep(
            number,
            operation.get("alias") or operation["type"],
            operation["parameters"]["source"]["dataset_id"],
            *_status(run, operation["order"], done, failed),
        )
        for number, operation in enumerate(run["pipeline"]["operations"], 1)
    ]


def describe_run(run: Run) -> str:
    """Describe the state of a run in one sentence."""
    progress = run["progress"] or {}
    match RunState(run["state"]):
        case RunState.QUEUED:
            return "Waiting in the run queue."
        case RunState.RUNNING if run["cancelling"]:
            return "Cancellation requested."
        case RunState.RUNNING if progress.get("type") and not _is_starting(progress):
            part = _format_part("Operation", progress["operation"] + 1, progress["operations"])
            return f"{part}: {progress['type']}."
        case RunState.RUNNING:
            return "Starting Spark."
        case RunState.SUCCEEDED:
            return (
                " ".join(f"{dataset['name']} is at version {dataset['version']}." for dataset in run["written"])
                or "Done."
            )
        case RunState.FAILED:
            return f"The run failed. {NOTHING_WRITTEN}"
        case RunState.CANCELLED:
            return f"The run was cancelled. {NOTHING_WRITTEN}"


def completed_share(run: Run) -> float:
    """Return the completed share of a run, from 0 to 1. All operations count alike, as do the tasks of one."""
    if run["state"] == RunState.SUCCEEDED:
        return 1.0
    progress = run["progress"] or {}
    if not progress.get("operations"):
        return 0.0
    tasks = progress["tasks_done"] / progress["tasks"] if progress["tasks"] else 0.0
    return float(min((progress["operation"] + tasks) / progress["operations"], 1.0))


def find_run_error(run: Run) -> tuple[str, Details] | None:
    """Return message and details of the error that ended a run, unless it belongs to one operation."""
    error = _error(run)
    if not error or "operation_order" in error.get("details", {}):
        return None
    return str(error["message"]), format_details(error.get("details", {}))


def _error(run: Run) -> Mapping[str, Any]:
    error: Mapping[str, Any] = (run["error"] or {}).get("error", {})
    return error


def _status(
    run: Run, order: int, done: Mapping[int, Mapping[str, Any]], failed: int | None
) -> tuple[StepStatus, str, Details]:
    progress = run["progress"] or {}
    if order in done:
        return StepStatus.DONE, _format_counts(done[order]["operation"], done[order]["result"]), ()
    if order == failed:
        error = _error(run)
        return StepStatus.FAILED, f"{error['message']} ({error['code']})", format_details(error["details"])
    if not is_active(run):
        return StepStatus.SKIPPED, "", ()
    if run["state"] == RunState.RUNNING and progress.get("order") == order:
        return StepStatus.RUNNING, _format_progress(progress), ()
    return StepStatus.WAITING, "", ()


def _format_counts(operation_type: str, result: Mapping[str, Any]) -> str:
    if operation_type == "append":
        qualifiers = " and ".join(word for word in ("filtered", "aggregated") if result[word])
        changes = f"{formatting.format_count(result['rows_appended'], 'row')} appended" + (
            f", {qualifiers}" if qualifiers else ""
        )
    else:
        changes = ", ".join(
            f"{formatting.format_count(result[word])} {word}" for word in ("inserted", "updated", "deleted")
        )
    after = formatting.format_count(result["working_dataset_rows_after"], "row")
    return f"{changes}; {after} in the working dataset; took {formatting.format_seconds(result['execution_time_ms'] / 1000)}"


def _is_starting(progress: Mapping[str, Any]) -> bool:
    """Return whether Spark has not started the first operation yet."""
    return not (progress["operation"] or progress["phase"] or progress["stages"])


def _format_progress(progress: Mapping[str, Any]) -> str:
    if _is_starting(progress):
        return "starting Spark"
    parts = [progress["phase"] or "starting"]
    if progress["tasks"]:
        parts.append(_format_part("task", progress["tasks_done"], progress["tasks"]))
    if progress["stages"] > 1:
        parts.append(_format_part("stage", progress["stages_done"], progress["stages"]))
    if progress["rows"]:
        parts.append(f"{formatting.format_count(progress['rows'], 'row')} written")
    return ", ".join(parts)


def _format_part(noun: str, number: int, total: int) -> str:
    return f"{noun} {formatting.format_count(number)} of {formatting.format_count(total)}"
