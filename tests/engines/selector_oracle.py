"""Reference implementation of filter expressions in plain Python, over unbound trees.

It shares no code with `bind` or with any engine. Exact numbers are fractions, so nothing is rounded and nothing
overflows; the type of a number is read from the tree and not from the value, because NULL has no type.
"""

import operator
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from penstock.core.selector import (
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Column,
    Compare,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Wildcard,
)

Row = Mapping[str, Any]

COMPARE = {
    Comparison.EQ: operator.eq,
    Comparison.NE: operator.ne,
    Comparison.LT: operator.lt,
    Comparison.LE: operator.le,
    Comparison.GT: operator.gt,
    Comparison.GE: operator.ge,
}


def truth(node: Node, row: Row, doubles: frozenset[str]) -> bool | None:
    """Return the value of the condition for one row. `doubles`: names of the floating-point columns."""
    match node:
        case Compare(op, left, right):
            return _compare(op, *_values((left, right), row, doubles))
        case Between(operand, low, high):
            value, low_value, high_value = _values((operand, low, high), row, doubles)
            return _all([_compare(Comparison.GE, value, low_value), _compare(Comparison.LE, value, high_value)])
        case In(operand, items):
            value, *others = _values((operand, *items), row, doubles)
            return _not(_all([_not(_compare(Comparison.EQ, value, other)) for other in others]))
        case Like(operand, pattern):
            text = _value(operand, row, doubles)
            return None if text is None else _like(text, pattern)
        case IsNull(operand):
            return _value(operand, row, doubles) is None
        case Not(operand):
            return _not(truth(operand, row, doubles))
        case And(parts):
            return _all([truth(part, row, doubles) for part in parts])
        case Or(parts):
            return _not(_all([_not(truth(part, row, doubles)) for part in parts]))
    value: bool | None = _value(node, row, doubles)
    return value


def _value(node: Node, row: Row, doubles: frozenset[str]) -> Any:
    match node:
        case Column(name):
            return _exact(row[name])
        case Literal(value):
            return _exact(value)
        case Arithmetic(op, left, right):
            a, b = _values((left, right), row, doubles, as_doubles=op is ArithmeticOperator.DIVIDE)
            return None if a is None or b is None else _calculate(op, a, b)
    return truth(node, row, doubles)


def _values(nodes: tuple[Node, ...], row: Row, doubles: frozenset[str], as_doubles: bool = False) -> list[Any]:
    """Return the values, converted to doubles if one of them is a double."""
    values = [_value(node, row, doubles) for node in nodes]
    if not as_doubles and not any(is_double(node, doubles) for node in nodes):
        return values
    return [None if value is None else float(value) for value in values]


def is_double(node: Node, doubles: frozenset[str]) -> bool:
    match node:
        case Column(name):
            return name in doubles
        case Literal(value):
            return isinstance(value, float)
        case Arithmetic(op, left, right):
            return op is ArithmeticOperator.DIVIDE or is_double(left, doubles) or is_double(right, doubles)
    return False


def _exact(value: Any) -> Any:
    return Fraction(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value


def _calculate(op: ArithmeticOperator, left: Any, right: Any) -> Any:
    match op:
        case ArithmeticOperator.ADD:
            return left + right
        case ArithmeticOperator.SUBTRACT:
            return left - right
        case ArithmeticOperator.MULTIPLY:
            return left * right
        case ArithmeticOperator.DIVIDE:
            return None if right == 0 else left / right


def _compare(op: Comparison, left: Any, right: Any) -> bool | None:
    return None if left is None or right is None else bool(COMPARE[op](left, right))


def _all(truths: list[bool | None]) -> bool | None:
    return False if False in truths else None if None in truths else True


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _like(text: str, pattern: tuple[str | Wildcard, ...]) -> bool:
    """Match LIKE by tracking the set of positions that the pattern can have reached."""
    positions = {0}
    for part in pattern:
        match part:
            case Wildcard.ANY:
                positions = set(range(min(positions), len(text) + 1)) if positions else positions
            case Wildcard.ONE:
                positions = {end + 1 for end in positions if end < len(text)}
            case str():
                positions = {end + len(part) for end in positions if text.startswith(part, end)}
    return len(text) in positions
