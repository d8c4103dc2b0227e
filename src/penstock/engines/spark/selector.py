"""Read a selector the way Spark does: one node, one column of the DataFrame API.

The condition fails on no data, under the settings of `for_merging`. Where Spark means something else than the language,
the column says it in more words: NaN equals nothing, decimals become the nearest double, x / 0 is NULL. A number of
more than 38 digits, which Spark does not have, is an array of five places to the base 10^17, the highest first: such
arrays sort as the numbers do.
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

from penstock.core.selector import (And, Arithmetic, Between, Cast, Column, Compare, Comparison, In, IsNull, Like, Literal, Node, Not, Operation, Or, Wild, bind, type_of)
from penstock.core.selector.decimal256 import BASE, HALF, LIFT, PLACES, places, products
from penstock.engines.spark.types import spark_type

COMPARE: dict[Comparison, Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
    Comparison.EQ: operator.eq,
    Comparison.NE: operator.ne,
    Comparison.LT: operator.lt,
    Comparison.LE: operator.le,
    Comparison.GT: operator.gt,
    Comparison.GE: operator.ge,
}

CALCULATE: dict[Operation, Callable[[SparkColumn, SparkColumn], SparkColumn]] = {
    Operation.ADD: operator.add,
    Operation.SUBTRACT: operator.sub,
    Operation.MULTIPLY: operator.mul,
    Operation.DIVIDE: F.try_divide,
}

NEGATED = {Operation.ADD: Operation.SUBTRACT, Operation.SUBTRACT: Operation.ADD}
EXACT = st.DecimalType(38, 0)
WIDE = st.ArrayType(st.LongType())


def condition(node: Node, schema: pa.Schema) -> SparkColumn:
    """The filter that keeps the rows for which the selector (bound or not) is TRUE, of a frame with these columns."""
    return _lower(bind(node, schema))


def _lower(node: Node) -> SparkColumn:
    match node:
        case Column(name):
            return F.col(f"`{name.replace('`', '``')}`")
        case Literal(value, type):
            return _literal(value, type)
        case Cast(operand, type):
            return _cast(_lower(operand), type_of(operand), type)
        case Arithmetic(op, left, right, type) if _is_wide(type):
            if op is Operation.MULTIPLY:
                return _multiplied(_lower(left), _lower(right))
            # cast, because the points must stand in the same place
            return _summed([(sign, _lower(Cast(term, type))) for sign, term in _terms(node)])
        case Arithmetic(op, left, right):
            return CALCULATE[op](_lower(left), _lower(right))
        case Compare(op, left, right):
            return _compared(op, _lower(left), _lower(right), type_of(left))
        case Between(operand, low, high):
            return _lower(And((Compare(Comparison.GE, operand, low), Compare(Comparison.LE, operand, high))))
        case In(operand, items):
            return _among(_lower(operand), items)
        case Like(operand, pattern):
            return F.rlike(_lower(operand), F.lit(_regex(pattern)))
        case IsNull(operand):
            return _lower(operand).isNull()
        case Not(operand):
            return ~_lower(operand)
        case And(parts):
            return _balanced(operator.and_, [_lower(part) for part in parts])
        case Or(parts):
            return _balanced(operator.or_, [_lower(part) for part in parts])


def _is_wide(type: Any) -> bool:
    return bool(pa.types.is_decimal256(type))


def _literal(value: Any, type: Any) -> SparkColumn:
    match value:
        case Decimal() if _is_wide(type):
            return _array(map(F.lit, places(value, type.scale)))
        case Decimal():
            value = f"{value:f}"
        case date():
            value = value.isoformat()  # as text: as a date, it would go through Java's zone and calendar
    return F.lit(value).cast(WIDE if _is_wide(type) else spark_type(type))


def _cast(value: SparkColumn, given: Any, type: Any) -> SparkColumn:
    match _is_wide(given), _is_wide(type):
        case True, True:
            return _shifted(value, type.scale - given.scale)
        case False, True:
            return _shifted(_split(value), type.scale - (given.scale if pa.types.is_decimal(given) else 0))
        case True, False:  # to double; there are no other ways out
            return _as_double(value, given.scale)
    if pa.types.is_decimal(given) and pa.types.is_floating(type):
        value = value.cast(st.StringType())  # text becomes the nearest double; a decimal may become the one beside it
    return value.cast(spark_type(type))


def _compared(op: Comparison, left: SparkColumn, right: SparkColumn, type: Any) -> SparkColumn:
    told = COMPARE[op](left, right)
    if not pa.types.is_floating(type):
        return told
    unknown = F.when(left.isNull() | right.isNull(), F.lit(None).cast(st.BooleanType()))
    return unknown.when(F.isnan(left) | F.isnan(right), F.lit(op is Comparison.NE)).otherwise(told)


def _among(value: SparkColumn, items: tuple[Literal, ...]) -> SparkColumn:
    found = value.isin([_lower(item) for item in _with_both_zeros(items)])
    if not pa.types.is_floating(items[0].type):
        return found
    # said of NaN apart: Spark takes what Parquet has as least and greatest for all there is, and NaN is left out
    of_nan = None if any(item.value is None for item in items) else False
    return F.when(F.isnan(value), F.lit(of_nan).cast(st.BooleanType())).otherwise(found)


def _with_both_zeros(items: tuple[Literal, ...]) -> tuple[Literal, ...]:
    """Zeros are equal, but not to a hash table of Java's."""
    if not pa.types.is_floating(items[0].type) or all(item.value != 0 for item in items):
        return items
    return (*items, Literal(0.0, items[0].type), Literal(-0.0, items[0].type))


def _regex(pattern: tuple[str | Wild, ...]) -> str:
    """The pattern in Java's words. After %, the first place that fits is as good as any, so none is tried again."""
    runs = [""]
    for part in pattern:
        if part is Wild.ANY:
            runs.append("")
        else:
            runs[-1] += re.escape(part) if isinstance(part, str) else "."
    first, *others = runs
    middle = "".join(f"(?>.*?{run})" for run in others[:-1] if run)
    last = f".*{others[-1]}" if others else ""
    return rf"(?s)\A{first}{middle}{last}\z"


def _balanced(join: Callable[[SparkColumn, SparkColumn], SparkColumn], parts: Sequence[SparkColumn]) -> SparkColumn:
    """A thousand terms as a tree ten levels deep: Spark walks expressions by recursion."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_balanced(join, parts[:middle]), _balanced(join, parts[middle:]))


# -- more than 38 digits ----------------------------------------------------------------------------------------------


def _terms(node: Node) -> list[tuple[Operation, Node]]:
    """What is added and subtracted: a chain is one sum, because Spark's analyzer gives up on lambdas a hundred deep."""
    match node:
        case Arithmetic(Operation.ADD, left, right, type) if _is_wide(type):
            return [*_terms(left), *_terms(right)]
        case Arithmetic(Operation.SUBTRACT, left, right, type) if _is_wide(type):
            return [*_terms(left), *((NEGATED[sign], term) for sign, term in _terms(right))]
        case Cast(operand, type) if _is_wide(type) and _is_wide(type_of(operand)):
            return _terms(operand)
    return [(Operation.ADD, node)]


def _summed(terms: Sequence[tuple[Operation, SparkColumn]]) -> SparkColumn:
    names = [f"t{n}" for n in range(len(terms))]

    def result(row: SparkColumn) -> SparkColumn:
        sums = [_exact(0)] * PLACES
        for name, (sign, _) in zip(names, terms, strict=True):
            sums = [CALCULATE[sign](each, place) for each, place in zip(sums, _lowest_first(row[name]), strict=True)]
        return F.when(_balanced(operator.and_, [row[name].isNotNull() for name in names]), _carried(sums))

    return _let(F.struct(*(term.alias(name) for name, (_, term) in zip(names, terms, strict=True))), result)


def _multiplied(left: SparkColumn, right: SparkColumn) -> SparkColumn:
    def result(pair: SparkColumn) -> SparkColumn:
        a, b = _lowest_first(pair["a"]), _lowest_first(pair["b"])
        sums = [reduce(operator.add, [a[i] * b[j] for i, j in pairs]) for pairs in products()]
        return F.when(pair["a"].isNotNull() & pair["b"].isNotNull(), _carried(sums))

    return _let(F.struct(left.alias("a"), right.alias("b")), result)


def _lowest_first(number: SparkColumn) -> list[SparkColumn]:
    return [number[PLACES - 1 - k].cast(EXACT) for k in range(PLACES)]


def _let(value: SparkColumn, result: Callable[[SparkColumn], SparkColumn]) -> SparkColumn:
    """The result for a value that is worked out once."""
    return F.transform(F.array(value), result)[0]


def _carried(sums: Sequence[SparkColumn]) -> SparkColumn:
    """The places of a number, of which each may be too large or below zero: only the highest stays below zero."""

    def result(sums: SparkColumn) -> SparkColumn:
        carry, lower = _exact(0), list[SparkColumn]()
        for k in range(PLACES - 1):
            here = sums[k] + carry + _exact(LIFT * BASE)  # above zero, where rest and quotient are plain
            lower.append(here % _exact(BASE))
            carry = F.call_function("div", here, _exact(BASE)).cast(EXACT) - _exact(LIFT)
        top = (sums[PLACES - 1] + carry + _exact(LIFT * BASE + HALF)) % _exact(BASE) - _exact(HALF)
        return _array([top, *reversed(lower)])

    return _let(F.array(*(each.cast(EXACT) for each in sums)), result)


def _shifted(value: SparkColumn, digits: int) -> SparkColumn:
    return _multiplied(value, _array(map(F.lit, places(10**digits)))) if digits else value


def _split(value: SparkColumn) -> SparkColumn:
    """The digits of an integer or a decimal, without its point, as places."""
    digits = F.replace(value.cast(st.StringType()), F.lit("."), F.lit("")).cast(EXACT)

    def result(number: SparkColumn) -> SparkColumn:
        low = number % _exact(BASE**2)
        high = F.call_function("div", number, _exact(BASE**2))
        sums = [low % _exact(BASE), F.call_function("div", low, _exact(BASE)), high]
        return F.when(number.isNotNull(), _carried([*sums, *[_exact(0)] * (PLACES - len(sums))]))

    return _let(digits, result)


def _as_double(value: SparkColumn, scale: int) -> SparkColumn:
    def text(places: SparkColumn) -> SparkColumn:
        return F.concat(*(F.lpad(places[k].cast(st.StringType()), 17, "0") for k in range(PLACES)), F.lit(f"E-{scale}"))

    def result(number: SparkColumn) -> SparkColumn:
        positive = F.when(number[0] < 0, _summed([(Operation.SUBTRACT, number)]))
        sign = F.when(number[0] < 0, F.lit("-")).otherwise(F.lit(""))
        return F.concat(sign, _let(positive.otherwise(number), text)).cast(st.DoubleType())

    return _let(value, result)


def _array(parts: Iterable[SparkColumn]) -> SparkColumn:
    return F.array(*(part.cast(st.LongType()) for part in parts))


def _exact(number: int) -> SparkColumn:
    return F.lit(str(number)).cast(EXACT)
