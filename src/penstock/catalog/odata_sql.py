"""Find rows by an OData filter: the tree as SQL that keeps the same rows, in the same order, on every database.

    where(filter, columns)              the condition
    containing(words, columns)          the condition of `$search`
    order(orderby, columns, tie_break)  what to order by
    page(tx, statement, options)        the rows of a page, whether there are more, and how many in all

Nothing that a caller wrote becomes SQL text: values are bound. Text is compared and ordered by code point. Folding needs
a column beside the text that Python folded when the row was written (`Cased`); other text is folded from A to Z only.
NULL is lowest. A number literal is read as a double, and an integer column beside a double one too.

`not` is pushed down to the single tests, so that AND and OR are all that joins them. Then a test that is NULL may stand
for false, which leaves plain comparisons that an index can serve, and only turned tests have to mind NULL.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, TypeAlias, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Date,
    Dialect,
    Float,
    FromClause,
    Integer,
    Numeric,
    Row,
    Select,
    String,
    Text,
    TypeDecorator,
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

from penstock.catalog.database import Tx, mine
from penstock.catalog.tables import Instant
from penstock.core.odata import (And, Case, Compare, Comparison, Exists, Field, Folded, In, Kind, Literal, Match, Node, Not, Options, Or, Order, Place, Value, walk)
from penstock.core.odata.nodes import size

_SMALL = 16  # tests of a filter that is worth a place in the cache of statements

Sql: TypeAlias = ColumnElement[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Cased:
    """Text with what `str.lower` and `str.upper` made of it when it was written."""

    column: Sql
    lower: Sql
    upper: Sql


@dataclass(frozen=True)
class Children:
    """The rows of another table that belong to a row."""

    table: FromClause
    key: Sql  # of the row
    of: Sql  # the column of the other table that holds that key; the tenant condition is added here
    columns: Mapping[str, Sql | Cased]


Columns: TypeAlias = Mapping[str, Sql | Cased | Children]


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for a value that comes with the request, so that filters of one shape share one statement."""

    name: str


def is_small(node: Node | None) -> bool:
    """Is a filter worth a place in a cache?"""
    return node is None or size(node) <= _SMALL


def slotted(node: Node) -> tuple[Node, dict[str, Any]]:
    """The filter's shape, and the values to run it with."""
    values: dict[str, Any] = {}

    def slot(value: Value) -> Value:
        if not isinstance(value, Literal) or value.value is None:
            return value
        name = f"v{len(values)}"
        values[name] = value.value
        return Literal(Slot(name), value.kind)

    def shape(part: Node) -> Node:
        match part:
            case Compare(op, left, right):
                return Compare(op, left, slot(right))
            case Match(place, whole, text):
                return Match(place, slot(whole), slot(text))
            case Not(operand):
                return Not(shape(operand))
            case And(parts):
                return And(tuple(map(shape, parts)))
            case Or(parts):
                return Or(tuple(map(shape, parts)))
            case Exists(collection, body):
                return Exists(collection, None if body is None else shape(body))
        return part  # a list may have any length, so its values stay

    return shape(node), values


def where(node: Node, columns: Columns) -> ColumnElement[bool]:
    return _Formula.of(_formula(node, columns, negated=False))


def containing(words: Sequence[str], columns: Sequence[Cased]) -> ColumnElement[bool]:
    """Does each word occur in one of the columns? In upper case, which tells fewer letters apart than lower."""
    found = [
        _joined("OR", [_leaf(_Position(column.upper, _bound(word.upper(), Kind.TEXT)) > 0) for column in columns])
        for word in words
    ]
    return _Formula.of(_joined("AND", found)) if found else true()


def conditions(
    filter: Node | None, words: Sequence[str], columns: Columns, texts: Sequence[Cased]
) -> list[ColumnElement[bool]]:
    """What `$filter` and `$search` ask for; `texts` are what words are looked for in."""
    found = [] if filter is None else [where(filter, columns)]
    return [*found, containing(words, texts)] if words else found


def order(orderby: Sequence[Order], columns: Columns, tie_break: Sequence[Sql]) -> list[ColumnElement[Any]]:
    """The columns to order by; `tie_break` comes last, so that no two rows are equal."""
    asked = [(_column(one.field, columns), one.descending) for one in orderby]
    last = [(column, False) for column in tie_break if not any(column is other for other, _ in asked)]
    return [_ordered(column, descending) for column, descending in asked + last]


def upper(text: Sql) -> Sql:
    """A to Z; every database folds those alike."""
    return func.upper(_CodePoints(text), type_=Text())


@dataclass(frozen=True)
class Page(Generic[T]):
    items: list[T]
    more: bool
    count: int | None  # of all that fit, if it was asked for


def page(tx: Tx, wanted: Select[Any], options: Options, made: Callable[[Row[Any]], T], **values: Any) -> Page[T]:
    """The rows of a statement that has its conditions and its order."""
    rows = tx.all(wanted.limit(options.top + 1).offset(options.skip), **values)
    count = None
    if options.count:
        found = tx.first(select(func.count()).select_from(wanted.order_by(None).subquery()), **values)
        count = found[0] if found else 0
    return Page([made(row) for row in rows[: options.top]], len(rows) > options.top, count)


def newest_first(created: Sql, key: Sql, *, few: bool) -> list[ColumnElement[Any]]:
    """The order where none was asked for; of few rows, which are then to be sorted."""
    return [(_Unindexed(column) if few else column).desc() for column in (created, key)]


def finds_few(node: Node | None, selective: Sequence[str]) -> bool:
    """Does a filter ask for one of the fields whose values few rows share?"""
    match node:
        case And(parts):
            return any(finds_few(part, selective) for part in parts)
        case Compare(Comparison.EQ, Field(name), Literal()) | In(Field(name), _) | Exists(name, _):
            return name in selective
    return False


def _ordered(column: Sql, descending: bool) -> ColumnElement[Any]:
    key = _CodePoints(column) if isinstance(column.type, String) else column
    directed = key.desc() if descending else key.asc()
    if not getattr(column, "nullable", True):  # no word about NULL, so that PostgreSQL finds the index
        return directed
    return directed.nulls_last() if descending else directed.nulls_first()


@dataclass(frozen=True)
class _Text:
    """A formula: `{}` for each test, and the tests. `height` is how deep parentheses go when it is read."""

    template: str
    tests: tuple[ColumnElement[bool], ...]
    height: int
    op: str = ""  # AND, OR, or a single test


def _formula(node: Node, columns: Columns, *, negated: bool) -> _Text:
    match node:
        case Not(operand):
            return _formula(operand, columns, negated=not negated)
        case And(parts) | Or(parts):
            op = "AND" if isinstance(node, And) != negated else "OR"
            return _joined(op, [_formula(part, columns, negated=negated) for part in parts])
        case Exists(collection, body):
            children = _children(collection, columns)
            inner = None if body is None else _formula(body, columns, negated=False)
            alone = body is None or not any(_asks_the_row(part) for part in walk(body))
            return _leaf(_exists(children, inner, alone, negated), inner.height + 5 if inner else 5)
    return _leaf(_turned(node, columns) if negated else _test(node, columns))


def _leaf(test: ColumnElement[bool], height: int = 1) -> _Text:
    return _Text("{}", (test.self_group(against=operators.and_),), height)


def _joined(op: str, parts: Sequence[_Text]) -> _Text:
    """SQLite reads neither 100 parentheses nor a chain of 1,000 operators: the deepest part comes first, where it
    costs the reader least, and the others are joined in pairs. AND in OR goes without parentheses."""
    first, *rest = sorted((_grouped(part, op) for part in parts), key=lambda part: -part.height)
    return _pair(op, first, _grouped(_paired(op, rest), "")) if rest else first


def _paired(op: str, parts: Sequence[_Text]) -> _Text:
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    left, right = _paired(op, parts[:half]), _paired(op, parts[half:])
    return _pair(op, _grouped(left, ""), _grouped(right, ""))


def _pair(op: str, left: _Text, right: _Text) -> _Text:
    height = max(left.height, right.height + 2)
    return _Text(f"{left.template} {op} {right.template}", left.tests + right.tests, height, op)


def _grouped(part: _Text, outer: str) -> _Text:
    if not part.op or (outer == "OR" and part.op == "AND"):
        return part
    return _Text(f"({part.template})", part.tests, part.height + 1)


def _test(node: Node, columns: Columns) -> ColumnElement[bool]:
    """True where the condition holds; false or NULL where not."""
    match node:
        case Literal(value):
            return true() if value else false()
        case Compare(Comparison.EQ, left, Literal(None)):
            return _value(left, columns).is_(None)
        case Compare(Comparison.EQ, left, Literal() as right):
            return _value(left, columns) == _value(right, columns)
        case Compare(Comparison.EQ, left, right):
            return _value(left, columns).is_not_distinct_from(_value(right, columns))
        case Compare(_, _, Literal(None)):
            return false()
        case Compare(op, left, right):
            return _ORDERINGS[op](_comparable(left, columns), _value(right, columns))
        case In(operand, items):
            return _in(_value(operand, columns), items)
        case Match(place, whole, part):
            return _match(place, _value(whole, columns), _value(part, columns))
    raise TypeError(f"{node} is no single test")


def _turned(node: Node, columns: Columns) -> ColumnElement[bool]:
    """True where the condition does not hold, also where it is NULL."""
    match node:
        case Compare(Comparison.EQ, left, Literal(None)):
            return _value(left, columns).is_not(None)
        case Compare(Comparison.EQ, left, right):
            return _value(left, columns).is_distinct_from(_value(right, columns))
    return not_(func.coalesce(_test(node, columns), false(), type_=Boolean()))


def _exists(children: Children, body: _Text | None, alone: bool, negated: bool) -> ColumnElement[bool]:
    """A body that stands alone is a list of keys, for which SQLite uses an index; for EXISTS it looks at every row."""
    conditions = [*([_Formula.of(body)] if body else []), mine(children.table)]  # where its parentheses cost least
    there: ColumnElement[bool]
    if alone:
        there = children.key.in_(select(children.of).where(*conditions))
    else:
        one = exists().select_from(children.table).where(*conditions, children.of == children.key)
        there = one.correlate_except(children.table)
    return not_(there) if negated else there


def _asks_the_row(node: Node) -> bool:
    """Does a condition on a child look at the row that the child belongs to?"""
    values: tuple[Node | Value, ...] = (node,)
    if isinstance(node, Compare):
        values = (node.left, node.right)
    elif isinstance(node, Match):
        values = (node.whole, node.part)
    elif isinstance(node, In):
        values = (node.operand,)
    fields = (value.field if isinstance(value, Folded) else value for value in values)
    return any(isinstance(field, Field) and field.of is None for field in fields)


def _in(operand: Sql, items: Sequence[Literal]) -> ColumnElement[bool]:
    listed = operand.in_([_bound(item.value, item.kind) for item in items if item.value is not None])
    return or_(listed, operand.is_(None)) if any(item.value is None for item in items) else listed


def _match(place: Place, whole: Sql, part: Sql) -> ColumnElement[bool]:
    match place:
        case Place.ANYWHERE:
            return _Position(whole, part) > 0
        case Place.START:
            return func.substr(whole, 1, func.length(part)) == part
        case Place.END:
            return func.substr(whole, func.length(whole) - func.length(part) + 1) == part


def _value(value: Value, columns: Columns) -> Sql:
    match value:
        case Literal(plain, kind):
            return _bound(plain, kind)
        case Field():
            return _column(value, columns)
        case Folded(case, field):
            match _declared(field, columns), case:
                case Cased(_, lower, _), Case.LOWER:
                    return lower
                case Cased(_, _, upper), Case.UPPER:
                    return upper
            fold = func.lower if case is Case.LOWER else func.upper
            return fold(_CodePoints(_column(field, columns)), type_=Text())


def _comparable(value: Value, columns: Columns) -> Sql:
    return _CodePoints(_value(value, columns)) if value.kind is Kind.TEXT else _value(value, columns)


def _column(field: Field, columns: Columns) -> Sql:
    declared = _declared(field, columns)
    return declared.column if isinstance(declared, Cased) else declared


def _declared(field: Field, columns: Columns) -> Sql | Cased:
    declared = columns[field.name] if field.of is None else _children(field.of, columns).columns[field.name]
    assert not isinstance(declared, Children)
    return declared


def _children(collection: str, columns: Columns) -> Children:
    declared = columns[collection]
    assert isinstance(declared, Children)
    return declared


class _Double(TypeDecorator[Any]):
    """A number as its nearest double. PostgreSQL gets it as a decimal, which it compares with integers exactly."""

    impl = Float
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Float() if dialect.name == "sqlite" else Numeric())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return float(value) if dialect.name == "sqlite" else Decimal(repr(float(value)))


_TYPES: dict[Kind | None, TypeEngine[Any]] = {
    Kind.TEXT: Text(),
    Kind.INTEGER: BigInteger(),
    Kind.NUMBER: _Double(),
    Kind.BOOLEAN: Boolean(),
    Kind.GUID: Uuid(),
    Kind.INSTANT: Instant(),
    Kind.DATE: Date(),
    None: Text(),
}
_ORDERINGS: dict[Comparison, Callable[[Any, Any], ColumnElement[bool]]] = {
    Comparison.GT: operators.gt,
    Comparison.GE: operators.ge,
    Comparison.LT: operators.lt,
    Comparison.LE: operators.le,
}


def _bound(value: Any, kind: Kind | None) -> Sql:
    return bindparam(value.name, type_=_TYPES[kind]) if isinstance(value, Slot) else literal(value, _TYPES[kind])


class _Formula(FunctionElement[bool]):
    """Tests joined by AND and OR as the template has it. SQLAlchemy's own and_ and or_ would undo the pairs."""

    type = Boolean()
    inherit_cache = True
    # The key of SQLAlchemy's cache of statements: formulas of the same tests differ by their template.
    _traverse_internals = [*FunctionElement._traverse_internals, ("template", InternalTraversal.dp_string)]  # noqa: RUF012
    template: str

    @classmethod
    def of(cls, text: _Text) -> "_Formula":
        formula = (cls if len(text.tests) <= _SMALL else _LargeFormula)(*text.tests)
        formula.template = text.template
        return formula

    def self_group(self, against: Any = None) -> "_Formula":  # noqa: ARG002  # it comes in parentheses
        return self


class _LargeFormula(_Formula):
    """One that is hardly asked for twice, and would fill the cache of statements."""

    inherit_cache = False


class _Unindexed(FunctionElement[Any]):
    """A column to order by, for which SQLite is not to give up a better index than the one of that order."""

    inherit_cache = True


class _CodePoints(FunctionElement[str]):
    """Text that is compared, ordered and folded by code point, whatever the database's locale."""

    type = Text()
    inherit_cache = True


class _Position(FunctionElement[int]):
    """Where the second text begins in the first, from 1; 0 where it does not occur."""

    type = Integer()
    inherit_cache = True


@compiles(_Formula)
def _sql_of_formula(element: _Formula, compiler: SQLCompiler, **kw: Any) -> str:
    return f"({element.template.format(*(compiler.process(test, **kw) for test in element.clauses))})"


@compiles(_Unindexed, "sqlite")
def _unindexed_on_sqlite(element: _Unindexed, compiler: SQLCompiler, **kw: Any) -> str:
    return f"+{compiler.process(element.clauses, **kw)}"


@compiles(_Unindexed, "postgresql")
def _unindexed_on_postgresql(element: _Unindexed, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(element.clauses, **kw)


@compiles(_CodePoints, "sqlite")
def _code_points_on_sqlite(element: _CodePoints, compiler: SQLCompiler, **kw: Any) -> str:
    return f"({compiler.process(element.clauses, **kw)}) COLLATE BINARY"


@compiles(_CodePoints, "postgresql")
def _code_points_on_postgresql(element: _CodePoints, compiler: SQLCompiler, **kw: Any) -> str:
    return f'({compiler.process(element.clauses, **kw)}) COLLATE "C"'


@compiles(_Position, "sqlite")
def _position_on_sqlite(element: _Position, compiler: SQLCompiler, **kw: Any) -> str:
    return f"instr({compiler.process(element.clauses, **kw)})"


@compiles(_Position, "postgresql")
def _position_on_postgresql(element: _Position, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **kw)})"
