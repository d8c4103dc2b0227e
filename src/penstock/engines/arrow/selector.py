"""Translate filter expressions into Arrow compute expressions, one function per node.

The expression filters a dataset scanner or a table. It fails on no data: `bind` chooses types that hold every exact
result, doubles overflow to infinity, and x / 0 is NULL.
"""

import operator
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.selector import (
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Cast,
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
    bind,
    bounds,
    columns,
    type_of,
)

ArrowExpression: TypeAlias = Any  # pyarrow has no type hints

_COMPARE_FUNCTIONS: dict[Comparison, Callable[[ArrowExpression, ArrowExpression], ArrowExpression]] = {
    Comparison.EQ: operator.eq,
    Comparison.NE: operator.ne,
    Comparison.LT: operator.lt,
    Comparison.LE: operator.le,
    Comparison.GT: operator.gt,
    Comparison.GE: operator.ge,
}

_ARITHMETIC_FUNCTIONS: dict[ArithmeticOperator, Callable[[ArrowExpression, ArrowExpression], ArrowExpression]] = {
    ArithmeticOperator.ADD: pc.add_checked,
    ArithmeticOperator.SUBTRACT: pc.subtract_checked,
    ArithmeticOperator.MULTIPLY: pc.multiply_checked,
    ArithmeticOperator.DIVIDE: lambda left, right: pc.divide(
        left, pc.if_else(right == 0.0, _null_of(pa.float64()), right)
    ),
}

_WILDCARD_REGEX = {Wildcard.ANY: ".*", Wildcard.ONE: "."}


def to_arrow_filter(node: Node, schema: pa.Schema) -> ArrowExpression:
    """Return the Arrow filter for rows whose condition (bound or not) is TRUE."""
    node = bind(node, schema)
    filter_expression = _to_expression(node)
    float_columns = [name for name in sorted(columns(node)) if pa.types.is_floating(schema.field(name).type)]
    if float_columns:
        filter_expression = _hide_from_statistics(filter_expression, pc.field(float_columns[0]))
    comparisons = tuple(
        Compare(op, Column(name), Literal(bound))
        for name, interval in bounds(node).items()
        for op, bound in ((Comparison.GE, interval.low), (Comparison.LE, interval.high))
        if bound is not None
    )
    # the bounds do not change the result: Arrow skips row groups by plain comparisons only
    return filter_expression & _to_expression(bind(And(comparisons), schema)) if comparisons else filter_expression


def _to_expression(node: Node) -> ArrowExpression:
    match node:
        case Column(name):
            return pc.field(name)
        case Literal(value, type):
            return pc.scalar(pa.scalar(value, type))
        case Cast(operand, type) if pa.types.is_floating(type):  # may round; all other casts are exact
            # coalesce prevents a cast of the row group's minimum and maximum, which Arrow refuses to round
            value = pc.coalesce(_to_expression(operand))
            if pa.types.is_decimal(type_of(operand)):
                value = value.cast(
                    pa.string()
                )  # text is parsed to the nearest double; a decimal cast may be off by one unit
            return value.cast(type, safe=False)
        case Cast(operand, type):
            return _to_expression(operand).cast(type)
        case Arithmetic(op, left, right):
            return _ARITHMETIC_FUNCTIONS[op](_to_expression(left), _to_expression(right))
        case Compare(op, left, right):
            return _COMPARE_FUNCTIONS[op](_to_expression(left), _to_expression(right))
        case Between(operand, low, high):
            return (_to_expression(operand) >= _to_expression(low)) & (_to_expression(operand) <= _to_expression(high))
        case In(operand, items):
            return _is_in(_to_expression(operand), items)
        case Like(operand, pattern):
            regex = "".join(re.escape(part) if isinstance(part, str) else _WILDCARD_REGEX[part] for part in pattern)
            return pc.match_substring_regex(_to_expression(operand), rf"(?s)\A{regex}\z")
        case IsNull(operand):
            return _to_expression(operand).is_null()
        case Not(operand):
            return ~_to_expression(operand)
        case And(parts):
            return _join_balanced(operator.and_, [_to_expression(part) for part in parts])
        case Or(parts):
            return _join_balanced(operator.or_, [_to_expression(part) for part in parts])


def _hide_from_statistics(condition: ArrowExpression, any_field: ArrowExpression) -> ArrowExpression:
    """Return the condition in a form that Arrow does not evaluate against row group statistics.

    Parquet's minimum and maximum exclude NaN, but Arrow assumes that they cover all values: it would skip a NaN that
    passes `x != 5`, and count one that fails `x > 5`. Arrow never folds a random value; the field is needed because a
    condition without fields counts as always true. If minimum and maximum are equal and the condition is NULL for them,
    Arrow would take the whole group as NULL, so NULL becomes FALSE here.
    """
    random = pc.Expression._call(
        "random", [], pc.RandomOptions(initializer=0)
    )  # from [0, 1); there is no public function
    return pc.coalesce(condition, pc.scalar(False)) == ((random >= 0.0) | any_field.is_null())


def _is_in(operand: ArrowExpression, items: tuple[Literal, ...]) -> ArrowExpression:
    values = {item.value for item in items}
    type = items[0].type
    zeros = (
        [0.0, -0.0] if 0 in values and pa.types.is_floating(type) else []
    )  # equal values with different hashes in Arrow
    is_member = operand.isin(pa.array([*(values - {None}), *zeros], type))
    if None in values:
        is_member = is_member | _null_of(pa.bool_())
    return pc.if_else(operand.is_valid(), is_member, _null_of(pa.bool_()))


def _join_balanced(
    join: Callable[[ArrowExpression, ArrowExpression], ArrowExpression], parts: list[ArrowExpression]
) -> ArrowExpression:
    """Join terms as a balanced tree, because Arrow walks expressions recursively."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_join_balanced(join, parts[:middle]), _join_balanced(join, parts[middle:]))


def _null_of(type: Any) -> ArrowExpression:
    return pc.scalar(pa.scalar(None, type))
