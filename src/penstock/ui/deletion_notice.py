"""The notice that confirms a deletion, with a button that undoes it."""

from dataclasses import asdict, dataclass

from nicegui import app, ui

from penstock.ui import formatting
from penstock.ui.actions import single_flight
from penstock.ui.elements import notify_on_next_page
from penstock.ui.session import PageSession

_DELETION_KEY = "deletion"  # of the storage of a tab


@dataclass(frozen=True)
class Deletion:
    """A deletion that can be undone."""

    entity: str  # the schema, query or pipeline with its name, as text: "schema Orders"
    api_path: str  # of the deleted entity
    page_path: str  # of the entity's page, which is opened when the deletion is undone


def announce_deletion(deletion: Deletion) -> None:
    """Show the notice on the page that the browser opens next in this tab, unless the tab is closed."""
    if ui.context.client.has_socket_connection:
        app.storage.tab[_DELETION_KEY] = asdict(deletion)


def show_pending_deletion(session: PageSession) -> None:
    """Show the notice of the deletion on the previous page. It stays until the user closes it or leaves the page."""
    if not ui.context.client.has_socket_connection:
        return
    if stored := app.storage.tab.pop(_DELETION_KEY, None):
        _show_notice(session, Deletion(**stored))


def _show_notice(session: PageSession, deletion: Deletion) -> None:
    async def undo() -> None:
        await session.api.post(f"{deletion.api_path}/undelete")
        notify_on_next_page(f"Undid the deletion of the {deletion.entity}.")
        ui.navigate.to(deletion.page_path)

    notice = ui.notification(
        formatting.to_sentence(f"Deleted the {deletion.entity}"), type="positive", multi_line=True, timeout=None
    )
    notice.on("undo", single_flight(undo), args=[])
    # The notice stays if the undo fails, so that the user can try again. A key with a colon is JavaScript.
    undo_button = {"label": "Undo", "noDismiss": True, ":handler": f"() => getElement({notice.id}).$emit('undo')"}
    notice.props["options"]["actions"] = [
        {**button, "color": "white", "noCaps": True} for button in (undo_button, {"label": "Close"})
    ]
