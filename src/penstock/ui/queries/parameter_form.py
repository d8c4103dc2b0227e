"""The parameters of a query while somebody fills them in: what each is, which value to try, and what to declare."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from penstock.core.result_schema import FieldType
from penstock.core.registry.query_parameters import Parameter, values
from penstock.errors import Invalid
from penstock.ui.layout import named

NEEDED = "a value is needed"
_TYPES = [str(kind) for kind in FieldType]
_LIKE = {
    FieldType.STRING: "EMEA",
    FieldType.NUMBER: "12.5",
    FieldType.BOOLEAN: "true or false",
    FieldType.DATE: "2026-01-31",
    FieldType.DATETIME: "2026-01-31T10:00:00Z",
}


@dataclass
class Entry:
    """One parameter as it stands in the form."""

    name: str
    type: FieldType = FieldType.STRING
    value: str = ""  # to try; empty: none
    default: str = ""  # empty: none
    required: bool = True


def declared_as(parameter: Mapping[str, Any]) -> Entry:
    """A parameter that a query has."""
    default = parameter.get("default")
    text = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
    return Entry(parameter["name"], FieldType(parameter["type"]), "", text, parameter["required"])


def tried(entries: Sequence[Entry]) -> dict[str, Any]:
    """The value of each, as JSON has it. What cannot be one is refused in the words of the core."""
    missing = [each.name for each in entries if each.required and not (each.value or each.default)]
    if missing:
        errors = [{"pointer": f"/{name}", "message": NEEDED} for name in missing]
        raise Invalid("missing_parameter", NEEDED, errors=errors)
    return {each.name: _json(each, each.value or each.default) for each in entries}


def declared(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """What a registered query says of them. A default makes a parameter one that can be left out."""
    told = []
    for each in entries:
        default = _default(each)
        shape: dict[str, Any] = {"name": each.name, "type": str(each.type)}
        told.append({**shape, "required": each.required} if default is None else {**shape, "default": default})
    return told


class Form:
    """An input for the value of each parameter; with `declaring`, also what it is and what it defaults to."""

    def __init__(self, entries: Sequence[Entry], *, declaring: bool, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._inputs: dict[tuple[str, str], ui.input] = {}  # by a parameter's name and a member of its entry
        for entry in entries:
            with ui.row().classes("w-full items-start gap-2 flex-wrap").props("role=group") as row:
                named(row, f"Parameter {entry.name}")
                ui.label(f"${entry.name}").classes("font-mono pt-2 w-32 break-anywhere")
                if declaring:
                    self._type(entry)
                self._text(entry, "value", "Value", declaring=declaring)
                if declaring:
                    self._text(entry, "default", "Default", declaring=declaring)
                    box = ui.checkbox("Required", value=entry.required).props("dense").classes("pt-2")
                    box.on_value_change(lambda event, entry=entry: self._take(entry, "required", event.value))

    def complain(self, name: str, sentence: str, member: str = "value") -> ui.input | None:
        """Say at a parameter's value or default what is wrong; None: there is no such parameter."""
        key = name.lower()
        found = self._inputs.get((key, member), self._inputs.get((key, "value")))
        if found is not None:
            found.error = sentence
        return found

    def forgive(self) -> None:
        for each in self._inputs.values():
            each.error = None

    def _type(self, entry: Entry) -> None:
        chosen = ui.select(_TYPES, value=str(entry.type), label="Type").props("outlined dense options-dense")
        named(chosen.classes("w-32"), f"Type of {entry.name}")
        chosen.on_value_change(lambda event: self._take(entry, "type", FieldType(event.value)))

    def _text(self, entry: Entry, member: str, label: str, *, declaring: bool) -> None:
        box = self._inputs[entry.name.lower(), member] = ui.input(label, value=getattr(entry, member)).props(
            "outlined dense hide-bottom-space"
        )
        box.props["placeholder"] = entry.default if member == "value" and entry.default else _LIKE[entry.type]
        if member == "value" and not declaring:  # then nothing else says what it is
            how = f"{entry.default} unless given" if entry.default else f"such as {_LIKE[entry.type]}"
            box.props["hint"] = f"{entry.type}, {how}"
        named(box.classes("flex-1 min-w-40"), f"{label} of {entry.name}")
        box.on_value_change(lambda event: self._take(entry, member, event.value or ""))

    def _take(self, entry: Entry, member: str, value: Any) -> None:
        setattr(entry, member, value)
        self._on_change()


def _default(entry: Entry) -> Any:
    try:
        return _json(entry, entry.default)
    except Invalid:  # the service says what is wrong with it, together with all else
        return entry.default


def _json(entry: Entry, text: str) -> Any:
    if not text:
        return None
    value = values([Parameter(entry.name, entry.type)], {entry.name: text})[entry.name]
    match entry.type:
        case FieldType.NUMBER:
            return value if isinstance(value, int) else float(value)
        case FieldType.BOOLEAN:
            return value
    return text
