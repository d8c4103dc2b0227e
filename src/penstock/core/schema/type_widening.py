"""Find the narrowest Arrow type that holds every value of two types.

Types that differ only in their physical form (text as string, large_string, view or dictionary) are one type, and keep
the target's form. The common type never loses a digit, a time zone or a meaning: integers do not become floats, text
does not become a number, dates do not become timestamps.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

_UNITS = ("s", "ms", "us", "ns")


def common_type(target: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type for values of both types; None if there is none."""
    if target == source or pt.is_null(source):
        return target
    if pt.is_null(target):
        return source
    if pt.is_dictionary(target) or pt.is_dictionary(source):
        target_values, source_values = _value_type(target), _value_type(source)
        common = common_type(target_values, source_values)
        return target if common == target_values else common
    for is_member, widen in _FAMILIES:
        if is_member(target) and is_member(source):
            return widen(target, source)
    if pt.is_decimal(target) and pt.is_integer(source):
        return target  # a value with too many digits fails when it is cast
    return None


def _value_type(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pt.is_dictionary(data_type) else data_type


def _widen_integers(target: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    if pt.is_signed_integer(target) == pt.is_signed_integer(source):
        return target if target.bit_width >= source.bit_width else source
    signed, unsigned = (target, source) if pt.is_signed_integer(target) else (source, target)
    bits = max(signed.bit_width, 2 * unsigned.bit_width)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)


def _widen_floats(target: pa.DataType, source: pa.DataType) -> pa.DataType:
    return target if target.bit_width >= source.bit_width else source


def _widen_decimals(target: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    scale = max(target.scale, source.scale)
    digits = max(target.precision - target.scale, source.precision - source.scale) + scale
    if (digits, scale) == (target.precision, target.scale):
        return target
    if digits <= 38 and not (pt.is_decimal256(target) or pt.is_decimal256(source)):
        return pa.decimal128(digits, scale)
    return pa.decimal256(digits, scale) if digits <= 76 and pt.is_decimal256(target) else None


def _widen_times(target: pa.DataType, source: pa.DataType) -> pa.DataType:
    return max(target, source, key=lambda t: _UNITS.index(t.unit))


def _widen_timestamps(target: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    return max(target, source, key=lambda t: _UNITS.index(t.unit)) if target.tz == source.tz else None


def _widen_lists(target: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    item = common_type(target.value_type, source.value_type)
    if item is None or item == target.value_type:
        return item and target
    field = target.value_field.with_type(item)
    return pa.large_list(field) if pt.is_large_list(target) else pa.list_(field)


def _widen_structs(target: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    if [f.name for f in target] != [f.name for f in source]:
        return None
    inner = [common_type(a.type, b.type) for a, b in zip(target, source, strict=True)]
    if any(kind is None for kind in inner):
        return None
    return pa.struct([field.with_type(kind) for field, kind in zip(target, inner, strict=True)])


def _keep_target(target: pa.DataType, _source: pa.DataType) -> pa.DataType:
    return target


def _any_of(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(test(kind) for test in tests)


_FAMILIES: list[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], pa.DataType | None]]
] = [
    (pt.is_integer, _widen_integers),
    (pt.is_floating, _widen_floats),
    (pt.is_decimal, _widen_decimals),
    (pt.is_timestamp, _widen_timestamps),
    (pt.is_time, _widen_times),
    (pt.is_date, _keep_target),
    (_any_of(pt.is_string, pt.is_large_string, pt.is_string_view), _keep_target),
    (_any_of(pt.is_binary, pt.is_large_binary, pt.is_binary_view), _keep_target),
    (_any_of(pt.is_list, pt.is_large_list, pt.is_list_view, pt.is_large_list_view, pt.is_fixed_size_list), _widen_lists),
    (pt.is_struct, _widen_structs),
]  # fmt: skip
