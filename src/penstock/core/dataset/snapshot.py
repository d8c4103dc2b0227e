"""A dataset at one version: schema and counts."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa

from penstock.core.dataset.changes import Counts
from penstock.core.names import DatasetName
from penstock.core.schema.type_names import to_fields


@dataclass(frozen=True, slots=True)
class DatasetVersionInfo:
    number: int
    commit_no: int
    operation: str
    counts: Counts
    rows: int  # of the whole version, as are files and bytes
    files: int
    bytes: int
    deleted_rows: int  # rows of its files that deletion vectors delete; not part of `rows`
    vector_files: int  # files with a deletion vector
    committed_at: datetime
    author: str
    swept: bool  # its files are deleted, so it cannot be read

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": self.number,
            "operation": self.operation,
            "inserted": self.counts.inserted,
            "updated": self.counts.updated,
            "deleted": self.counts.deleted,
            "rows": self.rows,
            "files": self.files,
            "bytes": self.bytes,
            "deleted_rows": self.deleted_rows,
            "vector_files": self.vector_files,
            "at": self.committed_at.isoformat(),
            "author": self.author,
            "commit_no": self.commit_no,
            "swept": self.swept,
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    dataset: UUID
    name: DatasetName
    location: str
    row_ids: bool
    read_only: bool
    created_at: datetime
    cluster_by: tuple[str, ...]  # columns that compaction sorts the rows by
    schema: pa.Schema
    version: DatasetVersionInfo

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": str(self.dataset),
            "name": str(self.name),
            "schema_name": self.name.schema,
            "table_name": self.name.table,
            "row_ids": self.row_ids,
            "read_only": self.read_only,
            "created_at": self.created_at.isoformat(),
            "cluster_by": list(self.cluster_by),
            "schema": to_fields(self.schema),
            **self.version.as_dict(),
        }
