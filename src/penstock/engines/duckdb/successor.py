"""How the rows of a file look afterwards, as a query."""

from collections.abc import Mapping, Sequence
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
    """A file and, unless nothing of it is matched, the table `m`: its matched rows, and the columns brought to them.

    `m` has the columns `row`, `moves` (does the row leave for another folder?), and c0, c1 … for those of `names`.
    """

    plan: Plan
    file: TargetFile
    matched: bool
    names: Sequence[str]  # of the columns that are brought
    held: Mapping[str, int]  # the columns that the file has, and which place they have there

    @property
    def reads_target(self) -> bool:
        carries = self.plan.row_ids and self.file.first_row_id is None
        return self.plan.keeps_columns or carries or not self.matched

    def rows(self, schema: pa.Schema, *, staying: bool = False, sort: bool = False) -> str:
        """All rows, or only those that stay in their folder. They are in order; with `sort` even if memory is short."""
        deletes = self.plan.write.rest is Rest.DELETE
        wanted = [*(["m IS NOT NULL"] if deletes else []), *(["m.moves IS NOT TRUE"] if staying else [])]
        return self._select(schema, " AND ".join(wanted), sort)

    def leaving(self, schema: pa.Schema) -> str:
        """The rows that leave for another folder."""
        return self._select(schema, "m.moves")

    def _select(self, schema: pa.Schema, where: str, sort: bool = False) -> str:
        new = {name: f"m.c{i}" for i, name in enumerate(self.names)} if self.matched else {}
        columns = ", ".join(f"{self._value(field, new)} AS {quoted(field.name)}" for field in schema)
        order = "ORDER BY row" if sort or not self.reads_target else ""
        return f"SELECT {columns} FROM ({self._joined()}) {f'WHERE {where}' if where else ''} {order}"

    def _joined(self) -> str:
        """The file's rows, as o0, o1 … what it stores, as `m` what meets them, and their number.

        A scalar subquery is the join that gives each row once and in its turn; LEFT and INNER JOIN promise neither.
        """
        if not self.reads_target:
            return "SELECT m.row AS row, m FROM m"
        old = "".join(f"t.{quoted(name)} AS o{i}, " for i, name in enumerate(self.held))
        met = "(SELECT m FROM m WHERE m.row = t.file_row_number)" if self.matched else "NULL"
        return f"SELECT {old}t.file_row_number AS row, {met} AS m FROM {FILES} t"

    def _value(self, field: pa.Field, new: Mapping[str, str]) -> str:
        old = f"o{self.held[field.name]}" if field.name in self.held and self.reads_target else "NULL"
        if self.plan.row_ids and field.name == CARRIED:
            return old if self.file.first_row_id is None else f"row + {self.file.first_row_id:d}"
        kind = sql_type(field.type)
        if field.name not in new:
            return f"CAST({old} AS {kind})"
        if not self.plan.keeps_columns:
            return f"CAST({new[field.name]} AS {kind})"
        return f"CASE WHEN m IS NOT NULL THEN CAST({new[field.name]} AS {kind}) ELSE CAST({old} AS {kind}) END"
