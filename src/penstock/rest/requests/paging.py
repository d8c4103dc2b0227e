"""Pages of lists that have no filter: `$top`, `$skip`, `$skiptoken` and the preferred page size."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from penstock.core import odata
from penstock.rest.requests.preferences import preferred_page_size

POSITION_OPTIONS = frozenset({"$top", "$skip", "$skiptoken"})


def page_options(request: Request, *, default_items: int, max_items: int) -> odata.QueryOptions:
    """Parse the options of a page. The route declares which options it accepts.

    Args:
        request: the request
        default_items: page size without `$top` and without a preference
        max_items: maximum page size
    """
    pairs = [pair for pair in request.query_params.multi_items() if pair[0] in POSITION_OPTIONS]
    preferred = preferred_page_size(request)
    return odata.options(pairs, {}, default_top=default_items, max_top=max_items, preferred_page=preferred)


def next_page_link(
    request: Request, options: odata.QueryOptions, key: int, count: int, changes: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the member with the link of the next page; nothing if `$top` allows no more items.

    Args:
        request: the request
        options: the options of this page
        key: position after the last item of this page
        count: number of items of this page
        changes: parameters that the next request has instead of those of this one
    """
    changes = changes or {}
    pairs = [pair for pair in request.query_params.multi_items() if pair[0] not in changes]
    pairs += [(name, str(value)) for name, value in changes.items()]
    next_query = odata.next_page(pairs, options, (key,), count)
    return {"@odata.nextLink": f"{request.url.path}?{next_query}"} if next_query else {}
