"""Read a selector the way DuckDB does: one node, one piece of SQL, every value bound.

The condition fails on no data. Where DuckDB means something else than the language, the SQL says it in more words: NaN
equals nothing, decimals become the nearest double, x / 0 is NULL. A number of more than 38 digits, which DuckDB does
not have, is a list of five places to the base 10^17, the highest first: such lists sort as the numbers do.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.core.selector import (And, Arithmetic, Between, Cast, Column, Compare, Comparison, In, IsNull, Like, Literal, Node, Not, Operation, Or, Wild, bind, type_of)
from penstock.core.selector.decimal256 import BASE, HALF, LIFT, PLACES, places, products
from penstock.engines.duckdb.types import quoted, sql_type

REGEX = {Wild.ANY: ".*", Wild.ONE: "."}
WIDE = "HUGEINT[]"


@dataclass(frozen=True)
class Condition:
    sql: str
    values: Mapping[str, Any]  # by the names of the parameters in the SQL


def condition(node: Node, schema: pa.Schema, prefix: str = "selector") -> Condition:
    """What to write after WHERE to keep the rows for which the selector (bound or not) is TRUE."""
    writing = _Writing(prefix)
    return Condition(writing.lower(bind(node, schema)), writing.values)


@dataclass(frozen=True)
class _Writing:
    prefix: str
    values: dict[str, Any] = field(default_factory=dict)

    def lower(self, node: Node) -> str:
        match node:
            case Column(name):
                return quoted(name)
            case Literal(value, type):
                return self.bound(_plain(value, type), _named(type))
            case Cast(operand, type):
                return self.cast(operand, type)
            case Arithmetic(op, left, right, type) if _is_wide(type):
                if op is not Operation.MULTIPLY:  # the points must stand in the same place
                    left, right = Cast(left, type), Cast(right, type)
                return _calculated(op, self.lower(left), self.lower(right))
            case Arithmetic(Operation.DIVIDE, left, right):
                return f"({self.lower(left)} / nullif({self.lower(right)}, 0))"
            case Arithmetic(op, left, right, type):
                if pa.types.is_decimal(type):  # as wide as the result: DuckDB does not widen past 18 digits by itself
                    left = Cast(left, pa.decimal128(type.precision, type_of(left).scale))
                return f"CAST({self.lower(left)} {op.value} {self.lower(right)} AS {_named(type)})"
            case Compare(op, left, right):
                return _compared(op, self.lower(left), self.lower(right), type_of(left))
            case Between(operand, low, high):
                both = Compare(Comparison.GE, operand, low), Compare(Comparison.LE, operand, high)
                return self.lower(And(both))
            case In(operand, items):
                return self.among(operand, items)
            case Like(operand, pattern):
                # as Arrow does, and not LIKE: DuckDB's tries every place for every %, which takes for ever
                regex = "".join(re.escape(part) if isinstance(part, str) else REGEX[part] for part in pattern)
                return f"regexp_full_match({self.lower(operand)}, {self.bound(regex, 'VARCHAR')}, 's')"
            case IsNull(operand):
                return f"({self.lower(operand)} IS NULL)"
            case Not(operand):
                return f"(NOT {self.lower(operand)})"
            case And(parts):
                return f"({' AND '.join(map(self.lower, parts))})"
            case Or(parts):
                return f"({' OR '.join(map(self.lower, parts))})"

    def bound(self, value: Any, type: str) -> str:
        name = f"{self.prefix}_{len(self.values)}"
        self.values[name] = value
        return f"CAST(${name} AS {type})"

    def among(self, operand: Node, items: tuple[Literal, ...]) -> str:
        value, listed = self.lower(operand), ", ".join(map(self.lower, _with_both_zeros(items)))
        if not pa.types.is_floating(type_of(operand)):
            return f"({value} IN ({listed}))"
        # said of NaN apart: DuckDB takes what Parquet has as least and greatest for all there is, and NaN is left out
        of_nan = "NULL" if any(item.value is None for item in items) else "FALSE"
        return f"(CASE WHEN isnan({value}) THEN {of_nan} ELSE {value} IN ({listed}) END)"

    def cast(self, operand: Node, type: Any) -> str:
        given, value = type_of(operand), self.lower(operand)
        match _is_wide(given), _is_wide(type):
            case True, True:
                return _shifted(value, type.scale - given.scale)
            case False, True:
                return _shifted(_split(value), type.scale - (given.scale if pa.types.is_decimal(given) else 0))
            case True, False:  # to double; there are no other ways out
                return _as_double(value, given.scale)
        if pa.types.is_decimal(given) and pa.types.is_floating(type):
            value = f"CAST({value} AS VARCHAR)"  # text becomes the nearest double; a decimal may become the one beside
        return f"CAST({value} AS {_named(type)})"


def _is_wide(type: Any) -> bool:
    return bool(pa.types.is_decimal256(type))


def _named(type: Any) -> str:
    name = WIDE if _is_wide(type) else sql_type(type)
    assert name is not None, f"DuckDB has no {type}"
    return name


def _plain(value: Any, type: Any) -> Any:
    match value:
        case Decimal() if _is_wide(type):
            return list(places(value, type.scale))
        case Decimal():
            return f"{value:f}"
        case date():
            return value.isoformat()
    return value


def _compared(op: Comparison, left: str, right: str, type: Any) -> str:
    if not pa.types.is_floating(type):
        return f"({left} {op.value} {right})"
    return (
        f"(CASE WHEN {left} IS NULL OR {right} IS NULL THEN NULL "
        f"WHEN isnan({left}) OR isnan({right}) THEN {op is Comparison.NE} ELSE {left} {op.value} {right} END)"
    )


def _with_both_zeros(items: tuple[Literal, ...]) -> tuple[Literal, ...]:
    """Zeros are equal, but need not be to a hash table."""
    if not pa.types.is_floating(items[0].type) or all(item.value != 0 for item in items):
        return items
    return (*items, Literal(0.0, items[0].type), Literal(-0.0, items[0].type))


# -- more than 38 digits ----------------------------------------------------------------------------------------------


def _calculated(op: Operation, left: str, right: str) -> str:
    a, b = [f"p.a[{PLACES - k}]" for k in range(PLACES)], [f"p.b[{PLACES - k}]" for k in range(PLACES)]
    if op is Operation.MULTIPLY:
        sums = [" + ".join(f"{a[i]} * {b[j]}" for i, j in pairs) for pairs in products()]
    else:
        sums = [f"{x} {op.value} {y}" for x, y in zip(a, b, strict=True)]
    known = "p.a IS NOT NULL AND p.b IS NOT NULL"
    return _let(
        f"{{'a': {left}, 'b': {right}}}", "p", f"CASE WHEN {known} THEN {_let(_list(sums), 'x', _carried('x'))} END"
    )


def _let(value: str, name: str, result: str) -> str:
    """The result, with a name for a value that is worked out once."""
    return f"list_transform([{value}], lambda {name}: {result})[1]"


def _carried(sums: str) -> str:
    """The places of a number, of which each may be too large or below zero: only the highest stays below zero."""
    carry, lower = "0", list[str]()
    for k in range(PLACES - 1):
        here = f"({sums}[{k + 1}] + {carry} + {LIFT * BASE})"  # above zero, where rest and quotient are plain
        lower.append(f"{here} % {BASE}")
        carry = f"({here} // {BASE} - {LIFT})"
    top = f"({sums}[{PLACES}] + {carry} + {LIFT * BASE + HALF}) % {BASE} - {HALF}"
    return _list([top, *reversed(lower)])


def _shifted(value: str, digits: int) -> str:
    return _calculated(Operation.MULTIPLY, value, _list(places(10**digits))) if digits else value


def _split(value: str) -> str:
    """The digits of an integer or a decimal, without its point, as places."""
    digits = f"CAST(replace(CAST({value} AS VARCHAR), '.', '') AS HUGEINT)"
    sums = ["x % {0}", "x // {0} % {0}", "x // {0} // {0}", *["0"] * (PLACES - 3)]
    split = _let(_list([each.format(BASE) for each in sums]), "y", _carried("y"))
    return _let(digits, "x", f"CASE WHEN x IS NOT NULL THEN {split} END")


def _as_double(value: str, scale: int) -> str:
    zero = _list(places(0))
    digits = " || ".join(f"lpad(CAST(m[{k + 1}] AS VARCHAR), 17, '0')" for k in range(PLACES))
    text = _let(f"CASE WHEN n[1] < 0 THEN {_calculated(Operation.SUBTRACT, zero, 'n')} ELSE n END", "m", digits)
    return _let(value, "n", f"CAST(CASE WHEN n[1] < 0 THEN '-' ELSE '' END || {text} || 'E-{scale}' AS DOUBLE)")


def _list(parts: Iterable[str | int]) -> str:
    return f"CAST([{', '.join(map(str, parts))}] AS {WIDE})"
