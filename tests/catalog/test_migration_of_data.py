"""A catalog of the first migration, with data, is upgraded: every version is read as before, and rows can be edited."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, MetaData, Table, insert, select, text

from penstock.catalog import migrate, tables
from penstock.catalog.database import Database
from penstock.errors import Unsupported
from penstock.lake import Lake
from penstock.service import doctor
from penstock.service.datasets.sweep import RetentionPolicy, sweep
from support.workspaces import WorkspaceFixture

FIRST_MIGRATION = "0001_initial"
NEW_TABLES = {"deletion_vectors"}
NEW_COLUMNS = {"dataset_versions": {"deleted_rows", "vector_files"}, "datasets": {"cluster_by"}}
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
Contents = dict[tuple[str, int], list[dict[str, Any]]]  # rows with their ids, by dataset and version


@pytest.fixture(params=["sqlite", "postgresql"])
def old_workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[WorkspaceFixture, Contents]]:
    """A workspace whose catalog has the tables of the first migration and data, and the contents of its versions."""
    current = WorkspaceFixture.make(tmp_path / "workspace", None, "rewrite")
    with current.open() as lake:
        write(lake)
        expected = contents(lake)
    catalog = Path(current.folder) / "catalog.db"
    source = catalog.rename(tmp_path / "current.db")
    if request.param == "sqlite":
        old = replace(current, edit_mode="auto")
        copy_to_first_migration(source, Database(catalog))
        yield old, expected
        return
    with closing(Database(request.getfixturevalue("postgres_url"))) as server:
        name = f"old_{uuid4().hex}"
        execute_outside_transaction(server.engine, f"CREATE DATABASE {name}")
        url = server.url.set(database=name, drivername="postgresql").render_as_string(hide_password=False)
        try:
            copy_to_first_migration(source, Database(url))
            yield replace(current, url=url, edit_mode="auto"), expected
        finally:
            execute_outside_transaction(server.engine, f"DROP DATABASE {name} WITH (FORCE)")


def execute_outside_transaction(engine: Engine, sql: str) -> None:
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text(sql))


def write(lake: Lake) -> None:
    """Create a large and a small dataset with rewritten files, an altered schema, and a dropped dataset."""
    large = lake.create("demo.large", rows(range(1, 1_001)))
    large.append(rows(range(1_001, 1_501)), idempotency_key="append")
    large.update([5, 7], rows([5, 7], "updated"))
    large.delete([10, 11, 1_200])
    large.merge(rows([1, 2_000], "merged"), "id", "upsert")
    small = lake.create("demo.small", rows([1, 2, 3]))
    small.overwrite(rows([4, 5]))
    lake.create("demo.dropped", rows([1])).drop()


def rows(ids: Any, word: str = "new") -> pa.Table:
    return pa.table({"id": list(ids), "word": [f"{word} {number}" for number in ids]}, schema=SCHEMA)


def contents(lake: Lake) -> Contents:
    """Return the rows of every version, in the order of their ids."""
    return {
        (name, version.number): sorted(
            lake.dataset(name).at(version.number).to_arrow(row_ids=True).to_pylist(), key=lambda row: int(row["rowid"])
        )
        for name in ("demo.large", "demo.small")
        for version in lake.dataset(name).history()
    }


def copy_to_first_migration(source: Path, target: Database) -> None:
    """Create the tables of the first migration, and copy the rows of a current catalog without deletion vectors."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).with_name("migrations")))
    with target.connect_without_tenant() as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, FIRST_MIGRATION)
    with (
        closing(target),
        closing(Database(source)) as current,
        current.connect_without_tenant(write=False) as reader,
        target.connect_without_tenant() as writer,
    ):
        old_tables = MetaData()
        old_tables.reflect(writer)
        writer.rollback()
        assert set(tables.metadata.tables) - set(old_tables.tables) == NEW_TABLES
        with writer.begin():
            for table in tables.metadata.sorted_tables:
                if table.name not in NEW_TABLES:
                    copy_rows(reader, writer, table, old_tables.tables[table.name])


def copy_rows(reader: Any, writer: Any, table: Table, old_table: Table) -> None:
    columns = [column for column in table.columns if column.name in old_table.columns]
    new_columns = {column.name for column in table.columns} - {column.name for column in columns}
    assert new_columns == NEW_COLUMNS.get(table.name, set())
    if values := [dict(row._mapping) for row in reader.execute(select(*columns))]:
        writer.execute(insert(table), values)


def upgrade(workspace: WorkspaceFixture) -> None:
    with closing(Database(workspace.url or Path(workspace.folder) / "catalog.db")) as db:
        assert migrate.migrate(db) == (FIRST_MIGRATION, migrate.CURRENT_MIGRATION)
        assert db.engine.dialect.name == "sqlite" or migrate.tables_without_row_security(db) == []


def test_workspace_of_the_first_migration_names_the_command_that_upgrades_it(
    old_workspace: tuple[WorkspaceFixture, Contents],
) -> None:
    with pytest.raises(Unsupported, match="penstock migrate") as raised:
        old_workspace[0].open()
    assert raised.value.context == {"found": FIRST_MIGRATION, "needed": migrate.CURRENT_MIGRATION}


def test_upgraded_workspace_returns_every_version_as_before(old_workspace: tuple[WorkspaceFixture, Contents]) -> None:
    workspace, expected = old_workspace
    upgrade(workspace)
    with workspace.open() as lake:
        assert contents(lake) == expected
        for name, version in expected:
            info = lake.dataset(name).at(version).snapshot.version
            assert (info.rows, info.deleted_rows, info.vector_files) == (len(expected[name, version]), 0, 0)
            assert lake.dataset(name).current().snapshot.cluster_by == ()
        assert lake.dataset("demo.large").append(rows(range(1_001, 1_501)), idempotency_key="append").replayed
        assert_sound(lake)


def test_upgraded_workspace_marks_rows_and_keeps_old_versions(
    old_workspace: tuple[WorkspaceFixture, Contents],
) -> None:
    workspace, expected = old_workspace
    upgrade(workspace)
    with workspace.open() as lake:
        large = lake.dataset("demo.large")
        before = large.version
        live = {row["rowid"]: row for row in expected["demo.large", before]}
        large.delete([20, 1_300])
        large.update([5, 21], rows([5, 21], "second"))
        large.merge(rows([30, 3_000], "third"), "id", "upsert")
        del live[20], live[1_300]
        for row_id, word in ((5, "second"), (21, "second"), (30, "third")):
            live[row_id] = {"id": row_id, "word": f"{word} {row_id}", "rowid": row_id}
        found = {row["rowid"]: row for row in large.to_arrow(row_ids=True).to_pylist()}
        (inserted,) = found.keys() - live.keys()
        assert found.pop(inserted)["id"] == 3_000
        assert found == live
        assert large.current().snapshot.version.vector_files > 0, "no row was marked"
        assert {key: value for key, value in contents(lake).items() if key in expected} == expected
        assert_sound(lake)
        large.compact()
        assert large.num_rows == len(live) + 1
        sweep(lake._workspace, lake.caller, RetentionPolicy(versions=1, grace=timedelta(0)), execute=True)
        assert {row["rowid"] for row in large.to_arrow(row_ids=True).to_pylist()} == {*live, inserted}
        assert_sound(lake)


def assert_sound(lake: Lake) -> None:
    """Assert that totals, files and checksums agree."""
    results = list(doctor.check_files(lake._workspace, lake.caller))
    assert {result.state for result in results} == {doctor.CheckStatus.OK}, results
