"""Store pipelines: the newest revision of each."""

from typing import Any

from sqlalchemy import Row

from penstock.catalog.tables import pipelines
from penstock.catalog.versioned_store import VersionedStore
from penstock.core.odata import FieldKind, Fields
from penstock.core.pipeline.definition import StoredPipeline, parse_pipeline

FIELDS: Fields = {
    "id": FieldKind.GUID,
    "name": FieldKind.TEXT,
    "version": FieldKind.INTEGER,
    "created_at": FieldKind.INSTANT,
    "created_by": FieldKind.GUID,
    "updated_at": FieldKind.INSTANT,
    "updated_by": FieldKind.GUID,
}


class PipelineStore(VersionedStore[StoredPipeline]):
    """The pipelines of a tenant. A deleted pipeline's runs stay."""

    def content(self, entry: StoredPipeline) -> dict[str, Any]:
        return {"name": entry.pipeline.name, "definition": entry.pipeline.as_json()}

    def from_row(self, row: Row[Any]) -> StoredPipeline:
        return StoredPipeline(
            row.id,
            parse_pipeline(row.definition),
            row.version,
            row.created_at,
            row.created_by,
            row.updated_at,
            row.updated_by,
        )


pipeline_store = PipelineStore("pipeline", pipelines, FIELDS, selective=["id"])
