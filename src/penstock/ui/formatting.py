"""Numbers, sizes, moments and values as people read them."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

LONGEST_CELL = 200  # characters of a value in a table
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_NUMBERS = ("int", "uint", "float", "double", "halffloat")
_AGES = ((60, "second"), (3600, "minute"), (86_400, "hour"), (30 * 86_400, "day"))


def count(number: float | None, thing: str = "") -> str:
    """`1,204 rows`, `1 row`."""
    if number is None:
        return "–"
    plural = "" if number == 1 or not thing else "s"
    return f"{number:,} {thing}{plural}".rstrip()


def size(bytes_: float | None) -> str:
    """`1.2 KB`."""
    if bytes_ is None:
        return "–"
    amount, unit = float(bytes_), 0
    while amount >= 1000 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 or amount >= 100 else f"{amount:.1f} {_UNITS[unit]}"


def moment(text: str | None) -> datetime | None:
    """An instant of the API's."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def when(text: str | None) -> str:
    """`31 Jan 2026, 10:30 UTC`."""
    at = moment(text)
    return f"{at.day} {at:%b %Y, %H:%M} UTC" if at else "–"


def ago(text: str | None, now: datetime | None = None) -> str:
    """`3 minutes ago`, for a month; then the day."""
    at = moment(text)
    if at is None:
        return "–"
    seconds = max(((now or datetime.now(UTC)) - at).total_seconds(), 0)
    if seconds < 10:
        return "just now"
    each = 1
    for most, unit in _AGES:
        if seconds < most:
            return f"{count(int(seconds // each), unit)} ago"
        each = most
    return f"{at.day} {at:%b %Y}"


def duration(start: str | None, end: str | None, now: datetime | None = None) -> str:
    """`850 ms`, `2.4 s`, `3 min 20 s`; until now where it has not ended."""
    begun = moment(start)
    if begun is None:
        return "–"
    return seconds(((moment(end) or now or datetime.now(UTC)) - begun).total_seconds())


def seconds(number: float) -> str:
    if number < 1:
        return f"{number * 1000:.0f} ms"
    if number < 60:
        return f"{number:.1f} s"
    return f"{int(number // 60)} min {int(number % 60)} s"


def cell(value: Any) -> str:
    """A value in a table: short, and never empty where there is none."""
    return cut(whole(value), LONGEST_CELL)


def whole(value: Any) -> str:
    """A value as text, however long it is."""
    if value is None:
        return "∅"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _nested(value) if isinstance(value, list | dict) else _plain(value)


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def sentence(text: str) -> str:
    """What the service says, as a sentence: with a capital, unless a name comes first, and a full stop."""
    first = text.partition(" ")[0].rstrip(",:;")
    begun = text[:1].upper() + text[1:] if first.isalpha() else text
    return begun if begun.endswith((".", "!", "?", "…")) else f"{begun}."


def _plain(value: Any) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _nested(value: Any) -> str:
    """Much as JSON has it, with numbers as exact as they are."""
    match value:
        case list():
            return f"[{', '.join(map(_nested, value))}]"
        case dict():
            return "{" + ", ".join(f"{name}: {_nested(each)}" for name, each in value.items()) + "}"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
    return _plain(value)


def is_number(type_: Any) -> bool:
    """Has a column of this type numbers in it, which are shown at the right?"""
    return "decimal" in type_ if isinstance(type_, dict) else str(type_).startswith(_NUMBERS)


def type_name(type_: Any) -> str:
    """A column's type as the API tells it: `int64`, `decimal(12, 2)`, `list of string`, `{a: int64}`."""
    match type_:
        case str():
            return type_
        case {"decimal": [precision, scale]}:
            return f"decimal({precision}, {scale})"
        case {"list": item}:
            return f"list of {type_name(item)}"
        case {"struct": members}:
            return "{" + ", ".join(f"{name}: {type_name(each)}" for name, each in members) + "}"
        case _:
            return str(type_)
