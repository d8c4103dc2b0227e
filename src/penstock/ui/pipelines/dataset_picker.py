"""The tenant's datasets, at hand while something is written about them."""

from collections.abc import Callable, Iterable
from typing import Any

from nicegui import ui

from penstock.ui import formatting as shown
from penstock.ui.api_client import Api
from penstock.ui.layout import Visit, named, told
from penstock.ui.pipelines.definition import Dataset

MOST = 8  # shown at once; who looks for others types a part of the name
_AT_ONCE = 50  # ids in one question
_MEMBERS = "id,name,schema,rows,read_only"


async def first(api: Api, many: int = 50) -> list[Dataset]:
    """Some of the datasets that there are."""
    answer = await api.get("/datasets", orderby="name", top=many, select=_MEMBERS)
    return list(answer["value"])


async def names(api: Api, ids: Iterable[str]) -> dict[str, str]:
    """What datasets are called. Those that are not there have no name."""
    wanted, found = sorted(set(ids)), dict[str, str]()
    for start in range(0, len(wanted), _AT_ONCE):
        some = ", ".join(wanted[start : start + _AT_ONCE])
        answer = await api.get("/datasets", filter=f"id in ({some})", select="id,name", top=_AT_ONCE)
        found |= {each["id"]: each["name"] for each in answer["value"]}
    return found


async def shelf(visit: Visit, actions: dict[str, Callable[[Dataset], Any]]) -> None:
    """Datasets by a part of their name, each with its columns and with what can be done with it."""
    sought = ui.input("Find a dataset").props("outlined dense clearable debounce=300").classes("w-full")
    found = ui.column().classes("w-full gap-0").props("aria-live=polite")

    async def look() -> None:
        words = (sought.value or "").strip()
        answer = await visit.api.get(
            "/datasets", orderby="name", top=MOST, select=_MEMBERS, search=words or None, count=True
        )
        if words != (sought.value or "").strip():
            return  # a later answer is on its way
        found.clear()
        with found:
            for each in answer["value"]:
                _dataset(each, actions)
            if more := answer["@odata.count"] - len(answer["value"]):
                ui.label(f"And {more:,} more: type a part of the name.").classes("text-sm quiet py-1")
            if not answer["value"]:
                ui.label("No dataset has such a name.").classes("text-sm quiet py-1")

    sought.on_value_change(told(look))
    await look()


def _dataset(dataset: Dataset, actions: dict[str, Callable[[Dataset], Any]]) -> None:
    with (
        ui.expansion(dataset["name"], caption=shown.count(dataset["rows"], "row"))
        .classes("w-full")
        .props('dense header-class="px-1"')
    ):
        with ui.row().classes("gap-1 flex-wrap"):
            for label, act in actions.items():
                button = ui.button(label, on_click=lambda act=act: act(dataset), color=None)
                named(button.props("outline dense no-caps").classes("px-2"), f"{label}: {dataset['name']}")
        with ui.column().classes("w-full gap-0"):
            for column in dataset["schema"]:
                with ui.row().classes("w-full justify-between gap-2 no-wrap text-sm"):
                    ui.label(column["name"]).classes("font-mono break-anywhere")
                    ui.label(shown.type_name(column["type"])).classes("quiet")
