"""Create, show, search, replace, remove and undelete stored pipelines."""

from typing import Any
from uuid import UUID, uuid4

from penstock.catalog.database import CatalogTransaction
from penstock.catalog.pipelines import pipeline_store
from penstock.core.caller import Caller, Role
from penstock.core.pipeline.definition import StoredPipeline, parse_stored_form
from penstock.core.registry.revisions import next_revision
from penstock.service.registry.preconditions import VersionPrecondition, required_versions
from penstock.service.registry.versioned import VersionedRegistry
from penstock.service.workspace import Workspace

SEARCH_FIELDS = pipeline_store.fields


class _PipelineRegistry(VersionedRegistry[StoredPipeline, UUID]):
    def find(self, tx: CatalogTransaction, key: UUID) -> StoredPipeline:
        return self.store.find(tx, key)

    def lock(self, tx: CatalogTransaction, key: UUID) -> StoredPipeline:
        return self.store.find_for_update(tx, key)

    def lock_deleted(self, tx: CatalogTransaction, key: UUID) -> StoredPipeline:
        return self.store.find_deleted_for_update(tx, key)


_registry = _PipelineRegistry(pipeline_store, delete_role=Role.DEVELOPER)
show, search = _registry.show, _registry.search
remove, undelete = _registry.delete, _registry.undelete


def create(ws: Workspace, caller: Caller, value: Any) -> StoredPipeline:
    """Store a pipeline in JSON form.

    Raises:
        Invalid: the definition is not valid
        AlreadyExists: a pipeline with this name exists
    """
    caller.require(Role.DEVELOPER)
    pipeline = parse_stored_form(value)
    with ws.db.write(caller) as tx:
        stored = StoredPipeline(uuid4(), pipeline, 1, tx.now, caller.user, tx.now, caller.user)
        pipeline_store.insert(tx, stored)
    return stored


def replace(
    ws: Workspace, caller: Caller, id: UUID, value: Any, expected: VersionPrecondition | None
) -> StoredPipeline:
    """Replace a stored pipeline.

    Args:
        ws: the workspace
        caller: needs the role developer
        id: the pipeline
        value: the new definition; its member `version` states the version that it replaces
        expected: the version that it replaces, if the value does not state it

    Raises:
        Conflict: the stored pipeline has another version
    """
    caller.require(Role.DEVELOPER)
    pipeline = parse_stored_form(value)
    preconditions = required_versions(expected, value)
    with _registry.changing(ws, caller, id, preconditions) as (tx, before):
        if pipeline == before.pipeline:
            return before
        after = next_revision(before, tx.now, caller.user, pipeline=pipeline)
        pipeline_store.replace(tx, before, after)
    return after
