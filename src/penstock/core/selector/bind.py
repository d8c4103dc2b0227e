"""Resolve the types of a filter expression."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa

from penstock.core.selector.nodes import (
    MAX_DIGITS,
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Cast,
    Column,
    Compare,
    In,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    walk,
)
from penstock.errors import Invalid

INTEGERS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}  # with their decimal digits, narrowest first
LITERAL_ADVICE = {
    pa.bool_(): "write TRUE or FALSE",
    pa.string(): "write text in quotes",
    pa.date32(): "write DATE '2026-01-31'",
    pa.timestamp("us"): "write TIMESTAMP '2026-01-31 10:00:00'",
    pa.timestamp("us", "UTC"): "write TIMESTAMP '2026-01-31 10:00:00Z'",
}


def bind(node: Node, schema: pa.Schema) -> Node:
    """Return the condition with a type on every value.

    Operands of one operator get a common type, and literals are converted to it. Binding a bound node to the same schema
    changes nothing.

    Raises:
        Invalid: a column does not exist, or two types cannot be compared
    """
    types = dict(zip(schema.names, schema.types, strict=True))
    for part, _ in walk(node):
        if isinstance(part, Column) and part.name not in types:
            raise Invalid(
                "column_not_found.bind",
                {"name": part.name, "names": list(types)},
                column=part.name,
                columns=list(types),
            )
    return _require_condition(_resolve(node, types), "A filter expression")


def _resolve(node: Node, types: dict[str, Any]) -> Node:
    match node:
        case Column(name):
            return Column(name, types[name])
        case Literal(value, type):
            return Literal(value, type or _literal_type(value))
        case Cast(operand, type):
            return Cast(_resolve(operand, types), type)
        case Arithmetic(op, left, right):
            return _resolve_arithmetic(op, _resolve(left, types), _resolve(right, types))
        case Compare(op, left, right):
            return Compare(op, *_unify(_resolve(left, types), _resolve(right, types)))
        case Between(operand, low, high):
            return Between(*_unify(*(_resolve(part, types) for part in (operand, low, high))))
        case In(operand, items):
            value, *rest = _unify(*(_resolve(part, types) for part in (operand, *items)))
            return In(value, tuple(item for item in rest if isinstance(item, Literal)))
        case Like(operand, pattern):
            value = _resolve(operand, types)
            if type_of(value) not in (pa.string(), pa.null()):
                _fail(f"LIKE requires text, but {_describe(value)}", value)
            return Like(_cast(value, pa.string()), pattern)
        case IsNull(operand):
            value = _resolve(operand, types)
            return IsNull(_cast(value, pa.bool_()) if type_of(value) == pa.null() else value)
        case Not(operand):
            return Not(_require_condition(_resolve(operand, types), "NOT"))
        case And(parts):
            return And(tuple(_require_condition(_resolve(part, types), "AND") for part in parts))
        case Or(parts):
            return Or(tuple(_require_condition(_resolve(part, types), "OR") for part in parts))


def type_of(node: Node) -> Any:
    """Return the type of a bound node."""
    return node.type if isinstance(node, Column | Literal | Arithmetic | Cast) else pa.bool_()


def _literal_type(value: Any) -> Any:
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():  # the narrowest type, so that the other operand need not be widened
            return next(type for type in INTEGERS if (value ^ (value >> 63)).bit_length() < type.bit_width)
        case Decimal():
            _, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            return _decimal_type(max(len(digits) + exponent, 0), max(-exponent, 0))
        case float():
            return pa.float64()
        case str():
            return pa.string()
        case datetime():
            return pa.timestamp("us", "UTC" if value.tzinfo else None)
        case date():
            return pa.date32()
    raise TypeError(f"a selector has no literals of {value.__class__.__name__}")


def _require_condition(node: Node, operator: str) -> Node:
    if type_of(node) not in (pa.bool_(), pa.null()):
        _fail(f"{operator} requires a condition, but {_describe(node)}", node)
    return _cast(node, pa.bool_())


def _unify(*nodes: Node) -> tuple[Node, ...]:
    """Return the nodes, cast to the one type in which they can be compared."""
    common, first = pa.null(), nodes[0]
    for node in nodes:
        unified = _common_type(common, type := type_of(node))
        if pa.types.is_nested(type):
            _fail(f"Only IS NULL and IS NOT NULL apply to nested values: {_describe(node)}", node)
        if unified is None:
            _fail(
                f"{_describe(first)} and {_describe(node)}; they cannot be compared{_advice(first, node)}", first, node
            )
        if common == pa.null():
            first = node
        common = unified
    return tuple(_cast(node, pa.bool_() if common == pa.null() else common) for node in nodes)


def _common_type(left: Any, right: Any) -> Any:
    """Return the type that holds the values of both; None if there is none."""
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
    (whole, scale), (other_whole, other_scale) = _digits_of(left), _digits_of(right)
    return _decimal_type(max(whole, other_whole), max(scale, other_scale))


def _resolve_arithmetic(op: ArithmeticOperator, left: Node, right: Node) -> Node:
    left, right = (_cast(node, pa.int8()) if type_of(node) == pa.null() else node for node in (left, right))
    for node in (left, right):
        if not _is_number(type_of(node)):
            _fail(f"{op.value} requires numbers, but {_describe(node)}", node)
    if op is ArithmeticOperator.DIVIDE or any(pa.types.is_floating(type_of(node)) for node in (left, right)):
        return Arithmetic(op, _cast(left, pa.float64()), _cast(right, pa.float64()), pa.float64())
    (whole, scale), (other_whole, other_scale) = _digits_of(type_of(left)), _digits_of(type_of(right))
    if op is ArithmeticOperator.MULTIPLY:
        type = _decimal_type(whole + other_whole + 1, scale + other_scale)
    else:
        type = _decimal_type(max(whole, other_whole) + 1, max(scale, other_scale))
    decimal_class = type.__class__  # the operands keep their digits and take the bit width of the result
    left, right = (
        _cast(left, _decimal_type(whole, scale, decimal_class)),
        _cast(right, _decimal_type(other_whole, other_scale, decimal_class)),
    )
    return Arithmetic(op, left, right, type)


def _cast(node: Node, type: Any) -> Node:
    if type_of(node) == type:
        return node
    if not isinstance(node, Literal):
        return Cast(node, type)
    if node.value is None or type in INTEGERS:
        return Literal(node.value, type)
    return Literal(float(node.value) if pa.types.is_floating(type) else Decimal(node.value), type)


def _is_number(type: Any) -> bool:
    return type in INTEGERS or pa.types.is_decimal(type) or pa.types.is_floating(type)


def _digits_of(type: Any) -> tuple[int, int]:
    return (INTEGERS[type], 0) if type in INTEGERS else (type.precision - type.scale, type.scale)


def _decimal_type(whole: int, scale: int, decimal_class: Any = pa.Decimal128Type) -> Any:
    digits = max(whole + scale, 1)
    if digits > MAX_DIGITS:
        _fail(f"The result may need {digits} digits, but at most {MAX_DIGITS} are exact. Compare smaller numbers")
    return (
        pa.decimal256(digits, scale)
        if digits > 38 or decimal_class is pa.Decimal256Type
        else pa.decimal128(digits, scale)
    )


def _describe(node: Node) -> str:
    match node:
        case Column(name, type):
            return f"{name} is {type}"
        case Literal(str() as text):
            return f"'{text:.40}' is string"
        case Literal(value, type):
            return f"{value} is {pa.int64() if type in INTEGERS else type}"
    return f"the {'result' if isinstance(node, Arithmetic | Cast) else 'condition'} is {type_of(node)}"


def _advice(*nodes: Node) -> str:
    """Return advice how to write a literal that matches the type of the other operand."""
    other = next((type_of(node) for node in nodes if not isinstance(node, Literal)), None)
    if not any(isinstance(node, Literal) for node in nodes) or other is None:
        return ""
    advice = "write a number without quotes" if _is_number(other) else LITERAL_ADVICE.get(other)
    return f"; {advice}" if advice else ""


def _fail(problem: str, *nodes: Node) -> NoReturn:
    raise Invalid("bad_selector", problem, parse_error=problem, types=[str(type_of(node)) for node in nodes])
