"""Bring the catalog's tables up to date, and say whether they are."""

from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from penstock.catalog.database import APP_ROLE, TENANT_SETTING, Database
from penstock.errors import Unsupported

HEAD = "0007"  # the newest step; a test compares it with the folder


def revision(db: Database) -> str | None:
    """The step that the tables are at; None where there are none."""
    with db.raw(write=False) as connection:
        return _revision(connection)


def assert_current(db: Database) -> None:
    match revision(db):
        case str(found) if found == HEAD:
            return
        case None:
            raise Unsupported("not_migrated", "the database holds no Penstock catalog; run `penstock migrate`")
        case other:
            raise Unsupported(
                "other_revision",
                f"the catalog is at revision {other}, and this Penstock needs {HEAD}; run `penstock migrate` "
                "(or update Penstock, if the catalog is the newer)",
                found=other,
                needed=HEAD,
            )


def migrate(db: Database) -> tuple[str | None, str]:
    """Run the missing steps, in one transaction. Returns the revision before and after."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    with db.raw() as connection:
        before = _revision(connection)
        connection.rollback()
        if before != HEAD:
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(7305466)"))  # one migration at a time
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                if connection.dialect.name == "postgresql":
                    connection.execute(text(f"GRANT SELECT ON alembic_version TO {APP_ROLE}"))
    return before, HEAD


def protect(connection: Connection, tables: list[str], *, append_only: list[str]) -> None:
    """PostgreSQL: let the application role work on the tables, and only on rows of the tenant it names."""
    connection.execute(
        text(  # roles belong to the whole server: another database may be making it at this moment
            f"DO $$ BEGIN CREATE ROLE {APP_ROLE} NOLOGIN; "
            "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        )
    )
    if _above_the_rules(connection):
        raise Unsupported(
            "role_too_mighty",
            f"the role {APP_ROLE} is a superuser or has BYPASSRLS, so it would see every tenant; "
            f"ALTER ROLE {APP_ROLE} NOSUPERUSER NOBYPASSRLS",
        )
    connection.execute(text(f"GRANT {APP_ROLE} TO CURRENT_USER"))
    schema = connection.scalar(text("SELECT quote_ident(current_schema())"))
    connection.execute(text(f"GRANT USAGE ON SCHEMA {schema} TO {APP_ROLE}"))
    own = f"tenant_id = nullif(current_setting('{TENANT_SETTING}', true), '')::uuid"
    for table in tables:
        rights = "SELECT, INSERT" if table in append_only else "SELECT, INSERT, UPDATE, DELETE"
        for statement in (
            f"GRANT {rights} ON {table} TO {APP_ROLE}",
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY own_tenant ON {table} USING ({own}) WITH CHECK ({own})",
        ):
            connection.execute(text(statement))


def _above_the_rules(connection: Connection) -> bool:
    found = connection.scalar(
        text("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = :role"), {"role": APP_ROLE}
    )
    return bool(found)


def unprotected(db: Database) -> list[str]:
    """PostgreSQL: tables of tenants that row-level security does not guard; all of them for a role above it."""
    with db.raw() as connection:
        if _above_the_rules(connection):
            return ["any table: the role penstock_app is above it"]
        rows = connection.execute(
            text(
                "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' "
                "WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace "
                "AND NOT (c.relrowsecurity AND c.relforcerowsecurity) ORDER BY 1"
            )
        )
        return [row.relname for row in rows]


def _revision(connection: Connection) -> str | None:
    try:
        found: str | None = connection.scalar(_VERSION)
        return found
    except DBAPIError:
        connection.rollback()
        if inspect(connection).has_table("alembic_version"):
            raise
        return None


_VERSION = text("SELECT version_num FROM alembic_version")
