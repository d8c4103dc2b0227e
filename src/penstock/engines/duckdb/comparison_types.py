"""In which type a column and a literal, or two columns, of a query's result are compared."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.result_schema import FieldType, field_type
from penstock.core.odata import Comparison
from penstock.engines.duckdb.types import sql_type

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Measure(Enum):
    """The type in which a column and a literal are compared."""

    TEXT = "VARCHAR"
    FLAG = "BOOLEAN"
    DOUBLE = "DOUBLE"
    DAY = "DATE"
    MOMENT = "TIMESTAMP"
    ZONED = "TIMESTAMP WITH TIME ZONE"
    MICROSECONDS = "BIGINT"  # since 1970
    NANOSECONDS = "HUGEINT"

    def written(self, value: Any) -> Any:
        return _WRITTEN[self](value)


def _since_1970(value: datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1)


_WRITTEN: dict[Measure, Callable[[Any], Any]] = {
    Measure.TEXT: lambda value: value if isinstance(value, str) else value.isoformat(),
    Measure.FLAG: bool,
    Measure.DOUBLE: float,
    Measure.DAY: lambda value: value.isoformat(),
    Measure.MOMENT: lambda value: value.replace(tzinfo=None).isoformat(" "),
    Measure.ZONED: lambda value: value.isoformat(" "),
    Measure.MICROSECONDS: _since_1970,
    Measure.NANOSECONDS: lambda value: str(_since_1970(value) * 1000),
}
OF_NULL = {
    FieldType.STRING: Measure.TEXT,
    FieldType.NUMBER: Measure.DOUBLE,
    FieldType.BOOLEAN: Measure.FLAG,
    FieldType.DATE: Measure.DAY,
    FieldType.DATETIME: Measure.MOMENT,
}


@dataclass(frozen=True)
class Exact:
    """Integers, and decimals as the integers that they are without their point."""

    value: str  # the type
    scale: int
    low: int
    high: int

    def written(self, value: int) -> str:
        return f"{Decimal(f'{value}E-{self.scale}'):f}"

    def reduced(self, op: Comparison, value: int | Decimal) -> tuple[Comparison, int] | bool:
        """The same question about a number that the column could hold; or the answer for all that it can."""
        over, under = value.as_integer_ratio()
        near, rest = divmod(over * int(10**self.scale), under)
        match op:
            case Comparison.EQ:
                return (op, near) if not rest and self.low <= near <= self.high else False
            case Comparison.GE if rest:
                op = Comparison.GT
            case Comparison.LT if rest:
                op = Comparison.LE
        if self.low <= near <= self.high:
            return op, near
        return (near < self.low) is (op in (Comparison.GT, Comparison.GE))


@dataclass(frozen=True)
class Operand:
    sql: str
    measure: Exact | Measure


def measured(kind: FieldType, type: pa.DataType, sql: str) -> Operand | None:
    """A column as it is compared; None where it cannot be what is promised."""
    match kind, field_type(type):
        case FieldType.STRING | FieldType.DATE, (FieldType.STRING, False):
            return Operand(sql, Measure.TEXT)
        case FieldType.DATETIME, (FieldType.STRING, False):
            zoned = f"CASE WHEN regexp_matches({sql}, '([Zz]|[+-][0-9:]{{5}})$') THEN {sql} ELSE {sql} || 'Z' END"
            return Operand(f"epoch_us(TRY_CAST(upper({zoned}) AS TIMESTAMP WITH TIME ZONE))", Measure.MICROSECONDS)
        case FieldType.NUMBER, (FieldType.NUMBER, False) if pt.is_floating(type):
            return Operand(f"CAST({sql} AS DOUBLE)", Measure.DOUBLE)
        case FieldType.NUMBER, (FieldType.NUMBER, False):
            return Operand(sql, _exact(type))
        case FieldType.BOOLEAN, (FieldType.BOOLEAN, False):
            return Operand(sql, Measure.FLAG)
        case FieldType.DATE, (FieldType.DATE, False):
            return Operand(sql, Measure.DAY)
        case FieldType.DATETIME, (FieldType.DATETIME, False) if type.unit == "ns":
            return Operand(f"CAST(epoch_ns({sql}) AS HUGEINT)", Measure.NANOSECONDS)
        case FieldType.DATETIME, (FieldType.DATETIME, False):
            measure = Measure.MOMENT if type.tz is None else Measure.ZONED
            return Operand(f"CAST({sql} AS {measure.value})", measure)
    return None


def _exact(type: pa.DataType) -> Exact:
    name = sql_type(type)
    assert name is not None, f"DuckDB has no {type}"
    if pt.is_decimal(type):
        return Exact(name, type.scale, 1 - 10**type.precision, 10**type.precision - 1)
    if pt.is_unsigned_integer(type):
        return Exact(name, 0, 0, 2**type.bit_width - 1)
    return Exact(name, 0, -(2 ** (type.bit_width - 1)), 2 ** (type.bit_width - 1) - 1)


def alike(one: Operand, other: Operand) -> tuple[str, str]:
    """Two columns in a type in which both can be compared."""
    match one.measure, other.measure:
        case (a, b) if a == b:
            return one.sql, other.sql
        case (Exact() as a, Exact() as b) if (scale := _common_scale(a, b)) is not None:
            type = f"DECIMAL(38, {scale})"
            return f"CAST({one.sql} AS {type})", f"CAST({other.sql} AS {type})"
        case (Exact() | Measure.DOUBLE, _):
            return _as_double(one), _as_double(other)
        case (Measure.TEXT | Measure.DAY, _):
            return f"CAST({one.sql} AS VARCHAR)", f"CAST({other.sql} AS VARCHAR)"
    return _as_nanoseconds(one), _as_nanoseconds(other)


def _common_scale(one: Exact, other: Exact) -> int | None:
    """The digits behind the point of a decimal that holds both; None if there is none so wide."""
    before = max(len(str(it.high)) - it.scale for it in (one, other))
    behind = max(one.scale, other.scale)
    return behind if before + behind <= 38 else None


def _as_double(operand: Operand) -> str:
    """Text becomes the nearest double; a decimal may become the one beside."""
    is_decimal = isinstance(operand.measure, Exact) and operand.measure.value.startswith("DECIMAL")
    return f"CAST({f'CAST({operand.sql} AS VARCHAR)' if is_decimal else operand.sql} AS DOUBLE)"


def _as_nanoseconds(operand: Operand) -> str:
    if operand.measure is Measure.NANOSECONDS:
        return operand.sql
    since_1970 = operand.sql if operand.measure is Measure.MICROSECONDS else f"epoch_us({operand.sql})"
    return f"(CAST({since_1970} AS HUGEINT) * 1000)"
