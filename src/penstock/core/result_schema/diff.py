"""How a promise changes, member by member, and which changes let its readers down."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.core.result_schema.field import Field


class Change(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    REORDERED = "reordered"


@dataclass(frozen=True, slots=True)
class Difference:
    change: Change
    field: str | None  # None where it is about all of them
    member: str | None  # of the field, where one was changed
    old: Any
    new: Any

    def as_json(self) -> dict[str, Any]:
        return {
            "change": str(self.change),
            **({} if self.field is None else {"field": self.field}),
            **({} if self.member is None else {"member": self.member}),
            **({} if self.change is Change.ADDED else {"from": self.old}),
            **({} if self.change is Change.REMOVED else {"to": self.new}),
        }

    @property
    def breaks(self) -> bool:
        """Can a reader who trusted the old promise be let down by the new one?"""
        match self.change, self.member:
            case Change.REMOVED, _:
                return not self.old["optional"]
            case Change.CHANGED, "optional":
                return bool(self.new)
            case Change.CHANGED, "type" | "array":
                return True
        return False


def diff(old: Sequence[Field], new: Sequence[Field]) -> list[Difference]:
    before, after = {field.name: field for field in old}, {field.name: field for field in new}
    found = [
        Difference(Change.REMOVED, name, None, field.as_json(), None)
        for name, field in before.items()
        if name not in after
    ]
    for name, field in after.items():
        if (was := before.get(name)) is None:
            found.append(Difference(Change.ADDED, name, None, None, field.as_json()))
            continue
        for member in ("type", "array", "optional", "description"):
            one, other = getattr(was, member), getattr(field, member)
            if one != other:
                found.append(Difference(Change.CHANGED, name, member, one, other))
    stayed = [name for name in before if name in after]
    if stayed != (moved := [name for name in after if name in before]):
        found.append(Difference(Change.REORDERED, None, None, stayed, moved))
    return found


def breaking(old: Sequence[Field], new: Sequence[Field]) -> list[Difference]:
    """The differences that break readers."""
    return [difference for difference in diff(old, new) if difference.breaks]
