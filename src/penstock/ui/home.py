"""The first page: what this is, how it is, what happened lately, and what to try next."""

from nicegui import ui

from penstock.ui.frame import Visit, heading, page


@page("/", "Home")
async def home(visit: Visit) -> None:
    heading("Home")
    ui.label(str(await visit.api.get("/readyz")))
