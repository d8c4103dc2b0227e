"""How the rows of a file look afterwards, as a query."""

from collections.abc import Collection, Mapping, Sequence
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

    `m` has the columns `row`, `moves` (does the row leave for another folder?), and c0, c1 … for those of `names`.
    """

    plan: Plan
    file: TargetFile
    matched: bool
    names: Sequence[str]  # of the columns that are brought
    held: Collection[str]  # the columns that the file has

    @property
    def reads_target(self) -> bool:
        carries = self.plan.row_ids and self.file.first_row_id is None
        return self.plan.keeps_columns or carries or not self.matched

    def rows(self, schema: pa.Schema, *, staying: bool = False, sort: bool = False) -> str:
        """All rows, or only those that stay in their folder. They are in order; with `sort` even if memory is short."""
        select = self._select(schema, every=self.plan.write.rest is Rest.KEEP)
        where = "WHERE m.moves IS NOT TRUE" if staying else ""
        order = f"ORDER BY {self._row}" if sort or not self.reads_target else ""
        return f"{select} {where} {order}"

    def leaving(self, schema: pa.Schema) -> str:
        """The rows that leave for another folder."""
        return f"{self._select(schema, every=False)} WHERE m.moves"

    @property
    def _row(self) -> str:
        return "t.file_row_number" if self.reads_target else "m.row"

    def _select(self, schema: pa.Schema, *, every: bool) -> str:
        new = {name: f"m.c{i}" for i, name in enumerate(self.names)} if self.matched else {}
        columns = ", ".join(f"{self._value(field, new, every)} AS {quoted(field.name)}" for field in schema)
        if not self.matched:
            return f"SELECT {columns} FROM {FILES} t"
        if not self.reads_target:
            return f"SELECT {columns} FROM m"
        return f"SELECT {columns} FROM {FILES} t {'LEFT' if every else 'INNER'} JOIN m ON t.file_row_number = m.row"

    def _value(self, field: pa.Field, new: Mapping[str, str], every: bool) -> str:
        if self.plan.row_ids and field.name == CARRIED:
            first = self.file.first_row_id
            return f"t.{quoted(CARRIED)}" if first is None else f"{self._row} + {first:d}"
        kind = sql_type(field.type)
        old = f"CAST({f't.{quoted(field.name)}' if field.name in self.held else 'NULL'} AS {kind})"
        if field.name not in new:
            return old
        value = f"CAST({new[field.name]} AS {kind})"
        return f"CASE WHEN m.row IS NOT NULL THEN {value} ELSE {old} END" if every else value
