"""Estimate the values and the memory of a JSON text before it is parsed."""

from dataclasses import dataclass

import numpy as np

from penstock.errors import Invalid

MAX_VALUES = 500_000  # of one request

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
    return estimate_json(body).values > max_values and estimate_json(_without_strings(body)).values > max_values


def _without_strings(body: bytes) -> bytes:
    """Return a JSON text without the characters of its strings, in a few copies of the text and no objects."""
    text = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    quotes = np.cumsum(text == ord('"'), dtype=np.uint8)  # an odd number of quotes precedes a character of a string
    return bytes(text[quotes & 1 == 0])
