"""Decide from which pages of a browser a server accepts requests that carry no token of their own."""

import re
from collections.abc import Mapping

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")  # names that no other site can have
_OWN_SITES = ("same-origin", "none")  # values of Sec-Fetch-Site: the server's own page, or the user
_READING_METHODS = ("GET", "HEAD")
_HOST = re.compile(r"(?:\[([0-9a-f:]+)\]|([a-z0-9.-]+))(?::[0-9]*)?", re.IGNORECASE)  # with a port or without
_ORIGIN = re.compile(r"https?://([^/?#@]+)", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """Return whether a Host header names the loopback address."""
    match = _HOST.fullmatch(host)
    return match is not None and (match[1] or match[2]).lower() in LOOPBACK_HOSTS


def is_cross_site(method: str, headers: Mapping[str, str]) -> bool:
    """Return whether a page of another origin caused a request. Opening a link to a page or a resource is allowed.

    Args:
        method: the HTTP method; GET for a WebSocket
        headers: the request headers by lower-case name
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None:
        match = _ORIGIN.fullmatch(origin)
        if match is None or match[1] != headers.get("host"):
            return True
    is_navigation = method in _READING_METHODS and headers.get("sec-fetch-mode") == "navigate"
    return site is not None and site not in _OWN_SITES and not is_navigation
