"""Keep registered queries, and every version of each. One refers to a schema, which cannot be deleted for as long."""

from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Row, bindparam, select, update
from sqlalchemy.exc import IntegrityError

from penstock.catalog import result_schemas as schemas
from penstock.catalog import odata_sql as searches
from penstock.catalog.database import Tx, add, mine
from penstock.catalog.odata_sql import Cased, Columns, Page
from penstock.catalog.tables import gts_queries, gts_query_versions
from penstock.core.result_schema import FieldType
from penstock.core.registry.lifecycle import State, may_be_referenced
from penstock.core.odata import Fields, Kind, Options
from penstock.core.registry.query_parameters import Parameter
from penstock.core.registry.query import Draft, Query, Reference, Revision
from penstock.core.registry.schema_entry import name_key
from penstock.errors import AlreadyExists, Conflict, NotFound, Unsupported

_q, _v = gts_queries.c, gts_query_versions.c
_there = (mine(gts_queries), _q.deleted_at.is_(None))
_this = (*_there, _q.id == bindparam("query"))
_ALL = select(gts_queries).where(*_there)
_FIND = select(gts_queries).where(*_this)
_HOLD = _FIND.with_for_update()
_NAMED = _ALL.where(_q.name_key == bindparam("key"))
_REPLACE = (
    update(gts_queries)
    .where(*_this, _q.version == bindparam("before"))
    .values({name: bindparam(f"new_{name}") for name in (
        "name", "name_lower", "name_upper", "name_key", "description", "description_lower", "description_upper",
        "sql", "parameters", "reads", "returns_schema_id", "state", "state_changed_at",
        "updated_at", "updated_by", "version",
    )})
)  # fmt: skip
_DELETE = update(gts_queries).where(*_this).values(deleted_at=bindparam("now"))
_ADD_VERSION = add(gts_query_versions)
_VERSIONS = (
    select(gts_query_versions)
    .where(mine(gts_query_versions), _v.query_id == bindparam("query"))
    .order_by(_v.version.desc())
)
_PAGE = _VERSIONS.where(_v.version < bindparam("before")).limit(bindparam("limit"))
_VERSION = _VERSIONS.where(_v.version == bindparam("version"))

FIELDS: Fields = {
    "id": Kind.GUID,
    "name": Kind.TEXT,
    "description": Kind.TEXT,
    "state": Kind.TEXT,
    "returns_schema_id": Kind.GUID,
    "version": Kind.INTEGER,
    "created_at": Kind.INSTANT,
    "created_by": Kind.GUID,
    "updated_at": Kind.INSTANT,
    "updated_by": Kind.GUID,
}
_TEXTS = {
    "name": Cased(_q.name, _q.name_lower, _q.name_upper),
    "description": Cased(_q.description, _q.description_lower, _q.description_upper),
}
_COLUMNS: Columns = {**{name: _q[name] for name in FIELDS}, **_TEXTS}


def new_id() -> UUID:
    return uuid4()


def insert(tx: Tx, query: Query) -> None:
    """Register a query. Its schema must be one that new queries may use, and stays until this is decided."""
    _refer(tx, query.draft.returns_schema_id)
    values = {"id": query.id, "created_at": query.created_at, "created_by": query.created_by, **_written(query)}
    if not tx.add_if_free(gts_queries, **values):
        raise _name_taken(query)
    _keep(tx, query, "create", None)


def find(tx: Tx, query: UUID) -> Query:
    return _one(tx, _FIND, query)


def named(tx: Tx, name: str) -> Query:
    """The query of this name; outer blanks and case do not count."""
    if row := tx.first(_NAMED, key=name_key(name)):
        return _query(row)
    raise not_found(name)


def hold(tx: Tx, query: UUID) -> Query:
    """The query, which nobody else changes until the transaction ends."""
    return _one(tx, _HOLD, query)


def replace(tx: Tx, before: Query, after: Query, what: str = "update", reason: str | None = None) -> None:
    """Put the next version in place of the one that was read. Another schema must be one that new queries may use."""
    if after.draft.returns_schema_id != before.draft.returns_schema_id:
        _refer(tx, after.draft.returns_schema_id)
    other = tx.first(_NAMED, key=name_key(after.draft.name))
    if other and other.id != before.id:
        raise _name_taken(after)
    try:
        values = {f"new_{name}": value for name, value in _written(after).items()}
        done = tx.run(_REPLACE, query=before.id, before=before.version, **values)
    except IntegrityError:  # somebody took the name at this very moment
        raise _name_taken(after) from None
    if done != 1:
        raise was_changed(find(tx, before.id))
    _keep(tx, after, what, reason)


def remove(tx: Tx, query: Query) -> None:
    """Take a query out of sight; its versions stay. To be done to a query that is held."""
    tx.run(_DELETE, query=query.id, now=tx.now)
    tx.audit("query.delete", {"query_id": query.id, "version": query.version})


def versions(tx: Tx, query: UUID, *, before: int, limit: int) -> list[Revision]:
    return [_revision(row) for row in tx.all(_PAGE, query=query, before=before, limit=limit)]


def version(tx: Tx, query: UUID, number: int) -> Revision:
    if row := tx.first(_VERSION, query=query, version=number):
        return _revision(row)
    raise NotFound("version_not_found", f"the query has no version {number}", query_id=str(query), version=number)


def search(tx: Tx, options: Options) -> Page[Query]:
    """The tenant's queries; the newest first unless another order is asked for."""
    wanted = _ALL.where(*searches.conditions(options.filter, options.search, _COLUMNS, list(_TEXTS.values())))
    by = searches.order(options.orderby, _COLUMNS, [_q.id]) if options.orderby else _newest_first(options)
    return searches.page(tx, wanted.order_by(*by), options, _query)


def was_changed(now: Query) -> Conflict:
    return Conflict(
        "query_changed",
        f"the query is at version {now.version} by now; read it again and repeat the change",
        query_id=str(now.id),
        current_version=now.version,
    )


def not_found(query: UUID | str) -> NotFound:
    return NotFound("query_not_found", "there is no such query, or none that you may see", query_id=str(query))


def _newest_first(options: Options) -> list[Any]:
    few = searches.finds_few(options.filter, ["id", "name", "returns_schema_id"])
    return searches.newest_first(_q.created_at, _q.id, few=few)


def _refer(tx: Tx, schema: UUID) -> None:
    state = schemas.share(tx, schema).draft.state
    if not may_be_referenced(state):
        raise Unsupported(
            "schema_not_active",
            f"the schema is {state.value}; a new query may only refer to an ACTIVE one",
            schema_id=str(schema),
            state=state.value,
        )


def _name_taken(query: Query) -> AlreadyExists:
    name = query.draft.name
    return AlreadyExists("query_name_taken", f"there is a query named {name.strip()!r} already", name=name)


def _one(tx: Tx, statement: Any, query: UUID) -> Query:
    if row := tx.first(statement, query=query):
        return _query(row)
    raise not_found(query)


def _keep(tx: Tx, query: Query, what: str, reason: str | None) -> None:
    tx.run(
        _ADD_VERSION,
        query_id=query.id,
        version=query.version,
        **_said(query),
        change=what,
        reason=reason,
        changed_at=query.updated_at,
        changed_by=query.updated_by,
        author=tx.caller.name[:320],
    )
    tx.audit(f"query.{what}", {"query_id": query.id, "version": query.version, "reason": reason})


def _said(query: Query) -> dict[str, Any]:
    """What every version has of its own."""
    draft = query.draft
    return {
        "name": draft.name,
        "description": draft.description,
        "sql": draft.sql,
        "parameters": [parameter.as_json() for parameter in draft.parameters],
        "reads": [each.as_json() for each in query.datasets],
        "returns_schema_id": draft.returns_schema_id,
        "state": draft.state.value,
    }


def _written(query: Query) -> dict[str, Any]:
    name, text = query.draft.name, query.draft.description
    return {
        **_said(query),
        "name_lower": name.lower(),
        "name_upper": name.upper(),
        "name_key": name_key(name),
        "description_lower": text and text.lower(),
        "description_upper": text and text.upper(),
        "state_changed_at": query.state_changed_at,
        "updated_at": query.updated_at,
        "updated_by": query.updated_by,
        "version": query.version,
    }


def _draft(row: Row[Any]) -> Draft:
    parameters = tuple(
        Parameter(each["name"], FieldType(each["type"]), each.get("required", True), each.get("default"))
        for each in row.parameters
    )
    return Draft(row.name, row.description, row.sql, parameters, row.returns_schema_id, State(row.state))


def _datasets(row: Row[Any]) -> tuple[Reference, ...]:
    return tuple(Reference(each["schema_name"], each["table_name"], each.get("version")) for each in row.reads)


def _query(row: Row[Any]) -> Query:
    return Query(
        row.id,
        _draft(row),
        _datasets(row),
        row.version,
        row.state_changed_at,
        row.created_at,
        row.created_by,
        row.updated_at,
        row.updated_by,
    )


def _revision(row: Row[Any]) -> Revision:
    return Revision(
        row.version,
        _draft(row),
        row.change,
        row.reason,
        row.changed_at,
        row.changed_by,
        row.author,
        _datasets(row),
    )
