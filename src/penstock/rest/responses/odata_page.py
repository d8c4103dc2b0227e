"""A page of things that were searched for, as OData answers it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response

from penstock.catalog.odata_sql import Page
from penstock.core import odata
from penstock.rest.requests import media_types as media
from penstock.rest.openapi import examples as samples
from penstock.rest.openapi import schemas as shapes
from penstock.rest.openapi.document import query

TOP, MOST = 50, 200  # on a page, unless asked for, and at most

T = TypeVar("T")


def found(
    request: Request,
    fields: odata.Fields,
    selectable: Sequence[str],
    search: Callable[[odata.Options], Page[T]],
    facts: Callable[[T], dict[str, Any]],
) -> Response:
    """What the query of a request asks for. `selectable`: what is shown besides the fields that can be searched."""
    pairs = request.query_params.multi_items()
    options = odata.options(pairs, fields, default_top=TOP, max_top=MOST, selectable=selectable)
    page = search(options)
    answer: dict[str, Any] = {"@odata.context": f"$metadata#{request.url.path.strip('/')}"}
    if page.count is not None:
        answer["@odata.count"] = page.count
    answer["value"] = [_selected(facts(each), options.select) for each in page.items]
    if page.more and (rest := odata.next_page(pairs, options)):
        answer["@odata.nextLink"] = f"{request.url.path}?{rest}"
    return media.json(answer)


def searching(
    things: str, condition: str, where: str = "the name holds", word: str = "budgets"
) -> list[dict[str, Any]]:
    """The parameters of a search, for the document."""
    return [
        query("$filter", f"Only such {things}.", example=condition),
        query("$orderby", "The order; the newest first unless given.", example="name desc"),
        query("$top", f"How many at most: {TOP} unless given, never more than {MOST}.", kind=shapes.COUNT, example=10),
        samples.SKIP,
        query("$select", "Only these members.", example="id,name"),
        query("$count", "Also say how many there are.", kind=shapes.FLAG, example=True),
        query("$search", f"Words that {where}.", example=word),
    ]


def _selected(facts: dict[str, Any], select: Sequence[str] | None) -> dict[str, Any]:
    """Only these members, as far as it has them; or all."""
    return {name: facts[name] for name in select if name in facts} if select else facts
