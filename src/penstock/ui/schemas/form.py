"""Form of a schema: name, description and a row for each field, with errors at their inputs."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from nicegui import ui

from penstock.ui.data_table import show_pager
from penstock.ui.dialogs import set_unsaved
from penstock.ui.elements import subheading
from penstock.ui.schemas.field_row import FieldRow, focus_button
from penstock.ui.schemas.form_model import FieldErrors, FieldFormData, SchemaFormData, drop_row, row_index
from penstock.ui.schemas.inputs import Input, Textarea, limit_length

PAGE_FIELDS = 50
_FORM_POINTERS = ("/name", "/description", "/fields")  # errors that are not shown in a row


class SchemaForm:
    """Form of a schema that guards unsaved changes.

    Args:
        data: The initial values.
        read_only: Members that cannot change.
    """

    def __init__(self, data: SchemaFormData, read_only: Collection[str]) -> None:
        self.data = self._saved = data
        self._read_only = read_only
        self._errors: FieldErrors = {}
        self._first = 0  # index of the first row on the page
        self._rows: dict[int, FieldRow] = {}
        self._is_unsaved = False
        with ui.card().classes("w-full gap-3").props("flat bordered") as self.head:
            self._name = limit_length(Input("Schema name", on_change=lambda event: self._set(name=event.value or "")))
            self._name.props("outlined dense").classes("w-full").set_enabled("name" not in read_only)
            self._description = limit_length(Textarea("Schema description"))
            self._description.on_value_change(lambda event: self._set(description=event.value or ""))
            self._description.props("outlined dense autogrow rows=2").classes("w-full")
        subheading("Fields")
        self._list_error = ui.label().props("role=alert").classes("text-negative")
        self._list = ui.column().classes("w-full gap-2")
        self._pager = ui.row()
        with ui.row().classes("w-full gap-2") as self.foot:
            self._add = ui.button("Add Field", icon="add", on_click=self._append).props("outline no-caps")
            self._add.set_enabled("fields" not in read_only)
        self._other_errors = ui.column().classes("w-full gap-0 text-negative").props("role=alert")
        self._show()

    def fill(self, data: SchemaFormData) -> None:
        """Replace the values of the form."""
        self.data, self._errors, self._first = data, {}, 0
        self._show()
        self._guard()

    def focus(self) -> None:
        """Set the focus to the name."""
        self._name.run_method("focus")

    def show_errors(self, errors: FieldErrors) -> None:
        """Show errors at their inputs, and set the focus to the first one."""
        self._errors = errors
        row = min((row for pointer in errors if (row := row_index(pointer)) is not None), default=None)
        if row is not None and row not in self._rows:
            self._show_rows(row)
        else:
            self._update_errors()
        if "/name" in errors:
            self.focus()
        elif row is not None:
            self._rows[row].focus()

    def _show(self) -> None:
        self._name.value, self._description.value = self.data.name, self.data.description
        self._show_rows(self._first)

    def _show_rows(self, row: int) -> None:
        """Show the page that contains a row."""
        count = len(self.data.rows)
        self._first = max(min(row, count - 1), 0) // PAGE_FIELDS * PAGE_FIELDS
        self._list.clear()
        self._rows = {}
        for index in range(self._first, min(self._first + PAGE_FIELDS, count)):
            self._show_row(index)
        self._show_pager()
        self._update_errors()

    def _show_row(self, row: int) -> None:
        with self._list:
            self._rows[row] = FieldRow(
                row,
                self.data.rows[row],
                read_only="fields" in self._read_only,
                on_change=lambda **changes: self._set_row(row, **changes),
                on_remove=lambda: self._remove(row),
            )

    def _show_pager(self) -> None:
        count = len(self.data.rows)
        rows_on_page = min(count - self._first, PAGE_FIELDS)
        self._pager.clear()
        self._pager.set_visibility(count > PAGE_FIELDS)
        with self._pager:
            show_pager(
                self._first,
                rows_on_page,
                count,
                has_more=self._first + rows_on_page < count,
                on_move=self._show_rows,
                page_rows=PAGE_FIELDS,
            )

    def _update_errors(self) -> None:
        """Show each error at its input, and errors without an input below the rows."""
        self._name.error = self._errors.get("/name")
        self._description.error = self._errors.get("/description")
        self._list_error.text = self._errors.get("/fields", "")
        self._list_error.set_visibility(bool(self._list_error.text))
        for number, row in self._rows.items():
            row.show_errors({pointer: text for pointer, text in self._errors.items() if row_index(pointer) == number})
        other_pointers = [
            pointer for pointer in self._errors if pointer not in _FORM_POINTERS and row_index(pointer) is None
        ]
        self._other_errors.clear()
        self._other_errors.set_visibility(bool(other_pointers))
        with self._other_errors:
            for pointer in other_pointers:
                ui.label(f"{pointer}: {self._errors[pointer]}").classes("break-anywhere")

    def _set(self, **changes: Any) -> None:
        self.data = replace(self.data, **changes)
        self._clear_errors(*(f"/{member}" for member in changes))
        self._guard()

    def _set_row(self, row: int, **changes: Any) -> None:
        rows = list(self.data.rows)
        rows[row] = replace(rows[row], **changes)
        self.data = replace(self.data, rows=tuple(rows))
        if "name" in changes:  # a duplicate name of another row may be unique now
            self._clear_errors(*(f"/fields/{index}/name" for index in range(len(rows))))
            self._update_errors()
        else:
            self._clear_errors(*(f"/fields/{row}/{member}" for member in changes))
        self._guard()

    def _append(self) -> None:
        self.data = replace(self.data, rows=(*self.data.rows, FieldFormData()))
        self._clear_errors("/fields")
        last = len(self.data.rows) - 1
        if last - self._first < PAGE_FIELDS:
            self._show_row(last)
            self._update_errors()
        else:
            self._show_rows(last)
        self._rows[last].focus()
        self._guard()

    def _remove(self, row: int) -> None:
        rows = self.data.rows
        self.data = replace(self.data, rows=rows[:row] + rows[row + 1 :])
        self._errors = drop_row(self._errors, row)
        self._show_rows(self._first)
        if row in self._rows:
            self._rows[row].focus_remove()
        else:
            focus_button(self._add)
        self._guard()

    def _clear_errors(self, *pointers: str) -> None:
        """Forget the errors of changed inputs. The inputs themselves clear their messages."""
        self._errors = {pointer: text for pointer, text in self._errors.items() if pointer not in pointers}

    def _guard(self) -> None:
        is_unsaved = self.data != self._saved
        if is_unsaved != self._is_unsaved:
            self._is_unsaved = is_unsaved
            with self.head:  # the clicked button may be deleted
                set_unsaved(is_unsaved)
