"""Runs: all of the tenant's, and how a list of them looks, as a table and as charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from nicegui import ui

from penstock.core.pipeline.run import State
from penstock.ui import formatting as shown
from penstock.ui import charts
from penstock.ui.api_client import Problem, part, quoted
from penstock.ui.layout import Visit, empty, heading, page, told
from penstock.ui.data_table import Column, grid, pager
from penstock.ui.pipelines.run_steps import Run, is_under_way

TOP = 20
_LOOK = 2.0  # seconds between two looks, while something is under way
_MEMBERS = "id,name,pipeline_id,state,author,created_at,started_at,ended_at,cancelling,written"
COUNTS = ("inserted", "updated", "deleted")


@dataclass(frozen=True)
class Look:
    """A state as it is shown: a sign, an icon and a colour, of which none is alone."""

    sign: str
    icon: str
    colour: str


LOOKS = {
    State.QUEUED: Look("…", "hourglass_empty", "grey-8"),
    State.RUNNING: Look("▶", "play_circle_outline", "primary"),
    State.SUCCEEDED: Look("✓", "check_circle_outline", "positive"),
    State.FAILED: Look("✗", "error_outline", "negative"),
    State.CANCELLED: Look("◼", "block", "grey-8"),
}
_STATE = Column("state", "State", text=lambda state: state_in_words(state), link=lambda run: f"/runs/{run['id']}")
_PIPELINE = Column("name", "Pipeline", link=lambda run: run["pipeline_id"] and f"/pipelines/{run['pipeline_id']}")
_OTHERS = (
    Column("created_at", "Asked for", text=shown.ago),
    Column("author", "By"),
    Column("took", "Took", right=True),
    *(Column(name, name.capitalize(), text=shown.count, right=True) for name in COUNTS),
    Column("wrote", "Wrote", link=lambda run: run["there"]),
)


@page("/runs", "Runs")
async def runs(visit: Visit) -> None:
    """Every run of the tenant, of pipelines that are kept and of others."""
    heading("Runs", above=("Pipelines", "/pipelines"))
    states = {"": "All states", **{str(state): str(state) for state in State}}
    wanted = ui.select(states, value="", label="State").props("outlined dense").classes("w-48")

    def nothing() -> None:
        if wanted.value:
            empty("No run is in this state.")
        else:
            empty("Nothing has run yet.", "Pipelines", "/pipelines")

    table = Table(visit, with_names=True, nothing=nothing)
    wanted.on_value_change(told(lambda: table.search(f"state eq {quoted(wanted.value)}" if wanted.value else None)))
    await table.search(None)


class Table:
    """Runs that a filter finds, the newest first. It looks again as long as one of them is under way."""

    def __init__(
        self, visit: Visit, *, with_names: bool = False, with_charts: bool = False, nothing: Callable[[], None]
    ) -> None:
        self._api, self._with_charts, self._nothing = visit.api, with_charts, nothing
        self._columns = (_STATE, _PIPELINE, *_OTHERS) if with_names else (_STATE, *_OTHERS)
        self._filter: str | None = None
        self._skip = 0
        self._answer: Any = None
        self._clock: ui.timer | None = None
        self._place = ui.column().classes("w-full gap-4")
        self._beside = ui.element("div").classes("hidden")  # for the clock: the place is emptied now and then

    async def search(self, filter: str | None) -> None:
        self._filter, self._skip = filter, 0
        await self.look()

    async def look(self) -> None:
        asked = (self._filter, self._skip)
        try:
            answer = await self._api.get(
                "/runs", filter=self._filter, top=TOP, skip=self._skip, count=True, select=_MEMBERS,
                orderby="created_at desc",
            )  # fmt: skip
        except Problem as problem:
            if not problem.may_pass:
                raise
            self._look_again(True)
            return
        if asked != (self._filter, self._skip):
            return  # a later answer is on its way
        self._look_again(any(map(is_under_way, answer["value"])))
        if answer != self._answer:
            self._answer = answer
            self._fill(answer)

    def _fill(self, answer: dict[str, Any]) -> None:
        found = answer["value"]
        self._place.clear()
        with self._place:
            if not found:
                self._nothing()
                return
            if self._with_charts:
                _charts(found)
            grid(self._columns, [told_of(run) for run in found], name="Runs")
            pager(
                self._skip, len(found), answer["@odata.count"], more="@odata.nextLink" in answer,
                on_move=told(self._move), top=TOP,
            )  # fmt: skip

    def _look_again(self, is_due: bool) -> None:
        if self._clock:
            self._clock.cancel()
        with self._beside:
            self._clock = ui.timer(_LOOK, told(self.look), once=True) if is_due else None

    async def _move(self, skip: int) -> None:
        self._skip = skip
        await self.look()


class Starter:
    """Starts a run of a pipeline and goes to watch it. A click is one run, and so is a double click."""

    def __init__(self, visit: Visit, pipeline: str) -> None:
        self._api, self._pipeline = visit.api, pipeline
        self._has_started = False

    async def start(self) -> None:
        if self._has_started:
            return
        self._has_started = True
        try:
            run = await self._api.post(f"/pipelines/{self._pipeline}/runs", idempotency_key=uuid4().hex)
        except Problem:
            self._has_started = False
            raise
        ui.navigate.to(f"/runs/{run['id']}")


def state_in_words(state: str) -> str:
    return f"{LOOKS[State(state)].sign} {state}"


def badge(state: str) -> None:
    look = LOOKS[State(state)]
    with ui.badge(color=look.colour).classes("text-sm px-2 py-1 gap-1"):
        ui.icon(look.icon).props("aria-hidden=true")
        ui.label(state)


def version_path(written: Mapping[str, Any]) -> str:
    """Where a version that was written can be looked at."""
    return f"/datasets/{part(written['name'])}?version={written['version']}"


def told_of(run: Run) -> dict[str, Any]:
    """A run as a row of the table."""
    written = run["written"][0] if run["written"] else None
    return {
        **run,
        "took": shown.duration(run["started_at"], run["ended_at"]),
        **{name: written[name] if written else None for name in COUNTS},
        "wrote": f"{written['name']} version {written['version']}" if written else "–",
        "there": version_path(written) if written else None,
    }


def seconds(run: Run) -> float | None:
    """How long a run that has ended took."""
    start, end = shown.moment(run["started_at"]), shown.moment(run["ended_at"])
    return round((end - start).total_seconds(), 2) if start and end else None


def _charts(runs: Sequence[Run]) -> None:
    """What succeeded, from left to right as time goes."""
    done = [run for run in reversed(runs) if run["state"] == State.SUCCEEDED]
    if not done:
        return
    labels = [f"{at:%d %b %H:%M}" for run in done if (at := shown.moment(run["created_at"]))]
    rows = [told_of(run) for run in done]
    with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-2 gap-4"):
        with ui.card().classes("p-3 min-w-0").props("flat bordered"):
            ui.label("Rows that each run changed").classes("text-sm quiet")
            charts.stacked(labels, {name: [row[name] for row in rows] for name in COUNTS}, name="Rows by run")
        with ui.card().classes("p-3 min-w-0").props("flat bordered"):
            ui.label("Seconds that each run took").classes("text-sm quiet")
            charts.bars(labels, [seconds(run) for run in done], name="Seconds by run", unit="seconds")
