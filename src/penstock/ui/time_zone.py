"""The time zone of the browser, for local times beside UTC."""

import re
from contextlib import suppress
from datetime import tzinfo
from zoneinfo import ZoneInfo

from nicegui import app, ui

from penstock.ui import formatting

_ZONE_KEY = "time_zone"
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+/-]{1,64}")
_BROWSER_SECONDS = 10.0  # time for the browser to answer; without an answer, times are in UTC only


async def load_time_zone() -> None:
    """Ask the browser for its time zone, once for each tab."""
    if _ZONE_KEY in app.storage.tab:
        return
    with suppress(TimeoutError):
        script = "return Intl.DateTimeFormat().resolvedOptions().timeZone"
        app.storage.tab[_ZONE_KEY] = await ui.run_javascript(script, timeout=_BROWSER_SECONDS)


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
    return formatting.format_timestamp(text, parse_zone(app.storage.tab.get(_ZONE_KEY)))
