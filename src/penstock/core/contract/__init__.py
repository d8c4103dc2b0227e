"""What a query promises to return: the fields of a row, how a promise may change, and whether results keep it.

fields(payload)  inferred(schema)  inferred_rows(rows)     a promise, read or proposed
diff(old, new)   breaking(old, new)                        how it changes, and whom that breaks
check_rows(fields, rows)                                   rows as JSON brings them
check_batches(fields, schema, batches)                     a result as columns; `Checker` for one that streams by
certain_mismatches(fields, schema)                         what names and types of columns prove wrong before any row
"""

from penstock.core.contract.columns import Checker, certain_mismatches, check_batches
from penstock.core.contract.difference import Change, Difference, breaking, diff
from penstock.core.contract.field import Field, FieldType, field_type, json_schema
from penstock.core.contract.promise import (
    MAX_DESCRIPTION,
    MAX_FIELDS,
    ONLY_SCALARS,
    fields,
    inferred,
    inferred_rows,
    stored,
)
from penstock.core.contract.rows import check_rows
from penstock.core.contract.value import good, json_type
from penstock.core.contract.verdict import MAX_DESCRIBED, Verdict

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
