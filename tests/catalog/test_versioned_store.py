"""The stores of result schemas, queries and pipelines pass the same tests."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import IntegrityError

from penstock.catalog import tables
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.pipelines import pipeline_store
from penstock.catalog.queries import query_store
from penstock.catalog.result_schemas import schema_store
from penstock.catalog.tenant_guard import tenant_filter
from penstock.catalog.versioned_store import RevisionStore, VersionedStore
from penstock.core.odata import options
from penstock.core.pipeline.definition import StoredPipeline, parse_pipeline
from penstock.core.registry import gts
from penstock.core.registry.query import QueryDraft, RegisteredQuery
from penstock.core.registry.revisions import next_revision
from penstock.core.registry.schema_entry import SchemaDraft, SchemaEntry
from penstock.core.result_schema import parse_fields
from penstock.errors import AlreadyExists, Conflict, NotFound, Unsupported
from penstock.lake import Lake
from penstock.reasons import REASONS

STORES: dict[str, VersionedStore[Any]] = {
    store.entry_type: store for store in (schema_store, query_store, pipeline_store)
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> VersionedStore[Any]:
    return STORES[request.param]


def new_schema(tx: CatalogTransaction, name: str) -> SchemaEntry:
    draft = SchemaDraft(name, "Text", parse_fields([{"name": "id", "type": "number"}]), {"a": 1})
    return SchemaEntry(uuid4(), tx.caller.tenant, draft, 1, tx.now, tx.now, tx.caller.user, tx.now, tx.caller.user)


def new_query(tx: CatalogTransaction, name: str) -> RegisteredQuery:
    returns = new_schema(tx, f"of {uuid4()}")
    schema_store.insert(tx, returns)
    draft = QueryDraft(name, "Text", "SELECT 1 AS id", (), returns.id)
    return RegisteredQuery(uuid4(), draft, (), 1, tx.now, tx.now, tx.caller.user, tx.now, tx.caller.user)


def new_pipeline(tx: CatalogTransaction, name: str) -> StoredPipeline:
    append = {"type": "append", "parameters": {"source": {"dataset_id": str(uuid4())}}}
    pipeline = parse_pipeline({"name": name, "working": {"dataset_id": str(uuid4())}, "operations": [append]})
    return StoredPipeline(uuid4(), pipeline, 1, tx.now, tx.caller.user, tx.now, tx.caller.user)


NEW: dict[str, Callable[[CatalogTransaction, str], Any]] = {
    "schema": new_schema,
    "query": new_query,
    "pipeline": new_pipeline,
}


def insert_entry(lake: Lake, store: VersionedStore[Any], name: str = "monthly") -> Any:
    with lake._workspace.db.write(lake.caller) as tx:
        entry = NEW[store.entry_type](tx, name)
        store.insert(tx, entry)
    return entry


def with_name(entry: Any, name: str) -> Any:
    member = "pipeline" if isinstance(entry, StoredPipeline) else "draft"
    content = replace(getattr(entry, member), name=name)
    return next_revision(entry, entry.updated_at, uuid4(), **{member: content})


def replace_entry(lake: Lake, store: VersionedStore[Any], before: Any, after: Any) -> Any:
    with lake._workspace.db.write(lake.caller) as tx:
        store.replace(tx, before, after)
    return after


def remove_entry(lake: Lake, store: VersionedStore[Any], entry: Any) -> None:
    with lake._workspace.db.write(lake.caller) as tx:
        store.remove(tx, store.find_for_update(tx, entry.id))


def undelete_entry(lake: Lake, store: VersionedStore[Any], entry: Any) -> Any:
    with lake._workspace.db.write(lake.caller) as tx:
        return _undelete(tx, store, entry)


def _undelete(tx: CatalogTransaction, store: VersionedStore[Any], entry: Any) -> Any:
    before = store.find_deleted_for_update(tx, entry.id)
    after = next_revision(before, tx.now, tx.caller.user)
    store.undelete(tx, before, after)
    return after


def test_versioned_store_error_reasons_are_in_the_table(store: VersionedStore[Any]) -> None:
    expected = {"_changed": "Conflict", "_not_found": "NotFound", "_name_taken": "AlreadyExists"}
    expected |= {"_name_taken.undelete": "AlreadyExists", "_not_deleted": "Unsupported"}
    error_classes = {suffix: REASONS[f"{store.entry_type}{suffix}"][0] for suffix in expected}
    assert error_classes == expected
    if isinstance(store, RevisionStore):
        assert REASONS[f"version_not_found.{store.entry_type}"][0] == "NotFound"


def test_versioned_store_find_returns_the_replaced_entry(lake: Lake, store: VersionedStore[Any]) -> None:
    before = insert_entry(lake, store)
    after = replace_entry(lake, store, before, with_name(before, "Wöchentlich"))
    with lake._workspace.db.read(lake.caller) as tx:
        assert store.find(tx, before.id) == after
        pairs = [("$filter", "tolower(name) eq 'wöchentlich'"), ("$search", "WÖCH")]
        assert store.search(tx, options(pairs, store.fields, default_top=9, max_top=9)).items == [after]


def test_versioned_store_replace_of_old_revision_conflicts(lake: Lake, store: VersionedStore[Any]) -> None:
    before = insert_entry(lake, store)
    after = replace_entry(lake, store, before, with_name(before, "first"))
    with pytest.raises(Conflict) as raised:
        replace_entry(lake, store, before, with_name(before, "second"))
    assert raised.value.reason == f"{store.entry_type}_changed"
    assert raised.value.context == {f"{store.entry_type}_id": str(before.id), "current_version": 2}
    with lake._workspace.db.read(lake.caller) as tx:
        assert store.find(tx, before.id) == after


def test_versioned_store_insert_and_replace_with_taken_name_are_rejected(
    lake: Lake, store: VersionedStore[Any]
) -> None:
    insert_entry(lake, store, "monthly")
    other = insert_entry(lake, store, "weekly")
    attempts = [
        lambda: insert_entry(lake, store, " MONTHLY "),
        lambda: replace_entry(lake, store, other, with_name(other, " MONTHLY ")),
    ]
    for attempt in attempts:
        with pytest.raises(AlreadyExists) as raised:
            attempt()
        assert (raised.value.reason, raised.value.context) == (f"{store.entry_type}_name_taken", {"name": " MONTHLY "})
        assert "'MONTHLY'" in raised.value.message


def test_versioned_store_removed_entry_is_not_found_and_releases_its_name(
    lake: Lake, store: VersionedStore[Any]
) -> None:
    entry = insert_entry(lake, store)
    remove_entry(lake, store, entry)
    with pytest.raises(NotFound) as raised, lake._workspace.db.read(lake.caller) as tx:
        store.find(tx, entry.id)
    assert raised.value.reason == f"{store.entry_type}_not_found"
    assert raised.value.context == {f"{store.entry_type}_id": str(entry.id)}
    insert_entry(lake, store)


def test_versioned_store_undeleted_entry_is_the_next_revision(lake: Lake, store: VersionedStore[Any]) -> None:
    entry = insert_entry(lake, store)
    remove_entry(lake, store, entry)
    after = undelete_entry(lake, store, entry)
    assert after == replace(entry, version=2, updated_at=after.updated_at, updated_by=lake.caller.user)
    with lake._workspace.db.read(lake.caller) as tx:
        assert store.find(tx, entry.id) == after
        query = options([("$filter", "name eq 'monthly'")], store.fields, default_top=9, max_top=9)
        assert store.search(tx, query).items == [after]
        if isinstance(store, RevisionStore):
            changes = [revision.change for revision in store.versions(tx, entry.id, before=9, limit=9)]
            assert changes == ["undelete", "create"]
    with pytest.raises(AlreadyExists):
        insert_entry(lake, store)


def test_versioned_store_undelete_of_schema_makes_its_fields_searchable(lake: Lake) -> None:
    entry = insert_entry(lake, schema_store)
    query = options([("$filter", "fields/any(f: f/name eq 'id')")], schema_store.fields, default_top=9, max_top=9)

    def search() -> list[SchemaEntry]:
        with lake._workspace.db.read(lake.caller) as tx:
            return schema_store.search(tx, query).items

    remove_entry(lake, schema_store, entry)
    assert search() == []
    assert [undelete_entry(lake, schema_store, entry)] == search()


def test_versioned_store_undelete_without_deletion_is_rejected(
    lake: Lake, other_tenant: Lake, store: VersionedStore[Any]
) -> None:
    entry, id_name = insert_entry(lake, store), f"{store.entry_type}_id"
    with pytest.raises(Unsupported) as raised:
        undelete_entry(lake, store, entry)
    assert raised.value.reason == f"{store.entry_type}_not_deleted"
    assert raised.value.context == {id_name: str(entry.id), "current_version": 1}
    remove_entry(lake, store, entry)
    for lake_without_entry, id in ((other_tenant, entry.id), (lake, uuid4())):
        with (
            pytest.raises(NotFound) as missing,
            lake_without_entry._workspace.db.write(lake_without_entry.caller) as tx,
        ):
            store.find_deleted_for_update(tx, id)
        assert missing.value.context == {id_name: str(id)}


def test_versioned_store_undelete_with_taken_name_is_rejected(lake: Lake, store: VersionedStore[Any]) -> None:
    entry = insert_entry(lake, store, "monthly")
    remove_entry(lake, store, entry)
    insert_entry(lake, store, " MONTHLY ")
    with pytest.raises(AlreadyExists) as raised:
        undelete_entry(lake, store, entry)
    assert (raised.value.reason, raised.value.context) == (f"{store.entry_type}_name_taken", {"name": "monthly"})
    assert "cannot be undone" in raised.value.message
    with lake._workspace.db.write(lake.caller) as tx:
        assert store.find_deleted_for_update(tx, entry.id) == entry


INTERLEAVED = {
    "two undeletions": ("undelete", "undelete", "_not_deleted"),
    "undeletion before creation": ("undelete", "create", "_name_taken"),
    "creation before undeletion": ("create", "undelete", "_name_taken"),
}


@pytest.mark.parametrize("case", INTERLEAVED)
def test_versioned_store_undelete_during_another_change_waits_and_is_rejected(
    lake: Lake, store: VersionedStore[Any], case: str
) -> None:
    """The second transaction begins while the first one has written and is not committed."""
    first, second, suffix = INTERLEAVED[case]
    entry = insert_entry(lake, store)
    remove_entry(lake, store, entry)

    def change(tx: CatalogTransaction, action: str) -> None:
        if action == "create":
            store.insert(tx, NEW[store.entry_type](tx, "monthly"))
        else:
            _undelete(tx, store, entry)

    def change_in_own_transaction() -> str:
        try:
            with lake._workspace.db.write(lake.caller) as tx:
                change(tx, second)
        except (AlreadyExists, Unsupported) as error:
            return error.reason
        return "committed"

    with ThreadPoolExecutor(1) as pool:
        with lake._workspace.db.write(lake.caller) as tx:
            change(tx, first)
            outcome = pool.submit(change_in_own_transaction)
            with pytest.raises(TimeoutError):
                outcome.result(timeout=0.3)
        assert outcome.result(timeout=60) == f"{store.entry_type}{suffix}"


def test_versioned_store_audits_every_change(lake: Lake, store: VersionedStore[Any]) -> None:
    entry = insert_entry(lake, store)
    remove_entry(lake, store, replace_entry(lake, store, entry, with_name(entry, "weekly")))
    undelete_entry(lake, store, entry)
    audit = tables.audit.c
    with lake._workspace.db.read(lake.caller) as tx:
        rows = tx.all(select(audit.action, audit.detail).where(tenant_filter(tables.audit)).order_by(audit.at))
    details = [(row.action, json.loads(row.detail)) for row in rows if str(entry.id) in row.detail]
    id, reason = {f"{store.entry_type}_id": str(entry.id)}, {"reason": None} if store is not pipeline_store else {}
    assert details == [
        (f"{store.entry_type}.create", {**id, "version": 1, **reason}),
        (f"{store.entry_type}.update", {**id, "version": 2, **reason}),
        (f"{store.entry_type}.delete", {**id, "version": 2}),
        (f"{store.entry_type}.undelete", {**id, "version": 3, **reason}),
    ]


@pytest.mark.parametrize("order", ["", "name", "updated_at desc"])
def test_search_with_select_reads_fields_only_if_they_are_selected(lake: Lake, order: str) -> None:
    entry = insert_entry(lake, schema_store)
    ordered = [("$orderby", order)] if order else []

    def names_of(select: str) -> SchemaEntry:
        pairs = [*ordered, ("$select", select), ("$filter", "fields/any(f: f/name eq 'id')")]
        query = options(pairs, schema_store.fields, default_top=5, max_top=5)
        with lake._workspace.db.read(lake.caller) as tx:
            (item,) = schema_store.search(tx, query).items
        return item

    assert names_of("id,fields") == entry
    assert names_of("id,name") == replace(entry, draft=replace(entry.draft, fields=()))


CONTRACT_INSERT = """
INSERT INTO gts_schemas (id, tenant_id, type_id, name, fields, created_at, created_by, updated_at, updated_by, version)
VALUES (:id, :tenant, :type_id, 'Orders', '[]', CURRENT_TIMESTAMP, :user, CURRENT_TIMESTAMP, :user, 1)
"""
CONTRACT_DEFAULTS = {"state": "ACTIVE", "version": "1"}


def test_insert_of_the_contract_alone_stores_no_incomplete_schema(lake: Lake) -> None:
    """See docs/decisions/0006-registry.md: the columns of the contract exist, but a schema needs further rows."""
    columns = tables.gts_schemas.c
    assert {name: columns[name].server_default.arg for name in CONTRACT_DEFAULTS} == CONTRACT_DEFAULTS
    ids = {"id": uuid4(), "tenant": lake.caller.tenant, "user": lake.caller.user}
    values = {name: value.hex for name, value in ids.items()} | {"type_id": gts.QUERY_RETURNS}
    engine = create_engine(lake._workspace.db.url)  # another SQL client: Penstock checks its own statements
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            tenant = {"t": str(lake.caller.tenant)}
            connection.execute(text("SELECT set_config('penstock.tenant', :t, true)"), tenant)
        with pytest.raises(IntegrityError) as raised:
            connection.execute(text(CONTRACT_INSERT), values)
    engine.dispose()
    assert "NOT NULL" in str(raised.value).upper().replace("NOT-NULL", "NOT NULL")
    with lake._workspace.db.read(lake.caller) as tx:
        assert tx.all(select(columns.id).where(tenant_filter(tables.gts_schemas))) == []
