"""Compare two result schemas, and find the differences that break readers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.core.result_schema.field import ResultField


class DiffKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    REORDERED = "reordered"


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    change: DiffKind
    field: str | None  # None: all fields
    member: str | None  # of the field, if one member changed
    old: Any
    new: Any

    def as_json(self) -> dict[str, Any]:
        return {
            "change": str(self.change),
            **({} if self.field is None else {"field": self.field}),
            **({} if self.member is None else {"member": self.member}),
            **({} if self.change is DiffKind.ADDED else {"from": self.old}),
            **({} if self.change is DiffKind.REMOVED else {"to": self.new}),
        }

    @property
    def is_breaking(self) -> bool:
        """Return True if the difference can break a reader of the old schema."""
        match self.change, self.member:
            case DiffKind.REMOVED, _:
                return not self.old["optional"]
            case DiffKind.CHANGED, "optional":
                return bool(self.new)
            case DiffKind.CHANGED, "type" | "array":
                return True
        return False


def diff(old: Sequence[ResultField], new: Sequence[ResultField]) -> list[SchemaDifference]:
    before, after = {field.name: field for field in old}, {field.name: field for field in new}
    differences = [
        SchemaDifference(DiffKind.REMOVED, name, None, field.as_json(), None)
        for name, field in before.items()
        if name not in after
    ]
    for name, field in after.items():
        if (previous := before.get(name)) is None:
            differences.append(SchemaDifference(DiffKind.ADDED, name, None, None, field.as_json()))
            continue
        for member in ("type", "array", "optional", "description"):
            old_value, new_value = getattr(previous, member), getattr(field, member)
            if old_value != new_value:
                differences.append(SchemaDifference(DiffKind.CHANGED, name, member, old_value, new_value))
    old_order = [name for name in before if name in after]
    if old_order != (new_order := [name for name in after if name in before]):
        differences.append(SchemaDifference(DiffKind.REORDERED, None, None, old_order, new_order))
    return differences


def breaking_differences(old: Sequence[ResultField], new: Sequence[ResultField]) -> list[SchemaDifference]:
    """Return the differences that break readers."""
    return [difference for difference in diff(old, new) if difference.is_breaking]
