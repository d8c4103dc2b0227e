"""Canonical column types of a dataset, and the conversion of other Arrow types to them."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.formatting import format_value
from penstock.core.names import check_column_names
from penstock.errors import Invalid

_UTC = {"utc", "etc/utc", "+00:00", "-00:00", "z", "zulu", "etc/zulu"}

SCALAR_TYPES: dict[str, pa.DataType] = {
    str(data_type): data_type
    for data_type in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    )
}  # fmt: skip

# Types that convert to a canonical one without loss. Casts are checked: a value that does not fit is an error.
_CONVERSIONS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]]] = [
    (pt.is_uint8, lambda _: pa.int16()),
    (pt.is_uint16, lambda _: pa.int32()),
    (pt.is_uint32, lambda _: pa.int64()),
    (pt.is_uint64, lambda _: pa.decimal128(20, 0)),
    (pt.is_float16, lambda _: pa.float32()),
    (pt.is_large_string, lambda _: pa.string()),
    (pt.is_string_view, lambda _: pa.string()),
    (pt.is_large_binary, lambda _: pa.binary()),
    (pt.is_binary_view, lambda _: pa.binary()),
    (pt.is_fixed_size_binary, lambda _: pa.binary()),
    (pt.is_date64, lambda _: pa.date32()),
    (lambda t: pt.is_timestamp(t) and t.tz is None, lambda _: pa.timestamp("us")),
    (lambda t: pt.is_timestamp(t) and t.tz.lower() in _UTC, lambda _: pa.timestamp("us", "UTC")),
    (lambda t: pt.is_decimal(t) and 0 <= t.scale <= t.precision <= 38, lambda t: pa.decimal128(t.precision, t.scale)),
    (pt.is_dictionary, lambda t: canonical_type(t.value_type)),
    (
        lambda t: any(
            test(t)
            for test in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
        ),
        lambda t: pa.list_(canonical_type(t.value_type)),
    ),
    (pt.is_struct, lambda t: _canonical_struct([(f.name, canonical_type(f.type)) for f in t])),
]

# How to convert the types that a dataset cannot store.
_ADVICE: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pt.is_null, "the column holds only NULL; cast it to its intended type"),
    (pt.is_timestamp, "only naive and UTC timestamps are supported; cast to timestamp[us, tz=UTC]"),
    (pt.is_time, "cast to string, or to int64 in a unit of your choice"),
    (pt.is_duration, "cast to int64 in a unit of your choice"),
    (pt.is_interval, "cast to int64 or to a struct of months, days and nanoseconds"),
    (pt.is_decimal, "a decimal has at most 38 digits and a scale from 0 to its precision; cast to such a decimal128"),
    (pt.is_map, "cast to list<struct<key, value>>"),
]


class UnsupportedTypeError(Exception):
    """A dataset cannot store a type. The message advises a cast; the caller adds the column name."""


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with canonical column types.

    Raises:
        Invalid: a column name is not allowed, or a dataset cannot store a column's type
    """
    check_column_names(column_names(schema))
    return pa.schema([pa.field(field.name, canonical_field_type(field), field.nullable) for field in schema])


def canonical_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type in which a dataset stores values of `data_type`.

    Raises:
        UnsupportedTypeError: a dataset cannot store such values
    """
    if (
        not pt.is_nested(data_type)
        and str(data_type) in SCALAR_TYPES
        and not isinstance(data_type, pa.BaseExtensionType)
    ):
        return data_type
    for matches, convert in _CONVERSIONS:
        if matches(data_type):
            return convert(data_type)
    for matches, advice in _ADVICE:
        if matches(data_type):
            raise UnsupportedTypeError(advice)
    raise UnsupportedTypeError(f"cast it to one of {', '.join(SCALAR_TYPES)}, decimal128, list or struct")


def canonical_field_type(field: pa.Field) -> pa.DataType:
    """Return the canonical type of a field; errors name its column."""
    try:
        return canonical_type(field.type)
    except UnicodeDecodeError:
        raise Invalid("bad_column_name.nested_not_utf8", {"name": field.name}) from None
    except UnsupportedTypeError as error:
        raise Invalid(
            "unsupported_type.advice",
            {"name": field.name, "data_type": format_value(field.type), "advice": error},
            column=field.name,
            type=format_value(field.type),
        ) from None


def column_names(schema: pa.Schema) -> list[str]:
    """Return the column names of a schema; names that are not UTF-8 are an error."""
    try:
        return list(schema.names)
    except UnicodeDecodeError:
        raise Invalid("bad_column_name.not_utf8") from None


def _canonical_struct(parts: list[tuple[str, pa.DataType]]) -> pa.DataType:
    if len({name.lower() for name, _ in parts}) < max(len(parts), 1):
        raise UnsupportedTypeError("a struct needs fields, and names that differ in more than case")
    return pa.struct(parts)
