"""Parse the conditional request headers If-Match and If-None-Match (RFC 9110)."""

import re

from fastapi import Request

from penstock.errors import Invalid
from penstock.service.registry.preconditions import VersionPrecondition

_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_ETAG = re.compile(r'[ \t]*(?:(W/)?"([\x21\x23-\x7e\x80-\xff]*)")?[ \t]*(?:,|\Z)')  # a list may have empty elements


def if_match(request: Request) -> VersionPrecondition | None:
    """Return the versions that the If-Match header allows, or None without the header.

    The comparison is strong: a weak ETag matches no version, and neither does an ETag of another kind of entity.

    Raises:
        Invalid: the header is neither `*` nor a list of ETags
    """
    header = _header(request, "if-match")
    if header is None:
        return None
    if header.strip() == "*":
        return VersionPrecondition(None, from_header=True)
    if not (tags := _parse_etags(header)):
        raise Invalid("bad_condition", header="If-Match")
    versions = (int(tag) for is_weak, tag in tags if not is_weak and _VERSION.fullmatch(tag))
    return VersionPrecondition(tuple(versions), from_header=True)


def is_not_modified(request: Request, etag: str) -> bool:
    """Return whether the If-None-Match header names the current ETag, so that the client has the entity already.

    The comparison is weak. A malformed header is ignored.
    """
    header = _header(request, "if-none-match")
    if header is None:
        return False
    return header.strip() == "*" or etag in [f'"{tag}"' for _, tag in _parse_etags(header)]


def _header(request: Request, name: str) -> str | None:
    """Return the value of a header whose lines are parts of one list."""
    lines = request.headers.getlist(name)
    return ",".join(lines) if lines else None


def _parse_etags(header: str) -> list[tuple[bool, str]]:
    """Return for each ETag of a list whether it is weak, and its text without quotes; none if the list is malformed."""
    tags, position = list[tuple[bool, str]](), 0
    while position < len(header):
        if not (match := _ETAG.match(header, position)):
            return []
        if match[2] is not None:
            tags.append((match[1] is not None, match[2]))
        position = match.end()
    return tags
