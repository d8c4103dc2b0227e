"""Arrow's types in DuckDB's words, and what a Parquet file tells Arrow of them."""

from base64 import b64encode

import pyarrow as pa
import pyarrow.types as pt

_SCALARS: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT", pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER", pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT", pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR", pa.large_string(): "VARCHAR", pa.binary(): "BLOB", pa.large_binary(): "BLOB",
    pa.date32(): "DATE", pa.date64(): "DATE",
    pa.time64("us"): "TIME", pa.time64("ns"): "TIME_NS",
    pa.timestamp("s"): "TIMESTAMP_MS",  # Parquet knows no seconds; Arrow stores them so, too
    pa.timestamp("ms"): "TIMESTAMP_MS", pa.timestamp("us"): "TIMESTAMP", pa.timestamp("ns"): "TIMESTAMP_NS",
}  # fmt: skip
_VIEWS = {pa.string_view(): "VARCHAR", pa.binary_view(): "BLOB"}  # not inside of others: Arrow takes no rows from there
_ZONED = {"us": "TIMESTAMP WITH TIME ZONE", "ns": "TIMESTAMPTZ_NS"}
_OWN_NAMES = ("file_index", "file_row_number")  # what DuckDB calls the place of a row


def sql_type(kind: pa.DataType) -> str | None:
    """The type in which DuckDB reads and writes every value unchanged; None if there is none."""
    return _VIEWS.get(kind) or _inner_type(kind.value_type if pt.is_dictionary(kind) else kind)


def _inner_type(kind: pa.DataType) -> str | None:
    if pt.is_timestamp(kind) and kind.tz is not None:
        return _ZONED.get(kind.unit)
    if pt.is_decimal(kind) and not pt.is_decimal256(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})" if kind.scale >= 0 else None
    if pt.is_map(kind):
        key, item = _inner_type(kind.key_type), _inner_type(kind.item_type)
        return f"MAP({key}, {item})" if key and item else None
    if any(test(kind) for test in (pt.is_list, pt.is_large_list, pt.is_list_view, pt.is_large_list_view)):
        item = _inner_type(kind.value_type)
        return item and f"{item}[]"
    if pt.is_struct(kind):
        inner = [(quoted(field.name), _inner_type(field.type)) for field in kind]
        told_apart = len({name.lower() for name, _ in inner}) == len(inner) > 0
        return f"STRUCT({', '.join(f'{n} {t}' for n, t in inner)})" if told_apart and all(t for _, t in inner) else None
    return _SCALARS.get(kind)


def refusal(schema: pa.Schema) -> str | None:
    for field in schema:
        if sql_type(field.type) is None:
            return f"column {field.name!r} is {field.type}, which DuckDB does not write as it was read"
        if field.name.lower() in _OWN_NAMES:
            return f"column {field.name!r} has a name that DuckDB keeps for the place of a row"
    return None


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def metadata(schema: pa.Schema) -> dict[str, str | bytes]:
    """What goes into a file's footer, so that Arrow reads the schema's types from it, and others what they left there.

    DuckDB stores every column as one that may be NULL; the schema says the same, or Arrow would not take it.
    """
    nullable = pa.schema([_nullable(field) for field in schema], metadata=schema.metadata)
    kept: dict[str, str | bytes] = {"ARROW:schema": b64encode(nullable.serialize().to_pybytes()).decode()}
    seen = {"arrow:schema"}  # the names are those of a struct: DuckDB does not tell upper from lower case
    for key, value in (schema.metadata or {}).items():
        name = key.decode(errors="replace")
        if name.lower() not in seen:
            seen.add(name.lower())
            kept[name] = value
    return kept


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pt.is_struct(kind):
        kind = pa.struct([_nullable(inner) for inner in kind])
    elif pt.is_list(kind) or pt.is_large_list(kind):
        made = pa.list_ if pt.is_list(kind) else pa.large_list
        kind = made(_nullable(kind.value_field))
    elif pt.is_map(kind):
        kind = pa.map_(kind.key_field, _nullable(kind.item_field), kind.keys_sorted)
    return field.with_type(kind).with_nullable(True)
