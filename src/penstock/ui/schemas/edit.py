"""A schema that is changed, as far as its state allows."""

from uuid import UUID

from nicegui import ui

from penstock.core.registry import lifecycle
from penstock.core.caller import Role
from penstock.core.registry.lifecycle import EDITABLE, MEMBERS, State
from penstock.errors import Unsupported
from penstock.ui.layout import Visit, heading, page, trouble
from penstock.ui.schemas.editor import READS_ONLY, Editor
from penstock.ui.schemas.form_model import form
from penstock.ui.formatting import sentence


@page("/schemas/{id:uuid}/edit", "Edit schema")
async def edit(visit: Visit, id: UUID) -> None:
    entry = await visit.api.get(f"/gts/{id}")
    heading(f"Edit {entry['name']}", above=(entry["name"], f"/schemas/{id}"))
    if not visit.may(Role.DEVELOPER):
        trouble(READS_ONLY)
        return
    settled = _settled(State(entry["state"]))
    if not EDITABLE[State(entry["state"])]:
        trouble(settled)
        return
    if settled:
        ui.label(settled).classes("quiet").props("role=note")
    with ui.column().classes("w-full gap-4") as place:
        Editor(visit, place, form(entry), entry)


def _settled(state: State) -> str:
    """What cannot change any more in this state, in words."""
    try:
        lifecycle.assert_editable(state, frozenset(MEMBERS))
    except Unsupported as refusal:
        return sentence(refusal.message)
    return ""
