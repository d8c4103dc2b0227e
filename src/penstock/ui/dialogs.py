"""Dialogs: ask for a confirmation, wait for the result of a dialog, and guard unsaved changes."""

from collections.abc import Callable
from typing import Any

from nicegui import ui

from penstock.ui.elements import with_label

_BROWSER_SECONDS = 30.0  # time for the browser to run a script


async def confirm(question: str, accept_label: str, *, cancel_label: str = "Cancel", destructive: bool = False) -> bool:
    """Ask the user to confirm an action."""
    with with_label(ui.dialog(), question) as dialog, ui.card():
        ui.label(question).classes("break-anywhere")
        with ui.row().classes("w-full justify-end"):
            ui.button(cancel_label, on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button(accept_label, on_click=lambda: dialog.submit(True)).props(
                f"unelevated no-caps {'color=negative' if destructive else ''}"
            )
    return bool(await dialog_result(dialog))


async def dialog_result(dialog: ui.dialog, on_close: Callable[[], None] = lambda: None) -> Any:
    """Open a dialog, wait for its result, and delete it.

    Args:
        dialog: The dialog.
        on_close: Called after the dialog was deleted.

    Returns:
        The submitted value, or None if the user closed the dialog or the page.
    """

    def delete() -> None:
        if not dialog.is_deleted:
            dialog.delete()  # on "hide" the focus is already back on the element that had it before
            on_close()

    dialog.on("hide", delete)
    return await dialog


def set_unsaved(is_unsaved: bool) -> None:
    """Set whether the browser asks for a confirmation before the user leaves this page."""
    ui.run_javascript(f"window.penstockUnsaved = {'true' if is_unsaved else 'false'}")


async def leave_page(path: str | None = None) -> None:
    """Open another page, or reload this one, without a confirmation by the browser.

    The script is awaited: otherwise the browser could navigate before it runs.
    """
    await ui.run_javascript("window.penstockUnsaved = false", timeout=_BROWSER_SECONDS)
    ui.navigate.to(path) if path else ui.navigate.reload()
