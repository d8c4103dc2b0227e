"""Keep the schemas of what queries return: the newest version of each, and every one before it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import FromClause, Row, Select, bindparam, delete, func, literal, select, update
from sqlalchemy.exc import IntegrityError

from penstock.catalog import odata_sql as searches
from penstock.catalog.database import Tx, add, mine
from penstock.catalog.odata_sql import Cased, Children, Columns, Page
from penstock.catalog.tables import gts_queries, gts_schema_fields, gts_schema_versions, gts_schemas
from penstock.core.registry import gts
from penstock.core.result_schema import Field, stored
from penstock.core.registry.lifecycle import State
from penstock.core.odata import Collection, Fields, Kind, Node, Options, Order
from penstock.core.registry.schema_entry import Draft, Entry, Revision, name_key
from penstock.errors import AlreadyExists, Conflict, NotFound

_s, _v, _f, _q = gts_schemas.c, gts_schema_versions.c, gts_schema_fields.c, gts_queries.c

_there = (mine(gts_schemas), _s.deleted_at.is_(None))
_this = (*_there, _s.id == bindparam("schema"))
_FIND = select(gts_schemas).where(*_this)
_HOLD = _FIND.with_for_update()
_SHARE = _FIND.with_for_update(read=True)
_NAMED = select(_s.id).where(
    *_there, _s.name_key == bindparam("key"), _s.id != bindparam("schema"), _s.state != State.ARCHIVED.value
)
_CHANGE = (
    update(gts_schemas)
    .where(*_this, _s.version == bindparam("before"))
    .values({name: bindparam(f"new_{name}") for name in (
        "name", "name_lower", "name_upper", "name_key", "description", "description_lower", "description_upper",
        "fields", "metadata", "state", "state_changed_at", "updated_at", "updated_by", "version",
    )})
)  # fmt: skip
_DELETE = update(gts_schemas).where(*_this).values(deleted_at=bindparam("now"))
_ADD_FIELD = add(gts_schema_fields)
_DROP_FIELDS = delete(gts_schema_fields).where(mine(gts_schema_fields), _f.schema_id == bindparam("schema"))
_ADD_VERSION = add(gts_schema_versions)
_VERSIONS = (
    select(gts_schema_versions)
    .where(mine(gts_schema_versions), _v.schema_id == bindparam("schema"))
    .order_by(_v.version.desc())
)
_PAGE = _VERSIONS.where(_v.version < bindparam("before")).limit(bindparam("limit"))
_VERSION = _VERSIONS.where(_v.version == bindparam("version"))
_REFERENCES = (
    select(_q.id, _q.name, _q.state, _q.version)
    .where(mine(gts_queries), _q.returns_schema_id == bindparam("schema"), _q.deleted_at.is_(None))
    .order_by(_q.name_key, _q.id)
    .limit(bindparam("limit"))
)
_REFERENCE_COUNT = (
    select(func.count())
    .select_from(gts_queries)
    .where(mine(gts_queries), _q.returns_schema_id == bindparam("schema"), _q.deleted_at.is_(None))
)
_DEPRECATED = (
    select(gts_schemas).where(*_there, _s.state == State.DEPRECATED.value).order_by(_s.state_changed_at, _s.id)
)

FIELDS: Fields = {
    "id": Kind.GUID,
    "type_id": Kind.TEXT,
    "name": Kind.TEXT,
    "description": Kind.TEXT,
    "state": Kind.TEXT,
    "version": Kind.INTEGER,
    "created_at": Kind.INSTANT,
    "created_by": Kind.GUID,
    "updated_at": Kind.INSTANT,
    "updated_by": Kind.GUID,
    "state_changed_at": Kind.INSTANT,
    "fields": Collection({"name": Kind.TEXT, "type": Kind.TEXT, "array": Kind.BOOLEAN, "optional": Kind.BOOLEAN}),
}


def _columns(table: FromClause) -> Columns:
    """What the searchable fields are in a table that has these columns."""
    c = table.c
    plain = {name: c[name] for name, kind in FIELDS.items() if isinstance(kind, Kind)}
    fields = {name: _f[name] for name in ("name", "type", "array", "optional")}
    return {**plain, **_texts(table), "fields": Children(gts_schema_fields, c.id, _f.schema_id, fields)}


def _texts(table: FromClause) -> dict[str, Cased]:
    c = table.c
    return {
        "name": Cased(c.name, c.name_lower, c.name_upper),
        "description": Cased(c.description, c.description_lower, c.description_upper),
    }


def new_id() -> UUID:
    return uuid4()


def insert(tx: Tx, entry: Entry) -> None:
    free = tx.add_if_free(
        gts_schemas,
        id=entry.id,
        type_id=entry.draft.type_id,
        created_at=entry.created_at,
        created_by=entry.created_by,
        **_written(entry),
    )
    if not free:
        raise _name_taken(entry.draft.name)
    _keep(tx, entry, "create", None)


def find(tx: Tx, schema: UUID) -> Entry:
    return _entry(_one(tx, _FIND, schema))


def hold(tx: Tx, schema: UUID) -> Entry:
    """The schema, which nobody else changes until the transaction ends."""
    return _entry(_one(tx, _HOLD, schema))


def share(tx: Tx, schema: UUID) -> Entry:
    """The schema, which nobody deletes until the transaction ends."""
    return _entry(_one(tx, _SHARE, schema))


def change(tx: Tx, before: Entry, after: Entry, what: str, reason: str | None = None) -> None:
    """Put the next version in place of the one that was read."""
    if tx.first(_NAMED, key=name_key(after.draft.name), schema=before.id) and after.draft.state is not State.ARCHIVED:
        raise _name_taken(after.draft.name)
    try:
        values = {f"new_{name}": value for name, value in _written(after).items()}
        done = tx.run(_CHANGE, schema=before.id, before=before.version, **values)
    except IntegrityError:  # somebody took the name at this very moment
        raise _name_taken(after.draft.name) from None
    if done != 1:
        raise was_changed(find(tx, before.id))
    tx.run(_DROP_FIELDS, schema=before.id)
    _keep(tx, after, what, reason)


def remove(tx: Tx, schema: UUID) -> None:
    """Take a schema out of sight, unless a query refers to it. To be done to a schema that is held."""
    if count := reference_count(tx, schema):
        raise Conflict(
            "schema_in_use",
            f"{count} quer{'y refers' if count == 1 else 'ies refer'} to the schema; change or delete {'it' if count == 1 else 'them'} first",
            query_count=count,
        )
    tx.run(_DELETE, schema=schema, now=tx.now)
    tx.run(_DROP_FIELDS, schema=schema)


def references(tx: Tx, schema: UUID, limit: int = 200) -> list[dict[str, Any]]:
    return [
        {"id": str(row.id), "name": row.name, "state": row.state, "version": row.version}
        for row in tx.all(_REFERENCES, schema=schema, limit=limit)
    ]


def reference_count(tx: Tx, schema: UUID) -> int:
    row = tx.first(_REFERENCE_COUNT, schema=schema)
    return row[0] if row else 0


def versions(tx: Tx, schema: UUID, *, before: int, limit: int) -> list[Revision]:
    return [_revision(row) for row in tx.all(_PAGE, schema=schema, before=before, limit=limit)]


def version(tx: Tx, schema: UUID, number: int) -> Revision:
    if row := tx.first(_VERSION, schema=schema, version=number):
        return _revision(row)
    raise NotFound("version_not_found", f"the schema has no version {number}", schema_id=str(schema), version=number)


def deprecated(tx: Tx) -> list[Entry]:
    """Those that have been so the longest come first."""
    return [_entry(row) for row in tx.all(_DEPRECATED)]


def search(tx: Tx, options: Options, built_in: Sequence[Entry] = ()) -> Page[Entry]:
    """Those of the tenant's schemas, and of the built-in entries, that fit. The built-in ones come first."""
    types = [entry for entry in built_in if _fits(tx, entry, options)]
    first = types[options.skip : options.skip + options.top]
    rest = replace(options, skip=max(options.skip - len(types), 0), top=options.top - len(first))
    condition, values = (None, {}) if options.filter is None else searches.slotted(options.filter)
    build = _wanted if searches.is_small(condition) else _wanted.__wrapped__
    own = searches.page(tx, build(condition, options.orderby, options.search), rest, _entry, **values)
    return Page([*first, *own.items], own.more, None if own.count is None else own.count + len(types))


_ALL = select(gts_schemas).where(*_there)
_NEWEST = {few: _ALL.order_by(*searches.newest_first(_s.created_at, _s.id, few=few)) for few in (False, True)}
_COLUMNS, _TEXTS = _columns(gts_schemas), list(_texts(gts_schemas).values())
_SELECTIVE = ("id", "name", "fields")


@lru_cache(256)
def _wanted(condition: Node | None, orderby: tuple[Order, ...], words: tuple[str, ...]) -> Select[Any]:
    """The statement for filters of one shape: to build it takes longer than to run it."""
    if orderby:
        wanted = _ALL.order_by(*searches.order(orderby, _COLUMNS, [_s.id]))
    else:
        wanted = _NEWEST[searches.finds_few(condition, _SELECTIVE)]
    return wanted.where(*searches.conditions(condition, words, _COLUMNS, _TEXTS))


def _fits(tx: Tx, entry: Entry, options: Options) -> bool:
    """Is the condition true of an entry that is in no table?"""
    values = {"id": entry.id, "type_id": entry.draft.type_id, "version": entry.version, **_written(entry)}
    values |= {"created_at": entry.created_at, "created_by": entry.created_by}
    kinds = {name: _s[name].type for name in values}
    row = select(*(literal(value, kinds[name]).label(name) for name, value in values.items())).subquery()
    fits = searches.conditions(options.filter, options.search, _columns(row), list(_texts(row).values()))
    return bool(tx.all(select(row.c.id).where(*fits)))


def was_changed(now: Entry) -> Conflict:
    return Conflict(
        "schema_changed",
        f"the schema is at version {now.version} by now; read it again and repeat the change",
        schema_id=str(now.id),
        current_version=now.version,
    )


def not_found(schema: UUID | str) -> NotFound:
    return NotFound("schema_not_found", "there is no such schema, or none that you may see", schema_id=str(schema))


def _name_taken(name: str) -> AlreadyExists:
    return AlreadyExists("schema_name_taken", f"there is a schema named {name.strip()!r} already", name=name)


def _one(tx: Tx, statement: Any, schema: UUID) -> Row[Any]:
    if row := tx.first(statement, schema=schema):
        return row
    raise not_found(schema)


def _keep(tx: Tx, entry: Entry, what: str, reason: str | None) -> None:
    draft = entry.draft
    tx.each(
        _ADD_FIELD,
        [
            {
                "schema_id": entry.id,
                "position": i,
                "name": field.name,
                "type": field.type.value,
                "array": field.array,
                "optional": field.optional,
            }
            for i, field in enumerate(draft.fields)
        ],
    )
    tx.run(
        _ADD_VERSION,
        schema_id=entry.id,
        version=entry.version,
        name=draft.name,
        description=draft.description,
        fields=_as_json(draft.fields),
        metadata=draft.metadata,
        state=draft.state.value,
        change=what,
        reason=reason,
        changed_at=entry.updated_at,
        changed_by=entry.updated_by,
        author=tx.caller.name[:320],
    )
    tx.audit(f"schema.{what}", {"schema_id": entry.id, "version": entry.version, "reason": reason})


def _written(entry: Entry) -> dict[str, Any]:
    draft, text = entry.draft, entry.draft.description
    return {
        "name": draft.name,
        "name_lower": draft.name.lower(),
        "name_upper": draft.name.upper(),
        "name_key": name_key(draft.name),
        "description": text,
        "description_lower": text and text.lower(),
        "description_upper": text and text.upper(),
        "fields": _as_json(draft.fields),
        "metadata": draft.metadata,
        "state": draft.state.value,
        "state_changed_at": entry.state_changed_at,
        "updated_at": entry.updated_at,
        "updated_by": entry.updated_by,
        "version": entry.version,
    }


def _as_json(fields: Sequence[Field]) -> list[dict[str, Any]]:
    return [field.as_json() for field in fields]


def _draft(row: Row[Any], type_id: str) -> Draft:
    return Draft(row.name, row.description, stored(row.fields), row._mapping["metadata"], type_id, State(row.state))


def _entry(row: Row[Any]) -> Entry:
    return Entry(
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


def _revision(row: Row[Any]) -> Revision:
    return Revision(
        row.version,
        _draft(row, gts.QUERY_RETURNS),
        row.change,
        row.reason,
        row.changed_at,
        row.changed_by,
        row.author,
    )
