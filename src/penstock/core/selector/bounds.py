"""Derive intervals per column from a filter expression, to skip files by their statistics."""

from collections.abc import Callable
from functools import reduce
from math import ceil, floor
from typing import Any

import pyarrow as pa

from penstock.core.selector.bind import INTEGERS
from penstock.core.selector.nodes import (
    And,
    Between,
    Cast,
    Column,
    Compare,
    Comparison,
    In,
    Interval,
    Like,
    Literal,
    Node,
    Or,
)

FLIPPED = {
    Comparison.LT: Comparison.GT,
    Comparison.LE: Comparison.GE,
    Comparison.GT: Comparison.LT,
    Comparison.GE: Comparison.LE,
}


def bounds(node: Node) -> dict[str, Interval]:
    """Return an interval for each column that a bound condition restricts.

    The interval contains the column's value in every matching row, and may be wider than necessary. NOT restricts
    nothing: NaN satisfies `NOT x < 1` and lies in no interval.
    """
    match node:
        case And(parts):
            return reduce(_intersect, map(bounds, parts))
        case Or(parts):
            return reduce(_union, map(bounds, parts))
        case Column():
            return _interval(node, True, True)
        case Compare(op, Literal() as value, operand) if not isinstance(operand, Literal):
            return bounds(Compare(FLIPPED.get(op, op), operand, value))
        case Compare(Comparison.EQ, operand, Literal(value)):
            return _interval(operand, value, value)
        case Compare(Comparison.LT | Comparison.LE, operand, Literal(value)):
            return _interval(operand, None, value)
        case Compare(Comparison.GT | Comparison.GE, operand, Literal(value)):
            return _interval(operand, value, None)
        case Between(operand, low, high):
            return _intersect(
                bounds(Compare(Comparison.GE, operand, low)), bounds(Compare(Comparison.LE, operand, high))
            )
        case In(operand, items) if values := [item.value for item in items if item.value is not None]:
            return _interval(operand, min(values), max(values))
        case Like(operand, (str() as prefix,)):
            return _interval(operand, prefix, prefix)
        case Like(operand, (str() as prefix, *_)):
            last = prefix[-1]  # the next prefix of this length is above all values with this prefix
            after = prefix[:-1] + chr(ord(last) + 1) if last < "\ud7ff" else None
            return _interval(operand, prefix, after)
    return {}


def _interval(operand: Node, low: Any, high: Any) -> dict[str, Interval]:
    match operand:
        case Cast(Column(_, type) as column, wider) if pa.types.is_floating(type) or not pa.types.is_floating(wider):
            operand = column  # such casts preserve the value; an integer cast to double may move past the end
    if not isinstance(operand, Column):
        return {}
    if operand.type in INTEGERS:  # ends must be 64-bit integers too, whatever the literals were
        low, high = _clamp(low, ceil), _clamp(high, floor)
    return {operand.name: Interval(low, high)}


def _clamp(end: Any, round_to_integer: Callable[[Any], int]) -> int | None:
    return None if end is None else min(max(round_to_integer(end), -(2**63)), 2**63 - 1)


def _intersect(left: dict[str, Interval], right: dict[str, Interval]) -> dict[str, Interval]:
    shared = {}
    for name in left.keys() & right.keys():
        first, second = left[name], right[name]
        low = max((end for end in (first.low, second.low) if end is not None), default=None)
        high = min((end for end in (first.high, second.high) if end is not None), default=None)
        shared[name] = Interval(low, high)
    return left | right | shared


def _union(left: dict[str, Interval], right: dict[str, Interval]) -> dict[str, Interval]:
    shared = {}
    for name in left.keys() & right.keys():
        first, second = left[name], right[name]
        low = None if first.low is None or second.low is None else min(first.low, second.low)
        high = None if first.high is None or second.high is None else max(first.high, second.high)
        shared[name] = Interval(low, high)
    return shared
