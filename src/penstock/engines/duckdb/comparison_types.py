"""Choose the type in which OData filters compare a result column with a literal or another column."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.odata import ODataComparison
from penstock.core.result_schema import FieldType, field_type
from penstock.engines.duckdb.types import sql_type

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ComparisonType(Enum):
    """DuckDB type in which a column and a literal are compared."""

    TEXT = "VARCHAR"
    BOOLEAN = "BOOLEAN"
    DOUBLE = "DOUBLE"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_UTC = "TIMESTAMP WITH TIME ZONE"
    NANOSECONDS = "HUGEINT"  # since 1970

    def format_value(self, value: Any) -> Any:
        return _FORMATTERS[self](value)


def _epoch_microseconds(value: datetime) -> int:
    return (value - _EPOCH) // timedelta(microseconds=1)


_FORMATTERS: dict[ComparisonType, Callable[[Any], Any]] = {
    ComparisonType.TEXT: lambda value: value if isinstance(value, str) else value.isoformat(),
    ComparisonType.BOOLEAN: bool,
    ComparisonType.DOUBLE: float,
    ComparisonType.DATE: lambda value: value.isoformat(),
    ComparisonType.TIMESTAMP: lambda value: value.replace(tzinfo=None).isoformat(" "),
    ComparisonType.TIMESTAMP_UTC: lambda value: value.isoformat(" "),
    ComparisonType.NANOSECONDS: lambda value: str(_epoch_microseconds(value) * 1000),
}
NULL_COMPARISON_TYPES = {
    FieldType.STRING: ComparisonType.TEXT,
    FieldType.NUMBER: ComparisonType.DOUBLE,
    FieldType.BOOLEAN: ComparisonType.BOOLEAN,
    FieldType.DATE: ComparisonType.DATE,
    FieldType.DATETIME: ComparisonType.TIMESTAMP,
}


@dataclass(frozen=True)
class ExactType:
    """Exact numeric type: integers, and decimals as unscaled integers."""

    value: str  # DuckDB type
    scale: int
    low: int
    high: int

    def format_value(self, value: int) -> str:
        return f"{Decimal(f'{value}E-{self.scale}'):f}"

    def reduce_comparison(self, op: ODataComparison, value: int | Decimal) -> tuple[ODataComparison, int] | bool:
        """Replace the literal by one that the column can hold; return a bool if the result is the same for all values."""
        numerator, denominator = value.as_integer_ratio()
        floor, remainder = divmod(numerator * int(10**self.scale), denominator)
        match op:
            case ODataComparison.EQ:
                return (op, floor) if not remainder and self.low <= floor <= self.high else False
            case ODataComparison.GE if remainder:
                op = ODataComparison.GT
            case ODataComparison.LT if remainder:
                op = ODataComparison.LE
        if self.low <= floor <= self.high:
            return op, floor
        return (floor < self.low) is (op in (ODataComparison.GT, ODataComparison.GE))


@dataclass(frozen=True)
class Operand:
    sql: str
    comparison_type: ExactType | ComparisonType


def comparison_operand(declared_type: FieldType, type: pa.DataType, sql: str) -> Operand | None:
    """Return the column in its comparison type, or None if its type contradicts the declared type."""
    match declared_type, field_type(type):
        case FieldType.STRING | FieldType.DATE, (FieldType.STRING, False):
            return Operand(sql, ComparisonType.TEXT)
        case FieldType.DATETIME, (FieldType.STRING, False):
            with_zone = f"CASE WHEN regexp_matches({sql}, '([Zz]|[+-][0-9:]{{5}})$') THEN {sql} ELSE {sql} || 'Z' END"
            microseconds = f"epoch_us(TRY_CAST(upper({with_zone}) AS TIMESTAMP WITH TIME ZONE))"
            rest = f"rpad(regexp_extract({sql}, '\\.[0-9]{{6}}([0-9]{{1,3}})', 1), 3, '0')"  # the cast truncates
            nanoseconds = f"(CAST({microseconds} AS HUGEINT) * 1000 + CAST({rest} AS HUGEINT))"
            return Operand(nanoseconds, ComparisonType.NANOSECONDS)
        case FieldType.NUMBER, (FieldType.NUMBER, False) if pt.is_floating(type):
            return Operand(f"CAST({sql} AS DOUBLE)", ComparisonType.DOUBLE)
        case FieldType.NUMBER, (FieldType.NUMBER, False):
            return Operand(sql, _exact(type))
        case FieldType.BOOLEAN, (FieldType.BOOLEAN, False):
            return Operand(sql, ComparisonType.BOOLEAN)
        case FieldType.DATE, (FieldType.DATE, False):
            return Operand(sql, ComparisonType.DATE)
        case FieldType.DATETIME, (FieldType.DATETIME, False) if type.unit == "ns":
            return Operand(f"CAST(epoch_ns({sql}) AS HUGEINT)", ComparisonType.NANOSECONDS)
        case FieldType.DATETIME, (FieldType.DATETIME, False):
            comparison = ComparisonType.TIMESTAMP if type.tz is None else ComparisonType.TIMESTAMP_UTC
            return Operand(f"CAST({sql} AS {comparison.value})", comparison)
    return None


def _exact(type: pa.DataType) -> ExactType:
    name = sql_type(type)
    assert name is not None, f"DuckDB has no {type}"
    if pt.is_decimal(type):
        return ExactType(name, type.scale, 1 - 10**type.precision, 10**type.precision - 1)
    if pt.is_unsigned_integer(type):
        return ExactType(name, 0, 0, 2**type.bit_width - 1)
    return ExactType(name, 0, -(2 ** (type.bit_width - 1)), 2 ** (type.bit_width - 1) - 1)


def common_operands(left: Operand, right: Operand) -> tuple[str, str]:
    """Return the SQL of two columns in a common comparison type."""
    match left.comparison_type, right.comparison_type:
        case (a, b) if a == b:
            return left.sql, right.sql
        case (ExactType() as a, ExactType() as b) if (scale := _common_scale(a, b)) is not None:
            type = f"DECIMAL(38, {scale})"
            return f"CAST({left.sql} AS {type})", f"CAST({right.sql} AS {type})"
        case (ExactType() | ComparisonType.DOUBLE, _):
            return _as_double(left), _as_double(right)
        case (ComparisonType.TEXT | ComparisonType.DATE, _):
            return f"CAST({left.sql} AS VARCHAR)", f"CAST({right.sql} AS VARCHAR)"
    return _as_nanoseconds(left), _as_nanoseconds(right)


def _common_scale(left: ExactType, right: ExactType) -> int | None:
    """Return the scale of a decimal that holds both types, or None if it needs more than 38 digits."""
    integer_digits = max(len(str(operand_type.high)) - operand_type.scale for operand_type in (left, right))
    scale = max(left.scale, right.scale)
    return scale if integer_digits + scale <= 38 else None


def _as_double(operand: Operand) -> str:
    """Cast to double; decimals go through text, because their direct cast may be off by one unit."""
    is_decimal = isinstance(operand.comparison_type, ExactType) and operand.comparison_type.value.startswith("DECIMAL")
    return f"CAST({f'CAST({operand.sql} AS VARCHAR)' if is_decimal else operand.sql} AS DOUBLE)"


def _as_nanoseconds(operand: Operand) -> str:
    if operand.comparison_type is ComparisonType.NANOSECONDS:
        return operand.sql
    return f"(CAST(epoch_us({operand.sql}) AS HUGEINT) * 1000)"
