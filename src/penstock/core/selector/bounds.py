"""What must hold of a column, whatever else the condition says."""

from collections.abc import Callable
from functools import reduce
from math import ceil, floor
from typing import Any

import pyarrow as pa

from penstock.core.selector.bind import INTEGERS
from penstock.core.selector.nodes import (And, Between, Cast, Column, Compare, Comparison, In, Interval, Like, Literal, Node, Or)

FLIPPED = {
    Comparison.LT: Comparison.GT,
    Comparison.LE: Comparison.GE,
    Comparison.GT: Comparison.LT,
    Comparison.GE: Comparison.LE,
}


def bounds(node: Node) -> dict[str, Interval]:
    """For each column that a bound condition confines: an interval that holds its value in every row that is kept.

    It may hold more. NOT confines nothing: NaN passes `NOT x < 1` and lies in no interval.
    """
    match node:
        case And(parts):
            return reduce(_both, map(bounds, parts))
        case Or(parts):
            return reduce(_either, map(bounds, parts))
        case Column():
            return _within(node, True, True)
        case Compare(op, Literal() as value, operand) if not isinstance(operand, Literal):
            return bounds(Compare(FLIPPED.get(op, op), operand, value))
        case Compare(Comparison.EQ, operand, Literal(value)):
            return _within(operand, value, value)
        case Compare(Comparison.LT | Comparison.LE, operand, Literal(value)):
            return _within(operand, None, value)
        case Compare(Comparison.GT | Comparison.GE, operand, Literal(value)):
            return _within(operand, value, None)
        case Between(operand, low, high):
            return _both(bounds(Compare(Comparison.GE, operand, low)), bounds(Compare(Comparison.LE, operand, high)))
        case In(operand, items) if values := [item.value for item in items if item.value is not None]:
            return _within(operand, min(values), max(values))
        case Like(operand, (str() as prefix,)):
            return _within(operand, prefix, prefix)
        case Like(operand, (str() as prefix, *_)):
            last = prefix[-1]  # the next prefix of this length lies above all that begin so
            after = prefix[:-1] + chr(ord(last) + 1) if last < "\ud7ff" else None
            return _within(operand, prefix, after)
    return {}


def _within(operand: Node, low: Any, high: Any) -> dict[str, Interval]:
    match operand:
        case Cast(Column(_, type) as column, wider) if pa.types.is_floating(type) or not pa.types.is_floating(wider):
            operand = column  # such casts keep the value; an integer read as a double may move past the end
    if not isinstance(operand, Column):
        return {}
    if operand.type in INTEGERS:  # ends that are integers of 64 bits too, whatever the literals were
        low, high = _clamped(low, ceil), _clamped(high, floor)
    return {operand.name: Interval(low, high)}


def _clamped(end: Any, whole: Callable[[Any], int]) -> int | None:
    return None if end is None else min(max(whole(end), -(2**63)), 2**63 - 1)


def _both(left: dict[str, Interval], right: dict[str, Interval]) -> dict[str, Interval]:
    shared = {}
    for name in left.keys() & right.keys():
        a, b = left[name], right[name]
        low = max((end for end in (a.low, b.low) if end is not None), default=None)
        high = min((end for end in (a.high, b.high) if end is not None), default=None)
        shared[name] = Interval(low, high)
    return left | right | shared


def _either(left: dict[str, Interval], right: dict[str, Interval]) -> dict[str, Interval]:
    shared = {}
    for name in left.keys() & right.keys():
        a, b = left[name], right[name]
        low = None if a.low is None or b.low is None else min(a.low, b.low)
        high = None if a.high is None or b.high is None else max(a.high, b.high)
        shared[name] = Interval(low, high)
    return shared
