"""Mount the web UI on the application that serves HTTP."""

import logging
from datetime import timedelta
from typing import Any

from nicegui import Client, app, ui

from penstock.ui import datasets, home, pipelines, queries, schemas  # noqa: F401
from penstock.ui.datasets.upload import MAX_FILE_BYTES
from penstock.ui.layout import MOUNT_PATH, STATIC_FOLDER, STATIC_PATH, show_not_found
from penstock.ui.request_guard import RequestGuard
from penstock.ui.session import UiContext, configure

_MAX_OPEN_PAGES = 2_000
_MAX_CONNECTING_PAGES = 256  # built, but not yet connected by the script of the browser
_MAX_CONNECTING_PAGES_PER_ADDRESS = 64
_TOKEN_LIFETIME = timedelta(hours=12)  # of a tab's token, after the tab was last active
_RECONNECT_SECONDS = 30.0


def mount(application: Any, *, dev: bool) -> None:
    """Serve the pages below /ui. Call this at most once per process.

    Args:
        application: The FastAPI application.
        dev: Development mode: pages need no token.
    """
    configure(UiContext(application, dev))
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the service has its own access log
    app.storage.max_tab_storage_age = _TOKEN_LIFETIME.total_seconds()
    app.add_static_files(STATIC_PATH, STATIC_FOLDER)
    ui.run_with(
        application,
        mount_path=MOUNT_PATH,
        title="Penstock",
        favicon="💧",
        language="en-US",
        binding_refresh_interval=None,  # the pages use no bindings
        reconnect_timeout=_RECONNECT_SECONDS,
        show_welcome_message=False,
    )
    app.exception_handler(404)(_not_found)
    open_pages = OpenPages()
    app.on_connect(open_pages.mark_connected)
    application.add_middleware(
        RequestGuard,
        mount_path=MOUNT_PATH,
        static_path=f"{MOUNT_PATH}{STATIC_PATH}/",
        dev=dev,
        max_body_bytes=MAX_FILE_BYTES,
        accepts_page=open_pages.accepts,
    )


class OpenPages:
    """Limit the pages that this process keeps, and those that one address opens without ever connecting.

    A page is built before its user has signed in, and takes memory until it is closed.
    """

    def __init__(self) -> None:
        self._connected: set[str] = set()  # ids of the pages that have connected at least once

    def mark_connected(self, page: Client) -> None:
        """Record that the script of a page has connected."""
        self._connected.add(page.id)

    def accepts(self, address: str) -> bool:
        """Return whether a client with this address may open another page."""
        pages = Client.instances
        if len(pages) >= _MAX_OPEN_PAGES:
            return False
        self._connected &= pages.keys()
        connecting = [page.ip for id, page in pages.items() if id not in self._connected]
        return len(connecting) < _MAX_CONNECTING_PAGES and connecting.count(address) < _MAX_CONNECTING_PAGES_PER_ADDRESS


async def _not_found(request: Any, _error: Exception) -> Any:
    with Client(ui.page(""), request=request) as client:
        show_not_found()
    return client.build_response(request, 404)
