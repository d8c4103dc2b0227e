"""SQL queries for the rows of a file after a merge."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.merge import Matched, MergePlan, Rest, TargetFile
from penstock.core.names import STORED_ROW_ID_COLUMN
from penstock.engines.duckdb.connection import READ_FILES_SQL
from penstock.engines.duckdb.types import quote_identifier, sql_type


def updated_columns(plan: MergePlan) -> list[str]:
    """Return the columns that a matched row takes from the source."""
    if plan.rules.matched is not Matched.UPDATE:
        return []
    if not plan.keeps_columns:
        return list(plan.source_columns)
    # Equal keys are identical except floating-point ones: 0.0 equals −0.0, and all NaN are equal.
    return [
        name for name in plan.source_columns if name not in plan.keys or pt.is_floating(plan.schema.field(name).type)
    ]


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """Queries for the new version of a file, which join the file with the table `m` of source values.

    `m` has the columns `row`, `hit` (the row is matched), `moves` (the row changes its partition), and c0, c1, … for
    `updated_columns`. It has one row per row of the file, in order, or only the matched rows if the file itself is not
    read. Without matches there is no `m`.
    """

    plan: MergePlan
    file: TargetFile
    has_matches: bool
    updated_columns: Sequence[str]  # taken from the source
    file_columns: Collection[str]  # columns stored in the file

    @property
    def reads_target(self) -> bool:
        carries = self.plan.row_ids and self.file.first_row_id is None
        return self.plan.keeps_columns or carries or not self.has_matches

    def select_rows(self, schema: pa.Schema, *, remaining_only: bool = False) -> str:
        """Select all rows in order, or only the rows that stay in their partition."""
        deletes = self.plan.rules.rest is Rest.DELETE
        conditions = [*(["m.hit"] if deletes else []), *(["m.moves IS NOT TRUE"] if remaining_only else [])]
        return self._select(schema, " AND ".join(conditions))

    def select_moved_rows(self, schema: pa.Schema) -> str:
        """Select the rows whose partition changed."""
        return self._select(schema, "m.moves")

    def _select(self, schema: pa.Schema, where: str) -> str:
        new_values = {name: f"m.c{i}" for i, name in enumerate(self.updated_columns)} if self.has_matches else {}
        columns = ", ".join(f"{self._value(field, new_values)} AS {quote_identifier(field.name)}" for field in schema)
        return f"SELECT {columns} FROM {self._from_clause()} {f'WHERE {where}' if where else ''}"

    def _from_clause(self) -> str:
        """Return the FROM clause. A positional join keeps every row once and in order; LEFT and INNER JOIN do not."""
        target, matches = [READ_FILES_SQL + " t"] * self.reads_target, ["m"] * self.has_matches
        return " POSITIONAL JOIN ".join(target + matches)

    def _value(self, field: pa.Field, new_values: Mapping[str, str]) -> str:
        if field.name in self.file.partition_values:
            old_value = _text_literal(self.file.partition_values[field.name], field.type)
        elif field.name in self.file_columns and self.reads_target:
            old_value = f"t.{quote_identifier(field.name)}"
        else:
            old_value = "NULL"
        if self.plan.row_ids and field.name == STORED_ROW_ID_COLUMN and self.file.first_row_id is not None:
            return f"{'m.row' if self.has_matches else 't.file_row_number'} + {self.file.first_row_id:d}"
        data_type = sql_type(field.type)
        if field.name not in new_values:
            return f"CAST({old_value} AS {data_type})"
        if not self.plan.keeps_columns:
            return f"CAST({new_values[field.name]} AS {data_type})"
        return f"CASE WHEN m.hit THEN CAST({new_values[field.name]} AS {data_type}) ELSE CAST({old_value} AS {data_type}) END"


def _text_literal(value: Any, data_type: pa.DataType) -> str:
    """Return a value as a text literal, which the query casts to its type."""
    if value is None:
        return "NULL"
    value_type = data_type.value_type if pt.is_dictionary(data_type) else data_type
    text: str = pa.scalar(value, value_type).cast(pa.string()).as_py()
    return "'" + text.replace("'", "''") + "'"
