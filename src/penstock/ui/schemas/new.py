"""New schema page: choose a type, then edit the fields or infer them from a sample."""

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.registry import gts
from penstock.ui.api_client import odata_string
from penstock.ui.elements import error_card, heading
from penstock.ui.layout import page
from penstock.ui.schemas.editor import READ_ONLY_TEXT, SchemaEditor
from penstock.ui.schemas.form_model import SchemaFormData
from penstock.ui.session import PageSession


@page("/schemas/new", "New schema")
async def new(session: PageSession, infer: str = "", sample: str = "") -> None:
    """Show the page.

    Args:
        session: The session of the page.
        infer: Source of a sample to infer fields from: rows, dataset or sql.
        sample: The sample.
    """
    heading("New schema", parent=("Schemas", "/schemas"))
    if not session.has_role(Role.DEVELOPER):
        error_card("Permission denied", READ_ONLY_TEXT)
        return
    response = await session.api.get("/gts", filter=f"type_id eq {odata_string(gts.BASE_TYPE)}")
    types = {type_["gts_id"]: type_ for type_ in response["value"]}
    chosen = ui.select({id: type_["name"] for id, type_ in types.items()}, label="Schema type")
    chosen.props("outlined dense").classes("w-full max-w-sm")
    description = ui.label("Choose a schema type.").classes("quiet")
    container = ui.column().classes("w-full gap-4")

    def edit() -> SchemaEditor:
        description.text = types[chosen.value]["description"] or ""
        chosen.disable()
        with container:
            return SchemaEditor(session, container, SchemaFormData(), {"type_id": chosen.value})

    if not infer:
        chosen.on_value_change(lambda: edit().focus())
        return
    chosen.value = next(iter(types))
    await edit().infer(infer, sample)
