"""Format counts, sizes and values for people."""

from typing import Any

_MAX_VALUE_CHARACTERS = 200


def format_count(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 row", "2,000 rows". The plural is the noun with an s unless it is passed."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_bytes(size: float) -> str:
    """Return a size in bytes with a decimal unit: "12 bytes", "3.4 MB"."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def format_value(value: Any) -> str:
    """Return a value or an Arrow type as text of at most 200 characters; the type of a struct can have megabytes."""
    text = str(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[: _MAX_VALUE_CHARACTERS - 1]}…"
