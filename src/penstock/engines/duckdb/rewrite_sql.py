"""How the rows of a file look afterwards, as a query."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from penstock.core.merge import Matched, Plan, Rest, TargetFile
from penstock.core.names import CARRIED
from penstock.engines.duckdb.connection import FILES
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
    """A file and, unless nothing of it is matched, the table `m`: what the source brings to its rows.

    `m` has the columns `row`, `hit` (is the row matched?), `moves` (does it leave for another folder?), and c0, c1 … for
    those of `names`. It has a row for each of the file's, in their order; only the matched ones, where nothing else is
    needed of the file.
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

    def rows(self, schema: pa.Schema, *, staying: bool = False) -> str:
        """All rows, or only those that stay in their folder, in their order."""
        deletes = self.plan.write.rest is Rest.DELETE
        wanted = [*(["m.hit"] if deletes else []), *(["m.moves IS NOT TRUE"] if staying else [])]
        return self._select(schema, " AND ".join(wanted))

    def leaving(self, schema: pa.Schema) -> str:
        """The rows that leave for another folder."""
        return self._select(schema, "m.moves")

    def _select(self, schema: pa.Schema, where: str) -> str:
        new = {name: f"m.c{i}" for i, name in enumerate(self.names)} if self.matched else {}
        columns = ", ".join(f"{self._value(field, new)} AS {quoted(field.name)}" for field in schema)
        return f"SELECT {columns} FROM {self._sources()} {f'WHERE {where}' if where else ''}"

    def _sources(self) -> str:
        """A positional join keeps each row once and in its turn; LEFT and INNER JOIN promise neither."""
        target, met = [FILES + " t"] * self.reads_target, ["m"] * self.matched
        return " POSITIONAL JOIN ".join(target + met)

    def _value(self, field: pa.Field, new: Mapping[str, str]) -> str:
        old = f"t.{quoted(field.name)}" if field.name in self.held and self.reads_target else "NULL"
        if self.plan.row_ids and field.name == CARRIED and self.file.first_row_id is not None:
            return f"{'m.row' if self.matched else 't.file_row_number'} + {self.file.first_row_id:d}"
        kind = sql_type(field.type)
        if field.name not in new:
            return f"CAST({old} AS {kind})"
        if not self.plan.keeps_columns:
            return f"CAST({new[field.name]} AS {kind})"
        return f"CASE WHEN m.hit THEN CAST({new[field.name]} AS {kind}) ELSE CAST({old} AS {kind}) END"
