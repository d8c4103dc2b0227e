"""The narrowest type that holds every value of two types, for any Arrow type; None where there is none.

Types that differ in their physical form alone (text as string, large_string, view or dictionary) are one type, and keep
the form that the target has. Nothing that could lose a digit, a zone or a meaning is ever chosen: whole numbers do not
become floating, text no number, dates no times.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

_UNITS = ("s", "ms", "us", "ns")


def unified(target: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    if target == source or pt.is_null(source):
        return target
    if pt.is_null(target):
        return source
    if pt.is_dictionary(target) or pt.is_dictionary(source):
        inner, other = _values(target), _values(source)
        kind = unified(inner, other)
        return target if kind == inner else kind
    for same, widened in _FAMILIES:
        if same(target) and same(source):
            return widened(target, source)
    if pt.is_decimal(target) and pt.is_integer(source):
        return target  # a value with too many digits is refused when it comes
    return None


def _values(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def _integers(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pt.is_signed_integer(one) == pt.is_signed_integer(other):
        return one if one.bit_width >= other.bit_width else other
    signed, unsigned = (one, other) if pt.is_signed_integer(one) else (other, one)
    bits = max(signed.bit_width, 2 * unsigned.bit_width)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)


def _floats(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    return one if one.bit_width >= other.bit_width else other


def _decimals(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    scale = max(one.scale, other.scale)
    digits = max(one.precision - one.scale, other.precision - other.scale) + scale
    if (digits, scale) == (one.precision, one.scale):
        return one
    if digits <= 38 and not (pt.is_decimal256(one) or pt.is_decimal256(other)):
        return pa.decimal128(digits, scale)
    return pa.decimal256(digits, scale) if digits <= 76 and pt.is_decimal256(one) else None


def _times(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    return max(one, other, key=lambda t: _UNITS.index(t.unit))


def _timestamps(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    return max(one, other, key=lambda t: _UNITS.index(t.unit)) if one.tz == other.tz else None


def _lists(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    item = unified(one.value_type, other.value_type)
    if item is None or item == one.value_type:
        return item and one
    field = one.value_field.with_type(item)
    return pa.large_list(field) if pt.is_large_list(one) else pa.list_(field)


def _structs(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if [f.name for f in one] != [f.name for f in other]:
        return None
    inner = [unified(a.type, b.type) for a, b in zip(one, other, strict=True)]
    if any(kind is None for kind in inner):
        return None
    return pa.struct([field.with_type(kind) for field, kind in zip(one, inner, strict=True)])


def _keep(one: pa.DataType, _other: pa.DataType) -> pa.DataType:
    return one


def _either(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(test(kind) for test in tests)


_FAMILIES: list[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], pa.DataType | None]]
] = [
    (pt.is_integer, _integers),
    (pt.is_floating, _floats),
    (pt.is_decimal, _decimals),
    (pt.is_timestamp, _timestamps),
    (pt.is_time, _times),
    (pt.is_date, _keep),
    (_either(pt.is_string, pt.is_large_string, pt.is_string_view), _keep),
    (_either(pt.is_binary, pt.is_large_binary, pt.is_binary_view), _keep),
    (_either(pt.is_list, pt.is_large_list, pt.is_list_view, pt.is_large_list_view, pt.is_fixed_size_list), _lists),
    (pt.is_struct, _structs),
]  # fmt: skip
