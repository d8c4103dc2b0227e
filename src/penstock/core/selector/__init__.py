"""Say which rows you mean: a small language of conditions over the columns of a dataset.

    parse(text)          the text as a tree of frozen nodes, or where it stops making sense
    bind(node, schema)   the tree with every type settled, or which two types do not go together
    type_of(node)        the type of a bound node
    columns(node)        the columns it reads
    bounds(node)         for each column, the interval outside which no row can be kept

The language, loosest first: OR, AND, NOT, then = != <> < <= > >= IN BETWEEN LIKE IS NULL (which do not chain),
then + -, then * /, then unary minus. Logic is three-valued: whatever touches NULL is unknown, and only TRUE keeps a
row. NaN equals nothing, is neither more nor less than anything, and differs from everything.

Numbers: integers, decimals and number literals are exact, and so are + - * of them (a result that may need more than
76 digits is refused by `bind`, so nothing overflows on the data). Where a float takes part, both sides are doubles;
`/` is always double, and x / 0 is NULL.
"""

from penstock.core.selector.bind import bind, type_of
from penstock.core.selector.bounds import bounds
from penstock.core.selector.parser import parse
from penstock.core.selector.nodes import (MAX_DEPTH, MAX_DIGITS, MAX_LENGTH, MAX_NODES, MAX_STEPS, And, Arithmetic, Between, Cast, Column, Compare, Comparison, In, Interval, IsNull, Like, Literal, Node, Not, Operation, Or, Wild, columns)

__all__ = [
    "MAX_DEPTH",
    "MAX_DIGITS",
    "MAX_LENGTH",
    "MAX_NODES",
    "MAX_STEPS",
    "And",
    "Arithmetic",
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
    "Operation",
    "Or",
    "Wild",
    "bind",
    "bounds",
    "columns",
    "parse",
    "type_of",
]
