"""A pipeline: a working dataset, the operations that run on it in order, and where the result goes.

The operations run on the rows of one version, and the result is committed once, at the end: as a new version of the
working dataset or, where the pipeline says so, of its output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.core.registry.revisions import stamps
from penstock.core.names import DatasetName
from penstock.core.pipeline.operations import Members, Operation, Ref, envelope, examined
from penstock.errors import Invalid

MAX_NAME = 255
MAX_OPERATIONS = 1_000
MAX_ERRORS = 100  # that are told; reading ends there

_OWN: list[tuple[str, str, tuple[type, ...]]] = [  # what no two operations share
    ("order", "duplicate_order", (int, float)),
    ("alias", "duplicate_alias", (str,)),
]
_MANAGED = ("id", "version", "created_at", "created_by", "updated_at", "updated_by")  # by the server


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    working: Ref
    operations: tuple[Operation, ...]  # as they run, one after the other
    output: DatasetName | None = None  # None: the working dataset

    def as_json(self) -> dict[str, Any]:
        meant: dict[str, Any] = {
            "name": self.name,
            "working": self.working.as_json(),
            "operations": [operation.as_json() for operation in self.operations],
        }
        if self.output:
            meant["output"] = {"schema_name": self.output.schema, "table_name": self.output.table}
        return meant


@dataclass(frozen=True, slots=True)
class Stored:
    """A pipeline that is kept, to be run again."""

    id: UUID
    pipeline: Pipeline
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
            **stamps(self.created_at, self.created_by, self.updated_at, self.updated_by),
        }


def read(value: Any) -> Pipeline:
    """The pipeline that JSON describes, or all that is wrong with it."""
    members = Members(value, required=("name", "working", "operations"), optional=("output",))
    name = members.text("name", MAX_NAME)
    if isinstance(given := members.get("name"), str) and not given.strip():
        members.fault("name", "must not be blank")
    working = members.ref("working")
    output = _output(members)
    items = members.items("operations", MAX_OPERATIONS)
    errors = [
        _error(pointer, "bad_pipeline", f"{pointer or 'the pipeline'} {problem}") for pointer, problem in members.faults
    ]
    errors += _repeated(items)
    operations = list[Operation]()
    for place, item in enumerate(items):
        found, faults = examined(item, place)
        operations += [found] if found else []
        errors += [_told(fault, place) for fault in faults]
        if len(errors) >= MAX_ERRORS:
            break
    if errors:
        raise Invalid(
            "bad_pipeline",
            f"the pipeline has {_counted(errors)}; the first is at {errors[0]['pointer'] or 'its root'}",
            errors=errors[:MAX_ERRORS],
        )
    return Pipeline(name, working, tuple(sorted(operations, key=lambda each: each.order)), output)


def sent(value: Any) -> Pipeline:
    """The pipeline that somebody sends to have it stored. One that was stored before may come as it was shown."""
    if isinstance(value, dict):
        value = {name: member for name, member in value.items() if name not in _MANAGED}
    return read(value)


def check_output(pipeline: Pipeline, newest: int) -> None:
    """Refuse to build the next version on an old one: it would undo the versions in between."""
    base = pipeline.working.version
    if base is not None and base < newest and pipeline.output is None:
        raise Invalid(
            "output_needed",
            f"the working dataset is pinned to version {base}, and version {newest} is the newest: the result would undo "
            "what came in between; name an output, or leave the version out",
            pointer="/output",
            dataset_id=str(pipeline.working.dataset),
            requested_version=base,
            actual_version=newest,
        )


def _output(members: Members) -> DatasetName | None:
    if "output" not in members:
        return None
    before = len(members.faults)
    output = members.inner("output", required=("schema_name", "table_name"))
    schema, table = output.text("schema_name"), output.text("table_name")
    if len(members.faults) > before:
        return None
    try:
        return DatasetName(schema, table)
    except Invalid as refusal:
        members.fault("output", f"names no dataset: {refusal.message}")
        return None


def _repeated(given: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Orders and aliases that an operation shares with one before it, however wrong the operations may be otherwise."""
    for member, reason, kinds in _OWN:
        first: dict[Any, int] = {}
        for place, item in enumerate(given):
            value = item.get(member, place) if isinstance(item, dict) else None  # an alias is no number
            if isinstance(value, kinds) and not isinstance(value, bool) and first.setdefault(value, place) != place:
                told = f"operation {place} has the {member} of operation {first[value]}; each needs its own"
                yield _error(f"/operations/{place}/{member}", reason, told)


def _told(fault: Invalid, place: int) -> dict[str, Any]:
    told = envelope(fault)["error"]
    inner = told["details"].pop("pointer")
    return {"pointer": f"/operations/{place}{inner}", **told}


def _error(pointer: str, reason: str, message: str) -> dict[str, Any]:
    return {"pointer": pointer, "code": reason.upper(), "message": message}


def _counted(errors: Sequence[Any]) -> str:
    if len(errors) >= MAX_ERRORS:
        return f"{MAX_ERRORS} errors or more"
    return "1 error" if len(errors) == 1 else f"{len(errors)} errors"
