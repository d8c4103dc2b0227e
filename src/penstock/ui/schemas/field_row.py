"""One field in the editor: its name, type, whether it is a list, whether it may be missing, and what it means."""

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from penstock.ui.layout import named
from penstock.ui.schemas.form_model import TYPES, Row
from penstock.ui.schemas.inputs import Input, Select, Textarea, bounded


class FieldRow:
    def __init__(
        self,
        number: int,
        row: Row,
        *,
        fixed: bool,
        on_change: Callable[..., None],
        on_remove: Callable[[], None],
    ) -> None:
        kinds = TYPES if row.type in TYPES else [*TYPES, row.type]  # a wrong one is in sight until it is mended
        box = ui.card().classes("w-full p-3 gap-2").props("flat bordered role=group")
        with named(box, f"Field {number + 1}"):
            with ui.row().classes("w-full items-start gap-x-4 gap-y-1"):
                self._name = bounded(Input("Name", value=row.name, on_change=_says(on_change, "name")))
                self._name.props("outlined dense input-class=font-mono").classes("flex-1 min-w-40")
                self._type = Select(kinds, label="Type", value=row.type, on_change=_says(on_change, "type"))
                self._type.props("outlined dense").classes("w-44 max-sm:w-full")
                with ui.row().classes("items-center gap-3 no-wrap"):
                    array = ui.checkbox("List", value=row.array, on_change=_says(on_change, "array"))
                    optional = ui.checkbox("Optional", value=row.optional, on_change=_says(on_change, "optional"))
                    self._remove = named(ui.button(icon="delete", on_click=on_remove), f"Remove field {number + 1}")
                    self._remove.props("flat round dense size=sm")
            self._about = Textarea("Description", value=row.description, on_change=_says(on_change, "description"))
            bounded(self._about).props("outlined dense autogrow rows=1").classes("w-full")
            self._rest = ui.label().props("role=alert").classes("text-negative break-anywhere")
        self._rest.set_visibility(False)
        for each in (self._name, self._type, array, optional, self._about, self._remove):
            each.set_enabled(not fixed)

    def tell(self, said: Mapping[str, str]) -> None:
        """Show what is wrong with the field, by JSON pointer; what is about no one member in a line of its own."""
        by_member = {pointer.rpartition("/")[2]: text for pointer, text in said.items()}
        shown = {"name": self._name, "type": self._type, "description": self._about}
        for member, element in shown.items():
            element.error = by_member.get(member)
        self._rest.text = " ".join(text for member, text in by_member.items() if member not in shown)
        self._rest.set_visibility(bool(self._rest.text))

    def focus(self) -> None:
        self._name.run_method("focus")

    def focus_remove(self) -> None:
        focus(self._remove)


def focus(button: ui.button) -> None:
    button.client.run_javascript(f"getHtmlElement({button.id}).focus()")


def _says(on_change: Callable[..., None], member: str) -> Callable[[Any], None]:
    return lambda event: on_change(**{member: event.value if event.value is not None else ""})
