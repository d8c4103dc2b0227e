"""Say which rows you mean, in OData: filter, order, page and projection over a table of declared fields.

    parse(text, fields)                  a `$filter` as a tree of frozen nodes, or where it stops making sense
    options(pairs, fields, …)            the whole query string as `Options`
    next_page(pairs, options)            the query string of the page after

The language, tightest first: `in`, `not`, then `gt ge lt le`, then `eq ne`, then `and`, then `or`. So `not a eq 1` is
`(not a) eq 1`, and is refused unless `a` is a boolean. Operators are lower case, names are as declared. A field named
`not`, `true`, `false` or `null` cannot be asked for.

Every condition is either true or false, never unknown. Null equals null and nothing else, so `x ne 'a'` holds where x
is null; `gt ge lt le` and the text functions are false where a side is null; a boolean field that is null is false as a
condition; and `not` turns what is so decided around: `not contains(x, 'a')` holds where x is null.

A literal is read as the other side needs it: GUIDs, instants and dates may stand in quotes, and a date is the first
instant of its day. Instants without a zone are UTC, and what is finer than a microsecond is cut off. `tolower` and
`toupper` of a literal are Python's; of nested ones over a field the outermost counts. What can be decided without a row
is decided by `parse`: no node compares two literals.

`$search` is a list of words and of phrases in double quotes, all of which must occur; AND, OR and NOT are words too.
"""

from penstock.core.odata.options import NAMES, Options, Order, next_page, options
from penstock.core.odata.parser import parse
from penstock.core.odata.nodes import (MAX_DEPTH, MAX_ITEMS, MAX_LAMBDAS, MAX_LENGTH, MAX_NODES, And, Case, Collection, Compare, Comparison, Exists, Field, Fields, Folded, In, Kind, Literal, Match, Node, Not, Or, Place, Value, spoken_of, walk)

__all__ = [
    "MAX_DEPTH",
    "MAX_ITEMS",
    "MAX_LAMBDAS",
    "MAX_LENGTH",
    "MAX_NODES",
    "NAMES",
    "And",
    "Case",
    "Collection",
    "Compare",
    "Comparison",
    "Exists",
    "Field",
    "Fields",
    "Folded",
    "In",
    "Kind",
    "Literal",
    "Match",
    "Node",
    "Not",
    "Options",
    "Or",
    "Order",
    "Place",
    "Value",
    "next_page",
    "options",
    "parse",
    "spoken_of",
    "walk",
]
