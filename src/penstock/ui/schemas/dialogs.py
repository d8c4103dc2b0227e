"""Dialogs of the schema editor: edit as JSON, infer from a sample, resolve a conflict, confirm a breaking change."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.errors import Invalid, Unsupported
from penstock.ui import formatting
from penstock.ui.actions import single_flight
from penstock.ui.api_client import ApiClient, ApiError
from penstock.ui.dialogs import confirm, dialog_result
from penstock.ui.elements import subheading, with_label
from penstock.ui.schemas import diff_text
from penstock.ui.schemas.form_model import SchemaFormData, parse_form, parse_pasted_json, to_json_text
from penstock.ui.schemas.inputs import Input, Textarea, reject_truncated
from penstock.ui.session import PageSession

_SOURCES = {
    "rows": "Rows",
    "dataset": "Dataset",
    "sql": "SQL",
}


class SchemaConflictChoice(Enum):
    """Resolution of a conflict with another user's change."""

    RELOAD = "Reload"
    OVERWRITE = "Overwrite"


async def edit_as_json(
    form: SchemaFormData, alternative: str, check: Callable[[SchemaFormData], None]
) -> SchemaFormData | None:
    """Let the user edit form data as JSON.

    Args:
        form: The form data.
        alternative: The API request that accepts longer texts.
        check: Raises Invalid or Unsupported if the new data is not allowed.

    Returns:
        The new data, or None if the user cancelled.
    """
    with _titled_dialog("Edit as JSON", "max-w-3xl") as dialog:
        text = reject_truncated(Textarea("Schema as JSON", value=to_json_text(form)), alternative).classes("w-full")
        text.props('outlined input-class="font-mono text-sm" rows=20')
        _close_only_if_unchanged(dialog, text)

        def apply() -> None:
            if not text.validate():
                return
            try:
                data = parse_form(text.value or "")
                check(data)
            except (Invalid, Unsupported) as error:
                text.error = error.message
            else:
                dialog.submit(data)

        _add_buttons(dialog, "Apply", apply)
    result: SchemaFormData | None = await dialog_result(dialog)
    return result


async def infer_schema(
    session: PageSession, source: str, sample: str, replaced_fields: int
) -> Mapping[str, Any] | None:
    """Let the user infer a schema from a sample.

    Args:
        session: The session of the page.
        source: The initial source: rows, dataset or sql.
        sample: The initial sample.
        replaced_fields: Number of fields that the result would replace; the user confirms this.

    Returns:
        The proposed schema, or None if the user cancelled.
    """
    names = await _load_dataset_names(session.api)
    with _titled_dialog("Infer from a sample", "max-w-2xl") as dialog:
        ui.label(
            "The service proposes fields from the sample, which you can edit before saving. The sample is not stored."
        ).classes("quiet")
        chosen = ui.toggle(_SOURCES, value=source if source in _SOURCES else "rows", on_change=lambda: show()).props(
            "no-caps"
        )
        chosen.props('unelevated toggle-color=primary role=group aria-label="Source of the sample"')
        inputs = {
            "rows": Textarea("Rows: a JSON array, or CSV with a header line").props("rows=10 input-class=font-mono"),
            "dataset": Input("Dataset", autocomplete=names),
            "sql": Textarea("SQL").props("rows=10 input-class=font-mono"),
        }
        for element in inputs.values():
            reject_truncated(element, "POST /gts/infer").props("outlined dense").classes("w-full")
        inputs[chosen.value].value = sample
        _close_only_if_unchanged(dialog, *inputs.values())

        def show() -> None:
            for name, element in inputs.items():
                element.set_visibility(name == chosen.value)

        async def infer() -> None:
            box = inputs[chosen.value]
            if not box.validate():
                return
            button.props(add="loading")
            try:
                proposal = await _propose(session.api, chosen.value, box.value or "")
            except Invalid as error:
                box.error = error.message
            except ApiError as error:
                if error.status == 401:
                    raise
                box.error = " ".join([error.message, *(str(item.get("message")) for item in error.errors[1:4])])
            else:
                if not replaced_fields or await confirm(_replace_question(replaced_fields), "Replace"):
                    dialog.submit(proposal)
            finally:
                if not button.is_deleted:
                    button.props(remove="loading")

        button = _add_buttons(dialog, "Infer", single_flight(infer))
        show()
    result: Mapping[str, Any] | None = await dialog_result(dialog)
    return result


async def resolve_conflict(
    base: Mapping[str, Any], edited: Mapping[str, Any], current: Mapping[str, Any], newest: Mapping[str, Any]
) -> SchemaConflictChoice | None:
    """Show the changes of both users, and ask which ones to keep.

    Args:
        base: The schema as it was loaded.
        edited: The user's changes.
        current: The schema as it is stored now.
        newest: The newest version with its author.

    Returns:
        The choice, or None to continue editing.
    """
    with _titled_dialog("Another user changed this schema", "max-w-4xl") as dialog:
        ui.label(
            f"You started from version {base['version']}. Version {current['version']} was saved by {newest['author']}, "
            f"{formatting.format_age(newest['changed_at'])}."
        ).classes("break-anywhere")
        with ui.row().classes("w-full items-start gap-4"):
            _show_side("Your changes", diff_text.diff_entities(base, edited))
            _show_side("Their changes", diff_text.diff_entities(base, current))
        ui.label("Reload discards your changes. Overwrite replaces their changes, which stay in the history.").classes(
            "quiet"
        )
        with ui.row().classes("w-full justify-end"):
            ui.button("Keep editing", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Reload", on_click=lambda: dialog.submit(SchemaConflictChoice.RELOAD)).props("outline no-caps")
            ui.button("Overwrite", on_click=lambda: dialog.submit(SchemaConflictChoice.OVERWRITE)).props(
                "unelevated no-caps color=negative"
            )
    choice: SchemaConflictChoice | None = await dialog_result(dialog)
    return choice


async def confirm_breaking_change(error: ApiError, *, can_force: bool) -> bool:
    """Show the effects of a breaking change, and ask admins whether to save it."""
    with _titled_dialog("Breaking change", "max-w-2xl") as dialog:
        count = error.payload.get("query_count", 0)
        ui.label(
            f"{formatting.format_count(count, 'registered query returns', 'registered queries return')} this schema. "
            "Readers of the results would see these changes:"
        )
        diff_text.show_lines(diff_text.field_lines(error.errors, error.errors))
        if can_force:
            ui.label("As an admin, you can save it anyway.").classes("quiet")
        else:
            ui.label(
                f"To save it anyway, you need the role {Role.ADMIN.claim}. Alternatively, keep the old fields and add new "
                "ones."
            ).classes("quiet")
        if can_force:
            _add_buttons(dialog, "Save anyway", lambda: dialog.submit(True)).props("color=negative")
        else:
            with ui.row().classes("w-full justify-end"):
                ui.button("Keep editing", on_click=lambda: dialog.submit(None)).props("unelevated no-caps")
    return bool(await dialog_result(dialog))


@contextmanager
def _titled_dialog(title: str, width: str) -> Iterator[ui.dialog]:
    with with_label(ui.dialog(), title) as dialog, ui.card().classes(f"w-full {width}"):
        subheading(title)
        yield dialog


def _close_only_if_unchanged(dialog: ui.dialog, *inputs: ui.input) -> None:
    """Let Escape close the dialog only while the inputs are unchanged."""
    before = [element.value for element in inputs]

    def leave() -> None:
        if [element.value for element in inputs] == before:
            dialog.submit(None)

    dialog.props("persistent").on("keydown.escape", leave, args=[])


def _replace_question(count: int) -> str:
    return f"Replace the {'existing field' if count == 1 else formatting.format_count(count, 'existing field')}?"


def _show_side(title: str, lines: list[diff_text.DiffLine]) -> None:
    with ui.card().classes("flex-1 min-w-64 gap-1").props("flat bordered role=region") as box:
        box.props["aria-label"] = title
        ui.label(title).classes("font-medium").props('role=heading aria-level="3"')
        diff_text.show_lines(lines)


def _add_buttons(dialog: ui.dialog, accept_label: str, on_accept: Any) -> ui.button:
    with ui.row().classes("w-full justify-end"):
        ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
        return ui.button(accept_label, on_click=on_accept).props("unelevated no-caps")


async def _load_dataset_names(api: ApiClient) -> list[str]:
    datasets = await api.get("/datasets", select="name", orderby="name", top=200)
    return [dataset["name"] for dataset in datasets["value"]]


async def _propose(api: ApiClient, source: str, sample: str) -> Any:
    if not sample.strip():
        raise Invalid("empty_sample.proposal")
    if source != "rows":
        return await api.post("/gts/infer", {source: sample.strip()})
    if sample.lstrip()[0] in "[{":
        return await api.post("/gts/infer", {"rows": parse_pasted_json(sample, "the sample")})
    content = sample.encode("utf-8", "replace")
    return (await api.request("POST", "/gts/infer", content=content, headers={"content_type": "text/csv"})).body
