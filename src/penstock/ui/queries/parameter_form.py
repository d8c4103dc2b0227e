"""Parameter form of a query: values to run it with, and the declaration of each parameter."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from penstock.core.registry.query_parameters import QueryParameter, parse_parameter_values
from penstock.core.result_schema import FieldType
from penstock.errors import Invalid
from penstock.ui.elements import with_label

VALUE_REQUIRED = "A value is required"
_TYPES = [str(type_) for type_ in FieldType]
_EXAMPLES = {
    FieldType.STRING: "EMEA",
    FieldType.NUMBER: "12.5",
    FieldType.BOOLEAN: "true or false",
    FieldType.DATE: "2026-01-31",
    FieldType.DATETIME: "2026-01-31T10:00:00Z",
}


@dataclass
class ParameterEntry:
    """A parameter in the form."""

    name: str
    type: FieldType = FieldType.STRING
    value: str = ""  # for the next run; empty: no value
    default: str = ""  # empty: no default
    required: bool = True


def to_entry(parameter: Mapping[str, Any]) -> ParameterEntry:
    """Create the entry of a declared parameter."""
    default = parameter.get("default")
    text = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
    return ParameterEntry(parameter["name"], FieldType(parameter["type"]), "", text, parameter["required"])


def to_values(entries: Sequence[ParameterEntry]) -> dict[str, Any]:
    """Return the values of parameters as JSON.

    Raises:
        Invalid: A required value is missing, or a value does not match its type.
    """
    missing = [entry.name for entry in entries if entry.required and not (entry.value or entry.default)]
    if missing:
        errors = [{"pointer": f"/{name}", "message": VALUE_REQUIRED} for name in missing]
        raise Invalid("missing_parameter", VALUE_REQUIRED, errors=errors)
    return {entry.name: _to_json(entry, entry.value or entry.default) for entry in entries}


def to_declarations(entries: Iterable[ParameterEntry]) -> list[dict[str, Any]]:
    """Return the declarations of parameters. A parameter with a default is optional."""
    declarations = []
    for entry in entries:
        default = _to_default(entry)
        declaration: dict[str, Any] = {"name": entry.name, "type": str(entry.type)}
        declaration |= {"required": entry.required} if default is None else {"default": default}
        declarations.append(declaration)
    return declarations


class ParameterForm:
    """Inputs for the values of parameters.

    Args:
        entries: The parameters.
        declaring: Also show inputs for type, default and required.
        on_change: Called after every change.
    """

    def __init__(self, entries: Sequence[ParameterEntry], *, declaring: bool, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._inputs: dict[tuple[str, str], ui.input] = {}  # by name of the parameter and member of its entry
        for entry in entries:
            with ui.row().classes("w-full items-start gap-2 flex-wrap").props("role=group") as row:
                with_label(row, f"Parameter {entry.name}")
                ui.label(f"${entry.name}").classes("font-mono pt-2 w-32 break-anywhere")
                if declaring:
                    self._add_type(entry)
                self._add_text(entry, "value", "Value", declaring=declaring)
                if declaring:
                    self._add_text(entry, "default", "Default", declaring=declaring)
                    box = ui.checkbox("Required", value=entry.required).props("dense").classes("pt-2")
                    box.on_value_change(lambda event, entry=entry: self._set(entry, "required", event.value))

    def set_error(self, name: str, message: str, member: str = "value") -> ui.input | None:
        """Show an error at an input of a parameter. Returns the input, or None if the parameter does not exist."""
        key = name.lower()
        box = self._inputs.get((key, member), self._inputs.get((key, "value")))
        if box is not None:
            box.error = message
        return box

    def clear_errors(self) -> None:
        """Remove all errors."""
        for box in self._inputs.values():
            box.error = None

    def _add_type(self, entry: ParameterEntry) -> None:
        chosen = ui.select(_TYPES, value=str(entry.type), label="Type").props("outlined dense options-dense")
        with_label(chosen.classes("w-32"), f"Type of {entry.name}")
        chosen.on_value_change(lambda event: self._set(entry, "type", FieldType(event.value)))

    def _add_text(self, entry: ParameterEntry, member: str, label: str, *, declaring: bool) -> None:
        box = self._inputs[entry.name.lower(), member] = ui.input(label, value=getattr(entry, member)).props(
            "outlined dense hide-bottom-space"
        )
        box.props["placeholder"] = entry.default if member == "value" and entry.default else _EXAMPLES[entry.type]
        if member == "value" and not declaring:  # no other input shows the type
            note = f"default {entry.default}" if entry.default else f"for example {_EXAMPLES[entry.type]}"
            box.props["hint"] = f"{entry.type}, {note}"
        with_label(box.classes("flex-1 min-w-40"), f"{label} of {entry.name}")
        box.on_value_change(lambda event: self._set(entry, member, event.value or ""))

    def _set(self, entry: ParameterEntry, member: str, value: Any) -> None:
        setattr(entry, member, value)
        self._on_change()


def _to_default(entry: ParameterEntry) -> Any:
    try:
        return _to_json(entry, entry.default)
    except Invalid:  # the service reports it together with all other errors
        return entry.default


def _to_json(entry: ParameterEntry, text: str) -> Any:
    if not text:
        return None
    value = parse_parameter_values([QueryParameter(entry.name, entry.type)], {entry.name: text})[entry.name]
    match entry.type:
        case FieldType.NUMBER:
            return value if isinstance(value, int) else float(value)
        case FieldType.BOOLEAN:
            return value
    return text
