"""Record the SQL statements that a database receives."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from penstock.catalog.database import Database


@contextmanager
def recorded_statements(db: Database) -> Iterator[list[tuple[str, Any]]]:
    """Record the statements that are sent to the database."""
    statements: list[tuple[str, Any]] = []

    def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        statements.append((statement, parameters))

    event.listen(db.engine, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(db.engine, "before_cursor_execute", record)
