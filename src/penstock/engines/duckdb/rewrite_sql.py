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

    `m` has the columns `row`, `hit` (the row is matched), `moves` (the row changes its partition), c0, c1, … for
    `updated_columns`, and `deleted` if the file has a deletion vector and is read. It has one row per row of the file, in
    order, or only the matched rows if the file itself is not read. Without matches and deletion vector there is no `m`.
    """

    plan: MergePlan
    file: TargetFile
    has_matches: bool  # whether there is a table `m`
    updated_columns: Sequence[str]  # taken from the source
    file_columns: Collection[str]  # columns stored in the file

    @property
    def reads_target(self) -> bool:
        carries = self.plan.row_ids and self.file.first_row_id is None
        return self.plan.keeps_columns or carries or not self.has_matches

    def select_rows(self, schema: pa.Schema, *, remaining_only: bool = False) -> str:
        """Select all live rows in order, or only the rows that stay in their partition."""
        conditions = ["m.moves IS NOT TRUE"] if remaining_only else []
        if self.plan.rules.rest is Rest.DELETE:
            conditions.append("m.hit")  # a deleted row is not matched
        elif self.file.deleted:
            conditions.append("NOT m.deleted")
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


@dataclass(frozen=True, slots=True)
class UpdatedRows:
    """Query for the updated rows of marked files: source values, and old values of columns that the source lacks.

    It reads the table `m`, with one row per matched row, ordered by file and position: `file` (index in `files`), `row`
    (position in the file), `row_id` (NULL if the file stores its row ids), and c0, c1, … for the columns of the source.
    Files with partition values are not marked: only a dataset has deletion vectors.
    """

    plan: MergePlan
    files: Sequence[TargetFile]

    @property
    def missing_columns(self) -> list[str]:
        """Return the columns that `m` lacks."""
        stores_row_ids = self.plan.row_ids and any(file.first_row_id is None for file in self.files)
        names = [name for name in self.plan.schema.names if name not in self.plan.source_columns]
        return names + [STORED_ROW_ID_COLUMN] * stores_row_ids

    def select_rows(self, schema: pa.Schema, old_columns: Sequence[str]) -> str:
        """Select the rows in the order of `m`.

        Args:
            schema: columns of the result
            old_columns: those of the missing columns that are stored in at least one of the files
        """
        columns = ", ".join(f"{self._value(field, old_columns)} AS {quote_identifier(field.name)}" for field in schema)
        return f"SELECT {columns} FROM m {self._join_old_values(old_columns) if old_columns else ''}"

    def _join_old_values(self, old_columns: Sequence[str]) -> str:
        """Return the join with the old values. The semi join reads only row groups that can have matched rows."""
        columns = ", ".join(f"t.{quote_identifier(name)}" for name in old_columns)
        matched = "SEMI JOIN m ON t.file_index = m.file AND t.file_row_number = m.row"
        in_order = "ORDER BY t.file_index, t.file_row_number"
        return f"POSITIONAL JOIN (SELECT {columns} FROM {READ_FILES_SQL} t {matched} {in_order}) t"

    def _value(self, field: pa.Field, old_columns: Collection[str]) -> str:
        old_value = f"t.{quote_identifier(field.name)}" if field.name in old_columns else "NULL"
        if self.plan.row_ids and field.name == STORED_ROW_ID_COLUMN:
            return f"coalesce(m.row_id, {old_value})"
        if field.name in self.plan.source_columns:
            old_value = f"m.c{self.plan.source_columns.index(field.name)}"
        return f"CAST({old_value} AS {sql_type(field.type)})"


def _text_literal(value: Any, data_type: pa.DataType) -> str:
    """Return a value as a text literal, which the query casts to its type."""
    if value is None:
        return "NULL"
    value_type = data_type.value_type if pt.is_dictionary(data_type) else data_type
    text: str = pa.scalar(value, value_type).cast(pa.string()).as_py()
    return "'" + text.replace("'", "''") + "'"
