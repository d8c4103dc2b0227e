"""Translate filter expressions into DuckDB SQL; every value is bound as a parameter.

The condition fails on no data. Where DuckDB differs from the filter language, the SQL is explicit: NaN equals nothing,
decimals become the nearest double, x / 0 is NULL. Numbers of more than 38 digits, which DuckDB lacks, are lists of five
base-10^17 digits, the most significant first; the lists sort like the numbers.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

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
from penstock.engines.duckdb.types import quote_identifier, sql_type

REGEX = {Wildcard.ANY: ".*", Wildcard.ONE: "."}
_WIDE_TYPE = "HUGEINT[]"


@dataclass(frozen=True)
class Condition:
    sql: str
    values: Mapping[str, Any]  # by parameter name


def to_duckdb_condition(node: Node, schema: pa.Schema, prefix: str = "selector") -> Condition:
    """Return the WHERE condition for rows whose filter expression (bound or not) is TRUE."""
    writer = _SqlWriter(prefix)
    return Condition(writer.to_sql(bind(node, schema)), writer.values)


@dataclass(frozen=True)
class _SqlWriter:
    prefix: str
    values: dict[str, Any] = field(default_factory=dict)

    def to_sql(self, node: Node) -> str:
        match node:
            case Column(name):
                return quote_identifier(name)
            case Literal(value, type):
                return self.bind_parameter(_to_parameter(value, type), _type_name(type))
            case Cast(operand, type):
                return self.cast_sql(operand, type)
            case Arithmetic(op, left, right, type) if _is_wide(type):
                if op is not ArithmeticOperator.MULTIPLY:  # the operands need the same scale
                    left, right = Cast(left, type), Cast(right, type)
                return _wide_arithmetic(op, self.to_sql(left), self.to_sql(right))
            case Arithmetic(ArithmeticOperator.DIVIDE, left, right):
                return f"({self.to_sql(left)} / nullif({self.to_sql(right)}, 0))"
            case Arithmetic(op, left, right, type):
                if pa.types.is_decimal(type):  # as wide as the result: DuckDB does not widen beyond 18 digits
                    left = Cast(left, pa.decimal128(type.precision, type_of(left).scale))
                return f"CAST({self.to_sql(left)} {op.value} {self.to_sql(right)} AS {_type_name(type)})"
            case Compare(op, left, right):
                return _comparison_sql(op, self.to_sql(left), self.to_sql(right), type_of(left))
            case Between(operand, low, high):
                both = Compare(Comparison.GE, operand, low), Compare(Comparison.LE, operand, high)
                return self.to_sql(And(both))
            case In(operand, items):
                return self.membership_sql(operand, items)
            case Like(operand, pattern):
                # a regular expression, as in Arrow: DuckDB's LIKE backtracks for every %, which may not end in practice
                regex = "".join(re.escape(part) if isinstance(part, str) else REGEX[part] for part in pattern)
                return f"regexp_full_match({self.to_sql(operand)}, {self.bind_parameter(regex, 'VARCHAR')}, 's')"
            case IsNull(operand):
                return f"({self.to_sql(operand)} IS NULL)"
            case Not(operand):
                return f"(NOT {self.to_sql(operand)})"
            case And(parts):
                return f"({' AND '.join(map(self.to_sql, parts))})"
            case Or(parts):
                return f"({' OR '.join(map(self.to_sql, parts))})"

    def bind_parameter(self, value: Any, type: str) -> str:
        name = f"{self.prefix}_{len(self.values)}"
        self.values[name] = value
        return f"CAST(${name} AS {type})"

    def membership_sql(self, operand: Node, items: tuple[Literal, ...]) -> str:
        value, listed = self.to_sql(operand), ", ".join(map(self.to_sql, _with_both_zeros(items)))
        if not pa.types.is_floating(type_of(operand)):
            return f"({value} IN ({listed}))"
        # NaN is handled apart: DuckDB relies on Parquet minimum and maximum, which exclude NaN
        of_nan = "NULL" if any(item.value is None for item in items) else "FALSE"
        return f"(CASE WHEN isnan({value}) THEN {of_nan} ELSE {value} IN ({listed}) END)"

    def cast_sql(self, operand: Node, type: Any) -> str:
        input_type, value = type_of(operand), self.to_sql(operand)
        match _is_wide(input_type), _is_wide(type):
            case True, True:
                return _shift(value, type.scale - input_type.scale)
            case False, True:
                return _shift(_split(value), type.scale - (input_type.scale if pa.types.is_decimal(input_type) else 0))
            case True, False:  # to double: the only cast from wide numbers
                return _as_double(value, input_type.scale)
        if pa.types.is_decimal(input_type) and pa.types.is_floating(type):
            value = f"CAST({value} AS VARCHAR)"  # text is parsed to the nearest double; a decimal cast may be off by one unit
        return f"CAST({value} AS {_type_name(type)})"


def _is_wide(type: Any) -> bool:
    return bool(pa.types.is_decimal256(type))


def _type_name(type: Any) -> str:
    name = _WIDE_TYPE if _is_wide(type) else sql_type(type)
    assert name is not None, f"DuckDB has no {type}"
    return name


def _to_parameter(value: Any, type: Any) -> Any:
    match value:
        case Decimal() if _is_wide(type):
            return list(split_limbs(value, type.scale))
        case Decimal():
            return f"{value:f}"
        case date():
            return value.isoformat()
    return value


def _comparison_sql(op: Comparison, left: str, right: str, type: Any) -> str:
    if not pa.types.is_floating(type):
        return f"({left} {op.value} {right})"
    return (
        f"(CASE WHEN {left} IS NULL OR {right} IS NULL THEN NULL "
        f"WHEN isnan({left}) OR isnan({right}) THEN {op is Comparison.NE} ELSE {left} {op.value} {right} END)"
    )


def _with_both_zeros(items: tuple[Literal, ...]) -> tuple[Literal, ...]:
    """Add 0.0 and -0.0 if one of them is listed: they are equal but may have different hashes."""
    if not pa.types.is_floating(items[0].type) or all(item.value != 0 for item in items):
        return items
    return (*items, Literal(0.0, items[0].type), Literal(-0.0, items[0].type))


# -- more than 38 digits ----------------------------------------------------------------------------------------------


def _wide_arithmetic(op: ArithmeticOperator, left: str, right: str) -> str:
    a, b = [f"p.a[{LIMB_COUNT - k}]" for k in range(LIMB_COUNT)], [f"p.b[{LIMB_COUNT - k}]" for k in range(LIMB_COUNT)]
    if op is ArithmeticOperator.MULTIPLY:
        sums = [" + ".join(f"{a[i]} * {b[j]}" for i, j in pairs) for pairs in products()]
    else:
        sums = [f"{x} {op.value} {y}" for x, y in zip(a, b, strict=True)]
    not_null = "p.a IS NOT NULL AND p.b IS NOT NULL"
    return _bind_value(
        f"{{'a': {left}, 'b': {right}}}",
        "p",
        f"CASE WHEN {not_null} THEN {_bind_value(_list_sql(sums), 'x', _normalize('x'))} END",
    )


def _bind_value(value: str, name: str, result: str) -> str:
    """Return SQL that evaluates `value` once and binds it to `name` in `result`."""
    return f"list_transform([{value}], lambda {name}: {result})[1]"


def _normalize(sums: str) -> str:
    """Normalize digits that may be too large or negative; only the most significant digit stays signed."""
    carry, lower_digits = "0", list[str]()
    for k in range(LIMB_COUNT - 1):
        digit = (
            f"({sums}[{k + 1}] + {carry} + {LIFT * BASE})"  # positive, so that remainder and quotient are unambiguous
        )
        lower_digits.append(f"{digit} % {BASE}")
        carry = f"({digit} // {BASE} - {LIFT})"
    top = f"({sums}[{LIMB_COUNT}] + {carry} + {LIFT * BASE + HALF}) % {BASE} - {HALF}"
    return _list_sql([top, *reversed(lower_digits)])


def _shift(value: str, digits: int) -> str:
    return _wide_arithmetic(ArithmeticOperator.MULTIPLY, value, _list_sql(split_limbs(10**digits))) if digits else value


def _split(value: str) -> str:
    """Split an integer or a decimal (without its point) into base-10^17 digits."""
    digits = f"CAST(replace(CAST({value} AS VARCHAR), '.', '') AS HUGEINT)"
    sums = ["x % {0}", "x // {0} % {0}", "x // {0} // {0}", *["0"] * (LIMB_COUNT - 3)]
    split = _bind_value(_list_sql([digit.format(BASE) for digit in sums]), "y", _normalize("y"))
    return _bind_value(digits, "x", f"CASE WHEN x IS NOT NULL THEN {split} END")


def _as_double(value: str, scale: int) -> str:
    zero = _list_sql(split_limbs(0))
    digits = " || ".join(f"lpad(CAST(m[{k + 1}] AS VARCHAR), 17, '0')" for k in range(LIMB_COUNT))
    text = _bind_value(
        f"CASE WHEN n[1] < 0 THEN {_wide_arithmetic(ArithmeticOperator.SUBTRACT, zero, 'n')} ELSE n END", "m", digits
    )
    return _bind_value(value, "n", f"CAST(CASE WHEN n[1] < 0 THEN '-' ELSE '' END || {text} || 'E-{scale}' AS DOUBLE)")


def _list_sql(parts: Iterable[str | int]) -> str:
    return f"CAST([{', '.join(map(str, parts))}] AS {_WIDE_TYPE})"
