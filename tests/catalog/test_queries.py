"""Registered queries in the catalog: unique names, revisions and references to schemas."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from penstock.catalog import migrate
from penstock.catalog.database import CatalogTransaction, Database, parse_url
from penstock.catalog.queries import query_store
from penstock.catalog.result_schemas import schema_store
from penstock.core.caller import Caller, Role
from penstock.core.odata import options
from penstock.core.registry.lifecycle import LifecycleState
from penstock.core.registry.query import QueryDatasetRef, QueryDraft, RegisteredQuery
from penstock.core.registry.query_parameters import QueryParameter
from penstock.core.registry.schema_entry import SchemaDraft as SchemaDraft
from penstock.core.registry.schema_entry import SchemaEntry
from penstock.core.result_schema import FieldType, parse_fields
from penstock.errors import AlreadyExists, Conflict, NotFound, PenstockError, Unsupported
from penstock.lake import Lake

PARAMETERS = (
    QueryParameter("region", FieldType.STRING),
    QueryParameter("least", FieldType.NUMBER, required=False, default=0.5),
    QueryParameter("many", FieldType.NUMBER, required=False, default=10**30),
    QueryParameter("since", FieldType.DATE, required=False),
)
DATASETS = (QueryDatasetRef("finance", "orders"), QueryDatasetRef("finance", "orders", 3))


def create_schema(lake: Lake, name: str = "orders", state: LifecycleState = LifecycleState.ACTIVE) -> UUID:
    with lake._workspace.db.write(lake.caller) as tx:
        entry = _entry(tx, name, state)
        schema_store.insert(tx, entry)
    return entry.id


def _entry(tx: CatalogTransaction, name: str, state: LifecycleState = LifecycleState.ACTIVE) -> SchemaEntry:
    draft = SchemaDraft(name, None, parse_fields([{"name": "id", "type": "number"}]), None, state=state)
    return SchemaEntry(uuid4(), tx.caller.tenant, draft, 1, tx.now, tx.now, tx.caller.user, tx.now, tx.caller.user)


def insert_query(lake: Lake, name: str = "monthly", returns: UUID | None = None, **members: Any) -> RegisteredQuery:
    returns = returns or create_schema(lake, f"of {uuid4()}")
    draft = replace(QueryDraft(name, None, "SELECT 1 AS id", (), returns), **members)
    with lake._workspace.db.write(lake.caller) as tx:
        user = tx.caller.user
        query = RegisteredQuery(uuid4(), draft, DATASETS, 1, tx.now, tx.now, user, tx.now, user)
        query_store.insert(tx, query)
    return query


def next_revision(before: RegisteredQuery, **members: Any) -> RegisteredQuery:
    return replace(
        before,
        draft=replace(before.draft, **members),
        version=before.version + 1,
        updated_at=before.updated_at + timedelta(seconds=1),
    )


def replace_query(lake: Lake, before: RegisteredQuery, **members: Any) -> RegisteredQuery:
    after = next_revision(before, **members)
    with lake._workspace.db.write(lake.caller) as tx:
        query_store.replace(tx, before, after)
    return after


def remove_query(lake: Lake, query: UUID) -> None:
    with lake._workspace.db.write(lake.caller) as tx:
        query_store.remove(tx, query_store.find_for_update(tx, query))


def names(lake: Lake, **query_options: str) -> list[str]:
    pairs = [(f"${name}", value) for name, value in query_options.items()]
    with lake._workspace.db.read(lake.caller) as tx:
        page = query_store.search(tx, options(pairs, query_store.fields, default_top=50, max_top=200))
    return [entry.draft.name for entry in page.items]


@contextmanager
def assert_raises_reason(error_class: type[PenstockError], reason: str) -> Iterator[None]:
    with pytest.raises(error_class) as raised:
        yield
    assert raised.value.reason == reason


def test_find_returns_the_inserted_query(lake: Lake) -> None:
    new = insert_query(
        lake, "Größe  ", description="ﬁne", sql="SELECT $region", parameters=PARAMETERS, state=LifecycleState.DRAFT
    )
    with lake._workspace.db.read(lake.caller) as tx:
        assert query_store.find(tx, new.id) == new
        assert query_store.find_by_name(tx, "\tGRÖSSE ") == new
    assert str(new.as_json()) == str(_found(lake, new.id).as_json()), "digit by digit"


def _found(lake: Lake, query: UUID) -> RegisteredQuery:
    with lake._workspace.db.read(lake.caller) as tx:
        return query_store.find(tx, query)


@pytest.mark.parametrize("name", ["monthly", "MONTHLY", "  Monthly\t"])
def test_insert_with_a_taken_query_name_ignores_case_and_blanks(lake: Lake, other_tenant: Lake, name: str) -> None:
    insert_query(lake, state=LifecycleState.ARCHIVED)
    with pytest.raises(AlreadyExists) as raised:
        insert_query(lake, name)
    assert (raised.value.reason, raised.value.context) == ("query_name_taken", {"name": name})
    insert_query(other_tenant, name)  # another tenant can use the name
    before = insert_query(lake, "weekly")
    with assert_raises_reason(AlreadyExists, "query_name_taken"):
        replace_query(lake, before, name=name)
    assert _found(lake, before.id) == before


def test_name_of_a_removed_query_can_be_used_again(lake: Lake) -> None:
    remove_query(lake, insert_query(lake).id)
    second = insert_query(lake)
    assert names(lake) == ["monthly"]
    with lake._workspace.db.read(lake.caller) as tx:
        assert query_store.find_by_name(tx, "monthly") == second


def test_replace_may_change_the_case_of_the_query_name(lake: Lake) -> None:
    before = insert_query(lake)
    assert _found(lake, before.id) != replace_query(lake, before, name="Monthly") == _found(lake, before.id)


def test_versions_return_every_revision_unchanged(lake: Lake) -> None:
    first = insert_query(lake, parameters=PARAMETERS)
    second = replace_query(lake, first, sql="SELECT 2 AS id", parameters=())
    third = next_revision(second, state=LifecycleState.DEPRECATED)
    with lake._workspace.db.write(lake.caller) as tx:
        query_store.replace(tx, second, third, "deprecate", "use the new one")
    with lake._workspace.db.read(lake.caller) as tx:
        loaded = query_store.versions(tx, first.id, before=2**31 - 1, limit=10)
        assert [(entry.version, entry.change, entry.reason) for entry in loaded] == [
            (3, "deprecate", "use the new one"), (2, "update", None), (1, "create", None),
        ]  # fmt: skip
        assert [(entry.draft, entry.datasets) for entry in loaded] == [
            (q.draft, DATASETS) for q in (third, second, first)
        ]
        assert [(entry.changed_at, entry.changed_by) for entry in loaded] == [
            (q.updated_at, q.updated_by) for q in (third, second, first)
        ]
        assert {entry.author for entry in loaded} == {lake.caller.name}
        assert query_store.versions(tx, first.id, before=3, limit=1) == loaded[1:2]
        assert query_store.version(tx, first.id, 1) == loaded[2]
        with assert_raises_reason(NotFound, "version_not_found"):
            query_store.version(tx, first.id, 4)


@pytest.mark.parametrize("use", ["find", "find_for_update", "find_by_name", "replace"])
def test_queries_of_other_tenants_and_removed_ones_are_not_found(lake: Lake, other_tenant: Lake, use: str) -> None:
    foreign, removed = insert_query(other_tenant, "foreign"), insert_query(lake, "gone")
    remove_query(lake, removed.id)
    errors = set()
    for entry in (foreign, removed, next_revision(replace(removed, id=uuid4()), name="unknown")):
        key = entry.draft.name if use == "find_by_name" else entry.id
        with pytest.raises(NotFound) as raised, lake._workspace.db.write(lake.caller) as tx:
            if use == "replace":
                query_store.replace(tx, entry, next_revision(entry, name="mine"))
            else:
                getattr(query_store, use)(tx, key)
        errors.add(str(raised.value.as_dict()).replace(str(key), "KEY"))
    assert len(errors) == 1
    assert names(other_tenant) == ["foreign"]


# -- the referenced schema -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [LifecycleState.DRAFT, LifecycleState.DEPRECATED, LifecycleState.ARCHIVED])
def test_replace_with_a_schema_that_is_not_active_is_rejected(lake: Lake, state: LifecycleState) -> None:
    schema_id = create_schema(lake, "settled", state)
    with assert_raises_reason(Unsupported, "schema_not_active"):
        insert_query(lake, returns=schema_id)
    before = insert_query(lake)
    with assert_raises_reason(Unsupported, "schema_not_active"):
        replace_query(lake, before, returns_schema_id=schema_id)
    assert _found(lake, before.id) == before
    other = create_schema(lake, "other")
    assert replace_query(lake, before, returns_schema_id=other) == _found(lake, before.id)


def test_query_keeps_its_schema_after_it_is_deprecated(lake: Lake) -> None:
    returns = create_schema(lake)
    before = insert_query(lake, returns=returns)
    with lake._workspace.db.write(lake.caller) as tx:
        entry = schema_store.find_for_update(tx, returns)
        schema_store.replace(tx, entry, _deprecated(entry), "deprecate")
    assert replace_query(lake, before, sql="SELECT 2 AS id").version == 2


def _deprecated(entry: SchemaEntry) -> SchemaEntry:
    return replace(entry, draft=replace(entry.draft, state=LifecycleState.DEPRECATED), version=entry.version + 1)


def test_insert_with_a_schema_of_another_tenant_raises_not_found(lake: Lake, other_tenant: Lake) -> None:
    foreign = create_schema(other_tenant)
    with assert_raises_reason(NotFound, "schema_not_found"):
        insert_query(lake, returns=foreign)
    before = insert_query(lake)
    with assert_raises_reason(NotFound, "schema_not_found"):
        replace_query(lake, before, returns_schema_id=foreign)


def drop_schema(lake: Lake, id: UUID, expected_reason: str = "schema_in_use") -> bool:
    try:
        with lake._workspace.db.write(lake.caller) as tx:
            schema_store.remove(tx, schema_store.find_for_update(tx, id))
    except Conflict as raised:
        assert raised.reason == expected_reason  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize("state", LifecycleState)
def test_remove_of_a_referenced_schema_is_rejected(lake: Lake, state: LifecycleState) -> None:
    first, second = create_schema(lake, "one"), create_schema(lake, "other")
    query = insert_query(lake, returns=first, state=state)
    archived = state is LifecycleState.ARCHIVED
    reason = "schema_referenced_by_archived_queries" if archived else "schema_in_use"
    assert not drop_schema(lake, first, reason)
    query = replace_query(lake, query, returns_schema_id=second)
    assert (drop_schema(lake, first, reason), drop_schema(lake, second, reason)) == (True, False)
    remove_query(lake, query.id)
    assert drop_schema(lake, second)


@pytest.mark.parametrize("use", ["insert", "replace"])
def test_concurrent_schema_remove_and_query_replace_keep_the_reference(lake: Lake, use: str, soak: bool) -> None:
    for turn in range(100 if soak else 8):
        expected_state, before = create_schema(lake, f"{turn}"), insert_query(lake, f"q{turn}")

        def replaces(expected_state: UUID = expected_state, before: RegisteredQuery = before) -> bool:
            try:
                if use == "insert":
                    insert_query(lake, f"new {before.id}", expected_state)
                else:
                    replace_query(lake, before, returns_schema_id=expected_state)
            except NotFound as raised:
                assert raised.reason == "schema_not_found"  # noqa: PT017
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(replaces), pool.submit(drop_schema, lake, expected_state)
        assert first.result() != second.result()


# -- search --------------------------------------------------------------------------------------------------------------

SEARCHES: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["Ärger", "straße", "monthly"]),  # the newest first
    ({"filter": "name eq 'monthly'"}, ["monthly"]),
    ({"filter": "toupper(name) eq 'STRASSE'"}, ["straße"]),
    ({"filter": "tolower(description) eq 'über ärger' and version eq 1"}, ["Ärger"]),
    ({"filter": "description eq null"}, []),
    ({"filter": "state eq 'DRAFT'"}, ["straße"]),
    ({"orderby": "name"}, ["monthly", "straße", "Ärger"]),  # by code point
    ({"orderby": "state desc,name", "top": "1", "skip": "1"}, ["monthly"]),
    ({"search": "STRASSE"}, ["straße"]),
    ({"search": "ÜBER ärger"}, ["Ärger"]),
]


@pytest.mark.parametrize(
    ("query_options", "loaded"), SEARCHES, ids=[str(query_options) for query_options, _ in SEARCHES]
)
def test_search_returns_queries_in_order(
    lake: Lake, other_tenant: Lake, query_options: dict[str, str], loaded: list[str]
) -> None:
    for name in ("monthly", "straße", "Ärger"):
        state = LifecycleState.DRAFT if name == "straße" else LifecycleState.ACTIVE
        insert_query(lake, name, description=f"Über {name}", state=state)
    remove_query(lake, insert_query(lake, "gone").id)
    insert_query(other_tenant, "theirs")
    assert names(lake, **query_options) == loaded


def test_search_filters_queries_by_each_field(lake: Lake) -> None:
    insert_query(lake, "other")
    query = insert_query(lake, description="each month")
    for field, field_type in query_store.fields.items():
        value = query.as_json()[field]
        literal = f"'{value}'" if field_type.value == "text" else value
        assert "monthly" in names(lake, filter=f"{field} eq {literal}"), field
    assert names(lake, filter=f"returns_schema_id eq {query.draft.returns_schema_id}") == ["monthly"]


# -- the migration -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Return a database without tables. On PostgreSQL its owner is not a superuser, so row-level security applies to it."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    if request.param == "postgresql":
        server, name = parse_url(request.getfixturevalue("postgres_url")), f"keeper_{uuid4().hex}"
        engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE ROLE {name} LOGIN CREATEROLE"))
            connection.execute(sa.text(f"CREATE DATABASE {name} OWNER {name}"))
        engine.dispose()
        url = server.set(database=name, username=name).render_as_string(hide_password=False)
    db = Database(url)
    yield db
    db.close()


def test_migrate_on_an_empty_database_creates_tables_that_store_and_search_queries(empty_database: Database) -> None:
    assert migrate.migrate(empty_database) == (None, migrate.CURRENT_MIGRATION)
    callers = [Caller(uuid4(), uuid4(), name, Role.ADMIN) for name in ("ada", "bob")]
    before = datetime(2026, 3, 1, 12, tzinfo=UTC)
    stored = dict[tuple[Caller, str], RegisteredQuery]()
    for caller in callers:
        with empty_database.write(caller) as tx:
            entry = _entry(tx, "orders")
            schema_store.insert(tx, entry)
            for name in ("Straße", "gone"):
                draft = QueryDraft(name, "Größe", "SELECT 1", (QueryParameter("p", FieldType.STRING),), entry.id)
                query = RegisteredQuery(uuid4(), draft, (), 1, before, before, caller.user, before, caller.user)
                query_store.insert(tx, query)
                stored[caller, name] = query
            query_store.remove(tx, stored[caller, "gone"])
    assert migrate.migrate(empty_database) == (migrate.CURRENT_MIGRATION, migrate.CURRENT_MIGRATION)
    for caller in callers:
        expected = stored[caller, "Straße"]
        with empty_database.write(caller) as tx:
            assert query_store.find(tx, expected.id) == expected
            for condition in ("toupper(name) eq 'STRASSE'", "tolower(description) eq 'größe'"):
                page = query_store.search(
                    tx, options([("$filter", condition)], query_store.fields, default_top=50, max_top=50)
                )
                assert page.items == [expected], "a removed query is not found"
            [first] = query_store.versions(tx, expected.id, before=9, limit=9)
            assert (first.version, first.draft) == (1, expected.draft)
            assert (first.change, first.changed_by) == ("create", caller.user)
            query_store.replace(tx, expected, next_revision(expected, name="gone"))
            query_store.insert(tx, replace(expected, id=uuid4()))  # both names can be used again
    if empty_database.engine.dialect.name == "postgresql":
        assert migrate.tables_without_row_security(empty_database) == []
