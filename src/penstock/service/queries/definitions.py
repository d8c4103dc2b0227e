"""Create, search, change and delete registered queries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from penstock.catalog.database import CatalogTransaction
from penstock.catalog.queries import query_store
from penstock.core.caller import Caller, Role
from penstock.core.names import has_invalid_characters, parse_uuid
from penstock.core.registry import lifecycle, query
from penstock.core.registry.query import QueryDatasetRef, QueryDraft, QueryRevision, RegisteredQuery
from penstock.core.registry.revisions import next_revision
from penstock.errors import Invalid
from penstock.service.registry import schemas
from penstock.service.registry.preconditions import VersionPrecondition, required_versions
from penstock.service.registry.versioned import LifecycleRegistry
from penstock.service.workspace import Workspace

FIELDS = query_store.fields  # searchable fields
_INSPECTED_MEMBERS = {"sql", "parameters", "returns_schema_id"}  # a change of these requires an inspection


@dataclass(frozen=True, slots=True)
class QueryInspection:
    """Facts about the SQL of a draft, collected without running it."""

    datasets: tuple[QueryDatasetRef, ...]
    parameters_in_sql: tuple[str, ...]
    mismatches: Sequence[Mapping[str, Any]] = ()  # certain mismatches between result and schema


Inspector = Callable[[QueryDraft], QueryInspection]


class _QueryRegistry(LifecycleRegistry[RegisteredQuery, QueryRevision]):
    def find(self, tx: CatalogTransaction, key: str) -> RegisteredQuery:
        return load_query(tx, key)

    def lock(self, tx: CatalogTransaction, key: str) -> RegisteredQuery:
        return self.store.find_for_update(tx, load_query(tx, key).id)

    def lock_deleted(self, tx: CatalogTransaction, key: str) -> RegisteredQuery:
        id = _parse_key(key)
        return self.store.find_deleted_for_update(tx, id or query_store.find_id_to_undelete(tx, key))


_registry = _QueryRegistry(query_store, delete_role=Role.ADMIN, editable=query.EDITABLE)
show, search = _registry.show, _registry.search
delete, undelete = _registry.delete, _registry.undelete
list_versions, get_version = _registry.list_versions, _registry.get_version


def create(ws: Workspace, caller: Caller, payload: Any, inspect: Inspector) -> RegisteredQuery:
    """Register a query.

    Args:
        ws: the workspace
        caller: needs the role developer
        payload: the JSON object of the query
        inspect: inspects the SQL of the draft

    Raises:
        Invalid: the payload is invalid, or the result can never match the schema (query_does_not_fit)
        AlreadyExists: a query of that name exists
    """
    caller.require(Role.DEVELOPER)
    draft = query.parse_new_query(payload)
    datasets = _inspect_draft(ws, caller, payload, draft, inspect)
    with ws.db.write(caller) as tx:
        created = RegisteredQuery(uuid4(), draft, datasets, 1, tx.now, tx.now, caller.user, tx.now, caller.user)
        query_store.insert(tx, created)
    return created


def replace_with(
    ws: Workspace, caller: Caller, key: str, payload: Any, expected: VersionPrecondition | None, inspect: Inspector
) -> RegisteredQuery:
    """Replace name, description, SQL, parameters and schema of a query.

    Raises:
        Conflict: the query has another version than expected
        Invalid: the payload is invalid, or the result can never match the schema (query_does_not_fit)
    """
    caller.require(Role.DEVELOPER)
    preconditions = required_versions(expected, query.unwrap_query(payload))
    before = show(ws, caller, key)
    _registry.check(before, preconditions)
    draft = query.parse_query_update(before, payload)
    members = _registry.changed_members(before, draft)
    if not members:
        return before
    # The inspection runs outside the transaction. `query_store.replace` detects a concurrent change by the version.
    datasets = _inspect_draft(ws, caller, payload, draft, inspect) if members & _INSPECTED_MEMBERS else before.datasets
    with ws.db.write(caller) as tx:
        after = next_revision(before, tx.now, caller.user, draft=draft, datasets=datasets)
        query_store.replace(tx, before, after)
    return after


def change_state(
    ws: Workspace, caller: Caller, key: str, payload: Any, expected: VersionPrecondition | None
) -> RegisteredQuery:
    """Change the lifecycle state of a query; the payload is `{"to", "version", "reason"?}`."""
    caller.require(Role.DEVELOPER)
    to, reason = lifecycle.parse_transition(payload)
    caller.require(lifecycle.min_role(to))
    return _registry.change_state(ws, caller, key, to, reason, required_versions(expected, payload))


def load_query(tx: CatalogTransaction, key: str) -> RegisteredQuery:
    """Return a query by its id or its name. Text in the form of an id is an id, so that no name can hide a query."""
    id = _parse_key(key)
    return query_store.find(tx, id) if id else query_store.find_by_name(tx, key)


def _parse_key(key: str) -> UUID | None:
    """Return the id in a key; None if the key is a name."""
    id = parse_uuid(key)
    if id is None and has_invalid_characters(key):
        raise query_store.not_found(ascii(key[:300])[1:-1])
    return id


def _inspect_draft(
    ws: Workspace, caller: Caller, payload: Any, draft: QueryDraft, inspect: Inspector
) -> tuple[QueryDatasetRef, ...]:
    """Return the datasets that a draft reads; raise Invalid if its result can never match its schema."""
    schemas.show(
        ws, caller, query.unwrap_query(payload)["returns_schema_id"]
    )  # checks that a type in front of the id is the type of the schema
    inspection = inspect(draft)
    query.check_placeholders(draft, inspection.parameters_in_sql)
    if inspection.mismatches:
        first = inspection.mismatches[0]
        hint = f" ({first['hint']})" if "hint" in first else ""
        raise Invalid(
            "query_does_not_fit",
            {"count": len(inspection.mismatches), "first": first["message"], "hint": hint},
            schema_id=str(draft.returns_schema_id),
            errors=[{"pointer": "/sql", **mismatch} for mismatch in inspection.mismatches],
        )
    return inspection.datasets
