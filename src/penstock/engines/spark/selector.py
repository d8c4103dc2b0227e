"""Translate filter expressions into Spark columns, one DataFrame function per node.

The condition fails on no data in a session of `isolated_session`. Where Spark differs from the filter language, the
column is explicit: NaN equals nothing, decimals become the nearest double, x / 0 is NULL. Numbers of more than 38
digits, which Spark lacks, are arrays of five base-10^17 digits, the most significant first; the arrays sort like the
numbers.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F  # noqa: N812

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
    type_of,
)
from penstock.core.selector.decimal256 import BASE, HALF, LIFT, LIMB_COUNT, products, split_limbs
from penstock.engines.spark.types import spark_type

COMPARE: dict[Comparison, Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
    Comparison.EQ: operator.eq,
    Comparison.NE: operator.ne,
    Comparison.LT: operator.lt,
    Comparison.LE: operator.le,
    Comparison.GT: operator.gt,
    Comparison.GE: operator.ge,
}

CALCULATE: dict[ArithmeticOperator, Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
    ArithmeticOperator.ADD: operator.add,
    ArithmeticOperator.SUBTRACT: operator.sub,
    ArithmeticOperator.MULTIPLY: operator.mul,
    ArithmeticOperator.DIVIDE: F.try_divide,
}

_NEGATED = {ArithmeticOperator.ADD: ArithmeticOperator.SUBTRACT, ArithmeticOperator.SUBTRACT: ArithmeticOperator.ADD}
_DECIMAL_38 = st.DecimalType(38, 0)
_WIDE_TYPE = st.ArrayType(st.LongType())


def to_spark_condition(node: Node, schema: pa.Schema) -> SparkColumn:
    """Return the Spark condition for rows whose filter expression (bound or not) is TRUE."""
    return _to_column(bind(node, schema))


def _to_column(node: Node) -> SparkColumn:
    match node:
        case Column(name):
            return F.col(f"`{name.replace('`', '``')}`")
        case Literal(value, type):
            return _literal(value, type)
        case Cast(operand, type):
            return _cast_column(_to_column(operand), type_of(operand), type)
        case Arithmetic(op, left, right, type) if _is_wide(type):
            if op is ArithmeticOperator.MULTIPLY:
                return _multiply(_to_column(left), _to_column(right))
            # the operands need the same scale
            return _sum_terms([(sign, _to_column(Cast(term, type))) for sign, term in _terms(node)])
        case Arithmetic(op, left, right):
            return CALCULATE[op](_to_column(left), _to_column(right))
        case Compare(op, left, right):
            return _compare(op, _to_column(left), _to_column(right), type_of(left))
        case Between(operand, low, high):
            return _to_column(And((Compare(Comparison.GE, operand, low), Compare(Comparison.LE, operand, high))))
        case In(operand, items):
            return _is_in(_to_column(operand), items)
        case Like(operand, pattern):
            return F.rlike(_to_column(operand), F.lit(_regex(pattern)))
        case IsNull(operand):
            return _to_column(operand).isNull()
        case Not(operand):
            return ~_to_column(operand)
        case And(parts):
            return _join_balanced(operator.and_, [_to_column(part) for part in parts])
        case Or(parts):
            return _join_balanced(operator.or_, [_to_column(part) for part in parts])


def _is_wide(type: Any) -> bool:
    return bool(pa.types.is_decimal256(type))


def _literal(value: Any, type: Any) -> SparkColumn:
    match value:
        case Decimal() if _is_wide(type):
            return _array(map(F.lit, split_limbs(value, type.scale)))
        case Decimal():
            value = f"{value:f}"
        case date():
            value = value.isoformat()  # as text: a date would be converted by Java's time zone and calendar
    return F.lit(value).cast(_WIDE_TYPE if _is_wide(type) else spark_type(type))


def _cast_column(value: SparkColumn, input_type: Any, type: Any) -> SparkColumn:
    match _is_wide(input_type), _is_wide(type):
        case True, True:
            return _shift(value, type.scale - input_type.scale)
        case False, True:
            return _shift(_split(value), type.scale - (input_type.scale if pa.types.is_decimal(input_type) else 0))
        case True, False:  # to double: the only cast from wide numbers
            return _as_double(value, input_type.scale)
    if pa.types.is_decimal(input_type) and pa.types.is_floating(type):
        value = value.cast(
            st.StringType()
        )  # text is parsed to the nearest double; a decimal cast may be off by one unit
    return value.cast(spark_type(type))


def _compare(op: Comparison, left: SparkColumn, right: SparkColumn, type: Any) -> SparkColumn:
    result = COMPARE[op](left, right)
    if not pa.types.is_floating(type):
        return result
    unknown = F.when(left.isNull() | right.isNull(), F.lit(None).cast(st.BooleanType()))
    return unknown.when(F.isnan(left) | F.isnan(right), F.lit(op is Comparison.NE)).otherwise(result)


def _is_in(value: SparkColumn, items: tuple[Literal, ...]) -> SparkColumn:
    is_member = value.isin([_to_column(item) for item in _with_both_zeros(items)])
    if not pa.types.is_floating(items[0].type):
        return is_member
    # NaN is handled apart: Spark relies on Parquet minimum and maximum, which exclude NaN
    of_nan = None if any(item.value is None for item in items) else False
    return F.when(F.isnan(value), F.lit(of_nan).cast(st.BooleanType())).otherwise(is_member)


def _with_both_zeros(items: tuple[Literal, ...]) -> tuple[Literal, ...]:
    """Add 0.0 and -0.0 if one of them is listed: they are equal but have different hashes in Java."""
    if not pa.types.is_floating(items[0].type) or all(item.value != 0 for item in items):
        return items
    return (*items, Literal(0.0, items[0].type), Literal(-0.0, items[0].type))


def _regex(pattern: tuple[str | Wildcard, ...]) -> str:
    """Translate a LIKE pattern to a Java regular expression, with atomic groups after % to avoid backtracking."""
    runs = [""]
    for part in pattern:
        if part is Wildcard.ANY:
            runs.append("")
        else:
            runs[-1] += re.escape(part) if isinstance(part, str) else "."
    first, *others = runs
    middle = "".join(f"(?>.*?{run})" for run in others[:-1] if run)
    last = f".*{others[-1]}" if others else ""
    return rf"(?s)\A{first}{middle}{last}\z"


def _join_balanced(
    join: Callable[[SparkColumn, SparkColumn], SparkColumn], parts: Sequence[SparkColumn]
) -> SparkColumn:
    """Join terms as a balanced tree, because Spark walks expressions recursively."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_join_balanced(join, parts[:middle]), _join_balanced(join, parts[middle:]))


# -- more than 38 digits ----------------------------------------------------------------------------------------------


def _terms(node: Node) -> list[tuple[ArithmeticOperator, Node]]:
    """Flatten a chain of additions and subtractions, because Spark's analyzer fails on deeply nested lambdas."""
    match node:
        case Arithmetic(ArithmeticOperator.ADD, left, right, type) if _is_wide(type):
            return [*_terms(left), *_terms(right)]
        case Arithmetic(ArithmeticOperator.SUBTRACT, left, right, type) if _is_wide(type):
            return [*_terms(left), *((_NEGATED[sign], term) for sign, term in _terms(right))]
        case Cast(operand, type) if _is_wide(type) and _is_wide(type_of(operand)):
            return _terms(operand)
    return [(ArithmeticOperator.ADD, node)]


def _sum_terms(terms: Sequence[tuple[ArithmeticOperator, SparkColumn]]) -> SparkColumn:
    names = [f"t{n}" for n in range(len(terms))]

    def result(row: SparkColumn) -> SparkColumn:
        sums = [_decimal_literal(0)] * LIMB_COUNT
        for name, (sign, _) in zip(names, terms, strict=True):
            sums = [CALCULATE[sign](total, digit) for total, digit in zip(sums, _lowest_first(row[name]), strict=True)]
        return F.when(_join_balanced(operator.and_, [row[name].isNotNull() for name in names]), _normalize(sums))

    return _bind_value(F.struct(*(term.alias(name) for name, (_, term) in zip(names, terms, strict=True))), result)


def _multiply(left: SparkColumn, right: SparkColumn) -> SparkColumn:
    def result(pair: SparkColumn) -> SparkColumn:
        a, b = _lowest_first(pair["a"]), _lowest_first(pair["b"])
        sums = [reduce(operator.add, [a[i] * b[j] for i, j in pairs]) for pairs in products()]
        return F.when(pair["a"].isNotNull() & pair["b"].isNotNull(), _normalize(sums))

    return _bind_value(F.struct(left.alias("a"), right.alias("b")), result)


def _lowest_first(number: SparkColumn) -> list[SparkColumn]:
    return [number[LIMB_COUNT - 1 - k].cast(_DECIMAL_38) for k in range(LIMB_COUNT)]


def _bind_value(value: SparkColumn, result: Callable[[SparkColumn], SparkColumn]) -> SparkColumn:
    """Return `result` of a value that is evaluated once."""
    return F.transform(F.array(value), result)[0]


def _normalize(sums: Sequence[SparkColumn]) -> SparkColumn:
    """Normalize digits that may be too large or negative; only the most significant digit stays signed."""

    def result(sums: SparkColumn) -> SparkColumn:
        carry, lower = _decimal_literal(0), list[SparkColumn]()
        for k in range(LIMB_COUNT - 1):
            digit = (
                sums[k] + carry + _decimal_literal(LIFT * BASE)
            )  # positive, so that remainder and quotient are unambiguous
            lower.append(digit % _decimal_literal(BASE))
            carry = F.call_function("div", digit, _decimal_literal(BASE)).cast(_DECIMAL_38) - _decimal_literal(LIFT)
        top = (sums[LIMB_COUNT - 1] + carry + _decimal_literal(LIFT * BASE + HALF)) % _decimal_literal(
            BASE
        ) - _decimal_literal(HALF)
        return _array([top, *reversed(lower)])

    return _bind_value(F.array(*(digit_sum.cast(_DECIMAL_38) for digit_sum in sums)), result)


def _shift(value: SparkColumn, digits: int) -> SparkColumn:
    return _multiply(value, _array(map(F.lit, split_limbs(10**digits)))) if digits else value


def _split(value: SparkColumn) -> SparkColumn:
    """Split an integer or a decimal (without its point) into base-10^17 digits."""
    digits = F.replace(value.cast(st.StringType()), F.lit("."), F.lit("")).cast(_DECIMAL_38)

    def result(number: SparkColumn) -> SparkColumn:
        low = number % _decimal_literal(BASE**2)
        high = F.call_function("div", number, _decimal_literal(BASE**2))
        sums = [low % _decimal_literal(BASE), F.call_function("div", low, _decimal_literal(BASE)), high]
        return F.when(number.isNotNull(), _normalize([*sums, *[_decimal_literal(0)] * (LIMB_COUNT - len(sums))]))

    return _bind_value(digits, result)


def _as_double(value: SparkColumn, scale: int) -> SparkColumn:
    def text(digits: SparkColumn) -> SparkColumn:
        return F.concat(
            *(F.lpad(digits[k].cast(st.StringType()), 17, "0") for k in range(LIMB_COUNT)), F.lit(f"E-{scale}")
        )

    def result(number: SparkColumn) -> SparkColumn:
        positive = F.when(number[0] < 0, _sum_terms([(ArithmeticOperator.SUBTRACT, number)]))
        sign = F.when(number[0] < 0, F.lit("-")).otherwise(F.lit(""))
        return F.concat(sign, _bind_value(positive.otherwise(number), text)).cast(st.DoubleType())

    return _bind_value(value, result)


def _array(parts: Iterable[SparkColumn]) -> SparkColumn:
    return F.array(*(part.cast(st.LongType()) for part in parts))


def _decimal_literal(number: int) -> SparkColumn:
    return F.lit(str(number)).cast(_DECIMAL_38)
