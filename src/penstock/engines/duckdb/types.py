"""Arrow types as DuckDB types, and the Arrow schema in Parquet footers."""

from base64 import b64encode

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.formatting import format_value

_SCALAR_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT", pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER", pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR", pa.large_string(): "VARCHAR", pa.binary(): "BLOB", pa.large_binary(): "BLOB",
    pa.date32(): "DATE", pa.date64(): "DATE",
    pa.time64("us"): "TIME", pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_MS",  # Parquet has no seconds; Arrow stores milliseconds, too
    pa.timestamp("ms"): "TIMESTAMP_MS", pa.timestamp("us"): "TIMESTAMP", pa.timestamp("ns"): "TIMESTAMP_NS",
}  # fmt: skip
_VIEW_TYPES = {
    pa.string_view(): "VARCHAR",
    pa.binary_view(): "BLOB",
}  # top level only: Arrow cannot take rows from nested views
_TIMESTAMP_UTC_TYPES = {"us": "TIMESTAMP WITH TIME ZONE", "ns": "TIMESTAMPTZ_NS"}
_RESERVED_COLUMNS = ("file_index", "file_row_number")  # virtual columns of read_parquet


def sql_type(data_type: pa.DataType) -> str | None:
    """Return the DuckDB type that reads and writes every value unchanged, or None."""
    return _VIEW_TYPES.get(data_type) or _inner_type(data_type.value_type if pt.is_dictionary(data_type) else data_type)


def _inner_type(data_type: pa.DataType) -> str | None:
    if pt.is_timestamp(data_type) and data_type.tz is not None:
        return _TIMESTAMP_UTC_TYPES.get(data_type.unit)
    if pt.is_decimal(data_type) and not pt.is_decimal256(data_type):
        return f"DECIMAL({data_type.precision}, {data_type.scale})" if data_type.scale >= 0 else None
    if pt.is_map(data_type):
        key_type, item_type = _inner_type(data_type.key_type), _inner_type(data_type.item_type)
        return f"MAP({key_type}, {item_type})" if key_type and item_type else None
    if any(test(data_type) for test in (pt.is_list, pt.is_large_list, pt.is_list_view, pt.is_large_list_view)):
        item_type = _inner_type(data_type.value_type)
        return item_type and f"{item_type}[]"
    if pt.is_struct(data_type):
        fields = [(quote_identifier(field.name), _inner_type(field.type)) for field in data_type]
        has_distinct_names = len({name.lower() for name, _ in fields}) == len(fields) > 0
        return (
            f"STRUCT({', '.join(f'{n} {t}' for n, t in fields)})"
            if has_distinct_names and all(t for _, t in fields)
            else None
        )
    return _SCALAR_TYPES.get(data_type)


def describe_unsupported_column(schema: pa.Schema) -> str | None:
    for field in schema:
        if sql_type(field.type) is None:
            return f"Column {field.name!r} has type {format_value(field.type)}, which DuckDB would change"
        if field.name.lower() in _RESERVED_COLUMNS:
            return f"Column {field.name!r} has a name that DuckDB reserves for the position of a row"
    return None


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def footer_metadata(schema: pa.Schema) -> dict[str, str | bytes]:
    """Return the key-value metadata of a Parquet footer: the Arrow schema and the existing metadata.

    DuckDB stores every column as nullable; the Arrow schema must say the same, or Arrow rejects the file.
    """
    nullable = pa.schema([as_nullable(field) for field in schema], metadata=schema.metadata)
    entries: dict[str, str | bytes] = {"ARROW:schema": b64encode(nullable.serialize().to_pybytes()).decode()}
    used_names = {"arrow:schema"}  # KV_METADATA is a struct: DuckDB ignores the case of its names
    for key, value in (schema.metadata or {}).items():
        name = key.decode(errors="replace")
        if name.lower() not in used_names:
            used_names.add(name.lower())
            entries[name] = value
    return entries


def has_required_fields(schema: pa.Schema) -> bool:
    """Return True if a column, or a field inside one, is NOT NULL."""
    return any(field != as_nullable(field) for field in schema)


def as_nullable(field: pa.Field) -> pa.Field:
    """Return the field without NOT NULL, at every depth."""
    data_type = field.type
    if pt.is_struct(data_type):
        data_type = pa.struct([as_nullable(inner) for inner in data_type])
    elif pt.is_list(data_type) or pt.is_large_list(data_type):
        make_list = pa.list_ if pt.is_list(data_type) else pa.large_list
        data_type = make_list(as_nullable(data_type.value_field))
    elif pt.is_map(data_type):
        data_type = pa.map_(data_type.key_field, as_nullable(data_type.item_field), data_type.keys_sorted)
    return field.with_type(data_type).with_nullable(True)
