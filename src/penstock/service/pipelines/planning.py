"""Settle a pipeline on the datasets as they are now: every version, column and type, without reading a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from penstock.catalog import snapshots as history
from penstock.catalog.database import Tx
from penstock.core.pipeline import operations
from penstock.core.pipeline import definition as pipelines
from penstock.core.caller import Caller, Role
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.pipeline.operations import Operation, Planned, Ref
from penstock.core.pipeline.definition import Pipeline
from penstock.core.pipeline.run import Read
from penstock.errors import Invalid, NotFound, PenstockError, Unsupported
from penstock.service.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Step:
    operation: Operation
    source: Snapshot
    planned: Planned


@dataclass(frozen=True, slots=True)
class Ready:
    """A pipeline with every version and type settled: what is left is work."""

    pipeline: Pipeline
    working: Snapshot
    steps: tuple[Step, ...]
    output: Snapshot | None  # the dataset that is replaced, where there is one

    @property
    def elsewhere(self) -> bool:
        """Does the result go to another dataset, or onto an old version?"""
        return self.pipeline.output is not None

    def reads(self, tx: Tx, before: Mapping[UUID, int]) -> tuple[Read, ...]:
        """The versions that were read, beside the newest of now, or of right before this run's own."""
        each = {(at.dataset, at.version.number): at for at in (self.working, *(step.source for step in self.steps))}
        return tuple(
            Read(str(dataset), str(at.name), version, before.get(dataset) or history.newest(tx, dataset).version.number)
            for (dataset, version), at in each.items()
        )


def prepare(ws: Workspace, caller: Caller, pipeline: Pipeline) -> Ready:
    """Settle a pipeline on the datasets as they are now, or say the first thing that is wrong. No row is read."""
    caller.require(Role.DEVELOPER)
    faults = list[PenstockError]()
    ready = _settled(ws, caller, pipeline, faults)
    if ready is None or faults:
        raise faults[0]
    return ready


def problems(ws: Workspace, caller: Caller, value: Any) -> list[dict[str, Any]]:
    """Everything that is wrong with a pipeline as JSON, each with its place. An empty list: it can run."""
    caller.require(Role.VIEWER)
    try:
        pipeline = pipelines.sent(value)
    except Invalid as refusal:
        found: list[dict[str, Any]] = refusal.context["errors"]
        return found
    faults = list[PenstockError]()
    _settled(ws, caller, pipeline, faults)
    places = {order: place for place, order in enumerate(_orders(value))}
    return [_placed(fault, places) for fault in faults]


def _settled(ws: Workspace, caller: Caller, pipeline: Pipeline, faults: list[PenstockError]) -> Ready | None:
    """Every operation is checked, against what those before it leave; one that is at fault leaves things as they were."""
    with ws.db.read(caller) as tx:
        try:
            working, output = _working(tx, pipeline), _output(tx, pipeline)
        except PenstockError as refusal:
            faults.append(refusal)
            return None
        schema, steps = working.schema, list[Step]()
        for operation in pipeline.operations:
            try:
                source = _source(tx, operation)
                planned = operations.checked(operation, source.schema, schema)
            except PenstockError as refusal:
                faults.append(refusal)
                continue
            schema = planned.working
            steps.append(Step(operation, source, planned))
    return Ready(pipeline, working, tuple(steps), output)


def _working(tx: Tx, pipeline: Pipeline) -> Snapshot:
    try:
        working = _pinned(tx, pipeline.working)
        newest = history.newest(tx, pipeline.working.dataset)
    except NotFound as refusal:
        facts = {**refusal.context, "dataset_id": str(pipeline.working.dataset)}
        raise NotFound(refusal.reason, refusal.message, **facts, pointer="/working") from None
    pipelines.check_output(pipeline, newest.version.number)
    if pipeline.output is None and working.read_only:
        raise _read_only(working, "/working")
    return working


def _output(tx: Tx, pipeline: Pipeline) -> Snapshot | None:
    if pipeline.output is None:
        return None
    try:
        output = history.named(tx, pipeline.output)
    except NotFound:
        return None
    if output.read_only:
        raise _read_only(output, "/output")
    return output


def _source(tx: Tx, operation: Operation) -> Snapshot:
    try:
        return _pinned(tx, operation.source)
    except NotFound as refusal:
        if refusal.reason == "version_not_found":
            raise operations.version_not_found(operation, refusal.context["actual_version"]) from None
        raise operations.dataset_not_found(operation) from None


def _pinned(tx: Tx, ref: Ref) -> Snapshot:
    return history.newest(tx, ref.dataset) if ref.version is None else history.at_version(tx, ref.dataset, ref.version)


def _read_only(dataset: Snapshot, pointer: str) -> Unsupported:
    return Unsupported("read_only", f"{dataset.name} is read-only", dataset=str(dataset.name), pointer=pointer)


def _orders(value: Any) -> list[int]:
    """The orders of the operations, as they stand in the list."""
    return [int(item.get("order", place)) for place, item in enumerate(value["operations"])]


def _placed(fault: PenstockError, places: Mapping[int, int]) -> dict[str, Any]:
    told = operations.envelope(fault)["error"]
    pointer = told["details"].pop("pointer", None)
    if pointer is None:
        pointer = f"/operations/{places[told['details']['operation_order']]}"
    return {"pointer": pointer, **told}
