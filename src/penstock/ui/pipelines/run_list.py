"""Runs: the page with all runs of the tenant, and a table with charts for any list of runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from nicegui import ui

from penstock.core.pipeline.run import RunState
from penstock.ui import charts, formatting
from penstock.ui.actions import show_errors
from penstock.ui.api_client import ApiError, odata_string, path_segment
from penstock.ui.data_table import TableColumn, show_pager, show_table
from penstock.ui.elements import empty_state, heading
from penstock.ui.layout import page
from penstock.ui.pipelines.run_steps import Run, is_active
from penstock.ui.session import PageSession

PAGE_RUNS = 20
_REFRESH_SECONDS = 2.0  # while a run is active
_MEMBERS = "id,name,pipeline_id,state,author,created_at,started_at,ended_at,cancelling,written"
COUNTS = ("inserted", "updated", "deleted")


@dataclass(frozen=True)
class StateStyle:
    """Appearance of a run state: a sign and an icon besides the colour, so that no state is shown by colour only."""

    sign: str
    icon: str
    colour: str


STATE_STYLES = {
    RunState.QUEUED: StateStyle("…", "hourglass_empty", "grey-8"),
    RunState.RUNNING: StateStyle("▶", "play_circle_outline", "primary"),
    RunState.SUCCEEDED: StateStyle("✓", "check_circle_outline", "positive"),
    RunState.FAILED: StateStyle("✗", "error_outline", "negative"),
    RunState.CANCELLED: StateStyle("◼", "block", "grey-8"),
}
_STATE = TableColumn("state", "State", format=lambda state: format_state(state), link=lambda run: f"/runs/{run['id']}")
_PIPELINE = TableColumn("name", "Pipeline", link=lambda run: run["pipeline_id"] and f"/pipelines/{run['pipeline_id']}")
_OTHERS = (
    TableColumn("created_at", "Requested", format=formatting.format_age),
    TableColumn("author", "Author"),
    TableColumn("took", "Duration", align_right=True),
    *(TableColumn(name, name.capitalize(), format=formatting.format_count, align_right=True) for name in COUNTS),
    TableColumn("output", "Output", link=lambda run: run["output_path"]),
)


@page("/runs", "Runs")
async def runs(session: PageSession) -> None:
    """Show all runs of the tenant, including runs of pipelines that are not stored."""
    heading("Runs", parent=("Pipelines", "/pipelines"))
    states = {"": "All states", **{str(name): str(name) for name in RunState}}
    state = ui.select(states, value="", label="State").props("outlined dense").classes("w-48")

    def show_empty() -> None:
        if state.value:
            empty_state("No runs in this state.")
        else:
            empty_state("No runs yet.", "Pipelines", "/pipelines")

    table = RunTable(session, with_names=True, show_empty=show_empty)
    state.on_value_change(
        show_errors(lambda: table.search(f"state eq {odata_string(state.value)}" if state.value else None))
    )
    await table.search(None)


class RunTable:
    """Table of the runs that a filter matches, the newest first. It refreshes itself while a run is active."""

    def __init__(
        self,
        session: PageSession,
        *,
        with_names: bool = False,
        with_charts: bool = False,
        show_empty: Callable[[], None],
    ) -> None:
        self._api, self._with_charts, self._show_empty = session.api, with_charts, show_empty
        self._columns = (_STATE, _PIPELINE, *_OTHERS) if with_names else (_STATE, *_OTHERS)
        self._filter: str | None = None
        self._skip = 0
        self._response: Any = None
        self._timer: ui.timer | None = None
        self._content = ui.column().classes("w-full gap-4")
        self._timer_parent = ui.element("div").classes("hidden")  # not the content, which is cleared with its timers

    async def search(self, filter: str | None) -> None:
        """Show the runs that a filter matches."""
        self._filter, self._skip = filter, 0
        await self.refresh()

    async def refresh(self) -> None:
        """Load the runs again and show them if they have changed."""
        request = (self._filter, self._skip)
        try:
            response = await self._api.get(
                "/runs", filter=self._filter, top=PAGE_RUNS, skip=self._skip, count=True, select=_MEMBERS,
                orderby="created_at desc",
            )  # fmt: skip
        except ApiError as error:
            if not error.is_transient:
                raise
            self._schedule_refresh(True)
            return
        if request != (self._filter, self._skip):
            return  # a newer request is running
        self._schedule_refresh(any(map(is_active, response["value"])))
        if response != self._response:
            self._response = response
            self._fill(response)

    def _fill(self, response: dict[str, Any]) -> None:
        runs = response["value"]
        self._content.clear()
        with self._content:
            if not runs:
                self._show_empty()
                return
            if self._with_charts:
                _show_charts(runs)
            show_table(self._columns, [to_table_row(run) for run in runs], name="Runs")
            show_pager(
                self._skip, len(runs), response["@odata.count"],
                has_more=self._skip + len(runs) < response["@odata.count"],
                on_move=show_errors(self._move), page_rows=PAGE_RUNS,
            )  # fmt: skip

    def _schedule_refresh(self, is_due: bool) -> None:
        if self._timer:
            self._timer.cancel()
        with self._timer_parent:
            self._timer = ui.timer(_REFRESH_SECONDS, show_errors(self.refresh), once=True) if is_due else None

    async def _move(self, skip: int) -> None:
        self._skip = skip
        await self.refresh()


class RunStarter:
    """Starts a run of a pipeline and opens its page. A double click starts one run."""

    def __init__(self, session: PageSession, pipeline: str) -> None:
        self._api, self._pipeline = session.api, pipeline
        self._has_started = False

    async def start(self) -> None:
        if self._has_started:
            return
        self._has_started = True
        try:
            run = await self._api.post(f"/pipelines/{self._pipeline}/runs", idempotency_key=uuid4().hex)
        except ApiError:
            self._has_started = False
            raise
        ui.navigate.to(f"/runs/{run['id']}")


def format_state(state: str) -> str:
    """Format a run state with its sign."""
    return f"{STATE_STYLES[RunState(state)].sign} {state}"


def show_state_badge(state: str) -> None:
    """Show a run state as a badge."""
    style = STATE_STYLES[RunState(state)]
    with ui.badge(color=style.colour).classes("text-sm px-2 py-1 gap-1"):
        ui.icon(style.icon).props("aria-hidden=true")
        ui.label(state)


def version_path(written: Mapping[str, Any]) -> str:
    """Return the path of the page of a written version."""
    return f"/datasets/{path_segment(written['name'])}?version={written['version']}"


def to_table_row(run: Run) -> dict[str, Any]:
    """Return a run as a table row."""
    written = run["written"][0] if run["written"] else None
    return {
        **run,
        "took": formatting.format_duration(run["started_at"], run["ended_at"]),
        **{name: written[name] if written else None for name in COUNTS},
        "output": f"{written['name']} version {written['version']}" if written else "–",
        "output_path": version_path(written) if written else None,
    }


def run_seconds(run: Run) -> float | None:
    """Return the duration of a run that has ended, in seconds."""
    start, end = formatting.parse_timestamp(run["started_at"]), formatting.parse_timestamp(run["ended_at"])
    return round((end - start).total_seconds(), 2) if start and end else None


def _show_charts(runs: Sequence[Run]) -> None:
    """Show row counts and durations of succeeded runs, the oldest first."""
    succeeded = [run for run in reversed(runs) if run["state"] == RunState.SUCCEEDED]
    if not succeeded:
        return
    labels = [
        f"{created_at:%d %b %H:%M}"
        for run in succeeded
        if (created_at := formatting.parse_timestamp(run["created_at"]))
    ]
    rows = [to_table_row(run) for run in succeeded]
    with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-2 gap-4"):
        with ui.card().classes("p-3 min-w-0").props("flat bordered"):
            ui.label("Changed rows per run").classes("text-sm quiet")
            charts.show_stacked_chart(
                labels, {name: [row[name] for row in rows] for name in COUNTS}, name="Rows by run"
            )
        with ui.card().classes("p-3 min-w-0").props("flat bordered"):
            ui.label("Duration of each run in seconds").classes("text-sm quiet")
            charts.show_bar_chart(
                labels, [run_seconds(run) for run in succeeded], name="Seconds by run", unit="seconds"
            )
