"""OData collection responses of searches."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import Request, Response

from penstock.core import odata
from penstock.core.paging import SearchPage
from penstock.rest.requests import media_types
from penstock.rest.requests.page_limits import DEFAULT_SEARCH_ITEMS, MAX_SEARCH_ITEMS
from penstock.rest.requests.preferences import preference_headers, preferred_page_size

T = TypeVar("T")


def search_response(
    request: Request,
    fields: odata.Fields,
    selectable: Sequence[str],
    search: Callable[[odata.QueryOptions], SearchPage[T]],
    as_json: Callable[[T], dict[str, Any]],
) -> Response:
    """Search with the OData query options of a request and return a page of items.

    Args:
        request: the request
        fields: fields that can be filtered and ordered by
        selectable: members that `$select` may name besides the fields
        search: executes the search
        as_json: converts an item to JSON members
    """
    pairs = request.query_params.multi_items()
    preferred = preferred_page_size(request)
    options = odata.options(
        pairs,
        fields,
        default_top=DEFAULT_SEARCH_ITEMS,
        max_top=MAX_SEARCH_ITEMS,
        selectable=selectable,
        preferred_page=preferred,
    )
    page = search(options)
    body: dict[str, Any] = {"@odata.context": f"$metadata#{request.url.path.strip('/')}"}
    if page.count is not None:
        body["@odata.count"] = page.count
    body["value"] = [_select_members(as_json(item), options.select) for item in page.items]
    if next_query := odata.next_page(pairs, options, page.next_key, len(page.items)):
        body["@odata.nextLink"] = f"{request.url.path}?{next_query}"
    return media_types.json_response(body, headers=preference_headers(preferred))


def _select_members(item: dict[str, Any], select: Sequence[str] | None) -> dict[str, Any]:
    return {name: item[name] for name in select if name in item} if select else item
