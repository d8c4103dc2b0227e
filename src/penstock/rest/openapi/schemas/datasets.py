"""Component schemas of datasets: columns, versions, rows, profiles and receipts."""

from penstock.rest.openapi.schemas.base import (
    ANY_OBJECT,
    COUNT,
    FLAG,
    LINK,
    NULLABLE_COUNT,
    POSITIVE_INTEGER,
    TEXT,
    TIMESTAMP,
    UUID,
    JsonSchema,
    array_of,
    nullable,
    object_of,
    page_of,
    ref,
)

_COLUMN_TYPE: JsonSchema = {
    "anyOf": [
        TEXT,
        object_of({"decimal": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}}),
        object_of({"list": ref("ColumnType")}),
        object_of(
            {"struct": array_of({"type": "array", "prefixItems": [TEXT, ref("ColumnType")], "minItems": 2, "maxItems": 2})}
        ),
    ]
}  # fmt: skip
_VERSION_MEMBERS = {
    "version": COUNT, "operation": TEXT, "inserted": COUNT, "updated": COUNT, "deleted": COUNT, "rows": COUNT,
    "files": COUNT, "bytes": COUNT, "deleted_rows": COUNT, "vector_files": COUNT, "at": TIMESTAMP, "author": TEXT,
    "commit_no": COUNT, "swept": FLAG,
}  # fmt: skip
_DATASET_MEMBERS = {
    "id": UUID, "name": TEXT, "schema_name": TEXT, "table_name": TEXT, "row_ids": FLAG, "read_only": FLAG,
    "created_at": TIMESTAMP, "cluster_by": array_of(TEXT), "schema": array_of(ref("Column")), **_VERSION_MEMBERS,
}  # fmt: skip
_DATASET_VERSION = {"dataset": UUID, "name": TEXT, "version": COUNT}
_COMMIT_MEMBERS = {
    "dataset": UUID, "name": TEXT, "version": COUNT, "operation": TEXT, "rows": COUNT,
    "inserted": COUNT, "updated": COUNT, "deleted": COUNT,
}  # fmt: skip
# Receipts of earlier releases have no first_row_id.
DATASET_COMMIT = object_of(_COMMIT_MEMBERS, {"first_row_id": {"type": ["integer", "null"], "minimum": 1}})

SCHEMAS: dict[str, JsonSchema] = {
    "ColumnType": _COLUMN_TYPE,
    "Column": object_of({"name": TEXT, "type": ref("ColumnType"), "nullable": FLAG}),
    "Dataset": object_of(_DATASET_MEMBERS),
    "DatasetPage": page_of(object_of({}, _DATASET_MEMBERS)),
    "DatasetSent": object_of(
        {"name": TEXT, "schema": array_of(object_of({"name": TEXT, "type": ref("ColumnType")}, {"nullable": FLAG}))},
        {"row_ids": FLAG, "read_only": FLAG, "cluster_by": array_of(TEXT)},
    ),
    "DatasetColumns": object_of({**_DATASET_VERSION, "schema": array_of(ref("Column"))}),
    "DatasetVersion": object_of(_VERSION_MEMBERS),
    "DatasetRows": object_of({**_DATASET_VERSION, "value": array_of(ANY_OBJECT)}, {"@odata.nextLink": LINK}),
    "DatasetProfile": object_of(
        {**_DATASET_VERSION, "rows": COUNT, "columns": array_of(ref("ColumnProfile"))},
        {"histogram": ref("Histogram")},
    ),
    "ColumnProfile": object_of(
        {"name": TEXT, "type": ref("ColumnType"), "nullable": FLAG, "nulls": NULLABLE_COUNT, "min": {}, "max": {}}
    ),
    "Histogram": object_of(
        {
            "column": TEXT,
            "rows": COUNT,
            "sampled": FLAG,
            "nulls": COUNT,
            "not_finite": COUNT,
            "distinct": NULLABLE_COUNT,
            "bins": nullable(array_of(object_of({"from": {}, "to": {}, "count": COUNT}))),
            "top": nullable(array_of(object_of({"value": {}, "count": POSITIVE_INTEGER, "cut": FLAG}))),
        }
    ),
    "Receipt": object_of(
        {"key": TEXT, "commit_no": COUNT, "at": TIMESTAMP, "replayed": FLAG, "written": array_of(DATASET_COMMIT)}
    ),
}
