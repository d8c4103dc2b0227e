"""The form of a schema on the screen: its name and description, a row for each field, and what is wrong with each."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from nicegui import ui

from penstock.ui.layout import subheading, unsaved
from penstock.ui.data_table import pager
from penstock.ui.schemas.field_row import FieldRow, focus
from penstock.ui.schemas.form_model import Form, Row, Told, row_of, without
from penstock.ui.schemas.inputs import Input, Textarea, bounded

ROWS = 50  # fields on the screen at once
_PLACES = ("/name", "/description", "/fields")  # of what is not said in a row


class SchemaForm:
    """`fixed` are the members that cannot change. What is not saved is guarded."""

    def __init__(self, filled: Form, fixed: Collection[str]) -> None:
        self.form = self._saved = filled
        self._fixed = fixed
        self._told: Told = {}
        self._first = 0  # row on the screen
        self._rows: dict[int, FieldRow] = {}
        self._is_unsaved = False
        with ui.card().classes("w-full gap-3").props("flat bordered") as self.head:
            self._name = bounded(Input("Schema name", on_change=lambda event: self._set(name=event.value or "")))
            self._name.props("outlined dense").classes("w-full").set_enabled("name" not in fixed)
            self._about = bounded(Textarea("Schema description"))
            self._about.on_value_change(lambda event: self._set(description=event.value or ""))
            self._about.props("outlined dense autogrow rows=2").classes("w-full")
        subheading("Fields")
        self._list_error = ui.label().props("role=alert").classes("text-negative")
        self._list = ui.column().classes("w-full gap-2")
        self._pager = ui.row()
        with ui.row().classes("w-full gap-2") as self.foot:
            self._add = ui.button("Add Field", icon="add", on_click=self._append).props("outline no-caps")
            self._add.set_enabled("fields" not in fixed)
        self._rest = ui.column().classes("w-full gap-0 text-negative").props("role=alert")
        self._show()

    def fill(self, filled: Form) -> None:
        """Other values in place of those that are there."""
        self.form, self._told, self._first = filled, {}, 0
        self._show()
        self._guard()

    def focus(self) -> None:
        self._name.run_method("focus")

    def refuse(self, said: Told) -> None:
        """Tell what is wrong, and go to the first place that is meant."""
        self._told = said
        row = min((row for pointer in said if (row := row_of(pointer)) is not None), default=None)
        if row is not None and row not in self._rows:
            self._show_rows(row)
        else:
            self._tell()
        if "/name" in said:
            self.focus()
        elif row is not None:
            self._rows[row].focus()

    def _show(self) -> None:
        self._name.value, self._about.value = self.form.name, self.form.description
        self._show_rows(self._first)

    def _show_rows(self, row: int) -> None:
        """The page of rows that this one is on."""
        many = len(self.form.rows)
        self._first = max(min(row, many - 1), 0) // ROWS * ROWS
        self._list.clear()
        self._rows = {}
        for each in range(self._first, min(self._first + ROWS, many)):
            self._show_row(each)
        self._show_pager()
        self._tell()

    def _show_row(self, row: int) -> None:
        with self._list:
            self._rows[row] = FieldRow(
                row,
                self.form.rows[row],
                fixed="fields" in self._fixed,
                on_change=lambda **changes: self._set_row(row, **changes),
                on_remove=lambda: self._remove(row),
            )

    def _show_pager(self) -> None:
        many = len(self.form.rows)
        seen = min(many - self._first, ROWS)
        self._pager.clear()
        self._pager.set_visibility(many > ROWS)
        with self._pager:
            pager(self._first, seen, many, more=self._first + seen < many, on_move=self._show_rows, top=ROWS)

    def _tell(self) -> None:
        """Each sentence at its place, and those without one below the rows."""
        self._name.error = self._told.get("/name")
        self._about.error = self._told.get("/description")
        self._list_error.text = self._told.get("/fields", "")
        self._list_error.set_visibility(bool(self._list_error.text))
        for number, row in self._rows.items():
            row.tell({pointer: text for pointer, text in self._told.items() if row_of(pointer) == number})
        rest = [pointer for pointer in self._told if pointer not in _PLACES and row_of(pointer) is None]
        self._rest.clear()
        self._rest.set_visibility(bool(rest))
        with self._rest:
            for pointer in rest:
                ui.label(f"{pointer}: {self._told[pointer]}").classes("break-anywhere")

    def _set(self, **changes: Any) -> None:
        self.form = replace(self.form, **changes)
        self._forget(*(f"/{member}" for member in changes))
        self._guard()

    def _set_row(self, row: int, **changes: Any) -> None:
        rows = list(self.form.rows)
        rows[row] = replace(rows[row], **changes)
        self.form = replace(self.form, rows=tuple(rows))
        if "name" in changes:  # a name that was there already may be the only one now
            self._forget(*(f"/fields/{each}/name" for each in range(len(rows))))
            self._tell()
        else:
            self._forget(*(f"/fields/{row}/{member}" for member in changes))
        self._guard()

    def _append(self) -> None:
        self.form = replace(self.form, rows=(*self.form.rows, Row()))
        self._forget("/fields")
        last = len(self.form.rows) - 1
        if last - self._first < ROWS:
            self._show_row(last)
            self._tell()
        else:
            self._show_rows(last)
        self._rows[last].focus()
        self._guard()

    def _remove(self, row: int) -> None:
        rows = self.form.rows
        self.form = replace(self.form, rows=rows[:row] + rows[row + 1 :])
        self._told = without(self._told, row)
        self._show_rows(self._first)
        if row in self._rows:
            self._rows[row].focus_remove()
        else:
            focus(self._add)
        self._guard()

    def _forget(self, *pointers: str) -> None:
        """An input that was changed shows nothing any more by itself."""
        self._told = {pointer: text for pointer, text in self._told.items() if pointer not in pointers}

    def _guard(self) -> None:
        is_unsaved = self.form != self._saved
        if is_unsaved != self._is_unsaved:
            self._is_unsaved = is_unsaved
            with self.head:  # the button that was clicked may be gone
                unsaved(is_unsaved)
