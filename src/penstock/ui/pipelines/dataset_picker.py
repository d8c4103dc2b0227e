"""Dataset picker: search the tenant's datasets while editing a pipeline."""

from collections.abc import Callable, Iterable
from typing import Any

from nicegui import ui

from penstock.ui import formatting
from penstock.ui.actions import show_errors
from penstock.ui.api_client import ApiClient
from penstock.ui.elements import with_label
from penstock.ui.pipelines.definition import Dataset
from penstock.ui.session import PageSession

MAX_DATASETS = 8  # shown at once; users search for others by name
_IDS_PER_REQUEST = 50
_MEMBERS = "id,name,schema,rows,read_only"


async def list_datasets(api: ApiClient, limit: int = 50) -> list[Dataset]:
    """List the first datasets by name."""
    response = await api.get("/datasets", orderby="name", top=limit, select=_MEMBERS)
    return list(response["value"])


async def load_names(api: ApiClient, ids: Iterable[str]) -> dict[str, str]:
    """Load the names of datasets. Unknown ids are left out."""
    sorted_ids, names = sorted(set(ids)), dict[str, str]()
    for start in range(0, len(sorted_ids), _IDS_PER_REQUEST):
        batch = ", ".join(sorted_ids[start : start + _IDS_PER_REQUEST])
        response = await api.get("/datasets", filter=f"id in ({batch})", select="id,name", top=_IDS_PER_REQUEST)
        names |= {dataset["id"]: dataset["name"] for dataset in response["value"]}
    return names


async def show_picker(session: PageSession, actions: dict[str, Callable[[Dataset], Any]]) -> None:
    """Show a search for datasets. Each dataset has its columns and a button for each action."""
    search_box = ui.input("Find a dataset").props("outlined dense clearable debounce=300").classes("w-full")
    results = ui.column().classes("w-full gap-0").props("aria-live=polite")

    async def search() -> None:
        words = (search_box.value or "").strip()
        response = await session.api.get(
            "/datasets", orderby="name", top=MAX_DATASETS, select=_MEMBERS, search=words or None, count=True
        )
        if words != (search_box.value or "").strip():
            return  # a newer search is running
        results.clear()
        with results:
            for dataset in response["value"]:
                _show_dataset(dataset, actions)
            if more := response["@odata.count"] - len(response["value"]):
                ui.label(f"{formatting.format_count(more)} more. Type a part of the name to find others.").classes(
                    "text-sm quiet py-1"
                )
            if not response["value"]:
                ui.label("No datasets match.").classes("text-sm quiet py-1")

    search_box.on_value_change(show_errors(search))
    await search()


def _show_dataset(dataset: Dataset, actions: dict[str, Callable[[Dataset], Any]]) -> None:
    with (
        ui.expansion(dataset["name"], caption=formatting.format_count(dataset["rows"], "row"))
        .classes("w-full")
        .props('dense header-class="px-1"')
    ):
        with ui.row().classes("gap-1 flex-wrap"):
            for label, act in actions.items():
                button = ui.button(label, on_click=lambda act=act: act(dataset), color=None)
                with_label(button.props("outline dense no-caps").classes("px-2"), f"{label}: {dataset['name']}")
        with ui.column().classes("w-full gap-0"):
            for column in dataset["schema"]:
                with ui.row().classes("w-full justify-between gap-2 no-wrap text-sm"):
                    ui.label(column["name"]).classes("font-mono break-anywhere")
                    ui.label(formatting.format_type(column["type"])).classes("quiet")
