"""How the rows of a file look afterwards, as a query."""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.merge import Matched, Plan, Rest, TargetFile
from penstock.core.names import CARRIED
from penstock.engines.duckdb.sql import FILES
from penstock.engines.duckdb.types import quoted, sql_type


def brought(plan: Plan) -> list[str]:
    """The columns for which a matched row takes the source's value."""
    if plan.write.matched is not Matched.UPDATE:
        return []
    if not plan.keeps_columns:
        return list(plan.given)
    # An equal key is the same key, but for floating numbers: 0.0 and −0.0 are equal, and any NaN is.
    return [name for name in plan.given if name not in plan.keys or pt.is_floating(plan.schema.field(name).type)]


@dataclass(frozen=True, slots=True)
class Successor:
    """A file `t` and, unless nothing of it is matched, `m`: its matched rows' numbers, and the columns brought to them.

    `m` has the columns `row`, `moves` (does the row leave for another folder?), and c0, c1 … as `brought` tells.
    """

    plan: Plan
    file: TargetFile
    held: Collection[str]  # the columns that the file has
    matched: bool

    @property
    def reads_target(self) -> bool:
        carries = self.plan.row_ids and self.file.first_row_id is None
        return self.plan.keeps_columns or carries or not self.matched

    def rows(self, schema: pa.Schema, *, staying: bool = False) -> str:
        """All rows in their order, or only those that stay in their folder."""
        where = "WHERE m.moves IS NOT TRUE" if staying else ""
        return f"{self._select(schema, every=self.plan.write.rest is Rest.KEEP)} {where}"

    def leaving(self, schema: pa.Schema) -> str:
        return f"{self._select(schema, every=False)} WHERE m.moves"

    def _select(self, schema: pa.Schema, *, every: bool) -> str:
        columns = ", ".join(f"{self._value(field, every)} AS {quoted(field.name)}" for field in schema)
        if not self.matched:
            return f"SELECT {columns} FROM {FILES} t"
        if not self.reads_target:
            return f"SELECT {columns} FROM m"
        return f"SELECT {columns} FROM {FILES} t {'LEFT' if every else 'INNER'} JOIN m ON t.file_row_number = m.row"

    def _value(self, field: pa.Field, every: bool) -> str:
        if self.plan.row_ids and field.name == CARRIED:
            return self._row_id()
        kind = sql_type(field.type)
        old = f"CAST({f't.{quoted(field.name)}' if field.name in self.held else 'NULL'} AS {kind})"
        names = brought(self.plan)
        if not self.matched or field.name not in names:
            return old
        new = f"CAST(m.c{names.index(field.name)} AS {kind})"
        return f"CASE WHEN m.row IS NOT NULL THEN {new} ELSE {old} END" if every else new

    def _row_id(self) -> str:
        if self.file.first_row_id is None:
            return f"t.{quoted(CARRIED)}"
        return f"{'t.file_row_number' if self.reads_target else 'm.row'} + {self.file.first_row_id:d}"
