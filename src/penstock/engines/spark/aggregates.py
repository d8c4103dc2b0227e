"""Aggregates of groups, exactly: what Spark would round twice, or overflow on its way, is summed up in parts.

A sum of longs is kept in two halves, and a sum of decimals that may outgrow 38 digits, too: only what comes out in the
end must fit. An average of decimals is a long division, 18 digits at a time; its digits are text, which Spark rounds
half-up when it reads it as a decimal; where 38 digits are enough for every step, decimals do the same faster. All
this is done once for a group, and not for a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
import pyspark.sql.types as st
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.core.pipeline.aggregates import Function
from penstock.engines.spark.value_checks import Refusal, fitted, refuse
from penstock.engines.spark.types import spark_type

_EXACT, _LONG, _DOUBLE, _TEXT = st.DecimalType(38, 0), st.LongType(), st.DoubleType(), st.StringType()
_ROW_DIGITS = 10  # Spark's sum of decimals has so many digits more than they have, up to 38
_STEP = 18  # digits of a quotient that are found at once: they fit a long
_LOW_DIGITS = 20  # of a decimal in two parts; the rest fits a long
_HALF = (1 << 32) - 1  # the lower half of a long


@dataclass(frozen=True, slots=True)
class Wanted:
    function: Function
    column: str | None  # None: the rows themselves
    given: pa.DataType | None  # its type
    type: pa.DataType  # of the result
    place: int  # the number of a working column that gets it


@dataclass(frozen=True, slots=True)
class _Lowered:
    parts: Mapping[str, Column]  # what is aggregated
    result: Column  # made of the parts, and of what the steps make of them
    steps: Sequence[Mapping[str, Column]] = ()  # one after the other


def aggregated(rows: DataFrame, keys: Sequence[str], wanted: Sequence[Wanted]) -> DataFrame:
    """For each group its keys, and what is wanted as `a0`, `a1`, …"""
    lowered = [_lowered(each, f"a{i}") for i, each in enumerate(wanted)]
    parts = {name: part for each in lowered for name, part in each.parts.items()}
    rows = rows.groupBy(*keys).agg(*(part.alias(name) for name, part in parts.items()))
    for n in range(max(len(each.steps) for each in lowered)):
        now = [each.steps[n] for each in lowered if n < len(each.steps)]
        rows = rows.withColumns({name: value for step in now for name, value in step.items()})
    return rows.select(*keys, *(each.result.alias(f"a{i}") for i, each in enumerate(lowered)))


def _lowered(each: Wanted, name: str) -> _Lowered:
    if each.column is None or each.given is None:
        return _Lowered({name: F.count(F.lit(1))}, F.col(name))
    value = F.col(each.column)
    match each.function:
        case Function.COUNT:
            return _Lowered({name: F.count(value)}, F.col(name))
        case Function.MIN | Function.MAX:
            best = F.min(value) if each.function is Function.MIN else F.max(value)
            return _Lowered({name: best}, fitted(F.col(name), each.given, each.type, each.place))
        case Function.SUM | Function.AVG if pt.is_decimal(each.given):
            return (_decimal_sum if each.function is Function.SUM else _decimal_average)(each, value, name)
        case Function.SUM | Function.AVG if pt.is_integer(each.given):
            return (_whole_sum if each.function is Function.SUM else _whole_average)(each, value, name)
        case Function.SUM:
            return _Lowered({name: F.sum(value.cast(_DOUBLE))}, F.col(name))
        case Function.AVG:
            return _Lowered({name: F.avg(value.cast(_DOUBLE))}, F.col(name))


# -- whole numbers ----------------------------------------------------------------------------------------------------


def _halves(value: Column, name: str) -> dict[str, Column]:
    return {
        f"{name}_high": F.sum(F.shiftright(value.cast(_LONG), 32)),
        f"{name}_low": F.sum(value.cast(_LONG).bitwiseAND(F.lit(_HALF))),
    }


def _whole_sum(each: Wanted, value: Column, name: str) -> _Lowered:
    if each.given != pa.int64():
        return _Lowered({name: F.sum(value)}, F.col(name))  # there are not so many rows that a long could overflow
    low = F.col(f"{name}_low")
    high = F.col(f"{name}_high") + F.shiftright(low, 32)
    whole = F.shiftleft(high, 32).bitwiseOR(low.bitwiseAND(F.lit(_HALF)))
    fits = F.when(high.between(-(1 << 31), (1 << 31) - 1), whole)
    return _Lowered(
        _halves(value, name), fits.when(high.isNotNull(), refuse(Refusal.UNFIT, each.place, spark_type(each.type)))
    )


def _whole_average(_each: Wanted, value: Column, name: str) -> _Lowered:
    count = f"{name}_count"
    total = F.col(f"{name}_high").cast(_DOUBLE) * F.lit(float(1 << 32)) + F.col(f"{name}_low").cast(_DOUBLE)
    return _Lowered(
        {**_halves(value, name), count: F.count(value)}, F.when(F.col(count) > 0, total / F.col(count).cast(_DOUBLE))
    )


# -- decimals ---------------------------------------------------------------------------------------------------------


def _decimal_sum(each: Wanted, value: Column, name: str) -> _Lowered:
    digits, scale = each.given.precision, each.given.scale  # type: ignore[union-attr]
    if digits + _ROW_DIGITS <= 38:
        total = pa.decimal128(digits + _ROW_DIGITS, scale)
        return _Lowered({name: F.sum(value)}, fitted(F.col(name), total, each.type, each.place))
    parts, steps = _digits(value, digits, scale, name)
    return _Lowered(parts, _read(each, name, F.col(f"{name}_digits"), scale), steps)


def _decimal_average(each: Wanted, value: Column, name: str) -> _Lowered:
    """Truncated one digit beyond those that are kept, or further: that is enough to round half-up."""
    digits, scale = each.given.precision, each.given.scale  # type: ignore[union-attr]
    if max(each.type.scale + 1, scale) <= min(_STEP, scale + 27 - digits):
        return _short_average(each, value, name, max(each.type.scale + 1, scale))
    parts, steps = _digits(value, digits, scale, name)
    whole = -(-(digits + _ROW_DIGITS) // _STEP)
    more = max(-(-(each.type.scale + 1 - scale) // _STEP), 0)
    count, text = F.col(f"{name}_count"), F.lpad(F.col(f"{name}_digits"), whole * _STEP, "0")
    quotient, rest = F.lit(""), _exact(0)
    for n in range(whole + more):
        here = rest * _exact(10**_STEP)
        if n < whole:
            here += F.substring(text, n * _STEP + 1, _STEP).cast(_EXACT)
        found = F.call_function("div", here, count.cast(_EXACT)).cast(_TEXT)
        steps.append(
            {
                f"{name}_quotient": F.concat(quotient, F.lpad(found, _STEP, "0")),
                f"{name}_rest": (here % count.cast(_EXACT)).cast(_EXACT),
            }
        )
        quotient, rest = F.col(f"{name}_quotient"), F.col(f"{name}_rest")
    result = F.when(count > 0, _read(each, name, quotient, scale + more * _STEP))
    return _Lowered({**parts, f"{name}_count": F.count(value)}, result, steps)


def _short_average(each: Wanted, value: Column, name: str, places: int) -> _Lowered:
    """The same, truncated to so many places: what is left over there is taken off first, and the rest divides evenly.

    The types that Spark gives to the product, the remainder, the difference and the quotient keep all these places.
    """
    total, count, kind = F.col(f"{name}_sum"), F.col(f"{name}_count").cast(st.DecimalType(19, 0)), spark_type(each.type)
    unit = F.lit(f"1E-{places}").cast(st.DecimalType(max(places, 1), places))
    even = F.when(count > 0, (total - total % (count * unit)) / count)
    fits = F.coalesce(even.try_cast(kind), F.when(count > 0, refuse(Refusal.UNFIT, each.place, kind)))
    return _Lowered({f"{name}_sum": F.sum(value), f"{name}_count": F.count(value)}, fits)


def _digits(value: Column, digits: int, scale: int, name: str) -> tuple[dict[str, Column], list[Mapping[str, Column]]]:
    """A sum as text: `…_digits` without sign and point, and whether it is `…_negative`."""
    if digits + _ROW_DIGITS <= 38:
        total = F.col(f"{name}_sum")
        made = {f"{name}_digits": _unpointed(F.abs(total)), f"{name}_negative": total < 0}
        return {f"{name}_sum": F.sum(value)}, [made]
    base = F.lit(f"1E{_LOW_DIGITS - scale}").cast(st.DecimalType(38, scale))
    parts = {
        f"{name}_high": F.sum(F.call_function("div", value, base).cast(st.DecimalType(19, 0))),
        f"{name}_low": F.sum(value % base),
    }
    high, low, one = F.col(f"{name}_high"), F.col(f"{name}_low"), _exact(10**_LOW_DIGITS)
    down, up = (high > 0) & (low < 0), (high < 0) & (low > 0)  # the parts of a number have one sign
    return parts, [
        {f"{name}_low": _unpointed(low).cast(_EXACT)},
        {
            f"{name}_high": (high + F.call_function("div", low, one)).cast(_EXACT),
            f"{name}_low": (low % one).cast(_EXACT),
        },
        {
            f"{name}_high": F.when(down, high - 1).when(up, high + 1).otherwise(high).cast(_EXACT),
            f"{name}_low": F.when(down, low + one).when(up, low - one).otherwise(low).cast(_EXACT),
        },
        {
            f"{name}_digits": F.concat(F.abs(high).cast(_TEXT), F.lpad(F.abs(low).cast(_TEXT), _LOW_DIGITS, "0")),
            f"{name}_negative": (high < 0) | (low < 0),
        },
    ]


def _read(each: Wanted, name: str, digits: Column, scale: int) -> Column:
    """The number that the digits are, in the wanted type; NULL is no number."""
    sign = F.when(F.col(f"{name}_negative"), F.lit("-")).otherwise(F.lit(""))
    kind = spark_type(each.type)
    number = F.concat(sign, digits, F.lit(f"E-{scale}")).try_cast(kind)
    return F.when(digits.isNotNull(), F.coalesce(number, refuse(Refusal.UNFIT, each.place, kind)))


def _unpointed(number: Column) -> Column:
    return F.replace(number.cast(_TEXT), F.lit("."), F.lit(""))


def _exact(number: int) -> Column:
    return F.lit(str(number)).cast(_EXACT)
