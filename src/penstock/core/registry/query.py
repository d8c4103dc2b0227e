"""A registered query: one SELECT with named parameters, and the schema that its result promises to fit."""

import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.core.registry import gts
from penstock.core.registry import revisions as kept
from penstock.core.registry import lifecycle
from penstock.core.payload import object_reader as reading
from penstock.core.result_schema import FieldType
from penstock.core.registry.revisions import moment, stamps
from penstock.core.registry.lifecycle import State, editable, first_state
from penstock.core.registry.query_parameters import Parameter, default
from penstock.core.payload.object_reader import Reading, error, refuse, shown, text
from penstock.core.registry.schema_entry import MAX_NAME
from penstock.errors import Invalid, Unsupported

MAX_SQL = 100_000  # characters
MAX_PARAMETERS = 100
RESERVED = ("format", "versions")  # what a run is asked besides its parameters
OURS = "_odata_"  # how the parameters begin that are put around a query

MEMBERS = ("name", "description", "sql", "parameters", "returns_schema_id")  # what a change may be about
_EDITABLE = editable(MEMBERS, ("description",))
_MANAGED = (
    "id", "datasets", "version", "state_changed_at", "created_at", "created_by", "updated_at", "updated_by",
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SEPARATOR = re.compile(r"[/?#]")
_TYPES = {str(kind): kind for kind in FieldType}


@dataclass(frozen=True, slots=True)
class Reference:
    """A dataset that the SQL names."""

    schema: str
    table: str
    version: int | None = None  # None: the newest at the time of a run

    def as_json(self) -> dict[str, Any]:
        shape: dict[str, Any] = {"schema_name": self.schema, "table_name": self.table}
        return shape if self.version is None else {**shape, "version": self.version}


@dataclass(frozen=True, slots=True)
class Draft:
    """What somebody wants a query to be."""

    name: str
    description: str | None
    sql: str
    parameters: tuple[Parameter, ...]
    returns_schema_id: UUID
    state: State = State.ACTIVE

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
class Query:
    id: UUID
    draft: Draft
    datasets: tuple[Reference, ...]
    version: int
    state_changed_at: datetime
    created_at: datetime
    created_by: UUID
    updated_at: datetime
    updated_by: UUID

    @property
    def state(self) -> State:
        return self.draft.state

    def as_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            **self.draft.as_json(),
            "datasets": [each.as_json() for each in self.datasets],
            "version": self.version,
            "state_changed_at": moment(self.state_changed_at),
            **stamps(self.created_at, self.created_by, self.updated_at, self.updated_by),
        }


@dataclass(frozen=True, slots=True)
class Revision(kept.Revision[Draft]):
    """A query as one of its versions was, and how it came to be."""

    datasets: tuple[Reference, ...]

    def as_json(self) -> dict[str, Any]:
        return {**kept.Revision.as_json(self), "datasets": [each.as_json() for each in self.datasets]}


# -- reading a query ---------------------------------------------------------------------------------------------------


def entity(payload: Any) -> dict[str, Any]:
    return reading.entity(payload, "a query with name, sql and returns_schema_id")


def drafted(payload: Any) -> Draft:
    """A new query as it was sent. Everything that is wrong with it is told at once."""
    return _draft(payload, lambda value: first_state(value, "query"))


def revised(query: Query, payload: Any) -> Draft:
    """A query as it is to be: all but its state is replaced."""

    def same(value: Any) -> State:
        if value != query.state.value:
            raise Invalid(
                "state_is_fixed", f"the state is {query.state} and cannot be changed here; use POST …/transitions"
            )
        return query.state

    return replace(_draft(payload, same), state=query.state)


def check_placeholders(draft: Draft, names: Iterable[str]) -> None:
    """Refuse a query whose SQL uses other parameters than it declares. DuckDB does not mind their case."""
    used = {name.lower(): name for name in names}
    declared = {parameter.name.lower() for parameter in draft.parameters}
    errors = [
        error("/sql", "undeclared_parameter", f"the SQL uses ${shown(name)}, which parameters do not declare")
        for key, name in used.items()
        if key not in declared
    ] + [
        error(f"/parameters/{place}/name", "unused_parameter", f"the SQL does not use ${parameter.name}")
        for place, parameter in enumerate(draft.parameters)
        if parameter.name.lower() not in used
    ]
    refuse("bad_placeholders", errors)


def _draft(payload: Any, state: Callable[[Any], State]) -> Draft:
    told = Reading(entity(payload), (*MEMBERS, "state"), also=_MANAGED)
    draft = Draft(
        name=told.take("name", _name, required=True),
        description=told.take("description", reading.description),
        sql=told.take("sql", _sql, required=True),
        parameters=told.take("parameters", _parameters) or (),
        returns_schema_id=told.take("returns_schema_id", _schema, required=True),
        state=told.take("state", state) or State.ACTIVE,
    )
    refuse("bad_query", told.errors)
    return draft


def _name(value: Any) -> str:
    name = text(value, "name", MAX_NAME)
    if not name.strip():
        raise Invalid("missing_member", "name must not be blank")
    if found := _SEPARATOR.search(name):
        raise Invalid("bad_query_name", f"name must not hold {found[0]}: it is a part of addresses")
    return name


def _sql(value: Any) -> str:
    sql = text(value, "sql", MAX_SQL)
    if not sql.strip():
        raise Invalid("missing_member", "sql must hold a SELECT")
    return sql


def _schema(value: Any) -> UUID:
    if not isinstance(value, str) or (schema := gts.schema_key(value)) is None:
        raise Invalid("bad_schema_id", f"returns_schema_id must be a schema's UUID or {gts.QUERY_RETURNS}<UUID>")
    return schema


def _parameters(value: Any) -> tuple[Parameter, ...]:
    if not isinstance(value, list):
        raise Invalid("bad_parameter", "parameters must be a list of objects with name and type")
    if len(value) > MAX_PARAMETERS:
        raise Invalid("too_many_parameters", f"{len(value):,} parameters; at most {MAX_PARAMETERS} are allowed")
    found, errors, taken = list[Parameter](), list[dict[str, Any]](), set[str]()
    for place, item in enumerate(value):
        pointer = f"/parameters/{place}"
        if not isinstance(item, dict):
            errors.append(error(pointer, "bad_parameter", "a parameter must be an object with name and type"))
            continue
        told = Reading(item, ("name", "type", "required", "default"), pointer=pointer)
        found.append(_parameter(told, taken))
        errors += told.errors
    refuse("bad_parameter", errors)
    return tuple(found)


def _parameter(told: Reading, taken: set[str]) -> Parameter:
    def free(value: Any) -> str:
        if not isinstance(value, str) or not _WORD.fullmatch(value):
            rule = "use 1 to 128 letters, digits and _, and start with a letter or _"
            raise Invalid("bad_parameter_name", f"this is no parameter name: {rule}")
        if value.lower() in RESERVED or value.lower().startswith(OURS):
            raise Invalid("reserved_parameter_name", f"{value} means something else to a run; choose another name")
        if value.lower() in taken:
            raise Invalid("doubled_parameter_name", f"there is a parameter {value} already, in this case or another")
        taken.add(value.lower())
        return value

    name, kind = told.take("name", free, required=True), told.take("type", _type, required=True)
    otherwise = told.take("default", lambda value: default(kind, value)) if kind else None
    required = told.take("required", _flag)
    if required and otherwise is not None:
        told.complain("required", Invalid("required_with_default", "what has a default is not required; drop one"))
    return Parameter(name, kind, otherwise is None if required is None else required, otherwise)


def _type(value: Any) -> FieldType:
    if not isinstance(value, str) or value not in _TYPES:
        raise Invalid("bad_parameter_type", f"a parameter is one of {', '.join(_TYPES)}")
    return _TYPES[value]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid("bad_parameter", "required must be true or false")
    return value


def assert_editable(state: State, changed: Set[str]) -> None:
    lifecycle.assert_editable(state, changed, _EDITABLE, "query")


def assert_runnable(query: Query) -> None:
    if query.state is State.ARCHIVED:
        told = f"the query {query.draft.name!r} is ARCHIVED and cannot be run; an admin may restore it"
        raise Unsupported("query_archived", told, query_id=str(query.id))
