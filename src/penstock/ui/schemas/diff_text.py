"""Describe the differences between two versions of a schema."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from penstock.core import result_schema
from penstock.core.result_schema import DiffKind

_SIGNS = {DiffKind.ADDED: "+", DiffKind.REMOVED: "−", DiffKind.CHANGED: "~", DiffKind.REORDERED: "~"}
_FLAGS = {
    ("optional", True): "is now optional",
    ("optional", False): "is now required",
    ("array", True): "is now a list",
    ("array", False): "is no longer a list",
}
_PLAIN = ("name", "description", "metadata", "state")  # members that are not fields
_MAX_TEXT_CHARS = 120  # characters of a changed text


@dataclass(frozen=True)
class DiffLine:
    """One difference between two versions."""

    sign: str
    text: str
    is_breaking: bool = False  # for readers of the older version


def diff_entities(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[DiffLine]:
    """Describe all differences between two schemas. Members that `new` does not have are unchanged."""
    before, after = (result_schema.fields_from_json(each["fields"]) for each in (old, new))
    broken = [each.as_json() for each in result_schema.breaking_differences(before, after)]
    return member_lines(old, new) + field_lines([each.as_json() for each in result_schema.diff(before, after)], broken)


def member_lines(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[DiffLine]:
    """Describe the changes of all members except the fields."""
    changed = [member for member in _PLAIN if member in new and old.get(member) != new[member]]
    return [DiffLine("~", f"{member}: {_quoted(old.get(member))} → {_quoted(new[member])}") for member in changed]


def field_lines(differences: Sequence[Mapping[str, Any]], breaking: Sequence[Mapping[str, Any]]) -> list[DiffLine]:
    """Describe the field changes of the API. `breaking` are the changes that break readers."""
    return [
        DiffLine(_SIGNS[DiffKind(change["change"])], _describe(change), change in breaking) for change in differences
    ]


def show_lines(lines: Sequence[DiffLine], empty_text: str = "No changes.") -> None:
    """Show differences as a list."""
    with ui.element("ul").classes("w-full m-0 p-0 list-none"):
        for line in lines:
            with ui.element("li").classes("flex no-wrap items-baseline gap-2 py-1"):
                ui.label(line.sign).classes("font-mono w-4 shrink-0 text-center quiet").props("aria-hidden=true")
                ui.label(line.text).classes("break-anywhere min-w-0")
                if line.is_breaking:
                    ui.badge("breaking", color="negative").classes("shrink-0")
    if not lines:
        ui.label(empty_text).classes("quiet")


def _describe(change: Mapping[str, Any]) -> str:
    name, member, old, new = (change.get(key) for key in ("field", "member", "from", "to"))
    match DiffKind(change["change"]), member:
        case DiffKind.ADDED, _:
            return f"{name} was added: {_describe_field(new)}"
        case DiffKind.REMOVED, _:
            return f"{name} was removed: {_describe_field(old)}"
        case DiffKind.REORDERED, _:
            return f"order changed to {', '.join(new or ())}"
        case _, "optional" | "array":
            return f"{name} {_FLAGS[str(member), bool(new)]}"
    return f"{name}: {member} {_quoted(old)} → {_quoted(new)}"


def _describe_field(field: Mapping[str, Any] | None) -> str:
    (parsed,) = result_schema.fields_from_json([dict(field or {})])
    return f"{'list of ' if parsed.array else ''}{parsed.type}, {'optional' if parsed.optional else 'required'}"


def _quoted(value: Any) -> str:
    if value in (None, ""):
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"“{text if len(text) <= _MAX_TEXT_CHARS else text[: _MAX_TEXT_CHARS - 1] + '…'}”"
