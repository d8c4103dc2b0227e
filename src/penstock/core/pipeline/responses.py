"""Error codes, messages and response bodies of pipeline operations."""

from typing import Any

from penstock.core.dataset.changes import Counts
from penstock.core.pipeline.operations import AppendOperation, Operation
from penstock.errors import PenstockError

# Codes and messages of the operation contracts. Only a missing column in a selector has another message.
MESSAGES = {
    "append_000": "Invalid append operation",
    "append_001": "Dataset not found",
    "append_002": "Dataset version not found",
    "append_003": "Appended rows contain columns not in working dataset",
    "append_004": "Failed to parse source_selector expression",
    "append_005": "Invalid aggregation function",
    "append_006": "Column referenced in aggregation not found in source dataset",
    "append_007": "Column types do not match",
    "merge_000": "Invalid merge operation",
    "merge_001": "Dataset not found",
    "merge_002": "Dataset version not found",
    "merge_003": "Key columns do not match",
    "merge_004": "Schemas do not match",
    "merge_005": "Key columns contain NULL",
    "merge_006": "Source rows contain duplicate keys",
    "merge_007": "Failed to parse source_selector expression",
}
COLUMN_NOT_FOUND_MESSAGE = "Column referenced in expression not found in source dataset"


def error_response(error: PenstockError) -> dict[str, Any]:
    """Return the response body of a failed operation."""
    return {"error": {"code": error.reason.upper(), "message": error.message, "details": dict(error.context)}}


def success_response(operation: Operation, counts: Counts, rows_before: int, milliseconds: int) -> dict[str, Any]:
    """Return the response body of a successful operation."""
    rows_after = rows_before + counts.inserted - counts.deleted
    source = {"source_dataset_id": str(operation.source.dataset)}
    common = {
        "working_dataset_rows_before": rows_before,
        "working_dataset_rows_after": rows_after,
        "execution_time_ms": milliseconds,
    }
    filtered = {"filtered": operation.selector is not None}
    if isinstance(operation, AppendOperation):
        aggregated = {"aggregated": bool(operation.group_by)}
        result = {"rows_appended": counts.inserted, **source, **common, **aggregated, **filtered}
    else:
        merged = {"inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted}
        result = {**merged, "total": rows_after, **source, **common, **filtered}
    alias = {} if operation.alias is None else {"alias": operation.alias}
    return {"success": True, "operation": operation.type, "order": operation.order, **alias, "result": result}


def rebase_response(response: dict[str, Any], added_rows: int) -> dict[str, Any]:
    """Return the response for a working dataset that other writers have made larger by `added_rows` in the meantime."""
    counts = ("working_dataset_rows_before", "working_dataset_rows_after", "total")
    result = {name: value + added_rows if name in counts else value for name, value in response["result"].items()}
    return {**response, "result": result}
