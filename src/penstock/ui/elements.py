"""Elements that all pages share: headings, notices, error cards and empty states."""

from collections.abc import Callable
from typing import Any, TypeVar

from nicegui import app, ui

from penstock.ui import formatting

E = TypeVar("E", bound=ui.element)

SECTIONS = {
    "/": ("Home", "home"),
    "/schemas": ("Schemas", "rule"),
    "/datasets": ("Datasets", "table_chart"),
    "/pipelines": ("Pipelines", "account_tree"),
    "/queries": ("Queries", "manage_search"),
}
_NOTICE_MILLISECONDS = 5000
_NOTICE_KEY = "notice"  # of the storage of a tab


def with_label(element: E, label: str) -> E:
    """Set the accessible name of an element and return the element.

    Unlike `props("aria-label=…")`, this accepts any text.
    """
    element.props["aria-label"] = label
    return element


def set_page_title(text: str) -> None:
    """Set the title of the browser window."""
    ui.page_title(f"{text} · Penstock")


def heading(text: str, *, parent: tuple[str, str] | None = None) -> ui.row:
    """Show the heading of the page.

    Args:
        text: The heading, also used as title of the browser window.
        parent: Name and path of the page above this one, shown as a link.

    Returns:
        A row beside the heading for the buttons of the page.
    """
    set_page_title(text)
    with ui.column().classes("w-full gap-0"):
        if parent:
            name, path = parent
            with ui.element("nav").props("aria-label=Breadcrumb"):
                ui.link(f"‹ {name}", path).classes("text-sm")
        with ui.row().classes("w-full items-center gap-2 justify-between"):
            ui.label(text).classes("text-2xl font-medium break-anywhere").props('role=heading aria-level="1"')
            return ui.row().classes("items-center gap-2")


def subheading(text: str) -> ui.label:
    """Show a heading of the second level."""
    return ui.label(text).classes("text-lg font-medium").props('role=heading aria-level="2"')


def notify(message: str, *, is_error: bool = False) -> None:
    """Show a notice at the edge of the page. An error stays until the user closes it."""
    ui.notify(
        formatting.to_sentence(message),
        type="negative" if is_error else "positive",
        multi_line=True,
        close_button="Close" if is_error else False,
        timeout=0 if is_error else _NOTICE_MILLISECONDS,
    )


def notify_on_next_page(message: str) -> None:
    """Show a notice on the page that the browser opens next in this tab, unless the tab is closed."""
    if ui.context.client.has_socket_connection:
        app.storage.tab[_NOTICE_KEY] = message


def show_pending_notice() -> None:
    """Show the notice that the previous page has left. It stays if the user has closed this page already."""
    if not ui.context.client.has_socket_connection:
        return
    if message := app.storage.tab.pop(_NOTICE_KEY, None):
        notify(message)


def error_card(title: str, message: str, path: str | None = None) -> None:
    """Show an error in place of the content that could not be shown.

    Args:
        title: What failed.
        message: Why it failed and what to do.
        path: Path of a page without a heading. The card then has a link to the section of the page.
    """
    with ui.card().classes("w-full").props("role=alert flat bordered"):
        ui.label(title).classes("text-xl").props(f'role=heading aria-level="{1 if path else 2}"')
        ui.label(formatting.to_sentence(message)).classes("break-anywhere")
        if path:
            section = section_of(path)
            name, _ = SECTIONS[section]
            ui.link(f"‹ {name}", section)


def empty_state(message: str, label: str | None = None, target: str | Callable[[], Any] | None = None) -> None:
    """Show a message in place of an empty list.

    Args:
        message: Why the list is empty and what to do.
        label: Label of a button.
        target: Path that the button opens, or the function that it calls.
    """
    with ui.card().classes("w-full items-center p-8").props("flat bordered"):
        ui.label(message).classes("text-center")
        if label and target is not None:
            on_click = target if callable(target) else lambda: ui.navigate.to(target)
            ui.button(label, on_click=on_click).props("unelevated no-caps")


def section_of(path: str) -> str:
    """Return the path of the section that a page belongs to."""
    first = f"/{path.split('/')[1]}"
    return "/pipelines" if first == "/runs" else first  # runs have no section of their own
