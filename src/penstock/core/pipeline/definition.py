"""Pipeline definitions: a working dataset, operations in order, and an optional output dataset.

The operations run on the rows of one version. The result is committed once, at the end: as a new version of the working
dataset, or of the output dataset if the pipeline names one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.core.names import DatasetName
from penstock.core.payload.object_reader import ObjectReader
from penstock.core.pipeline.operations import DatasetRef, Operation
from penstock.core.pipeline.parse import (
    MAX_TEXT_LENGTH,
    PIPELINE_RULES,
    bad_member,
    read_dataset_ref,
    validate_operation,
)
from penstock.core.pipeline.responses import error_response
from penstock.core.registry.revisions import audit_fields
from penstock.errors import Invalid

MAX_NAME_LENGTH = 255
MAX_OPERATIONS = 1_000
MAX_ERRORS = 100  # reported; parsing stops at this number

_UNIQUE_MEMBERS: list[tuple[str, str, tuple[type, ...]]] = [  # members that must be unique among the operations
    ("order", "duplicate_order", (int, float)),
    ("alias", "duplicate_alias", (str,)),
]
_SERVER_MEMBERS = ("id", "version", "created_at", "created_by", "updated_at", "updated_by")  # set by the server


@dataclass(frozen=True, slots=True)
class PipelineDefinition:
    name: str
    working: DatasetRef
    operations: tuple[Operation, ...]  # in execution order
    output: DatasetName | None = None  # None: the working dataset

    def as_json(self) -> dict[str, Any]:
        definition: dict[str, Any] = {
            "name": self.name,
            "working": self.working.as_json(),
            "operations": [operation.as_json() for operation in self.operations],
        }
        if self.output:
            definition["output"] = {"schema_name": self.output.schema, "table_name": self.output.table}
        return definition


@dataclass(frozen=True, slots=True)
class StoredPipeline:
    """A stored pipeline definition."""

    id: UUID
    pipeline: PipelineDefinition
    version: int
    created_at: datetime
    created_by: UUID
    updated_at: datetime
    updated_by: UUID

    def as_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            **self.pipeline.as_json(),
            "version": self.version,
            **audit_fields(self.created_at, self.created_by, self.updated_at, self.updated_by),
        }


def parse_pipeline(value: Any) -> PipelineDefinition:
    """Parse a pipeline from JSON.

    Raises:
        Invalid: with all errors
    """
    reader = ObjectReader(value, PIPELINE_RULES)
    reader.check_members(required=("name", "working", "operations"), optional=("output",))
    name = reader.text("name", "", max_length=MAX_NAME_LENGTH)
    if isinstance(raw_name := reader.get("name"), str) and not raw_name.strip():
        reader.add_error("name", bad_member("must not be blank"))
    working = read_dataset_ref(reader, "working")
    output = _read_output(reader)
    items = reader.items("operations", MAX_OPERATIONS)
    errors = [
        _error_entry(member.pointer, "bad_pipeline", f"{member.pointer or 'the pipeline'} {member.error.message}")
        for member in reader.errors
    ]
    errors += _find_duplicates(items)
    operations = list[Operation]()
    for index, item in enumerate(items):
        operation, operation_errors = validate_operation(item, index)
        operations += [operation] if operation else []
        errors += [_to_error_entry(error, index) for error in operation_errors]
        if len(errors) >= MAX_ERRORS:
            break
    if errors:
        raise Invalid(
            "bad_pipeline",
            {"count": _format_count(errors), "pointer": errors[0]["pointer"] or "its root"},
            errors=errors[:MAX_ERRORS],
        )
    return PipelineDefinition(name, working, tuple(sorted(operations, key=lambda operation: operation.order)), output)


def parse_stored_form(value: Any) -> PipelineDefinition:
    """Parse a pipeline to store. Members that the server sets are ignored, so a stored pipeline can be sent back."""
    if isinstance(value, dict):
        value = {name: member for name, member in value.items() if name not in _SERVER_MEMBERS}
    return parse_pipeline(value)


def check_output(pipeline: PipelineDefinition, newest: int) -> None:
    """Check that the next version is not built on an old one, which would undo the versions in between."""
    base = pipeline.working.version
    if base is not None and base < newest and pipeline.output is None:
        raise Invalid(
            "output_needed",
            {"base": base, "newest": newest},
            pointer="/output",
            dataset_id=str(pipeline.working.dataset),
            requested_version=base,
            actual_version=newest,
        )


def _read_output(reader: ObjectReader) -> DatasetName | None:
    if "output" not in reader:
        return None
    before = len(reader.errors)
    output = reader.object("output", required=("schema_name", "table_name"))
    schema = output.text("schema_name", "", max_length=MAX_TEXT_LENGTH)
    table = output.text("table_name", "", max_length=MAX_TEXT_LENGTH)
    if len(reader.errors) > before:
        return None
    try:
        return DatasetName(schema, table)
    except Invalid as error:
        reader.add_error("output", bad_member(f"is not a dataset name: {error.message}"))
        return None


def _find_duplicates(items: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield an error for each order and alias that an earlier operation has, however invalid the operations are."""
    for member, reason, types in _UNIQUE_MEMBERS:
        first: dict[Any, int] = {}
        for index, item in enumerate(items):
            value = (
                item.get(member, index) if isinstance(item, dict) else None
            )  # the default of an alias is the index, which is not a string
            if isinstance(value, types) and not isinstance(value, bool) and first.setdefault(value, index) != index:
                message = (
                    f"Operation {index} has the same {member} as operation {first[value]}. Each operation needs its own"
                )
                yield _error_entry(f"/operations/{index}/{member}", reason, message)


def _to_error_entry(error: Invalid, index: int) -> dict[str, Any]:
    entry = error_response(error)["error"]
    inner = entry["details"].pop("pointer")
    return {"pointer": f"/operations/{index}{inner}", **entry}


def _error_entry(pointer: str, reason: str, message: str) -> dict[str, Any]:
    return {"pointer": pointer, "code": reason.upper(), "message": message}


def _format_count(errors: Sequence[Any]) -> str:
    if len(errors) >= MAX_ERRORS:
        return f"{MAX_ERRORS} errors or more"
    return "1 error" if len(errors) == 1 else f"{len(errors)} errors"
