"""The time zone of the browser, for local times beside UTC.

The script of all pages stores its name in a cookie before the page opens its socket.
"""

import re
from datetime import tzinfo
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from nicegui import ui

from penstock.ui import formatting

COOKIE_NAME = "penstock_time_zone"
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+/-]{1,64}")


def cookie_value(environ: dict[str, Any]) -> str | None:
    """Return the name of the time zone in the cookies of a request; None if there is none."""
    cookies = SimpleCookie()
    try:
        cookies.load(environ.get("HTTP_COOKIE", ""))
    except CookieError:
        return None
    return unquote(cookies[COOKIE_NAME].value) if COOKIE_NAME in cookies else None


def parse_zone(name: object) -> tzinfo | None:
    """Return the time zone of a name that the browser sent; None if it is unknown."""
    if not isinstance(name, str) or not _ZONE_NAME.fullmatch(name):
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):  # malformed, a folder, or not in the database of the server
        return None


def format_timestamp(text: str | None) -> str:
    """Format a timestamp in UTC and in the time zone of the browser."""
    zone = parse_zone(cookie_value(ui.context.client.environ or {}))  # of the request that opened the socket
    return formatting.format_timestamp(text, zone)
