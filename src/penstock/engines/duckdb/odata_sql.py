"""Translate OData query options into SQL around a query: `before + "(SELECT …)" + after`.

    page_query(options, fields, result_schema, …)  a page and one row more, in a total order
    rows_query(options, fields, result_schema)   all rows that match $filter, ordered by $orderby only
    count_query(options, fields, result_schema)  number of rows that match $filter

Without $orderby, a page has the order of the query itself: DuckDB preserves the order of a subquery in a projection, a
filter and a limit. The caller continues the ORDER BY of the query with the columns of `tie_break`, which makes it total.

`result_schema` is the Arrow schema of the query's result. Its columns are addressed by position, independent of their
names, and are cast to the types that Arrow receives. No text of a caller becomes part of the SQL.

`core.odata` defines the meaning of filters. Numbers are compared exactly: integers and decimals by digits, doubles with
the nearest double. Dates stored as text are compared as text, timestamps stored as text by instant, to the nanosecond. Case folding maps
character by character, in literals as in columns: ß never becomes SS. A missing optional field is null. NULL is lowest and NaN highest; a result
with NaN violates its schema anyway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.formatting import format_value
from penstock.core.odata import (
    CaseFold,
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
    QueryOptions,
    TextMatch,
    Truth,
    TruthTest,
    Value,
    field_names,
    is_never_null,
    operand_tests,
)
from penstock.core.registry.query import WRAPPER_PARAMETER_PREFIX
from penstock.core.result_schema import ResultField
from penstock.core.result_schema.odata_fields import selected_fields
from penstock.engines.duckdb.comparison_types import (
    NULL_COMPARISON_TYPES,
    ComparisonType,
    ExactType,
    Operand,
    common_operands,
    comparison_operand,
)
from penstock.engines.duckdb.types import quote_identifier, sql_type
from penstock.errors import Invalid, Unsupported

_COMPARISON_SQL = {
    ODataComparison.EQ: "=",
    ODataComparison.GT: ">",
    ODataComparison.GE: ">=",
    ODataComparison.LT: "<",
    ODataComparison.LE: "<=",
}
_MATCH_FUNCTIONS = {MatchKind.ANYWHERE: "contains", MatchKind.START: "starts_with", MatchKind.END: "ends_with"}
PLACEHOLDER_COLUMN = "-1"  # the only column if no field is selected; no field can have this name
_ASCENDING, _DESCENDING = "ASC NULLS FIRST", "DESC NULLS LAST"
_UNAMBIGUOUS_TYPES = (
    pt.is_boolean,
    pt.is_integer,
    pt.is_floating,
    pt.is_date32,
)  # exactly one DuckDB type maps to each of these Arrow types
_FOLD_FUNCTIONS = {LetterCase.LOWER: "lower", LetterCase.UPPER: "upper"}


@dataclass(frozen=True)
class WrappedQuery:
    before: str
    after: str
    parameters: Mapping[str, Any]  # by parameter name
    filtered: frozenset[str] = frozenset()  # fields used in the filter
    tie_break: tuple[int, ...] = ()  # numbers of result columns, from 1, that the query's own ORDER BY continues with


def page_query(
    options: QueryOptions, fields: Sequence[ResultField], result_schema: pa.Schema, *, ordered: bool = False
) -> WrappedQuery:
    """Wrap a query; `ordered` means that it has an ORDER BY of its own."""
    wrapper = _QueryWrapper(options, fields, result_schema)
    order = "" if ordered and not options.orderby else wrapper.order_clause(total=True)
    page = wrapper.wrap(wrapper.columns(), order, f" LIMIT {options.top + 1} OFFSET {options.skip}")
    if not ordered:
        return page
    # Also with $orderby: a LIMIT of the query must select the same rows for every page.
    numbers = (wrapper.column_indices[field.name] + 1 for field in fields if field.name in wrapper.column_indices)
    return replace(page, tie_break=tuple(numbers))


def rows_query(options: QueryOptions, fields: Sequence[ResultField], result_schema: pa.Schema) -> WrappedQuery:
    wrapper = _QueryWrapper(options, fields, result_schema)
    return wrapper.wrap(wrapper.columns(), wrapper.order_clause(total=False))


def count_query(options: QueryOptions, fields: Sequence[ResultField], result_schema: pa.Schema) -> WrappedQuery:
    return _QueryWrapper(options, fields, result_schema).wrap(["count(*)"])


class _QueryWrapper:
    def __init__(self, options: QueryOptions, fields: Sequence[ResultField], result_schema: pa.Schema) -> None:
        if options.search:
            raise Invalid("bad_option.search", option="$search")
        self.options, self.fields, self.result_schema = options, fields, result_schema
        self.types = {field.name: field.type for field in fields}
        self.required = {field.name for field in fields if not field.optional}
        self.column_indices = {
            name: index for index, name in reversed(list(enumerate(result_schema.names))) if name in self.types
        }
        self.selected = [field.name for field in selected_fields(options, fields) if field.name in self.column_indices]
        self.parameters: dict[str, Any] = {}

    def wrap(self, columns: Sequence[str], *clauses: str) -> WrappedQuery:
        column_names = ", ".join(_column(index) for index in range(len(self.result_schema)))
        where = "" if self.options.filter is None else f" WHERE {self.filter_sql(self.options.filter, Truth.IS_TRUE)}"
        after = f" AS q({column_names}){where}{''.join(clauses)}"
        filtered = frozenset() if self.options.filter is None else field_names(self.options.filter)
        return WrappedQuery(f"SELECT {', '.join(columns)} FROM ", after, self.parameters, filtered)

    def columns(self) -> list[str]:
        """Return the selected columns; without any, a placeholder column whose name no field can have."""
        return [f"{self.column_sql(name)} AS {quote_identifier(name)}" for name in self.selected] or [
            f"TRUE AS {quote_identifier(PLACEHOLDER_COLUMN)}"
        ]

    def order_clause(self, *, total: bool) -> str:
        """Return the ORDER BY clause; a total order continues with all fields to distinguish equal rows."""
        directions = {
            self.field(item.field.name).sql: _DESCENDING if item.descending else _ASCENDING
            for item in self.options.orderby
        }
        if total:
            for name in filter(self.column_indices.__contains__, self.types):
                directions.setdefault(self.column_sql(name), _ASCENDING)
        # Selected columns are referenced by number: repeating an expression costs DuckDB time.
        numbers = {self.column_sql(name): str(number) for number, name in enumerate(self.selected, 1)}
        return (
            f" ORDER BY {', '.join(f'{numbers.get(sql, sql)} {direction}' for sql, direction in directions.items())}"
            if directions
            else ""
        )

    def filter_sql(self, node: Node, truth: Truth) -> str:
        """Return SQL that is TRUE where the test of the condition holds, and FALSE or NULL elsewhere."""
        match node:
            case ODataNot(operand):
                return self.filter_sql(operand, truth.of_operand)
            case ODataAnd(parts) | ODataOr(parts):
                operator = " AND " if isinstance(node, ODataAnd) != truth.swaps_operators else " OR "
                return f"({operator.join(self.filter_sql(part, truth) for part in parts)})"
            case TruthTest(operand):
                operator = " OR " if truth.swaps_operators else " AND "
                return f"({operator.join(self.filter_sql(operand, test) for test in operand_tests(node, truth))})"
            case ODataLiteral(value):
                return str(truth.holds(value)).upper()
        test = self.test_sql(node)
        match truth:
            case Truth.IS_TRUE:
                return test
            case Truth.IS_FALSE if not is_never_null(node):
                return f"(NOT {test})"
            case Truth.IS_NOT_FALSE:
                return test if is_never_null(node) else f"coalesce({test}, TRUE)"
        return f"(NOT coalesce({test}, FALSE))"

    def test_sql(self, node: Node) -> str:
        """Return SQL that is NULL where the condition is null; a comparison may be NULL where it is false."""
        match node:
            case ODataField():
                return self.value(node).sql
            case ODataCompare(ODataComparison.EQ, left, ODataLiteral(None)):
                return f"({self.value(left).sql} IS NULL)"
            case ODataCompare(_, _, ODataLiteral(None)):
                return "FALSE"
            case ODataCompare(op, left, ODataLiteral(value)):
                return self.comparison_sql(op, self.value(left), value)
            case ODataCompare(ODataComparison.EQ, left, right):
                left_sql, right_sql = common_operands(self.value(left), self.value(right))
                return f"({left_sql} IS NOT DISTINCT FROM {right_sql})"
            case ODataCompare(op, left, right):
                left_sql, right_sql = common_operands(self.value(left), self.value(right))
                return f"({left_sql} {_COMPARISON_SQL[op]} {right_sql})"
            case ODataIn(left, items):
                return self.membership_sql(self.value(left), items)
            case TextMatch(match_kind, whole, part):
                return f"{_MATCH_FUNCTIONS[match_kind]}({self.value(whole).sql}, {self.value(part).sql})"
        raise TypeError(f"{node} is not a single test")

    def comparison_sql(self, op: ODataComparison, operand: Operand, value: Any) -> str:
        if not isinstance(operand.comparison_type, ExactType):
            return f"({operand.sql} {_COMPARISON_SQL[op]} {self.bind_parameter(value, operand.comparison_type)})"
        reduced = operand.comparison_type.reduce_comparison(op, value)
        if isinstance(reduced, bool):
            return f"({operand.sql} IS NOT NULL)" if reduced else "FALSE"
        op, number = reduced
        return f"({operand.sql} {_COMPARISON_SQL[op]} {self.bind_parameter(number, operand.comparison_type)})"

    def membership_sql(self, operand: Operand, items: Sequence[ODataLiteral | CaseFold]) -> str:
        values = [item.value for item in items if isinstance(item, ODataLiteral)]
        folded = [self.value(item).sql for item in items if isinstance(item, CaseFold)]
        not_null = [value for value in values if value is not None]
        if isinstance(operand.comparison_type, ExactType):
            reduced = [operand.comparison_type.reduce_comparison(ODataComparison.EQ, value) for value in not_null]
            not_null = [comparison[1] for comparison in reduced if not isinstance(comparison, bool)]
        listed = ", ".join([*folded, *(self.bind_parameter(value, operand.comparison_type) for value in not_null)])
        test_sql = f"({operand.sql} IN ({listed}))" if listed else "FALSE"
        return f"({test_sql} OR {operand.sql} IS NULL)" if None in values else test_sql

    def value(self, value: Value) -> Operand:
        match value:
            case ODataLiteral(text):  # text: literals of other types are always the right operand
                return Operand(self.bind_parameter(text, ComparisonType.TEXT), ComparisonType.TEXT)
            case CaseFold(case, operand):
                return Operand(f"{_FOLD_FUNCTIONS[case]}({self.value(operand).sql})", ComparisonType.TEXT)
        return self.field(value.name)

    def field(self, name: str) -> Operand:
        declared_type = self.types[name]
        index = self.column_indices.get(name)
        if index is None and name in self.required:
            raise Unsupported("field_mismatch.missing", field=name)
        data_type = pa.null() if index is None else self.result_schema.field(index).type
        if pt.is_null(data_type):
            return Operand(
                f"CAST(NULL AS {NULL_COMPARISON_TYPES[declared_type].value})", NULL_COMPARISON_TYPES[declared_type]
            )
        if (operand := comparison_operand(declared_type, data_type, self.column_sql(name))) is None:
            values = {"declared_type": declared_type, "data_type": format_value(data_type)}
            raise Unsupported("field_mismatch.type", values, field=name)
        return operand

    def column_sql(self, name: str) -> str:
        """Return the column in the type that Arrow receives: DuckDB orders an ENUM differently from its text."""
        column, arrow_type = (
            _column(self.column_indices[name]),
            self.result_schema.field(self.column_indices[name]).type,
        )
        duckdb_type = (
            None if any(is_unambiguous(arrow_type) for is_unambiguous in _UNAMBIGUOUS_TYPES) else sql_type(arrow_type)
        )
        return column if duckdb_type is None else f"CAST({column} AS {duckdb_type})"

    def bind_parameter(self, value: Any, comparison_type: ExactType | ComparisonType) -> str:
        name = f"{WRAPPER_PARAMETER_PREFIX}{len(self.parameters)}"
        self.parameters[name] = value if value is None else comparison_type.format_value(value)
        return f"CAST(${name} AS {comparison_type.value})"


def _column(index: int) -> str:
    return quote_identifier(str(index))
