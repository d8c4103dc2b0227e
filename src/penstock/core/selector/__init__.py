"""The filter expression language: conditions over the columns of a dataset.

    parse(text)          parse the text into a tree of frozen nodes
    bind(node, schema)   resolve the type of every value
    type_of(node)        return the type of a bound node
    columns(node)        return the columns that a condition reads
    bounds(node)         return an interval per column that contains all matching rows

Precedence, lowest first: OR, AND, NOT, then = != <> < <= > >= IN BETWEEN LIKE IS NULL (which do not chain), then + -,
then * /, then unary minus. Logic is three-valued: an operand that is NULL makes a condition unknown, and only TRUE
selects a row. NaN equals nothing, is neither greater nor less than any value, and differs from every value.

Integers, decimals and number literals are exact, and so are + - * of them (`bind` rejects an expression whose result may
need more than 76 digits, so data cannot overflow). If an operand is a float, both sides are doubles; `/` is always
double, and x / 0 is NULL.
"""

from penstock.core.selector.bind import bind, type_of
from penstock.core.selector.bounds import bounds
from penstock.core.selector.nodes import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_LENGTH,
    MAX_NODES,
    MAX_STEPS,
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Cast,
    Column,
    Compare,
    Comparison,
    In,
    Interval,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Wildcard,
    columns,
)
from penstock.core.selector.parser import parse

__all__ = [
    "MAX_DEPTH",
    "MAX_DIGITS",
    "MAX_LENGTH",
    "MAX_NODES",
    "MAX_STEPS",
    "And",
    "Arithmetic",
    "ArithmeticOperator",
    "Between",
    "Cast",
    "Column",
    "Compare",
    "Comparison",
    "In",
    "Interval",
    "IsNull",
    "Like",
    "Literal",
    "Node",
    "Not",
    "Or",
    "Wildcard",
    "bind",
    "bounds",
    "columns",
    "parse",
    "type_of",
]
