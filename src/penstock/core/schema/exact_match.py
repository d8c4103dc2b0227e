"""Check that a schema equals a table's: same columns, same order, same stored types."""

import pyarrow as pa

from penstock.core.formatting import format_value
from penstock.core.schema.canonical import UnsupportedTypeError, canonical_type, column_names
from penstock.errors import Invalid


def check_exact(schema: pa.Schema, table: pa.Schema) -> None:
    """Check that a schema has the table's columns, in order and with types that the table stores as its own.

    A schema with which the table was created therefore fits it: uint8 is stored as int16, large_string as string.
    `cast_batch` converts the rows, and checks every value. Nullability is ignored.

    Raises:
        Invalid: the first difference
    """
    names = column_names(schema)
    if len(names) != len(table):
        raise Invalid(
            "column_mismatch.count",
            {"table_count": len(table), "input_count": len(names)},
            columns=table.names,
        )
    for index, (name, field) in enumerate(zip(names, table, strict=True)):
        if name != field.name:
            raise Invalid(
                "column_mismatch.name",
                {"position": index + 1, "table_name": field.name, "input_name": name[:200]},
                column=field.name,
                columns=table.names,
            )
        if not _types_match(schema.field(index).type, field.type):
            raise Invalid(
                "column_mismatch.type",
                {"name": name},
                column=name,
                expected=format_value(field.type),
                actual=format_value(schema.field(index).type),
            )


def _types_match(actual: pa.DataType, expected: pa.DataType) -> bool:
    try:
        return bool(canonical_type(actual) == expected)
    except (UnsupportedTypeError, UnicodeDecodeError):
        return False
