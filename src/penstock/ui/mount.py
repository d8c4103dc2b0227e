"""The pages as part of an application that serves HTTP."""

import logging
from datetime import timedelta
from typing import Any

from nicegui import Client, app, ui

from penstock.ui import datasets, home, pipelines, queries, schemas  # noqa: F401
from penstock.ui.datasets.upload import LARGEST_FILE
from penstock.ui.layout import Door, nowhere, open_to
from penstock.ui.request_guard import Guard

AT = "/ui"
_MOST_PAGES = 2_000  # open at once
_KEPT = timedelta(hours=12)  # of a tab's token, after the tab was last seen


def mount(application: Any, *, dev: bool) -> None:
    """Serve the pages below /ui. Once in a process."""
    open_to(Door(application, dev))
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the service itself tells of each request
    app.storage.max_tab_storage_age = _KEPT.total_seconds()
    ui.run_with(
        application,
        mount_path=AT,
        title="Penstock",
        favicon="💧",
        language="en-US",
        binding_refresh_interval=None,  # nothing is bound
        reconnect_timeout=30.0,
        show_welcome_message=False,
    )
    app.exception_handler(404)(_not_found)
    application.add_middleware(
        Guard, at=AT, dev=dev, largest=LARGEST_FILE, full=lambda: len(Client.instances) >= _MOST_PAGES
    )


async def _not_found(request: Any, _trouble: Exception) -> Any:
    with Client(ui.page(""), request=request) as client:
        nowhere()
    return client.build_response(request, 404)
