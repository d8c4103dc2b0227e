"""Limit every SQL statement to one tenant.

`tenant_filter` and `insert_for_tenant` add the tenant to a statement. `check_statement` inspects the SQL text that is
about to be sent and stops a statement that lacks the tenant condition.
"""

import re
from functools import lru_cache

from sqlalchemy import ColumnElement, FromClause, Insert, Table, bindparam, insert

from penstock.catalog import tables

_MAX_CACHED_CHARACTERS = 8_000  # longer statements are checked without the cache


def tenant_filter(table: FromClause) -> ColumnElement[bool]:
    """Return the tenant condition of a table."""
    return table.c.tenant_id == bindparam("tenant")


def insert_for_tenant(table: Table) -> Insert:
    """Return an INSERT into the caller's tenant; it takes a value for every other column."""
    return insert(table).values(tenant_id=bindparam("tenant"))


def check_statement(statement: str, *, run_queue: bool = False) -> None:
    """Raise RuntimeError if a statement is not limited to the tenant.

    Args:
        run_queue: allow a statement over all tenants that reads the run queue, and nothing else
    """
    if run_queue:
        is_allowed = reads_only_run_queue(statement)
    elif len(statement) < _MAX_CACHED_CHARACTERS:
        is_allowed = has_tenant_filter(statement)
    else:
        is_allowed = has_tenant_filter.__wrapped__(statement)
    if not is_allowed:
        raise RuntimeError(f"Statement without the tenant condition: {statement}")


@lru_cache(1_000)
def has_tenant_filter(statement: str) -> bool:
    """Return whether the SQL text has a tenant condition for every table that it names."""
    names = _table_names(statement)
    if statement.startswith("INSERT"):
        return "(tenant_id, " in statement and len(names) == 1
    return len(_TENANT_CONDITION.findall(statement)) >= len(names)


def reads_only_run_queue(statement: str) -> bool:
    """Return whether the statement reads the run queue, and no other table."""
    names = set(_table_names(statement))
    return not names or (statement.startswith("SELECT") and names == {tables.run_queue.name})


def _table_names(statement: str) -> list[str]:
    return [name for name in _TABLE_REFERENCE.findall(statement) if name in tables.metadata.tables]


_TABLE_REFERENCE = re.compile(r"\b(?:FROM|JOIN|UPDATE|INTO|,)\s+(\w+)\b(?!\.)")
_TENANT_CONDITION = re.compile(r"tenant_id = (?:\?|%\(tenant)")
