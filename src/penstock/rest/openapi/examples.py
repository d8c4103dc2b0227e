"""Example values that several operations share."""

from penstock.rest.openapi.schemas.base import BYTES
from penstock.rest.requests import media_types

USER_ID, TIMESTAMP = "5f0c2f2e-8d1c-4e57-a2b4-0d6a1b9c7e11", "2026-01-31T10:30:00.000000Z"
TENANT_ID = "0b0f1c8e-5a0e-4c53-9d4f-3f6f0a3f1b2c"
DATASET_ID = "0b0f1c8e-5a0e-4c53-9d4f-3f6f0a3f1b2c"
SOURCE_DATASET_ID = "a1b2c3d4-e5f6-7890-abcd-ef1234567890"
AUDIT_FIELDS = {"created_at": TIMESTAMP, "created_by": USER_ID, "updated_at": TIMESTAMP, "updated_by": USER_ID}
DATASET_VERSION = {
    "version": 1, "operation": "create", "inserted": 3, "updated": 0, "deleted": 0, "rows": 3, "files": 1,
    "bytes": 1204, "deleted_rows": 0, "vector_files": 0,
    "at": "2026-01-31T10:30:00+00:00", "author": "ada", "commit_no": 1, "swept": False,
}  # fmt: skip
COLUMNS = [
    {"name": "id", "type": "int64", "nullable": False},
    {"name": "amount", "type": {"decimal": [12, 2]}, "nullable": True},
]
DATASET = {
    "id": DATASET_ID, "name": "shop.orders", "schema_name": "shop", "table_name": "orders",
    "row_ids": True, "read_only": False,
    "created_at": "2026-01-31T10:30:00+00:00", "cluster_by": ["id"], "schema": COLUMNS, **DATASET_VERSION,
}  # fmt: skip
RECEIPT = {
    "key": "import-2026-01-31", "commit_no": 2, "at": "2026-01-31T10:31:00+00:00", "replayed": False,
    "written": [
        {"dataset": DATASET_ID, "name": "shop.orders", "version": 2, "operation": "append", "rows": 5,
         "inserted": 2, "updated": 0, "deleted": 0, "first_row_id": 4}
    ],
}  # fmt: skip
APPEND_OPERATION = {
    "type": "append",
    "order": 0,
    "parameters": {"source": {"dataset_id": SOURCE_DATASET_ID}, "source_selector": "budget_type = 'original'"},
}
PIPELINE_ID = "2f8a7c1e-6d0b-4b6f-8f57-1b9d3e5a7c20"
PIPELINE_DEFINITION = {
    "name": "Budgets into transactions",
    "working": {"dataset_id": DATASET_ID},
    "operations": [APPEND_OPERATION],
}
RUN_ID = "9b1d4e6f-3a2c-4d8e-b7f0-6c5a4b3c2d1e"
QUEUED_RUN = {
    "id": RUN_ID, "pipeline_id": PIPELINE_ID, "name": PIPELINE_DEFINITION["name"], "state": "queued",
    "created_at": TIMESTAMP, "created_by": USER_ID, "author": "ada",
    "idempotency_key": "nightly-2026-01-31", "started_at": None, "ended_at": None, "cancelling": False,
    "progress": None, "reads": [], "written": [], "commit_no": None, "results": [], "error": None,
    "pipeline": PIPELINE_DEFINITION,
}  # fmt: skip
OPERATION_RESULT = {
    "success": True, "operation": "append", "order": 0,
    "result": {
        "rows_appended": 142, "source_dataset_id": SOURCE_DATASET_ID,
        "working_dataset_rows_before": 1000, "working_dataset_rows_after": 1142, "execution_time_ms": 23,
        "aggregated": False, "filtered": True,
    },
}  # fmt: skip
SUCCEEDED_RUN = {
    **QUEUED_RUN, "state": "succeeded", "started_at": "2026-01-31T10:30:01.000000Z",
    "ended_at": "2026-01-31T10:30:04.000000Z",
    "reads": [{"dataset": DATASET_ID, "name": "shop.orders", "version": 1, "newest": 1}],
    "written": RECEIPT["written"], "commit_no": 2, "results": [OPERATION_RESULT],
}  # fmt: skip
QUERY_ID = "9b1d5a3e-0c6f-4f0e-8a77-2f6f1c3b5d90"
SQL = "SELECT region, sum(amount) AS total FROM shop.orders WHERE day >= $since GROUP BY region"
EXECUTION_ID = "4d7a1c0e-93b2-4f5e-8c61-0e2b7d9a5f34"
SCHEMA_ID = "7c0e6f0e-2d3c-4f0a-9d55-0a4f8f1b2c3d"

_TEXT_ROWS = {"csv": "id,amount\n1,12.50\n", "jsonl": '{"id": 1, "amount": 12.50}\n'}  # binary formats have no example
# The `content` of a request body with rows in one of the accepted file formats.
ROW_FILES = {
    media_type: {"schema": BYTES, **({"example": _TEXT_ROWS[file_format]} if file_format in _TEXT_ROWS else {})}
    for media_type, file_format in media_types.FILE_FORMATS.items()
}
