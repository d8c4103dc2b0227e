"""Plan a pipeline: resolve its datasets, versions, columns and types, without reading a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from penstock.catalog import snapshots
from penstock.catalog.database import CatalogTransaction
from penstock.core.caller import Caller, Role
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.pipeline import definition as pipeline_definition
from penstock.core.pipeline.definition import PipelineDefinition
from penstock.core.pipeline.operations import DatasetRef, Operation
from penstock.core.pipeline.plan import Planned, dataset_not_found, plan_operation, version_not_found
from penstock.core.pipeline.responses import error_response
from penstock.core.pipeline.run import InputVersion
from penstock.errors import Invalid, NotFound, PenstockError, Unsupported
from penstock.service.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Step:
    """One operation with its resolved source."""

    operation: Operation
    source: Snapshot
    planned: Planned


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A pipeline with resolved versions, columns and types."""

    pipeline: PipelineDefinition
    working: Snapshot
    steps: tuple[Step, ...]
    output: Snapshot | None  # the output dataset, if it exists

    @property
    def has_output(self) -> bool:
        """Return True if the pipeline names an output dataset."""
        return self.pipeline.output is not None

    def reads(self, tx: CatalogTransaction, before: Mapping[UUID, int]) -> tuple[InputVersion, ...]:
        """Return the versions that the pipeline reads, with the newest version of each dataset.

        Args:
            tx: the transaction to read the newest versions in
            before: the newest versions before the commit of this run, by dataset

        Raises:
            NotFound: a dataset was dropped since the pipeline was planned
        """
        snapshots_read = {
            (at.dataset, at.version.number): at for at in (self.working, *(step.source for step in self.steps))
        }
        return tuple(
            InputVersion(str(dataset), str(at.name), version, before.get(dataset) or self._newest_version(tx, dataset))
            for (dataset, version), at in snapshots_read.items()
        )

    def _newest_version(self, tx: CatalogTransaction, dataset: UUID) -> int:
        try:
            return snapshots.newest(tx, dataset).version.number
        except NotFound:  # dropped since the pipeline was planned
            for step in self.steps:
                if step.source.dataset == dataset:
                    raise dataset_not_found(step.operation) from None
            raise


def plan_pipeline(ws: Workspace, caller: Caller, pipeline: PipelineDefinition) -> PipelinePlan:
    """Plan a pipeline for the newest versions of its datasets.

    Raises:
        PenstockError: the first error of the pipeline
    """
    caller.require(Role.DEVELOPER)
    errors = list[PenstockError]()
    plan = _plan(ws, caller, pipeline, errors)
    if plan is None or errors:
        raise errors[0]
    return plan


def validate_pipeline(ws: Workspace, caller: Caller, value: Any) -> list[dict[str, Any]]:
    """Return all errors of a pipeline in JSON form, each with its JSON pointer. An empty list: the pipeline can run."""
    caller.require(Role.VIEWER)
    try:
        pipeline = pipeline_definition.parse_stored_form(value)
    except Invalid as error:
        reports: list[dict[str, Any]] = error.context["errors"]
        return reports
    errors = list[PenstockError]()
    _plan(ws, caller, pipeline, errors)
    indices = {order: index for index, order in enumerate(_operation_orders(value))}
    return [_error_report(error, indices) for error in errors]


def _plan(
    ws: Workspace, caller: Caller, pipeline: PipelineDefinition, errors: list[PenstockError]
) -> PipelinePlan | None:
    """Plan every operation with the schema that the operations before it leave, and collect the errors.

    An operation with an error leaves the schema unchanged.
    """
    with ws.db.read(caller) as tx:
        try:
            working, output = _load_working(tx, pipeline), _load_output(tx, pipeline)
        except PenstockError as error:
            errors.append(error)
            return None
        schema, steps = working.schema, list[Step]()
        for operation in pipeline.operations:
            try:
                source = _load_source(tx, operation)
                planned = plan_operation(operation, source.schema, schema)
            except PenstockError as error:
                errors.append(error)
                continue
            schema = planned.working
            steps.append(Step(operation, source, planned))
    return PipelinePlan(pipeline, working, tuple(steps), output)


def _load_working(tx: CatalogTransaction, pipeline: PipelineDefinition) -> Snapshot:
    try:
        working = _load_snapshot(tx, pipeline.working)
        newest = snapshots.newest(tx, pipeline.working.dataset)
    except NotFound as error:
        facts = {**error.context, "dataset_id": str(pipeline.working.dataset)}
        raise NotFound(error.reason, error.message, **facts, pointer="/working") from None
    pipeline_definition.check_output(pipeline, newest.version.number)
    if pipeline.output is None and working.read_only:
        raise _read_only_error(working, "/working")
    return working


def _load_output(tx: CatalogTransaction, pipeline: PipelineDefinition) -> Snapshot | None:
    if pipeline.output is None:
        return None
    try:
        output = snapshots.by_name(tx, pipeline.output)
    except NotFound:
        return None
    if output.read_only:
        raise _read_only_error(output, "/output")
    return output


def _load_source(tx: CatalogTransaction, operation: Operation) -> Snapshot:
    try:
        return _load_snapshot(tx, operation.source)
    except NotFound as error:
        if error.reason == "version_not_found":
            raise version_not_found(operation, error.context["actual_version"]) from None
        raise dataset_not_found(operation) from None


def _load_snapshot(tx: CatalogTransaction, ref: DatasetRef) -> Snapshot:
    return (
        snapshots.newest(tx, ref.dataset) if ref.version is None else snapshots.at_version(tx, ref.dataset, ref.version)
    )


def _read_only_error(dataset: Snapshot, pointer: str) -> Unsupported:
    return Unsupported("read_only.dataset", {"name": dataset.name}, dataset=str(dataset.name), pointer=pointer)


def _operation_orders(value: Any) -> list[int]:
    """Return the orders of the operations, in the sequence of the list."""
    return [int(item.get("order", index)) for index, item in enumerate(value["operations"])]


def _error_report(error: PenstockError, indices: Mapping[int, int]) -> dict[str, Any]:
    """Return the response of an error, with a JSON pointer to its operation."""
    report = error_response(error)["error"]
    pointer = report["details"].pop("pointer", None)
    if pointer is None:
        pointer = f"/operations/{indices[report['details']['operation_order']]}"
    return {"pointer": pointer, **report}
