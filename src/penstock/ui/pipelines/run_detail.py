"""Run page: status of each operation, progress, and result of one run. It refreshes itself while the run is active."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from nicegui import ui

from penstock.core.caller import Role
from penstock.core.pipeline.run import RunState
from penstock.ui import formatting
from penstock.ui.actions import show_errors, single_flight
from penstock.ui.api_client import ApiError, path_segment
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.dialogs import confirm
from penstock.ui.elements import heading, notify, subheading, with_label
from penstock.ui.layout import page
from penstock.ui.pipelines import dataset_picker, definition
from penstock.ui.pipelines.definition import Details
from penstock.ui.pipelines.run_list import COUNTS, RunStarter, show_state_badge, version_path
from penstock.ui.pipelines.run_steps import (
    Run,
    RunStep,
    StepStatus,
    completed_share,
    describe_run,
    find_run_error,
    is_active,
    list_steps,
)
from penstock.ui.role_notes import show_role_note
from penstock.ui.session import PageSession
from penstock.ui.time_zone import format_timestamp

T = TypeVar("T")

_REFRESH_SECONDS = 1.0
_CANCEL = "Cancel this run? Nothing will be written."
_ICONS = {
    StepStatus.WAITING: "radio_button_unchecked",
    StepStatus.RUNNING: "play_circle_outline",
    StepStatus.DONE: "check_circle_outline",
    StepStatus.FAILED: "error_outline",
    StepStatus.SKIPPED: "remove_circle_outline",
}
_READS = (
    TableColumn("name", "Dataset", link=lambda read: version_path(read)),
    TableColumn("version", "Version read", align_right=True),
    TableColumn("newest", "Newest version at the end", align_right=True),
)


@page("/runs/{id}", "Run")
async def show_run(session: PageSession, id: str) -> None:
    run = await session.api.get(f"/runs/{path_segment(id)}")
    pipeline = run["pipeline_id"]
    parent = (run["name"], f"/pipelines/{pipeline}") if pipeline else ("Runs", "/runs")
    actions = heading(f"Run of {run['name']}", parent=parent)
    can_be_cancelled, can_be_repeated = is_active(run), bool(pipeline)
    verbs = [verb for verb, is_possible in (("cancel", can_be_cancelled), ("repeat", can_be_repeated)) if is_possible]
    show_role_note(session, dict.fromkeys(verbs, Role.DEVELOPER), "this run")
    view = _RunView(
        session, run, await dataset_picker.load_names(session.api, {step.source for step in list_steps(run)})
    )
    if session.has_role(Role.DEVELOPER):
        with actions:
            view.add_buttons(session)
    view.show()
    with ui.expansion("Pipeline definition of this run").classes("w-full").props("dense"):
        text = ui.label(definition.format_pipeline(run["pipeline"])).classes(
            "font-mono text-sm whitespace-pre overflow-x-auto"
        )
        with_label(text.classes("w-full").props("tabindex=0 role=region"), "Definition as JSON")


class _Region(Generic[T]):
    """A part of the page that is filled again only if its value has changed."""

    def __init__(self, container: ui.element, fill: Callable[[T], None]) -> None:
        self._container, self._fill = container, fill
        self._value: T | None = None

    def update(self, value: T) -> None:
        if value != self._value:
            self._value = value
            self._container.clear()
            with self._container:
                self._fill(value)


class _RunView:
    """The content of the page. A timer refreshes it until the run has ended."""

    def __init__(self, session: PageSession, run: Run, names: dict[str, str]) -> None:
        self._api, self._run = session.api, run
        self._cancel: ui.button | None = None
        self._restart: ui.button | None = None
        with ui.row().classes("items-center gap-3 flex-wrap"):
            self._state = _Region(ui.row(), show_state_badge)
            self._sentence = ui.label().props("role=status aria-live=polite")
        self._about = ui.label().classes("quiet text-sm")
        self._bar = ui.linear_progress(completed_share(run), show_value=False, size="8px").props("rounded")
        with_label(self._bar, "Progress")
        self._error = _Region(ui.column().classes("w-full empty:hidden"), _show_error)
        self._written = _Region(ui.column().classes("w-full empty:hidden"), _show_written)
        subheading("Operations")
        with ui.list().props("bordered separator").classes("w-full rounded"):
            self._steps = [
                _Region(ui.item().classes("items-start"), partial(_show_step, name=names.get(step.source)))
                for step in list_steps(run)
            ]
        self._reads = _Region(ui.column().classes("w-full empty:hidden"), _show_reads)
        if is_active(run):
            self._timer = ui.timer(_REFRESH_SECONDS, show_errors(self._refresh), immediate=False)

    def add_buttons(self, session: PageSession) -> None:
        """Add the buttons for users who may run pipelines."""
        self._cancel = ui.button("Cancel run", icon="block", on_click=single_flight(self._cancel_run))
        self._cancel.props("outline no-caps")
        if self._run["pipeline_id"]:
            starter = RunStarter(session, self._run["pipeline_id"])
            self._restart = ui.button("Run again", icon="replay", on_click=single_flight(starter.start)).props(
                "unelevated no-caps"
            )

    def show(self) -> None:
        run, is_open = self._run, is_active(self._run)
        self._state.update(run["state"])
        self._sentence.text = describe_run(run)
        self._about.text = _describe(run)
        self._bar.value = completed_share(run)
        self._bar.props(add="indeterminate") if is_open and not completed_share(run) else self._bar.props(
            remove="indeterminate"
        )
        self._bar.set_visibility(is_open)
        if self._cancel:
            self._cancel.set_visibility(is_open)
            self._cancel.set_enabled(not run["cancelling"])
        if self._restart:
            self._restart.set_visibility(not is_open)
        self._error.update(find_run_error(run))
        self._written.update(run["written"])
        for region, step in zip(self._steps, list_steps(run), strict=True):
            region.update(step)
        self._reads.update(run["reads"])

    async def _refresh(self) -> None:
        try:
            self._run = await self._api.get(f"/runs/{self._run['id']}")
        except ApiError as error:
            if error.is_transient:
                self._sentence.text = "The service is not available. Retrying…"
                return
            self._timer.cancel()
            raise
        if not is_active(self._run):
            self._timer.cancel()
        self.show()

    async def _cancel_run(self) -> None:
        if await confirm(_CANCEL, "Cancel run", cancel_label="Keep it running", destructive=True):
            self._run = await self._api.post(f"/runs/{self._run['id']}/cancel")
            self.show()
            if not is_active(self._run) and self._run["state"] != RunState.CANCELLED:
                notify("The run had already ended.")


def _describe(run: Run) -> str:
    word = "for" if is_active(run) else "took"
    duration = (
        f" · {word} {formatting.format_duration(run['started_at'], run['ended_at'])}" if run["started_at"] else ""
    )
    return f"Requested by {run['author']}, {format_timestamp(run['created_at'])}{duration}"


def _show_error(error: tuple[str, Details] | None) -> None:
    if error:
        message, details = error
        with ui.card().classes("w-full gap-1").props("flat bordered role=alert"):
            ui.label(formatting.to_sentence(message)).classes("break-anywhere")
            _show_details(details)


def _show_step(step: RunStep, *, name: str | None) -> None:
    with ui.item_section().props("avatar"):
        ui.icon(_ICONS[step.status], size="sm").props("aria-hidden=true")
    with ui.item_section().classes("min-w-0"):
        ui.label(f"{step.number}. {step.title} · {name or step.source}").classes("break-anywhere")
        status = f"{step.status}: {step.message}" if step.message else step.status
        ui.label(status).classes("text-sm quiet break-anywhere")
        _show_details(step.details)


def _show_written(written: list[dict[str, Any]]) -> None:
    if written:
        subheading("Written datasets")
    for dataset in written:
        with ui.card().classes("w-full gap-1").props("flat bordered"):
            ui.link(f"{dataset['name']}, version {dataset['version']}", version_path(dataset)).classes("break-anywhere")
            counts = ", ".join(f"{formatting.format_count(dataset[name])} {name}" for name in COUNTS)
            ui.label(f"{counts}; {formatting.format_count(dataset['rows'], 'row')} in total").classes("text-sm quiet")


def _show_reads(reads: list[dict[str, Any]]) -> None:
    if reads:
        subheading("Read datasets")
        show_table(_READS, reads, name="Read versions")


def _show_details(details: Details) -> None:
    for name, value in details:
        ui.label(f"{name}: {value}").classes("text-sm quiet break-anywhere")
