"""Parse the preferences of a client in the Prefer header (RFC 7240)."""

import re

from fastapi import Request

# OData 4.0 writes odata.maxpagesize, OData 4.01 also maxpagesize.
_MAX_PAGE_SIZE = re.compile(r'(?:odata\.)?maxpagesize[ \t]*=[ \t]*"?([0-9]{1,9})"?[ \t]*(?:;.*)?', re.IGNORECASE)


def preferred_page_size(request: Request) -> int | None:
    """Return the page size that the client prefers; None without a valid preference, because others are ignored."""
    for preference in ",".join(request.headers.getlist("prefer")).split(","):
        if (match := _MAX_PAGE_SIZE.fullmatch(preference.strip())) and int(match[1]):
            return int(match[1])
    return None


def preference_headers(page_size: int | None) -> dict[str, str]:
    """Return the header that reports the applied preference."""
    return {} if page_size is None else {"preference-applied": f"odata.maxpagesize={page_size}"}
