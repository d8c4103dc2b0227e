"""Form row of one field of a schema."""

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from penstock.ui.elements import with_label
from penstock.ui.schemas.form_model import TYPES, FieldFormData
from penstock.ui.schemas.inputs import Input, Select, Textarea, limit_length


class FieldRow:
    """Inputs for name, type, list, optional and description of a field."""

    def __init__(
        self,
        number: int,
        row: FieldFormData,
        *,
        read_only: bool,
        on_change: Callable[..., None],
        on_remove: Callable[[], None],
    ) -> None:
        types = (
            TYPES if row.type in TYPES else [*TYPES, row.type]
        )  # an invalid type stays visible until it is corrected
        box = ui.card().classes("w-full p-3 gap-2").props("flat bordered role=group")
        with with_label(box, f"Field {number + 1}"):
            with ui.row().classes("w-full items-start gap-x-4 gap-y-1"):
                self._name = limit_length(Input("Name", value=row.name, on_change=_handler(on_change, "name")))
                self._name.props("outlined dense input-class=font-mono").classes("flex-1 min-w-40")
                self._type = Select(types, label="Type", value=row.type, on_change=_handler(on_change, "type"))
                self._type.props("outlined dense").classes("w-44 max-sm:w-full")
                with ui.row().classes("items-center gap-3 no-wrap"):
                    array = ui.checkbox("List", value=row.array, on_change=_handler(on_change, "array"))
                    optional = ui.checkbox("Optional", value=row.optional, on_change=_handler(on_change, "optional"))
                    self._remove = with_label(
                        ui.button(icon="delete", on_click=on_remove), f"Remove field {number + 1}"
                    )
                    self._remove.props("flat round dense size=sm")
            self._description = Textarea(
                "Description", value=row.description, on_change=_handler(on_change, "description")
            )
            limit_length(self._description).props("outlined dense autogrow rows=1").classes("w-full")
            self._other_errors = ui.label().props("role=alert").classes("text-negative break-anywhere")
        self._other_errors.set_visibility(False)
        for element in (self._name, self._type, array, optional, self._description, self._remove):
            element.set_enabled(not read_only)

    def show_errors(self, errors: Mapping[str, str]) -> None:
        """Show errors by JSON pointer. Errors without an input are shown below the row."""
        by_member = {pointer.rpartition("/")[2]: text for pointer, text in errors.items()}
        inputs = {"name": self._name, "type": self._type, "description": self._description}
        for member, element in inputs.items():
            element.error = by_member.get(member)
        self._other_errors.text = " ".join(text for member, text in by_member.items() if member not in inputs)
        self._other_errors.set_visibility(bool(self._other_errors.text))

    def focus(self) -> None:
        """Set the focus to the name."""
        self._name.run_method("focus")

    def focus_remove(self) -> None:
        """Set the focus to the remove button."""
        focus_button(self._remove)


def focus_button(button: ui.button) -> None:
    """Set the keyboard focus to a button."""
    button.client.run_javascript(f"getHtmlElement({button.id}).focus()")


def _handler(on_change: Callable[..., None], member: str) -> Callable[[Any], None]:
    return lambda event: on_change(**{member: event.value if event.value is not None else ""})
