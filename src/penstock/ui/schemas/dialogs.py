"""What the editor of a schema asks: JSON to edit, a sample to infer from, whose change stays, whether to break readers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from nicegui import ui

from penstock.errors import Invalid, Unsupported
from penstock.ui import formatting as shown
from penstock.ui.api_client import Api, Problem
from penstock.ui.layout import Visit, answered, confirmed, named, once, subheading
from penstock.ui.schemas import diff_text as changes
from penstock.ui.schemas.form_model import Form, read, value, written
from penstock.ui.schemas.inputs import Input, Textarea, whole

_WAYS = {
    "rows": "Rows",
    "dataset": "Dataset",
    "sql": "SQL",
}


class Choice(Enum):
    RELOAD = "Reload"
    OVERWRITE = "Overwrite"


async def as_json(form: Form, instead: str, judge: Callable[[Form], None]) -> Form | None:
    """The form as somebody edits it as JSON, or None if it stays as it is.

    `instead`: what takes a longer text. `judge` raises what is wrong with other values.
    """
    with _asking("Edit as JSON", "max-w-3xl") as dialog:
        text = whole(Textarea("Schema as JSON", value=written(form)), instead).classes("w-full")
        text.props('outlined input-class="font-mono text-sm" rows=20')
        _keep(dialog, text)

        def apply() -> None:
            if not text.validate():
                return
            try:
                found = read(text.value or "")
                judge(found)
            except (Invalid, Unsupported) as refusal:
                text.error = refusal.message
            else:
                dialog.submit(found)

        _buttons(dialog, "Apply", apply)
    found: Form | None = await answered(dialog)
    return found


async def inferred(visit: Visit, way: str, given: str, replaced: int) -> Mapping[str, Any] | None:
    """A schema that the service proposes, or None if none is wanted. `replaced`: so many fields go, if they may."""
    names = await _names(visit.api)
    with _asking("Infer from a sample", "max-w-2xl") as dialog:
        ui.label(
            "The service looks at the sample and proposes fields, which you then edit. Nothing is stored."
        ).classes("quiet")
        chosen = ui.toggle(_WAYS, value=way if way in _WAYS else "rows", on_change=lambda: show()).props("no-caps")
        chosen.props('unelevated toggle-color=primary role=group aria-label="What to infer from"')
        inputs = {
            "rows": Textarea("Rows: a JSON array, or CSV with a line of names").props("rows=10 input-class=font-mono"),
            "dataset": Input("Dataset", autocomplete=names),
            "sql": Textarea("SQL").props("rows=10 input-class=font-mono"),
        }
        for each in inputs.values():
            whole(each, "POST /gts/infer").props("outlined dense").classes("w-full")
        inputs[chosen.value].value = given
        _keep(dialog, *inputs.values())

        def show() -> None:
            for name, element in inputs.items():
                element.set_visibility(name == chosen.value)

        async def infer() -> None:
            taken = inputs[chosen.value]
            if not taken.validate():
                return
            button.props(add="loading")
            try:
                found = await _proposal(visit.api, chosen.value, taken.value or "")
            except Invalid as refusal:
                taken.error = refusal.message
            except Problem as problem:
                if problem.status == 401:
                    raise
                taken.error = " ".join([problem.sentence, *(str(each.get("message")) for each in problem.errors[1:4])])
            else:
                if not replaced or await confirmed(_replacing(replaced), "Replace"):
                    dialog.submit(found)
            finally:
                if not button.is_deleted:
                    button.props(remove="loading")

        button = _buttons(dialog, "Infer", once(infer))
        show()
    found: Mapping[str, Any] | None = await answered(dialog)
    return found


async def conflict(
    base: Mapping[str, Any], mine: Mapping[str, Any], now: Mapping[str, Any], newest: Mapping[str, Any]
) -> Choice | None:
    """Both sides of a conflict, and whose changes stay; None to go on editing."""
    with _asking("Somebody else has changed this schema", "max-w-4xl") as dialog:
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
    with _asking("This change breaks readers", "max-w-2xl") as dialog:
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


@contextmanager
def _asking(title: str, width: str) -> Iterator[ui.dialog]:
    with named(ui.dialog(), title) as dialog, ui.card().classes(f"w-full {width}"):
        subheading(title)
        yield dialog


def _keep(dialog: ui.dialog, *inputs: ui.input) -> None:
    """Escape closes the dialog while nothing is written in them; after that only a button does."""
    before = [each.value for each in inputs]

    def leave() -> None:
        if [each.value for each in inputs] == before:
            dialog.submit(None)

    dialog.props("persistent").on("keydown.escape", leave, args=[])


def _replacing(many: int) -> str:
    return f"Replace the {'field that is' if many == 1 else f'{many:,} fields that are'} there?"


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
