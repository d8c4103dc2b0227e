"""What an append means, in plain Python: rows in, rows out, with fractions for numbers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.pipeline.aggregates import Aggregate, Function
from penstock.core.pipeline.operations import Append
from penstock.core.selector import parse
from semantics.selector_oracle import truth

Row = Mapping[str, Any]


def appended(operation: Append, source: pa.Table, working: pa.Schema) -> list[dict[str, Any]]:
    doubles = frozenset(field.name for field in source.schema if pt.is_floating(field.type))
    node = parse(operation.selector) if operation.selector else None
    kept = [row for row in source.to_pylist() if node is None or truth(node, row, doubles) is True]
    made = list(_grouped(operation, kept, source.schema, working)) if operation.group_by else kept
    return [{name: row.get(name) for name in working.names} for row in made]


def unfit(rows: Sequence[Row], working: pa.Schema) -> set[str]:
    """The columns that some value does not fit."""
    return {field.name for field in working for row in rows if not _fits(row[field.name], field.type)}


def identity(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    """What groups are told apart by: NaN is one value, and zero is."""
    return tuple(_identity(row[name]) for name in columns)


def _identity(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _grouped(operation: Append, rows: Sequence[Row], source: pa.Schema, working: pa.Schema) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(identity(row, operation.group_by), []).append(row)
    for members in groups.values():
        yield {name: members[0][name] for name in operation.group_by} | {
            each.column: _aggregate(each, members, source, working.field(each.column).type)
            for each in operation.aggregates
        }


def _aggregate(each: Aggregate, rows: Sequence[Row], source: pa.Schema, working: pa.DataType) -> Any:
    if each.input is None:
        return len(rows)
    values = [row[each.input] for row in rows if row[each.input] is not None]
    given = source.field(each.input).type
    match each.function:
        case Function.COUNT:
            return len(values)
        case _ if not values:
            return None
        case Function.MIN | Function.MAX:
            ordered = sorted(values, key=lambda value: (_identity(value) == "NaN", value))
            return ordered[0 if each.function is Function.MIN else -1]
    if pt.is_floating(given):
        return sum(values) if each.function is Function.SUM else sum(values) / len(values)
    total = sum(map(Fraction, values), Fraction(0))
    if each.function is Function.SUM:
        return total if pt.is_decimal(given) else _long(total)
    return _half_up(total / len(values), working.scale) if pt.is_decimal(given) else float(total / len(values))


def _half_up(number: Fraction, scale: int) -> Fraction:
    shifted = abs(number) * 10**scale
    return Fraction(math.floor(shifted + Fraction(1, 2)), 10**scale) * (-1 if number < 0 else 1)


def _long(number: Fraction) -> Fraction | object:
    return number if -(2**63) <= number < 2**63 else _TOO_LARGE


_TOO_LARGE = object()


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is _TOO_LARGE:
        return False
    if value is None or not pt.is_decimal(kind):
        return True
    return abs(Fraction(value)) * 10**kind.scale < 10**kind.precision


def number(value: Any) -> Any:
    """A value as both sides can compare it."""
    return Fraction(value) if isinstance(value, Decimal | int) and not isinstance(value, bool) else _identity(value)
