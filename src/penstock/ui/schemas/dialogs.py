"""What the editor of a schema asks: JSON to edit, a sample to infer from, whose change stays, whether to break readers."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from nicegui import ui

from penstock.errors import Invalid
from penstock.ui import shown
from penstock.ui.api import Api, Problem
from penstock.ui.frame import Visit, answered, told
from penstock.ui.schemas import changes
from penstock.ui.schemas.fields import Form, read, value, written

_WAYS = {
    "rows": "Rows",
    "dataset": "Dataset",
    "sql": "SQL",
}


class Choice(Enum):
    RELOAD = "Reload"
    OVERWRITE = "Overwrite"


async def as_json(form: Form) -> Form | None:
    """The form as somebody edits it as JSON, or None if it stays as it is."""
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-3xl"):
        ui.label("Edit as JSON").classes("text-lg").props('role=heading aria-level="2"')
        text = ui.textarea("Schema as JSON", value=written(form)).classes("w-full")
        text.props('outlined input-class="font-mono text-sm" rows=20')

        def apply() -> None:
            try:
                dialog.submit(read(text.value or ""))
            except Invalid as refusal:
                text.error = refusal.message

        _buttons(dialog, "Apply", apply)
    found: Form | None = await answered(dialog)
    return found


async def inferred(visit: Visit, way: str, given: str) -> Mapping[str, Any] | None:
    """A schema that the service proposes, or None if none is wanted."""
    names = await _names(visit.api)
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-2xl"):
        ui.label("Infer from a sample").classes("text-lg").props('role=heading aria-level="2"')
        ui.label(
            "The service looks at the sample and proposes fields, which you then edit. Nothing is stored."
        ).classes("quiet")
        chosen = ui.toggle(_WAYS, value=way if way in _WAYS else "rows", on_change=lambda: show()).props("no-caps")
        chosen.props('unelevated toggle-color=primary role=group aria-label="What to infer from"')
        inputs = {
            "rows": ui.textarea("Rows: a JSON array, or CSV with a line of names").props(
                "rows=10 input-class=font-mono"
            ),
            "dataset": ui.input("Dataset", autocomplete=names),
            "sql": ui.textarea("SQL").props("rows=10 input-class=font-mono"),
        }
        for each in inputs.values():
            each.props("outlined dense").classes("w-full")
        inputs[chosen.value].value = given

        def show() -> None:
            for name, element in inputs.items():
                element.set_visibility(name == chosen.value)

        async def infer() -> None:
            taken = inputs[chosen.value]
            button.props(add="loading")
            try:
                dialog.submit(await _proposal(visit.api, chosen.value, taken.value or ""))
            except Invalid as refusal:
                taken.error = refusal.message
            except Problem as problem:
                taken.error = " ".join([problem.sentence, *(str(each.get("message")) for each in problem.errors[1:4])])
            finally:
                if not button.is_deleted:
                    button.props(remove="loading")

        button = _buttons(dialog, "Infer", told(infer))
        show()
    found: Mapping[str, Any] | None = await answered(dialog)
    return found


async def conflict(
    base: Mapping[str, Any], mine: Mapping[str, Any], now: Mapping[str, Any], newest: Mapping[str, Any]
) -> Choice | None:
    """Both sides of a conflict, and whose changes stay; None to go on editing."""
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-4xl"):
        ui.label("Somebody else has changed this schema").classes("text-lg").props('role=heading aria-level="2"')
        ui.label(
            f"You began with version {base['version']}. Version {now['version']} was saved by {newest['author']}, "
            f"{shown.ago(newest['changed_at'])}."
        ).classes("break-anywhere")
        with ui.row().classes("w-full items-start gap-4"):
            _side("What you changed", changes.lines(base, mine))
            _side("What they changed", changes.lines(base, now))
        ui.label("Reload drops your changes. Overwrite drops theirs; they stay in the history.").classes("quiet")
        with ui.row().classes("w-full justify-end"):
            ui.button("Keep editing", on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button("Reload", on_click=lambda: dialog.submit(Choice.RELOAD)).props("outline no-caps")
            ui.button("Overwrite", on_click=lambda: dialog.submit(Choice.OVERWRITE)).props(
                "unelevated no-caps color=negative"
            )
    found: Choice | None = await answered(dialog)
    return found


async def forced(problem: Problem, *, may: bool) -> bool:
    """Is a change to be made that breaks readers? Those who may not are told so."""
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-2xl"):
        ui.label("This change breaks readers").classes("text-lg").props('role=heading aria-level="2"')
        many = problem.told.get("query_count", 0)
        ui.label(
            f"{shown.count(many, 'registered query').replace('querys', 'queries')} "
            f"promise{'s' if many == 1 else ''} to return this schema, and those who read the results would find:"
        )
        changes.listed(changes.field_lines(problem.errors, problem.errors))
        if may:
            ui.label("You are an admin: you may save it all the same.").classes("quiet")
        else:
            ui.label("An admin can save it all the same; or keep the old fields and add new ones.").classes("quiet")
        if may:
            _buttons(dialog, "Save anyway", lambda: dialog.submit(True)).props("color=negative")
        else:
            with ui.row().classes("w-full justify-end"):
                ui.button("Keep editing", on_click=lambda: dialog.submit(None)).props("unelevated no-caps")
    return bool(await answered(dialog))


def _side(title: str, lines: list[changes.Line]) -> None:
    with ui.card().classes("flex-1 min-w-64 gap-1").props("flat bordered role=region") as box:
        box.props["aria-label"] = title
        ui.label(title).classes("font-medium").props('role=heading aria-level="3"')
        changes.listed(lines)


def _buttons(dialog: ui.dialog, yes: str, act: Any) -> ui.button:
    with ui.row().classes("w-full justify-end"):
        ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
        return ui.button(yes, on_click=act).props("unelevated no-caps")


async def _names(api: Api) -> list[str]:
    found = await api.get("/datasets", select="name", orderby="name", top=200)
    return [each["name"] for each in found["value"]]


async def _proposal(api: Api, way: str, sample: str) -> Any:
    if not sample.strip():
        raise Invalid("empty_sample", "There is nothing to infer from yet.")
    if way != "rows":
        return await api.post("/gts/infer", {way: sample.strip()})
    if sample.lstrip()[0] in "[{":
        return await api.post("/gts/infer", {"rows": value(sample, "the sample")})
    sent = sample.encode("utf-8", "replace")
    return (await api.ask("POST", "/gts/infer", content=sent, headers={"content_type": "text/csv"})).body
