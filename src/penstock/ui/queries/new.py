"""New query page: an SQL editor with an example and the save form."""

from penstock.core.caller import Role
from penstock.core.names import DatasetName
from penstock.errors import Invalid
from penstock.ui.elements import heading
from penstock.ui.layout import page
from penstock.ui.queries.save_form import show_editor
from penstock.ui.session import PageSession

_EXAMPLE = "SELECT 'Hello' AS greeting, 42 AS answer\n"


@page("/queries/new", "New query")
async def new(session: PageSession, dataset: str = "", version: str = "") -> None:
    """Show the page. `dataset` and `version` choose the data of the example."""
    heading("New query" if session.has_role(Role.DEVELOPER) else "Try SQL", parent=("Queries", "/queries"))
    if not dataset:
        datasets = (await session.api.get("/datasets", orderby="name", top=1, select="name"))["value"]
        dataset = datasets[0]["name"] if datasets else ""
    await show_editor(session, None, example_sql(dataset, version))


def example_sql(dataset: str, version: str = "") -> str:
    """Return SQL that reads a dataset, by default at its newest version. Invalid names do not get into the SQL."""
    try:
        name = DatasetName.parse(dataset)
    except Invalid:
        return _EXAMPLE
    version_clause = f" AT (VERSION => {int(version)})" if version.isascii() and version.isdigit() else ""
    return f"SELECT *\nFROM {name}{version_clause}\nLIMIT 100\n"
