"""Map the fields of a result schema to OData."""

from collections.abc import Sequence

from penstock.core.odata import Collection, FieldKind, Fields, QueryOptions
from penstock.core.result_schema.field import FieldType, ResultField

_FIELD_KINDS = {
    FieldType.STRING: FieldKind.TEXT,
    FieldType.NUMBER: FieldKind.NUMBER,
    FieldType.BOOLEAN: FieldKind.BOOLEAN,
    FieldType.DATE: FieldKind.DATE,
    FieldType.DATETIME: FieldKind.INSTANT,
}


def odata_fields(fields: Sequence[ResultField]) -> Fields:
    """Return the fields for `core.odata.options`. An array can be selected, but not filtered or ordered by."""
    return {field.name: Collection({}) if field.array else _FIELD_KINDS[field.type] for field in fields}


def selected_fields(options: QueryOptions, fields: Sequence[ResultField]) -> tuple[ResultField, ...]:
    """Return the fields that `$select` names, in its order, or all fields."""
    if options.select is None:
        return tuple(fields)
    by_name = {field.name: field for field in fields}
    return tuple(by_name[name] for name in options.select)
