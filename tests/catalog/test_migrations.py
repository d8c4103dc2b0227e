"""Migrations create the tables of `catalog.tables`."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

import penstock
from penstock.catalog import migrate, tables
from penstock.catalog.database import Database
from penstock.errors import Invalid, Unavailable, Unsupported
from support.workspaces import WorkspaceFixture


def database(fixture: WorkspaceFixture) -> Database:
    return Database(fixture.url or f"sqlite:///{fixture.folder}/catalog.db")


def test_migrated_tables_match_the_table_definitions(workspace: WorkspaceFixture) -> None:
    db = database(workspace)
    with db.connect_without_tenant() as connection:
        postgresql_only = () if connection.dialect.name == "postgresql" else ("ix_gts_schemas_fields",)  # GIN
        options = {"include_object": lambda _thing, name, *_: name not in postgresql_only}
        differences = compare_metadata(MigrationContext.configure(connection, opts=options), tables.metadata)
    db.close()
    assert differences == []


def test_current_migration_is_the_newest_file() -> None:
    steps = sorted(p.name for p in (Path(migrate.__file__).parent / "migrations" / "versions").glob("[0-9]*.py"))
    assert steps[-1].startswith(migrate.CURRENT_MIGRATION)


def test_migrate_of_a_current_catalog_changes_nothing(workspace: WorkspaceFixture) -> None:
    db = database(workspace)
    assert migrate.migrate(db) == (migrate.CURRENT_MIGRATION, migrate.CURRENT_MIGRATION)
    db.close()


def test_database_without_a_catalog_raises_unsupported_with_the_command(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(Unsupported, match="penstock migrate"):
        migrate.assert_current(db)
    db.close()


def test_catalog_at_an_unknown_migration_is_rejected(sqlite_workspace: WorkspaceFixture) -> None:
    db = database(sqlite_workspace)
    with db.connect_without_tenant() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.commit()
    db.close()
    with pytest.raises(Unsupported) as raised:
        sqlite_workspace.open()
    assert raised.value.context == {"found": "9999", "needed": migrate.CURRENT_MIGRATION}


@pytest.mark.parametrize("migration", ["0001", "0007"])
def test_catalog_of_a_development_version_is_rejected(workspace: WorkspaceFixture, migration: str) -> None:
    """Both `penstock migrate` and opening the workspace name the fix: a new workspace. The catalog stays unchanged."""
    db = database(workspace)
    _set_migration(db, migration)
    try:
        with pytest.raises(Unsupported, match="Create a new workspace") as on_open:
            workspace.open()
        with pytest.raises(Unsupported) as on_migrate:
            migrate.migrate(db)
        assert migrate.current_migration(db) == migration
    finally:
        _set_migration(db, migrate.CURRENT_MIGRATION)
        db.close()
    for error in (on_open.value, on_migrate.value):
        assert error.reason == "catalog_too_old"
        assert error.context == {"found": migration, "needed": migrate.CURRENT_MIGRATION}


def _set_migration(db: Database, migration: str) -> None:
    with db.connect_without_tenant() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :migration"), {"migration": migration})
        connection.commit()


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "sqlite://", "postgresql", "://"])
def test_invalid_database_url_is_rejected_without_showing_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(Invalid) as raised:
        Database(url)
    assert raised.value.reason == "bad_database_url"


def test_unreachable_database_is_reported_without_the_password(tmp_path: Path) -> None:
    fixture = WorkspaceFixture(str(tmp_path / "w"), "postgresql://ada:sesame@127.0.0.1:1/nothing")
    with pytest.raises(Unavailable) as raised:
        penstock.open(tmp_path / "w", create=True, settings=fixture.settings())
    assert raised.value.reason == "database_unavailable"
    assert "sesame" not in str(raised.value.as_dict())
    assert "sesame" not in repr(fixture.settings())
