"""A new schema: first what kind it is, then its fields, by hand or from a sample."""

from nicegui import ui

from penstock.core.registry import gts
from penstock.core.caller import Role
from penstock.ui.api_client import quoted
from penstock.ui.layout import Visit, heading, page, trouble
from penstock.ui.schemas.editor import READS_ONLY, Editor
from penstock.ui.schemas.form_model import Form


@page("/schemas/new", "New schema")
async def new(visit: Visit, infer: str = "", given: str = "") -> None:
    """`infer`: begin with a sample (rows, dataset or sql), which `given` may hold."""
    heading("New schema", above=("Schemas", "/schemas"))
    if not visit.may(Role.DEVELOPER):
        trouble(READS_ONLY)
        return
    answer = await visit.api.get("/gts", filter=f"type_id eq {quoted(gts.BASE)}")
    types = {each["gts_id"]: each for each in answer["value"]}
    chosen = ui.select({key: each["name"] for key, each in types.items()}, label="Schema type")
    chosen.props("outlined dense").classes("w-full max-w-sm")
    begin = ui.label("Choose what kind of schema it is to be.").classes("quiet")
    place = ui.column().classes("w-full gap-4")

    def edit() -> Editor:
        begin.text = types[chosen.value]["description"] or ""
        chosen.disable()
        with place:
            return Editor(visit, place, Form(), {"type_id": chosen.value})

    if not infer:
        chosen.on_value_change(lambda: edit().focus())
        return
    chosen.value = next(iter(types))
    await edit().infer(infer, given)
