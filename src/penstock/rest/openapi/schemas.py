"""The shapes of bodies, sent and answered, for the document that programs read.

An answer has the members that its shape names and no others. What is sent may say less than the shape of the answer.
"""

from typing import Any

from penstock.core.pipeline import definition as pipelines
from penstock.core.result_schema import MAX_DESCRIPTION, MAX_FIELDS, FieldType
from penstock.core.registry.lifecycle import State
from penstock.core.merge import STRATEGIES
from penstock.core.pipeline.operations import MAX_ALIAS
from penstock.core.registry.query import MAX_PARAMETERS, MAX_SQL
from penstock.core.registry.schema_entry import MAX_NAME
from penstock.core.pipeline.run import State as RunState

Shape = dict[str, Any]


def of(name: str) -> Shape:
    """One of `SHAPES`, by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def members(needed: dict[str, Shape], optional: dict[str, Shape] | None = None) -> Shape:
    """An object of these members and no others."""
    properties = {**needed, **(optional or {})}
    return {"type": "object", "required": list(needed), "properties": properties, "additionalProperties": False}


def many(items: Shape) -> Shape:
    return {"type": "array", "items": items}


def _maybe(shape: Shape) -> Shape:
    return {"anyOf": [shape, {"type": "null"}]}


def page(items: Shape) -> Shape:
    """A page of a search. `$select` decides what is in its items."""
    return members({"@odata.context": TEXT, "value": many(items)}, {"@odata.count": COUNT, "@odata.nextLink": LINK})


TEXT: Shape = {"type": "string"}
FLAG: Shape = {"type": "boolean"}
COUNT: Shape = {"type": "integer", "minimum": 0}
NUMBER: Shape = {"type": "integer", "minimum": 1}
ID: Shape = {"type": "string", "format": "uuid"}
MOMENT: Shape = {"type": "string", "format": "date-time"}
LINK: Shape = {"type": "string", "format": "uri-reference"}
BYTES: Shape = {"type": "string", "format": "binary"}
NOTE: Shape = {"type": ["string", "null"]}
ANY_OBJECT: Shape = {"type": "object"}
_IGNORED: Shape = {"description": "Kept by the server; what is sent here is ignored."}

PROBLEM: Shape = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "code", "error"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What went wrong, and what to do about it."},
        "instance": {"type": "string", "description": "The path that was asked for."},
        "code": {"type": "string", "description": "The reason: one word that never changes."},
        "error": {"type": "string", "description": "The reason as a short sentence."},
        "errors": {"type": "array", "description": "Each thing that is wrong, where there are several."},
    },
    "additionalProperties": True,
}

# -- schemas of what queries return

_SCALARS = [str(kind) for kind in FieldType]
_STATES = [str(state) for state in State]
_FIELD_NAME = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,127}$"}
_METADATA = {"type": ["object", "null"]}
_FIELD = members(
    {"name": _FIELD_NAME, "type": {"enum": _SCALARS}, "optional": FLAG},
    {"array": FLAG, "description": TEXT},
)
_FIELD_MORE = {"optional": FLAG, "description": {"type": ["string", "null"], "maxLength": MAX_DESCRIPTION}}
_FIELD_SENT = {
    "description": "A scalar, or an array of scalars in one of three spellings.",
    "oneOf": [
        members({"name": _FIELD_NAME, "type": {"enum": _SCALARS}}, {"array": FLAG, **_FIELD_MORE}),
        members(
            {"name": _FIELD_NAME, "type": {"enum": [f"{kind}[]" for kind in _SCALARS]}},
            {"array": {"const": False}, **_FIELD_MORE},
        ),
        members(
            {
                "name": _FIELD_NAME,
                "type": {"const": "array"},
                "items": {"oneOf": [{"enum": _SCALARS}, members({"type": {"enum": _SCALARS}})]},
            },
            {"array": {"const": False}, **_FIELD_MORE},
        ),
    ],
}
_FIELDS_SENT = {"type": "array", "minItems": 1, "maxItems": MAX_FIELDS, "items": of("FieldSent")}
_SAID = {"description": NOTE, "fields": many(of("Field")), "metadata": _METADATA, "state": {"enum": _STATES}}
_ENTRY = {
    "id": ID, "gts_id": TEXT, "tenant_id": {"type": ["string", "null"], "format": "uuid"}, "type_id": TEXT,
    "name": TEXT, **_SAID, "version": NUMBER, "state_changed_at": MOMENT,
    "created_at": MOMENT, "created_by": ID, "updated_at": MOMENT, "updated_by": ID,
}  # fmt: skip
_NAME_SENT = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
_NOTES_SENT = {"description": NOTE, "metadata": _METADATA}
_KEPT = ("id", "gts_id", "tenant_id", "state_changed_at", "created_at", "created_by", "updated_at", "updated_by")
_IGNORES = dict.fromkeys(_KEPT, _IGNORED)
_FIXED: dict[str, Shape] = {
    "type_id": {"description": "As it is, if it is sent."},
    "state": {"description": "As it is, if it is sent."},
    "version": {
        "type": ["integer", "null"],
        "minimum": 1,
        "description": "The version that the change is made for, unless If-Match says it.",
    },
}
_DIFFERENCE = members(
    {"change": {"enum": ["added", "removed", "changed", "reordered"]}},
    {"field": TEXT, "member": TEXT, "from": {}, "to": {}},
)
_DIFFERENCES = {
    "members": many(TEXT), "fields": many(of("Difference")), "compatible": FLAG, "breaking": many(of("Difference")),
}  # fmt: skip
_REFERENCE = members({"id": ID, "name": TEXT, "state": TEXT, "version": NUMBER})
_COMPLAINT = members({"expected": NOTE, "actual": NOTE, "message": TEXT}, {"row": COUNT, "field": TEXT})


def _flat_or_wrapped(shape: Shape) -> Shape:
    return {"anyOf": [shape, members({"entity": shape})]}


# -- queries

_PARAMETER = members({"name": _FIELD_NAME, "type": {"enum": _SCALARS}, "required": FLAG}, {"default": {}})
_PARAMETER_SENT = members(
    {"name": _FIELD_NAME, "type": {"enum": _SCALARS}}, {"required": {"type": ["boolean", "null"]}, "default": {}}
)
_QUERY_SAID = {
    "name": TEXT, "description": NOTE, "sql": TEXT, "parameters": many(of("Parameter")), "returns_schema_id": ID,
    "state": {"enum": _STATES}, "datasets": many(members({"schema_name": TEXT, "table_name": TEXT}, {"version": COUNT})),
}  # fmt: skip
_QUERY = {
    "id": ID, **_QUERY_SAID, "version": NUMBER, "state_changed_at": MOMENT,
    "created_at": MOMENT, "created_by": ID, "updated_at": MOMENT, "updated_by": ID,
}  # fmt: skip
_QUERY_SENT = {
    "name": _NAME_SENT,
    "sql": {"type": "string", "minLength": 1, "maxLength": MAX_SQL},
    "returns_schema_id": TEXT,
}
_QUERY_MORE = {
    "description": NOTE,
    "parameters": {"type": ["array", "null"], "items": of("ParameterSent"), "maxItems": MAX_PARAMETERS},
}
_QUERY_KEPT = ("id", "datasets", "state_changed_at", "created_at", "created_by", "updated_at", "updated_by")
_QUERY_IGNORES = dict.fromkeys(_QUERY_KEPT, _IGNORED)
_VALUES = {
    "type": ["object", "null"],
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}  # of parameters
_READ = {"type": "object", "additionalProperties": COUNT}  # versions, by the names of datasets
_ROWS = {"@penstock.versions": _READ, "value": many(ANY_OBJECT)}

# -- datasets

_COLUMN_TYPE = {
    "anyOf": [
        TEXT,
        members({"decimal": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}}),
        members({"list": of("ColumnType")}),
        members(
            {"struct": many({"type": "array", "prefixItems": [TEXT, of("ColumnType")], "minItems": 2, "maxItems": 2})}
        ),
    ]
}
_VERSION = {
    "version": COUNT, "operation": TEXT, "inserted": COUNT, "updated": COUNT, "deleted": COUNT, "rows": COUNT,
    "files": COUNT, "bytes": COUNT, "at": MOMENT, "author": TEXT, "commit_no": COUNT, "swept": FLAG,
}  # fmt: skip
_DATASET = {
    "id": ID, "name": TEXT, "schema_name": TEXT, "table_name": TEXT, "row_ids": FLAG, "read_only": FLAG, "created_at": MOMENT,
    "schema": many(of("Column")), **_VERSION,
}  # fmt: skip
_HEAD = {"dataset": ID, "name": TEXT, "version": COUNT}
_WRITTEN = {
    "dataset": ID, "name": TEXT, "version": COUNT, "operation": TEXT, "rows": COUNT,
    "inserted": COUNT, "updated": COUNT, "deleted": COUNT,
}  # fmt: skip
_FIRST = {"first_row_id": {"type": ["integer", "null"], "minimum": 1}}  # what was written long ago does not tell it

# -- pipelines and their runs


def _operation(kind: str, parameters: Shape) -> tuple[Shape, Shape]:
    """An operation as it is shown, and as it may be sent: with members that nobody looks at."""
    named = {"alias": {"type": "string", "maxLength": MAX_ALIAS}}
    shown = members({"type": {"const": kind}, "order": COUNT, "parameters": parameters}, named)
    return shown, {**shown, "required": ["type", "parameters"], "additionalProperties": True}


_NAMES = {"type": "array", "items": TEXT, "minItems": 1}
_REF = members({"dataset_id": ID}, {"dataset_version": NUMBER})
_AGGREGATION = members(
    {
        "group_by": _NAMES,
        "aggregations": {"type": "array", "items": members({"column": TEXT, "expression": TEXT}), "minItems": 1},
    }
)
_APPEND, _APPEND_SENT = _operation(
    "append", members({"source": of("DatasetRef")}, {"source_selector": TEXT, "aggregation": _AGGREGATION})
)
_MERGE, _MERGE_SENT = _operation(
    "merge",
    members(
        {"source": of("DatasetRef"), "key_columns": {"anyOf": [TEXT, _NAMES]}, "strategy": {"enum": list(STRATEGIES)}},
        {"source_selector": TEXT, "dedup_order_by": {"anyOf": [TEXT, _NAMES]}},
    ),
)
_OUTPUT = {"output": members({"schema_name": TEXT, "table_name": TEXT})}
_DEFINITION: dict[str, Shape] = {"name": TEXT, "working": of("DatasetRef"), "operations": many(of("Operation"))}
_PIPELINE_SENT = {
    "name": {"type": "string", "minLength": 1, "maxLength": pipelines.MAX_NAME},
    "working": of("DatasetRef"),
    "operations": {
        "type": "array", "items": of("OperationSent"), "minItems": 1, "maxItems": pipelines.MAX_OPERATIONS,
    },
}  # fmt: skip
_PIPELINE_IGNORES = dict.fromkeys(("id", "created_at", "created_by", "updated_at", "updated_by"), _IGNORED)
_PIPELINE: dict[str, Shape] = {
    "id": ID, **_DEFINITION, "version": NUMBER,
    "created_at": MOMENT, "created_by": ID, "updated_at": MOMENT, "updated_by": ID,
}  # fmt: skip
_FAULT = members({"pointer": TEXT, "code": TEXT, "message": TEXT}, {"details": ANY_OBJECT})
_ROW_COUNTS = {
    "source_dataset_id": ID, "working_dataset_rows_before": COUNT, "working_dataset_rows_after": COUNT,
    "execution_time_ms": COUNT,
}  # fmt: skip


def _done(kind: str, result: dict[str, Shape]) -> Shape:
    said: dict[str, Shape] = {"success": {"const": True}, "operation": {"const": kind}, "order": COUNT}
    return members({**said, "result": members({**result, **_ROW_COUNTS, "filtered": FLAG})})


_OPERATION_DONE = {
    "anyOf": [
        _done("append", {"rows_appended": COUNT, "aggregated": FLAG}),
        _done("merge", {"inserted": COUNT, "updated": COUNT, "deleted": COUNT, "total": COUNT}),
    ]
}
_MAYBE_COUNT = {"type": ["integer", "null"], "minimum": 0}
_MAYBE_MOMENT = {"type": ["string", "null"], "format": "date-time"}
_PROGRESS = members(
    {
        "operation": COUNT, "operations": COUNT, "order": _MAYBE_COUNT, "type": NOTE, "phase": NOTE,
        "stages": COUNT, "stages_done": COUNT, "tasks": COUNT, "tasks_done": COUNT, "rows": COUNT,
    }
)  # fmt: skip
_RUN: dict[str, Shape] = {
    "id": ID, "pipeline_id": {"type": ["string", "null"], "format": "uuid"}, "name": TEXT,
    "state": {"enum": [state.value for state in RunState]},
    "created_at": MOMENT, "created_by": ID, "author": TEXT, "idempotency_key": NOTE,
    "started_at": _MAYBE_MOMENT, "ended_at": _MAYBE_MOMENT, "cancelling": FLAG,
    "progress": {"anyOf": [of("Progress"), {"type": "null"}]},
    "reads": many(members({"dataset": ID, "name": TEXT, "version": COUNT, "newest": COUNT})),
    "written": many(members(_WRITTEN, _FIRST)), "commit_no": _MAYBE_COUNT,
    "results": many({"anyOf": [of("OperationDone"), of("OperationError")]}),
    "error": {"anyOf": [of("OperationError"), {"type": "null"}]},
    "pipeline": members(_DEFINITION, _OUTPUT),
}  # fmt: skip

SHAPES: dict[str, Shape] = {
    "Problem": PROBLEM,
    "Field": _FIELD,
    "FieldSent": _FIELD_SENT,
    "Schema": members(_ENTRY),
    "SchemaPage": page(members({}, _ENTRY)),
    "SchemaSent": _flat_or_wrapped(
        members(
            {"name": _NAME_SENT, "type_id": TEXT, "fields": _FIELDS_SENT},
            {**_NOTES_SENT, "state": {"enum": ["ACTIVE", "DRAFT"]}, "version": _IGNORED, **_IGNORES},
        )
    ),
    "SchemaReplacement": _flat_or_wrapped(
        members({"name": _NAME_SENT, "fields": _FIELDS_SENT}, {**_NOTES_SENT, **_FIXED, **_IGNORES})
    ),
    "SchemaMergePatch": _flat_or_wrapped(
        members({}, {"name": _NAME_SENT, "fields": _FIELDS_SENT, **_NOTES_SENT, **_FIXED, **_IGNORES})
    ),
    "JsonPatch": many(
        {
            "type": "object",
            "required": ["op", "path"],
            "properties": {
                "op": {"enum": ["add", "remove", "replace", "move", "copy", "test"]},
                "path": TEXT,
                "from": TEXT,
                "value": {},
            },
        }
    ),
    "SchemaProposal": members({"name": TEXT, "type_id": TEXT, "fields": many(of("Field"))}),
    "Sample": {
        "anyOf": [
            members({"dataset": TEXT}, {"version": {"type": ["integer", "null"]}, "name": NOTE}),
            members({"rows": {"type": "array", "minItems": 1}}, {"name": NOTE}),
            members({"sql": TEXT}, {"parameters": _VALUES, "name": NOTE}),
        ]
    },
    "Transition": members({"to": {"enum": _STATES}}, {"version": _FIXED["version"], "reason": NOTE}),
    "SchemaChange": _flat_or_wrapped(
        members(
            {"fields": _FIELDS_SENT},
            {**_NOTES_SENT, **_FIXED, "name": _NAME_SENT, "version": _IGNORED, **_IGNORES},
        )
    ),
    "Revision": members(
        {
            "version": NUMBER,
            "change": TEXT,
            "reason": NOTE,
            "changed_at": MOMENT,
            "changed_by": ID,
            "author": TEXT,
            "name": TEXT,
            **_SAID,
        }
    ),
    "Difference": _DIFFERENCE,
    "Differences": members({"from": NUMBER, "to": NUMBER, **_DIFFERENCES}),
    "Compatibility": members({**_DIFFERENCES, "query_count": COUNT, "accepted": FLAG}),
    "References": members({"query_count": COUNT, "queries": many(_REFERENCE)}),
    "Rows": members({"rows": {}}, {"strict": FLAG}),
    "Verdict": members({"valid": FLAG, "error_count": COUNT, "errors": many(_COMPLAINT)}),
    "Parameter": _PARAMETER,
    "ParameterSent": _PARAMETER_SENT,
    "Query": members(_QUERY),
    "QueryPage": page(members({}, _QUERY)),
    "QuerySent": _flat_or_wrapped(
        members(
            _QUERY_SENT,
            {**_QUERY_MORE, "state": {"enum": ["ACTIVE", "DRAFT", None]}, "version": _IGNORED, **_QUERY_IGNORES},
        )
    ),
    "QueryReplacement": _flat_or_wrapped(
        members(_QUERY_SENT, {**_QUERY_MORE, "state": _FIXED["state"], "version": _FIXED["version"], **_QUERY_IGNORES})
    ),
    "QueryRevision": members(
        {
            "version": NUMBER,
            "change": TEXT,
            "reason": NOTE,
            "changed_at": MOMENT,
            "changed_by": ID,
            "author": TEXT,
            **_QUERY_SAID,
        }
    ),
    "QueryResults": members({"@odata.context": TEXT, **_ROWS}, {"@odata.count": COUNT, "@odata.nextLink": LINK}),
    "PreviewSent": members({"sql": TEXT}, {"parameters": _VALUES}),
    "Preview": members(
        {"columns": many(members({"name": TEXT, "type": of("ColumnType")})), "more": FLAG, **_ROWS},
    ),
    "ColumnType": _COLUMN_TYPE,
    "Column": members({"name": TEXT, "type": of("ColumnType"), "nullable": FLAG}),
    "Dataset": members(_DATASET),
    "DatasetPage": page(members({}, _DATASET)),
    "DatasetSent": members(
        {"name": TEXT, "schema": many(members({"name": TEXT, "type": of("ColumnType")}, {"nullable": FLAG}))},
        {"row_ids": FLAG, "read_only": FLAG},
    ),
    "DatasetColumns": members({**_HEAD, "schema": many(of("Column"))}),
    "DatasetVersion": members(_VERSION),
    "DatasetRows": members({**_HEAD, "value": many(ANY_OBJECT)}, {"@odata.nextLink": LINK}),
    "DatasetProfile": members(
        {**_HEAD, "rows": COUNT, "columns": many(of("ColumnProfile"))}, {"histogram": of("Histogram")}
    ),
    "ColumnProfile": members(
        {"name": TEXT, "type": of("ColumnType"), "nullable": FLAG, "nulls": _MAYBE_COUNT, "min": {}, "max": {}}
    ),
    "Histogram": members(
        {
            "column": TEXT,
            "rows": COUNT,
            "sampled": FLAG,
            "nulls": COUNT,
            "not_finite": COUNT,
            "distinct": _MAYBE_COUNT,
            "bins": _maybe(many(members({"from": {}, "to": {}, "count": COUNT}))),
            "top": _maybe(many(members({"value": {}, "count": NUMBER, "cut": FLAG}))),
        }
    ),
    "Receipt": members(
        {"key": TEXT, "commit_no": COUNT, "at": MOMENT, "replayed": FLAG, "written": many(members(_WRITTEN, _FIRST))}
    ),
    "DatasetRef": _REF,
    "Operation": {"anyOf": [_APPEND, _MERGE]},
    "OperationSent": {"anyOf": [_APPEND_SENT, _MERGE_SENT]},
    "OperationDone": _OPERATION_DONE,
    "OperationError": members({"error": members({"code": TEXT, "message": TEXT, "details": ANY_OBJECT})}),
    "Pipeline": members(_PIPELINE, _OUTPUT),
    "PipelinePage": page(members({}, {**_PIPELINE, **_OUTPUT})),
    "PipelineSent": members(_PIPELINE_SENT, {**_OUTPUT, "version": _IGNORED, **_PIPELINE_IGNORES}),
    "PipelineReplacement": members(_PIPELINE_SENT, {**_OUTPUT, "version": _FIXED["version"], **_PIPELINE_IGNORES}),
    "PipelineDraft": {"description": "A pipeline, as far as it is written: whatever is wrong is answered."},
    "PipelineVerdict": members({"valid": FLAG, "errors": many(_FAULT)}),
    "Nothing": members({}),
    "Progress": _PROGRESS,
    "Run": members(_RUN),
    "RunPage": page(members({}, _RUN)),
}
