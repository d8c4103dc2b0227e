"""Read and change versioned entries: the use cases that result schemas, queries and pipelines share.

A `VersionedRegistry` reads, locks, deletes and undeletes the entries of a store. A `LifecycleRegistry` also lists revisions,
compares drafts and changes states. Parsing, roles of other changes and rules about references belong to the registry of
each entry type.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, TypeVar

from penstock.catalog.database import CatalogTransaction
from penstock.catalog.versioned_store import RevisionStore, VersionedStore
from penstock.core.caller import Caller, Role
from penstock.core.odata import QueryOptions
from penstock.core.paging import SearchPage
from penstock.core.registry import lifecycle, revisions
from penstock.core.registry.lifecycle import LifecycleDraft, LifecycleEntry, LifecycleState
from penstock.core.registry.revisions import RegistryEntry
from penstock.service.registry.preconditions import VersionPrecondition
from penstock.service.workspace import Workspace

E = TypeVar("E", bound=RegistryEntry)
L = TypeVar("L", bound=LifecycleEntry)
K = TypeVar("K")
R = TypeVar("R")


@dataclass(frozen=True)
class VersionedRegistry(ABC, Generic[E, K]):
    """The entries of a store, which clients name by keys."""

    store: VersionedStore[E]
    delete_role: Role

    @abstractmethod
    def find(self, tx: CatalogTransaction, key: K) -> E:
        """Return an entry by its key."""

    @abstractmethod
    def lock(self, tx: CatalogTransaction, key: K) -> E:
        """Return an entry by its key and lock it against changes until the transaction ends."""

    @abstractmethod
    def lock_deleted(self, tx: CatalogTransaction, key: K) -> E:
        """Return a deleted entry by its key and lock it against changes until the transaction ends."""

    def show(self, ws: Workspace, caller: Caller, key: K) -> E:
        """Return an entry."""
        with self.reading(ws, caller, key) as (_, entry):
            return entry

    def search(self, ws: Workspace, caller: Caller, options: QueryOptions) -> SearchPage[E]:
        """Return one page of the entries that match the options."""
        caller.require(Role.VIEWER)
        with ws.db.read(caller) as tx:
            return self.store.search(tx, options)

    def delete(self, ws: Workspace, caller: Caller, key: K, expected: VersionPrecondition | None) -> None:
        """Delete an entry; rows that belong to it stay.

        Raises:
            Conflict: the entry has another version than expected, or is in use
        """
        caller.require(self.delete_role)
        with self.changing(ws, caller, key, [expected] if expected else []) as (tx, entry):
            self.store.remove(tx, entry)

    def undelete(self, ws: Workspace, caller: Caller, key: K, expected: VersionPrecondition | None) -> E:
        """Undo the deletion of an entry. It becomes the next version.

        Raises:
            NotFound: no entry has this key, deleted or not
            Unsupported: the entry is not deleted
            AlreadyExists: another entry has taken the name
            Conflict: the entry has another version than expected
        """
        caller.require(self.delete_role)
        with ws.db.write(caller) as tx:
            entry = self.lock_deleted(tx, key)
            self.check(entry, [expected] if expected else [])
            after = revisions.next_revision(entry, tx.now, caller.user)
            self.store.undelete(tx, entry, after)
        return after

    @contextmanager
    def reading(self, ws: Workspace, caller: Caller, key: K) -> Iterator[tuple[CatalogTransaction, E]]:
        """Open a read-only transaction and find an entry in it."""
        caller.require(Role.VIEWER)
        with ws.db.read(caller) as tx:
            yield tx, self.find(tx, key)

    @contextmanager
    def changing(
        self, ws: Workspace, caller: Caller, key: K, preconditions: Sequence[VersionPrecondition]
    ) -> Iterator[tuple[CatalogTransaction, E]]:
        """Open a transaction, lock an entry in it and check the preconditions."""
        with ws.db.write(caller) as tx:
            entry = self.lock(tx, key)
            self.check(entry, preconditions)
            yield tx, entry

    def check(self, entry: E, preconditions: Sequence[VersionPrecondition]) -> None:
        """Check the preconditions of a change.

        Raises:
            Conflict: the entry has another version
        """
        for precondition in preconditions:
            precondition.check(entry, self.store.version_conflict)


@dataclass(frozen=True)
class LifecycleRegistry(VersionedRegistry[L, str], Generic[L, R]):
    """Entries with a lifecycle and revisions."""

    store: RevisionStore[L, R]
    editable: Mapping[LifecycleState, Set[str]]  # editable members per state

    def list_versions(self, ws: Workspace, caller: Caller, key: str, *, before: int, limit: int) -> list[R]:
        """Return the revisions of an entry below a version, newest first."""
        with self.reading(ws, caller, key) as (tx, entry):
            return self.store.versions(tx, entry.id, before=before, limit=limit)

    def get_version(self, ws: Workspace, caller: Caller, key: str, number: int) -> R:
        """Return one revision of an entry."""
        with self.reading(ws, caller, key) as (tx, entry):
            return self.store.version(tx, entry.id, number)

    def changed_members(self, entry: L, draft: LifecycleDraft) -> set[str]:
        """Return the members that a draft changes.

        Raises:
            Unsupported: a changed member is read-only in the state of the entry
        """
        members = revisions.changed_members(entry.draft, draft, self.editable[LifecycleState.ACTIVE])
        lifecycle.assert_editable(entry.draft.state, members, self.editable, self.store.entry_type)
        return members

    def change_state(
        self,
        ws: Workspace,
        caller: Caller,
        key: str,
        to: LifecycleState,
        reason: str | None,
        preconditions: Sequence[VersionPrecondition],
    ) -> L:
        """Change the lifecycle state of an entry, if the caller has the role of this transition."""
        with ws.db.write(caller) as tx:
            entry = self.lock(tx, key)
            transition = lifecycle.find_transition(entry.draft.state, to, self.store.entry_type)
            caller.require(transition.role)
            self.check(entry, preconditions)
            return self.set_state(tx, entry, to, transition.verb, reason, tx.now)

    def set_state(
        self, tx: CatalogTransaction, entry: L, to: LifecycleState, verb: str, reason: str | None, at: datetime
    ) -> L:
        """Store the next revision of a locked entry, in another state."""
        draft = replace(entry.draft, state=to)
        after = revisions.next_revision(entry, at, tx.caller.user, draft=draft, state_changed_at=at)
        self.store.replace(tx, entry, after, verb, reason)
        return after
