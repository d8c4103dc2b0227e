"""Store registered queries and all their revisions. A query refers to a result schema, which cannot be deleted
meanwhile.
"""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, bindparam, select

from penstock.catalog.database import CatalogTransaction
from penstock.catalog.result_schemas import schema_store
from penstock.catalog.tables import gts_queries, gts_query_versions
from penstock.catalog.tenant_guard import tenant_filter
from penstock.catalog.versioned_store import RevisionStore
from penstock.core.names import DatasetName
from penstock.core.odata import FieldKind, Fields
from penstock.core.registry.lifecycle import LifecycleState, can_be_referenced
from penstock.core.registry.query import QueryDatasetRef, QueryDraft, QueryRevision, RegisteredQuery
from penstock.core.registry.query_parameters import QueryParameter
from penstock.core.registry.schema_entry import name_key
from penstock.core.result_schema import FieldType
from penstock.errors import NotFound, Unsupported

_q = gts_queries.c
_READS = (
    select(_q.id, _q.name, _q.reads)
    .where(tenant_filter(gts_queries), _q.deleted_at.is_(None))
    .order_by(_q.name_key, _q.id)
)
_BY_NAME_DELETED_FIRST = (
    select(_q.id)
    .where(tenant_filter(gts_queries), _q.name_key == bindparam("key"))
    .order_by(_q.deleted_at.is_(None), _q.deleted_at.desc(), _q.id)
    .limit(1)
)

FIELDS: Fields = {
    "id": FieldKind.GUID,
    "name": FieldKind.TEXT,
    "description": FieldKind.TEXT,
    "state": FieldKind.TEXT,
    "returns_schema_id": FieldKind.GUID,
    "version": FieldKind.INTEGER,
    "created_at": FieldKind.INSTANT,
    "created_by": FieldKind.GUID,
    "updated_at": FieldKind.INSTANT,
    "updated_by": FieldKind.GUID,
}


class QueryStore(RevisionStore[RegisteredQuery, QueryRevision]):
    """The registered queries of a tenant. A deleted query's revisions stay."""

    def insert(self, tx: CatalogTransaction, entry: RegisteredQuery) -> None:
        """Store a new query. Its result schema must be ACTIVE and is locked until the transaction ends."""
        _assert_schema_active(tx, entry.draft.returns_schema_id)
        super().insert(tx, entry)

    def find_by_name(self, tx: CatalogTransaction, name: str) -> RegisteredQuery:
        """Return the query with this name. Case and surrounding blanks are ignored."""
        if row := tx.first(self._by_name, key=name_key(name)):
            return self.from_row(row)
        raise self.not_found(name)

    def replace(
        self,
        tx: CatalogTransaction,
        before: RegisteredQuery,
        after: RegisteredQuery,
        action: str = "update",
        reason: str | None = None,
    ) -> None:
        """Replace the revision that was read by the next one. A new result schema must be ACTIVE."""
        if after.draft.returns_schema_id != before.draft.returns_schema_id:
            _assert_schema_active(tx, after.draft.returns_schema_id)
        super().replace(tx, before, after, action, reason)

    def find_id_to_undelete(self, tx: CatalogTransaction, name: str) -> UUID:
        """Return the id of the query that was deleted last among those with this name, else of the live query."""
        if row := tx.first(_BY_NAME_DELETED_FIRST, key=name_key(name)):
            id: UUID = row.id
            return id
        raise self.not_found(name)

    def undelete(self, tx: CatalogTransaction, before: RegisteredQuery, after: RegisteredQuery) -> None:
        """Undelete a query. Its result schema must be neither deleted nor ARCHIVED, and is locked until the transaction ends.

        Raises:
            Unsupported: the result schema was deleted or archived
        """
        _assert_schema_live(tx, after.draft.returns_schema_id)
        super().undelete(tx, before, after)

    def content(self, entry: RegisteredQuery) -> dict[str, Any]:
        draft = entry.draft
        return {
            "name": draft.name,
            "description": draft.description,
            "sql": draft.sql,
            "parameters": [parameter.as_json() for parameter in draft.parameters],
            "reads": [dataset.as_json() for dataset in entry.datasets],
            "returns_schema_id": draft.returns_schema_id,
            "state": draft.state.value,
        }

    def from_row(self, row: Row[Any]) -> RegisteredQuery:
        return RegisteredQuery(
            row.id,
            _draft(row),
            _parse_reads(row),
            row.version,
            row.state_changed_at,
            row.created_at,
            row.created_by,
            row.updated_at,
            row.updated_by,
        )

    def revision_from_row(self, row: Row[Any]) -> QueryRevision:
        return QueryRevision(
            row.version,
            _draft(row),
            row.change,
            row.reason,
            row.changed_at,
            row.changed_by,
            row.author,
            _parse_reads(row),
        )


query_store = QueryStore(
    "query", gts_queries, gts_query_versions, FIELDS, selective=["id", "name", "returns_schema_id"]
)


def list_readers(tx: CatalogTransaction, dataset: DatasetName) -> list[tuple[UUID, str]]:
    """Return id and name of the queries that read a dataset, at any version, by name."""
    return [
        (row.id, row.name)
        for row in tx.all(_READS)
        if any(DatasetName(ref.schema, ref.table).key == dataset.key for ref in _parse_reads(row))
    ]


def _assert_schema_active(tx: CatalogTransaction, schema: UUID) -> None:
    state = schema_store.find_for_share(tx, schema).draft.state
    if not can_be_referenced(state):
        raise Unsupported(
            "schema_not_active",
            {"state": state.value},
            schema_id=str(schema),
            state=state.value,
        )


def _assert_schema_live(tx: CatalogTransaction, schema: UUID) -> None:
    try:
        state = schema_store.find_for_share(tx, schema).draft.state
    except NotFound:
        raise Unsupported("schema_not_live.deleted", schema_id=str(schema)) from None
    if state is LifecycleState.ARCHIVED:
        raise Unsupported("schema_not_live.archived", schema_id=str(schema), state=state.value)


def _draft(row: Row[Any]) -> QueryDraft:
    parameters = tuple(
        QueryParameter(each["name"], FieldType(each["type"]), each.get("required", True), each.get("default"))
        for each in row.parameters
    )
    return QueryDraft(row.name, row.description, row.sql, parameters, row.returns_schema_id, LifecycleState(row.state))


def _parse_reads(row: Row[Any]) -> tuple[QueryDatasetRef, ...]:
    return tuple(QueryDatasetRef(each["schema_name"], each["table_name"], each.get("version")) for each in row.reads)
