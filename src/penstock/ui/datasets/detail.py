"""One dataset at one version: what it is, its rows, its columns, and how it came to be so."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting as shown
from penstock.ui.api_client import Problem, part
from penstock.ui.datasets import upload as sending
from penstock.ui.datasets.columns_tab import Columns
from penstock.ui.datasets.rows_tab import Rows
from penstock.ui.datasets.versions_tab import Versions
from penstock.ui.layout import Visit, heading, once, page, say, told, trouble

_LIST = ("Datasets", "/datasets")
_TABS = {"Rows": "table_rows", "Columns": "view_column", "Versions": "timeline"}  # and icons
_OFFERED = 100  # versions to choose from; older ones are among all versions

Dataset = Mapping[str, Any]


@page("/datasets/{name}", "Dataset")
async def dataset(visit: Visit, name: str, version: str = "", tab: str = "", where: str = "") -> None:
    """`tab` and `where`: what is looked at, and the condition that rows must fit."""
    if version and not (version.isascii() and version.isdigit()):
        heading("Dataset", above=_LIST)
        trouble(f"{version[:40]!r} is no version: a version is a number.")
        return
    try:
        await _Page(visit, name, tab, where).show(int(version) if version else None)
    except Problem as problem:
        if problem.status != 404:
            raise
        heading("Dataset", above=_LIST)
        trouble(problem.sentence)


class _Page:
    def __init__(self, visit: Visit, name: str, tab: str, where: str) -> None:
        self._visit, self._path = visit, f"/datasets/{part(name)}"
        self._tab, self._where = tab if tab in _TABS else "Rows", where
        self._all = ui.column().classes("w-full gap-4")

    async def show(self, version: int | None = None) -> None:
        """The newest version unless another is asked for."""
        api = self._visit.api
        dataset = await api.get(self._path)
        history = (await api.get(f"{self._path}/history", top=_OFFERED))["value"]
        if version is not None and version != dataset["version"]:
            dataset = await self._then(dataset, version)
        if self._all.is_deleted:
            return
        self._all.clear()
        with self._all:
            await self._fill(dataset, history)

    async def _then(self, newest: Dataset, version: int) -> Dataset:
        """The dataset as it was. What cannot be read any more is refused by the service."""
        columns = await self._visit.api.get(f"{self._path}/schema", version=version)
        found = await self._visit.api.get(f"{self._path}/history", before=version + 1, top=1)
        return {**newest, **found["value"][0], "schema": columns["schema"], "newest": newest["version"]}

    async def _fill(self, dataset: Dataset, history: list[dict[str, Any]]) -> None:
        self._name = dataset["name"]
        with heading(self._name, above=_LIST):
            then = f"&version={dataset['version']}" if "newest" in dataset else ""
            query = f"/queries/new?dataset={part(dataset['name'])}{then}"
            ui.button("Query it", icon="manage_search", on_click=lambda: ui.navigate.to(query)).props("flat no-caps")
            if self._visit.may(Role.DEVELOPER) and not dataset["read_only"]:
                ui.button("Append a file", icon="upload_file", on_click=once(self._append)).props("unelevated no-caps")
        with ui.row().classes("w-full items-center gap-x-6 gap-y-2"):
            self._choice(dataset, history)
            for label, text in facts(dataset):
                with ui.column().classes("gap-0"):
                    ui.label(label).classes("text-xs quiet")
                    ui.label(text).classes("break-anywhere")
        if "newest" in dataset:
            with ui.row().classes("w-full gap-2").props("role=note"):
                ui.label(f"This is how it was at version {dataset['version']:,}; the newest is {dataset['newest']:,}.")
                ui.link("Show the newest", self._path)
        await self._tabs(dataset)

    def _choice(self, dataset: Dataset, history: list[dict[str, Any]]) -> None:
        offered = {each["version"]: option(each) for each in history if not each["swept"]}
        offered.setdefault(dataset["version"], option(dataset))
        choice = ui.select(offered, value=dataset["version"], label="Version").props("outlined dense options-dense")
        choice.classes("w-full sm:w-96").on_value_change(lambda event: self._go(event.value))

    def _go(self, version: int) -> None:
        """To another version, and there to what is looked at here."""
        seen = {"version": str(version), "tab": self._tab, "where": self._rows.kept}
        ui.navigate.to(
            f"{self._path}?{urlencode({name: text for name, text in seen.items() if text}, quote_via=quote)}"
        )

    async def _tabs(self, dataset: Dataset) -> None:
        here = (self._visit, self._path, dataset)
        self._rows = Rows(*here)
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "Rows": partial(self._rows.show, self._where),
            "Columns": Columns(*here).show,
            "Versions": Versions(*here).show,
        }
        filled = {self._tab}

        async def open_(event: Any) -> None:
            """What is behind a tab is asked for when somebody looks."""
            self._tab = event.value
            if event.value not in filled:
                filled.add(event.value)
                with panels[event.value]:
                    await told(parts[event.value])()

        with ui.tabs(on_change=open_).props("no-caps align=left inline-label dense") as tabs:
            for each, icon in _TABS.items():
                ui.tab(each, icon=icon)
        panels = {}
        with ui.tab_panels(tabs, value=self._tab, animated=False, keep_alive=True).classes("w-full bg-transparent"):
            for each in parts:
                with ui.tab_panel(each).classes("p-0 gap-4") as panels[each]:
                    pass
        with panels[self._tab]:
            await parts[self._tab]()

    async def _append(self) -> None:
        if receipt := await sending.append(self._visit, self._name):
            self._where = self._rows.kept
            await self.show()
            with self._all:  # the button that was clicked is gone
                say(appended(receipt))


def facts(dataset: Dataset) -> list[tuple[str, str]]:
    """What is known of a version, in a few words each."""
    told = [
        ("Rows", shown.count(dataset["rows"])),
        ("Columns", shown.count(len(dataset["schema"]))),
        ("Size", f"{shown.size(dataset['bytes'])} in {shown.count(dataset['files'], 'file')}"),
        ("Changed", f"{shown.ago(dataset['at'])} by {dataset['author']}"),
    ]
    return [*told, ("Writing", "read-only")] if dataset["read_only"] else told


def option(version: Mapping[str, Any]) -> str:
    return f"{version['version']:,} · {version['operation']} · {shown.count(version['rows'], 'row')}"


def appended(receipt: Mapping[str, Any]) -> str:
    (written,) = receipt["written"]
    if receipt["replayed"]:
        return f"These rows had been appended before, as version {written['version']:,}. Nothing was changed."
    return f"{shown.count(written['inserted'], 'row')} appended. The newest version is {written['version']:,}."
