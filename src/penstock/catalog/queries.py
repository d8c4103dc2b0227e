"""Keep registered queries. One refers to a schema, which cannot be deleted for as long."""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, bindparam, select, update

from penstock.catalog import schemas
from penstock.catalog.access import Tx, mine
from penstock.catalog.tables import gts_queries
from penstock.core.lifecycle import may_be_referenced
from penstock.core.query import Query
from penstock.core.registry import name_key
from penstock.errors import AlreadyExists, NotFound, Unsupported

_q = gts_queries.c
_this = (mine(gts_queries), _q.deleted_at.is_(None), _q.id == bindparam("query"))
_FIND = select(gts_queries).where(*_this)
_DELETE = update(gts_queries).where(*_this).values(deleted_at=bindparam("now"))


def insert(tx: Tx, query: Query) -> None:
    """Register a query. Its schema must be one that new queries may use, and stays until this is decided."""
    schema = schemas.share(tx, query.returns_schema_id)
    if not may_be_referenced(schema.draft.state):
        raise Unsupported(
            "schema_not_active",
            f"the schema is {schema.draft.state.value}; a new query may only refer to an ACTIVE one",
            schema_id=str(schema.id),
            state=schema.draft.state.value,
        )
    free = tx.add_if_free(
        gts_queries,
        id=query.id,
        name=query.name,
        name_key=name_key(query.name),
        description=query.description,
        sql=query.sql,
        parameters=list(query.parameters),
        returns_schema_id=query.returns_schema_id,
        created_at=query.created_at,
        created_by=query.created_by,
        updated_at=query.updated_at,
        updated_by=query.updated_by,
        version=query.version,
    )
    if not free:
        raise AlreadyExists("query_name_taken", f"there is a query named {query.name!r} already", name=query.name)
    tx.audit("query.create", {"query_id": query.id, "version": query.version})


def find(tx: Tx, query: UUID) -> Query:
    if row := tx.first(_FIND, query=query):
        return _query(row)
    raise NotFound("query_not_found", "there is no such query, or none that you may see", query_id=str(query))


def remove(tx: Tx, query: UUID) -> None:
    found = find(tx, query)
    tx.run(_DELETE, query=query, now=tx.now)
    tx.audit("query.delete", {"query_id": query, "version": found.version})


def _query(row: Row[Any]) -> Query:
    return Query(
        row.id,
        row.name,
        row.description,
        row.sql,
        tuple(row.parameters),
        row.returns_schema_id,
        row.version,
        row.created_at,
        row.created_by,
        row.updated_at,
        row.updated_by,
    )
