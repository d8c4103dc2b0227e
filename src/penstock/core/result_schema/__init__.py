"""Result schemas: the declared fields of a query's rows, their changes, and the validation of results.

parse_fields(payload)  infer_fields(schema)  infer_fields_from_rows(rows)    parse or infer a result schema
diff(old, new)   breaking_differences(old, new)                              compare two result schemas
check_rows(fields, rows)                                                     validate JSON rows
check_batches(fields, schema, batches)                                       validate columns; `ColumnChecker` for a stream
schema_mismatches(fields, schema)                                            find mismatches by column names and types
"""

from penstock.core.result_schema.check_columns import ColumnChecker, check_batches, schema_mismatches
from penstock.core.result_schema.check_rows import check_rows
from penstock.core.result_schema.diff import DiffKind, SchemaDifference, breaking_differences, diff
from penstock.core.result_schema.field import FieldType, ResultField, field_type, json_schema
from penstock.core.result_schema.parse import (
    MAX_DESCRIPTION,
    MAX_FIELDS,
    ONLY_SCALARS,
    fields_from_json,
    infer_fields,
    infer_fields_from_rows,
    main_error,
    parse_fields,
)
from penstock.core.result_schema.report import MAX_DESCRIBED, ValidationReport
from penstock.core.result_schema.values import is_valid, json_type

__all__ = [
    "MAX_DESCRIBED",
    "MAX_DESCRIPTION",
    "MAX_FIELDS",
    "ONLY_SCALARS",
    "ColumnChecker",
    "DiffKind",
    "FieldType",
    "ResultField",
    "SchemaDifference",
    "ValidationReport",
    "breaking_differences",
    "check_batches",
    "check_rows",
    "diff",
    "field_type",
    "fields_from_json",
    "infer_fields",
    "infer_fields_from_rows",
    "is_valid",
    "json_schema",
    "json_type",
    "main_error",
    "parse_fields",
    "schema_mismatches",
]
