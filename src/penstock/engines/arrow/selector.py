"""Read a selector the way Arrow does: one node, one compute function.

The expression is meant as a filter, of a dataset's scanner or of a table. It can fail on no data: `bind` has made
room for every exact result, doubles go to infinity, and x / 0 is NULL.
"""

import operator
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.selector import (And, Arithmetic, Between, Cast, Column, Compare, Comparison, In, IsNull, Like, Literal, Node, Not, Operation, Or, Wild, bind, bounds, columns, type_of)

Expression: TypeAlias = Any  # pyarrow has no types

COMPARE: dict[Comparison, Callable[[Expression, Expression], Expression]] = {
    Comparison.EQ: operator.eq,
    Comparison.NE: operator.ne,
    Comparison.LT: operator.lt,
    Comparison.LE: operator.le,
    Comparison.GT: operator.gt,
    Comparison.GE: operator.ge,
}

CALCULATE: dict[Operation, Callable[[Expression, Expression], Expression]] = {
    Operation.ADD: pc.add_checked,
    Operation.SUBTRACT: pc.subtract_checked,
    Operation.MULTIPLY: pc.multiply_checked,
    Operation.DIVIDE: lambda left, right: pc.divide(left, pc.if_else(right == 0.0, _null(pa.float64()), right)),
}

REGEX = {Wild.ANY: ".*", Wild.ONE: "."}


def expression(node: Node, schema: pa.Schema) -> Expression:
    """The filter that keeps the rows for which the condition (bound or not) is TRUE."""
    node = bind(node, schema)
    exact = _lower(node)
    floats = [name for name in sorted(columns(node)) if pa.types.is_floating(schema.field(name).type)]
    if floats:
        exact = _opaque(exact, pc.field(floats[0]))
    ends = tuple(
        Compare(op, Column(name), Literal(end))
        for name, interval in bounds(node).items()
        for op, end in ((Comparison.GE, interval.low), (Comparison.LE, interval.high))
        if end is not None
    )
    # the bounds change no answer; they are here because Arrow skips row groups by plain comparisons, and by no others
    return exact & _lower(bind(And(ends), schema)) if ends else exact


def _lower(node: Node) -> Expression:
    match node:
        case Column(name):
            return pc.field(name)
        case Literal(value, type):
            return pc.scalar(pa.scalar(value, type))
        case Cast(operand, type) if pa.types.is_floating(type):  # may round, as doubles do; all other casts are exact
            # coalesce keeps Arrow from casting a row group's least and greatest values too, which it does not let round
            value = pc.coalesce(_lower(operand))
            if pa.types.is_decimal(type_of(operand)):
                value = value.cast(pa.string())  # text becomes the nearest double; a decimal may become the one beside
            return value.cast(type, safe=False)
        case Cast(operand, type):
            return _lower(operand).cast(type)
        case Arithmetic(op, left, right):
            return CALCULATE[op](_lower(left), _lower(right))
        case Compare(op, left, right):
            return COMPARE[op](_lower(left), _lower(right))
        case Between(operand, low, high):
            return (_lower(operand) >= _lower(low)) & (_lower(operand) <= _lower(high))
        case In(operand, items):
            return _among(_lower(operand), items)
        case Like(operand, pattern):
            regex = "".join(re.escape(part) if isinstance(part, str) else REGEX[part] for part in pattern)
            return pc.match_substring_regex(_lower(operand), rf"(?s)\A{regex}\z")
        case IsNull(operand):
            return _lower(operand).is_null()
        case Not(operand):
            return ~_lower(operand)
        case And(parts):
            return _balanced(operator.and_, [_lower(part) for part in parts])
        case Or(parts):
            return _balanced(operator.or_, [_lower(part) for part in parts])


def _opaque(condition: Expression, field: Expression) -> Expression:
    """The same condition, of which Arrow cannot tell beforehand that it holds for all or none of a row group.

    Parquet's least and greatest values leave NaN out, and Arrow takes them for all there is: it would skip the NaN
    that passes `x != 5`, and count the one that fails `x > 5`. What is random it leaves for the rows to say; the
    field is there because a condition without fields counts as one that always holds. A condition that Arrow finds to be
    NULL for a least and greatest value that are the same must not make all of it NULL, so it is FALSE here.
    """
    random = pc.Expression._call("random", [], pc.RandomOptions(initializer=0))  # from [0, 1); no public spelling
    return pc.coalesce(condition, pc.scalar(False)) == ((random >= 0.0) | field.is_null())


def _among(operand: Expression, items: tuple[Literal, ...]) -> Expression:
    values = {item.value for item in items}
    type = items[0].type
    zeros = [0.0, -0.0] if 0 in values and pa.types.is_floating(type) else []  # equal, but not to Arrow's hash
    found = operand.isin(pa.array([*(values - {None}), *zeros], type))
    if None in values:
        found = found | _null(pa.bool_())
    return pc.if_else(operand.is_valid(), found, _null(pa.bool_()))


def _balanced(join: Callable[[Expression, Expression], Expression], parts: list[Expression]) -> Expression:
    """A thousand terms as a tree ten levels deep: Arrow walks expressions by recursion."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_balanced(join, parts[:middle]), _balanced(join, parts[middle:]))


def _null(type: Any) -> Expression:
    return pc.scalar(pa.scalar(None, type))
