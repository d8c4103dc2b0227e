"""OpenAPI parameters that several operations share."""

from typing import Any

from penstock.rest.openapi.builders import header_parameter, query_parameter
from penstock.rest.openapi.schemas.base import COUNT, FLAG
from penstock.rest.requests.page_limits import DEFAULT_SEARCH_ITEMS, MAX_SEARCH_ITEMS

IDEMPOTENCY_KEY = header_parameter(
    "idempotency-key", "Requests with the same key are executed once.", example="import-2026-01-31"
)
IF_MATCH = header_parameter("if-match", "ETag of the version that the change is based on.", example='"1"')
IF_NONE_MATCH = header_parameter("if-none-match", "ETag of the version that the client has.", example='"1"')
VERSION = query_parameter("version", "Version of the dataset. Default: the newest.", schema=COUNT, example=3)
TOP = query_parameter("$top", "Maximum number of items in all pages together.", schema=COUNT, example=50)
SKIP = query_parameter("$skip", "Number of items to skip.", schema=COUNT, example=0)
SKIPTOKEN = query_parameter("$skiptoken", "Position of a page, from a next link.", example="WyJhIixudWxsLDEsWzFdXQ")
PREFER = header_parameter("prefer", "Preferred page size.", example="odata.maxpagesize=20")
ODATA_MAX_VERSION = header_parameter(
    "odata-maxversion", "Highest OData version that the client accepts: 4.0 or higher.", example="4.01"
)


def search_parameters(
    items: str, filter_example: str, searched: str = "the name", search_example: str = "budgets"
) -> list[dict[str, Any]]:
    """Return the OData query options of a search.

    Args:
        items: the plural noun of the items
        filter_example: an example of `$filter`
        searched: which members `$search` looks at
        search_example: an example of `$search`
    """
    return [
        query_parameter("$filter", f"Filter expression for {items}.", example=filter_example),
        query_parameter("$orderby", "Sort order. Default: newest first.", example="name desc"),
        query_parameter(
            "$top",
            f"Maximum number of items in all pages together. A page has {DEFAULT_SEARCH_ITEMS} items without `$top`, and at "
            f"most {MAX_SEARCH_ITEMS}.",
            schema=COUNT,
            example=10,
        ),
        SKIP,
        PREFER,
        query_parameter("$select", "Members to return.", example="id,name"),
        query_parameter("$count", "Also return the number of matches.", schema=FLAG, example=True),
        query_parameter("$search", f"Words to find in {searched}.", example=search_example),
    ]
