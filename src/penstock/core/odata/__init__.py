"""OData query options over a table of declared fields: filter, order, page and projection.

    parse(text, fields)                  parse a `$filter` into a tree of frozen nodes
    options(pairs, fields, …)            parse the whole query string into `QueryOptions`
    next_page(pairs, options, key, …)    return the query string of the next page
    EntitySet                            a collection of the service; `csdl` describes all of them

Precedence, highest first: `in`, `not`, then `gt ge lt le`, then `eq ne`, then `and`, then `or`. So `not a eq 1` is
`(not a) eq 1`, which is an error unless `a` is a boolean. Operators are lower case, names are as declared. Fields named
`not`, `true`, `false` or `null` cannot be used.

A condition is true, false or null, and only true keeps a row. Comparisons and `in` are never null: null equals only
null, so `x ne 'a'` is true if x is null, and `gt ge lt le` are false if a side is null. The text functions are null if
an argument is null, and so is a boolean field. `not null` is null, `null and false` is false, `null or true` is true:
neither `contains(x, 'a')` nor `not contains(x, 'a')` keeps a row in which x is null. `any` and `all` are never null.

A literal is converted to the type of the other side: GUIDs, instants and dates may be in quotes, and a date is the
first instant of its day. Instants without a time zone are UTC, and have at most microseconds. `tolower` and
`toupper` fold a literal like the column that it is compared with; of nested ones the outermost applies. `parse`
evaluates conditions that need no row: no node compares two literals.

`$top` limits the items of all pages together. The link of the next page contains `$skiptoken`: the sort key of the last
item and the rest of `$top`, so that pages fit together while items are created and deleted.

`$search` is a list of words and of phrases in double quotes, all of which must occur; AND, OR and NOT are words too.
"""

from penstock.core.odata.entity_set import EntitySet, collection_context, entity_context
from penstock.core.odata.nodes import (
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_LAMBDAS,
    MAX_LENGTH,
    MAX_NODES,
    CaseFold,
    Collection,
    Exists,
    FieldKind,
    Fields,
    LetterCase,
    MatchKind,
    Node,
    ODataAnd,
    ODataCompare,
    ODataComparison,
    ODataField,
    ODataIn,
    ODataLiteral,
    ODataNot,
    ODataOr,
    TextMatch,
    Truth,
    TruthTest,
    Value,
    field_names,
    is_never_null,
    operand_tests,
    walk,
)
from penstock.core.odata.options import MAX_SKIP, NAMES, OrderBy, QueryOptions, next_page, options
from penstock.core.odata.parser import parse
from penstock.core.odata.skiptoken import bad_token, integer_key

__all__ = [
    "MAX_DEPTH",
    "MAX_ITEMS",
    "MAX_LAMBDAS",
    "MAX_LENGTH",
    "MAX_NODES",
    "MAX_SKIP",
    "NAMES",
    "CaseFold",
    "Collection",
    "EntitySet",
    "Exists",
    "FieldKind",
    "Fields",
    "LetterCase",
    "MatchKind",
    "Node",
    "ODataAnd",
    "ODataCompare",
    "ODataComparison",
    "ODataField",
    "ODataIn",
    "ODataLiteral",
    "ODataNot",
    "ODataOr",
    "OrderBy",
    "QueryOptions",
    "TextMatch",
    "Truth",
    "TruthTest",
    "Value",
    "bad_token",
    "collection_context",
    "entity_context",
    "field_names",
    "integer_key",
    "is_never_null",
    "next_page",
    "operand_tests",
    "options",
    "parse",
    "walk",
]
