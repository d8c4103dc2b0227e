"""Page layout: register pages, show the header with navigation and user, and the content below it."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from nicegui import app, ui

from penstock.ui.actions import INTERNAL_ERROR
from penstock.ui.api_client import ApiError
from penstock.ui.deletion_notice import show_pending_deletion
from penstock.ui.elements import SECTIONS, error_card, section_of, set_page_title, show_pending_notice
from penstock.ui.session import PageSession, forget_token, open_session, stored_token, ui_context
from penstock.ui.sign_in import show_sign_in, sign_out

P = ParamSpec("P")

MOUNT_PATH = "/ui"  # path of all pages in the application
STATIC_PATH = "/static"  # below MOUNT_PATH
STATIC_FOLDER = Path(__file__).with_name("static")
_DARK_KEY = "dark"
_VERSION = version("penstock")  # in the address, so that browsers load the files of a new version
_HEAD = (
    f'<link rel="stylesheet" href="{MOUNT_PATH}{STATIC_PATH}/penstock.css?v={_VERSION}">'
    f'<script src="{MOUNT_PATH}{STATIC_PATH}/penstock.js?v={_VERSION}"></script>'
)
_ERROR_TITLES = {400: "Invalid request", 403: "Permission denied", 404: "Not found"}  # by HTTP status
_log = logging.getLogger(__name__)


def page(
    path: str, title: str
) -> Callable[[Callable[Concatenate[PageSession, P], Awaitable[None]]], Callable[P, Awaitable[None]]]:
    """Register a function as the page at a path.

    The function fills the content after the user has signed in. If it raises an error, the error is shown instead.

    Args:
        path: Path below the mount path, with parameters in braces.
        title: Title of the browser window until the page sets another one.
    """

    def decorate(fill: Callable[Concatenate[PageSession, P], Awaitable[None]]) -> Callable[P, Awaitable[None]]:
        @wraps(fill)
        async def render(*args: P.args, **options: P.kwargs) -> None:
            dark_mode = _apply_theme(title)
            with _PageFrame(path) as frame:
                await ui.context.client.connected()
                if not ui.context.client.has_socket_connection:  # the user has closed the page already
                    return
                dark_mode.value = app.storage.tab.get(_DARK_KEY)
                token = stored_token()
                if not (ui_context().dev or token):
                    show_sign_in()
                    return
                try:
                    session = await open_session(token)
                    _show_user(frame, session, dark_mode)
                    with frame.content:
                        await fill(session, *args, **options)
                        show_pending_notice()
                        show_pending_deletion(session)
                except ApiError as error:
                    if error.status == 401:
                        forget_token()
                        show_sign_in(error.message)
                    else:
                        error_card(error_title(error), error.message, path)
                except Exception:
                    _log.exception("Unexpected error in page %s", path)
                    error_card("Internal error", INTERNAL_ERROR, path)

        signature = inspect.signature(fill)
        parameters = list(signature.parameters.values())[1:]  # without the session
        render.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        ui.page(path)(render)
        return render

    return decorate


def show_not_found() -> None:
    """Show the page of an address that does not exist."""
    _apply_theme("Page not found")
    with _PageFrame("/"):
        error_card("Page not found", "No page exists at this address. Check the address or go to the home page", "/")


def error_title(error: ApiError) -> str:
    """Return the title of the error card of an API error."""
    return _ERROR_TITLES.get(error.status, "Request failed")


def _apply_theme(title: str) -> ui.dark_mode:
    set_page_title(title)
    ui.colors(primary="#1d5d8c", secondary="#3b7a57", accent="#b0500f", positive="#2b6e3f", negative="#b3261e")
    ui.add_head_html(_HEAD)
    return ui.dark_mode(None)


class _PageFrame:
    """The header of a page and the content below it. Elements created inside the context are added to the content."""

    def __init__(self, path: str) -> None:
        with ui.header().classes("items-center gap-1 px-3 py-1 no-wrap"):
            ui.link("Penstock", "/").classes("plain text-lg font-bold text-white no-underline mr-2")
            with ui.element("nav").classes("flex gap-1 max-md:hidden").props("aria-label=Sections"):
                for target, (name, icon) in SECTIONS.items():
                    _nav_link(target, name, icon, path)
            ui.space()
            self.user = ui.row().classes("items-center gap-1 no-wrap")
            with (
                ui.button(icon="menu").props('flat round dense color=white aria-label="Sections"').classes("md:hidden"),
                ui.menu().props("role=menu") as self.menu,
            ):
                for target, (name, _) in SECTIONS.items():
                    ui.menu_item(name, lambda target=target: ui.navigate.to(target)).props("role=menuitem")
        with ui.column().classes("w-full max-w-6xl mx-auto gap-4") as self.content:
            ui.skip_link("Skip to content", target=self.content)

    def __enter__(self) -> "_PageFrame":
        self.content.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.content.__exit__(*exception)


def _nav_link(target: str, name: str, icon: str, current_path: str) -> None:
    is_current = current_path == target or (target != "/" and section_of(current_path) == target)
    link = ui.link(target=target).classes("plain text-white no-underline px-3 py-2 rounded flex items-center gap-1")
    link.props("aria-current=page").classes("bg-white/20") if is_current else link.classes("hover:bg-white/10")
    with link:
        ui.icon(icon).props("aria-hidden=true")
        ui.label(name)


def _show_user(frame: _PageFrame, session: PageSession, dark_mode: ui.dark_mode) -> None:
    async def switch_theme() -> None:
        dark_mode.value = not await ui.run_javascript("document.body.classList.contains('body--dark')")
        app.storage.tab[_DARK_KEY] = dark_mode.value

    user = f"{session.name} · {session.role.name.lower()}"
    with frame.menu, ui.item().classes("sm:hidden").props("role=none"):
        ui.label(user).classes("text-sm quiet break-anywhere self-center")
    with frame.user:
        ui.label(user).classes("text-sm max-sm:hidden")
        ui.button(icon="contrast", on_click=switch_theme).props(
            'flat round dense color=white aria-label="Switch theme"'
        )
        if not ui_context().dev:
            ui.button(icon="logout", on_click=sign_out).props('flat round dense color=white aria-label="Sign out"')
