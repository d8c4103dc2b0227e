"""Edit page of a schema. The lifecycle state decides which members can change."""

from uuid import UUID

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry import lifecycle
from penstock.core.registry.lifecycle import EDITABLE, MEMBERS, LifecycleState
from penstock.errors import Unsupported
from penstock.ui.elements import error_card, heading
from penstock.ui.formatting import to_sentence
from penstock.ui.layout import page
from penstock.ui.schemas.editor import READ_ONLY_TEXT, SchemaEditor
from penstock.ui.schemas.form_model import to_form_data
from penstock.ui.session import PageSession


@page("/schemas/{id:uuid}/edit", "Edit schema")
async def edit(session: PageSession, id: UUID) -> None:
    entry = await session.api.get(f"/gts/{id}")
    heading(f"Edit {entry['name']}", parent=(entry["name"], f"/schemas/{id}"))
    if not session.has_role(Role.DEVELOPER):
        error_card("Permission denied", READ_ONLY_TEXT)
        return
    restriction = _edit_restriction(LifecycleState(entry["state"]))
    if not EDITABLE[LifecycleState(entry["state"])]:
        error_card("Schema cannot be edited", restriction)
        return
    if restriction:
        ui.label(restriction).classes("quiet").props("role=note")
    with ui.column().classes("w-full gap-4") as container:
        SchemaEditor(session, container, to_form_data(entry), entry)


def _edit_restriction(state: LifecycleState) -> str:
    """Return the message about the members that cannot change in this state, or an empty text."""
    try:
        lifecycle.assert_editable(state, frozenset(MEMBERS))
    except Unsupported as error:
        return to_sentence(error.message)
    return ""
