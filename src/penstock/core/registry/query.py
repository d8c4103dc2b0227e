"""Registered queries: one SELECT with named parameters and a result schema."""

import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.core.payload import object_reader
from penstock.core.payload.object_reader import (
    MAX_TEXT_LENGTH,
    MemberError,
    ObjectReader,
    check_text,
    escape_text,
    raise_errors,
)
from penstock.core.registry import gts, lifecycle, revisions
from penstock.core.registry.lifecycle import LifecycleState, editable_members, parse_initial_state
from penstock.core.registry.query_parameters import QueryParameter, parse_default
from penstock.core.registry.revisions import audit_fields, isoformat_utc
from penstock.core.registry.schema_entry import MAX_NAME_LENGTH
from penstock.core.result_schema import FieldType
from penstock.errors import Invalid, Unsupported

MAX_SQL_LENGTH = 100_000  # characters
MAX_PARAMETERS = 100
RESERVED_PARAMETERS = ("format", "versions")  # names of a run's own parameters
WRAPPER_PARAMETER_PREFIX = "_odata_"  # prefix of the parameters that wrap a query

MEMBERS = ("name", "description", "sql", "parameters", "returns_schema_id")  # editable members
EDITABLE = editable_members(MEMBERS, ("description",))
_SERVER_MEMBERS = (
    "id", "datasets", "version", "state_changed_at", "created_at", "created_by", "updated_at", "updated_by",
)  # fmt: skip
_PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SEPARATOR = re.compile(r"[/?#]")
_TYPES = {str(kind): kind for kind in FieldType}


@dataclass(frozen=True, slots=True)
class QueryDatasetRef:
    """A dataset that the SQL references."""

    schema: str
    table: str
    version: int | None = None  # None: the newest version at the time of a run

    def as_json(self) -> dict[str, Any]:
        members: dict[str, Any] = {"schema_name": self.schema, "table_name": self.table}
        return members if self.version is None else {**members, "version": self.version}


@dataclass(frozen=True, slots=True)
class QueryDraft:
    """Content of a query that its author controls."""

    name: str
    description: str | None
    sql: str
    parameters: tuple[QueryParameter, ...]
    returns_schema_id: UUID
    state: LifecycleState = LifecycleState.ACTIVE

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "sql": self.sql,
            "parameters": [parameter.as_json() for parameter in self.parameters],
            "returns_schema_id": str(self.returns_schema_id),
            "state": self.state.value,
        }


@dataclass(frozen=True, slots=True)
class RegisteredQuery:
    id: UUID
    draft: QueryDraft
    datasets: tuple[QueryDatasetRef, ...]
    version: int
    state_changed_at: datetime
    created_at: datetime
    created_by: UUID
    updated_at: datetime
    updated_by: UUID

    @property
    def state(self) -> LifecycleState:
        return self.draft.state

    def as_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            **self.draft.as_json(),
            "datasets": [dataset.as_json() for dataset in self.datasets],
            "version": self.version,
            "state_changed_at": isoformat_utc(self.state_changed_at),
            **audit_fields(self.created_at, self.created_by, self.updated_at, self.updated_by),
        }


@dataclass(frozen=True, slots=True)
class QueryRevision(revisions.Revision[QueryDraft]):
    """One revision of a query."""

    datasets: tuple[QueryDatasetRef, ...]

    def as_json(self) -> dict[str, Any]:
        return {**revisions.Revision.as_json(self), "datasets": [dataset.as_json() for dataset in self.datasets]}


# -- reading a query ---------------------------------------------------------------------------------------------------


def unwrap_query(payload: Any) -> dict[str, Any]:
    """Return the object of a query in a payload."""
    return object_reader.unwrap_entity(payload, "a query with name, sql and returns_schema_id")


def parse_new_query(payload: Any) -> QueryDraft:
    """Parse a new query.

    Raises:
        Invalid: with all errors
    """
    return _parse_draft(payload, lambda value: parse_initial_state(value, "query"))


def parse_query_update(query: RegisteredQuery, payload: Any) -> QueryDraft:
    """Parse an update of a query, which replaces everything but its state."""

    def parse_state(value: Any) -> LifecycleState:
        if value != query.state.value:
            raise Invalid("immutable_state", {"state": query.state})
        return query.state

    return replace(_parse_draft(payload, parse_state), state=query.state)


def check_placeholders(draft: QueryDraft, names: Iterable[str]) -> None:
    """Check that the SQL uses exactly the declared parameters. DuckDB ignores their case."""
    used = {name.lower(): name for name in names}
    declared = {parameter.name.lower() for parameter in draft.parameters}
    errors = [
        MemberError.of("/sql", "undeclared_parameter", {"name": escape_text(name)})
        for key, name in used.items()
        if key not in declared
    ] + [
        MemberError.of(f"/parameters/{index}/name", "unused_parameter", {"name": parameter.name})
        for index, parameter in enumerate(draft.parameters)
        if parameter.name.lower() not in used
    ]
    raise_errors("bad_placeholders", errors)


def _parse_draft(payload: Any, state: Callable[[Any], LifecycleState]) -> QueryDraft:
    reader = ObjectReader(unwrap_query(payload))
    reader.reject_unknown((*MEMBERS, "state"), ignored=_SERVER_MEMBERS)
    draft = QueryDraft(
        name=reader.read("name", _parse_name, required=True),
        description=reader.text("description", None, max_length=MAX_TEXT_LENGTH),
        sql=reader.read("sql", _parse_sql, required=True),
        parameters=reader.read("parameters", _parse_parameters) or (),
        returns_schema_id=reader.read("returns_schema_id", _parse_schema_id, required=True),
        state=reader.read("state", state) or LifecycleState.ACTIVE,
    )
    raise_errors("bad_query", reader.errors)
    return draft


def _parse_name(value: Any) -> str:
    name = check_text(value, "name", MAX_NAME_LENGTH)
    if not name.strip():
        raise Invalid("missing_member.blank_name")
    if match := _SEPARATOR.search(name):
        raise Invalid("bad_query_name", {"character": match[0]})
    return name


def _parse_sql(value: Any) -> str:
    sql = check_text(value, "sql", MAX_SQL_LENGTH)
    if not sql.strip():
        raise Invalid("missing_member.blank_sql")
    return sql


def _parse_schema_id(value: Any) -> UUID:
    if not isinstance(value, str) or (schema := gts.parse_schema_id(value)) is None:
        raise Invalid("bad_schema_id", {"query_returns": gts.QUERY_RETURNS})
    return schema


def _parse_parameters(value: Any) -> tuple[QueryParameter, ...]:
    if not isinstance(value, list):
        raise Invalid("bad_parameter.not_a_list")
    if len(value) > MAX_PARAMETERS:
        raise Invalid("too_many_parameters", {"count": len(value), "max_parameters": MAX_PARAMETERS})
    parameters, errors, names = list[QueryParameter](), list[MemberError](), set[str]()
    for index, item in enumerate(value):
        pointer = f"/parameters/{index}"
        if not isinstance(item, dict):
            errors.append(MemberError.of(pointer, "bad_parameter.not_an_object"))
            continue
        reader = ObjectReader(item, pointer=pointer, errors=errors)
        reader.reject_unknown(("name", "type", "required", "default"))
        parameters.append(_parse_parameter(reader, names))
    raise_errors("bad_parameter.several", errors)
    return tuple(parameters)


def _parse_parameter(reader: ObjectReader, names: set[str]) -> QueryParameter:
    def parse_name(value: Any) -> str:
        if not isinstance(value, str) or not _PARAMETER_NAME.fullmatch(value):
            raise Invalid("bad_parameter_name")
        if value.lower() in RESERVED_PARAMETERS or value.lower().startswith(WRAPPER_PARAMETER_PREFIX):
            raise Invalid("reserved_parameter_name", {"name": value})
        if value.lower() in names:
            raise Invalid("duplicate_parameter_name", {"name": value})
        names.add(value.lower())
        return value

    name, type = (
        reader.read("name", parse_name, required=True),
        reader.read("type", _parse_parameter_type, required=True),
    )
    default_value = reader.read("default", lambda value: parse_default(type, value)) if type else None
    required = reader.read("required", _parse_flag)
    if required and default_value is not None:
        reader.add_error("required", Invalid("required_with_default"))
    return QueryParameter(name, type, default_value is None if required is None else required, default_value)


def _parse_parameter_type(value: Any) -> FieldType:
    if not isinstance(value, str) or value not in _TYPES:
        raise Invalid("bad_parameter_type", {"valid": list(_TYPES)})
    return _TYPES[value]


def _parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid("bad_parameter.required_not_boolean")
    return value


def assert_editable(state: LifecycleState, changed: Set[str]) -> None:
    """Check that the changed members of a query may change in this state."""
    lifecycle.assert_editable(state, changed, EDITABLE, "query")


def assert_runnable(query: RegisteredQuery) -> None:
    """Check that a query may run."""
    if query.state is LifecycleState.ARCHIVED:
        raise Unsupported("query_archived", {"name": query.draft.name}, query_id=str(query.id))
