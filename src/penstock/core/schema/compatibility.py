"""Check that rows fit a dataset schema, cast batches to it, and evolve it."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.formatting import format_value
from penstock.core.names import check_column_names, join_names
from penstock.core.schema.canonical import canonical_field_type, canonical_schema, column_names
from penstock.core.schema.type_widening import common_type
from penstock.errors import Invalid


def can_widen(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Check whether values of `narrow` may be written into a column of `wide`. Integers may become decimals."""
    return bool(common_type(wide, narrow) == wide)


def check_fits(source: pa.Schema, target: pa.Schema) -> None:
    """Check that rows of `source` can be appended to `target`.

    Columns are matched by name.

    Raises:
        Invalid: the source has an extra column, lacks a required one, or would narrow a type
    """
    check_column_names(column_names(source))
    if extra := sorted(set(source.names) - set(target.names)):
        raise Invalid(
            "extra_columns.append",
            {"extra": join_names(extra), "names": join_names(target.names)},
            extra_columns=extra,
            columns=target.names,
        )
    for field in target:
        source_field = source.field(field.name) if field.name in source.names else None
        if source_field is None or pt.is_null(source_field.type):
            if not field.nullable:
                raise Invalid("missing_column.append", {"name": field.name}, column=field.name)
        elif not can_widen(canonical_field_type(source_field), field.type):
            raise Invalid(
                "type_mismatch.append",
                {"name": field.name},
                column=field.name,
                expected=format_value(field.type),
                actual=format_value(source_field.type),
            )


def cast_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the columns and types of the target.

    Missing columns become NULL.

    Raises:
        Invalid: a value does not fit its column, or a required column contains NULL
    """
    columns = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        column = batch.column(index) if index >= 0 else pa.nulls(batch.num_rows, field.type)
        if column.type != field.type:
            column = _cast(column, field)
        if not field.nullable and column.null_count:
            raise Invalid(
                "null_in_required_column.batch",
                {"name": field.name, "null_count": column.null_count, "rows": batch.num_rows},
                column=field.name,
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def evolve(schema: pa.Schema, add: pa.Schema, widen: dict[str, pa.DataType]) -> pa.Schema:
    """Return the schema with nullable columns added at the end and types widened.

    Existing files remain readable under the new schema.

    Args:
        schema: the current schema
        add: columns to add
        widen: column name → wider type
    """
    for field in add:
        if not field.nullable:
            raise Invalid(
                "added_column_required",
                {"name": field.name},
                column=field.name,
            )
    for name, wide in widen.items():
        if name not in schema.names:
            raise Invalid("column_not_found.alter", {"name": name, "names": join_names(schema.names)}, column=name)
        narrow = schema.field(name).type
        if common_type(narrow, wide) != wide:
            raise Invalid(
                "not_wider",
                {"name": name, "narrow": format_value(narrow), "wide": format_value(wide)},
                column=name,
            )
    fields = [f.with_type(widen[f.name]) if f.name in widen else f for f in schema]
    return canonical_schema(pa.schema([*fields, *add]))


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if pt.is_dictionary(column.type):  # Arrow cannot decode dictionaries of views, which Polars produces
        return pc.take(_cast(column.dictionary, field), column.indices)
    if _has_list_view(column.type):
        column = _to_lists(column)
    try:
        if pt.is_integer(column.type) and pt.is_decimal(field.type):
            # Arrow requires a precision that fits every integer of the type; only the actual values need to fit.
            column = pc.cast(column, pa.decimal256(76, field.type.scale))
        return pc.cast(column, field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise Invalid(
            "value_does_not_fit.cast",
            {
                "name": field.name,
                "actual": format_value(column.type),
                "expected": format_value(field.type),
                "cause": _first_line(cause),
            },
            column=field.name,
        ) from None


def _has_list_view(data_type: pa.DataType) -> bool:
    if pt.is_list_view(data_type) or pt.is_large_list_view(data_type):
        return True
    return pt.is_nested(data_type) and any(
        _has_list_view(data_type.field(index).type) for index in range(data_type.num_fields)
    )


def _to_lists(column: pa.Array) -> pa.Array:
    """Convert list views to lists, at any depth: the cast of Arrow loses their values."""
    if pt.is_struct(column.type):
        parts = [_to_lists(part) for part in column.flatten()]
        return pa.StructArray.from_arrays(parts, [field.name for field in column.type], mask=column.is_null())
    if not pt.is_nested(column.type):
        return column
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    return pa.LargeListArray.from_arrays(offsets, _to_lists(column.flatten()), mask=column.is_null())


def _first_line(cause: Exception) -> str:
    return str(cause).partition("\n")[0][:300]
