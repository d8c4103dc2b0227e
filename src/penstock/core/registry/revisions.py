"""What is kept in versions: who changed it and when, in what two versions differ, and how each came to be."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID


class Draft(Protocol):
    """What somebody wants it to be."""

    def as_json(self) -> dict[str, Any]: ...


D = TypeVar("D", bound=Draft)


@dataclass(frozen=True, slots=True)
class Revision(Generic[D]):
    """One version of it, and how that came to be."""

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
            "changed_at": moment(self.changed_at),
            "changed_by": str(self.changed_by),
            "author": self.author,
            **self.draft.as_json(),
        }


def stamps(created_at: datetime, created_by: UUID, updated_at: datetime, updated_by: UUID) -> dict[str, str]:
    return {
        "created_at": moment(created_at),
        "created_by": str(created_by),
        "updated_at": moment(updated_at),
        "updated_by": str(updated_by),
    }


def changed(before: Draft, after: Draft, members: Iterable[str]) -> set[str]:
    """The members in which they differ, as JSON has them: Python takes 1 for True."""
    old, new = before.as_json(), after.as_json()
    return {member for member in members if _written(old[member]) != _written(new[member])}


def moment(when: datetime) -> str:
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
