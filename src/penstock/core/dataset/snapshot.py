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
            "schema": to_fields(self.schema),
            **self.version.as_dict(),
        }
