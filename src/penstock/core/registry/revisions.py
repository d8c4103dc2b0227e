"""Versioned entries and their revisions: audit members, comparison and serialisation."""

import json
from collections.abc import Iterable
from dataclasses import Field, dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from uuid import UUID


class RegistryEntry(Protocol):
    """A stored result schema, query or pipeline: a frozen dataclass with a version number."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def id(self) -> UUID: ...
    @property
    def version(self) -> int: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def created_by(self) -> UUID: ...
    @property
    def updated_at(self) -> datetime: ...
    @property
    def updated_by(self) -> UUID: ...


E = TypeVar("E", bound=RegistryEntry)


class RevisionContent(Protocol):
    """Content of a revision that can be serialised as JSON."""

    def as_json(self) -> dict[str, Any]: ...


D = TypeVar("D", bound=RevisionContent)


@dataclass(frozen=True, slots=True)
class Revision(Generic[D]):
    """One stored state of an entry, with author, time and kind of change."""

    version: int
    draft: D
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
            "changed_at": isoformat_utc(self.changed_at),
            "changed_by": str(self.changed_by),
            "author": self.author,
            **self.draft.as_json(),
        }


def next_revision(entry: E, at: datetime, user: UUID, **changes: Any) -> E:
    """Return the entry after a change by a user: changed members, the next version number, new audit members."""
    return replace(entry, version=entry.version + 1, updated_at=at, updated_by=user, **changes)


def audit_fields(created_at: datetime, created_by: UUID, updated_at: datetime, updated_by: UUID) -> dict[str, str]:
    return {
        "created_at": isoformat_utc(created_at),
        "created_by": str(created_by),
        "updated_at": isoformat_utc(updated_at),
        "updated_by": str(updated_by),
    }


def changed_members(before: RevisionContent, after: RevisionContent, members: Iterable[str]) -> set[str]:
    """Return the members that differ as JSON; Python would take 1 and True as equal."""
    old, new = before.as_json(), after.as_json()
    return {member for member in members if _canonical_json(old[member]) != _canonical_json(new[member])}


def isoformat_utc(time: datetime) -> str:
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
