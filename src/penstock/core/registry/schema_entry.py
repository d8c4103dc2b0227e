"""Entries of the registry: schemas of what queries return, as people send them and as they are kept."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.core import result_schema as contract
from penstock.core.registry import gts
from penstock.core.registry import revisions as kept
from penstock.core.registry import lifecycle
from penstock.core.payload import object_reader as reading
from penstock.core.result_schema import Field
from penstock.core.registry.revisions import moment, stamps
from penstock.core.registry.lifecycle import MEMBERS, State
from penstock.core.payload.object_reader import MAX_TEXT, Reading, text
from penstock.errors import Invalid

MAX_NAME = 500
_MAX_DEPTH = 32
_MAX_VALUES = 10_000  # in the metadata of one entry

_FIXED = ("type_id", "state")  # may be sent with a change, but not changed by it
_MANAGED = (
    "id", "gts_id", "tenant_id", "version", "state_changed_at", "created_at", "created_by", "updated_at", "updated_by",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draft:
    """What somebody wants an entry to say."""

    name: str
    description: str | None
    fields: tuple[Field, ...]
    metadata: Mapping[str, Any] | None
    type_id: str = gts.QUERY_RETURNS
    state: State = State.ACTIVE

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "fields": [field.as_json() for field in self.fields],
            "metadata": self.metadata,
            "state": self.state.value,
        }


@dataclass(frozen=True, slots=True)
class Entry:
    id: UUID
    tenant: UUID | None  # None: built in, for everybody
    draft: Draft
    version: int
    state_changed_at: datetime
    created_at: datetime
    created_by: UUID
    updated_at: datetime
    updated_by: UUID

    @property
    def gts_id(self) -> str:
        return f"{self.draft.type_id}{self.id}" if self.tenant else gts.QUERY_RETURNS  # which is the one built-in type

    def as_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "gts_id": self.gts_id,
            "tenant_id": self.tenant and str(self.tenant),
            "type_id": self.draft.type_id,
            **self.draft.as_json(),
            "version": self.version,
            "state_changed_at": moment(self.state_changed_at),
            **stamps(self.created_at, self.created_by, self.updated_at, self.updated_by),
        }


@dataclass(frozen=True, slots=True)
class Revision(kept.Revision[Draft]):
    """An entry as one of its versions was, and how it came to be."""


def name_key(name: str) -> str:
    """The name as it is compared: outer blanks and case do not count."""
    return name.strip().casefold()


def entity(payload: Any) -> dict[str, Any]:
    return reading.entity(payload, "a schema with name, type_id and fields")


def drafted(payload: Mapping[str, Any]) -> Draft:
    """A new entry as it was sent. Everything that is wrong with it is told at once."""
    told = _reading(payload)
    draft = Draft(
        name=told.take("name", _name, required=_nameless()),
        type_id=told.take("type_id", gts.assert_schema_type, required=True),
        description=told.take("description", reading.description),
        fields=told.take("fields", contract.fields, required=True),
        metadata=told.take("metadata", _metadata),
        state=told.take("state", lambda value: lifecycle.first_state(value, "schema")) or State.ACTIVE,
    )
    _refuse(told)
    return draft


def revised(entry: Entry, payload: Mapping[str, Any]) -> Draft:
    """An entry as it is to be: name, description, fields and metadata are replaced, the rest must be as it is."""
    told, before = _reading(payload), entry.draft

    def same(member: str, value: str) -> Any:
        def check(given: Any) -> None:
            if str(given).removeprefix("gts://") != value:
                raise Invalid(
                    f"{member}_is_fixed",
                    f"{member} is {value} and cannot be changed here"
                    + ("; use POST …/transitions" if member == "state" else ""),
                )

        return check

    told.take("type_id", same("type_id", before.type_id))
    told.take("state", same("state", before.state.value))
    draft = replace(
        before,
        name=told.take("name", _name, required=_nameless()),
        description=told.take("description", reading.description),
        fields=told.take("fields", contract.fields, required=True),
        metadata=told.take("metadata", _metadata),
    )
    _refuse(told)
    return draft


def _reading(payload: Mapping[str, Any]) -> Reading:
    return Reading(payload, (*MEMBERS, *_FIXED), also=_MANAGED, stranger="{!r} is no member of a schema")


def _refuse(told: Reading) -> None:
    if told.refusals:  # what the contract has a sentence for goes first
        first = next((each for each in told.refusals if each.reason == "non_scalar_field"), told.refusals[0])
        raise Invalid(first.reason, first.message, **{**first.context, "errors": told.errors})


def assert_patchable(changes: Mapping[str, Any]) -> None:
    """Refuse a merge patch that names what an entry has not, or would take away what it must have."""
    unknown = sorted(set(changes) - {*MEMBERS, *_FIXED, *_MANAGED})
    fixed = [member for member in _FIXED if member in changes and changes[member] is None]
    if unknown or fixed:
        member = [*unknown, *fixed][0]
        what = "is no member of a schema" if unknown else "cannot be taken away"
        errors = [
            {
                "pointer": f"/{each}",
                "message": f"leave it out; a patch may hold {', '.join(MEMBERS)} and version",
                "code": "unknown_member",
            }
            for each in unknown + fixed
        ]
        raise Invalid("unknown_member", f"{member[:80]!r} {what}; there are {', '.join(MEMBERS)}", errors=errors)


def _name(value: Any) -> str:
    name = text(value, "name", MAX_NAME)
    if not name.strip():
        raise _nameless()
    return name


def _nameless() -> Invalid:
    return Invalid("missing_member", "Schema name is required")


def _metadata(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid("bad_metadata", "metadata must be a JSON object")
    count = [0]

    def plain(each: Any, depth: int) -> Any:
        count[0] += 1
        if depth > _MAX_DEPTH or count[0] > _MAX_VALUES:
            raise Invalid(
                "bad_metadata", f"metadata goes deeper than {_MAX_DEPTH} levels or has over {_MAX_VALUES:,} values"
            )
        match each:
            case dict():
                return {text(key, "a name in metadata", 1000): plain(one, depth + 1) for key, one in each.items()}
            case list():
                return [plain(one, depth + 1) for one in each]
            case str():
                return text(each, "a text in metadata", MAX_TEXT)
            case float() if not math.isfinite(each):
                raise Invalid("bad_metadata", "metadata holds a number that JSON does not have")
            case float() if each.is_integer() and abs(each) >= 2**53:
                return int(each)  # databases would give back one or the other
        return each

    try:
        found: dict[str, Any] = plain(value, 0)
    except RecursionError:
        raise Invalid("bad_metadata", f"metadata goes deeper than {_MAX_DEPTH} levels") from None
    return found
