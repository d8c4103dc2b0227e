"""A new pipeline: an example to change, made of the datasets that are there."""

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui.layout import Visit, empty, heading, leave, once, page
from penstock.ui.pipelines import dataset_picker as shelf
from penstock.ui.pipelines import definition
from penstock.ui.pipelines.editor import READ_ONLY, Bench


@page("/pipelines/new", "New pipeline")
async def new(visit: Visit) -> None:
    actions = heading("New pipeline", above=("Pipelines", "/pipelines"))
    if not visit.may(Role.DEVELOPER):
        empty(READ_ONLY, "Back to pipelines", "/pipelines")
        return
    datasets = await shelf.first(visit.api)
    if not datasets:
        empty("A pipeline works on datasets, and there are none yet.", "Go to datasets", "/datasets")
        return
    ui.label("This example is made of your datasets. Change it to what you mean.").classes("quiet")
    bench = Bench(visit, definition.text(definition.example(datasets)), writable=True)

    async def save() -> None:
        made = await visit.api.post("/pipelines", await bench.value())
        await leave(f"/pipelines/{made['id']}")

    with actions:
        ui.button("Save pipeline", icon="save", on_click=once(save)).props("unelevated no-caps")
    await bench.open()
