"""The tables as the migrations make them are the tables as the code knows them."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

import penstock
from penstock.catalog import migrate as upgrade
from penstock.catalog import tables
from penstock.catalog.database import Database
from penstock.errors import Invalid, Unavailable, Unsupported
from workspaces import Place


def database(place: Place) -> Database:
    return Database(place.url or f"sqlite:///{place.folder}/catalog.db")


def test_migrations_and_code_agree(place: Place) -> None:
    db = database(place)
    with db.raw() as connection:
        only_there = () if connection.dialect.name == "postgresql" else ("ix_gts_schemas_fields",)  # GIN
        options = {"include_object": lambda _thing, name, *_: name not in only_there}
        differences = compare_metadata(MigrationContext.configure(connection, opts=options), tables.metadata)
    db.close()
    assert differences == []


def test_head_is_the_newest_step() -> None:
    steps = sorted(p.name for p in (Path(upgrade.__file__).parent / "migrations" / "versions").glob("[0-9]*.py"))
    assert steps[-1].startswith(upgrade.HEAD)


def test_migrating_twice_changes_nothing(place: Place) -> None:
    db = database(place)
    assert upgrade.migrate(db) == (upgrade.HEAD, upgrade.HEAD)
    db.close()


def test_a_database_without_a_catalog_says_what_to_run(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(Unsupported, match="penstock migrate"):
        upgrade.assert_current(db)
    db.close()


def test_a_catalog_of_another_revision_is_not_touched(embedded: Place) -> None:
    db = database(embedded)
    with db.raw() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.commit()
    db.close()
    with pytest.raises(Unsupported) as refusal:
        embedded.open()
    assert refusal.value.context == {"found": "9999", "needed": upgrade.HEAD}


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "sqlite://", "postgresql", "://"])
def test_an_odd_database_url_is_refused_without_being_shown(tmp_path: Path, url: str) -> None:
    with pytest.raises(Invalid) as refusal:
        Database(url)
    assert refusal.value.reason == "bad_database_url"


def test_a_server_that_is_not_there_is_told_without_the_password(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "w"), "postgresql://ada:sesame@127.0.0.1:1/nothing")
    with pytest.raises(Unavailable) as refusal:
        penstock.open(tmp_path / "w", create=True, settings=place.settings())
    assert refusal.value.reason == "database_unavailable"
    assert "sesame" not in str(refusal.value.facts())
    assert "sesame" not in repr(place.settings())
