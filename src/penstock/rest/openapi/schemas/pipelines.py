"""Component schemas of pipelines, operations and runs."""

from penstock.core.merge import STRATEGIES
from penstock.core.pipeline import definition
from penstock.core.pipeline.parse import MAX_ALIAS_LENGTH
from penstock.core.pipeline.run import RunState
from penstock.rest.openapi.schemas.base import (
    ANY_OBJECT,
    COUNT,
    EXPECTED_VERSION,
    FLAG,
    NULLABLE_COUNT,
    NULLABLE_TEXT,
    NULLABLE_TIMESTAMP,
    NULLABLE_UUID,
    POSITIVE_INTEGER,
    SERVER_MANAGED,
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
from penstock.rest.openapi.schemas.datasets import DATASET_COMMIT
from penstock.rest.openapi.schemas.result_schemas import AUDIT_MEMBERS


def _operation(operation_type: str, parameters: JsonSchema) -> tuple[JsonSchema, JsonSchema]:
    """Return the schema of an operation in responses, and in requests, which may have unknown members."""
    alias = {"alias": {"type": "string", "maxLength": MAX_ALIAS_LENGTH}}
    output = object_of({"type": {"const": operation_type}, "order": COUNT, "parameters": parameters}, alias)
    return output, {**output, "required": ["type", "parameters"], "additionalProperties": True}


def _operation_result(operation_type: str, counts: dict[str, JsonSchema]) -> JsonSchema:
    result = object_of({**counts, **_ROW_COUNTS, "filtered": FLAG})
    return object_of(
        {"success": {"const": True}, "operation": {"const": operation_type}, "order": COUNT, "result": result},
        {"alias": {"type": "string", "maxLength": MAX_ALIAS_LENGTH}},
    )


_NAMES: JsonSchema = {"type": "array", "items": TEXT, "minItems": 1}
_AGGREGATION = object_of(
    {
        "group_by": _NAMES,
        "aggregations": {"type": "array", "items": object_of({"column": TEXT, "expression": TEXT}), "minItems": 1},
    }
)
_APPEND, _APPEND_INPUT = _operation(
    "append", object_of({"source": ref("DatasetRef")}, {"source_selector": TEXT, "aggregation": _AGGREGATION})
)
_MERGE, _MERGE_INPUT = _operation(
    "merge",
    object_of(
        {"source": ref("DatasetRef"), "key_columns": {"anyOf": [TEXT, _NAMES]}, "strategy": {"enum": list(STRATEGIES)}},
        {"source_selector": TEXT, "dedup_order_by": {"anyOf": [TEXT, _NAMES]}},
    ),
)
_OUTPUT = {"output": object_of({"schema_name": TEXT, "table_name": TEXT})}
_DEFINITION_MEMBERS: dict[str, JsonSchema] = {
    "name": TEXT, "working": ref("DatasetRef"), "operations": array_of(ref("Operation")),
}  # fmt: skip
_PIPELINE_INPUT = {
    "name": {"type": "string", "minLength": 1, "maxLength": definition.MAX_NAME_LENGTH},
    "working": ref("DatasetRef"),
    "operations": {
        "type": "array", "items": ref("OperationSent"), "minItems": 1, "maxItems": definition.MAX_OPERATIONS,
    },
}  # fmt: skip
_SERVER_MANAGED = dict.fromkeys(("id", *AUDIT_MEMBERS), SERVER_MANAGED)
_PIPELINE_MEMBERS: dict[str, JsonSchema] = {
    "id": UUID, **_DEFINITION_MEMBERS, "version": POSITIVE_INTEGER, **AUDIT_MEMBERS,
}  # fmt: skip
_VALIDATION_ERROR = object_of({"pointer": TEXT, "code": TEXT, "message": TEXT}, {"details": ANY_OBJECT})
_ROW_COUNTS = {
    "source_dataset_id": UUID, "working_dataset_rows_before": COUNT, "working_dataset_rows_after": COUNT,
    "execution_time_ms": COUNT,
}  # fmt: skip
_PROGRESS = object_of(
    {
        "operation": COUNT, "operations": COUNT, "order": NULLABLE_COUNT, "type": NULLABLE_TEXT, "phase": NULLABLE_TEXT,
        "stages": COUNT, "stages_done": COUNT, "tasks": COUNT, "tasks_done": COUNT, "rows": COUNT,
    }
)  # fmt: skip
_RUN_MEMBERS: dict[str, JsonSchema] = {
    "id": UUID, "pipeline_id": NULLABLE_UUID, "name": TEXT,
    "state": {"enum": [state.value for state in RunState]},
    "created_at": TIMESTAMP, "created_by": UUID, "author": TEXT, "idempotency_key": NULLABLE_TEXT,
    "started_at": NULLABLE_TIMESTAMP, "ended_at": NULLABLE_TIMESTAMP, "cancelling": FLAG,
    "progress": nullable(ref("Progress")),
    "reads": array_of(object_of({"dataset": UUID, "name": TEXT, "version": COUNT, "newest": COUNT})),
    "written": array_of(DATASET_COMMIT), "commit_no": NULLABLE_COUNT,
    "results": array_of({"anyOf": [ref("OperationDone"), ref("OperationError")]}),
    "error": nullable(ref("OperationError")),
    "pipeline": object_of(_DEFINITION_MEMBERS, _OUTPUT),
}  # fmt: skip

SCHEMAS: dict[str, JsonSchema] = {
    "DatasetRef": object_of({"dataset_id": UUID}, {"dataset_version": POSITIVE_INTEGER}),
    "Operation": {"anyOf": [_APPEND, _MERGE]},
    "OperationSent": {"anyOf": [_APPEND_INPUT, _MERGE_INPUT]},
    "OperationDone": {
        "anyOf": [
            _operation_result("append", {"rows_appended": COUNT, "aggregated": FLAG}),
            _operation_result("merge", {"inserted": COUNT, "updated": COUNT, "deleted": COUNT, "total": COUNT}),
        ]
    },
    "OperationError": object_of({"error": object_of({"code": TEXT, "message": TEXT, "details": ANY_OBJECT})}),
    "Pipeline": object_of(_PIPELINE_MEMBERS, _OUTPUT),
    "PipelinePage": page_of(object_of({}, {**_PIPELINE_MEMBERS, **_OUTPUT})),
    "PipelineSent": object_of(_PIPELINE_INPUT, {**_OUTPUT, "version": SERVER_MANAGED, **_SERVER_MANAGED}),
    "PipelineReplacement": object_of(_PIPELINE_INPUT, {**_OUTPUT, "version": EXPECTED_VERSION, **_SERVER_MANAGED}),
    "PipelineDraft": {"description": "A pipeline that may be incomplete or invalid; the response lists its errors."},
    "PipelineVerdict": object_of({"valid": FLAG, "errors": array_of(_VALIDATION_ERROR)}),
    "Nothing": object_of({}),
    "Progress": _PROGRESS,
    "Run": object_of(_RUN_MEMBERS),
    "RunPage": page_of(object_of({}, _RUN_MEMBERS)),
}
