"""What a run has done so far, operation by operation, in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.core.pipeline.run import UNDER_WAY, State
from penstock.ui import formatting as shown
from penstock.ui.pipelines.definition import Facts, facts

Run = Mapping[str, Any]  # as the API tells it
NOTHING = "Nothing was written."


class Standing(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LEFT = "not done"


@dataclass(frozen=True)
class Step:
    number: int  # the first is 1
    title: str
    source: str  # the id of the dataset that it reads
    standing: Standing
    sentence: str = ""
    facts: Facts = ()  # of what went wrong


def is_under_way(run: Run) -> bool:
    return run["state"] in UNDER_WAY


def steps(run: Run) -> list[Step]:
    """Each operation of a run and where it stands. An error belongs to the operation that it names."""
    done = {each["order"]: each for each in run["results"] if each.get("success")}
    failed = _error(run).get("details", {}).get("operation_order")
    return [
        Step(
            number,
            operation.get("alias") or operation["type"],
            operation["parameters"]["source"]["dataset_id"],
            *_stands(run, operation["order"], done, failed),
        )
        for number, operation in enumerate(run["pipeline"]["operations"], 1)
    ]


def summary(run: Run) -> str:
    """Where a run stands, in a sentence that changes only when something has happened."""
    progress = run["progress"] or {}
    match State(run["state"]):
        case State.QUEUED:
            return "It waits for its turn."
        case State.RUNNING if run["cancelling"]:
            return "It was asked to stop, and will soon."
        case State.RUNNING if progress.get("type") and not _gets_ready(progress):
            return f"Operation {progress['operation'] + 1} of {progress['operations']}: {progress['type']}."
        case State.RUNNING:
            return "It has begun; Spark gets ready."
        case State.SUCCEEDED:
            return " ".join(f"{each['name']} is at version {each['version']}." for each in run["written"]) or "Done."
        case State.FAILED:
            return f"It failed. {NOTHING}"
        case State.CANCELLED:
            return f"It was cancelled. {NOTHING}"


def share(run: Run) -> float:
    """How much of a run is done, of 1: operations count alike, and so do the tasks that are known of one."""
    if run["state"] == State.SUCCEEDED:
        return 1.0
    progress = run["progress"] or {}
    if not progress.get("operations"):
        return 0.0
    tasks = progress["tasks_done"] / progress["tasks"] if progress["tasks"] else 0.0
    return float(min((progress["operation"] + tasks) / progress["operations"], 1.0))


def own_error(run: Run) -> tuple[str, Facts] | None:
    """What ended a run, unless it is the fault of one operation."""
    error = _error(run)
    if not error or "operation_order" in error.get("details", {}):
        return None
    return str(error["message"]), facts(error.get("details", {}))


def _error(run: Run) -> Mapping[str, Any]:
    told: Mapping[str, Any] = (run["error"] or {}).get("error", {})
    return told


def _stands(
    run: Run, order: int, done: Mapping[int, Mapping[str, Any]], failed: int | None
) -> tuple[Standing, str, Facts]:
    progress = run["progress"] or {}
    if order in done:
        return Standing.DONE, _counts(done[order]["operation"], done[order]["result"]), ()
    if order == failed:
        error = _error(run)
        return Standing.FAILED, f"{error['message']} ({error['code']})", facts(error["details"])
    if not is_under_way(run):
        return Standing.LEFT, "", ()
    if run["state"] == State.RUNNING and progress.get("order") == order:
        return Standing.RUNNING, _spark(progress), ()
    return Standing.WAITING, "", ()


def _counts(kind: str, result: Mapping[str, Any]) -> str:
    if kind == "append":
        how = " and ".join(word for word in ("filtered", "aggregated") if result[word])
        what = f"{shown.count(result['rows_appended'], 'row')} appended" + (f", {how}" if how else "")
    else:
        what = ", ".join(f"{result[word]:,} {word}" for word in ("inserted", "updated", "deleted"))
    after = shown.count(result["working_dataset_rows_after"], "row")
    return f"{what}; {after} after it, in {shown.seconds(result['execution_time_ms'] / 1000)}"


def _gets_ready(progress: Mapping[str, Any]) -> bool:
    """Is the first operation next, and Spark has nothing to tell yet?"""
    return not (progress["operation"] or progress["phase"] or progress["stages"])


def _spark(progress: Mapping[str, Any]) -> str:
    if _gets_ready(progress):
        return "Spark gets ready"
    parts = [progress["phase"] or "begins"]
    if progress["tasks"]:
        parts.append(f"task {progress['tasks_done']:,} of {progress['tasks']:,}")
    if progress["stages"] > 1:
        parts.append(f"stage {progress['stages_done']:,} of {progress['stages']:,}")
    if progress["rows"]:
        parts.append(f"{shown.count(progress['rows'], 'row')} written")
    return ", ".join(parts)
