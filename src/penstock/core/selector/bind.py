"""A tree with every type settled, or which two types do not go together."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa

from penstock.core.selector.nodes import (MAX_DIGITS, And, Arithmetic, Between, Cast, Column, Compare, In, IsNull, Like, Literal, Node, Not, Operation, Or, walk)
from penstock.errors import Invalid

INTEGERS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}  # with the digits of each, narrowest first
TO_WRITE = {
    pa.bool_(): "write TRUE or FALSE",
    pa.string(): "write text in quotes",
    pa.date32(): "write DATE '2026-01-31'",
    pa.timestamp("us"): "write TIMESTAMP '2026-01-31 10:00:00'",
    pa.timestamp("us", "UTC"): "write TIMESTAMP '2026-01-31 10:00:00Z'",
}


def bind(node: Node, schema: pa.Schema) -> Node:
    """The same condition with a type on every value: where two meet, they have one type, and literals already took it.

    A bound node may be bound again to the same schema; nothing changes.
    """
    types = dict(zip(schema.names, schema.types, strict=True))
    for part, _ in walk(node):
        if isinstance(part, Column) and part.name not in types:
            raise Invalid(
                "no_such_column",
                f"there is no column {part.name!r}; the dataset has {', '.join(types)}",
                column=part.name,
                columns=list(types),
            )
    return _condition(_typed(node, types), "a selector")


def _typed(node: Node, types: dict[str, Any]) -> Node:
    match node:
        case Column(name):
            return Column(name, types[name])
        case Literal(value, type):
            return Literal(value, type or _literal_type(value))
        case Cast(operand, type):
            return Cast(_typed(operand, types), type)
        case Arithmetic(op, left, right):
            return _arithmetic(op, _typed(left, types), _typed(right, types))
        case Compare(op, left, right):
            return Compare(op, *_alike(_typed(left, types), _typed(right, types)))
        case Between(operand, low, high):
            return Between(*_alike(*(_typed(part, types) for part in (operand, low, high))))
        case In(operand, items):
            value, *rest = _alike(*(_typed(part, types) for part in (operand, *items)))
            return In(value, tuple(item for item in rest if isinstance(item, Literal)))
        case Like(operand, pattern):
            value = _typed(operand, types)
            if type_of(value) not in (pa.string(), pa.null()):
                _mistyped(f"LIKE needs text, and {_said(value)}", value)
            return Like(_as(value, pa.string()), pattern)
        case IsNull(operand):
            value = _typed(operand, types)
            return IsNull(_as(value, pa.bool_()) if type_of(value) == pa.null() else value)
        case Not(operand):
            return Not(_condition(_typed(operand, types), "NOT"))
        case And(parts):
            return And(tuple(_condition(_typed(part, types), "AND") for part in parts))
        case Or(parts):
            return Or(tuple(_condition(_typed(part, types), "OR") for part in parts))


def type_of(node: Node) -> Any:
    """The type of a bound node."""
    return node.type if isinstance(node, Column | Literal | Arithmetic | Cast) else pa.bool_()


def _literal_type(value: Any) -> Any:
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():  # the narrowest, so that the other side need not widen
            return next(type for type in INTEGERS if (value ^ (value >> 63)).bit_length() < type.bit_width)
        case Decimal():
            _, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            return _decimal(max(len(digits) + exponent, 0), max(-exponent, 0))
        case float():
            return pa.float64()
        case str():
            return pa.string()
        case datetime():
            return pa.timestamp("us", "UTC" if value.tzinfo else None)
        case date():
            return pa.date32()
    raise TypeError(f"a selector has no literals of {value.__class__.__name__}")


def _condition(node: Node, reader: str) -> Node:
    if type_of(node) not in (pa.bool_(), pa.null()):
        _mistyped(f"{reader} needs a condition, and {_said(node)}", node)
    return _as(node, pa.bool_())


def _alike(*nodes: Node) -> tuple[Node, ...]:
    """The nodes, all read as the one type in which they can be compared."""
    common, first = pa.null(), nodes[0]
    for node in nodes:
        merged = _common(common, type := type_of(node))
        if pa.types.is_nested(type):
            _mistyped(f"only IS NULL and IS NOT NULL can be asked of it: {_said(node)}", node)
        if merged is None:
            _mistyped(f"{_said(first)} and {_said(node)}; they cannot be compared{_advice(first, node)}", first, node)
        if common == pa.null():
            first = node
        common = merged
    return tuple(_as(node, pa.bool_() if common == pa.null() else common) for node in nodes)


def _common(left: Any, right: Any) -> Any:
    """The type that holds the values of both, or None."""
    if left == right or right == pa.null():
        return left
    if left == pa.null():
        return right
    if left in INTEGERS and right in INTEGERS:
        return max(left, right, key=INTEGERS.__getitem__)
    if not (_is_number(left) and _is_number(right)):
        return None
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    (whole, scale), (other_whole, other_scale) = _digits(left), _digits(right)
    return _decimal(max(whole, other_whole), max(scale, other_scale))


def _arithmetic(op: Operation, left: Node, right: Node) -> Node:
    left, right = (_as(node, pa.int8()) if type_of(node) == pa.null() else node for node in (left, right))
    for node in (left, right):
        if not _is_number(type_of(node)):
            _mistyped(f"{op.value} needs numbers, and {_said(node)}", node)
    if op is Operation.DIVIDE or any(pa.types.is_floating(type_of(node)) for node in (left, right)):
        return Arithmetic(op, _as(left, pa.float64()), _as(right, pa.float64()), pa.float64())
    (whole, scale), (other_whole, other_scale) = _digits(type_of(left)), _digits(type_of(right))
    if op is Operation.MULTIPLY:
        type = _decimal(whole + other_whole + 1, scale + other_scale)
    else:
        type = _decimal(max(whole, other_whole) + 1, max(scale, other_scale))
    kind = type.__class__  # the operands keep their digits and take the width of the result
    left, right = _as(left, _decimal(whole, scale, kind)), _as(right, _decimal(other_whole, other_scale, kind))
    return Arithmetic(op, left, right, type)


def _as(node: Node, type: Any) -> Node:
    if type_of(node) == type:
        return node
    if not isinstance(node, Literal):
        return Cast(node, type)
    if node.value is None or type in INTEGERS:
        return Literal(node.value, type)
    return Literal(float(node.value) if pa.types.is_floating(type) else Decimal(node.value), type)


def _is_number(type: Any) -> bool:
    return type in INTEGERS or pa.types.is_decimal(type) or pa.types.is_floating(type)


def _digits(type: Any) -> tuple[int, int]:
    return (INTEGERS[type], 0) if type in INTEGERS else (type.precision - type.scale, type.scale)


def _decimal(whole: int, scale: int, kind: Any = pa.Decimal128Type) -> Any:
    digits = max(whole + scale, 1)
    if digits > MAX_DIGITS:
        _mistyped(f"the result may need {digits} digits, and at most {MAX_DIGITS} are exact; compare smaller numbers")
    return pa.decimal256(digits, scale) if digits > 38 or kind is pa.Decimal256Type else pa.decimal128(digits, scale)


def _said(node: Node) -> str:
    match node:
        case Column(name, type):
            return f"{name} is {type}"
        case Literal(str() as text):
            return f"'{text:.40}' is string"
        case Literal(value, type):
            return f"{value} is {pa.int64() if type in INTEGERS else type}"
    return f"the {'result' if isinstance(node, Arithmetic | Cast) else 'condition'} is {type_of(node)}"


def _advice(*nodes: Node) -> str:
    """What to write instead of a literal, going by what is not a literal."""
    other = next((type_of(node) for node in nodes if not isinstance(node, Literal)), None)
    if not any(isinstance(node, Literal) for node in nodes) or other is None:
        return ""
    wanted = "write a number without quotes" if _is_number(other) else TO_WRITE.get(other)
    return f"; {wanted}" if wanted else ""


def _mistyped(problem: str, *nodes: Node) -> NoReturn:
    raise Invalid("bad_selector", problem, parse_error=problem, types=[str(type_of(node)) for node in nodes])
