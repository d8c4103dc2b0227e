"""The first page: what this is, how it is, what happened lately, and what to try next."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting as shown
from penstock.ui.api_client import Api, Problem, part
from penstock.ui.datasets import upload as sending
from penstock.ui.layout import Visit, heading, once, page, subheading
from penstock.ui.data_table import Column, grid
from penstock.ui.pipelines.run_list import state_in_words

NEWEST = 5  # of each kind
WHAT = (
    "Penstock keeps your tables as datasets with every version that they ever had, and changes them all or not at all. "
    "Pipelines combine them, and queries answer from them with rows that keep the promise of a schema."
)
_DATASETS = (
    Column("name", "Dataset", link=lambda row: f"/datasets/{part(row['name'])}"),
    Column("operation", "Operation"),
    Column("rows", "Rows", shown.count, right=True),
    Column("author", "By"),
    Column("at", "When", shown.ago),
)
_SCHEMAS = (
    Column("name", "Schema", link=lambda row: f"/schemas/{row['id']}"),
    Column("state", "State", str.capitalize),
    Column("version", "Version", right=True),
    Column("updated_at", "When", shown.ago),
)
_RUNS = (
    Column("name", "Pipeline", link=lambda row: f"/runs/{row['id']}"),
    Column("state", "State", state_in_words),
    Column("author", "By"),
    Column("created_at", "When", shown.ago),
)


@dataclass(frozen=True)
class Has:
    """What the tenant has already."""

    dataset: str | None = None  # one of them
    schemas: int = 0
    pipelines: int = 0
    queries: int = 0
    runs: int = 0


@dataclass(frozen=True)
class Next:
    """Something to try."""

    title: str
    why: str
    to: str  # a path, or UPLOAD


UPLOAD = "upload"
_LOOK = Next("Look at a dataset", "Page through its rows, filter them, and see how they came to be.", "/datasets")
_ASK = Next("Ask a question in SQL", "Over all datasets, at any of their versions; nothing is kept.", "/queries/new")


def next_things(has: Has, role: Role) -> list[Next]:
    """Three things to try: first what is missing, then what can be done with what is there."""
    look = _LOOK if has.dataset is None else Next(f"Look at {has.dataset}", _LOOK.why, f"/datasets/{part(has.dataset)}")
    if role < Role.DEVELOPER:
        schemas = Next("Read the schemas", "They say which fields the answers of queries have.", "/schemas")
        queries = Next("Run a query", "Somebody has written it, and its answer keeps a promise.", "/queries")
        return [look, queries if has.queries else schemas, _ASK]
    upload = Next("Upload a file", "A CSV, JSON, Parquet or Arrow file becomes a dataset.", UPLOAD)
    schema = Next("Describe an answer", "A schema says which fields the rows of a query have.", "/schemas/new")
    query = Next("Register a query", "SQL under a name, whose rows are checked against a schema.", "/queries/new")
    pipeline = Next("Build a pipeline", "Append and merge datasets in one commit.", "/pipelines/new")
    run = Next("Run a pipeline", "And watch it to its end.", "/pipelines")
    if has.dataset is None:
        return [upload, schema, _ASK]
    missing = [
        *([] if has.schemas else [schema]),
        *([] if has.queries or not has.schemas else [query]),
        *([] if has.pipelines else [pipeline]),
        *([] if has.runs or not has.pipelines else [run]),
    ]
    return [*missing, look, _ASK, upload][:3]


@page("/", "Home")
async def home(visit: Visit) -> None:
    heading("Home")
    ui.label(WHAT).classes("max-w-3xl")
    api = visit.api
    datasets, schemas, pipelines, queries, runs, health = await asyncio.gather(
        api.get("/datasets", orderby="at desc", top=NEWEST, select="name,operation,rows,author,at"),
        api.get("/gts", orderby="updated_at desc", top=NEWEST, select="id,name,state,version,updated_at"),
        api.get("/pipelines", top=1, select="id"),
        api.get("/queries", top=1, select="id"),
        api.get("/runs", orderby="created_at desc", top=NEWEST, select="id,name,state,author,created_at"),
        _health(api),
    )
    newest = datasets["value"][0]["name"] if datasets["value"] else None
    many = (len(each["value"]) for each in (schemas, pipelines, queries, runs))
    _tell_health(health, visit.version)
    _offer(visit, next_things(Has(newest, *many), visit.role))
    with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-2 gap-x-4 gap-y-6"):
        _recent("Datasets that changed", _DATASETS, datasets["value"], "No dataset yet.", "/datasets")
        _recent("Runs", _RUNS, runs["value"], "No pipeline has run yet.", "/runs")
        _recent("Schemas that changed", _SCHEMAS, schemas["value"], "No schema yet.", "/schemas")
        _more()


async def _health(api: Api) -> Mapping[str, str]:
    """Each part of the service, and how it is."""
    try:
        parts: Mapping[str, str] = (await api.get("/readyz"))["parts"]
    except Problem as problem:
        parts = problem.told.get("parts") or {"service": problem.sentence}
    return parts


def in_words(health: Mapping[str, str]) -> str:
    failed = [f"{part}: {state.replace('_', ' ')}" for part, state in health.items() if state != "ok"]
    return f"Not ready: {', '.join(failed)}" if failed else f"Ready: {' and '.join(health)} can be used"


def _tell_health(health: Mapping[str, str], version: str) -> None:
    is_well = all(state == "ok" for state in health.values())
    with ui.row().classes("items-center gap-2").props("role=status"):
        ui.icon("check_circle" if is_well else "error", color="positive" if is_well else "negative", size="sm").props(
            "aria-hidden=true"
        )
        ui.label(in_words(health))
        ui.label(f"version {version}").classes("quiet")


def _offer(visit: Visit, things: list[Next]) -> None:
    async def upload() -> None:
        if made := await sending.create(visit):
            ui.navigate.to(f"/datasets/{part(made['name'])}")

    def go(to: str) -> Callable[[], Any]:
        return once(upload) if to == UPLOAD else lambda: ui.navigate.to(to)

    subheading("What to try next")
    with ui.element("div").classes("w-full grid grid-cols-1 md:grid-cols-3 gap-4"):
        for number, each in enumerate(things, 1):
            with ui.card().classes("p-4 gap-2 min-w-0 justify-between").props("flat bordered"):
                ui.label(f"{number}. {each.title}").classes("font-medium break-anywhere")
                ui.label(each.why).classes("text-sm quiet grow")
                button = ui.button("Try it", on_click=go(each.to)).props("outline no-caps")
                button.props["aria-label"] = f"Try it: {each.title}"


def _recent(title: str, columns: tuple[Column, ...], rows: list[Any], nothing: str, to: str) -> None:
    with ui.column().classes("w-full min-w-0 gap-2"):
        with ui.row().classes("w-full items-baseline justify-between"):
            subheading(title)
            ui.link("All", to).props["aria-label"] = f"All: {title}"
        if rows:
            grid(columns, rows, name=title)
        else:
            with ui.card().classes("w-full p-4").props("flat bordered"):
                ui.label(nothing).classes("quiet")


def _more() -> None:
    with ui.column().classes("w-full min-w-0 gap-2"):
        subheading("For programs")
        with ui.card().classes("w-full p-4 gap-1").props("flat bordered"):
            ui.label("All that these pages do goes through the REST API.").classes("quiet")
            for name, address in (
                ("Every route, to read and to try", "/docs"),
                ("The OpenAPI document", "/openapi.json"),
            ):
                # Not a link of NiceGUI's: it would look for it among the pages.
                with ui.element("a").props(f"href={address} target=_blank rel=noopener"):
                    ui.label(name)
