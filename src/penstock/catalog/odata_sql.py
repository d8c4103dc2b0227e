"""Compile OData conditions to SQL that selects the same rows on every database.

    filter_condition(filter, columns)          the condition of `$filter`
    search_condition(words, columns)           the condition of `$search`
    parameterize(filter, columns)              a filter without its values, and the values

`search_statements` orders the rows and reads them by page.

No text of a caller becomes SQL text: values are bound. Text is compared by code point. Case folding uses
columns that Python filled when the row was written (`FoldedText`); other text is folded for A to Z only. A number
literal is a double; an integer column that is compared with a double column is one, too.

`not` is pushed down to the single tests (`Truth`), so that only AND and OR join them. A test that is NULL then counts as
false, which leaves plain comparisons that an index can serve; only negated tests must handle NULL.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Date,
    FromClause,
    Text,
    Uuid,
    bindparam,
    exists,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.type_api import TypeEngine
from sqlalchemy.sql.visitors import InternalTraversal

from penstock.catalog.sql_functions import CodePoints, NearestDouble, TextPosition
from penstock.catalog.tables import UtcTimestamp
from penstock.catalog.tenant_guard import tenant_filter
from penstock.core.odata import (
    CaseFold,
    Exists,
    FieldKind,
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
    is_never_null,
    operand_tests,
    walk,
)
from penstock.core.odata.nodes import size

_MAX_CACHED_TESTS = 16  # larger filters are not cached

Sql: TypeAlias = ColumnElement[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class FoldedText:
    """A text column with the columns that hold its `str.lower` and `str.upper`."""

    column: Sql
    lower: Sql
    upper: Sql


@dataclass(frozen=True)
class Children:
    """The rows of another table that belong to a row."""

    table: FromClause
    key: Sql  # key column of the parent row
    of: Sql  # column of the other table with that key; the tenant condition is added here
    columns: Mapping[str, Sql | FoldedText]


Columns: TypeAlias = Mapping[str, Sql | FoldedText | Children]


@dataclass(frozen=True, slots=True)
class ParameterSlot:
    """Placeholder for a value of a request, so that filters of one shape share one statement."""

    name: str


def is_small(node: Node | None) -> bool:
    """Return whether a filter is small enough for a cache."""
    return node is None or size(node) <= _MAX_CACHED_TESTS


def parameterize(node: Node, columns: Columns) -> tuple[Node, dict[str, Any]]:
    """Split a filter into its shape and the values to run it with."""
    values: dict[str, Any] = {}

    def slot(value: Value) -> Value:
        if not isinstance(value, ODataLiteral) or value.value is None:
            return value
        name = f"v{len(values)}"
        values[name] = value.value
        return ODataLiteral(ParameterSlot(name), value.kind)

    def shape(part: Node) -> Node:
        match part:
            case ODataCompare(op, left, right):
                return ODataCompare(op, left, slot(right))
            case TextMatch(match_kind, whole, text):
                return TextMatch(match_kind, slot(whole), slot(text))
            case ODataNot(operand):
                return ODataNot(shape(operand))
            case TruthTest(operand, value):
                return TruthTest(shape(operand), value)
            case ODataAnd(parts):
                return ODataAnd(tuple(map(shape, parts)))
            case ODataOr(parts):
                return ODataOr(tuple(map(shape, parts)))
            case Exists(collection, body):
                return Exists(collection, None if body is None else shape(body))
        return part  # a list can have any length, so its values stay

    return shape(_fold_literals(node, columns)), values


def filter_condition(node: Node, columns: Columns) -> ColumnElement[bool]:
    """Return the condition of a filter."""
    return _Formula.of(_formula(_fold_literals(node, columns), columns, Truth.IS_TRUE))


def _fold_literals(node: Node, columns: Columns) -> Node:
    """Return a filter in which `tolower` and `toupper` of literals are evaluated, as for the other operand."""

    def fold(value: Value, other: Value) -> Any:
        if not isinstance(value, CaseFold) or not isinstance(value.operand, ODataLiteral):
            return value
        is_ascii = False
        if isinstance(other, CaseFold) and isinstance(other.operand, ODataField):
            is_ascii = not isinstance(_declared(other.operand, columns), FoldedText)
        return ODataLiteral(_fold_text(value.operand.value, value.case, is_ascii=is_ascii), FieldKind.TEXT)

    match node:
        case ODataCompare(op, left, right):
            return ODataCompare(op, left, fold(right, left))
        case TextMatch(match_kind, whole, part):
            return TextMatch(match_kind, fold(whole, part), fold(part, whole))
        case ODataIn(operand, items):
            return ODataIn(operand, tuple(fold(item, operand) for item in items))
        case ODataNot(operand):
            return ODataNot(_fold_literals(operand, columns))
        case TruthTest(operand, value):
            return TruthTest(_fold_literals(operand, columns), value)
        case ODataAnd(parts):
            return ODataAnd(tuple(_fold_literals(part, columns) for part in parts))
        case ODataOr(parts):
            return ODataOr(tuple(_fold_literals(part, columns) for part in parts))
        case Exists(collection, body) if body is not None:
            return Exists(collection, _fold_literals(body, columns))
    return node


def _fold_text(text: str, case: LetterCase, *, is_ascii: bool) -> str:
    fold = str.lower if case is LetterCase.LOWER else str.upper
    return "".join(fold(letter) if letter.isascii() else letter for letter in text) if is_ascii else fold(text)


def search_condition(words: Sequence[str], columns: Sequence[FoldedText]) -> ColumnElement[bool]:
    """Return the condition that each word occurs in one of the columns. Compares upper case, which distinguishes
    fewer letters than lower case.
    """
    conditions = [
        _join(
            "OR",
            [_single_test(TextPosition(column.upper, _bind(word.upper(), FieldKind.TEXT)) > 0) for column in columns],
        )
        for word in words
    ]
    return _Formula.of(_join("AND", conditions)) if conditions else true()


def conditions(
    filter: Node | None, words: Sequence[str], columns: Columns, texts: Sequence[FoldedText]
) -> list[ColumnElement[bool]]:
    """Return the conditions of `$filter` and `$search`; words are searched in `texts`."""
    parts = [] if filter is None else [filter_condition(filter, columns)]
    return [*parts, search_condition(words, texts)] if words else parts


def upper_ascii(text: Sql) -> Sql:
    """Return the text with A to Z in upper case, which every database folds the same way."""
    return func.upper(CodePoints(text), type_=Text())


def is_selective(node: Node | None, selective: Sequence[str]) -> bool:
    """Return whether a filter requires a value of one of the selective fields, which few rows share."""
    match node:
        case ODataAnd(parts):
            return any(is_selective(part, selective) for part in parts)
        case (
            ODataCompare(ODataComparison.EQ, ODataField(name), ODataLiteral())
            | ODataIn(ODataField(name), _)
            | Exists(name, _)
        ):
            return name in selective
    return False


@dataclass(frozen=True)
class _FormulaText:
    """A formula: a template with `{}` for each test, the tests, and the depth of its parentheses."""

    template: str
    tests: tuple[ColumnElement[bool], ...]
    height: int
    op: str = ""  # AND, OR, or a single test


def _formula(node: Node, columns: Columns, truth: Truth) -> _FormulaText:
    match node:
        case ODataNot(operand):
            return _formula(operand, columns, truth.of_operand)
        case ODataAnd(parts) | ODataOr(parts):
            op = "AND" if isinstance(node, ODataAnd) != truth.swaps_operators else "OR"
            return _join(op, [_formula(part, columns, truth) for part in parts])
        case TruthTest(operand):
            op = "OR" if truth.swaps_operators else "AND"
            return _join(op, [_formula(operand, columns, test) for test in operand_tests(node, truth)])
        case Exists(collection, body):
            children = _children(collection, columns)
            inner = None if body is None else _formula(body, columns, Truth.IS_TRUE)
            alone = body is None or not any(_refers_to_parent(part) for part in walk(body))
            test = _exists(children, inner, alone, negated=truth.swaps_operators)
            return _single_test(test, inner.height + 5 if inner else 5)
        case ODataLiteral(value):
            return _single_test(true() if truth.holds(value) else false())
    return _single_test(_truth_of_test(node, columns, truth))


def _single_test(test: ColumnElement[bool], height: int = 1) -> _FormulaText:
    return _FormulaText("{}", (test.self_group(against=operators.and_),), height)


def _join(op: str, parts: Sequence[_FormulaText]) -> _FormulaText:
    """Join parts by AND or OR. SQLite parses neither 100 parentheses nor a chain of 1,000 operators: the deepest part
    comes first, where it adds least depth, and the others are joined in pairs. AND within OR needs no parentheses.
    """
    first, *rest = sorted((_parenthesize(part, op) for part in parts), key=lambda part: -part.height)
    return _join_two(op, first, _parenthesize(_join_in_pairs(op, rest), "")) if rest else first


def _join_in_pairs(op: str, parts: Sequence[_FormulaText]) -> _FormulaText:
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    left, right = _join_in_pairs(op, parts[:half]), _join_in_pairs(op, parts[half:])
    return _join_two(op, _parenthesize(left, ""), _parenthesize(right, ""))


def _join_two(op: str, left: _FormulaText, right: _FormulaText) -> _FormulaText:
    height = max(left.height, right.height + 2)
    return _FormulaText(f"{left.template} {op} {right.template}", left.tests + right.tests, height, op)


def _parenthesize(part: _FormulaText, outer: str) -> _FormulaText:
    if not part.op or (outer == "OR" and part.op == "AND"):
        return part
    return _FormulaText(f"({part.template})", part.tests, part.height + 1)


def _test(node: Node, columns: Columns) -> ColumnElement[bool]:
    """Return a test that is true where the condition holds, and false or NULL elsewhere.

    It is NULL where the condition is null.
    """
    match node:
        case ODataField():
            return _value(node, columns)
        case ODataCompare(ODataComparison.EQ, left, ODataLiteral(None)):
            return _value(left, columns).is_(None)
        case ODataCompare(ODataComparison.EQ, left, ODataLiteral() as right):
            return _value(left, columns) == _value(right, columns)
        case ODataCompare(ODataComparison.EQ, left, right):
            return _value(left, columns).is_not_distinct_from(_value(right, columns))
        case ODataCompare(_, _, ODataLiteral(None)):
            return false()
        case ODataCompare(op, left, right):
            return _ORDERINGS[op](_comparable(left, columns), _value(right, columns))
        case ODataIn(operand, items):
            return _is_in(_value(operand, columns), items)
        case TextMatch(match_kind, whole, part):
            return _text_match(match_kind, _value(whole, columns), _value(part, columns))
    raise TypeError(f"{node} is not a single test")


def _truth_of_test(node: Node, columns: Columns, truth: Truth) -> ColumnElement[bool]:
    """Return a test that is true where the test holds, and false or NULL elsewhere."""
    if not truth.swaps_operators:
        test = _test(node, columns)
        is_plain = truth is Truth.IS_TRUE or is_never_null(node)
        return test if is_plain else func.coalesce(test, true(), type_=Boolean())
    match node:
        case ODataCompare(ODataComparison.EQ, left, ODataLiteral(None)):
            return _value(left, columns).is_not(None)
        case ODataCompare(ODataComparison.EQ, left, right):
            return _value(left, columns).is_distinct_from(_value(right, columns))
    test = _test(node, columns)
    if truth is Truth.IS_FALSE and not is_never_null(node):
        return not_(test)
    return not_(func.coalesce(test, false(), type_=Boolean()))


def _exists(children: Children, body: _FormulaText | None, alone: bool, *, negated: bool) -> ColumnElement[bool]:
    """Return the condition that a row has a matching child. A body that does not refer to the row becomes a list of
    keys, for which SQLite uses an index; for EXISTS it would scan every row.
    """
    conditions = [
        *([_Formula.of(body)] if body else []),
        tenant_filter(children.table),
    ]  # last, where its parentheses add least depth
    condition: ColumnElement[bool]
    if alone:
        condition = children.key.in_(select(children.of).where(*conditions))
    else:
        matching_child = exists().select_from(children.table).where(*conditions, children.of == children.key)
        condition = matching_child.correlate_except(children.table)
    return not_(condition) if negated else condition


def _refers_to_parent(node: Node) -> bool:
    """Return whether a condition on a child refers to the row that the child belongs to."""
    values: tuple[Node | Value, ...] = (node,)
    if isinstance(node, ODataCompare):
        values = (node.left, node.right)
    elif isinstance(node, TextMatch):
        values = (node.whole, node.part)
    elif isinstance(node, ODataIn):
        values = (node.operand,)
    fields = (value.operand if isinstance(value, CaseFold) else value for value in values)
    return any(isinstance(field, ODataField) and field.of is None for field in fields)


def _is_in(operand: Sql, items: Sequence[ODataLiteral | CaseFold]) -> ColumnElement[bool]:
    literals = [item for item in items if isinstance(item, ODataLiteral)]  # all items: their case is folded
    listed = operand.in_([_bind(item.value, item.kind) for item in literals if item.value is not None])
    return or_(listed, operand.is_(None)) if any(item.value is None for item in literals) else listed


def _text_match(match_kind: MatchKind, whole: Sql, part: Sql) -> ColumnElement[bool]:
    match match_kind:
        case MatchKind.ANYWHERE:
            return TextPosition(whole, part) > 0
        case MatchKind.START:
            return func.substr(whole, 1, func.length(part)) == part
        case MatchKind.END:
            return func.substr(whole, func.length(whole) - func.length(part) + 1) == part


def _value(value: Value, columns: Columns) -> Sql:
    match value:
        case ODataLiteral(plain, kind):
            return _bind(plain, kind)
        case ODataField():
            return sql_column(value, columns)
        case CaseFold(case, ODataField() as field):
            match _declared(field, columns), case:
                case FoldedText(_, lower, _), LetterCase.LOWER:
                    return lower
                case FoldedText(_, _, upper), LetterCase.UPPER:
                    return upper
            fold = func.lower if case is LetterCase.LOWER else func.upper
            return fold(CodePoints(sql_column(field, columns)), type_=Text())
    raise TypeError(f"{value} is not folded")


def _comparable(value: Value, columns: Columns) -> Sql:
    return CodePoints(_value(value, columns)) if value.kind is FieldKind.TEXT else _value(value, columns)


def sql_column(field: ODataField, columns: Columns) -> Sql:
    """Return the column of a field."""
    declared = _declared(field, columns)
    return declared.column if isinstance(declared, FoldedText) else declared


def _declared(field: ODataField, columns: Columns) -> Sql | FoldedText:
    declared = columns[field.name] if field.of is None else _children(field.of, columns).columns[field.name]
    assert not isinstance(declared, Children)
    return declared


def _children(collection: str, columns: Columns) -> Children:
    declared = columns[collection]
    assert isinstance(declared, Children)
    return declared


_TYPES: dict[FieldKind | None, TypeEngine[Any]] = {
    FieldKind.TEXT: Text(),
    FieldKind.INTEGER: BigInteger(),
    FieldKind.NUMBER: NearestDouble(),
    FieldKind.BOOLEAN: Boolean(),
    FieldKind.GUID: Uuid(),
    FieldKind.INSTANT: UtcTimestamp(),
    FieldKind.DATE: Date(),
    None: Text(),
}
_ORDERINGS: dict[ODataComparison, Callable[[Any, Any], ColumnElement[bool]]] = {
    ODataComparison.GT: operators.gt,
    ODataComparison.GE: operators.ge,
    ODataComparison.LT: operators.lt,
    ODataComparison.LE: operators.le,
}


def _bind(value: Any, field_kind: FieldKind | None) -> Sql:
    return (
        bindparam(value.name, type_=_TYPES[field_kind])
        if isinstance(value, ParameterSlot)
        else literal(value, _TYPES[field_kind])
    )


class _Formula(FunctionElement[bool]):
    """Tests joined by AND and OR as the template says. SQLAlchemy's and_ and or_ would flatten the pairs."""

    type = Boolean()
    inherit_cache = True
    # Cache key of SQLAlchemy: formulas with the same tests differ in their template.
    _traverse_internals = [*FunctionElement._traverse_internals, ("template", InternalTraversal.dp_string)]  # noqa: RUF012
    template: str

    @classmethod
    def of(cls, text: _FormulaText) -> "_Formula":
        formula = (cls if len(text.tests) <= _MAX_CACHED_TESTS else _LargeFormula)(*text.tests)
        formula.template = text.template
        return formula

    def self_group(self, against: Any = None) -> "_Formula":  # noqa: ARG002  # the compiled formula has parentheses
        return self


class _LargeFormula(_Formula):
    """A formula that is not cached: it is rarely repeated and would fill the statement cache."""

    inherit_cache = False


@compiles(_Formula)
def _sql_of_formula(element: _Formula, compiler: SQLCompiler, **kw: Any) -> str:
    return f"({element.template.format(*(compiler.process(test, **kw) for test in element.clauses))})"
