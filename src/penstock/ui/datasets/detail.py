"""Dataset page: one version of a dataset with its rows, columns and versions."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting
from penstock.ui.actions import show_errors, single_flight
from penstock.ui.api_client import ApiError, path_segment
from penstock.ui.datasets import upload
from penstock.ui.datasets.columns_tab import ColumnsTab
from penstock.ui.datasets.rows_tab import RowsTab
from penstock.ui.datasets.versions_tab import VersionsTab
from penstock.ui.elements import error_card, heading, notify
from penstock.ui.layout import page
from penstock.ui.role_notes import show_role_note
from penstock.ui.session import PageSession

_LIST = ("Datasets", "/datasets")
_TABS = {"Rows": "table_rows", "Columns": "view_column", "Versions": "timeline"}  # names and icons
_MAX_OPTIONS = 100  # versions in the select box; the versions tab lists all

Dataset = Mapping[str, Any]


@page("/datasets/{name}", "Dataset")
async def dataset(session: PageSession, name: str, version: str = "", tab: str = "", where: str = "") -> None:
    """Show a dataset.

    Args:
        session: The session of the page.
        name: Name of the dataset.
        version: Number of the version; default: the newest.
        tab: Name of the open tab.
        where: Filter expression of the rows tab.
    """
    if version and not (version.isascii() and version.isdigit()):
        heading("Dataset", parent=_LIST)
        error_card("Invalid version", f"Invalid version {version[:40]!r}. A version is a whole number")
        return
    try:
        await _DatasetPage(session, name, tab, where).show(int(version) if version else None)
    except ApiError as error:
        if error.status != 404:
            raise
        heading("Dataset", parent=_LIST)
        error_card("Not found", error.message)


class _DatasetPage:
    def __init__(self, session: PageSession, name: str, tab: str, where: str) -> None:
        self._session, self._path = session, f"/datasets/{path_segment(name)}"
        self._tab, self._where = tab if tab in _TABS else "Rows", where
        self._container = ui.column().classes("w-full gap-4")

    async def show(self, version: int | None = None) -> None:
        """Load and show a version; by default the newest."""
        api = self._session.api
        dataset = await api.get(self._path)
        history = (await api.get(f"{self._path}/history", top=_MAX_OPTIONS))["value"]
        if version is not None and version != dataset["version"]:
            dataset = await self._load_version(dataset, version)
        if self._container.is_deleted:
            return
        self._container.clear()
        with self._container:
            await self._fill(dataset, history)

    async def _load_version(self, newest: Dataset, version: int) -> Dataset:
        """Load an older version. The service rejects a version that can no longer be read."""
        columns = await self._session.api.get(f"{self._path}/schema", version=version)
        history = await self._session.api.get(f"{self._path}/history", before=version + 1, top=1)
        return {**newest, **history["value"][0], "schema": columns["schema"], "newest": newest["version"]}

    async def _fill(self, dataset: Dataset, history: list[dict[str, Any]]) -> None:
        self._name = dataset["name"]
        with heading(self._name, parent=_LIST):
            version = f"&version={dataset['version']}" if "newest" in dataset else ""
            query = f"/queries/new?dataset={path_segment(dataset['name'])}{version}"
            ui.button("Query dataset", icon="manage_search", on_click=lambda: ui.navigate.to(query)).props(
                "flat no-caps"
            )
            if self._session.has_role(Role.DEVELOPER) and not dataset["read_only"]:
                ui.button("Append a file", icon="upload_file", on_click=single_flight(self._append)).props(
                    "unelevated no-caps"
                )
        if not dataset["read_only"]:
            show_role_note(self._session, {"append rows to": Role.DEVELOPER}, "this dataset")
        with ui.row().classes("w-full items-center gap-x-6 gap-y-2"):
            self._show_version_select(dataset, history)
            for label, text in list_facts(dataset):
                with ui.column().classes("gap-0"):
                    ui.label(label).classes("text-xs quiet")
                    ui.label(text).classes("break-anywhere")
        if "newest" in dataset:
            with ui.row().classes("w-full gap-2").props("role=note"):
                ui.label(f"You are viewing version {dataset['version']}; the newest version is {dataset['newest']}.")
                ui.link("Show the newest version", self._path)
        await self._show_tabs(dataset)

    def _show_version_select(self, dataset: Dataset, history: list[dict[str, Any]]) -> None:
        options = {entry["version"]: format_version_option(entry) for entry in history if not entry["swept"]}
        options.setdefault(dataset["version"], format_version_option(dataset))
        select = ui.select(options, value=dataset["version"], label="Version").props("outlined dense options-dense")
        select.classes("w-full sm:w-96").on_value_change(lambda event: self._open_version(event.value))

    def _open_version(self, version: int) -> None:
        """Open another version with the same tab and filter."""
        params = {"version": str(version), "tab": self._tab, "where": self._rows_tab.applied_filter}
        ui.navigate.to(
            f"{self._path}?{urlencode({name: text for name, text in params.items() if text}, quote_via=quote)}"
        )

    async def _show_tabs(self, dataset: Dataset) -> None:
        arguments = (self._session, self._path, dataset)
        self._rows_tab = RowsTab(*arguments)
        tabs_by_name: dict[str, Callable[[], Awaitable[None]]] = {
            "Rows": partial(self._rows_tab.show, self._where),
            "Columns": ColumnsTab(*arguments).show,
            "Versions": VersionsTab(*arguments).show,
        }
        filled = {self._tab}

        async def open_tab(event: Any) -> None:
            """Load a tab when the user opens it for the first time."""
            self._tab = event.value
            if event.value not in filled:
                filled.add(event.value)
                with panels[event.value]:
                    await show_errors(tabs_by_name[event.value])()

        with ui.tabs(on_change=open_tab).props("no-caps align=left inline-label dense") as tabs:
            for name, icon in _TABS.items():
                ui.tab(name, icon=icon)
        panels = {}
        with ui.tab_panels(tabs, value=self._tab, animated=False, keep_alive=True).classes("w-full bg-transparent"):
            for name in tabs_by_name:
                with ui.tab_panel(name).classes("p-0 gap-4") as panels[name]:
                    pass
        with panels[self._tab]:
            await tabs_by_name[self._tab]()

    async def _append(self) -> None:
        if receipt := await upload.append_file(self._session, self._name):
            self._where = self._rows_tab.applied_filter
            await self.show()
            with self._container:  # the clicked button was deleted with its container
                notify(describe_append(receipt))


def list_facts(dataset: Dataset) -> list[tuple[str, str]]:
    """Return labels and values that describe a version."""
    facts = [
        ("Rows", formatting.format_count(dataset["rows"])),
        ("Columns", formatting.format_count(len(dataset["schema"]))),
        ("Size", f"{formatting.format_size(dataset['bytes'])} in {formatting.format_count(dataset['files'], 'file')}"),
        ("Changed", f"{formatting.format_age(dataset['at'])} by {dataset['author']}"),
    ]
    return [*facts, ("Access", "read-only")] if dataset["read_only"] else facts


def format_version_option(version: Mapping[str, Any]) -> str:
    """Format a version for the select box."""
    return f"{version['version']} · {version['operation']} · {formatting.format_count(version['rows'], 'row')}"


def describe_append(receipt: Mapping[str, Any]) -> str:
    """Describe the result of an append."""
    (written,) = receipt["written"]
    if receipt["replayed"]:
        return f"These rows were already appended as version {written['version']}. Nothing was changed."
    return (
        f"{formatting.format_count(written['inserted'], 'row')} appended. The newest version is {written['version']}."
    )
