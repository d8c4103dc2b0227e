"""Exact aggregates of groups in Spark, without double rounding and without intermediate overflow.

Sums of longs, and sums of decimals that may exceed 38 digits, are accumulated in two parts; only the final result must
fit its type. An average of decimals is a long division of 18 digits per step; its digits are text, which Spark rounds
half-up when it parses a decimal. Where 38 digits are enough for every step, plain decimals do the same faster. The extra
work is done once per group, not per row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.core.pipeline.aggregates import Function
from penstock.engines.spark.types import spark_type
from penstock.engines.spark.value_checks import ValueCheckFailed, cast_checked, raise_check_error

_DECIMAL_38, _LONG, _DOUBLE, _TEXT = st.DecimalType(38, 0), st.LongType(), st.DoubleType(), st.StringType()
_SUM_EXTRA_DIGITS = 10  # digits that Spark adds to the type of a decimal sum, up to 38
_QUOTIENT_STEP_DIGITS = 18  # digits of a quotient computed per step: they fit a long
_LOW_DIGITS = 20  # of a decimal in two parts; the high part fits a long
_LOW_HALF_MASK = (1 << 32) - 1  # selects the low half of a long


@dataclass(frozen=True, slots=True)
class AggregateRequest:
    function: Function
    column: str | None  # None: COUNT(*)
    input_type: pa.DataType | None
    result_type: pa.DataType
    column_index: int  # index of the working column, for error messages


@dataclass(frozen=True, slots=True)
class _AggregateExpressions:
    parts: Mapping[str, Column]  # aggregated columns by name
    result: Column  # computed from the parts and the steps
    steps: Sequence[Mapping[str, Column]] = ()  # columns computed in sequence


def aggregate_groups(rows: DataFrame, keys: Sequence[str], requests: Sequence[AggregateRequest]) -> DataFrame:
    """Group rows by keys and return the keys with the aggregates as `a0`, `a1`, …"""
    expressions = [_expressions(expression, f"a{i}") for i, expression in enumerate(requests)]
    parts = {name: part for expression in expressions for name, part in expression.parts.items()}
    rows = rows.groupBy(*keys).agg(*(part.alias(name) for name, part in parts.items()))
    for step_number in range(max(len(expression.steps) for expression in expressions)):
        step_columns = [
            expression.steps[step_number] for expression in expressions if step_number < len(expression.steps)
        ]
        rows = rows.withColumns({name: value for step in step_columns for name, value in step.items()})
    return rows.select(*keys, *(expression.result.alias(f"a{i}") for i, expression in enumerate(expressions)))


def _expressions(request: AggregateRequest, name: str) -> _AggregateExpressions:
    if request.column is None or request.input_type is None:
        return _AggregateExpressions({name: F.count(F.lit(1))}, F.col(name))
    value = F.col(request.column)
    match request.function:
        case Function.COUNT:
            return _AggregateExpressions({name: F.count(value)}, F.col(name))
        case Function.MIN | Function.MAX:
            extreme = F.min(value) if request.function is Function.MIN else F.max(value)
            return _AggregateExpressions(
                {name: extreme},
                cast_checked(F.col(name), request.input_type, request.result_type, request.column_index),
            )
        case Function.SUM | Function.AVG if pt.is_decimal(request.input_type):
            return (_decimal_sum if request.function is Function.SUM else _decimal_average)(request, value, name)
        case Function.SUM | Function.AVG if pt.is_integer(request.input_type):
            return (_integer_sum if request.function is Function.SUM else _integer_average)(request, value, name)
        case Function.SUM:
            return _AggregateExpressions({name: F.sum(value.cast(_DOUBLE))}, F.col(name))
        case Function.AVG:
            return _AggregateExpressions({name: F.avg(value.cast(_DOUBLE))}, F.col(name))


# -- whole numbers ----------------------------------------------------------------------------------------------------


def _sum_in_halves(value: Column, name: str) -> dict[str, Column]:
    return {
        f"{name}_high": F.sum(F.shiftright(value.cast(_LONG), 32)),
        f"{name}_low": F.sum(value.cast(_LONG).bitwiseAND(F.lit(_LOW_HALF_MASK))),
    }


def _integer_sum(request: AggregateRequest, value: Column, name: str) -> _AggregateExpressions:
    if request.input_type != pa.int64():
        return _AggregateExpressions(
            {name: F.sum(value)}, F.col(name)
        )  # a long cannot overflow with a realistic number of rows
    low = F.col(f"{name}_low")
    high = F.col(f"{name}_high") + F.shiftright(low, 32)
    total = F.shiftleft(high, 32).bitwiseOR(low.bitwiseAND(F.lit(_LOW_HALF_MASK)))
    fits = F.when(high.between(-(1 << 31), (1 << 31) - 1), total)
    return _AggregateExpressions(
        _sum_in_halves(value, name),
        fits.when(
            high.isNotNull(),
            raise_check_error(ValueCheckFailed.DOES_NOT_FIT, request.column_index, spark_type(request.result_type)),
        ),
    )


def _integer_average(_request: AggregateRequest, value: Column, name: str) -> _AggregateExpressions:
    count = f"{name}_count"
    total = F.col(f"{name}_high").cast(_DOUBLE) * F.lit(float(1 << 32)) + F.col(f"{name}_low").cast(_DOUBLE)
    return _AggregateExpressions(
        {**_sum_in_halves(value, name), count: F.count(value)},
        F.when(F.col(count) > 0, total / F.col(count).cast(_DOUBLE)),
    )


# -- decimals ---------------------------------------------------------------------------------------------------------


def _decimal_sum(request: AggregateRequest, value: Column, name: str) -> _AggregateExpressions:
    precision, scale = request.input_type.precision, request.input_type.scale  # type: ignore[union-attr]
    if precision + _SUM_EXTRA_DIGITS <= 38:
        total = pa.decimal128(precision + _SUM_EXTRA_DIGITS, scale)
        return _AggregateExpressions(
            {name: F.sum(value)}, cast_checked(F.col(name), total, request.result_type, request.column_index)
        )
    parts, steps = _sum_as_digits(value, precision, scale, name)
    return _AggregateExpressions(parts, _parse_digits(request, name, F.col(f"{name}_digits"), scale), steps)


def _decimal_average(request: AggregateRequest, value: Column, name: str) -> _AggregateExpressions:
    """Average decimals by long division, truncated at least one digit beyond the result's scale to round half-up."""
    precision, scale = request.input_type.precision, request.input_type.scale  # type: ignore[union-attr]
    if max(request.result_type.scale + 1, scale) <= min(_QUOTIENT_STEP_DIGITS, scale + 27 - precision):
        return _narrow_decimal_average(request, value, name, max(request.result_type.scale + 1, scale))
    parts, steps = _sum_as_digits(value, precision, scale, name)
    integer_steps = -(-(precision + _SUM_EXTRA_DIGITS) // _QUOTIENT_STEP_DIGITS)
    fraction_steps = max(-(-(request.result_type.scale + 1 - scale) // _QUOTIENT_STEP_DIGITS), 0)
    count, text = F.col(f"{name}_count"), F.lpad(F.col(f"{name}_digits"), integer_steps * _QUOTIENT_STEP_DIGITS, "0")
    quotient, remainder = F.lit(""), _decimal_literal(0)
    for step_number in range(integer_steps + fraction_steps):
        dividend = remainder * _decimal_literal(10**_QUOTIENT_STEP_DIGITS)
        if step_number < integer_steps:
            dividend += F.substring(text, step_number * _QUOTIENT_STEP_DIGITS + 1, _QUOTIENT_STEP_DIGITS).cast(
                _DECIMAL_38
            )
        digits = F.call_function("div", dividend, count.cast(_DECIMAL_38)).cast(_TEXT)
        steps.append(
            {
                f"{name}_quotient": F.concat(quotient, F.lpad(digits, _QUOTIENT_STEP_DIGITS, "0")),
                f"{name}_rest": (dividend % count.cast(_DECIMAL_38)).cast(_DECIMAL_38),
            }
        )
        quotient, remainder = F.col(f"{name}_quotient"), F.col(f"{name}_rest")
    result = F.when(count > 0, _parse_digits(request, name, quotient, scale + fraction_steps * _QUOTIENT_STEP_DIGITS))
    return _AggregateExpressions({**parts, f"{name}_count": F.count(value)}, result, steps)


def _narrow_decimal_average(request: AggregateRequest, value: Column, name: str, scale: int) -> _AggregateExpressions:
    """Average decimals with plain arithmetic, truncated to `scale` digits: subtract the remainder first, then divide.

    The types that Spark gives to the product, the remainder, the difference and the quotient have this scale or more.
    """
    total, count, result_type = (
        F.col(f"{name}_sum"),
        F.col(f"{name}_count").cast(st.DecimalType(19, 0)),
        spark_type(request.result_type),
    )
    unit = F.lit(f"1E-{scale}").cast(st.DecimalType(max(scale, 1), scale))
    quotient = F.when(count > 0, (total - total % (count * unit)) / count)
    fits = F.coalesce(
        quotient.try_cast(result_type),
        F.when(count > 0, raise_check_error(ValueCheckFailed.DOES_NOT_FIT, request.column_index, result_type)),
    )
    return _AggregateExpressions({f"{name}_sum": F.sum(value), f"{name}_count": F.count(value)}, fits)


def _sum_as_digits(
    value: Column, precision: int, scale: int, name: str
) -> tuple[dict[str, Column], list[Mapping[str, Column]]]:
    """Return columns that hold a sum as text: `…_digits` without sign and point, and `…_negative`."""
    if precision + _SUM_EXTRA_DIGITS <= 38:
        total = F.col(f"{name}_sum")
        columns = {f"{name}_digits": _without_point(F.abs(total)), f"{name}_negative": total < 0}
        return {f"{name}_sum": F.sum(value)}, [columns]
    base = F.lit(f"1E{_LOW_DIGITS - scale}").cast(st.DecimalType(38, scale))
    parts = {
        f"{name}_high": F.sum(F.call_function("div", value, base).cast(st.DecimalType(19, 0))),
        f"{name}_low": F.sum(value % base),
    }
    high, low, base_value = F.col(f"{name}_high"), F.col(f"{name}_low"), _decimal_literal(10**_LOW_DIGITS)
    down, up = (high > 0) & (low < 0), (high < 0) & (low > 0)  # both parts must have the same sign
    return parts, [
        {f"{name}_low": _without_point(low).cast(_DECIMAL_38)},
        {
            f"{name}_high": (high + F.call_function("div", low, base_value)).cast(_DECIMAL_38),
            f"{name}_low": (low % base_value).cast(_DECIMAL_38),
        },
        {
            f"{name}_high": F.when(down, high - 1).when(up, high + 1).otherwise(high).cast(_DECIMAL_38),
            f"{name}_low": F.when(down, low + base_value).when(up, low - base_value).otherwise(low).cast(_DECIMAL_38),
        },
        {
            f"{name}_digits": F.concat(F.abs(high).cast(_TEXT), F.lpad(F.abs(low).cast(_TEXT), _LOW_DIGITS, "0")),
            f"{name}_negative": (high < 0) | (low < 0),
        },
    ]


def _parse_digits(request: AggregateRequest, name: str, digits: Column, scale: int) -> Column:
    """Parse digits into the result type; NULL stays NULL."""
    sign = F.when(F.col(f"{name}_negative"), F.lit("-")).otherwise(F.lit(""))
    result_type = spark_type(request.result_type)
    number = F.concat(sign, digits, F.lit(f"E-{scale}")).try_cast(result_type)
    return F.when(
        digits.isNotNull(),
        F.coalesce(number, raise_check_error(ValueCheckFailed.DOES_NOT_FIT, request.column_index, result_type)),
    )


def _without_point(number: Column) -> Column:
    return F.replace(number.cast(_TEXT), F.lit("."), F.lit(""))


def _decimal_literal(number: int) -> Column:
    return F.lit(str(number)).cast(_DECIMAL_38)
