"""Home page: introduction, health of the service, next steps, and recent changes."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting
from penstock.ui.actions import single_flight
from penstock.ui.api_client import ApiClient, ApiError, path_segment
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.datasets import upload as datasets_upload
from penstock.ui.elements import heading, subheading
from penstock.ui.layout import page
from penstock.ui.pipelines.run_list import format_state
from penstock.ui.role_notes import show_role_note
from penstock.ui.session import PageSession

RECENT_ROWS = 5  # of each list
INTRODUCTION = (
    "Penstock stores tables as versioned datasets and commits every change atomically. "
    "Pipelines combine datasets, and registered queries return rows that match a declared result schema."
)
_DATASETS = (
    TableColumn("name", "Dataset", link=lambda row: f"/datasets/{path_segment(row['name'])}"),
    TableColumn("operation", "Operation"),
    TableColumn("rows", "Rows", formatting.format_count, align_right=True),
    TableColumn("author", "Author"),
    TableColumn("at", "Time", formatting.format_age),
)
_SCHEMAS = (
    TableColumn("name", "Schema", link=lambda row: f"/schemas/{row['id']}"),
    TableColumn("state", "State", str.capitalize),
    TableColumn("version", "Version", align_right=True),
    TableColumn("updated_at", "Time", formatting.format_age),
)
_RUNS = (
    TableColumn("name", "Pipeline", link=lambda row: f"/runs/{row['id']}"),
    TableColumn("state", "State", format_state),
    TableColumn("author", "Author"),
    TableColumn("created_at", "Time", formatting.format_age),
)


@dataclass(frozen=True)
class TenantContents:
    """Resources of the tenant, which decide the suggested next steps."""

    dataset: str | None = None  # name of the newest dataset
    schemas: int = 0
    pipelines: int = 0
    queries: int = 0
    runs: int = 0


@dataclass(frozen=True)
class NextStep:
    """A suggested action."""

    title: str
    description: str
    target: str  # path of a page, or UPLOAD


UPLOAD = "upload"
_VIEW_DATASET = NextStep("View a dataset", "Browse and filter its rows, and see its versions.", "/datasets")
_TRY_SQL = NextStep("Query datasets with SQL", "Read any dataset at any version. Nothing is stored.", "/queries/new")


def suggest_next_steps(contents: TenantContents, role: Role) -> list[NextStep]:
    """Suggest three actions: first those that create missing resources, then those that use existing ones."""
    view = (
        _VIEW_DATASET
        if contents.dataset is None
        else NextStep(
            f"View {contents.dataset}", _VIEW_DATASET.description, f"/datasets/{path_segment(contents.dataset)}"
        )
    )
    if role < Role.DEVELOPER:
        schemas = NextStep("View the schemas", "A result schema declares the fields that a query returns.", "/schemas")
        queries = NextStep("Run a query", "A registered query returns rows that match its result schema.", "/queries")
        return [view, queries if contents.queries else schemas, _TRY_SQL]
    upload = NextStep("Upload a file", "A CSV, JSON, Parquet or Arrow file becomes a dataset.", UPLOAD)
    schema = NextStep("Create a schema", "A result schema declares the fields that a query returns.", "/schemas/new")
    query = NextStep(
        "Register a query", "Save SQL under a name. Its rows are validated against a schema.", "/queries/new"
    )
    pipeline = NextStep("Build a pipeline", "Append and merge datasets in one commit.", "/pipelines/new")
    run = NextStep("Run a pipeline", "Start a run and follow its progress.", "/pipelines")
    if contents.dataset is None:
        return [upload, schema, _TRY_SQL]
    missing = [
        *([] if contents.schemas else [schema]),
        *([] if contents.queries or not contents.schemas else [query]),
        *([] if contents.pipelines else [pipeline]),
        *([] if contents.runs or not contents.pipelines else [run]),
    ]
    return [*missing, view, _TRY_SQL, upload][:3]


@page("/", "Home")
async def home(session: PageSession) -> None:
    heading("Home")
    ui.label(INTRODUCTION).classes("max-w-3xl")
    api = session.api
    datasets, schemas, pipelines, queries, runs, health = await asyncio.gather(
        api.get("/datasets", orderby="at desc", top=RECENT_ROWS, select="name,operation,rows,author,at"),
        api.get("/gts", orderby="updated_at desc", top=RECENT_ROWS, select="id,name,state,version,updated_at"),
        api.get("/pipelines", top=1, select="id"),
        api.get("/queries", top=1, select="id"),
        api.get("/runs", orderby="created_at desc", top=RECENT_ROWS, select="id,name,state,author,created_at"),
        _load_health(api),
    )
    newest = datasets["value"][0]["name"] if datasets["value"] else None
    counts = (len(collection["value"]) for collection in (schemas, pipelines, queries, runs))
    _show_health(health, session.version)
    show_role_note(session, {"create": Role.DEVELOPER}, "datasets, schemas, queries and pipelines")
    _show_next_steps(session, suggest_next_steps(TenantContents(newest, *counts), session.role))
    with ui.element("div").classes("w-full grid grid-cols-1 lg:grid-cols-2 gap-x-4 gap-y-6"):
        _show_recent("Recently changed datasets", _DATASETS, datasets["value"], "No datasets yet.", "/datasets")
        _show_recent("Recent runs", _RUNS, runs["value"], "No runs yet.", "/runs")
        _show_recent("Recently changed schemas", _SCHEMAS, schemas["value"], "No schemas yet.", "/schemas")
        _show_developer_links()


async def _load_health(api: ApiClient) -> Mapping[str, str]:
    """Load the state of each part of the service."""
    try:
        parts: Mapping[str, str] = (await api.get("/readyz"))["parts"]
    except ApiError as error:
        parts = error.payload.get("parts") or {"service": error.message}
    return parts


def describe_health(health: Mapping[str, str]) -> str:
    """Describe the health of the service in one sentence."""
    failed = [f"{part}: {state.replace('_', ' ')}" for part, state in health.items() if state != "ok"]
    if failed:
        return f"Not ready: {', '.join(failed)}"
    *parts, last = health
    return f"Ready: {', '.join(parts)} and {last} are available" if parts else f"Ready: {last} is available"


def _show_health(health: Mapping[str, str], version: str) -> None:
    is_healthy = all(state == "ok" for state in health.values())
    with ui.row().classes("items-center gap-2").props("role=status"):
        ui.icon(
            "check_circle" if is_healthy else "error", color="positive" if is_healthy else "negative", size="sm"
        ).props("aria-hidden=true")
        ui.label(describe_health(health))
        ui.label(f"version {version}").classes("quiet")


def _show_next_steps(session: PageSession, steps: list[NextStep]) -> None:
    async def upload() -> None:
        if dataset := await datasets_upload.create_dataset(session):
            ui.navigate.to(f"/datasets/{path_segment(dataset['name'])}")

    def open_target(target: str) -> Callable[[], Any]:
        return single_flight(upload) if target == UPLOAD else lambda: ui.navigate.to(target)

    subheading("Next steps")
    with ui.element("div").classes("w-full grid grid-cols-1 md:grid-cols-3 gap-4"):
        for number, step in enumerate(steps, 1):
            with ui.card().classes("p-4 gap-2 min-w-0 justify-between").props("flat bordered"):
                ui.label(f"{number}. {step.title}").classes("font-medium break-anywhere")
                ui.label(step.description).classes("text-sm quiet grow")
                button = ui.button("Try it", on_click=open_target(step.target)).props("outline no-caps")
                button.props["aria-label"] = f"Try it: {step.title}"


def _show_recent(title: str, columns: tuple[TableColumn, ...], rows: list[Any], empty_text: str, target: str) -> None:
    with ui.column().classes("w-full min-w-0 gap-2"):
        with ui.row().classes("w-full items-baseline justify-between"):
            subheading(title)
            ui.link("All", target).props["aria-label"] = f"All: {title}"
        if rows:
            show_table(columns, rows, name=title)
        else:
            with ui.card().classes("w-full p-4").props("flat bordered"):
                ui.label(empty_text).classes("quiet")


def _show_developer_links() -> None:
    with ui.column().classes("w-full min-w-0 gap-2"):
        subheading("For developers")
        with ui.card().classes("w-full p-4 gap-1").props("flat bordered"):
            ui.label("These pages use the REST API only.").classes("quiet")
            for name, address in (
                ("API reference", "/docs"),
                ("OpenAPI document", "/openapi.json"),
            ):
                # Not `ui.link`: it would look for the address among the pages.
                with ui.element("a").props(f"href={address} target=_blank rel=noopener"):
                    ui.label(name)
