"""Rows that must fit a table exactly: the same columns in the same order, of the same types."""

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import Invalid


def check_exact(given: pa.Schema, table: pa.Schema) -> None:
    """Refuse a schema that is not the table's, and say where they part. Whether it allows NULL does not matter.

    The kinds of string are one type. `core.schema.conform` brings the rows to the table's own.
    """
    try:
        names = list(given.names)
    except UnicodeDecodeError:
        raise Invalid("bad_column_name", "the name of a column is not UTF-8 text") from None
    if len(names) != len(table):
        raise Invalid(
            "column_mismatch",
            f"column mismatch: table has {len(table)} columns, input has {len(names)}",
            columns=table.names,
        )
    for place, (name, field) in enumerate(zip(names, table, strict=True)):
        if name != field.name:
            raise Invalid(
                "column_mismatch",
                f"column mismatch: column {place + 1} is {field.name!r} in the table, {name[:200]!r} in the input",
                column=field.name,
                columns=table.names,
            )
        if not _is_one_type(given.field(place).type, field.type):
            raise Invalid(
                "column_mismatch",
                f"column mismatch: column {name!r} is {field.type} in the table, {given.field(place).type} in the input",
                column=name,
                expected=str(field.type),
                actual=str(given.field(place).type),
            )


def _is_one_type(given: pa.DataType, kept: pa.DataType) -> bool:
    if pt.is_string(kept):
        return bool(pt.is_string(given) or pt.is_large_string(given) or pt.is_string_view(given))
    if pt.is_list(kept):  # the name of a list's items says nothing
        return bool(pt.is_list(given)) and _is_one_type(given.value_type, kept.value_type)
    if pt.is_struct(kept):
        return bool(pt.is_struct(given)) and _parts_agree(list(given), list(kept))
    return bool(given == kept)


def _parts_agree(given: list[pa.Field], kept: list[pa.Field]) -> bool:
    return len(given) == len(kept) and all(
        one.name == other.name and _is_one_type(one.type, other.type) for one, other in zip(given, kept, strict=True)
    )
