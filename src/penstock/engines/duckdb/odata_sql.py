"""OData options over what a query returns, as SQL to put around it: `before + "(SELECT …)" + after`.

    kinds(fields)                       the fields that options may speak of, for `core.odata.options`
    selected(options, fields)           the fields that are asked for
    page(options, fields, have)         a page and one row more, in an order that never changes
    rows(options, fields, have)         all rows that the filter keeps; in order only where one is asked for
    count(options, fields, have)        how many these are

`have` is the schema of the query's own result. Its columns are known by their places, so that neither their case nor
their odd names matter, and each has the type that Arrow is given. Nothing that a caller wrote becomes SQL text.

What a filter means is told in `core.odata`. Numbers are compared as exactly as the column holds them: integers and
decimals digit by digit, doubles with the nearest double. Dates that are text are compared as text, instants that are
text by the moment they name. Text is folded letter by letter: ß never becomes SS. An optional
field that the result does not have is null. NULL is lowest, NaN highest: a result that holds one breaks its promise anyway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.result_schema import Field, FieldType
from penstock.core.odata import (And, Case, Collection, Compare, Comparison, Fields, Folded, In, Kind, Literal, Match, Node, Not, Options, Or, Place, Value, spoken_of)
from penstock.core.registry.query import OURS
from penstock.engines.duckdb.comparison_types import OF_NULL, Exact, Measure, Operand, alike, measured
from penstock.engines.duckdb.types import quoted, sql_type
from penstock.errors import Invalid, Unsupported

_KINDS = {
    FieldType.STRING: Kind.TEXT,
    FieldType.NUMBER: Kind.NUMBER,
    FieldType.BOOLEAN: Kind.BOOLEAN,
    FieldType.DATE: Kind.DATE,
    FieldType.DATETIME: Kind.INSTANT,
}
_SIGNS = {
    Comparison.EQ: "=",
    Comparison.GT: ">",
    Comparison.GE: ">=",
    Comparison.LT: "<",
    Comparison.LE: "<=",
}
_PLACES = {Place.ANYWHERE: "contains", Place.START: "starts_with", Place.END: "ends_with"}
NOTHING = "-1"  # the one column of rows of which no field is there; no field can be called like it
_ASCENDING, _DESCENDING = "ASC NULLS FIRST", "DESC NULLS LAST"
_CERTAIN = (
    pt.is_boolean,
    pt.is_integer,
    pt.is_floating,
    pt.is_date32,
)  # no other type of DuckDB's looks the same to Arrow
_FOLDS = {Case.LOWER: "lower", Case.UPPER: "upper"}


@dataclass(frozen=True)
class Wrapped:
    before: str
    after: str
    parameters: Mapping[str, Any]  # by their names in the SQL
    filtered: frozenset[str] = frozenset()  # the fields that the condition speaks of


def kinds(fields: Sequence[Field]) -> Fields:
    """An array is a collection without fields: it can be selected, and neither filtered nor ordered by."""
    return {field.name: Collection({}) if field.array else _KINDS[field.type] for field in fields}


def selected(options: Options, fields: Sequence[Field]) -> tuple[Field, ...]:
    if options.select is None:
        return tuple(fields)
    known = {field.name: field for field in fields}
    return tuple(known[name] for name in options.select)


def page(options: Options, fields: Sequence[Field], have: pa.Schema) -> Wrapped:
    asked = _Asked(options, fields, have)
    return asked.wrapped(asked.columns(), asked.order(whole=True), f" LIMIT {options.top + 1} OFFSET {options.skip}")


def rows(options: Options, fields: Sequence[Field], have: pa.Schema) -> Wrapped:
    asked = _Asked(options, fields, have)
    return asked.wrapped(asked.columns(), asked.order(whole=False))


def count(options: Options, fields: Sequence[Field], have: pa.Schema) -> Wrapped:
    return _Asked(options, fields, have).wrapped(["count(*)"])


class _Asked:
    def __init__(self, options: Options, fields: Sequence[Field], have: pa.Schema) -> None:
        if options.search:
            raise Invalid("bad_option", "$search: a query has none; use contains in $filter", option="$search")
        self.options, self.fields, self.have = options, fields, have
        self.types = {field.name: field.type for field in fields}
        self.required = {field.name for field in fields if not field.optional}
        self.places = {name: place for place, name in reversed(list(enumerate(have.names))) if name in self.types}
        self.shown = [field.name for field in selected(options, fields) if field.name in self.places]
        self.parameters: dict[str, Any] = {}

    def wrapped(self, columns: Sequence[str], *clauses: str) -> Wrapped:
        places = ", ".join(_column(place) for place in range(len(self.have)))
        where = "" if self.options.filter is None else f" WHERE {self.formula(self.options.filter)}"
        after = f" AS q({places}){where}{''.join(clauses)}"
        filtered = frozenset() if self.options.filter is None else spoken_of(self.options.filter)
        return Wrapped(f"SELECT {', '.join(columns)} FROM ", after, self.parameters, filtered)

    def columns(self) -> list[str]:
        """A result without any of them keeps its rows, in a column that no field can be called like."""
        return [f"{self.plain(name)} AS {quoted(name)}" for name in self.shown] or [f"TRUE AS {quoted(NOTHING)}"]

    def order(self, *, whole: bool) -> str:
        """As asked; to the last field if rows that are equal so far are to be told apart."""
        by = {
            self.field(it.field.name).sql: _DESCENDING if it.descending else _ASCENDING for it in self.options.orderby
        }
        if whole:
            for name in filter(self.places.__contains__, self.types):
                by.setdefault(self.plain(name), _ASCENDING)
        # What is shown is known by its number: to write it twice would cost DuckDB time.
        numbers = {self.plain(name): str(number) for number, name in enumerate(self.shown, 1)}
        return f" ORDER BY {', '.join(f'{numbers.get(sql, sql)} {way}' for sql, way in by.items())}" if by else ""

    def formula(self, node: Node, *, negated: bool = False) -> str:
        """TRUE where the condition holds. A single test may be NULL where not; one that is turned around may not."""
        match node:
            case Not(operand):
                return self.formula(operand, negated=not negated)
            case And(parts) | Or(parts):
                joint = " AND " if isinstance(node, And) != negated else " OR "
                return f"({joint.join(self.formula(part, negated=negated) for part in parts)})"
        test = self.test(node)
        return f"(NOT coalesce({test}, FALSE))" if negated else test

    def test(self, node: Node) -> str:
        match node:
            case Literal(value):
                return str(bool(value)).upper()
            case Compare(Comparison.EQ, left, Literal(None)):
                return f"({self.value(left).sql} IS NULL)"
            case Compare(_, _, Literal(None)):
                return "FALSE"
            case Compare(op, left, Literal(value)):
                return self.compared(op, self.value(left), value)
            case Compare(Comparison.EQ, left, right):
                one, other = alike(self.value(left), self.value(right))
                return f"({one} IS NOT DISTINCT FROM {other})"
            case Compare(op, left, right):
                one, other = alike(self.value(left), self.value(right))
                return f"({one} {_SIGNS[op]} {other})"
            case In(left, items):
                return self.among(self.value(left), [item.value for item in items])
            case Match(place, whole, part):
                return f"{_PLACES[place]}({self.value(whole).sql}, {self.value(part).sql})"
        raise TypeError(f"{node} is no single test")

    def compared(self, op: Comparison, operand: Operand, value: Any) -> str:
        if not isinstance(operand.measure, Exact):
            return f"({operand.sql} {_SIGNS[op]} {self.bound(value, operand.measure)})"
        asked = operand.measure.reduced(op, value)
        if isinstance(asked, bool):
            return f"({operand.sql} IS NOT NULL)" if asked else "FALSE"
        op, near = asked
        return f"({operand.sql} {_SIGNS[op]} {self.bound(near, operand.measure)})"

    def among(self, operand: Operand, values: list[Any]) -> str:
        there = [value for value in values if value is not None]
        if isinstance(operand.measure, Exact):
            asked = [operand.measure.reduced(Comparison.EQ, value) for value in there]
            there = [one[1] for one in asked if not isinstance(one, bool)]
        listed = ", ".join(self.bound(value, operand.measure) for value in there)
        test = f"({operand.sql} IN ({listed}))" if listed else "FALSE"
        return f"({test} OR {operand.sql} IS NULL)" if None in values else test

    def value(self, value: Value) -> Operand:
        match value:
            case Literal(plain):  # text: whatever else is compared stands on the right
                return Operand(self.bound(plain, Measure.TEXT), Measure.TEXT)
            case Folded(case, field):
                return Operand(f"{_FOLDS[case]}({self.field(field.name).sql})", Measure.TEXT)
        return self.field(value.name)

    def field(self, name: str) -> Operand:
        kind = self.types[name]
        place = self.places.get(name)
        if place is None and name in self.required:
            told = f"{name!r} cannot be filtered or ordered by: it is promised, and the result does not have it"
            raise Unsupported("unfit_column", told, field=name)
        type = pa.null() if place is None else self.have.field(place).type
        if pt.is_null(type):
            return Operand(f"CAST(NULL AS {OF_NULL[kind].value})", OF_NULL[kind])
        if (found := measured(kind, type, self.plain(name))) is None:
            told = f"{name!r} cannot be filtered or ordered by: it is promised as {kind}, and the result has {type}"
            raise Unsupported("unfit_column", told, field=name)
        return found

    def plain(self, name: str) -> str:
        """The column, of the type that Arrow is given: DuckDB orders an ENUM otherwise than its text."""
        column, held = _column(self.places[name]), self.have.field(self.places[name]).type
        type = None if any(is_certain(held) for is_certain in _CERTAIN) else sql_type(held)
        return column if type is None else f"CAST({column} AS {type})"

    def bound(self, value: Any, measure: Exact | Measure) -> str:
        name = f"{OURS}{len(self.parameters)}"
        self.parameters[name] = value if value is None else measure.written(value)
        return f"CAST(${name} AS {measure.value})"


def _column(place: int) -> str:
    return quoted(str(place))
