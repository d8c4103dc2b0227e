"""The registry: schemas of what queries return, from their first draft to the archive."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.catalog import result_schemas as schemas
from penstock.catalog.database import Tx
from penstock.catalog.odata_sql import Page
from penstock.core import result_schema as contract
from penstock.core.registry import gts
from penstock.core.registry import revisions as kept
from penstock.core.registry import lifecycle
from penstock.core.registry import schema_entry as registry
from penstock.core.caller import Caller, Role, person
from penstock.core.result_schema import Verdict
from penstock.core.registry.lifecycle import State
from penstock.core.odata import Compare, In, Literal, Node, Options
from penstock.core.odata.nodes import walk
from penstock.core.payload.json_patch import merged, patched
from penstock.core.registry.schema_entry import Draft, Entry, Revision
from penstock.errors import Conflict, NotFound, Unsupported
from penstock.service.registry.preconditions import Expected, meant_for
from penstock.service.workspace import Workspace

FIELDS = schemas.FIELDS  # that can be searched
_SINCE_EVER = datetime(2026, 1, 1, tzinfo=UTC)
_NOBODY = person("penstock", "built-in")
MAX_VERSIONS = 200  # of a history, at once

TYPES = (
    Entry(
        gts.parse(gts.QUERY_RETURNS).uuid,
        None,
        Draft("Query Returns Schema", "What a query returns: rows of scalar fields.", (), None, gts.BASE),
        1,
        _SINCE_EVER,
        _SINCE_EVER,
        _NOBODY,
        _SINCE_EVER,
        _NOBODY,
    ),
)  # the types of which entries can be made: they belong to everybody, and nobody changes them


def create(ws: Workspace, caller: Caller, payload: Any) -> Entry:
    caller.require(Role.DEVELOPER)
    draft = registry.drafted(registry.entity(payload))
    with ws.db.write(caller) as tx:
        entry = Entry(schemas.new_id(), caller.tenant, draft, 1, tx.now, tx.now, caller.user, tx.now, caller.user)
        schemas.insert(tx, entry)
    return entry


def show(ws: Workspace, caller: Caller, key: str) -> Entry:
    caller.require(Role.VIEWER)
    if built_in := _built_in(key):
        return built_in
    with ws.db.read(caller) as tx:
        return _keyed(schemas.find(tx, _id(key)), key)


def search(ws: Workspace, caller: Caller, options: Options) -> Page[Entry]:
    caller.require(Role.VIEWER)
    # A type is shown to those who ask for types: the tenant's own schemas are never of the abstract type.
    types = TYPES if options.filter is not None and _names_the_base(options.filter) else ()
    with ws.db.read(caller) as tx:
        return schemas.search(tx, options, types)


def replace_with(
    ws: Workspace, caller: Caller, key: str, payload: Any, expected: Expected | None, *, force: bool = False
) -> Entry:
    """Put name, description, fields and metadata in place of what is there."""
    _assert_editor(caller, force=force)
    entity = registry.entity(payload)
    return _changed(
        ws, caller, key, meant_for(expected, entity), lambda entry: registry.revised(entry, entity), force=force
    )


def patch(
    ws: Workspace,
    caller: Caller,
    key: str,
    changes: Any,
    expected: Expected | None,
    *,
    by_operations: bool,
    force: bool = False,
) -> Entry:
    """Change some members: by a JSON Merge Patch, or by the operations of a JSON Patch."""
    _assert_editor(caller, force=force)
    if not by_operations:
        changes = registry.entity(changes)
        registry.assert_patchable(changes)
    meant = meant_for(expected, _tested(changes) if by_operations else changes)

    def draft(entry: Entry) -> Draft:
        now = entry.as_json()
        after = patched(now, changes) if by_operations else merged(now, {**changes, "version": entry.version})
        return registry.revised(entry, registry.entity(after))

    return _changed(ws, caller, key, meant, draft, force=force)


def move(ws: Workspace, caller: Caller, key: str, payload: Any, expected: Expected | None) -> Entry:
    """Take a schema to another state: `{"to", "version", "reason"?}`."""
    asked = payload.get("to") if isinstance(payload, dict) else None
    to = next((state for state in State if state.value == asked), None)
    caller.require(lifecycle.least_role(to) if to else Role.DEVELOPER)
    to, reason = lifecycle.asked_state(payload)
    meant = meant_for(expected, payload)
    with ws.db.write(caller) as tx:
        before = _held(tx, key)
        transition = lifecycle.transition(before.draft.state, to)
        caller.require(transition.role)
        for each in meant:
            each.check(before.version, schemas.was_changed(before))
        return _moved(tx, before, to, transition.verb, reason)


def delete(ws: Workspace, caller: Caller, key: str, expected: Expected | None) -> None:
    caller.require(Role.ADMIN)
    with ws.db.write(caller) as tx:
        entry = _held(tx, key)
        if expected:
            expected.check(entry.version, schemas.was_changed(entry))
        schemas.remove(tx, entry.id)
        tx.audit("schema.delete", {"schema_id": entry.id, "version": entry.version})


def versions(ws: Workspace, caller: Caller, key: str, *, before: int, limit: int) -> list[Revision]:
    """Its versions, the newest first."""
    with _reading(ws, caller, key) as (tx, entry):
        return schemas.versions(tx, entry.id, before=before, limit=min(limit, MAX_VERSIONS))


def version(ws: Workspace, caller: Caller, key: str, number: int) -> Revision:
    with _reading(ws, caller, key) as (tx, entry):
        return schemas.version(tx, entry.id, number)


def diff(ws: Workspace, caller: Caller, key: str, first: int, second: int) -> dict[str, Any]:
    """What changed from one version to another."""
    with _reading(ws, caller, key) as (tx, entry):
        old, new = (schemas.version(tx, entry.id, number).draft for number in (first, second))
    return _difference(old, new) | {"from": first, "to": second}


def compatibility(ws: Workspace, caller: Caller, key: str, payload: Any) -> dict[str, Any]:
    """What a change would do, before it is made."""
    entity = registry.entity(payload)
    with _reading(ws, caller, key) as (tx, entry):
        referenced = schemas.reference_count(tx, entry.id)
    after = registry.revised(entry, {"name": entry.draft.name, **entity})
    told = _difference(entry.draft, after)
    try:
        lifecycle.assert_editable(entry.draft.state, kept.changed(entry.draft, after, lifecycle.MEMBERS))
        accepted = not (told["breaking"] and referenced)
    except Unsupported:
        accepted = False
    return told | {"query_count": referenced, "accepted": accepted}


def references(ws: Workspace, caller: Caller, key: str) -> dict[str, Any]:
    """The queries that refer to it."""
    with _reading(ws, caller, key) as (tx, entry):
        return {"query_count": schemas.reference_count(tx, entry.id), "queries": schemas.references(tx, entry.id)}


def validate(ws: Workspace, caller: Caller, key: str, rows: Any, *, strict: bool = False) -> Verdict:
    """Do rows fit the schema?"""
    return contract.check_rows(show(ws, caller, key).draft.fields, rows, strict=strict)


def json_schema(ws: Workspace, caller: Caller, key: str) -> dict[str, Any]:
    draft = show(ws, caller, key).draft
    return contract.json_schema(draft.name, draft.description, draft.fields)


@dataclass(frozen=True, slots=True)
class Archived:
    """What the archive job did for a tenant."""

    archived: tuple[Entry, ...] = ()
    referenced: tuple[tuple[Entry, int], ...] = ()  # due, but still used by so many queries


def archive(ws: Workspace, caller: Caller, *, days: int, now: datetime | None = None) -> Archived:
    """Archive the schemas that were deprecated `days` ago or earlier, unless a query still refers to them."""
    caller.require(Role.ADMIN)
    now = now or ws.db.clock()
    archived, referenced = [], []
    with ws.db.read(caller) as tx:
        found = schemas.deprecated(tx)
    for entry in found:
        if not lifecycle.archive_due(entry.state_changed_at, now, days):
            continue
        with suppress(NotFound), ws.db.write(caller) as tx:  # one at a time: nobody waits long for a long list
            current = schemas.hold(tx, entry.id)
            if current.draft.state is not State.DEPRECATED or current.state_changed_at != entry.state_changed_at:
                continue
            if count := schemas.reference_count(tx, entry.id):
                referenced.append((current, count))
                continue
            archived.append(_moved(tx, current, State.ARCHIVED, "archive", f"deprecated for {days} days", now))
    return Archived(tuple(archived), tuple(referenced))


def archiver(tenant: UUID) -> Caller:
    """The one in whose name the archive job works."""
    return Caller(tenant, person("penstock", "archive"), "the archive job", Role.ADMIN)


def sunset(entry: Entry, days: int) -> datetime:
    """When a deprecated schema will be archived."""
    return entry.state_changed_at + timedelta(days=days)


def _changed(
    ws: Workspace,
    caller: Caller,
    key: str,
    meant: Sequence[Expected],
    draft: Callable[[Entry], Draft],
    *,
    force: bool,
) -> Entry:
    with ws.db.write(caller) as tx:
        before = _held(tx, key)
        for each in meant:
            each.check(before.version, schemas.was_changed(before))
        after = draft(before)
        members = kept.changed(before.draft, after, lifecycle.MEMBERS)
        lifecycle.assert_editable(before.draft.state, members)
        if not members:
            return before
        broken = _broken(tx, before, after)
        if broken and not force:
            raise broken
        entry = replace(before, draft=after, version=before.version + 1, updated_at=tx.now, updated_by=caller.user)
        schemas.change(tx, before, entry, "update", f"forced: {broken.message}" if broken else None)
    return entry


def _moved(tx: Tx, before: Entry, to: State, verb: str, reason: str | None, now: datetime | None = None) -> Entry:
    moment = now or tx.now
    entry = replace(
        before,
        draft=replace(before.draft, state=to),
        version=before.version + 1,
        state_changed_at=moment,
        updated_at=moment,
        updated_by=tx.caller.user,
    )
    schemas.change(tx, before, entry, verb, reason)
    return entry


def _assert_editor(caller: Caller, *, force: bool) -> None:
    caller.require(Role.ADMIN if force else Role.DEVELOPER)


def _broken(tx: Tx, before: Entry, after: Draft) -> Conflict | None:
    """What there is against a change, if there are readers and it breaks them."""
    broken = contract.breaking(before.draft.fields, after.fields)
    if broken and (count := schemas.reference_count(tx, before.id)):
        return Conflict(
            "breaks_readers",
            f"{count} quer{'y refers' if count == 1 else 'ies refer'} to the schema, and the change breaks those who read "
            "them; an admin may do it with force=true",
            query_count=count,
            errors=[each.as_json() for each in broken],
        )
    return None


def _difference(old: Draft, new: Draft) -> dict[str, Any]:
    broken = contract.breaking(old.fields, new.fields)
    return {
        "members": sorted(kept.changed(old, new, lifecycle.MEMBERS)),
        "fields": [each.as_json() for each in contract.diff(old.fields, new.fields)],
        "compatible": not broken,
        "breaking": [each.as_json() for each in broken],
    }


@contextmanager
def _reading(ws: Workspace, caller: Caller, key: str) -> Iterator[tuple[Tx, Entry]]:
    caller.require(Role.VIEWER)
    schema = _id(key)
    with ws.db.read(caller) as tx:
        yield tx, _keyed(schemas.find(tx, schema), key)


def _held(tx: Tx, key: str) -> Entry:
    if _built_in(key):
        raise Unsupported("built_in_type", "this is a type that is built in; it cannot be changed or deleted")
    return _keyed(schemas.hold(tx, _id(key)), key)


def _names_the_base(condition: Node) -> bool:
    for part in walk(condition):
        match part:
            case Compare(_, _, Literal(gts.BASE)):
                return True
            case In(_, items) if any(item.value == gts.BASE for item in items):
                return True
    return False


def _id(key: str) -> UUID:
    if (schema := gts.schema_key(key)) is None:
        raise schemas.not_found(key[:300])
    return schema


def _keyed(entry: Entry, key: str) -> Entry:
    """The entry, if the key that was asked for names it in full: a type before the id must be its own."""
    if "~" in key and key.removeprefix("gts://").rpartition("~")[0] + "~" != entry.draft.type_id:
        raise schemas.not_found(key[:300])
    return entry


def _built_in(key: str) -> Entry | None:
    name = key.removeprefix("gts://")
    return next((entry for entry in TYPES if name.lower() == str(entry.id) or name == entry.gts_id), None)


def _tested(operations: Any) -> dict[str, Any]:
    """The version that the operations test for."""
    tests = [each for each in operations if isinstance(each, dict)] if isinstance(operations, list) else []
    return next(
        ({"version": e.get("value")} for e in tests if (e.get("op"), e.get("path")) == ("test", "/version")), {}
    )
