"""One run, watched while it is under way: what each operation does, how far Spark is, and what came of it."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.pipeline.run import State
from penstock.ui import formatting as shown
from penstock.ui.api_client import Problem, part
from penstock.ui.layout import Visit, confirmed, heading, named, once, page, say, subheading, told
from penstock.ui.data_table import Column, grid
from penstock.ui.pipelines import dataset_picker as shelf
from penstock.ui.pipelines import definition
from penstock.ui.pipelines.definition import Facts
from penstock.ui.pipelines.run_list import COUNTS, Starter, badge, version_path
from penstock.ui.pipelines.run_steps import Run, Standing, Step, is_under_way, own_error, share, steps, summary

T = TypeVar("T")

_LOOK = 1.0  # seconds between two looks
_CANCEL = "Cancel this run? Nothing of it will be written."
_ICONS = {
    Standing.WAITING: "radio_button_unchecked",
    Standing.RUNNING: "play_circle_outline",
    Standing.DONE: "check_circle_outline",
    Standing.FAILED: "error_outline",
    Standing.LEFT: "remove_circle_outline",
}
_READS = (
    Column("name", "Dataset", link=lambda read: version_path(read)),
    Column("version", "Version read", right=True),
    Column("newest", "Newest at the end", right=True),
)


@page("/runs/{id}", "Run")
async def run(visit: Visit, id: str) -> None:
    found = await visit.api.get(f"/runs/{part(id)}")
    pipeline = found["pipeline_id"]
    above = (found["name"], f"/pipelines/{pipeline}") if pipeline else ("Runs", "/runs")
    actions = heading(f"Run of {found['name']}", above=above)
    watch = _Watch(visit, found, await shelf.names(visit.api, {step.source for step in steps(found)}))
    if visit.may(Role.DEVELOPER):
        with actions:
            watch.offer(visit)
    watch.show()
    with ui.expansion("The pipeline as it was when it ran").classes("w-full").props("dense"):
        text = ui.label(definition.text(found["pipeline"])).classes("font-mono text-sm whitespace-pre overflow-x-auto")
        named(text.classes("w-full").props("tabindex=0 role=region"), "The pipeline as JSON")


class _Part(Generic[T]):
    """A place of the page that is filled anew when what it tells has changed, and left alone otherwise."""

    def __init__(self, place: ui.element, fill: Callable[[T], None]) -> None:
        self._place, self._fill = place, fill
        self._told: T | None = None

    def tell(self, news: T) -> None:
        if news != self._told:
            self._told = news
            self._place.clear()
            with self._place:
                self._fill(news)


class _Watch:
    """A run in front of somebody. It is looked at until it is over, or nobody is there any more."""

    def __init__(self, visit: Visit, run: Run, names: dict[str, str]) -> None:
        self._api, self._run = visit.api, run
        self._cancel: ui.button | None = None
        self._again: ui.button | None = None
        with ui.row().classes("items-center gap-3 flex-wrap"):
            self._state = _Part(ui.row(), badge)
            self._sentence = ui.label().props("role=status aria-live=polite")
        self._about = ui.label().classes("quiet text-sm")
        self._bar = ui.linear_progress(share(run), show_value=False, size="8px").props("rounded")
        named(self._bar, "How much is done")
        self._error = _Part(ui.column().classes("w-full empty:hidden"), _error)
        self._written = _Part(ui.column().classes("w-full empty:hidden"), _written)
        subheading("Operations")
        with ui.list().props("bordered separator").classes("w-full rounded"):
            self._steps = [
                _Part(ui.item().classes("items-start"), partial(_step, name=names.get(step.source)))
                for step in steps(run)
            ]
        self._reads = _Part(ui.column().classes("w-full empty:hidden"), _reads)
        if is_under_way(run):
            self._clock = ui.timer(_LOOK, told(self._look), immediate=False)

    def offer(self, visit: Visit) -> None:
        """What somebody who may write can do with it."""
        self._cancel = ui.button("Cancel run", icon="block", on_click=once(self._stop))
        self._cancel.props("outline no-caps")
        if self._run["pipeline_id"]:
            again = Starter(visit, self._run["pipeline_id"])
            self._again = ui.button("Run again", icon="replay", on_click=once(again.start)).props("unelevated no-caps")

    def show(self) -> None:
        run, is_open = self._run, is_under_way(self._run)
        self._state.tell(run["state"])
        self._sentence.text = summary(run)
        self._about.text = _about(run)
        self._bar.value = share(run)
        self._bar.props(add="indeterminate") if is_open and not share(run) else self._bar.props(remove="indeterminate")
        self._bar.set_visibility(is_open)
        if self._cancel:
            self._cancel.set_visibility(is_open)
            self._cancel.set_enabled(not run["cancelling"])
        if self._again:
            self._again.set_visibility(not is_open)
        self._error.tell(own_error(run))
        self._written.tell(run["written"])
        for place, step in zip(self._steps, steps(run), strict=True):
            place.tell(step)
        self._reads.tell(run["reads"])

    async def _look(self) -> None:
        try:
            self._run = await self._api.get(f"/runs/{self._run['id']}")
        except Problem as problem:
            if problem.may_pass:
                self._sentence.text = "The service does not answer just now; it is asked again."
                return
            self._clock.cancel()
            raise
        if not is_under_way(self._run):
            self._clock.cancel()
        self.show()

    async def _stop(self) -> None:
        if await confirmed(_CANCEL, "Cancel run", no="Keep it running", danger=True):
            self._run = await self._api.post(f"/runs/{self._run['id']}/cancel")
            self.show()
            if not is_under_way(self._run) and self._run["state"] != State.CANCELLED:
                say("It was over already.")


def _about(run: Run) -> str:
    word = "for" if is_under_way(run) else "took"
    took = f" · {word} {shown.duration(run['started_at'], run['ended_at'])}" if run["started_at"] else ""
    return f"Asked for by {run['author']}, {shown.when(run['created_at'])}{took}"


def _error(error: tuple[str, Facts] | None) -> None:
    if error:
        sentence, facts = error
        with ui.card().classes("w-full gap-1").props("flat bordered role=alert"):
            ui.label(shown.sentence(sentence)).classes("break-anywhere")
            _facts(facts)


def _step(step: Step, *, name: str | None) -> None:
    with ui.item_section().props("avatar"):
        ui.icon(_ICONS[step.standing], size="sm").props("aria-hidden=true")
    with ui.item_section().classes("min-w-0"):
        ui.label(f"{step.number}. {step.title} · {name or step.source}").classes("break-anywhere")
        told = f"{step.standing}: {step.sentence}" if step.sentence else step.standing
        ui.label(told).classes("text-sm quiet break-anywhere")
        _facts(step.facts)


def _written(written: list[dict[str, Any]]) -> None:
    if written:
        subheading("Written")
    for each in written:
        with ui.card().classes("w-full gap-1").props("flat bordered"):
            ui.link(f"{each['name']}, version {each['version']}", version_path(each)).classes("break-anywhere")
            counts = ", ".join(f"{each[name]:,} {name}" for name in COUNTS)
            ui.label(f"{counts}; {shown.count(each['rows'], 'row')} in it").classes("text-sm quiet")


def _reads(reads: list[dict[str, Any]]) -> None:
    if reads:
        subheading("Read")
        grid(_READS, reads, name="Versions that were read")


def _facts(facts: Facts) -> None:
    for name, value in facts:
        ui.label(f"{name}: {value}").classes("text-sm quiet break-anywhere")
