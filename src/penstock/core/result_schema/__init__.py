"""What a query promises to return: the fields of a row, how a promise may change, and whether results keep it.

fields(payload)  inferred(schema)  inferred_rows(rows)     a promise, read or proposed
diff(old, new)   breaking(old, new)                        how it changes, and whom that breaks
check_rows(fields, rows)                                   rows as JSON brings them
check_batches(fields, schema, batches)                     a result as columns; `Checker` for one that streams by
certain_mismatches(fields, schema)                         what names and types of columns prove wrong before any row
"""

from penstock.core.result_schema.check_columns import Checker, certain_mismatches, check_batches
from penstock.core.result_schema.diff import Change, Difference, breaking, diff
from penstock.core.result_schema.field import Field, FieldType, field_type, json_schema
from penstock.core.result_schema.parse import (MAX_DESCRIPTION, MAX_FIELDS, ONLY_SCALARS, fields, inferred, inferred_rows, stored)
from penstock.core.result_schema.check_rows import check_rows
from penstock.core.result_schema.values import good, json_type
from penstock.core.result_schema.report import MAX_DESCRIBED, Verdict

__all__ = [
    "MAX_DESCRIBED",
    "MAX_DESCRIPTION",
    "MAX_FIELDS",
    "ONLY_SCALARS",
    "Change",
    "Checker",
    "Difference",
    "Field",
    "FieldType",
    "Verdict",
    "breaking",
    "certain_mismatches",
    "check_batches",
    "check_rows",
    "diff",
    "field_type",
    "fields",
    "good",
    "inferred",
    "inferred_rows",
    "json_schema",
    "json_type",
    "stored",
]
