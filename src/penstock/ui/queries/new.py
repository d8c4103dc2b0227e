"""A new query: SQL to try, with something to begin with, and the form that keeps it."""

from penstock.core.caller import Role
from penstock.core.names import DatasetName
from penstock.errors import Invalid
from penstock.ui.layout import Visit, heading, page
from penstock.ui.queries.save_form import write

_EXAMPLE = "SELECT 'Hello' AS greeting, 42 AS answer\n"


@page("/queries/new", "New query")
async def new(visit: Visit, dataset: str = "", version: str = "") -> None:
    """`dataset` and `version`: what to begin with."""
    heading("New query" if visit.may(Role.DEVELOPER) else "Try SQL", above=("Queries", "/queries"))
    if not dataset:
        found = (await visit.api.get("/datasets", orderby="name", top=1, select="name"))["value"]
        dataset = found[0]["name"] if found else ""
    await write(visit, None, first_sql(dataset, version))


def first_sql(dataset: str, version: str = "") -> str:
    """All of a dataset, at the newest version unless another is given. What is no name does not get into the SQL."""
    try:
        name = DatasetName.parse(dataset)
    except Invalid:
        return _EXAMPLE
    at = f" AT (VERSION => {int(version)})" if version.isascii() and version.isdigit() else ""
    return f"SELECT *\nFROM {name}{at}\nLIMIT 100\n"
