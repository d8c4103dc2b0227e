"""List of datasets, grouped by namespace. New datasets are created from files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from nicegui import ui

from penstock.core.caller import Role
from penstock.ui import formatting
from penstock.ui.actions import show_errors, single_flight
from penstock.ui.api_client import ApiClient, odata_string, path_segment
from penstock.ui.data_table import TableColumn, show_table
from penstock.ui.datasets import upload
from penstock.ui.elements import empty_state, heading, subheading
from penstock.ui.layout import page
from penstock.ui.role_notes import show_role_note
from penstock.ui.search_list import SearchList, SearchParams, SearchRows, parse_page_number
from penstock.ui.session import PageSession

PAGE_DATASETS = 50
MAX_NAMESPACES = 100  # in the select box
_ALL = "All namespaces"
_SELECT = "name,schema_name,table_name,schema,rows,bytes,version,at,author,read_only"
_COLUMNS = (
    TableColumn("table_name", "Name", link=lambda row: f"/datasets/{path_segment(row['name'])}"),
    TableColumn("schema", "Columns", lambda columns: formatting.format_count(len(columns)), align_right=True),
    TableColumn("rows", "Rows", formatting.format_count, align_right=True),
    TableColumn("bytes", "Size", formatting.format_size, align_right=True),
    TableColumn("version", "Version", align_right=True),
    TableColumn("at", "Changed", formatting.format_age),
    TableColumn("author", "Author"),
)
_WIDTHS = ("28%", "10%", "12%", "10%", "10%", "16%", "14%")  # equal in all tables, so that their columns line up

Dataset = Mapping[str, Any]


@dataclass(frozen=True)
class DatasetSearchParams(SearchParams):
    """A search by words and namespace. The API returns datasets by name, and so by namespace."""

    namespace: str | None = None

    def odata_options(self) -> dict[str, Any]:
        filter_ = f"tolower(schema_name) eq {odata_string(self.namespace.lower())}" if self.namespace else None
        return {**(super().odata_options() or {}), "filter": filter_}

    def query_params(self) -> dict[str, str]:
        return super().query_params() | ({"schema": self.namespace} if self.namespace else {})


def group_by_namespace(datasets: Sequence[Dataset], names: Sequence[str]) -> list[tuple[str, list[Dataset]]]:
    """Group datasets by namespace, ignoring case. A namespace is spelled as in `names`."""
    spellings = {name.lower(): name for name in names}
    groups = groupby(datasets, lambda dataset: str(dataset["schema_name"]).lower())
    return [(spellings.get(key, key), list(group)) for key, group in groups]


async def list_namespaces(api: ApiClient) -> list[str]:
    """List the namespaces that have datasets, with one request per namespace."""
    namespaces: dict[str, str] = {}
    last = None
    while len(namespaces) < MAX_NAMESPACES:
        filter_ = None if last is None else f"schema_name gt {odata_string(last)}"
        response = await api.get("/datasets", filter=filter_, orderby="schema_name", select="schema_name", top=1)
        if not response["value"]:
            break
        last = response["value"][0]["schema_name"]
        namespaces.setdefault(last.lower(), last)
    return [namespaces[key] for key in sorted(namespaces)]


@page("/datasets", "Datasets")
async def datasets(session: PageSession, schema: str = "", words: str = "", page: str = "") -> None:
    async def create() -> None:
        if dataset := await upload.create_dataset(session):
            ui.navigate.to(f"/datasets/{path_segment(dataset['name'])}")

    with heading("Datasets"):
        if session.has_role(Role.DEVELOPER):
            ui.button("New dataset", icon="add", on_click=single_flight(create)).props("unelevated no-caps")
    show_role_note(session, {"create": Role.DEVELOPER}, "datasets")
    names = await list_namespaces(session.api)
    if not names:
        _show_empty(session, single_flight(create))
        return
    chosen = next((name for name in names if name.lower() == schema.lower()), None)
    params = DatasetSearchParams(_SELECT, words, parse_page_number(page), chosen)
    results = SearchList(
        session, "/datasets", "/datasets", params, partial(_fill, names), page_rows=PAGE_DATASETS, label="Search names"
    )
    if len(names) > 1:
        with results.toolbar:
            choice = ui.select([_ALL, *names], value=chosen or _ALL, label="Namespace")
            choice.props("outlined dense options-dense").classes("w-full max-w-56")
            choice.on_value_change(
                show_errors(lambda: results.show(namespace=None if choice.value == _ALL else choice.value))
            )
    await results.show()


def _fill(names: Sequence[str], _params: DatasetSearchParams, rows: SearchRows) -> None:
    if not rows:
        empty_state("No datasets match. Try fewer words or another namespace.")
    for namespace, datasets in group_by_namespace(rows, names):
        subheading(namespace).classes("break-anywhere")
        table = show_table(_COLUMNS, datasets, name=f"Datasets of {namespace}")
        table.classes("[&_table]:table-fixed [&_table]:min-w-[44rem] [&_td]:whitespace-normal! [&_td]:wrap-anywhere")
        for column, width in zip(table.columns, _WIDTHS, strict=True):
            column["headerStyle"] = f"width: {width}"


def _show_empty(session: PageSession, create: Callable[[], Any]) -> None:
    if session.has_role(Role.DEVELOPER):
        message = "No datasets yet. Create one from a CSV, JSON, Parquet or Arrow file."
        empty_state(message, "New dataset", create)
    else:
        empty_state("No datasets yet.")
