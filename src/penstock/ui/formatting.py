"""Format numbers, sizes, timestamps and values for users."""

import json
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from typing import Any

from penstock.core import formatting

MAX_CELL_CHARS = 200  # characters of a value in a table
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_NUMBERS = ("int", "uint", "float", "double", "halffloat")
_AGES = ((60, "second"), (3600, "minute"), (86_400, "hour"), (30 * 86_400, "day"))


def format_count(number: float | None, noun: str = "", plural: str = "") -> str:
    """Format a number, with its noun if there is one: `1,204 rows`, `1 row`; an unknown number is `–`."""
    if number is None:
        return "–"
    return formatting.format_count(number, noun, plural) if noun else f"{number:,}"


def format_share(part: int, whole: int) -> str:
    """Format a share: ` (12 %)`, or an empty text if it is zero."""
    if not part or not whole:
        return ""
    percent = 100 * part / whole
    return f" ({percent:.0f} %)" if percent >= 1 else " (< 1 %)"


def format_axis_number(value: Decimal | float, max_chars: int) -> str:
    """Format the number of an axis: `20,000`. A number with more characters is rounded to six digits."""
    text = f"{value.normalize():,f}" if isinstance(value, Decimal) else f"{value:,}"
    return text if len(text) <= max_chars else f"{float(value):.6g}"


def format_size(bytes_: float | None) -> str:
    """Format a number of bytes: `1.2 KB`."""
    if bytes_ is None:
        return "–"
    amount, unit = float(bytes_), 0
    while round(amount) >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    digits = 0 if unit == 0 or round(amount, 1) >= 100 else 1
    return f"{amount:,.{digits}f} {_UNITS[unit]}"


def parse_timestamp(text: str | None) -> datetime | None:
    """Parse a timestamp of the API."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def format_timestamp(text: str | None, zone: tzinfo | None = None) -> str:
    """Format a timestamp: `31 Jan 2026, 10:30 UTC`; in another time zone `31 Jan 2026, 23:30 UTC (1 Feb, 00:30 local)`."""
    at = parse_timestamp(text)
    if at is None:
        return "–"
    utc, local = at.astimezone(UTC), at.astimezone(zone or UTC)
    in_utc = f"{utc.day} {utc:%b %Y, %H:%M} UTC"
    if utc.utcoffset() == local.utcoffset():
        return in_utc
    day = "" if utc.date() == local.date() else f"{local.day} {local:%b}, "
    return f"{in_utc} ({day}{local:%H:%M} local)"


def format_age(text: str | None, now: datetime | None = None) -> str:
    """Format the age of a timestamp: `3 minutes ago`; after 30 days, its date."""
    at = parse_timestamp(text)
    if at is None:
        return "–"
    seconds = max(((now or datetime.now(UTC)) - at).total_seconds(), 0)
    if seconds < 10:
        return "just now"
    unit_seconds = 1
    for limit, unit in _AGES:
        if seconds < limit:
            return f"{format_count(int(seconds // unit_seconds), unit)} ago"
        unit_seconds = limit
    return f"{at.day} {at:%b %Y}"


def format_duration(start: str | None, end: str | None, now: datetime | None = None) -> str:
    """Format the time between two timestamps: `850 ms`, `2.4 s`, `3 min 20 s`, `1 h 5 min`. Without an end, until now."""
    begun = parse_timestamp(start)
    if begun is None:
        return "–"
    return format_seconds(((parse_timestamp(end) or now or datetime.now(UTC)) - begun).total_seconds())


def format_seconds(number: float) -> str:
    """Format a duration: `850 ms`, `2.4 s`, `3 min 20 s`, `1 h 5 min`."""
    if round(number * 1000) < 1000:
        return f"{number * 1000:.0f} ms"
    if round(number, 1) < 60:
        return f"{number:.1f} s"
    minutes, seconds = divmod(round(number), 60)
    hours, minutes_of_hour = divmod(minutes, 60)
    return f"{hours:,} h {minutes_of_hour} min" if hours else f"{minutes} min {seconds} s"


def format_cell(value: Any) -> str:
    """Format a value for a table cell, cut to `MAX_CELL_CHARS`."""
    return truncate(format_value(value), MAX_CELL_CHARS)


def format_value(value: Any) -> str:
    """Format a value with its full length. NULL is shown as `∅`."""
    if value is None:
        return "∅"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _nested(value) if isinstance(value, list | dict) else _plain(value)


def truncate(text: str, max_chars: int) -> str:
    """Cut a text to a number of characters; the last one is then `…`."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def to_sentence(text: str) -> str:
    """Add a full stop to a message, and a capital letter unless it begins with a name."""
    first = text.partition(" ")[0].rstrip(",:;")
    begun = text[:1].upper() + text[1:] if first.isalpha() else text
    return begun if begun.endswith((".", "!", "?", "…")) else f"{begun}."


def _plain(value: Any) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _nested(value: Any) -> str:
    """Format a nested value like JSON, with exact numbers."""
    match value:
        case list():
            return f"[{', '.join(map(_nested, value))}]"
        case dict():
            return "{" + ", ".join(f"{name}: {_nested(member)}" for name, member in value.items()) + "}"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
    return _plain(value)


def is_number(type_: Any) -> bool:
    """Return whether a column of this type holds numbers."""
    return "decimal" in type_ if isinstance(type_, dict) else str(type_).startswith(_NUMBERS)


def format_type(type_: Any) -> str:
    """Format a column type of the API: `int64`, `decimal(12, 2)`, `list of string`, `{a: int64}`."""
    match type_:
        case str():
            return type_
        case {"decimal": [precision, scale]}:
            return f"decimal({precision}, {scale})"
        case {"list": item}:
            return f"list of {format_type(item)}"
        case {"struct": members}:
            return "{" + ", ".join(f"{name}: {format_type(member)}" for name, member in members) + "}"
        case _:
            return str(type_)
