"""Pipelines in the catalog: unique names, replacement of the current version, and runs of removed pipelines."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import create_engine, text

from penstock.catalog import migrate
from penstock.catalog.database import CatalogTransaction, Database, parse_url
from penstock.catalog.pipelines import pipeline_store
from penstock.catalog.result_schemas import schema_store
from penstock.core.caller import Caller, Role
from penstock.core.odata import options
from penstock.core.pipeline.definition import StoredPipeline, parse_pipeline
from penstock.core.registry.schema_entry import SchemaDraft, SchemaEntry
from penstock.core.result_schema import parse_fields
from penstock.errors import AlreadyExists, NotFound
from penstock.lake import Lake

SOURCE, WORKING = "a1b2c3d4-e5f6-7890-abcd-ef1234567890", "550e8400-e29b-41d4-a716-446655440000"
AGGREGATION = {"group_by": ["zone", "account"], "aggregations": [{"column": "b", "expression": "SUM(x)"}]}


def new_pipeline(tx: CatalogTransaction, name: str = "monthly", **parameters: Any) -> StoredPipeline:
    append = {"type": "append", "parameters": {"source": {"dataset_id": SOURCE}, **parameters}}
    pipeline = parse_pipeline({"name": name, "working": {"dataset_id": WORKING}, "operations": [append]})
    return StoredPipeline(uuid4(), pipeline, 1, tx.now, tx.caller.user, tx.now, tx.caller.user)


def insert_pipeline(lake: Lake, name: str = "monthly", **parameters: Any) -> StoredPipeline:
    with lake._workspace.db.write(lake.caller) as tx:
        new = new_pipeline(tx, name, **parameters)
        pipeline_store.insert(tx, new)
    return new


def with_name(before: StoredPipeline, name: str) -> StoredPipeline:
    return replace(before, pipeline=replace(before.pipeline, name=name), version=before.version + 1)


def remove_pipeline(lake: Lake, pipeline: UUID) -> None:
    with lake._workspace.db.write(lake.caller) as tx:
        pipeline_store.remove(tx, pipeline_store.find_for_update(tx, pipeline))


def names(lake: Lake, **query_options: str) -> list[str]:
    pairs = [(f"${name}", value) for name, value in query_options.items()]
    with lake._workspace.db.read(lake.caller) as tx:
        page = pipeline_store.search(tx, options(pairs, pipeline_store.fields, default_top=50, max_top=200))
    return [entry.pipeline.name for entry in page.items]


def test_find_returns_the_inserted_pipeline(lake: Lake) -> None:
    new = insert_pipeline(lake, "Größe  ", aggregation=AGGREGATION, source_selector="zone = 'ﬁ' AND \"b\" > 3")
    with lake._workspace.db.read(lake.caller) as tx:
        loaded = pipeline_store.find(tx, new.id)
    assert loaded == new
    assert str(loaded.as_json()) == str(new.as_json()), "member by member, in order"


@pytest.mark.parametrize("name", ["monthly", "MONTHLY", "  Monthly\t"])
def test_insert_with_a_taken_pipeline_name_ignores_case_and_blanks(lake: Lake, other_tenant: Lake, name: str) -> None:
    insert_pipeline(lake)
    with pytest.raises(AlreadyExists) as raised:
        insert_pipeline(lake, name)
    assert (raised.value.reason, raised.value.context) == ("pipeline_name_taken", {"name": name})
    insert_pipeline(other_tenant, name)  # another tenant can use the name


def test_replace_may_change_the_case_of_the_pipeline_name(lake: Lake) -> None:
    before = insert_pipeline(lake)
    with lake._workspace.db.write(lake.caller) as tx:
        pipeline_store.replace(tx, before, with_name(before, "Monthly"))
        assert pipeline_store.find(tx, before.id) == with_name(before, "Monthly")


@pytest.mark.parametrize("use", ["find", "find_for_update", "replace"])
def test_pipelines_of_other_tenants_and_removed_ones_are_not_found(lake: Lake, other_tenant: Lake, use: str) -> None:
    foreign, removed = insert_pipeline(other_tenant), insert_pipeline(lake, "gone")
    remove_pipeline(lake, removed.id)
    errors = set()
    for entry in (foreign, removed, replace(removed, id=uuid4())):
        with pytest.raises(NotFound) as raised, lake._workspace.db.write(lake.caller) as tx:
            match use:
                case "replace":
                    pipeline_store.replace(tx, entry, with_name(entry, "mine"))
                case _:
                    getattr(pipeline_store, use)(tx, entry.id)
        errors.add(str(raised.value.as_dict()).replace(str(entry.id), "ID"))
    assert len(errors) == 1
    assert names(other_tenant) == ["monthly"]


SEARCHES: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["Ärger", "straße", "monthly"]),  # the newest first
    ({"filter": "name eq 'monthly'"}, ["monthly"]),
    ({"filter": "toupper(name) eq 'STRASSE'"}, ["straße"]),
    ({"filter": "tolower(name) eq 'ärger' and version eq 1"}, ["Ärger"]),
    ({"filter": "version gt 1"}, []),
    ({"orderby": "name"}, ["monthly", "straße", "Ärger"]),  # by code point
    ({"orderby": "name", "top": "1", "skip": "1"}, ["straße"]),
    ({"search": "STRASSE"}, ["straße"]),
]


@pytest.mark.parametrize(
    ("query_options", "loaded"), SEARCHES, ids=[str(query_options) for query_options, _ in SEARCHES]
)
def test_search_returns_pipelines_in_order(
    lake: Lake, other_tenant: Lake, query_options: dict[str, str], loaded: list[str]
) -> None:
    for name in ("monthly", "straße", "Ärger"):
        insert_pipeline(lake, name)
    remove_pipeline(lake, insert_pipeline(lake, "gone").id)
    insert_pipeline(other_tenant, "theirs")
    assert names(lake, **query_options) == loaded


def test_search_filters_pipelines_by_each_field(lake: Lake) -> None:
    insert_pipeline(lake, "other")
    pipeline = insert_pipeline(lake)
    for field in pipeline_store.fields:
        value = pipeline.as_json()[field]
        literal = f"'{value}'" if field == "name" else value
        assert "monthly" in names(lake, filter=f"{field} eq {literal}"), field
    assert names(lake, filter=f"id eq {pipeline.id}") == ["monthly"]


# -- the migration ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Return a database without tables."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    if request.param == "postgresql":
        server, name = parse_url(request.getfixturevalue("postgres_url")), f"steps_{uuid4().hex}"
        engine = create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        url = server.set(database=name).render_as_string(hide_password=False)
    db = Database(url)
    yield db
    db.close()


def test_migrate_on_an_empty_database_creates_every_table_and_keeps_data_when_repeated(
    empty_database: Database,
) -> None:
    assert migrate.migrate(empty_database) == (None, migrate.CURRENT_MIGRATION)
    caller = Caller(uuid4(), uuid4(), "ada", Role.ADMIN)
    with empty_database.write(caller) as tx:
        draft = SchemaDraft("orders", None, parse_fields([{"name": "id", "type": "string"}]), {"team": "red"})
        entry = SchemaEntry(uuid4(), caller.tenant, draft, 1, tx.now, tx.now, caller.user, tx.now, caller.user)
        schema_store.insert(tx, entry)
    assert migrate.migrate(empty_database) == (migrate.CURRENT_MIGRATION, migrate.CURRENT_MIGRATION)
    with empty_database.write(caller) as tx:
        assert schema_store.find(tx, entry.id) == entry
        new = new_pipeline(tx)
        pipeline_store.insert(tx, new)
        assert pipeline_store.find(tx, new.id) == new
    if empty_database.engine.dialect.name == "postgresql":
        assert migrate.tables_without_row_security(empty_database) == []
