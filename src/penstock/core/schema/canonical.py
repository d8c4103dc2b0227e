"""Which types a dataset may hold, how others become them, and how a schema may grow."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.names import check_columns
from penstock.core.schema.type_widening import unified
from penstock.errors import Invalid

Fields = list[dict[str, Any]]  # a schema as JSON: [{"name": "id", "type": "int64", "nullable": false}, …]

_UTC = {"utc", "etc/utc", "+00:00", "-00:00", "z", "zulu", "etc/zulu"}

_SCALARS: dict[str, pa.DataType] = {
    str(kept): kept
    for kept in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    )
}  # fmt: skip

# Types that become a canonical one without losing anything (casts are checked: a value that does not fit is refused).
_CONVERTED: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]]] = [
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
    (pt.is_struct, lambda t: _struct([(f.name, canonical_type(f.type)) for f in t])),
]

# What to do about types that cannot be kept.
_ADVICE: list[tuple[Callable[[pa.DataType], bool], str]] = [
    (pt.is_null, "the column holds nothing but NULL; cast it to the type that it should have"),
    (pt.is_timestamp, "only naive and UTC timestamps are kept; cast to timestamp[us, tz=UTC]"),
    (pt.is_time, "cast to string, or to int64 counting a unit of your choice"),
    (pt.is_duration, "cast to int64 counting a unit of your choice"),
    (pt.is_interval, "cast to int64 or to a struct of months, days and nanoseconds"),
    (pt.is_decimal, "at most 38 digits are kept, 0 to all of them after the point; cast to such a decimal128"),
    (pt.is_map, "cast to list<struct<key, value>>"),
]


def canonical(schema: pa.Schema) -> pa.Schema:
    """The schema as a dataset keeps it, or a refusal that names the column and the way out."""
    check_columns(_names(schema))
    return pa.schema([pa.field(field.name, _kept(field), field.nullable) for field in schema])


def canonical_type(given: pa.DataType) -> pa.DataType:
    if str(given) in _SCALARS and not isinstance(given, pa.BaseExtensionType):
        return given
    for matches, converted in _CONVERTED:
        if matches(given):
            return converted(given)
    for matches, advice in _ADVICE:
        if matches(given):
            raise _NotKept(advice)
    raise _NotKept(f"cast it to one of {', '.join(_SCALARS)}, decimal128, list or struct")


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """May values of `narrow` be written into a column of `wide`? Whole numbers may become decimals."""
    return bool(unified(wide, narrow) == wide)


def check_fits(source: pa.Schema, target: pa.Schema) -> None:
    """Can rows of `source` be appended to `target`? By name: no extra column, nothing narrowed, nothing required missing."""
    check_columns(_names(source))
    if extra := sorted(set(source.names) - set(target.names)):
        raise Invalid(
            "extra_columns",
            f"the rows have columns that the dataset lacks: {_listed(extra)}; it has {_listed(target.names)} "
            "(`penstock dataset alter` adds columns)",
            extra_columns=extra,
            columns=target.names,
        )
    for field in target:
        given = source.field(field.name) if field.name in source.names else None
        if given is None or pt.is_null(given.type):
            if not field.nullable:
                raise Invalid(
                    "missing_column", f"column {field.name!r} is required, and the rows lack it", column=field.name
                )
        elif not widens(_kept(given), field.type):
            raise Invalid(
                "type_mismatch",
                f"column {field.name!r} is {field.type}; the rows bring {given.type}: cast them to {field.type}",
                column=field.name,
                expected=str(field.type),
                actual=str(given.type),
            )


def conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the target's columns and types; missing columns become NULL, bad values are refused."""
    columns = []
    for field in target:
        place = batch.schema.get_field_index(field.name)
        column = batch.column(place) if place >= 0 else pa.nulls(batch.num_rows, field.type)
        if column.type != field.type:
            column = _cast(column, field)
        if not field.nullable and column.null_count:
            raise Invalid(
                "null_in_required_column",
                f"column {field.name!r} is required, and {column.null_count} of {batch.num_rows} rows have no value",
                column=field.name,
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def grown(schema: pa.Schema, add: pa.Schema, widen: dict[str, pa.DataType]) -> pa.Schema:
    """The schema with nullable columns added at the end and types widened: all that old files can still be read as."""
    for field in add:
        if not field.nullable:
            raise Invalid(
                "added_column_required",
                f"column {field.name!r}: rows that exist have no value for it, so a new column must be nullable",
                column=field.name,
            )
    for name, wide in widen.items():
        if name not in schema.names:
            raise Invalid(
                "no_such_column", f"there is no column {name!r}; the dataset has {_listed(schema.names)}", column=name
            )
        narrow = schema.field(name).type
        if unified(narrow, wide) != wide:
            raise Invalid(
                "not_wider",
                f"column {name!r} is {narrow}, and {wide} does not hold all its values; "
                "integers widen to larger integers, float to double, decimals to more digits",
                column=name,
            )
    fields = [f.with_type(widen[f.name]) if f.name in widen else f for f in schema]
    return canonical(pa.schema([*fields, *add]))


def to_fields(schema: pa.Schema) -> Fields:
    return [{"name": f.name, "type": _type_out(f.type), "nullable": f.nullable} for f in schema]


def from_fields(fields: Fields) -> pa.Schema:
    return pa.schema([pa.field(f["name"], _type_in(f["type"]), f["nullable"]) for f in fields])


def parse_type(text: str) -> pa.DataType:
    """A type as people write it: int64, string, decimal(12,2), timestamp, list<int64>."""
    word = text.strip().lower().replace(" ", "")
    if word in _SPOKEN:
        return _SPOKEN[word]
    if word.startswith(("decimal(", "decimal128(")) and word.endswith(")"):
        digits = word[word.index("(") + 1 : -1].split(",")
        if len(digits) == 2 and all(d.isdigit() and len(d) < 3 for d in digits):
            precision, scale = map(int, digits)
            if max(scale, 1) <= precision <= 38:
                return pa.decimal128(precision, scale)
    if word.startswith("list<") and word.endswith(">"):
        return pa.list_(parse_type(word[5:-1]))
    raise Invalid(
        "unknown_type", f"{ascii(text)[:80]} is no type; use one of {', '.join(sorted(_SPOKEN))}, decimal(p,s), list<…>"
    )


_SPOKEN: dict[str, pa.DataType] = {
    **{name.replace(" ", "").lower(): kept for name, kept in _SCALARS.items()},
    "boolean": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "integer": pa.int32(),
    "long": pa.int64(), "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "float32": pa.float32(), "float64": pa.float64(), "text": pa.string(), "date": pa.date32(), "date32": pa.date32(),
    "timestamp": pa.timestamp("us"), "timestamp_utc": pa.timestamp("us", "UTC"),
}  # fmt: skip


def _names(schema: pa.Schema) -> list[str]:
    try:
        return list(schema.names)
    except UnicodeDecodeError:
        raise Invalid("bad_column_name", "the name of a column is not UTF-8 text") from None


def _kept(field: pa.Field) -> pa.DataType:
    try:
        return canonical_type(field.type)
    except UnicodeDecodeError:
        raise Invalid("bad_column_name", f"column {field.name!r}: the name of a field is not UTF-8 text") from None
    except _NotKept as refusal:
        raise Invalid(
            "type_not_kept",
            f"column {field.name!r}: type {field.type} cannot be kept: {refusal}",
            column=field.name,
            type=str(field.type),
        ) from None


def _struct(parts: list[tuple[str, pa.DataType]]) -> pa.DataType:
    if len({name.lower() for name, _ in parts}) < max(len(parts), 1):
        raise _NotKept("a struct needs fields, and names that differ in more than case")
    return pa.struct(parts)


class _NotKept(Exception):
    """Why a type cannot be kept; the column's name is added by the caller."""


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if pt.is_dictionary(column.type):  # Arrow unpacks no dictionary of views, such as Polars has
        return pc.take(_cast(column.dictionary, field), column.indices)
    try:
        if pt.is_integer(column.type) and pt.is_decimal(field.type):
            # Arrow asks for room for every integer; what matters is whether these fit.
            column = pc.cast(column, pa.decimal256(76, field.type.scale))
        return pc.cast(column, field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise Invalid(
            "value_does_not_fit",
            f"column {field.name!r}: a value of type {column.type} does not fit {field.type}: {_first_line(cause)}",
            column=field.name,
        ) from None


def _first_line(cause: Exception) -> str:
    return str(cause).partition("\n")[0][:300]


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown


def _type_out(kept: pa.DataType) -> Any:
    if pt.is_list(kept):
        return {"list": _type_out(kept.value_type)}
    if pt.is_struct(kept):
        return {"struct": [[f.name, _type_out(f.type)] for f in kept]}
    if pt.is_decimal(kept):
        return {"decimal": [kept.precision, kept.scale]}
    return str(kept)


def _type_in(stored: Any) -> pa.DataType:
    match stored:
        case {"list": item}:
            return pa.list_(_type_in(item))
        case {"struct": inner}:
            return pa.struct([(name, _type_in(part)) for name, part in inner])
        case {"decimal": [precision, scale]}:
            return pa.decimal128(precision, scale)
        case str():
            return _SCALARS[stored]
    raise ValueError(f"not a stored type: {stored!r}")
