"""Create and migrate the tables of the catalog, and check that they are current."""

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from penstock.catalog.database import APP_ROLE, TENANT_SETTING, Database
from penstock.errors import Unsupported

CURRENT_MIGRATION = "0002_deletion_vectors"  # a test compares it with the folder of migrations
# Migrations of development versions. Their tables have other names; there is no upgrade from them.
_DEVELOPMENT_MIGRATIONS = frozenset(f"{number:04}" for number in range(1, 8))


def current_migration(db: Database) -> str | None:
    """Return the id of the migration that the catalog is at, or None if the database has no catalog."""
    with db.connect_without_tenant(write=False) as connection:
        return _read_migration(connection)


def assert_current(db: Database) -> None:
    """Check that the catalog has the tables of this version of Penstock.

    Raises:
        Unsupported: there is no catalog, or another version of Penstock made it
    """
    applied = current_migration(db)
    _assert_supported(applied)
    if applied is None:
        raise Unsupported("not_migrated")
    if applied != CURRENT_MIGRATION:
        raise Unsupported(
            "other_migration",
            {"applied": applied, "current": CURRENT_MIGRATION},
            found=applied,
            needed=CURRENT_MIGRATION,
        )


def _assert_supported(applied: str | None) -> None:
    if applied in _DEVELOPMENT_MIGRATIONS:
        raise Unsupported("catalog_too_old", {"applied": applied}, found=applied, needed=CURRENT_MIGRATION)


def migrate(db: Database) -> tuple[str | None, str]:
    """Apply the missing migrations in one transaction.

    Returns:
        the ids of the migration before and after

    Raises:
        Unsupported: the catalog was created by a development version
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    with db.connect_without_tenant() as connection:
        before = _read_migration(connection)
        connection.rollback()
        _assert_supported(before)
        if before != CURRENT_MIGRATION:
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(7305466)"))  # one migration at a time
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                if connection.dialect.name == "postgresql":
                    connection.execute(text(f"GRANT SELECT ON alembic_version TO {APP_ROLE}"))
    return before, CURRENT_MIGRATION


def enable_row_security(connection: Connection, tables: Sequence[str], *, append_only: Sequence[str] = ()) -> None:
    """PostgreSQL: grant the application role access to the tables, limited to the rows of its tenant."""
    connection.execute(
        text(  # roles belong to the whole server: another database may create the role at the same time
            f"DO $$ BEGIN CREATE ROLE {APP_ROLE} NOLOGIN; "
            "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        )
    )
    if _bypasses_row_security(connection):
        raise Unsupported(
            "app_role_too_privileged",
            {"app_role": APP_ROLE},
        )
    connection.execute(text(f"GRANT {APP_ROLE} TO CURRENT_USER"))
    schema = connection.scalar(text("SELECT quote_ident(current_schema())"))
    connection.execute(text(f"GRANT USAGE ON SCHEMA {schema} TO {APP_ROLE}"))
    policy = f"tenant_id = nullif(current_setting('{TENANT_SETTING}', true), '')::uuid"
    for table in tables:
        rights = "SELECT, INSERT" if table in append_only else "SELECT, INSERT, UPDATE, DELETE"
        for statement in (
            f"GRANT {rights} ON {table} TO {APP_ROLE}",
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY own_tenant ON {table} USING ({policy}) WITH CHECK ({policy})",
        ):
            connection.execute(text(statement))


def _bypasses_row_security(connection: Connection) -> bool:
    bypasses = connection.scalar(
        text("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = :role"), {"role": APP_ROLE}
    )
    return bool(bypasses)


def tables_without_row_security(db: Database) -> list[str]:
    """PostgreSQL: list the tables without forced row-level security, or one entry if the role bypasses it."""
    with db.connect_without_tenant() as connection:
        if _bypasses_row_security(connection):
            return [f"any table: the role {APP_ROLE} bypasses it"]
        rows = connection.execute(
            text(
                "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' "
                "WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace "
                "AND NOT (c.relrowsecurity AND c.relforcerowsecurity) ORDER BY 1"
            )
        )
        return [row.relname for row in rows]


def _read_migration(connection: Connection) -> str | None:
    try:
        migration: str | None = connection.scalar(_SELECT_MIGRATION)
        return migration
    except DBAPIError:
        connection.rollback()
        if inspect(connection).has_table("alembic_version"):
            raise
        return None


_SELECT_MIGRATION = text("SELECT version_num FROM alembic_version")
