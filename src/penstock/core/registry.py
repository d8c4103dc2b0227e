"""Entries of the registry: schemas of what queries return, as people send them and as they are kept."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.core import contract, gts
from penstock.core.contract import Field
from penstock.core.lifecycle import MEMBERS as EDITABLE
from penstock.core.lifecycle import State
from penstock.core.names import unstorable
from penstock.errors import Invalid

MAX_NAME = 500
_MAX_TEXT = 100_000
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
        draft = self.draft
        return {
            "id": str(self.id),
            "gts_id": self.gts_id,
            "tenant_id": self.tenant and str(self.tenant),
            "type_id": draft.type_id,
            "name": draft.name,
            "description": draft.description,
            "fields": [field.as_json() for field in draft.fields],
            "metadata": draft.metadata,
            "state": draft.state.value,
            "version": self.version,
            "state_changed_at": moment(self.state_changed_at),
            "created_at": moment(self.created_at),
            "created_by": str(self.created_by),
            "updated_at": moment(self.updated_at),
            "updated_by": str(self.updated_by),
        }


@dataclass(frozen=True, slots=True)
class Revision:
    """An entry as one of its versions was, and how it came to be."""

    version: int
    draft: Draft
    change: str  # create, update, or the verb of a transition
    reason: str | None
    changed_at: datetime
    changed_by: UUID
    author: str

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "change": self.change,
            "reason": self.reason,
            "changed_at": moment(self.changed_at),
            "changed_by": str(self.changed_by),
            "author": self.author,
            "name": self.draft.name,
            "description": self.draft.description,
            "fields": [field.as_json() for field in self.draft.fields],
            "metadata": self.draft.metadata,
            "state": self.draft.state.value,
        }


def moment(when: datetime) -> str:
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def name_key(name: str) -> str:
    """The name as it is compared: outer blanks and case do not count."""
    return name.strip().casefold()


def entity(payload: Any) -> dict[str, Any]:
    """The entity that a payload holds, flat or as its member `entity`."""
    if isinstance(payload, dict) and set(payload) == {"entity"}:
        payload = payload["entity"]
    if not isinstance(payload, dict):
        raise Invalid("bad_payload", "the body must be a JSON object: a schema with name, type_id and fields")
    return payload


def drafted(payload: Mapping[str, Any]) -> Draft:
    """A new entry as it was sent. Everything that is wrong with it is told at once."""
    told = _Reading(payload, (*EDITABLE, *_FIXED))
    return told.made(
        lambda: Draft(
            name=told.name(),
            type_id=told.take("type_id", gts.assert_schema_type, required=True),
            description=told.description(),
            fields=told.take("fields", contract.fields, required=True) or (),
            metadata=told.take("metadata", _metadata),
            state=told.take("state", _first_state) or State.ACTIVE,
        )
    )


def revised(entry: Entry, payload: Mapping[str, Any]) -> Draft:
    """An entry as it is to be: name, description, fields and metadata are replaced, the rest must be as it is."""
    told = _Reading(payload, (*EDITABLE, *_FIXED))
    before = entry.draft

    def same(member: str, value: str) -> Any:
        def check(given: Any) -> None:
            if str(given).removeprefix("gts://") != value:
                raise Invalid(
                    f"{member}_is_fixed",
                    f"{member} is {value} and cannot be changed here"
                    + ("; use POST …/transitions" if member == "state" else ""),
                )

        return check

    def draft() -> Draft:
        told.take("type_id", same("type_id", before.type_id))
        told.take("state", same("state", before.state.value))
        return replace(
            before,
            name=told.name(),
            description=told.description(),
            fields=told.take("fields", contract.fields, required=True) or (),
            metadata=told.take("metadata", _metadata),
        )

    return told.made(draft)


def asked_state(payload: Any) -> tuple[State, str | None]:
    """The state that a transition is to lead to, and why: `{"to", "version", "reason"?}`."""
    if not isinstance(payload, dict) or set(payload) - {"to", "version", "reason"}:
        raise Invalid("bad_payload", "a transition is an object with to, version and, if you like, reason")
    to = next((state for state in State if state.value == payload.get("to")), None)
    if to is None:
        raise Invalid(
            "bad_state",
            f"to must be one of {', '.join(State)}",
            errors=[{"pointer": "/to", "message": f"send one of {', '.join(State)}"}],
        )
    reason = payload.get("reason")
    return to, None if reason is None else text(reason, "reason", 10_000)


def assert_patchable(changes: Mapping[str, Any]) -> None:
    """Refuse a merge patch that names what an entry has not, or would take away what it must have."""
    unknown = sorted(set(changes) - {*EDITABLE, *_FIXED, *_MANAGED})
    fixed = [member for member in _FIXED if member in changes and changes[member] is None]
    if unknown or fixed:
        member = [*unknown, *fixed][0]
        what = "is no member of a schema" if unknown else "cannot be taken away"
        errors = [
            {
                "pointer": f"/{each}",
                "message": f"leave it out; a patch may hold {', '.join(EDITABLE)} and version",
                "code": "unknown_member",
            }
            for each in unknown + fixed
        ]
        raise Invalid("unknown_member", f"{member[:80]!r} {what}; there are {', '.join(EDITABLE)}", errors=errors)


def changed(before: Draft, after: Draft) -> set[str]:
    """The members in which they differ."""
    plain = {member for member in EDITABLE if getattr(before, member) != getattr(after, member)}
    # Python takes 1 for True; JSON does not.
    return plain if _said(before.metadata) == _said(after.metadata) else plain | {"metadata"}


def _said(metadata: Mapping[str, Any] | None) -> str:
    return json.dumps(metadata, sort_keys=True)


class _Reading:
    """Reads a payload's members and keeps every complaint."""

    def __init__(self, payload: Mapping[str, Any], known: tuple[str, ...]) -> None:
        self._payload = payload
        self._errors: list[dict[str, Any]] = []
        self._first: Invalid | None = None
        unknown = sorted(set(payload) - {*known, *_MANAGED})
        for member in unknown:
            self._complain(
                member, Invalid("unknown_member", f"{member!r} is no member of a schema; there are {', '.join(known)}")
            )

    def take(self, member: str, read: Any, *, required: bool = False) -> Any:
        value = self._payload.get(member)
        if value is None:
            if required:
                self._complain(member, Invalid("missing_member", f"{member} is required"))
            return None
        try:
            return read(value)
        except Invalid as refusal:
            self._complain(member, refusal)
            return None

    def name(self) -> str:
        if self._payload.get("name") is None:
            self._complain("name", Invalid("missing_member", "Schema name is required"))
            return ""
        return self.take("name", _name) or ""

    def description(self) -> str | None:
        found: str | None = self.take("description", lambda value: text(value, "description", _MAX_TEXT))
        return found

    def made(self, draft: Any) -> Draft:
        found: Draft = draft()
        if self._first is not None:
            context = {name: fact for name, fact in self._first.context.items() if name != "errors"}
            raise Invalid(self._first.reason, self._first.message, **context, errors=self._errors)
        return found

    def _complain(self, member: str, refusal: Invalid) -> None:
        more = refusal.context.get("errors")
        self._errors += more or [{"pointer": f"/{member}", "message": refusal.message, "code": refusal.reason}]
        if self._first is None or (refusal.reason == "non_scalar_field" != self._first.reason):
            self._first = refusal  # what the contract has a sentence for goes first


def text(value: Any, what: str, most: int) -> str:
    """Text that every database can keep."""
    if not isinstance(value, str):
        raise Invalid("not_text", f"{what} must be text")
    if len(value) > most:
        raise Invalid("text_too_long", f"{what} has {len(value):,} characters; at most {most:,} are allowed")
    if unstorable(value):
        raise Invalid("bad_text", f"{what} holds a character that cannot be stored (NUL or half a surrogate pair)")
    return value


def _name(value: Any) -> str:
    name = text(value, "name", MAX_NAME)
    if not name.strip():
        raise Invalid("missing_member", "Schema name is required")
    return name


def _first_state(value: Any) -> State:
    if value not in (State.ACTIVE.value, State.DRAFT.value):
        raise Invalid("bad_state", "a new schema is ACTIVE or DRAFT; later states are reached by transitions")
    return State(value)


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
                return text(each, "a text in metadata", _MAX_TEXT)
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
