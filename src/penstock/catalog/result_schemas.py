"""Store result schemas: the newest revision of each, and all earlier ones."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import FromClause, Row, bindparam, delete, func, literal, select

from penstock.catalog import odata_sql, search_statements
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.odata_sql import Children, Columns
from penstock.catalog.tables import gts_queries, gts_schema_fields, gts_schema_versions, gts_schemas
from penstock.catalog.tenant_guard import insert_for_tenant, tenant_filter
from penstock.catalog.versioned_store import RevisionStore, folded_texts
from penstock.core.bounded_cache import BoundedCache
from penstock.core.odata import Collection, FieldKind, Fields, QueryOptions
from penstock.core.paging import SearchPage
from penstock.core.registry import gts
from penstock.core.registry.lifecycle import LifecycleState
from penstock.core.registry.schema_entry import SchemaDraft, SchemaEntry, SchemaRevision
from penstock.core.result_schema import fields_from_json
from penstock.errors import Conflict

_ENTRY_CACHE_BYTES = 8 << 20  # of a process
_FIELD_BYTES = 300  # estimated memory of a parsed field
_entries = BoundedCache[SchemaEntry](_ENTRY_CACHE_BYTES)

_s, _f, _q = gts_schemas.c, gts_schema_fields.c, gts_queries.c

_INSERT_FIELD = insert_for_tenant(gts_schema_fields)
_DELETE_FIELDS = delete(gts_schema_fields).where(tenant_filter(gts_schema_fields), _f.schema_id == bindparam("schema"))
_REFERENCES = (
    select(_q.id, _q.name, _q.state, _q.version)
    .where(tenant_filter(gts_queries), _q.returns_schema_id == bindparam("schema"), _q.deleted_at.is_(None))
    .order_by(_q.name_key, _q.id)
    .limit(bindparam("limit"))
)
_REFERENCE_COUNT = (
    select(func.count())
    .select_from(gts_queries)
    .where(tenant_filter(gts_queries), _q.returns_schema_id == bindparam("schema"), _q.deleted_at.is_(None))
)
_UNARCHIVED_REFERENCE_COUNT = _REFERENCE_COUNT.where(_q.state != LifecycleState.ARCHIVED.value)
_DEPRECATED = (
    select(gts_schemas)
    .where(tenant_filter(gts_schemas), _s.deleted_at.is_(None), _s.state == LifecycleState.DEPRECATED.value)
    .order_by(_s.state_changed_at, _s.id)
)

FIELDS: Fields = {
    "id": FieldKind.GUID,
    "type_id": FieldKind.TEXT,
    "name": FieldKind.TEXT,
    "description": FieldKind.TEXT,
    "state": FieldKind.TEXT,
    "version": FieldKind.INTEGER,
    "created_at": FieldKind.INSTANT,
    "created_by": FieldKind.GUID,
    "updated_at": FieldKind.INSTANT,
    "updated_by": FieldKind.GUID,
    "state_changed_at": FieldKind.INSTANT,
    "fields": Collection(
        {"name": FieldKind.TEXT, "type": FieldKind.TEXT, "array": FieldKind.BOOLEAN, "optional": FieldKind.BOOLEAN}
    ),
}


class SchemaStore(RevisionStore[SchemaEntry, SchemaRevision]):
    """The result schemas of a tenant. The fields of their newest revisions have rows of their own, to search by."""

    def __init__(self) -> None:
        super().__init__(
            "schema",
            gts_schemas,
            gts_schema_versions,
            FIELDS,
            selective=("id", "name", "fields"),
            reserves_name=_s.state != LifecycleState.ARCHIVED.value,
            large_columns={"fields": []},
        )
        self._find_for_share = self._find.with_for_update(read=True)
        # Building statements takes longer than running them, so filters of one shape share them.
        self._prepare_cached = lru_cache(256)(self.prepare_search)

    def insert(self, tx: CatalogTransaction, entry: SchemaEntry) -> None:
        super().insert(tx, entry)
        _insert_fields(tx, entry)

    def find_for_share(self, tx: CatalogTransaction, id: UUID) -> SchemaEntry:
        """Return a result schema and lock it against deletion until the transaction ends."""
        return self._select_one(tx, self._find_for_share, id)

    def replace(
        self,
        tx: CatalogTransaction,
        before: SchemaEntry,
        after: SchemaEntry,
        action: str = "update",
        reason: str | None = None,
    ) -> None:
        """Replace the revision that was read by the next one. The caller has locked it with `find_for_update`.

        Raises:
            Conflict: the schema is to be archived, and a query refers to it
        """
        if after.draft.state is LifecycleState.ARCHIVED and before.draft.state is not LifecycleState.ARCHIVED:
            _assert_unreferenced(tx, before.id)
        super().replace(tx, before, after, action, reason)
        if after.draft.fields != before.draft.fields:
            tx.execute(_DELETE_FIELDS, schema=before.id)
            _insert_fields(tx, after)

    def remove(self, tx: CatalogTransaction, entry: SchemaEntry) -> None:
        """Delete a result schema. The caller has locked it with `find_for_update`.

        Raises:
            Conflict: a query refers to it
        """
        _assert_unreferenced(tx, entry.id)
        super().remove(tx, entry)
        tx.execute(_DELETE_FIELDS, schema=entry.id)

    def undelete(self, tx: CatalogTransaction, before: SchemaEntry, after: SchemaEntry) -> None:
        super().undelete(tx, before, after)
        _insert_fields(tx, after)

    def search(
        self, tx: CatalogTransaction, options: QueryOptions, built_in: Sequence[SchemaEntry] = ()
    ) -> SearchPage[SchemaEntry]:
        """Return a page of the tenant's result schemas and the matching built-in entries, in one order."""
        added = [(key, entry) for entry in built_in for key in self._built_in_keys(tx, entry, options)]
        condition, values = options.filter, dict[str, Any]()
        if condition is not None:
            condition, values = odata_sql.parameterize(condition, self._columns)
        prepare = self._prepare_cached if odata_sql.is_small(condition) else self.prepare_search
        nulls, omitted = search_statements.null_positions(options), self._omitted_columns(options)
        search = prepare(condition, options.orderby, options.search, nulls, omitted)
        from_row = self.from_row if omitted else self._cached_from_row
        page = search_statements.search_page(tx, search, options, from_row, added, **values)
        if page.count is None or not built_in:
            return page
        whole = dataclasses.replace(options, after=None)
        matches = sum(len(self._built_in_keys(tx, entry, whole)) for entry in built_in)
        return dataclasses.replace(page, count=page.count + matches)

    def content(self, entry: SchemaEntry) -> dict[str, Any]:
        draft = entry.draft
        return {
            "name": draft.name,
            "description": draft.description,
            "fields": [field.as_json() for field in draft.fields],
            "metadata": draft.metadata,
            "state": draft.state.value,
        }

    def find(self, tx: CatalogTransaction, id: UUID) -> SchemaEntry:
        return self._select_one(tx, self._find, id, self._cached_from_row)

    def _cached_from_row(self, row: Row[Any]) -> SchemaEntry:
        """Return the entry of a complete row. A revision is parsed once, while the cache has it."""
        key = (row.id, row.version, row.updated_at)
        entry = _entries.get(key)
        if entry is None:
            entry = self.from_row(row)
            draft = entry.draft
            texts = 2 * len(draft.description or "") + 4 * len(repr(draft.metadata))
            _entries.put(key, entry, len(draft.fields) * _FIELD_BYTES + texts)
        return entry

    def from_row(self, row: Row[Any]) -> SchemaEntry:
        return SchemaEntry(
            row.id,
            row.tenant_id,
            _draft(row, row.type_id),
            row.version,
            row.state_changed_at,
            row.created_at,
            row.created_by,
            row.updated_at,
            row.updated_by,
        )

    def revision_from_row(self, row: Row[Any]) -> SchemaRevision:
        return SchemaRevision(
            row.version,
            _draft(row, gts.QUERY_RETURNS),
            row.change,
            row.reason,
            row.changed_at,
            row.changed_by,
            row.author,
        )

    def _fixed_values(self, entry: SchemaEntry) -> dict[str, Any]:
        return {**super()._fixed_values(entry), "type_id": entry.draft.type_id}

    def _search_columns(self, table: FromClause) -> Columns:
        fields = {name: _f[name] for name in ("name", "type", "array", "optional")}
        children = Children(gts_schema_fields, table.c.id, _f.schema_id, fields)
        return {**super()._search_columns(table), "fields": children}

    def _has_reserved_name(self, entry: SchemaEntry) -> bool:
        return entry.draft.state is not LifecycleState.ARCHIVED

    def _built_in_keys(
        self, tx: CatalogTransaction, entry: SchemaEntry, options: QueryOptions
    ) -> list[tuple[Any, ...]]:
        """Return the sort key of an entry that is in no table, if it matches the filter and comes after the position."""
        values = {**self._fixed_values(entry), **self._values(entry)}
        row = select(*(literal(value, _s[name].type).label(name) for name, value in values.items())).subquery()
        texts = list(folded_texts(row).values())
        columns = self._search_columns(row)
        keys = self._sort_keys(row, columns, options.orderby, few=False)
        fits = odata_sql.conditions(options.filter, options.search, columns, texts)
        statement = select(*(key.value for key in keys)).where(*fits)
        if (nulls := search_statements.null_positions(options)) is not None:
            statement = statement.where(search_statements.follows(keys, nulls))
        return [tuple(match) for match in tx.all(statement, **search_statements.position_values(keys, options.after))]


schema_store = SchemaStore()


def list_references(tx: CatalogTransaction, schema: UUID, limit: int = 200) -> list[dict[str, Any]]:
    """Return the queries that refer to a result schema."""
    return [
        {"id": str(row.id), "name": row.name, "state": row.state, "version": row.version}
        for row in tx.all(_REFERENCES, schema=schema, limit=limit)
    ]


def count_references(tx: CatalogTransaction, schema: UUID) -> int:
    """Count the queries that refer to a result schema."""
    row = tx.first(_REFERENCE_COUNT, schema=schema)
    return row[0] if row else 0


def list_deprecated(tx: CatalogTransaction) -> list[SchemaEntry]:
    """Return the deprecated schemas, the longest deprecated first."""
    return [schema_store.from_row(row) for row in tx.all(_DEPRECATED)]


def _assert_unreferenced(tx: CatalogTransaction, schema: UUID) -> None:
    if count := count_references(tx, schema):
        row = tx.first(_UNARCHIVED_REFERENCE_COUNT, schema=schema)
        if not (row and row[0]):
            raise Conflict("schema_referenced_by_archived_queries", query_count=count)
        raise Conflict("schema_in_use", {"count": count}, query_count=count)


def _insert_fields(tx: CatalogTransaction, entry: SchemaEntry) -> None:
    tx.insert_many(
        _INSERT_FIELD,
        [
            {
                "schema_id": entry.id,
                "position": i,
                "name": field.name,
                "type": field.type.value,
                "array": field.array,
                "optional": field.optional,
            }
            for i, field in enumerate(entry.draft.fields)
        ],
    )


def _draft(row: Row[Any], type_id: str) -> SchemaDraft:
    return SchemaDraft(
        row.name,
        row.description,
        fields_from_json(row.fields),
        row._mapping["metadata"],
        type_id,
        LifecycleState(row.state),
    )
