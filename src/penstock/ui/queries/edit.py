"""Edit page of a query. A query that cannot be edited can still be tried."""

from nicegui import ui

from penstock.core.registry.lifecycle import LifecycleState
from penstock.ui import lifecycle_badges
from penstock.ui.api_client import path_segment
from penstock.ui.elements import heading
from penstock.ui.layout import page
from penstock.ui.queries.save_form import is_editable, show_editor
from penstock.ui.session import PageSession


@page("/queries/{id}/edit", "Edit query")
async def edit(session: PageSession, id: str) -> None:
    query = await session.api.get(f"/queries/{path_segment(id)}")
    heading(query["name"], parent=("Query", f"/queries/{path_segment(query['id'])}"))
    if not is_editable(LifecycleState(query["state"])):
        ui.label(
            f"This query is {lifecycle_badges.state_label(query['state']).lower()}. You can try its SQL, but not save changes."
        ).classes("quiet")
    await show_editor(session, query, query["sql"])
