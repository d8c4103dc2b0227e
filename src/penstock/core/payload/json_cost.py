"""Estimate the values and the memory of a JSON text before it is parsed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.errors import Invalid

MAX_VALUES = 500_000  # of one request

_BLOCK_BYTES = 64 << 10  # of a text whose strings are skipped
_QUOTE = ord('"')

# Memory of parsed values in bytes, measured with CPython 3.11 and rounded up.
_OBJECT_BYTES, _EMPTY_OBJECT_BYTES, _LIST_BYTES, _MEMBER_BYTES, _ITEM_BYTES = 240, 72, 88, 80, 64


@dataclass(frozen=True, slots=True)
class JsonCost:
    values: int  # at most so many values and names of members
    bytes: int  # at most so much memory, including the text itself


def estimate_json(body: bytes) -> JsonCost:
    """Return upper bounds for the number of values in a JSON text and for their memory.

    Only characters are counted, at the speed of memory. Those within strings count as well.
    """
    objects, lists, members, items = (body.count(mark) for mark in (b"{", b"[", b":", b","))
    empty_objects, empty_lists = body.count(b"{}"), body.count(b"[]")
    return JsonCost(
        1 + items + members + (objects - empty_objects) + (lists - empty_lists),  # one more item than commas
        2 * len(body)
        + (objects - empty_objects) * _OBJECT_BYTES
        + empty_objects * _EMPTY_OBJECT_BYTES
        + lists * _LIST_BYTES
        + members * _MEMBER_BYTES
        + items * _ITEM_BYTES,
    )


def check_json_cost(body: bytes, max_values: int = MAX_VALUES) -> JsonCost:
    """Estimate a JSON text.

    Raises:
        Invalid: it has more than `max_values` values (too_many_values)
    """
    if has_more_values(body, max_values):
        raise Invalid("too_many_values", limit=max_values)
    return estimate_json(body)


def has_more_values(body: bytes, max_values: int) -> bool:
    """Return whether a JSON text may have more than `max_values` values, not counting the characters of strings."""
    if estimate_json(body).values <= max_values:
        return False
    values = 1
    for text in _texts_without_strings(body):
        values += estimate_json(text).values - 1
        if values > max_values:
            return True
    return False


def _texts_without_strings(body: bytes) -> Iterator[bytes]:
    """Yield a JSON text in parts without the characters of its strings.

    The parts take little memory beside the text itself, whose memory is counted.
    """
    quotes, open_bracket = 0, b""
    for block in _split_outside_escapes(body):
        text = np.frombuffer(block.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        is_quote = text == _QUOTE
        counts = np.cumsum(is_quote, dtype=np.uint32) + quotes  # odd for the characters of a string
        quotes = (quotes + int(np.count_nonzero(is_quote))) & 1
        part = open_bracket + bytes(text[counts & 1 == 0])
        open_bracket = part[-1:] if part[-1:] in (b"{", b"[") else b""  # an empty object or list is not split
        yield part[: len(part) - len(open_bracket)]
    yield open_bracket


def _split_outside_escapes(body: bytes) -> Iterator[bytes]:
    """Split a text into blocks that do not end within an escape sequence."""
    start = 0
    while start < len(body):
        end = start + _BLOCK_BYTES
        backslashes = 0
        while end - 1 - backslashes >= start and body[end - 1 - backslashes : end - backslashes] == b"\\":
            backslashes += 1
        end += backslashes & 1
        yield body[start:end]
        start = end
