"""Resolve the datasets that a statement names to the files of one version each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.catalog import snapshots
from penstock.catalog.database import CatalogTransaction
from penstock.core.bounded_cache import BoundedCache
from penstock.core.caller import Caller
from penstock.core.dataset.snapshot import Snapshot
from penstock.core.names import DatasetName
from penstock.core.registry.query import QueryDatasetRef, RegisteredQuery
from penstock.errors import Invalid
from penstock.service.queries.sandbox import (
    FetchedFile,
    ParsedStatement,
    QueryProcess,
    Relation,
    RelationFile,
    Sandbox,
    TableRef,
)
from penstock.service.workspace import Workspace

_RELATION_CACHE_BYTES = 32 << 20
_FILE_ENTRY_BYTES, _FETCHED_ENTRY_BYTES = 250, 250  # memory of a cached file, besides its texts


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A parsed statement in a sandbox process that has the datasets it names."""

    process: QueryProcess
    parsed: ParsedStatement
    snapshots: Mapping[QueryDatasetRef, Snapshot]


class DatasetResolver:
    """Resolve dataset references. The file lists of versions are cached: they never change and may be long."""

    def __init__(self, ws: Workspace, sandbox: Sandbox) -> None:
        self._ws, self._sandbox = ws, sandbox
        self._relations = BoundedCache[Relation](_RELATION_CACHE_BYTES)

    @contextmanager
    def bind(self, caller: Caller, sql: str, facts: dict[str, Any]) -> Iterator[BoundStatement]:
        """Parse a statement in a sandbox process and give it its datasets, all read from one catalog transaction.

        Args:
            caller: owner of the datasets
            sql: the statement
            facts: receives the versions that the statement reads, for the audit table
        """
        with self._sandbox.process(caller) as process:
            parsed = process.parse(sql)
            with self._ws.db.read(caller) as tx:
                resolved = {ref: resolve_snapshot(tx, _to_dataset_ref(ref), {}) for ref in parsed.tables}
                by_dataset_ref = {_to_dataset_ref(ref): snapshot for ref, snapshot in resolved.items()}
                facts["datasets"] = versions_by_name(by_dataset_ref)
                relations = {ref: self._load_relation(tx, snapshot) for ref, snapshot in resolved.items()}
            process.bind(relations)
            yield BoundStatement(process, parsed, by_dataset_ref)

    def load_relations(
        self, tx: CatalogTransaction, resolved: Mapping[QueryDatasetRef, Snapshot]
    ) -> dict[TableRef, Relation]:
        """Return schema and files of the snapshots that a registered query reads."""
        return {
            TableRef(ref.schema, ref.table, ref.version): self._load_relation(tx, snapshot)
            for ref, snapshot in resolved.items()
        }

    def _load_relation(self, tx: CatalogTransaction, snapshot: Snapshot) -> Relation:
        key = (snapshot.dataset, snapshot.version.number)
        relation = self._relations.get(key)
        if relation is None:
            store = self._ws.store_of(tx.caller)
            files = [
                RelationFile(
                    store.locate(file.path),
                    file.rows,
                    file.stats_json,
                    file.deleted,
                    FetchedFile(file.path, file.bytes, file.checksum) if store.is_remote else None,
                )
                for file in snapshots.file_listing(tx, snapshot)
            ]
            relation = Relation(snapshot.schema, files)
            size = sum(_FILE_ENTRY_BYTES + len(file.path) + len(file.stats_json) for file in files)
            size += _FETCHED_ENTRY_BYTES * len(files) if store.is_remote else 0
            size += sum(file.vector_bytes for file in files)
            self._relations.put(key, relation, size)
        return relation


def resolve_snapshot(tx: CatalogTransaction, ref: QueryDatasetRef, pinned: Mapping[str, int]) -> Snapshot:
    """Return the dataset at the version in the SQL, else at the pinned version, else at the newest."""
    newest = snapshots.by_name(tx, DatasetName(ref.schema, ref.table))
    version = ref.version if ref.version is not None else pinned.get(newest.name.key)
    return newest if version is None else snapshots.at_version(tx, newest.dataset, version)


def versions_by_name(resolved: Mapping[QueryDatasetRef, Snapshot]) -> dict[str, int]:
    """Return the versions that are read, by dataset name.

    If the SQL reads a dataset at a fixed version and at a version that may change, the latter is reported.
    """
    fixed_first = sorted(resolved.items(), key=lambda item: item[0].version is None)
    return {str(snapshot.name): snapshot.version.number for _, snapshot in fixed_first}


def check_pinned_versions(query: RegisteredQuery, pinned: Mapping[str, int]) -> None:
    """Raise Invalid for a version of a dataset that the query does not read, or whose version its SQL fixes."""
    versions_read = dict[str, set[int | None]]()
    for ref in query.datasets:
        versions_read.setdefault(DatasetName(ref.schema, ref.table).key, set()).add(ref.version)
    for name, version in pinned.items():
        if name not in versions_read:
            raise Invalid("unread_dataset.pinned", {"datasets": sorted(versions_read) or "none"}, dataset=name)
        if not versions_read[name] & {None, version}:
            raise Invalid("immutable_version", dataset=name, version=version)


def _to_dataset_ref(ref: TableRef) -> QueryDatasetRef:
    return QueryDatasetRef(ref.schema, ref.table, ref.version)
