"""Keep pipelines. Each has a name of its own among those that are there."""

from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Row, bindparam, select, update
from sqlalchemy.exc import IntegrityError

from penstock.catalog import odata_sql as searches
from penstock.catalog.database import Tx, mine
from penstock.catalog.odata_sql import Cased, Columns, Page
from penstock.catalog.tables import pipelines
from penstock.core.odata import Fields, Kind, Options
from penstock.core.pipeline.definition import Stored, read
from penstock.core.registry.schema_entry import name_key
from penstock.errors import AlreadyExists, Conflict, NotFound

_p = pipelines.c
_there = (mine(pipelines), _p.deleted_at.is_(None))
_this = (*_there, _p.id == bindparam("pipeline"))
_ALL = select(pipelines).where(*_there)
_FIND = select(pipelines).where(*_this)
_HOLD = _FIND.with_for_update()
_NAMED = select(_p.id).where(*_there, _p.name_key == bindparam("key"), _p.id != bindparam("pipeline"))
_REPLACE = (
    update(pipelines)
    .where(*_this, _p.version == bindparam("before"))
    .values({name: bindparam(f"new_{name}") for name in (
        "name", "name_lower", "name_upper", "name_key", "definition", "version", "updated_at", "updated_by",
    )})
)  # fmt: skip
_DELETE = update(pipelines).where(*_this).values(deleted_at=bindparam("now"))

FIELDS: Fields = {
    "id": Kind.GUID,
    "name": Kind.TEXT,
    "version": Kind.INTEGER,
    "created_at": Kind.INSTANT,
    "created_by": Kind.GUID,
    "updated_at": Kind.INSTANT,
    "updated_by": Kind.GUID,
}
_NAME = Cased(_p.name, _p.name_lower, _p.name_upper)
_COLUMNS: Columns = {**{name: _p[name] for name in FIELDS}, "name": _NAME}


def new_id() -> UUID:
    return uuid4()


def insert(tx: Tx, stored: Stored) -> None:
    values = {"id": stored.id, "created_at": stored.created_at, "created_by": stored.created_by, **_written(stored)}
    if not tx.add_if_free(pipelines, **values):
        raise _name_taken(stored)
    _audit(tx, "create", stored)


def find(tx: Tx, pipeline: UUID) -> Stored:
    return _one(tx, _FIND, pipeline)


def hold(tx: Tx, pipeline: UUID) -> Stored:
    """The pipeline, which nobody else changes until the transaction ends."""
    return _one(tx, _HOLD, pipeline)


def replace(tx: Tx, before: Stored, after: Stored) -> None:
    """Put the next version in place of the one that was read."""
    if tx.first(_NAMED, key=name_key(after.pipeline.name), pipeline=before.id):
        raise _name_taken(after)
    try:
        values = {f"new_{name}": value for name, value in _written(after).items()}
        done = tx.run(_REPLACE, pipeline=before.id, before=before.version, **values)
    except IntegrityError:  # somebody took the name at this very moment
        raise _name_taken(after) from None
    if done != 1:
        raise was_changed(find(tx, before.id))
    _audit(tx, "update", after)


def remove(tx: Tx, stored: Stored) -> None:
    """Take a pipeline out of sight; its runs stay. To be done to a pipeline that is held."""
    tx.run(_DELETE, pipeline=stored.id, now=tx.now)
    _audit(tx, "delete", stored)


def search(tx: Tx, options: Options) -> Page[Stored]:
    """The tenant's pipelines; the newest first unless another order is asked for."""
    wanted = _ALL.where(*searches.conditions(options.filter, options.search, _COLUMNS, [_NAME]))
    by = searches.order(options.orderby, _COLUMNS, [_p.id]) if options.orderby else _newest_first(options)
    return searches.page(tx, wanted.order_by(*by), options, _stored)


def was_changed(now: Stored) -> Conflict:
    return Conflict(
        "pipeline_changed",
        f"the pipeline is at version {now.version} by now; read it again and repeat the change",
        pipeline_id=str(now.id),
        current_version=now.version,
    )


def _newest_first(options: Options) -> list[Any]:
    return searches.newest_first(_p.created_at, _p.id, few=searches.finds_few(options.filter, ["id"]))


def _name_taken(stored: Stored) -> AlreadyExists:
    name = stored.pipeline.name
    return AlreadyExists("pipeline_name_taken", f"there is a pipeline named {name.strip()!r} already", name=name)


def _one(tx: Tx, statement: Any, pipeline: UUID) -> Stored:
    if row := tx.first(statement, pipeline=pipeline):
        return _stored(row)
    raise NotFound(
        "pipeline_not_found", "there is no such pipeline, or none that you may see", pipeline_id=str(pipeline)
    )


def _audit(tx: Tx, what: str, stored: Stored) -> None:
    tx.audit(f"pipeline.{what}", {"pipeline_id": stored.id, "version": stored.version})


def _written(stored: Stored) -> dict[str, Any]:
    name = stored.pipeline.name
    return {
        "name": name,
        "name_lower": name.lower(),
        "name_upper": name.upper(),
        "name_key": name_key(name),
        "definition": stored.pipeline.as_json(),
        "version": stored.version,
        "updated_at": stored.updated_at,
        "updated_by": stored.updated_by,
    }


def _stored(row: Row[Any]) -> Stored:
    return Stored(
        row.id,
        read(row.definition),
        row.version,
        row.created_at,
        row.created_by,
        row.updated_at,
        row.updated_by,
    )
