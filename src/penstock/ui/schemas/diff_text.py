"""How two versions of a schema differ, in words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from penstock.core import result_schema as contract
from penstock.core.result_schema import Change

_SIGNS = {Change.ADDED: "+", Change.REMOVED: "−", Change.CHANGED: "~", Change.REORDERED: "~"}
_FLAGS = {
    ("optional", True): "is now optional",
    ("optional", False): "is now required",
    ("array", True): "is now a list",
    ("array", False): "is no longer a list",
}
_PLAIN = ("name", "description", "metadata", "state")  # members that are not fields
_LONGEST = 120  # characters of a text that was changed


@dataclass(frozen=True)
class Line:
    sign: str
    text: str
    breaks: bool = False  # readers of the older version


def lines(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Line]:
    """All differences between two entities; `new` may leave out what stays."""
    before, after = (contract.stored(each["fields"]) for each in (old, new))
    broken = [each.as_json() for each in contract.breaking(before, after)]
    return member_lines(old, new) + field_lines([each.as_json() for each in contract.diff(before, after)], broken)


def member_lines(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Line]:
    """What changed besides the fields."""
    changed = [member for member in _PLAIN if member in new and old.get(member) != new[member]]
    return [Line("~", f"{member}: {_quoted(old.get(member))} → {_quoted(new[member])}") for member in changed]


def field_lines(differences: Sequence[Mapping[str, Any]], breaking: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Differences as the API tells them; `breaking` are those among them that let readers down."""
    return [Line(_SIGNS[Change(each["change"])], _said(each), each in breaking) for each in differences]


def listed(found: Sequence[Line], nothing: str = "Nothing.") -> None:
    """The lines on a page."""
    with ui.element("ul").classes("w-full m-0 p-0 list-none"):
        for line in found:
            with ui.element("li").classes("flex no-wrap items-baseline gap-2 py-1"):
                ui.label(line.sign).classes("font-mono w-4 shrink-0 text-center quiet").props("aria-hidden=true")
                ui.label(line.text).classes("break-anywhere min-w-0")
                if line.breaks:
                    ui.badge("breaks readers", color="negative").classes("shrink-0")
    if not found:
        ui.label(nothing).classes("quiet")


def _said(each: Mapping[str, Any]) -> str:
    name, member, old, new = (each.get(part) for part in ("field", "member", "from", "to"))
    match Change(each["change"]), member:
        case Change.ADDED, _:
            return f"{name} was added: {_shape(new)}"
        case Change.REMOVED, _:
            return f"{name} was removed: {_shape(old)}"
        case Change.REORDERED, _:
            return f"the order is now {', '.join(new or ())}"
        case _, "optional" | "array":
            return f"{name} {_FLAGS[str(member), bool(new)]}"
    return f"{name}: {member} {_quoted(old)} → {_quoted(new)}"


def _shape(field: Mapping[str, Any] | None) -> str:
    (one,) = contract.stored([dict(field or {})])
    return f"{'list of ' if one.array else ''}{one.type}, {'optional' if one.optional else 'required'}"


def _quoted(value: Any) -> str:
    if value in (None, ""):
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"“{text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}”"
