"""Result schemas in the registry: create, change, delete, compare, validate rows, deprecate and archive."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from penstock.catalog import result_schemas
from penstock.catalog.database import CatalogTransaction
from penstock.catalog.result_schemas import schema_store
from penstock.core import result_schema
from penstock.core.caller import Caller, Role, user_id
from penstock.core.odata import (
    Node,
    ODataAnd,
    ODataCompare,
    ODataComparison,
    ODataField,
    ODataIn,
    ODataLiteral,
    ODataOr,
    QueryOptions,
)
from penstock.core.paging import SearchPage
from penstock.core.payload.json_patch import apply_json_patch, apply_merge_patch
from penstock.core.payload.object_reader import unwrap_patch
from penstock.core.registry import gts, lifecycle, revisions, schema_entry
from penstock.core.registry.lifecycle import LifecycleState
from penstock.core.registry.schema_entry import SchemaDraft, SchemaEntry, SchemaRevision
from penstock.core.result_schema import ValidationReport
from penstock.errors import Conflict, NotFound, Unsupported
from penstock.service.registry.preconditions import VersionPrecondition, required_versions
from penstock.service.registry.versioned import LifecycleRegistry
from penstock.service.workspace import Workspace

SEARCH_FIELDS = schema_store.fields
_BUILT_IN_CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
_BUILT_IN_AUTHOR = user_id("penstock", "built-in")

BUILT_IN_SCHEMAS = (
    SchemaEntry(
        gts.parse(gts.QUERY_RETURNS).uuid,
        None,
        SchemaDraft("Query Returns Schema", "What a query returns: rows of scalar fields.", (), None, gts.BASE_TYPE),
        1,
        _BUILT_IN_CREATED_AT,
        _BUILT_IN_CREATED_AT,
        _BUILT_IN_AUTHOR,
        _BUILT_IN_CREATED_AT,
        _BUILT_IN_AUTHOR,
    ),
)  # abstract types: visible to all tenants and immutable


class _SchemaRegistry(LifecycleRegistry[SchemaEntry, SchemaRevision]):
    def find(self, tx: CatalogTransaction, key: str) -> SchemaEntry:
        return _require_matching_type(self.store.find(tx, _parse_key(key)), key)

    def lock(self, tx: CatalogTransaction, key: str) -> SchemaEntry:
        if _built_in(key):
            raise Unsupported("built_in_type")
        return _require_matching_type(self.store.find_for_update(tx, _parse_key(key)), key)

    def lock_deleted(self, tx: CatalogTransaction, key: str) -> SchemaEntry:
        if _built_in(key):
            raise Unsupported("built_in_type")
        return _require_matching_type(self.store.find_deleted_for_update(tx, _parse_key(key)), key)


_registry = _SchemaRegistry(schema_store, delete_role=Role.ADMIN, editable=lifecycle.EDITABLE)
delete, undelete = _registry.delete, _registry.undelete
list_versions, get_version = _registry.list_versions, _registry.get_version


def create(ws: Workspace, caller: Caller, payload: Any) -> SchemaEntry:
    """Create a result schema from a JSON payload."""
    caller.require(Role.DEVELOPER)
    draft = schema_entry.parse_new_schema(schema_entry.unwrap_schema(payload))
    with ws.db.write(caller) as tx:
        entry = SchemaEntry(uuid4(), caller.tenant, draft, 1, tx.now, tx.now, caller.user, tx.now, caller.user)
        schema_store.insert(tx, entry)
    return entry


def show(ws: Workspace, caller: Caller, key: str) -> SchemaEntry:
    """Return a result schema, or a built-in type, by UUID or GTS id."""
    caller.require(Role.VIEWER)
    return _built_in(key) or _registry.show(ws, caller, key)


def search(ws: Workspace, caller: Caller, options: QueryOptions) -> SearchPage[SchemaEntry]:
    """Return one page of the result schemas that match the options."""
    caller.require(Role.VIEWER)
    # Built-in types appear only if the filter selects them by type or id; they must also match the whole filter.
    types = [entry for entry in BUILT_IN_SCHEMAS if options.filter is not None and _selects(options.filter, entry)]
    with ws.db.read(caller) as tx:
        return schema_store.search(tx, options, types)


def replace_with(
    ws: Workspace, caller: Caller, key: str, payload: Any, expected: VersionPrecondition | None, *, force: bool = False
) -> SchemaEntry:
    """Replace name, description, fields and metadata.

    Args:
        ws: the workspace
        caller: the caller
        key: UUID or GTS id of the schema
        payload: the new state; its `version` is a precondition
        expected: precondition of If-Match
        force: apply a change that breaks referencing queries (admin only)
    """
    _assert_editor(caller, force=force)
    entity = schema_entry.unwrap_schema(payload)
    return _change(
        ws,
        caller,
        key,
        required_versions(expected, entity),
        lambda entry: schema_entry.parse_schema_update(entry, entity),
        force=force,
    )


def patch(
    ws: Workspace,
    caller: Caller,
    key: str,
    changes: Any,
    expected: VersionPrecondition | None,
    *,
    is_json_patch: bool,
    force: bool = False,
) -> SchemaEntry:
    """Change some members with a JSON Merge Patch or a JSON Patch; see `replace_with` for the other arguments."""
    _assert_editor(caller, force=force)
    if is_json_patch:
        changes = unwrap_patch(changes)
    else:
        changes = schema_entry.unwrap_schema(changes)
        schema_entry.assert_patchable(changes)
    preconditions = required_versions(expected, _tested_version(changes) if is_json_patch else changes)

    def apply_patch(entry: SchemaEntry) -> SchemaDraft:
        current = entry.as_json()
        after = (
            apply_json_patch(current, changes)
            if is_json_patch
            else apply_merge_patch(current, {**changes, "version": entry.version})
        )
        return schema_entry.parse_schema_update(entry, schema_entry.unwrap_schema(after))

    return _change(ws, caller, key, preconditions, apply_patch, force=force)


def change_state(
    ws: Workspace, caller: Caller, key: str, payload: Any, expected: VersionPrecondition | None
) -> SchemaEntry:
    """Change the lifecycle state of a schema with `{"to", "version", "reason"?}`.

    Raises:
        Conflict: the schema has another version, or is to be archived while a query refers to it
    """
    state_name = payload.get("to") if isinstance(payload, dict) else None
    to = next((state for state in LifecycleState if state.value == state_name), None)
    caller.require(lifecycle.min_role(to) if to else Role.DEVELOPER)
    to, reason = lifecycle.parse_transition(payload)
    return _registry.change_state(ws, caller, key, to, reason, required_versions(expected, payload))


def diff(ws: Workspace, caller: Caller, key: str, first: int, second: int) -> dict[str, Any]:
    """Compare two revisions of a schema."""
    with _registry.reading(ws, caller, key) as (tx, entry):
        old, new = (schema_store.version(tx, entry.id, number).draft for number in (first, second))
    return _difference(old, new) | {"from": first, "to": second}


def check_compatibility(ws: Workspace, caller: Caller, key: str, payload: Any) -> dict[str, Any]:
    """Report the effect of a change on referencing queries without applying it."""
    entity = schema_entry.unwrap_schema(payload)
    with _registry.reading(ws, caller, key) as (tx, entry):
        query_count = result_schemas.count_references(tx, entry.id)
    after = schema_entry.parse_schema_update(entry, {"name": entry.draft.name, **entity})
    difference = _difference(entry.draft, after)
    try:
        _registry.changed_members(entry, after)
        accepted = not (difference["breaking"] and query_count)
    except Unsupported:
        accepted = False
    return difference | {"query_count": query_count, "accepted": accepted}


def list_references(ws: Workspace, caller: Caller, key: str) -> dict[str, Any]:
    """Return the queries that reference a schema."""
    with _registry.reading(ws, caller, key) as (tx, entry):
        return {
            "query_count": result_schemas.count_references(tx, entry.id),
            "queries": result_schemas.list_references(tx, entry.id),
        }


def validate(ws: Workspace, caller: Caller, key: str, rows: Any, *, strict: bool = False) -> ValidationReport:
    """Validate rows against a schema."""
    return result_schema.check_rows(show(ws, caller, key).draft.fields, rows, strict=strict)


def export_json_schema(ws: Workspace, caller: Caller, key: str) -> dict[str, Any]:
    """Return a schema as a JSON Schema document of one row."""
    draft = show(ws, caller, key).draft
    return result_schema.json_schema(draft.name, draft.description, draft.fields)


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """Result of the archive job for one tenant."""

    archived: tuple[SchemaEntry, ...] = ()
    referenced: tuple[tuple[SchemaEntry, int], ...] = ()  # due, with the number of queries that still reference them


def archive_deprecated(ws: Workspace, caller: Caller, *, days: int, now: datetime | None = None) -> ArchiveReport:
    """Archive schemas that were deprecated at least `days` ago, unless a query still references them."""
    caller.require(Role.ADMIN)
    now = now or ws.db.clock()
    archived, referenced = [], []
    with ws.db.read(caller) as tx:
        found = result_schemas.list_deprecated(tx)
    for entry in found:
        if not lifecycle.is_archive_due(entry.state_changed_at, now, days):
            continue
        with suppress(NotFound), ws.db.write(caller) as tx:  # one transaction each: short locks
            current = schema_store.find_for_update(tx, entry.id)
            if (
                current.draft.state is not LifecycleState.DEPRECATED
                or current.state_changed_at != entry.state_changed_at
            ):
                continue
            if count := result_schemas.count_references(tx, entry.id):
                referenced.append((current, count))
                continue
            reason = f"deprecated for {days} days"
            archived.append(_registry.set_state(tx, current, LifecycleState.ARCHIVED, "archive", reason, now))
    return ArchiveReport(tuple(archived), tuple(referenced))


def archive_caller(tenant: UUID) -> Caller:
    """Return the system caller of the archive job."""
    return Caller(tenant, user_id("penstock", "archive"), "the archive job", Role.ADMIN)


def sunset_at(entry: SchemaEntry, days: int) -> datetime:
    """Return the time when a deprecated schema will be archived."""
    return entry.state_changed_at + timedelta(days=days)


def _change(
    ws: Workspace,
    caller: Caller,
    key: str,
    preconditions: Sequence[VersionPrecondition],
    update: Callable[[SchemaEntry], SchemaDraft],
    *,
    force: bool,
) -> SchemaEntry:
    with _registry.changing(ws, caller, key, preconditions) as (tx, before):
        after = update(before)
        if not _registry.changed_members(before, after):
            return before
        conflict = _breaking_change(tx, before, after)
        if conflict and not force:
            raise conflict
        entry = revisions.next_revision(before, tx.now, caller.user, draft=after)
        schema_store.replace(tx, before, entry, "update", f"forced: {conflict.message}" if conflict else None)
    return entry


def _assert_editor(caller: Caller, *, force: bool) -> None:
    caller.require(Role.ADMIN if force else Role.DEVELOPER)


def _breaking_change(tx: CatalogTransaction, before: SchemaEntry, after: SchemaDraft) -> Conflict | None:
    """Return the error of a change that breaks queries which reference the schema, or None."""
    broken = result_schema.breaking_differences(before.draft.fields, after.fields)
    if broken and (count := result_schemas.count_references(tx, before.id)):
        return Conflict(
            "breaking_change",
            query_count=count,
            errors=[change.as_json() for change in broken],
        )
    return None


def _difference(old: SchemaDraft, new: SchemaDraft) -> dict[str, Any]:
    broken = result_schema.breaking_differences(old.fields, new.fields)
    return {
        "members": sorted(revisions.changed_members(old, new, lifecycle.MEMBERS)),
        "fields": [change.as_json() for change in result_schema.diff(old.fields, new.fields)],
        "compatible": not broken,
        "breaking": [change.as_json() for change in broken],
    }


def _selects(condition: Node, entry: SchemaEntry) -> bool:
    """Return whether a filter, or an alternative of it, requires the type or the id of an entry."""
    values = {"type_id": entry.draft.type_id, "id": entry.id}
    match condition:
        case ODataAnd(parts) | ODataOr(parts):
            return any(_selects(part, entry) for part in parts)
        case ODataCompare(ODataComparison.EQ, ODataField(name, of=None), ODataLiteral(value)):
            return name in values and value == values[name]
        case ODataIn(ODataField(name, kind, None), items):
            return name in values and any(item == ODataLiteral(values[name], kind) for item in items)
    return False


def _parse_key(key: str) -> UUID:
    if (schema := gts.parse_schema_id(key)) is None:
        raise schema_store.not_found(key[:300])
    return schema


def _require_matching_type(entry: SchemaEntry, key: str) -> SchemaEntry:
    """Return the entry if the key has no type before the id, or the type of the entry."""
    if "~" in key and key.removeprefix("gts://").rpartition("~")[0] + "~" != entry.draft.type_id:
        raise schema_store.not_found(key[:300])
    return entry


def _built_in(key: str) -> SchemaEntry | None:
    name = key.removeprefix("gts://")
    return next((entry for entry in BUILT_IN_SCHEMAS if name.lower() == str(entry.id) or name == entry.gts_id), None)


def _tested_version(operations: Any) -> dict[str, Any]:
    """Return the version that a JSON Patch tests, as a payload."""
    objects = [item for item in operations if isinstance(item, dict)] if isinstance(operations, list) else []
    return next(
        (
            {"version": item.get("value")}
            for item in objects
            if (item.get("op"), item.get("path")) == ("test", "/version")
        ),
        {},
    )
