"""A query that is changed, or only tried where it cannot be."""

from nicegui import ui

from penstock.core.registry.lifecycle import State
from penstock.ui import lifecycle_badges as states
from penstock.ui.api_client import part
from penstock.ui.layout import Visit, heading, page
from penstock.ui.queries.save_form import is_editable, write


@page("/queries/{id}/edit", "Edit query")
async def edit(visit: Visit, id: str) -> None:
    query = await visit.api.get(f"/queries/{part(id)}")
    heading(query["name"], above=("Query", f"/queries/{part(query['id'])}"))
    if not is_editable(State(query["state"])):
        ui.label(f"It is {states.called(query['state']).lower()}: its SQL can be tried here, and not changed.").classes(
            "quiet"
        )
    await write(visit, query, query["sql"])
