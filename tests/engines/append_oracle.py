"""Reference implementation of append in plain Python, with fractions for exact numbers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from engines.selector_oracle import truth
from penstock.core.pipeline.aggregates import Aggregate, Function
from penstock.core.pipeline.operations import AppendOperation
from penstock.core.selector import parse

Row = Mapping[str, Any]


def append_rows(operation: AppendOperation, source: pa.Table, working: pa.Schema) -> list[dict[str, Any]]:
    doubles = frozenset(field.name for field in source.schema if pt.is_floating(field.type))
    node = parse(operation.selector) if operation.selector else None
    selected = [row for row in source.to_pylist() if node is None or truth(node, row, doubles) is True]
    result = list(_group_rows(operation, selected, source.schema, working)) if operation.group_by else selected
    return [{name: row.get(name) for name in working.names} for row in result]


def overflowing_columns(rows: Sequence[Row], working: pa.Schema) -> set[str]:
    """Return the columns with a value that does not fit their type."""
    return {field.name for field in working for row in rows if not _fits(row[field.name], field.type)}


def group_key(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    """Return the group key of a row: all NaN are equal, and 0.0 equals -0.0."""
    return tuple(_comparable(row[name]) for name in columns)


def _comparable(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _group_rows(
    operation: AppendOperation, rows: Sequence[Row], source: pa.Schema, working: pa.Schema
) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(group_key(row, operation.group_by), []).append(row)
    for members in groups.values():
        yield {name: members[0][name] for name in operation.group_by} | {
            aggregate.column: _aggregate(aggregate, members, source, working.field(aggregate.column).type)
            for aggregate in operation.aggregates
        }


def _aggregate(aggregate: Aggregate, rows: Sequence[Row], source: pa.Schema, working: pa.DataType) -> Any:
    if aggregate.input is None:
        return len(rows)
    values = [row[aggregate.input] for row in rows if row[aggregate.input] is not None]
    input_type = source.field(aggregate.input).type
    match aggregate.function:
        case Function.COUNT:
            return len(values)
        case _ if not values:
            return None
        case Function.MIN | Function.MAX:
            ordered = sorted(values, key=lambda value: (_comparable(value) == "NaN", value))
            return ordered[0 if aggregate.function is Function.MIN else -1]
    if pt.is_floating(input_type):
        return sum(values) if aggregate.function is Function.SUM else sum(values) / len(values)
    total = sum(map(Fraction, values), Fraction(0))
    if aggregate.function is Function.SUM:
        return total if pt.is_decimal(input_type) else _long(total)
    return _half_up(total / len(values), working.scale) if pt.is_decimal(input_type) else float(total / len(values))


def _half_up(comparable_value: Fraction, scale: int) -> Fraction:
    shifted = abs(comparable_value) * 10**scale
    return Fraction(math.floor(shifted + Fraction(1, 2)), 10**scale) * (-1 if comparable_value < 0 else 1)


def _long(comparable_value: Fraction) -> Fraction | object:
    return comparable_value if -(2**63) <= comparable_value < 2**63 else _TOO_LARGE


_TOO_LARGE = object()


def _fits(value: Any, data_type: pa.DataType) -> bool:
    if value is _TOO_LARGE:
        return False
    if value is None or not pt.is_decimal(data_type):
        return True
    return abs(Fraction(value)) * 10**data_type.scale < 10**data_type.precision


def comparable_value(value: Any) -> Any:
    """Convert a value so that results of engine and oracle can be compared."""
    return Fraction(value) if isinstance(value, Decimal | int) and not isinstance(value, bool) else _comparable(value)
