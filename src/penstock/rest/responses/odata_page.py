"""OData responses of searches: a page of a collection, or the number of its items."""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
    entity_set: odata.EntitySet,
    search: Callable[[odata.QueryOptions], SearchPage[T]],
    as_json: Callable[[T], dict[str, Any]],
    as_text: Callable[[T], str] | None = None,
) -> Response:
    """Search with the OData query options of a request and return a page of items.

    Args:
        request: the request
        entity_set: the searched collection
        search: executes the search
        as_json: converts an item to JSON members
        as_text: returns the serialized JSON of an item, if that is faster than to serialize it
    """
    pairs = request.query_params.multi_items()
    options = _parse_options(request, entity_set)
    page = search(options)
    head: dict[str, Any] = {"@odata.context": odata.collection_context(entity_set.name, options.select)}
    if page.count is not None:
        head["@odata.count"] = page.count
    next_query = odata.next_page(pairs, options, page.next_key, len(page.items))
    tail = {"@odata.nextLink": f"{request.url.path}?{next_query}"} if next_query else {}
    headers = preference_headers(preferred_page_size(request))
    if as_text and not options.select:
        return media_types.spliced_json_response(head, "value", map(as_text, page.items), tail, headers)
    value = [_select_members(as_json(item), options.select) for item in page.items]
    return media_types.json_response({**head, "value": value, **tail}, headers=headers)


def count_response(
    request: Request, entity_set: odata.EntitySet, search: Callable[[odata.QueryOptions], SearchPage[T]]
) -> Response:
    """Return the number of items that match `$filter` and `$search`, as text. Other options have no effect."""
    options = _parse_options(request, entity_set)
    page = search(replace(options, orderby=(), top=0, skip=0, after=None, count=True))
    return Response(str(page.count), media_type=media_types.TEXT)


def _parse_options(request: Request, entity_set: odata.EntitySet) -> odata.QueryOptions:
    return odata.options(
        request.query_params.multi_items(),
        entity_set.fields,
        default_top=DEFAULT_SEARCH_ITEMS,
        max_top=MAX_SEARCH_ITEMS,
        selectable=tuple(entity_set.selectable),
        preferred_page=preferred_page_size(request),
    )


def _select_members(item: dict[str, Any], select: Sequence[str] | None) -> dict[str, Any]:
    return {name: item[name] for name in select if name in item} if select else item
