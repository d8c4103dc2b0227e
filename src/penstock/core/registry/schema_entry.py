"""Registry entries: result schemas with revisions and lifecycle."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.core import result_schema
from penstock.core.payload import object_reader
from penstock.core.payload.object_reader import MAX_TEXT_LENGTH, MemberError, ObjectReader, check_text, list_entries
from penstock.core.registry import gts, lifecycle, revisions
from penstock.core.registry.lifecycle import MEMBERS, LifecycleState
from penstock.core.registry.revisions import audit_fields, isoformat_utc
from penstock.core.result_schema import ResultField
from penstock.errors import Invalid

MAX_NAME_LENGTH = 500
_MAX_DEPTH = 32
_MAX_VALUES = 10_000  # of the metadata of one entry

_IMMUTABLE_MEMBERS = ("type_id", "state")  # may be part of an update, but cannot change
_SERVER_MEMBERS = (
    "@odata.context", "id", "gts_id", "tenant_id", "version", "state_changed_at", "created_at", "created_by", "updated_at", "updated_by",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SchemaDraft:
    """Content of a result schema that its author controls."""

    name: str
    description: str | None
    fields: tuple[ResultField, ...]
    metadata: Mapping[str, Any] | None
    type_id: str = gts.QUERY_RETURNS
    state: LifecycleState = LifecycleState.ACTIVE

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "fields": [field.as_json() for field in self.fields],
            "metadata": self.metadata,
            "state": self.state.value,
        }


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    id: UUID
    tenant: UUID | None  # None: built in, visible to all tenants
    draft: SchemaDraft
    version: int
    state_changed_at: datetime
    created_at: datetime
    created_by: UUID
    updated_at: datetime
    updated_by: UUID

    @property
    def gts_id(self) -> str:
        return f"{self.draft.type_id}{self.id}" if self.tenant else gts.QUERY_RETURNS  # the only built-in type

    def as_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "gts_id": self.gts_id,
            "tenant_id": self.tenant and str(self.tenant),
            "type_id": self.draft.type_id,
            **self.draft.as_json(),
            "version": self.version,
            "state_changed_at": isoformat_utc(self.state_changed_at),
            **audit_fields(self.created_at, self.created_by, self.updated_at, self.updated_by),
        }


@dataclass(frozen=True, slots=True)
class SchemaRevision(revisions.Revision[SchemaDraft]):
    """One revision of a result schema."""


def name_key(name: str) -> str:
    """Return the name for comparison, without outer blanks and case."""
    return name.strip().casefold()


def unwrap_schema(payload: Any) -> dict[str, Any]:
    """Return the object of a result schema in a payload."""
    return object_reader.unwrap_entity(payload, "a schema with name, type_id and fields")


def parse_new_schema(payload: Mapping[str, Any]) -> SchemaDraft:
    """Parse a new result schema.

    Raises:
        Invalid: with all errors
    """
    reader = _object_reader(payload)
    draft = SchemaDraft(
        name=reader.read("name", _parse_name, required=_missing_name()),
        type_id=reader.read("type_id", gts.parse_schema_type, required=True),
        description=reader.text("description", None, max_length=MAX_TEXT_LENGTH),
        fields=reader.read("fields", result_schema.parse_fields, required=True),
        metadata=reader.read("metadata", _parse_metadata),
        state=reader.read("state", lambda value: lifecycle.parse_initial_state(value, "schema"))
        or LifecycleState.ACTIVE,
    )
    _raise_errors(reader)
    return draft


def parse_schema_update(entry: SchemaEntry, payload: Mapping[str, Any]) -> SchemaDraft:
    """Parse an update, which replaces name, description, fields and metadata. Other members must not change."""
    reader, current = _object_reader(payload), entry.draft

    def check_unchanged(member: str, value: str) -> Any:
        def check(received: Any) -> None:
            if str(received).removeprefix("gts://") != value:
                raise Invalid(f"immutable_{member}", {member: value})

        return check

    reader.read("type_id", check_unchanged("type_id", current.type_id))
    reader.read("state", check_unchanged("state", current.state.value))
    draft = replace(
        current,
        name=reader.read("name", _parse_name, required=_missing_name()),
        description=reader.text("description", None, max_length=MAX_TEXT_LENGTH),
        fields=reader.read("fields", result_schema.parse_fields, required=True),
        metadata=reader.read("metadata", _parse_metadata),
    )
    _raise_errors(reader)
    return draft


def _object_reader(payload: Mapping[str, Any]) -> ObjectReader:
    reader = ObjectReader(payload)
    reader.reject_unknown((*MEMBERS, *_IMMUTABLE_MEMBERS), ignored=_SERVER_MEMBERS)
    return reader


def _raise_errors(reader: ObjectReader) -> None:
    if reader.errors:
        main = result_schema.main_error(reader.errors)
        raise Invalid(main.reason, main.message, **{**main.context, "errors": list_entries(reader.errors)})


def assert_patchable(changes: Mapping[str, Any]) -> None:
    """Check that a merge patch names only members of an entry, and removes no required one."""
    unknown = sorted(set(changes) - {*MEMBERS, *_IMMUTABLE_MEMBERS, *_SERVER_MEMBERS})
    removed = [member for member in _IMMUTABLE_MEMBERS if member in changes and changes[member] is None]
    if unknown or removed:
        members = [*unknown, *removed]
        errors = [MemberError.of(f"/{name}", "unknown_member.patch", {"members": MEMBERS}) for name in members]
        key = "unknown_member.schema" if unknown else "unknown_member.required"
        raise Invalid(key, {"member": members[0][:80], "valid": MEMBERS}, errors=list_entries(errors))


def _parse_name(value: Any) -> str:
    name = check_text(value, "name", MAX_NAME_LENGTH)
    if not name.strip():
        raise _missing_name()
    return name


def _missing_name() -> Invalid:
    return Invalid("missing_member.schema_name")


def _parse_metadata(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid("bad_metadata.not_an_object")
    count = [0]

    def normalize(item: Any, depth: int) -> Any:
        count[0] += 1
        if depth > _MAX_DEPTH or count[0] > _MAX_VALUES:
            raise Invalid("bad_metadata.too_large", {"max_depth": _MAX_DEPTH, "max_values": _MAX_VALUES})
        match item:
            case dict():
                return {
                    check_text(key, "A name in metadata", 1000): normalize(child, depth + 1)
                    for key, child in item.items()
                }
            case list():
                return [normalize(child, depth + 1) for child in item]
            case str():
                return check_text(item, "A text in metadata", MAX_TEXT_LENGTH)
            case float() if not math.isfinite(item):
                raise Invalid("bad_metadata.not_finite")
            case float() if item.is_integer() and abs(item) >= 2**53:
                return int(item)  # databases would return either an integer or a float
        return item

    try:
        metadata: dict[str, Any] = normalize(value, 0)
    except RecursionError:
        raise Invalid("bad_metadata.too_deep", {"max_depth": _MAX_DEPTH}) from None
    return metadata
