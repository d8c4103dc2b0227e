"""New pipeline page: starts with an example that uses the tenant's datasets."""

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui.actions import single_flight
from penstock.ui.dialogs import leave_page
from penstock.ui.elements import empty_state, heading
from penstock.ui.layout import page
from penstock.ui.pipelines import dataset_picker, definition
from penstock.ui.pipelines.editor import READ_ONLY_TEXT, PipelineEditor
from penstock.ui.session import PageSession


@page("/pipelines/new", "New pipeline")
async def new(session: PageSession) -> None:
    actions = heading("New pipeline", parent=("Pipelines", "/pipelines"))
    if not session.has_role(Role.DEVELOPER):
        empty_state(READ_ONLY_TEXT, "Back to pipelines", "/pipelines")
        return
    datasets = await dataset_picker.list_datasets(session.api)
    if not datasets:
        empty_state("A pipeline needs datasets, and there are none yet.", "Go to datasets", "/datasets")
        return
    ui.label("This example uses your datasets. Edit it as needed.").classes("quiet")
    editor = PipelineEditor(session, definition.format_pipeline(definition.example_pipeline(datasets)), writable=True)

    async def save() -> None:
        pipeline = await session.api.post("/pipelines", await editor.value())
        await leave_page(f"/pipelines/{pipeline['id']}")

    with actions:
        ui.button("Save pipeline", icon="save", on_click=single_flight(save)).props("unelevated no-caps")
    await editor.load()
